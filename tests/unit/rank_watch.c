/* The watch over ranks of which nobody sees the end: their neighbours are virtual. */
#include "config.h"

#include "replay/rank_watch.h"

#include "tests/check.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define COMM     77
#define COMPUTES 8 /* no rank, as SLEEPS */
#define SLEEPS   9

#define DIRECTORY "/tmp/crystal-watch.XXXXXX"

static char directory[] = DIRECTORY;
static uint32_t sandbox[] = {0, 1};
static const struct crystal_layout layout = {
    .lrank_count = 4, .sandbox = sandbox, .sandbox_count = 2};
static const uint32_t members[] = {0, 1, 2, 3};
static const uint8_t is_real[] = {1, 1, 0, 0};

static struct crystal_roll *roll;
static struct crystal_board *board;
static struct crystal_rank_watch *watch;
static pid_t ranks[2];
static int rank_1_is_there = 1, rank_1_is_seen = 1;
static uint32_t rank_0_does = 3, rank_1_does = SLEEPS;
static struct crystal_error err; /* of the last look that failed */
static char notice[CRYSTAL_ERROR_TEXT_BYTES];

/* The rank itself, in the process that start_rank makes: joins, waits for `crank` if
 * that is one, and sleeps, or computes where it is COMPUTES. */
static int rank_main(char **argv)
{
    uint32_t lrank = (uint32_t)atoi(argv[2]), crank = (uint32_t)atoi(argv[3]);
    volatile int computes = crank == COMPUTES;

    crystal_roll_write(argv[1], CRYSTAL_ROLL_JOINED, lrank, COMM, lrank);
    if (crank < 4)
        crystal_roll_write(argv[1], CRYSTAL_ROLL_WAITS, lrank, COMM, crank);
    if (write(STDOUT_FILENO, "", 1) != 1)
        return 1;
    (void)alarm(120); /* not longer than the test */
    while (computes)
        ;
    (void)pause();
    return 0;
}

/* is_rank: its environment says so, as that of ranks does. */
static pid_t start_rank(uint32_t lrank, uint32_t crank, int is_rank)
{
    char own[16], other[16], setting[32];
    char *argv[] = {(char *)"rank", directory, own, other, NULL};
    char *env[] = {setting, NULL};
    int ends[2];
    char ready;
    pid_t pid;

    (void)snprintf(own, sizeof own, "%u", lrank);
    (void)snprintf(other, sizeof other, "%u", crank);
    (void)snprintf(setting, sizeof setting, "CRYSTAL_LRANK=%u", is_rank ? lrank : 99);
    if (pipe(ends) < 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)execve("/proc/self/exe", argv, env);
        _exit(127);
    }
    CHECK_EQ(read(ends[0], &ready, 1), 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return pid;
}

static void end_rank(pid_t *pid)
{
    if (*pid > 0) {
        CHECK_EQ(kill(*pid, SIGKILL), 0);
        CHECK_EQ(waitpid(*pid, NULL, 0), *pid);
    }
    *pid = 0;
}

/* Unless a test says otherwise, rank 0 waits for the virtual rank 3, rank 1 for nobody.
 */
static void begin(enum crystal_board_mode mode)
{
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = 4,
                                          .ranks_per_node = 2,
                                          .mode = mode,
                                          .comm_capacity = 4};

    memcpy(directory, DIRECTORY, sizeof directory);
    if (!mkdtemp(directory)) {
        printf("Bail out! no directory\n");
        exit(1);
    }
    roll = crystal_roll_create(directory, &err);
    board = crystal_board_create(&config, &err);
    if (!roll || !board ||
        crystal_board_comm_add(board, COMM, "world", 0, 4, members, is_real, &err)) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    watch = crystal_rank_watch_create(roll, board, &layout,
                                      (struct crystal_share){0, layout.sandbox_count});
    ranks[0] = start_rank(0, rank_0_does, 1);
    ranks[1] = rank_1_is_there ? start_rank(1, rank_1_does, rank_1_is_seen) : 0;
}

static void end(void)
{
    char path[64];

    end_rank(&ranks[0]);
    end_rank(&ranks[1]);
    crystal_rank_watch_destroy(watch);
    crystal_board_destroy(board);
    crystal_roll_destroy(roll);
    snprintf(path, sizeof path, "%s/roll", directory);
    unlink(path);
    rmdir(directory);
}

