/* Recorded integers of virtual ranks: a job of four ranks captured by hand, then some
 * of them real among the others. Every result is that of four real ranks. And the
 * neutral elements that stand in for floats (virtual_floats.c).
 */
#include "config.h"

#include "tests/unit/payload_stage.h"

#include "replay/net_payload.h"
#include "replay/roll.h"
#include "runtime/reduce.h"

#define COUNT    9000 /* 36,000 bytes: chunks with two slices */
#define TRANSFER 2000 /* 8,000 bytes: on two channels 4,096 and 3,904 */
#define HALF     1024

static bool is_steady;    /* the values are the same in all iterations */
static bool repeats_last; /* behind the recording they are those of its last one */

enum { SUM, LARGEST, GATHER, SCATTER, BROADCAST, REDUCE, OPS };

static const struct {
    enum crystal_func func;
    uint32_t count, root, redop;
} ops[OPS] = {{CRYSTAL_FUNC_ALLREDUCE, COUNT, 0, ncclSum},
              {CRYSTAL_FUNC_ALLREDUCE, 100, 0, ncclMax},
              {CRYSTAL_FUNC_ALLGATHER, COUNT, 0, ncclSum},
              {CRYSTAL_FUNC_REDUCESCATTER, COUNT, 0, ncclSum},
              {CRYSTAL_FUNC_BROADCAST, 200, 1, ncclSum},
              {CRYSTAL_FUNC_REDUCE, 50, 0, ncclSum}};

static uint32_t value(uint32_t rank, int iteration, int op, uint64_t i)
{
    iteration = is_steady                                    ? 0
                : repeats_last && iteration > ITERATIONS - 1 ? ITERATIONS - 1
                                                             : iteration;
    return 1 + rank * 100000 + (uint32_t)iteration * 10007 + (uint32_t)op * 1009 +
           (uint32_t)(i * (rank + 3) % 977);
}

static uint64_t in_count(int op)
{
    return ops[op].func == CRYSTAL_FUNC_REDUCESCATTER ? (uint64_t)N * ops[op].count
                                                      : ops[op].count;
}

static uint32_t *input(uint32_t rank, int iteration, int op)
{
    uint32_t *in = malloc(4 * in_count(op));

    for (uint64_t i = 0; i < in_count(op); i++)
        in[i] = value(rank, iteration, op, i);
    return in;
}

/* --- capture --- */

static void record_rank(uint32_t rank)
{
    job_rank(&job, "ranks", rank);
    job_comm(&job, "world", rank, N);
    for (int it = 0; it < ITERATIONS; it++) {
        for (int op = 0; op < OPS; op++) {
            uint32_t *in = input(rank, it, op);

            job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                             .func = (uint8_t)ops[op].func,
                                             .dtype = ncclInt32,
                                             .aux = ops[op].redop,
                                             .peer = ops[op].root,
                                             .value = ops[op].count});
            if (ops[op].func != CRYSTAL_FUNC_BROADCAST || rank == ops[op].root)
                job_payload(&job, in, (uint32_t)(4 * in_count(op)));
            free(in);
        }
        if (rank == 3) {
            uint32_t *in = input(3, it, SUM);

            job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_SEND,
                                             .func = CRYSTAL_FUNC_SEND,
                                             .dtype = ncclInt32,
                                             .peer = 0,
                                             .value = TRANSFER});
            job_payload(&job, in, 4 * TRANSFER);
            free(in);
        } else if (rank == 0) {
            job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_RECV,
                                             .func = CRYSTAL_FUNC_RECV,
                                             .dtype = ncclInt32,
                                             .peer = 3,
                                             .value = TRANSFER});
        }
        job_hint(&job, (uint64_t)it + 1);
    }
    job_rank_end(&job);
}

/* --- emulate --- */

static uint32_t expected(uint32_t me, int it, int op, uint64_t i)
{
    uint32_t sum = 0, most = 0;

    if (ops[op].func == CRYSTAL_FUNC_ALLGATHER)
        return value((uint32_t)(i / ops[op].count), it, op, i % ops[op].count);
    if (ops[op].func == CRYSTAL_FUNC_BROADCAST)
        return value(ops[op].root, it, op, i);
    if (ops[op].func == CRYSTAL_FUNC_REDUCESCATTER)
        i += (uint64_t)me * ops[op].count;
    for (uint32_t r = 0; r < N; r++) {
        uint32_t v = value(r, it, op, i);

        sum += v;
        most = v > most ? v : most;
    }
    return ops[op].redop == ncclMax ? most : sum;
}

