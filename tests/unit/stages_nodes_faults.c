/* A sandbox of two nodes by hand, of which one fails: one sentence within seconds, and
 * nothing is left.
 */
#include "config.h"

#include "tests/by_hand_nodes.h"

#include <sys/stat.h>

#define ALL_BEGUN "has_begun 0 1 2 3 12 13 14 15"

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void an_agent_is_killed(void)
{
    double from = seconds();

    CHECK_EQ(emulate_on(2, "--fail hang --fail-rank 2", ALL_BEGUN "; kill -9 $2"), 0);
    CHECK(seconds() - from < 60);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 137\n");
    CHECK_EQ(times_said("crystal: emulate: "), 1);
    CHECK_HAS(output, "crystal: emulate: the agent of node 1 (pid ");
    CHECK_HAS(output, ") died during emulate; see log/ in the job directory\n");
    nothing_is_left();
}

static void a_rank_of_the_other_node_is_killed(void)
{
    double from = seconds();

    CHECK_EQ(emulate_on(2, "--fail kill --fail-rank 13", ""), 0);
    CHECK(seconds() - from < 60);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 137\n");
    CHECK_EQ(times_said("crystal: emulate: "), 1);
    CHECK_HAS(output, "crystal: emulate: rank 13 was ended by signal 9 (Killed)\n");
    nothing_is_left();
}