/* Rank 0 has arrived at operation 0, rank 1 has where at_ns is not 0. */
static void arrive(uint64_t at_ns)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, COMM);
    struct crystal_board_slot *slot = crystal_board_slot(board, comm, 0);
    struct crystal_board_cell *cells = crystal_board_cells(board, comm, slot);

    atomic_store(&slot->seq_plus1, 1);
    atomic_store(&cells[0].arrive_ns, 5);
    atomic_store(&cells[1].arrive_ns, at_ns);
}

/* What the first look that says something says, in at most this many seconds. */
static int look(int seconds)
{
    const struct timespec pause = {0, 100000000};
    int result = 0;

    notice[0] = 0;
    for (int i = 0; !result && i < 10 * seconds; i++) {
        result = crystal_rank_watch_look(watch, notice, sizeof notice, &err);
        (void)nanosleep(&pause, NULL);
    }
    return result;
}

static void who_ended_and_had_not_arrived(void)
{
    begin(CRYSTAL_BOARD_TIMED);
    arrive(0);
    CHECK_EQ(look(1), 0);
    end_rank(&ranks[1]);
    crystal_rank_watch_ended(watch, 1);
    CHECK_EQ(look(10), -ECANCELED);
    CHECK_STR(err.text, "rank 1 has ended while rank 0 still communicates with it");
    end();
}

/* It has done its part: rank 0 waits for virtual ranks. */
static void who_ended_after_it_arrived(void)
{
    begin(CRYSTAL_BOARD_TIMED);
    arrive(6);
    CHECK_EQ(look(1), 0);
    end_rank(&ranks[1]);
    crystal_rank_watch_ended(watch, 1);
    CHECK_EQ(look(7), 0);
    end();
}

/* Its process has ended, but the rank has not: a script goes on to the next one. */
static void whose_process_is_followed_by_another(void)
{
    begin(CRYSTAL_BOARD_TIMED);
    arrive(0);
    CHECK_EQ(look(1), 0);
    end_rank(&ranks[1]);
    CHECK_EQ(look(7), 0);
    end();
}

/* Virtual ranks that answer at once do not keep rank 0 waiting. */
static void who_ended_in_a_plan(void)
{
    begin(CRYSTAL_BOARD_IMMEDIATE);
    CHECK_EQ(look(1), 0);
    end_rank(&ranks[1]);
    crystal_rank_watch_ended(watch, 1);
    CHECK_EQ(look(15), -ECANCELED);
    CHECK_STR(err.text, "rank 1 has ended while rank 0 still communicates with it");
    end();
}

/* Before it has joined anything, so that it has left no process to look at. */
static void who_ended_without_joining(void)
{
    rank_1_is_there = 0;
    begin(CRYSTAL_BOARD_TIMED);
    CHECK_EQ(look(4), 0);
    crystal_rank_watch_ended(watch, 1);
    CHECK_EQ(look(4), -ECANCELED);
    CHECK_STR(err.text, "rank 1 has ended while rank 0 still communicates with it");
    end();
    rank_1_is_there = 1;
}

/* Nor has rank 0 begun to wait for anybody: it is in the set-up of its communicator. */
static void who_ended_in_a_plan_without_joining(void)
{
    rank_0_does = SLEEPS;
    rank_1_is_there = 0;
    begin(CRYSTAL_BOARD_IMMEDIATE);
    CHECK_EQ(look(4), 0);
    crystal_rank_watch_ended(watch, 1);
    CHECK_EQ(look(15), -ECANCELED);
    CHECK_STR(err.text, "rank 1 has ended while rank 0 still communicates with it");
    end();
    rank_1_is_there = 1;
    rank_0_does = 3;
}

/* Its number belongs to another process here: nothing is known of it. */
static void who_cannot_be_seen(void)
{
    rank_1_is_seen = 0;
    begin(CRYSTAL_BOARD_TIMED);
    arrive(0);
    CHECK_EQ(look(7), 0);
    end_rank(&ranks[1]);
    CHECK_EQ(look(4), 0);
    end();
    rank_1_is_seen = 1;
}

static void who_sleeps_is_told_once(void)
{
    char want[CRYSTAL_ERROR_TEXT_BYTES];

    begin(CRYSTAL_BOARD_TIMED);
    arrive(0);
    CHECK_EQ(look(15), 1);
    (void)snprintf(want, sizeof want,
                   "rank 1 (pid %d) uses no CPU and keeps others waiting; rank 0 waits "
                   "for it in communicator 'world'",
                   (int)ranks[1]);
    CHECK_STR(notice, want);
    CHECK_EQ(look(3), 0);
    end();
}

