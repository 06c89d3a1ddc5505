/* Recorded integers of a call that NCCL makes of messages without saying so: what a
 * real rank receives in an all-to-all is a part of what its virtual peer put in. And
 * the collectives around it, up to one behind the last iteration, have their own.
 */
#include "config.h"

#include "tests/unit/payload_stage.h"

#define PART 500 /* of the all-to-all, from each rank to each */
#define SUM  100 /* elements of the all-reduce */
#define LAST ITERATIONS

enum { ALLTOALL, ALLREDUCE };

static uint32_t value(uint32_t rank, int iteration, int op, uint32_t i)
{
    return 1 + rank * 100000 + (uint32_t)iteration * 10007 + (uint32_t)op * 1009 + i;
}

static void record_call(enum crystal_func func, uint32_t rank, int it, int op,
                        uint32_t count)
{
    uint32_t in[N * PART], in_count = op == ALLTOALL ? N * count : count;

    for (uint32_t i = 0; i < in_count; i++)
        in[i] = value(rank, it, op, i);
    job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                     .func = (uint8_t)func,
                                     .dtype = ncclInt32,
                                     .value = count});
    job_payload(&job, in, 4 * in_count);
}

/* Iterations of an all-to-all and an all-reduce; a last all-reduce behind them. */
static void record(uint32_t rank)
{
    job_rank(&job, "ranks", rank);
    job_comm(&job, "world", rank, N);
    for (int it = 0; it < ITERATIONS; it++) {
        record_call(CRYSTAL_FUNC_ALLTOALL, rank, it, ALLTOALL, PART);
        record_call(CRYSTAL_FUNC_ALLREDUCE, rank, it, ALLREDUCE, SUM);
        job_hint(&job, (uint64_t)it + 1);
    }
    record_call(CRYSTAL_FUNC_ALLREDUCE, rank, LAST, ALLREDUCE, SUM);
    job_rank_end(&job);
}

/* What rank 0 gets of rank 3 in the all-to-all. */
static void part_check(struct ring *ring, int it)
{
    uint32_t data[PART] = {0}, wrong = 0;
    void *op = p2p_start(&ring->rank, "Recv", "ncclInt32", PART, 3);
    void *proxy = proxy_start(&ring->rank, op, 1, 3, 1, 0);
    struct step_handle h = step_start(&ring->rank, proxy, 0);
    void *request = post_recv(ring->from_prev, data, sizeof data, &h);
    int bytes = 0;

    CHECK(request && finish(request, &bytes) == ncclSuccess);
    CHECK_EQ(bytes, (int)sizeof data);
    for (uint32_t i = 0; i < PART; i++)
        wrong += data[i] != value(3, it, ALLTOALL, i); /* the first part is rank 0's */
    CHECK_EQ(wrong, 0);
    (void)PROF->stopEvent(proxy);
    (void)PROF->stopEvent(op);
}

static void sum_check(struct ring *ring, int it)
{
    uint32_t in[SUM], out[SUM] = {0}, wrong = 0;
    struct ring_run run = {
        .ring = ring,
        .op = {CRYSTAL_FUNC_ALLREDUCE, N, 0, SUM, 4, 1, 0, CRYSTAL_PROTO_SIMPLE, NULL},
        .in = (unsigned char *)in,
        .out = (unsigned char *)out};

    for (uint32_t i = 0; i < SUM; i++)
        in[i] = value(0, it, ALLREDUCE, i);
    CHECK(ring_collective(&run));
    for (uint32_t i = 0; i < SUM; i++) {
        uint32_t sum = 0;

        for (uint32_t r = 0; r < N; r++)
            sum += value(r, it, ALLREDUCE, i);
        wrong += out[i] != sum;
    }
    CHECK_EQ(wrong, 0);
}

static void each_call_has_its_own(void)
{
    struct crystal_board *board;
    int status;
    pid_t pid;

    job_make(record);
    board = board_make("rvvv");
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        struct ring ring = {.order = NULL};

        rank_open(&ring, "rvvv", 0, NULL);
        for (int it = 0; it < ITERATIONS && check_ok; it++) {
            part_check(&ring, it);
            sum_check(&ring, it);
        }
        sum_check(&ring, LAST);
        fflush(stdout);
        exit(check_ok ? 0 : 1);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_STR(crystal_board_header(board)->abort_text, "");
    CHECK_EQ(crystal_board_header(board)->standin_ops, 0);
    crystal_board_destroy(board);
    feeds_remove();
    job_end(&job);
}

int main(void)
{
    stage_begin();
    CHECK_RUN(each_call_has_its_own);
    return stage_end();
}
