/* hostccl's collectives, sends and receives between real processes over the real net
 * plugin, against straight recomputation. All values are small integers, which every
 * type holds exactly.
 */
#include "config.h"

#include "tests/check.h"
#include "tests/hostccl/ranks.h"
#include "tests/hostccl/values.h"

#define BIG   (3 * 1000 * 1000 + 1)
#define GUARD 64

static const size_t counts[] = {1, 17, 1000, 40000};

/* --- values --- */

static uint64_t contribution(ncclRedOp_t op, int rank, int n, size_t i)
{
    switch (op) {
    case ncclProd:
        return 1 + (i + (size_t)rank) % 2;
    case ncclAvg:
        return (uint64_t)n * ((i + (size_t)rank) % 2);
    default:
        return (i * 7 + (size_t)rank * 3) % 8;
    }
}

static uint64_t reduced(ncclRedOp_t op, int n, size_t i)
{
    uint64_t all = contribution(op, 0, n, i);

    for (int r = 1; r < n; r++) {
        uint64_t v = contribution(op, r, n, i);

        switch (op) {
        case ncclProd:
            all *= v;
            break;
        case ncclMax:
            all = v > all ? v : all;
            break;
        case ncclMin:
            all = v < all ? v : all;
            break;
        default:
            all += v;
        }
    }
    return op == ncclAvg ? all / (uint64_t)n : all;
}

/* A product wraps around in 8 bits; nothing else does. */
static void fill(void *at, ncclDataType_t t, ncclRedOp_t op, int rank, int n,
                 size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put(at, t, i, contribution(op, rank, n, first + i));
}

static void fill_reduced(void *at, ncclDataType_t t, ncclRedOp_t op, int n,
                         size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put(at, t, i, reduced(op, n, first + i));
}

static char *buffer(size_t bytes)
{
    char *b = malloc(bytes + GUARD);

    memset(b, 0x5a, bytes + GUARD);
    return b;
}

static int is_guarded(const char *b, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (b[bytes + (size_t)i] != 0x5a)
            return 0;
    return 1;
}

static void finish(ncclStream_t stream)
{
    RANK_CHECK(crystal_stream_synchronize(stream) == ncclSuccess);
}

/* --- one operation each --- */

static void all_reduce(ncclComm_t comm, int rank, int n, ncclDataType_t t,
                       ncclRedOp_t op, size_t count, int in_place)
{
    size_t bytes = count * type_bytes(t);
    char *in = buffer(bytes), *out = in_place ? in : buffer(bytes);
    char *want = buffer(bytes);

    fill(in, t, op, rank, n, 0, count);
    fill_reduced(want, t, op, n, 0, count);
    RANK_CHECK(ncclAllReduce(in, out, count, t, op, comm, NULL) == ncclSuccess);
    finish(NULL);
    RANK_CHECK(memcmp(out, want, bytes) == 0 && is_guarded(out, bytes));
    if (!in_place) {
        fill(want, t, op, rank, n, 0, count);
        RANK_CHECK(memcmp(in, want, bytes) == 0);
        free(out);
    }
    free(in);
    free(want);
}

static void reduce(ncclComm_t comm, int rank, int n, ncclDataType_t t, ncclRedOp_t op,
                   size_t count, int root)
{
    size_t bytes = count * type_bytes(t);
    char *in = buffer(bytes), *want = buffer(bytes);
    char *out = rank == root ? buffer(bytes) : NULL;

    fill(in, t, op, rank, n, 0, count);
    fill_reduced(want, t, op, n, 0, count);
    RANK_CHECK(ncclReduce(in, out, count, t, op, root, comm, NULL) == ncclSuccess);
    finish(NULL);
    if (out)
        RANK_CHECK(memcmp(out, want, bytes) == 0 && is_guarded(out, bytes));
    free(in);
    free(out);
    free(want);
}

static void reduce_scatter(ncclComm_t comm, int rank, int n, ncclDataType_t t,
                           ncclRedOp_t op, size_t count, int in_place)
{
    size_t bytes = count * type_bytes(t);
    char *in = buffer((size_t)n * bytes), *want = buffer(bytes);
    char *out = in_place ? in + (size_t)rank * bytes : buffer(bytes);

    fill(in, t, op, rank, n, 0, (size_t)n * count);
    fill_reduced(want, t, op, n, (size_t)rank * count, count);
    RANK_CHECK(ncclReduceScatter(in, out, count, t, op, comm, NULL) == ncclSuccess);
    finish(NULL);
    RANK_CHECK(memcmp(out, want, bytes) == 0);
    if (!in_place) {
        RANK_CHECK(is_guarded(out, bytes));
        free(out);
    }
    free(in);
    free(want);
}

