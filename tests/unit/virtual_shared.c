/* A real rank in two communicators whose collectives are under way at once: what both
 * bring it goes through its one NIC, so together they take as long as the timeline says
 * of collectives that share one: twice the NIC's time of each. This process plays the
 * node's agent.
 */
#include "config.h"

#include "replay/board.h"
#include "runtime/clock.h"

#include "tests/net_ring.h"

#include <pthread.h>

#define COMM       UINT64_C(0x77) /* and the next one */
#define NRANKS     5
#define CRANK      2
#define COUNT      1000000 /* floats; 8/5 of them come in, at 100 MB/s: 64 ms */
#define NIC_NS     UINT64_C(64000000)
#define SLACK_NS   UINT64_C(2000000000) /* a loaded machine is no fault */
#define FIRST_RANK 20

static char directory[64];

static struct crystal_board *board_make(void)
{
    struct crystal_error err = {0};
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = 64,
                                          .mode = CRYSTAL_BOARD_TIMED,
                                          .wire_bytes_per_s = 100000000,
                                          .wire_latency_ns = 200000,
                                          .comm_capacity = 2,
                                          .heap_bytes = 4 << 20};
    struct crystal_board *board = crystal_board_create(&config, &err);
    uint32_t members[NRANKS];
    uint8_t is_real[NRANKS] = {0};

    is_real[CRANK] = 1;
    for (uint32_t r = 0; r < NRANKS; r++)
        members[r] = FIRST_RANK + r;
    for (unsigned c = 0; board && c < 2; c++)
        if (crystal_board_comm_add(board, COMM + c, c ? "b" : "a", UINT32_MAX, NRANKS,
                                   members, is_real, &err)) {
            printf("# %s\n", crystal_error_text(&err));
            crystal_board_destroy(board);
            board = NULL;
        }
    return board;
}

/* --- the real rank --- */

static void *all_reduce(void *context)
{
    struct ring *ring = context;
    unsigned char *in = calloc(COUNT, 4), *out = calloc(COUNT, 4);
    struct ring_run run = {.ring = ring,
                           .op = {CRYSTAL_FUNC_ALLREDUCE, NRANKS, 0, COUNT, 4, 1, 0,
                                  CRYSTAL_PROTO_SIMPLE, NULL},
                           .is_float = 1,
                           .in = in,
                           .out = out};

    CHECK(in && out && ring_collective(&run));
    free(in);
    free(out);
    return NULL;
}

static void real_rank(void)
{
    struct ring rings[2] = {{.rank = {.nranks = NRANKS}}, {.rank = {.nranks = NRANKS}}};
    pthread_t threads[2];
    char lrank[16];

    check_begin_child();
    (void)snprintf(lrank, sizeof lrank, "%d", FIRST_RANK + CRANK);
    (void)setenv("CRYSTAL_LRANK", lrank, 1);
    for (unsigned c = 0; c < 2 && check_ok; c++) {
        CHECK(rank_init(&rings[c].rank, COMM + c, NRANKS, CRANK));
        rings[c].from_prev = ring_accept_virtual(&rings[c].rank, CRANK - 1);
        rings[c].to_next = ring_connect_virtual(&rings[c].rank, CRANK + 1);
        CHECK(rings[c].from_prev && rings[c].to_next);
    }
    for (unsigned c = 0; c < 2 && check_ok; c++)
        CHECK_EQ(pthread_create(&threads[c], NULL, all_reduce, &rings[c]), 0);
    for (unsigned c = 0; c < 2 && check_ok; c++)
        CHECK_EQ(pthread_join(threads[c], NULL), 0);
    fflush(stdout);
    exit(check_ok ? 0 : 1);
}

/* --- the agent --- */

static struct crystal_board_cell *cells_of(struct crystal_board *board, unsigned c)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, COMM + c);

    return crystal_board_cells(board, comm, crystal_board_slot(board, comm, 0));
}

/* Waits for the real rank; the virtual ones come with it. Returns when. */
static uint64_t arrive(struct crystal_board *board, unsigned c)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, COMM + c);
    struct crystal_board_slot *slot = crystal_board_slot(board, comm, 0);
    struct crystal_board_cell *cells = cells_of(board, c);
    const struct timespec pause = {0, 100000};
    uint64_t at_ns;

    while (atomic_load(&slot->seq_plus1) != 1 ||
           !(at_ns = atomic_load(&cells[CRANK].arrive_ns)))
        (void)nanosleep(&pause, NULL);
    for (int r = 0; r < NRANKS; r++)
        if (r != CRANK)
            atomic_store(&cells[r].arrive_ns, at_ns);
    atomic_store(&slot->published, 1);
    return at_ns;
}

static void two_take_the_time_of_both(void)
{
    struct crystal_board *board = board_make();
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    int status;
    pid_t pid;

    CHECK(board != NULL);
    if (!board)
        return;
    fflush(stdout);
    pid = fork();
    if (pid == 0)
        real_rank();
    for (unsigned c = 0; c < 2; c++) {
        uint64_t at_ns = arrive(board, c);

        begin_ns = at_ns < begin_ns ? at_ns : begin_ns;
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    for (unsigned c = 0; c < 2; c++) {
        uint64_t at_ns = atomic_load(&cells_of(board, c)[CRANK].end_ns);

        end_ns = at_ns > end_ns ? at_ns : end_ns;
    }
    printf("# both took %.3f ms\n", (double)(end_ns - begin_ns) * 1e-6);
    CHECK(end_ns - begin_ns >= 2 * NIC_NS);
    CHECK(end_ns - begin_ns < 2 * NIC_NS + SLACK_NS);
    crystal_board_destroy(board);
}

int main(void)
{
    char path[80];

    strcpy(directory, "/tmp/crystal-shared-XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(path, sizeof path, "%s/board", directory);
    (void)setenv("CRYSTAL_BOARD", path, 1);
    check_begin();
    CHECK_RUN(two_take_the_time_of_both);
    (void)snprintf(path, sizeof path, "%s/feed.%d", directory, FIRST_RANK + CRANK);
    (void)unlink(path);
    CHECK(rmdir(directory) == 0);
    return check_end();
}
