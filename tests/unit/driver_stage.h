/* For tests of the driver: a job of 4 ranks, and a driver on a real board on which the
 * test plays the plugin of one sandbox rank.
 */
#ifndef CRYSTAL_TESTS_DRIVER_STAGE_H
#define CRYSTAL_TESTS_DRIVER_STAGE_H

#include "replay/driver.h"
#include "runtime/transfer.h"

#include "tests/check.h"
#include "tests/composed.h"

#include <time.h>

static inline uint64_t now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

/* Polls until *word is not 0, at most 5 s. */
static inline uint64_t await64(_Atomic uint64_t *word)
{
    for (int i = 0; i < 50000 && !atomic_load(word); i++)
        (void)usleep(100);
    return atomic_load(word);
}

static inline uint32_t await32(_Atomic uint32_t *word)
{
    for (int i = 0; i < 50000 && !atomic_load(word); i++)
        (void)usleep(100);
    return atomic_load(word);
}

/* Rank 0 of 4 is real; all compute 1000 * (rank + 1) us, reduce, and send to the next
 * rank in a ring of messages. */
static inline void rank(struct job *j, const char *folder, uint32_t lrank)
{
    job_rank(j, folder, lrank);
    job_comm(j, "w", lrank, 4);
    job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 1);
    job_sync(j, 0, 10);
    for (uint64_t i = 0; i < 4; i++) {
        j->now_ns += 1000000 * (lrank + 1);
        job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 32768);
        job_sync(j, 0, 10);
        j->now_ns += 500000;
        job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = 1});
        job_p2p(j, 1, 0, (lrank + 1) % 4, 100);
        job_p2p(j, 0, 0, (lrank + 3) % 4, 100);
        job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP});
        job_sync(j, 0, 10);
        job_hint(j, i + 1);
    }
    job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 3); /* the end */
    job_sync(j, 0, 10);
    job_rank_end(j);
}

static inline void make_job(struct job *j)
{
    job_begin(j, 4, NULL, "0-3", "0-3");
    job_planned(j, "w\t4\t0-3\n", rank); /* all four measured */
    j->layout.sandbox_count = 1;
}

struct stage {
    struct job job;
    struct crystal_board *board;
    struct crystal_board_comm *comm;
    struct crystal_driver *driver;
    struct crystal_links *links; /* NULL: this node alone; borrowed */
    uint32_t crank;              /* the rank that the test plays */
};

static inline struct crystal_driver *create(struct stage *s, const char *graph,
                                            const char *profile,
                                            struct crystal_error *err)
{
    const struct crystal_driver_config config = {.board = s->board,
                                                 .layout = &s->job.layout,
                                                 .links = s->links,
                                                 .graph_path = graph,
                                                 .profile_path = profile};

    return crystal_driver_create(&config, err);
}

/* The board in a directory and the driver on it; the job is made, links and crank set.
 */
static inline void stage_board(struct stage *s, const char *directory,
                               const uint8_t is_real[4], int with_profile)
{
    static const uint32_t members[] = {0, 1, 2, 3};
    const struct crystal_board_config config = {.directory = directory,
                                                .lrank_count = 4,
                                                .mode = CRYSTAL_BOARD_TIMED,
                                                .wire_bytes_per_s = 1000000000,
                                                .wire_latency_ns = 1000,
                                                .comm_capacity = 8};
    char graph[160], profile[160];

    s->board = crystal_board_create(&config, &job_err);
    JOB_MUST(!s->board);
    job_path(&s->job, graph, sizeof graph, "job.graph");
    job_path(&s->job, profile, sizeof profile, "job.profile");
    s->driver = create(s, graph, with_profile ? profile : NULL, &job_err);
    JOB_MUST(!s->driver);
    JOB_MUST(
        crystal_board_comm_add(s->board, 77, "w", 0, 4, members, is_real, &job_err));
    s->comm = crystal_board_comm_find(s->board, 77);
    JOB_MUST(!s->comm);
}

/* The test's rank comes to collective seq, of count floats. */
static inline struct crystal_board_slot *
claim_count(struct stage *s, uint64_t seq, enum crystal_func func, uint64_t count)
{
    struct crystal_board_slot *slot = crystal_board_slot(s->board, s->comm, seq);

    for (int i = 0; i < 50000 && atomic_load(&slot->seq_plus1); i++)
        (void)usleep(100); /* until the driver has freed it */
    CHECK_EQ(atomic_load(&slot->seq_plus1), 0);
    slot->func = func;
    slot->dtype = ncclFloat32;
    slot->count = count;
    atomic_store(&slot->seq_plus1, seq + 1);
    atomic_store(&slot->described, 1);
    crystal_board_ring(s->board);
    return slot;
}

static inline struct crystal_board_slot *claim(struct stage *s, uint64_t seq,
                                               enum crystal_func func)
{
    return claim_count(s, seq, func, 0);
}

static inline void finish(struct stage *s, struct crystal_board_slot *slot,
                          uint64_t arrive_ns, uint64_t end_ns)
{
    struct crystal_board_cell *cells = crystal_board_cells(s->board, s->comm, slot);

    atomic_store(&cells[s->crank].arrive_ns, arrive_ns);
    crystal_board_ring(s->board);
    atomic_store(&cells[s->crank].end_ns, end_ns);
    (void)atomic_fetch_add(&slot->ended_count, 1);
    crystal_board_ring(s->board);
    for (int i = 0; i < 50000 && atomic_load(&slot->seq_plus1); i++)
        (void)usleep(100);
    CHECK_EQ(atomic_load(&slot->seq_plus1), 0);
    CHECK_EQ(atomic_load(&cells[1].arrive_ns), 0);
}

/* The test's rank's message to (sends) or from a virtual crank; returns its cell. */
static inline struct crystal_board_pair_cell *
message_bytes(struct stage *s, uint32_t index, uint32_t peer, int sends, uint64_t seq,
              uint64_t bytes)
{
    struct crystal_board_pair *pair = &crystal_board_pairs(s->board, s->comm)[index];
    struct crystal_board_pair_cell *cell = &pair->cells[seq % CRYSTAL_BOARD_SLOTS];

    if (!atomic_load(&pair->state)) {
        pair->real_crank = s->crank;
        pair->virtual_crank = peer;
        pair->real_sends = (uint32_t)sends;
        atomic_store(&pair->state, CRYSTAL_BOARD_READY);
        atomic_fetch_add(&s->comm->pair_count, 1);
    }
    for (int i = 0; i < 50000 && atomic_load(&cell->seq_plus1); i++)
        (void)usleep(100);
    cell->bytes = bytes;
    atomic_store(&cell->seq_plus1, seq + 1);
    crystal_board_ring(s->board);
    return cell;
}

static inline struct crystal_board_pair_cell *
message(struct stage *s, uint32_t index, uint32_t peer, int sends, uint64_t seq)
{
    return message_bytes(s, index, peer, sends, seq, 400);
}

#endif