static void collective_check(struct ring *ring, int it, int op)
{
    const uint32_t me = (uint32_t)ring->rank.crank;
    uint64_t count = ops[op].func == CRYSTAL_FUNC_ALLGATHER
                         ? (uint64_t)N * ops[op].count
                         : ops[op].count;
    uint32_t *in = input(me, it, op), *out = calloc(count, 4);
    struct ring_run run = {.ring = ring,
                           .op = {ops[op].func, N, ops[op].root, ops[op].count, 4, 1, 0,
                                  CRYSTAL_PROTO_SIMPLE, NULL},
                           .is_max = ops[op].redop == ncclMax,
                           .in = (unsigned char *)in,
                           .out = (unsigned char *)out};
    uint64_t wrong = 0;

    if (ops[op].func == CRYSTAL_FUNC_ALLGATHER)
        memcpy(out + (uint64_t)me * ops[op].count, in, 4 * (size_t)ops[op].count);
    if (ops[op].func == CRYSTAL_FUNC_BROADCAST && me == ops[op].root)
        memcpy(out, in, 4 * (size_t)ops[op].count);
    CHECK(ring_collective(&run));
    if (ops[op].func != CRYSTAL_FUNC_REDUCE || me == ops[op].root)
        for (uint64_t i = 0; i < count; i++)
            wrong += out[i] != expected(me, it, op, i);
    if (wrong)
        printf("# rank %u, iteration %d, operation %d: %" PRIu64 " of %" PRIu64
               " wrong\n",
               me, it, op, wrong, count);
    CHECK_EQ(wrong, 0);
    free(in);
    free(out);
}

/* On the only two channels, of which rank 3 begins with the second for rank 0; on two
 * of more; and on two of which the second is the first of all. */
static void transfer_check(struct ring *ring, int it)
{
    static const int channels[ITERATIONS][2] = {{1, 0}, {5, 6}, {7, 0}};
    const int *on = channels[it ? 1 + it % 2 : 0], count = 2;
    const uint32_t first = HALF;
    uint32_t data[TRANSFER + HALF] = {0}, wrong = 0;
    void *op = p2p_start_on(&ring->rank, "Recv", "ncclInt32", TRANSFER, 3, count);
    struct step_handle h[2];
    void *proxy[2], *request[2];
    int bytes[2] = {0};

    for (int i = count; i-- > 0;) { /* the second one begins first */
        proxy[i] = proxy_start(&ring->rank, op, on[i], 3, 1, 0);
        h[i] = step_start(&ring->rank, proxy[i], 0);
        request[i] =
            post_recv(ring->from_prev, data + (size_t)i * first, 4 * first, &h[i]);
    }
    for (int i = count; i-- > 0;)
        CHECK(request[i] && finish(request[i], &bytes[i]) == ncclSuccess);
    CHECK_EQ(bytes[0], 4 * first);
    CHECK_EQ(bytes[1], 4 * (TRANSFER - HALF));
    for (uint32_t i = 0; i < TRANSFER; i++)
        wrong += data[i] != value(3, it, SUM, i);
    CHECK_EQ(wrong, 0);
    for (int i = 0; i < count; i++)
        (void)PROF->stopEvent(proxy[i]);
    (void)PROF->stopEvent(op);
}

/* Iterations of which the first ITERATIONS were recorded. */
static void emulate(const char *real, int iterations)
{
    struct crystal_board *board = board_make(real);
    int pairs[N][2], status;
    pid_t pids[N] = {0};

    fflush(stdout);
    for (int r = 0; r < N; r++)
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[r]), 0);
    for (int r = 0; r < N; r++) {
        struct ring ring = {.order = NULL};

        if (real[r] != 'r' || (pids[r] = fork()) != 0)
            continue;
        rank_open(&ring, real, r, pairs);
        for (int it = 0; it < iterations && check_ok; it++) {
            for (int op = 0; op < OPS; op++)
                collective_check(&ring, it, op);
            if (r == 0 && real[3] == 'v')
                transfer_check(&ring, it);
        }
        fflush(stdout);
        exit(check_ok ? 0 : 1);
    }
    for (int r = 0; r < N; r++) {
        (void)close(pairs[r][0]);
        (void)close(pairs[r][1]);
        if (!pids[r])
            continue;
        CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        CHECK_EQ(status, 0);
    }
    CHECK_STR(crystal_board_header(board)->abort_text, "");
    CHECK_EQ(crystal_board_header(board)->standin_ops, 0);
    crystal_board_destroy(board);
}

