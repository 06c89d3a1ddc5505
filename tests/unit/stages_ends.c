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

/* One line of the stage itself, about this rank, and this code. A rank that has ended
 * well is missed by a neighbour, which fails, or, where all of these are virtual, by
 * the stage. */
static void said(const char *stage, unsigned rank, size_t how, int code)
{
    char begin[64], sentence[128];
    const char *line, *end;
    int ok;

    (void)snprintf(sentence, sizeof sentence,
                   "crystal: %s: rank %u has ended while rank ", stage, rank);
    if (ends[how].code == 1 && strstr(output, sentence)) {
        CHECK_EQ(code, 70);
        return;
    }
    CHECK_EQ(code, strcmp(stage, "plan") == 0 ? 70 : ends[how].code);
    (void)snprintf(begin, sizeof begin, "crystal: %s: rank ", stage);
    (void)snprintf(sentence, sizeof sentence, "crystal: %s: rank %u %s", stage, rank,
                   ends[how].how);
    line = strstr(output, begin);
    ok = line && strncmp(line, sentence, strlen(sentence)) == 0 &&
         !strstr(line + 1, begin);
    CHECK(ok);
    if (strcmp(stage, "plan") == 0)
        CHECK_HAS(output, "; see "); /* its log */
    end = line ? strchr(line, '\n') : NULL;
    if (!ok)
        printf("# want: %s\n# got:  %.*s\n", sentence,
               end ? (int)(end - line) : (int)strlen(output), line ? line : output);
}

static void plan_names_the_rank(void)
{
    own_job("plan");
    for (size_t how = 0; how < END_COUNT; how++)
        for (unsigned rank = 0; rank < LIVE; rank += 3) {
            char options[128];

            (void)snprintf(options, sizeof options,
                           "--iterations 8 --fail %s --fail-rank %u " OPTIONS,
                           ends[how].fail, rank);
            said("plan", rank, how, finish(start_stage("plan", options)));
            nothing_is_left();
        }
}

static void emulate_names_the_rank(void)
{
    own_job("emulate");
    for (size_t how = 0; how < END_COUNT; how++)
        for (unsigned rank = 0; rank < LIVE; rank++) {
            char options[128];

            (void)snprintf(options, sizeof options,
                           "--iterations 3 --fail %s --fail-rank %u " OPTIONS,
                           ends[how].fail, rank);
            said("emulate", rank, how, finish(start_stage("emulate", options)));
            nothing_is_left();
        }
}

/* The rank has closed its connections, and its neighbours have died of it, before its
 * own process has ended. */
static void the_rank_that_began_ends_last(const char *stage)
{
    for (size_t how = 0; how < END_COUNT; how++) {
        pid_t pid = start("exec %s %s --job %s -- sh -c '\"$@\"; code=$?; "
                          "[ $RANK != 1 ] || sleep 0.5; "
                          "[ $code -lt 128 ] || kill -$((code - 128)) $$; "
                          "exit $code' - %s --tp 2 --pp 2 --iterations 8 --fail %s "
                          "--fail-rank 1 " OPTIONS,
                          scrystal, stage, job_dir, program, ends[how].fail);

        said(stage, 1, how, finish(pid));
        nothing_is_left();
    }
}

static void it_ends_last_in_plan(void)
{
    own_job("last-plan");
    the_rank_that_began_ends_last("plan");
}

static void it_ends_last_in_emulate(void)
{
    own_job("last-emulate");
    the_rank_that_began_ends_last("emulate");
}

/* Before its first communicator, while the others wait for it to join. */
static void it_never_joins(void)
{
    own_job("joins");
    CHECK_EQ(finish(start(
                 "exec timeout 60 %s emulate --job %s -- sh -c '[ $RANK != 1 ] "
                 "|| exit 0; exec \"$@\"' - %s --tp 2 --pp 2 --iterations 3 " OPTIONS,
                 scrystal, job_dir, program)),
             70);
    CHECK_HAS(output, "crystal: emulate: rank 1 has ended while rank ");
    CHECK_HAS(output, " still communicates with it\n");
    nothing_is_left();
}

/* Its communication is gone, but it does not end. */
static void it_runs_on(void)
{
    own_job("runs-on");
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

static int exists(const char *name)
{
    char path[PATH_MAX + 64];

    (void)snprintf(path, sizeof path, "%s/%s", job_dir, name);
    return access(path, F_OK) == 0;
}

/* The directory of the board, as the ranks are told it. */
static void board_directory(char out[256])
{
    char path[PATH_MAX + 64], line[512];
    FILE *file;

    out[0] = 0;
    (void)snprintf(path, sizeof path, "%s/agent.0.env", job_dir);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "CRYSTAL_BOARD=%255[^\n]", out) == 1)
            *strrchr(out, '/') = 0;
    if (file)
        (void)fclose(file); /* read-only */
}

/* SIGKILL of scrystal itself: no process, no shared memory, no token is left. */
static void a_kill_leaves_nothing(void)
{
    char path[PATH_MAX + 64], directory[256] = "";
    pid_t pid;

    own_job("kill");
    (void)snprintf(path, sizeof path, "%s/agent.0.env", job_dir);
    (void)unlink(path);
    pid = start_stage("emulate", "--iterations 3 --fail sleep --fail-rank 1 " OPTIONS);
    for (int i = 0; i < 3000 && access(path, F_OK) < 0; i++)
        pause_ms(50);
    pause_ms(500);
    board_directory(directory);
    CHECK(strncmp(directory, "/dev/shm/crystal-", 17) == 0);
    CHECK(access(directory, F_OK) == 0);
    CHECK(exists("coord") && exists("token"));
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(finish(pid), 128 + SIGKILL);
    nothing_is_left();
    for (int i = 0; i < 3000 && (access(directory, F_OK) == 0 || exists("token")); i++)
        pause_ms(100);
    CHECK_EQ(access(directory, F_OK), -1);
    CHECK(!exists("coord") && !exists("token"));
}

int main(void)
{
    static const struct check_case cases[] = {
        CHECK_CASE(plan_names_the_rank),   CHECK_CASE(emulate_names_the_rank),
        CHECK_CASE(it_ends_last_in_plan),  CHECK_CASE(it_ends_last_in_emulate),
        CHECK_CASE(it_never_joins),        CHECK_CASE(it_runs_on),
        CHECK_CASE(a_kill_leaves_nothing),
    };
    char parent[] = "/tmp/crystal-stages.XXXXXX";

    check_begin();
    if (by_hand_begin(parent))
        return 1;
    make_plan();
    check_together(cases, sizeof cases / sizeof *cases);
    by_hand_end(parent);
    return check_end();
}
