/* Stages with ranks that keep others waiting, and of two tasks with one rank.
 */
#include "config.h"

#include "tests/by_hand.h"

#define OPTIONS "--elements 64 --compute-us 500"

static void make_plan(void)
{
    make_job("--iterations=3");
    CHECK_EQ(finish(start_stage("capture", "--iterations 8 " OPTIONS)), 0);
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
    CHECK_EQ(finish(start_stage("plan", "--iterations 8 " OPTIONS)), 0);
}

/* What the stage has printed so far, once this is in it. */
static const char *wait_for_output(const char *text)
{
    static char so_far[sizeof output];
    char path[PATH_MAX + 16];

    (void)snprintf(path, sizeof path, "%s.out", job_dir);
    for (int i = 0; i < 300; i++) {
        FILE *file = fopen(path, "r");
        size_t count = file ? fread(so_far, 1, sizeof so_far - 1, file) : 0;

        so_far[count] = 0;
        if (file)
            (void)fclose(file); /* read-only */
        if (strstr(so_far, text))
            return strstr(so_far, text);
        pause_ms(100);
    }
    CHECK_HAS(so_far, text);
    return NULL;
}

/* The pid in "rank R (pid N) ...". */
static pid_t pid_in(const char *sentence)
{
    const char *at = sentence ? strstr(sentence, "(pid ") : NULL;

    return at ? (pid_t)atoi(at + 5) : 0;
}

/* It is told once, and goes on when it is let. A plan, whose passes would each stop, is
 * ended instead. */
static void stopped(const char *stage, int is_plan, unsigned rank)
{
    char options[128], begin[64], other[64];
    const char *line;
    pid_t pid, it;

    (void)snprintf(options, sizeof options,
                   "--iterations 3 --fail stop --fail-rank %u " OPTIONS, rank);
    (void)snprintf(begin, sizeof begin, "crystal: %s: rank %u (pid ", stage, rank);
    pid = start_stage(stage, options);
    line = wait_for_output(begin);
    it = pid_in(line);
    CHECK(it > 0);
    if (it <= 0)
        return;
    if (line) {
        (void)snprintf(other, sizeof other,
                       "%s%d) is stopped by a signal or debugger; ", begin, (int)it);
        CHECK_HAS(line, other);
        CHECK_HAS(line, " waits for it in communicator '/default_pg/0//cpu//0'\n");
    }
    pause_ms(1500);
    CHECK_EQ(kill(is_plan ? pid : it, is_plan ? SIGTERM : SIGCONT), 0);
    CHECK_EQ(finish(pid), is_plan ? 128 + SIGTERM : 0);
    line = strstr(output, begin);
    CHECK(line && !strstr(line + 1, begin));
    nothing_is_left();
}

static void a_stopped_rank_in_plan(void)
{
    own_job("plan");
    stopped("plan", 1, 3);
}

static void a_stopped_rank_in_emulate(void)
{
    own_job("emulate");
    stopped("emulate", 0, 0);
    stopped("emulate", 0, 2);
}

/* Where only warnings are shown, as under Slurm. */
static void a_stopped_rank_in_capture(void)
{
    static const char begin[] = "crystal: coordinator: rank 1 (pid ";
    const char *line;
    pid_t pid, it;

    own_job("stopped-capture");
    (void)setenv("CRYSTAL_LOG", "warning", 1);
    pid = start_stage("capture", "--iterations 8 --fail stop --fail-rank 1 " OPTIONS);
    line = wait_for_output(begin);
    it = pid_in(line);
    CHECK(it > 0);
    if (it <= 0)
        return;
    CHECK_HAS(line, ") is stopped by a signal or debugger; rank ");
    CHECK_HAS(line, " waits in ");
    CHECK_EQ(kill(it, SIGCONT), 0);
    CHECK_EQ(finish(pid), 0);
    CHECK(!strstr(output, "nothing has come"));
    (void)unsetenv("CRYSTAL_LOG");
    nothing_is_left();
}

/* Eight seconds in nanosleep. */
static void a_sleeping_rank(void)
{
    own_job("sleeping");
    CHECK_EQ(finish(start_stage("emulate",
                                "--iterations 3 --fail sleep --fail-rank 1 " OPTIONS)),
             0);
    CHECK_HAS(output, "crystal: emulate: rank 1 (pid ");
    CHECK_HAS(output, ") uses no CPU and keeps others waiting; rank ");
    CHECK(!strstr(output, "rank 0 (pid "));
    CHECK(!strstr(output, "rank 2 (pid "));
    CHECK(!strstr(output, "rank 3 (pid "));
    nothing_is_left();
}

/* One that computes is not told. */
static void a_computing_rank(void)
{
    own_job("computing");
    CHECK_EQ(finish(start("exec %s emulate --job %s -- sh -c '[ $RANK != 1 ] || "
                          "timeout 7 sh -c \"while :; do :; done\"; exec \"$@\"' - %s "
                          "--tp 2 --pp 2 --iterations 3 " OPTIONS,
                          scrystal, job_dir, program)),
             0);
    CHECK(!strstr(output, "(pid "));
    nothing_is_left();
}