static void a_rank_of_the_first_node_exits(void)
{
    CHECK_EQ(emulate_on(2, "--fail exit --fail-rank 3", ""), 0);
    CHECK_HAS(output, "agent 0 code 7\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_EQ(times_said("crystal: emulate: "), 1);
    CHECK_HAS(output, "crystal: emulate: rank 3 ended with code 7\n");
    nothing_is_left();
}

static void a_file_is_missing(void)
{
    char path[PATH_MAX + 32];

    (void)snprintf(path, sizeof path, "%s/job.profile", job_dir);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(emulate_on(2, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_EQ(times_said("crystal: emulate: "), 1);
    CHECK_HAS(output, "job.profile is missing; run the stages before it");
    nothing_is_left();
}

static void numbers_of_nodes(void)
{
    CHECK_EQ(finish(start("exec %s agent --job %s --stage emulate --node 2 --nodes 2",
                          scrystal, job_dir)),
             2);
    CHECK_HAS(output,
              "--node and --nodes: give a number from 0 and how many there are");
}

/* An agent of another job, or of the same one started anew. */
static void a_wrong_token(void)
{
    double from = seconds();

    CHECK_EQ(
        finish(start("rm -f %s/coord; %s coord --job %s >/dev/null 2>&1 & coord=$!\n"
                     "while [ ! -e %s/coord ]; do sleep 0.02; done\n"
                     "cp %s/token %s/kept; tr 0-9 1-90 <%s/kept >%s/token\n"
                     "%s agent --job %s --stage emulate --node 1 --nodes 2 -- %s\n"
                     "echo agent code $?; mv %s/kept %s/token\n"
                     "%s coord --finish --job %s >/dev/null 2>&1; wait $coord\n",
                     job_dir, scrystal, job_dir, job_dir, job_dir, job_dir, job_dir,
                     job_dir, scrystal, job_dir, program, job_dir, job_dir, scrystal,
                     job_dir)),
        0);
    CHECK(seconds() - from < 60);
    CHECK_STR(output, "crystal: emulate: coordinator: it does not accept this process; "
                      "is the token file that of the running job?\nagent code 70\n");
    nothing_is_left();
}

/* The program, as a script after which this rank's process runs on for a while: it has
 * closed its connections, and its neighbours on both nodes have died of it, before it
 * is seen to end. */
static void make_last(const char *path, unsigned rank)
{
    FILE *script = fopen(path, "w");

    CHECK(script != NULL);
    if (!script)
        return;
    fprintf(script,
            "#!/bin/sh\n%s \"$@\"\ncode=$?\n[ \"$RANK\" != %u ] || sleep 1\n"
            "[ $code -lt 128 ] || kill -$((code - 128)) $$\nexit $code\n",
            program, rank);
    CHECK_EQ(fclose(script), 0);
    CHECK_EQ(chmod(path, 0700), 0);
}

static void the_rank_that_began_ends_last(void)
{
    static const struct {
        unsigned rank;
        const char *fail, *how, *codes[2];
    } cases[] = {
        {2,
         "kill",
         "was ended by signal 9 (Killed)",
         {"agent 0 code 137\n", "agent 1 code 70\n"}},
        {13, "exit", "ended with code 7", {"agent 0 code 70\n", "agent 1 code 7\n"}}};
    char options[64], sentence[128], real[PATH_MAX], path[PATH_MAX + 16];

    memcpy(real, program, sizeof real);
    (void)snprintf(path, sizeof path, "%s/last", job_dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(program, real, sizeof program);
        make_last(path, cases[i].rank);
        (void)snprintf(program, sizeof program, "%s", path);
        (void)snprintf(options, sizeof options, "--fail %s --fail-rank %u",
                       cases[i].fail, cases[i].rank);
        (void)snprintf(sentence, sizeof sentence, "crystal: emulate: rank %u %s\n",
                       cases[i].rank, cases[i].how);
        CHECK_EQ(emulate_on(2, options, ""), 0);
        CHECK_HAS(output, cases[i].codes[0]);
        CHECK_HAS(output, cases[i].codes[1]);
        CHECK_HAS(output, sentence);
        CHECK_EQ(times_said("crystal: emulate: "), 1);
        nothing_is_left();
    }
    memcpy(program, real, sizeof program);
}

/* No board has both: the drivers tell each other what their ranks call, and either may
 * be the first to see it; so may the plugin of the rank that no longer does what was
 * captured. Nobody takes it for the end of a rank, which it leads to. */
static void ranks_of_two_nodes_call_different_operations(void)
{
    static const char *const sentences[] = {
        "crystal: emulate: communicator '/default_pg/0//cpu//0', operation 8: rank 0 "
        "calls allreduce of 1000 elements (type 4, root 0), rank 5 of another node "
        "broadcast of 3 (type 4, root 0)\n",
        "crystal: emulate: communicator '/default_pg/0//cpu//0', operation 8: rank 5 "
        "calls broadcast of 3 elements (type 4, root 0), rank 0 of another node "
        "allreduce of 1000 (type 4, root 0)\n",
        "crystal: emulate: rank 5: communicator '/default_pg/0//cpu//0', operation 8: "
        "function 5 was recorded, now 1 is called; the program does not do what was "
        "captured, capture it again\n"};
    unsigned said = 0;

    prepare_nodes(8, 1, "0,5", "");
    run_stages("--per-node 1");
    CHECK_EQ(emulate_on(2, "--per-node 1", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_EQ(emulate_on(2, "--per-node 1 --fail other --fail-rank 5", ""), 0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    for (size_t i = 0; i < sizeof sentences / sizeof *sentences; i++)
        said += strstr(output, sentences[i]) != NULL;
    CHECK_EQ(said, 1);
    CHECK_EQ(times_said("crystal: emulate: "), 1);
    nothing_is_left();
}

int main(void)
{
    char parent[] = "/tmp/crystal-nodes-faults.XXXXXX";

    if (nodes_begin(parent))
        return 1;
    check_begin();
    prepare("0-3,12-15", "");
    run_stages("");
    CHECK_RUN(an_agent_is_killed);
    CHECK_RUN(a_rank_of_the_other_node_is_killed);
    CHECK_RUN(a_rank_of_the_first_node_exits);
    CHECK_RUN(the_rank_that_began_ends_last);
    CHECK_RUN(a_wrong_token);
    CHECK_RUN(a_file_is_missing);
    CHECK_RUN(numbers_of_nodes);
    CHECK_RUN(ranks_of_two_nodes_call_different_operations);
    by_hand_end(parent);
    return check_end();
}
