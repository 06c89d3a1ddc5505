/* For tests of what virtual ranks contribute: a job of four ranks that is captured by
 * hand, and a board on which some of them are real. One job at a time.
 */
#ifndef CRYSTAL_TESTS_PAYLOAD_STAGE_H
#define CRYSTAL_TESTS_PAYLOAD_STAGE_H

#include "replay/board.h"
#include "runtime/graph.h"

#include "tests/job.h"
#include "tests/net_ring.h"

#define COMM       UINT64_C(0x5150)
#define N          4
#define ITERATIONS 3

static char directory[64], board_path[80];
static struct job job;

/* Captures the job of which record writes each rank. */
static inline void job_make(void (*record)(uint32_t rank))
{
    job_begin(&job, N, NULL, "0-3", "0-3");
    job_text(&job, "comms.tab", "world\t4\t0-3\n");
    for (uint32_t r = 0; r < N; r++)
        record(r);
    JOB_MUST(crystal_graph_build(job.dir, &job_err));
}

/* real: "rvrv" where ranks 0 and 2 are real. */
static inline struct crystal_board *board_make(const char *real)
{
    char path[160];
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = N,
                                          .ranks_per_node = 1,
                                          .mode = CRYSTAL_BOARD_IMMEDIATE,
                                          .comm_capacity = 1,
                                          .heap_bytes = 4 << 20,
                                          .graph_path = path};
    static const uint32_t members[N] = {0, 1, 2, 3};
    uint8_t is_real[N];
    struct crystal_board *board;
    struct crystal_graph *g;
    uint32_t graph_comm;

    job_path(&job, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    graph_comm = crystal_graph_comm_find(g, "world", N, members, 0);
    crystal_graph_close(g);
    for (int r = 0; r < N; r++)
        is_real[r] = real[r] == 'r';
    board = crystal_board_create(&config, &job_err);
    JOB_MUST(!board);
    JOB_MUST(crystal_board_comm_add(board, COMM, "world", graph_comm, N, members,
                                    is_real, &job_err));
    return board;
}

/* A rank of the board begins: neighbours that are real are behind pairs of sockets. */
static inline void rank_open(struct ring *ring, const char *real, int me,
                             int pairs[][2])
{
    int next = (me + 1) % N, prev = (me + N - 1) % N;
    char lrank[16];

    check_begin_child();
    (void)snprintf(lrank, sizeof lrank, "%d", me);
    (void)setenv("CRYSTAL_LRANK", lrank, 1);
    CHECK(rank_init(&ring->rank, COMM, N, me));
    if (real[prev] == 'v')
        ring->from_prev = ring_accept_virtual(&ring->rank, prev);
    if (real[next] == 'v')
        ring->to_next = ring_connect_virtual(&ring->rank, next);
    if (real[prev] == 'r' && me % 2 == 0)
        ring->from_prev = harness_accept(&ring->rank, pairs[prev][1]);
    if (real[next] == 'r')
        ring->to_next = harness_connect(&ring->rank, pairs[me][0]);
    if (real[prev] == 'r' && me % 2 == 1)
        ring->from_prev = harness_accept(&ring->rank, pairs[prev][1]);
    CHECK(ring->from_prev && ring->to_next);
}

static inline void feeds_remove(void)
{
    char path[96];

    for (int r = 0; r < N; r++) {
        (void)snprintf(path, sizeof path, "%s/feed.%d", directory, r);
        (void)unlink(path);
    }
}

static inline void stage_begin(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/crystal-payload.XXXXXX");
    JOB_MUST(!mkdtemp(directory));
    (void)snprintf(board_path, sizeof board_path, "%s/board", directory);
    (void)setenv("CRYSTAL_BOARD", board_path, 1);
    check_begin();
}

static inline int stage_end(void)
{
    (void)rmdir(directory);
    return check_end();
}

#endif
