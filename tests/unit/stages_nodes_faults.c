/* A sandbox of two nodes by hand, of which one fails: one sentence within seconds, and
 * nothing is left.
 */
#include "config.h"

#include "tests/by_hand_nodes.h"

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void an_agent_is_killed(void)
{
    double from = seconds();

    CHECK_EQ(emulate_on(2, "--fail hang --fail-rank 2", "sleep 1.5; kill -9 $2"), 0);
    CHECK(seconds() - from < 15);
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
    CHECK(seconds() - from < 15);
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
    CHECK(seconds() - from < 10);
    CHECK_STR(output, "crystal: emulate: coordinator: it does not accept this process; "
                      "is the token file that of the running job?\nagent code 70\n");
    nothing_is_left();
}

/* No board has both: the drivers tell each other what their ranks call. */
static void ranks_of_two_nodes_call_different_operations(void)
{
    unsigned codes;

    prepare_nodes(8, 1, "0,5", "");
    run_stages("--per-node 1");
    CHECK_EQ(emulate_on(2, "--per-node 1", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\nagent 1 code 0\n");
    CHECK_EQ(emulate_on(2, "--per-node 1 --fail other --fail-rank 5", ""), 0);
    /* both ranks end with 1; an agent may hear of the fault before its own one has */
    codes = times_said("agent 0 code 1\n") + times_said("agent 1 code 1\n") +
            times_said("agent 0 code 70\n") + times_said("agent 1 code 70\n");
    CHECK_EQ(codes, 2);
    CHECK_HAS(output, "communicator '/default_pg/0//cpu//0', operation 8: rank 5 calls "
                      "function 1 of 3 elements (type 4, root 0), a sandbox rank of "
                      "another node function 5 of 1000 (type 4, root 0)\n");
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
    CHECK_RUN(a_wrong_token);
    CHECK_RUN(a_file_is_missing);
    CHECK_RUN(numbers_of_nodes);
    CHECK_RUN(ranks_of_two_nodes_call_different_operations);
    by_hand_end(parent);
    return check_end();
}
