/* Looking up recorded calls: those before the iterations, of the iterations, of what
 * comes behind them, and of iterations that were not recorded. Both numberings of a
 * walk, and the contribution that is found by it.
 */
#include "config.h"

#include "replay/net_records.h"

#include "tests/check.h"
#include "tests/job.h"

#include <errno.h>

#define N          3
#define ITERATIONS 3
#define FLOATS     100

enum ending {
    IS_OVER,   /* the last loss is summed, and a flag comes from rank 1 */
    IS_STOPPED /* in the next iteration, behind its all-to-all and its empty call */
};

static void call(struct job *j, enum crystal_func func, ncclDataType_t dtype,
                 uint64_t count)
{
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                  .func = (uint8_t)func,
                                  .dtype = (uint8_t)dtype,
                                  .value = count,
                                  .stream = 1});
}

static int64_t loss(uint32_t rank)
{
    return 1000 + rank;
}

/* A broadcast before three iterations of an all-to-all, an empty all-gather, an
 * all-reduce, and a message from rank 1 to rank 0. */
static void record(struct job *j, uint32_t rank, enum ending ending)
{
    int64_t sum = loss(rank), flag = 77;

    job_rank(j, "ranks", rank);
    job_comm(j, "w", rank, N);
    call(j, CRYSTAL_FUNC_BROADCAST, ncclFloat32, 1);
    for (uint64_t i = 0; i < ITERATIONS; i++) {
        call(j, CRYSTAL_FUNC_ALLTOALL, ncclFloat32, FLOATS);
        call(j, CRYSTAL_FUNC_ALLGATHER, ncclFloat32, 0);
        call(j, CRYSTAL_FUNC_ALLREDUCE, ncclFloat32, FLOATS);
        if (rank < 2)
            job_p2p(j, rank == 1, 0, !rank, FLOATS);
        job_hint(j, i + 1);
    }
    if (ending == IS_STOPPED) {
        call(j, CRYSTAL_FUNC_ALLTOALL, ncclFloat32, FLOATS);
        call(j, CRYSTAL_FUNC_ALLGATHER, ncclFloat32, 0);
    } else {
        call(j, CRYSTAL_FUNC_ALLREDUCE, ncclInt64, 1);
        job_payload(j, &sum, sizeof sum);
        if (rank < 2)
            job_op(j, (struct crystal_op){
                          .kind = rank ? CRYSTAL_OP_SEND : CRYSTAL_OP_RECV,
                          .func = rank ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV,
                          .dtype = ncclInt64,
                          .peer = !rank,
                          .value = 1,
                          .stream = 1});
        if (rank == 1)
            job_payload(j, &flag, sizeof flag);
    }
    job_rank_end_as(j, ending == IS_STOPPED);
}

static struct crystal_graph *graph_of(struct job *j, enum ending ending)
{
    struct crystal_graph *g;
    char path[160];

    job_begin(j, N, NULL, "0-2", "0-2");
    job_text(j, "comms.tab", "w\t3\t0-2\n");
    for (uint32_t r = 0; r < N; r++)
        record(j, r, ending);
    JOB_MUST(crystal_graph_build(j->dir, &job_err));
    job_path(j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    return g;
}

/* The library's nth collective of rank 0, and its nth message from rank 1. */
static struct crystal_calls_found found(struct crystal_records *r,
                                        enum crystal_calls_what what, uint64_t nth)
{
    struct crystal_calls_found ret = {.call = NULL};