static void results_are_those_of_real_ranks(void)
{
    job_make(record_rank);
    emulate("rvvv", ITERATIONS);
    emulate("vvrv", ITERATIONS);
    emulate("rvrv", ITERATIONS);
    emulate("rrvv", ITERATIONS);
    feeds_remove();
    job_end(&job);
}

/* Integers that were the same in all recorded iterations go on for ever. */
static void what_never_changed_repeats(void)
{
    is_steady = true;
    job_make(record_rank);
    emulate("rvvv", ITERATIONS + 20);
    emulate("rvrv", ITERATIONS + 2);
    feeds_remove();
    job_end(&job);
    is_steady = false;
}

/* Those that differ go on with the last recorded iteration's where that is asked for.
 */
static void the_last_iteration_repeats(void)
{
    repeats_last = true;
    (void)setenv("CRYSTAL_REPEAT", "last", 1);
    job_make(record_rank);
    emulate("rvvv", ITERATIONS + 20);
    emulate("rvrv", ITERATIONS + 2);
    feeds_remove();
    job_end(&job);
    (void)unsetenv("CRYSTAL_REPEAT");
    repeats_last = false;
}

/* Behind the recording, rank 2 gets what real rank 1 broadcasts and gives it on; its
 * part of a reduction to virtual rank 0 reaches nobody. */
static void what_reaches_nobody_needs_no_record(void)
{
    static const char real[] = "vrrv";
    struct crystal_board *board;
    int pairs[N][2], status;
    pid_t pids[N] = {0};

    job_make(record_rank);
    board = board_make(real);
    fflush(stdout);
    for (int r = 0; r < N; r++)
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[r]), 0);
    for (int r = 1; r < 3; r++) {
        struct ring ring = {.order = NULL};

        if ((pids[r] = fork()) != 0)
            continue;
        rank_open(&ring, real, r, pairs);
        for (int it = 0; it < ITERATIONS && check_ok; it++)
            for (int op = 0; op < OPS; op++)
                collective_check(&ring, it, op);
        for (int op = 0; op < BROADCAST; op++) /* their numbers pass unused */
            (void)PROF->stopEvent(coll_start(&ring.rank, ring_func_name(ops[op].func),
                                             "ncclInt32", ops[op].count,
                                             (int)ops[op].root, 1));
        collective_check(&ring, ITERATIONS, BROADCAST);
        collective_check(&ring, ITERATIONS, REDUCE);
        fflush(stdout);
        exit(check_ok ? 0 : 1);
    }
    for (int r = 0; r < N; r++) {
        (void)close(pairs[r][0]);
        (void)close(pairs[r][1]);
        if (!pids[r])
            continue;
        CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        CHECK_EQ(status, 0);
    }
    CHECK_STR(crystal_board_header(board)->abort_text, "");
    CHECK_EQ(crystal_board_header(board)->standin_ops, 0);
    crystal_board_destroy(board);
    feeds_remove();
    job_end(&job);
}

/* --- what cannot be answered --- */

static void record_without_payload(uint32_t rank)
{
    job_rank(&job, "ranks", rank);
    job_comm(&job, "world", rank, N);
    job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                     .func = CRYSTAL_FUNC_ALLREDUCE,
                                     .dtype = ncclInt32,
                                     .value = 10});
    job_rank_end(&job);
}

static void record_short_payload(uint32_t rank)
{
    uint32_t few[5] = {0};

    job_rank(&job, "ranks", rank);
    job_comm(&job, "world", rank, N);
    job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                     .func = CRYSTAL_FUNC_ALLREDUCE,
                                     .dtype = ncclInt32,
                                     .value = 5});
    job_payload(&job, few, sizeof few);
    job_rank_end(&job);
}

/* Rank 0's call number `passed` of func must fail. That it has stopped the job stands
 * on the roll, for what it does next may be to end. */