/* Before its first communicator. */
static void a_rank_that_does_not_join(void)
{
    own_job("joins");
    CHECK_EQ(finish(start(
                 "exec %s emulate --job %s -- sh -c '[ $RANK != 1 ] || "
                 "sleep 12; exec \"$@\"' - %s --tp 2 --pp 2 --iterations 3 " OPTIONS,
                 scrystal, job_dir, program)),
             0);
    CHECK_HAS(output, "crystal: emulate: rank 1 (pid ");
    CHECK_HAS(output, ") uses no CPU and keeps others waiting; rank ");
    CHECK_HAS(output, " waits for it to join communicator '/default_pg/0//cpu//0'\n");
    nothing_is_left();
}

/* Rank 0, whose id the others wait for in the store: there is no communicator yet. */
static void comes_late(const char *stage)
{
    static const char begin[] = "crystal: coordinator: rank 0 (pid ";
    const char *line;

    CHECK_EQ(finish(start("exec %s %s --job %s -- sh -c '[ $RANK != 0 ] || sleep 6; "
                          "exec \"$@\"' - %s --tp 2 --pp 2 --iterations 3 " OPTIONS,
                          scrystal, stage, job_dir, program)),
             0);
    CHECK_HAS(output, begin);
    CHECK_HAS(output, ") uses no CPU and keeps others waiting; rank ");
    CHECK_HAS(output, " waits in the store for the key '/default_pg/0//cpu//0'\n");
    line = strstr(output, begin);
    CHECK(line && !strstr(line + 1, begin));
    nothing_is_left();
}

static void a_rank_that_comes_late_in_capture(void)
{
    own_job("late-capture");
    (void)setenv("CRYSTAL_LOG", "warning", 1); /* as under Slurm */
    comes_late("capture");
    (void)unsetenv("CRYSTAL_LOG");
}

static void a_rank_that_comes_late_in_emulate(void)
{
    own_job("late-emulate");
    comes_late("emulate");
}

/* "BEFORE N s; rank " is in the output: N. */
static int told_seconds(const char *before)
{
    const char *at = strstr(output, before);
    int seconds = -1, end = 0;

    CHECK(at != NULL);
    if (at)
        (void)sscanf(at + strlen(before), "%d s; rank %n", &seconds, &end);
    return end ? seconds : -1;
}

/* One stopped before it has called anything. */
static void a_rank_that_never_comes(void)
{
    own_job("never");
    (void)setenv("CRYSTAL_HANG_SECONDS", "4", 1);
    CHECK_EQ(
        finish(start("exec %s plan --job %s -- sh -c '[ $RANK != 0 ] || kill -STOP "
                     "$$; exec \"$@\"' - %s --tp 2 --pp 2 --iterations 8 " OPTIONS,
                     scrystal, job_dir, program)),
        70);
    CHECK_HAS(output, "rank 0 (pid ");
    CHECK_HAS(output, ") is stopped by a signal or debugger; rank ");
    CHECK_HAS(output, "a rank hangs: rank 0 (pid ");
    CHECK(told_seconds(") is stopped for ") >= 4); /* longer on a busy machine */
    nothing_is_left();
}

static void it_ends_at_last(void)
{
    own_job("at-last");
    (void)setenv("CRYSTAL_HANG_SECONDS", "6", 1);
    CHECK_EQ(finish(start_stage("emulate",
                                "--iterations 3 --fail stop --fail-rank 2 " OPTIONS)),
             70);
    (void)unsetenv("CRYSTAL_HANG_SECONDS");
    CHECK_HAS(output, "crystal: emulate: a rank hangs: rank 2 (pid ");
    CHECK(told_seconds(") is stopped for ") >= 6);
    nothing_is_left();
}

/* Rank `rank` + 1 says that it is rank `rank`. */
static void one_rank_twice(const char *stage, unsigned rank)
{
    char sentence[256];

    CHECK_EQ(
        finish(start("exec timeout 60 %s %s --job %s -- sh -c '[ $RANK != %u ] || "
                     "RANK=%u; exec \"$@\"' - %s --tp 2 --pp 2 --iterations 8 " OPTIONS,
                     scrystal, stage, job_dir, rank + 1, rank, program)),
        70);
    (void)snprintf(sentence, sizeof sentence,
                   "crystal: %s: rank %u joins communicator '/default_pg/0//cpu//0' as "
                   "its rank %u, which is rank %u; the program has to take its rank "
                   "from RANK or SLURM_PROCID\n",
                   stage, rank + 1, rank, rank);
    CHECK_HAS(output, sentence);
    nothing_is_left();
}

static void one_rank_twice_in_each_stage(void)
{
    own_job("twice");
    one_rank_twice("emulate", 0);
    one_rank_twice("emulate", 2);
    one_rank_twice("plan", 0);
    one_rank_twice("plan", 2);
    one_rank_twice("capture", 2); /* the last: what it recorded is gone */
}

int main(void)
{
    static const struct check_case cases[] = {
        CHECK_CASE(a_stopped_rank_in_plan),
        CHECK_CASE(a_stopped_rank_in_emulate),
        CHECK_CASE(a_stopped_rank_in_capture),
        CHECK_CASE(a_sleeping_rank),
        CHECK_CASE(a_computing_rank),
        CHECK_CASE(a_rank_that_does_not_join),
        CHECK_CASE(a_rank_that_comes_late_in_capture),
        CHECK_CASE(a_rank_that_comes_late_in_emulate),
        CHECK_CASE(a_rank_that_never_comes),
        CHECK_CASE(it_ends_at_last),
        CHECK_CASE(one_rank_twice_in_each_stage),
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