    CHECK_EQ(crystal_records_call(r, what, 1, nth, &ret), 1);
    return ret;
}

static void check_found(struct crystal_records *r, enum crystal_calls_what what,
                        uint64_t nth, enum crystal_func func, uint64_t seq)
{
    struct crystal_calls_found f = found(r, what, nth);

    CHECK_EQ(f.seq, seq);
    CHECK_EQ(f.call ? f.call->func : CRYSTAL_FUNC_NONE, func);
}

static void check_iteration(struct crystal_records *r, uint64_t i, uint64_t first)
{
    check_found(r, CRYSTAL_CALLS_COLLECTIVES, 1 + i, CRYSTAL_FUNC_ALLREDUCE, first + 2);
    check_found(r, CRYSTAL_CALLS_RECEIVES, 2 * i, CRYSTAL_FUNC_ALLTOALL, first);
    check_found(r, CRYSTAL_CALLS_RECEIVES, 2 * i + 1, CRYSTAL_FUNC_RECV, i);
}

/* Behind three iterations comes no fourth: an all-reduce is not that of one, which
 * would stand behind an all-to-all. */
static void the_last_phase_is_its_own(void)
{
    uint64_t have, after = 1 + 3 * ITERATIONS;
    struct crystal_record_at at;
    struct crystal_records *r;
    const struct crystal_op *op;
    struct crystal_graph *g;
    const void *data = NULL;
    struct job j;

    g = graph_of(&j, IS_OVER);
    r = crystal_records_create(g, 0, 0, &job_err);
    JOB_MUST(!r);
    check_found(r, CRYSTAL_CALLS_COLLECTIVES, 0, CRYSTAL_FUNC_BROADCAST, 0);
    for (uint64_t i = 0; i < ITERATIONS; i++)
        check_iteration(r, i, 1 + 3 * i);
    check_found(r, CRYSTAL_CALLS_COLLECTIVES, 1 + ITERATIONS, CRYSTAL_FUNC_ALLREDUCE,
                after);
    op = crystal_records_coll(r, after, &at);
    CHECK_EQ(op ? op->dtype : ncclNumTypes, ncclInt64);
    CHECK_EQ(at.is_repeated, 0);
    for (uint32_t k = 1; k < N; k++) {
        CHECK_EQ(crystal_records_find(r, &at, k, 0, 8, 0, &data, &have), 1);
        CHECK(data && *(const int64_t *)data == loss(k));
    }
    check_found(r, CRYSTAL_CALLS_RECEIVES, 2 * ITERATIONS, CRYSTAL_FUNC_RECV,
                ITERATIONS);
    CHECK_EQ(crystal_records_transfer(r, 1, ITERATIONS, &at), 0);
    CHECK_EQ(crystal_records_find(r, &at, 1, 0, 8, 0, &data, &have), 1);
    CHECK(data && *(const int64_t *)data == 77);
    crystal_records_destroy(r);
    crystal_graph_close(g);
    job_end(&j);
}

/* Iterations that were not recorded, or only begun, count like the others. */
static void iterations_go_on(void)
{
    struct crystal_records *r;
    struct crystal_graph *g;
    struct job j;

    g = graph_of(&j, IS_STOPPED);
    r = crystal_records_create(g, 0, 0, &job_err);
    JOB_MUST(!r);
    for (uint64_t i = 0; i < ITERATIONS + 70; i++)
        check_iteration(r, i, 1 + 3 * i);
    crystal_records_destroy(r);
    crystal_graph_close(g);
    job_end(&j);
}

/* The timeline repeats its iteration for ever, whatever was recorded behind it, and has
 * no number for empty calls. */
static void the_timelines_calls_go_on(void)
{
    for (int ending = IS_OVER; ending <= IS_STOPPED; ending++) {
        struct crystal_calls_walk colls = {.what = CRYSTAL_CALLS_COLLECTIVES};
        struct crystal_calls_walk in = {.what = CRYSTAL_CALLS_RECEIVES, .peer = 1};
        struct crystal_calls_found f;
        struct crystal_comm_calls *calls;
        struct crystal_graph *g;
        struct job j;

        g = graph_of(&j, (enum ending)ending);
        calls = crystal_comm_calls_create(g, 0, 0, &job_err);
        JOB_MUST(!calls);
        CHECK(crystal_comm_calls_next(calls, &colls, &f));
        CHECK(!f.is_timed);
        CHECK_EQ(f.timed_seq, 0);
        for (uint64_t i = 0; i < 70; i++) {
            CHECK(crystal_comm_calls_next(calls, &colls, &f));
            CHECK(f.is_timed);
            CHECK_EQ(f.seq, 1 + 3 * i + 2);
            CHECK_EQ(f.timed_seq, 1 + 2 * i + 1);
            CHECK(crystal_comm_calls_next(calls, &in, &f));
            CHECK_EQ(f.timed_seq, 1 + 2 * i);
            CHECK(crystal_comm_calls_next(calls, &in, &f));
            CHECK_EQ(f.timed_seq, i);
        }
        crystal_comm_calls_destroy(calls);
        crystal_graph_close(g);
        job_end(&j);
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(the_last_phase_is_its_own);
    CHECK_RUN(iterations_go_on);
    CHECK_RUN(the_timelines_calls_go_on);
    return check_end();
}