static void all_gather(ncclComm_t comm, int rank, int n, ncclDataType_t t, size_t count,
                       int in_place)
{
    size_t bytes = count * type_bytes(t);
    char *out = buffer((size_t)n * bytes), *want = buffer((size_t)n * bytes);
    char *in = in_place ? out + (size_t)rank * bytes : buffer(bytes);

    for (int r = 0; r < n; r++)
        fill(want + (size_t)r * bytes, t, ncclSum, r, n, 0, count);
    fill(in, t, ncclSum, rank, n, 0, count);
    RANK_CHECK(ncclAllGather(in, out, count, t, comm, NULL) == ncclSuccess);
    finish(NULL);
    RANK_CHECK(memcmp(out, want, (size_t)n * bytes) == 0 &&
               is_guarded(out, (size_t)n * bytes));
    if (!in_place)
        free(in);
    free(out);
    free(want);
}

static void broadcast(ncclComm_t comm, int rank, int n, ncclDataType_t t, size_t count,
                      int root)
{
    size_t bytes = count * type_bytes(t);
    char *out = buffer(bytes), *want = buffer(bytes);

    fill(want, t, ncclSum, root, n, 0, count);
    if (rank == root)
        memcpy(out, want, bytes);
    RANK_CHECK(ncclBcast(out, count, t, root, comm, NULL) == ncclSuccess);
    finish(NULL);
    RANK_CHECK(memcmp(out, want, bytes) == 0 && is_guarded(out, bytes));
    memset(out, 0, bytes);
    RANK_CHECK(ncclBroadcast(rank == root ? want : NULL, out, count, t, root, comm,
                             NULL) == ncclSuccess);
    finish(NULL);
    RANK_CHECK(memcmp(out, want, bytes) == 0);
    free(out);
    free(want);
}

/* Block for `to` of what `from` sends in an all-to-all. */
static void fill_block(char *at, int from, int to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put(at, ncclInt32, i, (uint64_t)(from * 1000 + to) * 1000 + i % 997);
}

static void all_to_all(ncclComm_t comm, int rank, int n, size_t count)
{
    size_t bytes = count * 4;
    char *in = buffer((size_t)n * bytes), *out = buffer((size_t)n * bytes);
    char *want = buffer((size_t)n * bytes);

    for (int r = 0; r < n; r++) {
        fill_block(in + (size_t)r * bytes, rank, r, count);
        fill_block(want + (size_t)r * bytes, r, rank, count);
    }
    RANK_CHECK(ncclAlltoAll(in, out, count, ncclInt32, comm, NULL) == ncclSuccess);
    finish(NULL);
    RANK_CHECK(memcmp(out, want, (size_t)n * bytes) == 0 &&
               is_guarded(out, (size_t)n * bytes));
    free(in);
    free(out);
    free(want);
}

static void gather_scatter(ncclComm_t comm, int rank, int n, size_t count, int root)
{
    size_t bytes = count * 4;
    char *all = buffer((size_t)n * bytes), *want = buffer((size_t)n * bytes);
    char *own = buffer(bytes);

    for (int r = 0; r < n; r++)
        fill_block(want + (size_t)r * bytes, r, root, count);
    fill_block(own, rank, root, count);
    RANK_CHECK(ncclGather(own, all, count, ncclInt32, root, comm, NULL) == ncclSuccess);
    finish(NULL);
    if (rank == root)
        RANK_CHECK(memcmp(all, want, (size_t)n * bytes) == 0);
    memset(own, 0, bytes);
    RANK_CHECK(ncclScatter(all, own, count, ncclInt32, root, comm, NULL) ==
               ncclSuccess);
    finish(NULL);
    RANK_CHECK(memcmp(own, want + (size_t)rank * bytes, bytes) == 0 &&
               is_guarded(own, bytes));
    free(all);
    free(want);
    free(own);
}

