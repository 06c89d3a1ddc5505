/* Plan and emulate of ranks that end before their time: the sentence and the code are
 * those of the rank that began, whoever else dies of it and is seen first.
 */
#include "config.h"

#include "tests/by_hand.h"

#define OPTIONS "--elements 64 --compute-us 500"

/* How a rank ends, what is said of it and the code of emulate. */
static const struct {
    const char *fail, *how;
    int code;
} ends[] = {{"exit", "ended with code 7", 7},
            {"segv", "was ended by signal 11 (Segmentation fault)", 139},
            {"kill", "was ended by signal 9 (Killed)", 137},
            {"early", "ended with code 0 while rank ", 1},
            {"silent", "ended with code 0 while rank ", 1}};

#define END_COUNT (sizeof ends / sizeof ends[0])

static void make_plan(void)
{
    make_job("--iterations=3");
    CHECK_EQ(finish(start_stage("capture", "--iterations 8 " OPTIONS)), 0);
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
    CHECK_EQ(finish(start_stage("plan", "--iterations 8 " OPTIONS)), 0);
}

/* One line of the stage itself, about this rank. */
static void said(const char *stage, unsigned rank, size_t how)
{
    char begin[64], sentence[128];
    const char *line, *end;
    int ok;

    (void)snprintf(begin, sizeof begin, "crystal: %s: rank ", stage);
    (void)snprintf(sentence, sizeof sentence, "crystal: %s: rank %u %s", stage, rank,
                   ends[how].how);
    line = strstr(output, begin);
    ok = line && strncmp(line, sentence, strlen(sentence)) == 0 &&
         !strstr(line + 1, begin);
    CHECK(ok);
    end = line ? strchr(line, '\n') : NULL;
    if (!ok)
        printf("# want: %s\n# got:  %.*s\n", sentence,
               end ? (int)(end - line) : (int)strlen(output), line ? line : output);
}

static void plan_names_the_rank(void)
{
    for (size_t how = 0; how < END_COUNT; how++)
        for (unsigned rank = 0; rank < LIVE; rank += 3) {
            char options[128];

            (void)snprintf(options, sizeof options,
                           "--iterations 8 --fail %s --fail-rank %u " OPTIONS,
                           ends[how].fail, rank);
            CHECK_EQ(finish(start_stage("plan", options)), 70);
            said("plan", rank, how);
            CHECK_HAS(output, "; see ");
            nothing_is_left();
        }
}

static void emulate_names_the_rank(void)
{
    for (size_t how = 0; how < END_COUNT; how++)
        for (unsigned rank = 0; rank < LIVE; rank++) {
            char options[128];

            (void)snprintf(options, sizeof options,
                           "--iterations 3 --fail %s --fail-rank %u " OPTIONS,
                           ends[how].fail, rank);
            CHECK_EQ(finish(start_stage("emulate", options)), ends[how].code);
            said("emulate", rank, how);
            nothing_is_left();
        }
}

/* The rank has closed its connections, and its neighbours have died of it, before its
 * own process has ended. */
static void the_rank_that_began_ends_last(const char *stage, int is_plan)
{
    for (size_t how = 0; how < END_COUNT; how++) {
        pid_t pid = start("exec %s %s --job %s -- sh -c '\"$@\"; code=$?; "
                          "[ $RANK != 1 ] || sleep 0.5; "
                          "[ $code -lt 128 ] || kill -$((code - 128)) $$; "
                          "exit $code' - %s --tp 2 --pp 2 --iterations 8 --fail %s "
                          "--fail-rank 1 " OPTIONS,
                          scrystal, stage, job_dir, program, ends[how].fail);

        CHECK_EQ(finish(pid), is_plan ? 70 : ends[how].code);
        said(stage, 1, how);
        nothing_is_left();
    }
}

static void it_ends_last_in_plan(void)
{
    the_rank_that_began_ends_last("plan", 1);
}

static void it_ends_last_in_emulate(void)
{
    the_rank_that_began_ends_last("emulate", 0);
}

/* Its communication is gone, but it does not end. */
static void it_runs_on(void)
{
    CHECK_EQ(finish(start("exec %s emulate --job %s -- sh -c '\"$@\"; code=$?; "
                          "[ $RANK != 1 ] || sleep 60; exit $code' - %s --tp 2 --pp 2 "
                          "--iterations 3 --fail exit --fail-rank 1 " OPTIONS,
                          scrystal, job_dir, program)),
             1);
    CHECK_HAS(output,
              "crystal: emulate: rank 1 has closed its connections while rank ");
    CHECK_HAS(output, " still communicates with it\n");
    nothing_is_left();
}

int main(void)
{
    char parent[] = "/tmp/crystal-stages.XXXXXX";

    check_begin();
    alarm(300); /* mostly waits */
    if (by_hand_begin(parent))
        return 1;
    make_plan();
    CHECK_RUN(plan_names_the_rank);
    CHECK_RUN(emulate_names_the_rank);
    CHECK_RUN(it_ends_last_in_plan);
    CHECK_RUN(it_ends_last_in_emulate);
    CHECK_RUN(it_runs_on);
    by_hand_end(parent);
    return check_end();
}