static void refuse(void (*record)(uint32_t rank), enum crystal_func func,
                   uint32_t passed, const char *sentence)
{
    struct crystal_board *board;
    struct crystal_roll *roll;
    char roll_path[80];
    struct ring ring = {.order = NULL};
    int status;
    pid_t pid;

    job_make(record);
    board = board_make("rvvv");
    roll = crystal_roll_create(directory, &job_err);
    JOB_MUST(!roll);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        uint32_t in[10 * N] = {0}, out[10 * N];
        struct ring_run run = {
            .ring = &ring,
            .op = {func, N, 0, 10, 4, 1, 0, CRYSTAL_PROTO_SIMPLE, NULL},
            .in = (unsigned char *)in,
            .out = (unsigned char *)out};

        rank_open(&ring, "rvvv", 0, NULL);
        for (uint32_t i = 0; i < passed; i++)
            (void)PROF->stopEvent(
                coll_start(&ring.rank, "AllReduce", "ncclInt32", 10, 0, 1));
        CHECK(!ring_collective(&run));
        fflush(stdout);
        exit(check_ok ? 0 : 1);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_STR(crystal_board_header(board)->abort_text, sentence);
    CHECK_EQ(crystal_roll_cause(roll).first, CRYSTAL_FIRST_STOP);
    CHECK_EQ(crystal_roll_has_seen(roll, 0), 1);
    crystal_roll_destroy(roll);
    (void)snprintf(roll_path, sizeof roll_path, "%s/roll", directory);
    CHECK_EQ(unlink(roll_path), 0);
    crystal_board_destroy(board);
    job_end(&job);
}

static void stops_where_nothing_fits(void)
{
    refuse(
        record_without_payload, CRYSTAL_FUNC_ALLREDUCE, 0,
        "rank 0: communicator 'world', operation 0 (allreduce): integers of its "
        "virtual rank 3 (not kept: --crystal-payload=all) were not recorded; capture "
        "more iterations than 0 (--crystal-iterations)");
    refuse(
        record_short_payload, CRYSTAL_FUNC_ALLREDUCE, 0,
        "rank 0: communicator 'world', operation 0 (allreduce): rank 3 recorded 20 "
        "bytes, 40 are needed; the program does not do what was captured, capture it "
        "again");
    refuse(record_short_payload, CRYSTAL_FUNC_ALLGATHER, 0,
           "rank 0: communicator 'world', operation 0: function 5 was recorded, now 3 "
           "is called; the program does not do what was captured, capture it again");
    refuse(record_short_payload, CRYSTAL_FUNC_ALLREDUCE, 1,
           "rank 0: communicator 'world', operation 1 (allreduce): integers of its "
           "virtual rank 3 were not recorded; capture more iterations than 0 "
           "(--crystal-iterations)");
    /* the first operation behind three iterations in which it differed */
    refuse(
        record_rank, CRYSTAL_FUNC_ALLREDUCE, ITERATIONS * OPS,
        "rank 0: communicator 'world', operation 18 (allreduce, iteration 3): "
        "integers of its virtual rank 3 differ by iteration and were not recorded; "
        "capture more iterations than 3 (--crystal-iterations), or repeat those of the "
        "last one (CRYSTAL_REPEAT=last)");
}

/* x reduced with the neutral element is x, for every type and operation. */
static void neutral_elements(void)
{
    for (unsigned dtype = 0; dtype < ncclNumTypes; dtype++)
        for (unsigned redop = 0; redop <= ncclAvg; redop++) {
            size_t bytes = crystal_dtype_bytes(dtype);
            unsigned char acc[64], in[64];

            /* 3 in every type is made by adding ones */
            crystal_payload_neutral(in, sizeof in, dtype, ncclProd);
            memcpy(acc, in, sizeof acc);
            CHECK_EQ(crystal_reduce(acc, in, 64 / bytes, dtype, ncclSum), 0);
            CHECK_EQ(crystal_reduce(acc, in, 64 / bytes, dtype, ncclSum), 0);
            memcpy(in, acc, sizeof in);
            crystal_payload_neutral(acc, sizeof acc, dtype, redop);
            CHECK_EQ(crystal_reduce(acc, in, 64 / bytes, dtype, redop), 0);
            if (memcmp(acc, in, sizeof acc) != 0)
                printf("# type %u, operation %u\n", dtype, redop);
            CHECK(memcmp(acc, in, sizeof acc) == 0);
        }
}

int main(void)
{
    stage_begin();
    CHECK_RUN(neutral_elements);
    CHECK_RUN(results_are_those_of_real_ranks);
    CHECK_RUN(what_never_changed_repeats);
    CHECK_RUN(the_last_iteration_repeats);
    CHECK_RUN(what_reaches_nobody_needs_no_record);
    CHECK_RUN(stops_where_nothing_fits);
    return stage_end();
}
