/* Every datatype with every operation over 2 to 17 ranks, all-reduce, reduce-scatter
 * and reduce, against sums made in a straight line. Contributions are such that every
 * partial result is exact in every type, whatever the order: at most four ranks have
 * something to say about an element.
 */
#include "config.h"

#include "runtime/reduce.h"

#include "tests/check.h"
#include "tests/hostccl/ranks.h"
#include "tests/hostccl/values.h"

#define COUNT  43
#define TYPES  ncclNumTypes
#define OPS    6 /* ncclRedOp_t and a sum with a factor per rank */
#define PREMUL 5

static bool is_heard(int rank, int n, size_t i)
{
    return (i + (size_t)rank) % (size_t)n < 4;
}

static uint64_t contribution(int op, int rank, int n, size_t i)
{
    switch (op) {
    case ncclProd:
        return is_heard(rank, n, i) ? 2 : 1;
    case ncclMin:
    case ncclMax:
        return (i + 3 * (size_t)rank) % 8;
    case ncclAvg: /* one rank: the factor itself is the result */
        return (i + (size_t)rank) % (size_t)n == 0;
    default:
        return is_heard(rank, n, i);
    }
}

static uint64_t factor(int rank)
{
    return (uint64_t)(1 + rank % 2);
}

static uint64_t reduced(int op, int n, size_t i)
{
    uint64_t all = contribution(op, 0, n, i) * (op == PREMUL ? factor(0) : 1);

    for (int r = 1; r < n; r++) {
        uint64_t v = contribution(op, r, n, i) * (op == PREMUL ? factor(r) : 1);

        if (op == ncclProd)
            all *= v;
        else if (op == ncclMin)
            all = v < all ? v : all;
        else if (op == ncclMax)
            all = v > all ? v : all;
        else
            all += v;
    }
    return all;
}

static void put_reduced(void *at, ncclDataType_t t, int op, int n, size_t i,
                        size_t from)
{
    uint64_t bits;

    if (op != ncclAvg) {
        put(at, t, i, reduced(op, n, from + i));
    } else if (!crystal_dtype_is_float(t)) {
        put(at, t, i, reduced(op, n, from + i) / (uint64_t)n);
    } else {
        bits = crystal_reduce_avg_factor(t, (uint32_t)n); /* little endian */
        memcpy((char *)at + i * type_bytes(t), &bits, type_bytes(t));
    }
}

/* The buffers of one type and operation; n * COUNT elements each. */
struct work {
    char *in, *out[3];
};
static struct work works[TYPES][OPS];
static bool is_tree; /* all-reduces only */

static void start(ncclComm_t comm, int rank, int n, ncclDataType_t t, int op)
{
    struct work *w = &works[t][op];
    size_t elts = (size_t)n * COUNT;
    ncclRedOp_t redop = (ncclRedOp_t)op;
    uint64_t scalar = 0;

    w->in = malloc(elts * 8);
    for (int k = 0; k < 3; k++)
        w->out[k] = calloc(elts, 8);
    for (size_t i = 0; i < elts; i++)
        put(w->in, t, i, contribution(op, rank, n, i));
    put(&scalar, t, 0, factor(rank));
    if (op == PREMUL)
        RANK_CHECK(ncclRedOpCreatePreMulSum(&redop, &scalar, t, ncclScalarHostImmediate,
                                            comm) == ncclSuccess);
    RANK_CHECK(ncclAllReduce(w->in, w->out[0], COUNT, t, redop, comm, NULL) ==
               ncclSuccess);
    if (!is_tree) {
        RANK_CHECK(ncclReduceScatter(w->in, w->out[1], COUNT, t, redop, comm, NULL) ==
                   ncclSuccess);
        RANK_CHECK(ncclReduce(w->in, w->out[2], COUNT, t, redop, op % n, comm, NULL) ==
                   ncclSuccess);
    }
    if (op == PREMUL)
        RANK_CHECK(ncclRedOpDestroy(redop, comm) == ncclSuccess);
}

static void finish(int rank, int n, ncclDataType_t t, int op)
{
    struct work *w = &works[t][op];
    size_t bytes = COUNT * type_bytes(t);
    char want[COUNT * 8], want_block[COUNT * 8];

    for (size_t i = 0; i < COUNT; i++) {
        put_reduced(want, t, op, n, i, 0);
        put_reduced(want_block, t, op, n, i, (size_t)rank * COUNT);
    }
    RANK_CHECK(memcmp(w->out[0], want, bytes) == 0);
    if (!is_tree) {
        RANK_CHECK(memcmp(w->out[1], want_block, bytes) == 0);
        if (rank == op % n)
            RANK_CHECK(memcmp(w->out[2], want, bytes) == 0);
    }
    free(w->in);
    for (int k = 0; k < 3; k++)
        free(w->out[k]);
}

static void every_type_and_op(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);

    for (int t = 0; t < TYPES; t++)
        for (int op = 0; op < OPS; op++)
            start(comm, rank, n, (ncclDataType_t)t, op);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    for (int t = 0; t < TYPES; t++)
        for (int op = 0; op < OPS; op++)
            finish(rank, n, (ncclDataType_t)t, op);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void over_2_to_17_ranks(void)
{
    for (int n = 2; n <= 17; n++)
        CHECK_EQ(ranks_run(n, every_type_and_op), 0);
}

static void over_trees_of_2_to_17_ranks(void)
{
    is_tree = true;
    (void)setenv("NCCL_ALGO", "Tree", 1);
    for (int n = 2; n <= 17; n++)
        CHECK_EQ(ranks_run(n, every_type_and_op), 0);
    (void)unsetenv("NCCL_ALGO");
}

static void in_the_ll_protocol(void)
{
    is_tree = false;
    (void)setenv("NCCL_PROTO", "LL", 1);
    for (int n = 2; n <= 17; n++)
        CHECK_EQ(ranks_run(n, every_type_and_op), 0);
    (void)unsetenv("NCCL_PROTO");
}

int main(void)
{
    check_begin();
    CHECK_RUN(over_2_to_17_ranks);
    CHECK_RUN(over_trees_of_2_to_17_ranks);
    CHECK_RUN(in_the_ll_protocol);
    return check_end();
}