/* Each rank sends to all at distance d and itself, several sizes in one group. */
static void exchange(ncclComm_t comm, int rank, int n, int d)
{
    static const size_t sizes[] = {0, 1, 131072, 131073, 400000};
    enum { N = sizeof sizes / sizeof *sizes };
    int to = (rank + d) % n, from = (rank + n - d % n) % n;
    char *in[N], *out[N], *want[N];

    for (int i = 0; i < N; i++) {
        in[i] = buffer(sizes[i] * 4);
        out[i] = buffer(sizes[i] * 4);
        want[i] = buffer(sizes[i] * 4);
        fill_block(in[i], rank, to + i, sizes[i]);
        fill_block(want[i], from, rank + i, sizes[i]);
    }
    RANK_CHECK(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < N; i++) {
        RANK_CHECK(ncclRecv(out[i], sizes[i], ncclInt32, from, comm, NULL) ==
                   ncclSuccess);
        RANK_CHECK(ncclSend(in[i], sizes[i], ncclInt32, to, comm, NULL) == ncclSuccess);
    }
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    finish(NULL);
    for (int i = 0; i < N; i++) {
        RANK_CHECK(memcmp(out[i], want[i], sizes[i] * 4) == 0 &&
                   is_guarded(out[i], sizes[i] * 4));
        free(in[i]);
        free(out[i]);
        free(want[i]);
    }
}

/* --- per process --- */

static void every_type_and_op(int rank, int n)
{
    static const ncclDataType_t types[] = {
        ncclInt8,   ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,
        ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16};
    ncclComm_t comm = ranks_comm(0, rank, n);

    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (int op = ncclSum; op <= ncclAvg; op++) {
            size_t count = counts[(k + (size_t)op) % 4];

            if (n > 4 && (k + (size_t)op + (size_t)n) % 4)
                continue; /* every fourth, another one for each n */
            all_reduce(comm, rank, n, types[k], op, count, op % 2);
            reduce_scatter(comm, rank, n, types[k], op, count, (op + 1) % 2);
            reduce(comm, rank, n, types[k], op, count, (int)k % n);
        }
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (size_t c = 0; c < 4; c++)
            all_gather(comm, rank, n, types[k], counts[c], (int)(k + c) % 2);
    for (int root = 0; root < n; root++) {
        broadcast(comm, rank, n, types[root % 10], counts[root % 4], root);
        gather_scatter(comm, rank, n, counts[root % 4], root);
    }
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void big_ones(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);

    all_reduce(comm, rank, n, ncclFloat32, ncclSum, BIG, 1);
    all_gather(comm, rank, n, ncclUint8, BIG, 0);
    reduce_scatter(comm, rank, n, ncclFloat16, ncclMax, BIG, 0);
    broadcast(comm, rank, n, ncclInt32, BIG, n - 1);
    reduce(comm, rank, n, ncclInt64, ncclSum, BIG, 0);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void point_to_point(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);

    for (int d = 0; d <= n; d++)
        exchange(comm, rank, n, d);
    for (size_t c = 0; c < 4; c++)
        all_to_all(comm, rank, n, counts[c]);
    all_to_all(comm, rank, n, 140000);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static int run_all(void (*fn)(int rank, int n), int first, int last)
{
    int failed = 0;

    for (int n = first; n <= last; n++)
        failed += ranks_run(n, fn);
    return failed;
}

static void reduces_every_type_and_op(void)
{
    CHECK_EQ(run_all(every_type_and_op, 1, 9), 0);
}

static void moves_big_tensors(void)
{
    CHECK_EQ(run_all(big_ones, 2, 3), 0);
    CHECK_EQ(run_all(big_ones, 5, 5), 0);
}

static void big_tree(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);

    all_reduce(comm, rank, n, ncclFloat32, ncclSum, BIG, 1);
    all_reduce(comm, rank, n, ncclInt64, ncclAvg, BIG, 0);
    broadcast(comm, rank, n, ncclInt32, 1000, n - 1); /* by the ring, between trees */
    all_reduce(comm, rank, n, ncclFloat16, ncclMax, 1, 0);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void moves_big_tensors_over_the_tree(void)
{
    (void)setenv("NCCL_ALGO", "Tree", 1);
    CHECK_EQ(run_all(big_tree, 2, 4), 0);
    CHECK_EQ(run_all(big_tree, 7, 7), 0);
    (void)unsetenv("NCCL_ALGO");
}

static void moves_big_tensors_in_ll(void)
{
    (void)setenv("NCCL_PROTO", "LL", 1);
    CHECK_EQ(run_all(big_ones, 2, 3), 0);
    (void)unsetenv("NCCL_PROTO");
}

static void sends_and_receives(void)
{
    CHECK_EQ(run_all(point_to_point, 1, 4), 0);
    CHECK_EQ(run_all(point_to_point, 7, 7), 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(reduces_every_type_and_op);
    CHECK_RUN(moves_big_tensors);
    CHECK_RUN(moves_big_tensors_over_the_tree);
    CHECK_RUN(moves_big_tensors_in_ll);
    CHECK_RUN(sends_and_receives);
    return check_end();
}