/* Rank 0, for which another rank waits, waits itself, and longer than rank 1 has been
 * stopped when that is what it waits for. */
static void who_holds_one_that_waits(void)
{
    char want[CRYSTAL_ERROR_TEXT_BYTES];

    (void)setenv("CRYSTAL_HANG_SECONDS", "4", 1);
    rank_1_does = COMPUTES;
    begin(CRYSTAL_BOARD_TIMED);
    arrive(0);
    crystal_roll_write(directory, CRYSTAL_ROLL_WAITS, 2, COMM, 0);
    CHECK_EQ(look(7), 0);
    CHECK_EQ(kill(ranks[1], SIGSTOP), 0);
    CHECK_EQ(look(15), -ETIMEDOUT);
    (void)snprintf(want, sizeof want,
                   "a rank hangs: rank 1 (pid %d) is stopped for 4 s; rank 0 waits for "
                   "it in communicator 'world'",
                   (int)ranks[1]);
    CHECK_STR(err.text, want);
    end();
    rank_1_does = SLEEPS;
    (void)unsetenv("CRYSTAL_HANG_SECONDS");
}

/* They all wait, none for one that does not: whoever has done so first is told. */
static void who_waits_in_a_circle(void)
{
    char want[CRYSTAL_ERROR_TEXT_BYTES];
    unsigned told;

    (void)setenv("CRYSTAL_HANG_SECONDS", "4", 1);
    rank_1_does = 0;
    begin(CRYSTAL_BOARD_TIMED);
    arrive(0);
    CHECK_EQ(look(15), -ETIMEDOUT);
    told = strncmp(err.text, "a rank hangs: rank 1", 20) == 0;
    (void)snprintf(want, sizeof want,
                   "a rank hangs: rank %u (pid %d) has used no CPU for 4 s; rank %u "
                   "waits for it in communicator 'world'",
                   told, (int)ranks[told], 1 - told);
    CHECK_STR(err.text, want);
    end();
    rank_1_does = SLEEPS;
    (void)unsetenv("CRYSTAL_HANG_SECONDS");
}

/* What rank 0 waited for has come. */
static void nobody_waits(void)
{
    begin(CRYSTAL_BOARD_TIMED);
    arrive(0);
    crystal_roll_write(directory, CRYSTAL_ROLL_WENT_ON, 0, COMM, 3);
    CHECK_EQ(look(7), 0);
    end();
}

static void two_processes_as_one_rank(void)
{
    begin(CRYSTAL_BOARD_TIMED);
    crystal_roll_write(directory, CRYSTAL_ROLL_JOINED, 0, COMM, 1);
    CHECK_EQ(look(1), -EINVAL);
    CHECK_STR(err.text,
              "rank 0 joins communicator 'world' as its rank 1, which is rank 1; the "
              "program has to take its rank from RANK or SLURM_PROCID");
    end();
    begin(CRYSTAL_BOARD_TIMED); /* a communicator that is not on the board */
    crystal_roll_write(directory, CRYSTAL_ROLL_JOINED, 0, 0xabc, 1);
    CHECK_EQ(look(1), 0);
    crystal_roll_write(directory, CRYSTAL_ROLL_JOINED, 1, 0xabc, 1);
    CHECK_EQ(look(1), -EINVAL);
    CHECK_STR(
        err.text,
        "rank 1 joins communicator '0000000000000abc' as its rank 1, which is rank "
        "0; the program has to take its rank from RANK or SLURM_PROCID");
    end();
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CHECK_CASE(who_ended_and_had_not_arrived),
        CHECK_CASE(who_ended_after_it_arrived),
        CHECK_CASE(whose_process_is_followed_by_another),
        CHECK_CASE(who_ended_in_a_plan),
        CHECK_CASE(who_ended_without_joining),
        CHECK_CASE(who_ended_in_a_plan_without_joining),
        CHECK_CASE(who_cannot_be_seen),
        CHECK_CASE(who_sleeps_is_told_once),
        CHECK_CASE(who_holds_one_that_waits),
        CHECK_CASE(who_waits_in_a_circle),
        CHECK_CASE(nobody_waits),
        CHECK_CASE(two_processes_as_one_rank),
    };

    if (argc == 4)
        return rank_main(argv);
    check_begin();
    check_together(cases, sizeof cases / sizeof *cases);
    return check_end();
}
