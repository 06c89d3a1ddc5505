/* verify: sound jobs are sound, and for each way in which they can be broken the
 * witness is exact.
 */
#include "config.h"

#include "runtime/verify.h"

#include "tests/check.h"
#include "tests/graph_edit.h"

#include <unistd.h>

static char path[64], broken_path[64];

static struct crystal_verdict verdict_of(const char *file)
{
    struct crystal_graph *g = crystal_graph_open(file, &edit_err);
    struct crystal_verdict v;

    EDIT_MUST(!g);
    EDIT_MUST(crystal_verify(g, &v, &edit_err));
    crystal_graph_close(g);
    return v;
}

/* The n-th record of a kind and func. */
static uint64_t find(const struct crystal_op *ops, uint64_t count, uint8_t kind,
                     uint8_t func, uint64_t n)
{
    for (uint64_t i = 0; i < count; i++)
        if (ops[i].kind == kind && (!func || ops[i].func == func) && n-- == 0)
            return i;
    printf("Bail out! no such record\n");
    exit(1);
}

static uint64_t drop(struct crystal_op *ops, uint64_t count, uint64_t at)
{
    memmove(ops + at, ops + at + 1, (count - at - 1) * sizeof *ops);
    return count - 1;
}

static uint64_t no_send(struct crystal_op *ops, uint64_t count)
{
    return drop(ops, count, find(ops, count, CRYSTAL_OP_SEND, 0, 3));
}

static uint64_t other_bytes(struct crystal_op *ops, uint64_t count)
{
    ops[find(ops, count, CRYSTAL_OP_RECV, 0, 1)].value /= 2;
    return count;
}

static uint64_t other_type(struct crystal_op *ops, uint64_t count)
{
    ops[find(ops, count, CRYSTAL_OP_COLL, CRYSTAL_FUNC_REDUCESCATTER, 5)].dtype = 7;
    return count;
}

static uint64_t other_count(struct crystal_op *ops, uint64_t count)
{
    ops[find(ops, count, CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLTOALL, 2)].value++;
    return count;
}

static uint64_t one_less(struct crystal_op *ops, uint64_t count)
{
    return drop(ops, count,
                find(ops, count, CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLTOALL, 7));
}

static uint64_t other_order(struct crystal_op *ops, uint64_t count)
{
    uint64_t a = find(ops, count, CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLGATHER, 0);
    uint64_t b = find(ops, count, CRYSTAL_OP_COLL, CRYSTAL_FUNC_REDUCESCATTER, 0);
    struct crystal_op op = ops[a];

    ops[a] = ops[b];
    ops[b] = op;
    return count;
}

/* One rank alone calls a collective of no elements, in place of a computation. */
static uint64_t empty_alone(struct crystal_op *ops, uint64_t count)
{
    struct crystal_op *op = &ops[find(ops, count, CRYSTAL_OP_KERNEL, 0, 9)];

    op->kind = CRYSTAL_OP_COLL;
    op->func = CRYSTAL_FUNC_ALLREDUCE;
    op->dtype = 7;
    op->comm = 1;
    op->aux = op->peer = 0;
    op->value = 0;
    return count;
}

/* One rank calls it with no elements where others have some: it is missing there. */
static uint64_t empty_for_one(struct crystal_op *ops, uint64_t count)
{
    ops[find(ops, count, CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLTOALL, 1535)].value = 0;
    return count;
}

/* Two communicators in another order than the other members of both: they stand on one
 * stream, so each waits for the other. */
static uint64_t crossed(struct crystal_op *ops, uint64_t count)
{
    uint64_t a = find(ops, count, CRYSTAL_OP_COLL, CRYSTAL_FUNC_REDUCESCATTER, 0), b;
    struct crystal_op op;

    while (ops[a].comm != 1 || ops[a].kind != CRYSTAL_OP_COLL) /* dp */
        a++;
    for (b = a; ops[b].comm != 3 || ops[b].kind != CRYSTAL_OP_COLL;) /* its experts' */
        b++;
    op = ops[a];
    ops[a] = ops[b];
    ops[b] = op;
    return count;
}

/* The first send behind the backward pass that its receiver needs it for. */
static uint64_t too_late(struct crystal_op *ops, uint64_t count)
{
    uint64_t from = find(ops, count, CRYSTAL_OP_SEND, 0, 0) - 2, to = from;
    struct crystal_op send[3];

    while (ops[to].kind != CRYSTAL_OP_RECV || ops[to].comm != 5) /* gradients */
        to++;
    memcpy(send, ops + from, sizeof send);
    memmove(ops + from, ops + from + 3, (to + 3 - from - 3) * sizeof *ops);
    memcpy(ops + to, send, sizeof send);
    return count;
}

static void check_broken(const struct crystal_graph *g, uint32_t lrank, edit_fn edit,
                         const char *want)
{
    struct crystal_verdict v;

    edit_graph(g, broken_path, lrank, edit);
    v = verdict_of(broken_path);
    CHECK(!v.is_sound);
    CHECK_STR(v.witness ? v.witness : "", want);
    crystal_verdict_fini(&v);
}

static void qwen_and_what_breaks_it(void)
{
    struct crystal_graph *g = edit_example("qwen3-235b-a22b-8192", 4, 2, path);
    struct crystal_verdict v = verdict_of(path);

    CHECK(v.is_sound);
    CHECK_EQ(v.message_count, 2 * 31 * 64 * 4 * 4);
    crystal_verdict_fini(&v);
    check_broken(
        g, 21, other_order,
        "collective 0 of communicator 77 (4 ranks) differs between ranks 20 and 21:\n"
        "  rank 20: allgather, 4194304 x bfloat16 (record 6 of rank 16)\n"
        "  rank 21: reducescatter, 4194304 x bfloat16, sum (record 6 of rank 21)\n");
    check_broken(
        g, 37, other_type,
        "collective 11 of communicator 133 (4 ranks) differs between ranks 36 and 37:\n"
        "  rank 36: reducescatter, 4194304 x bfloat16, sum (record 124 of rank 32)\n"
        "  rank 37: reducescatter, 4194304 x float32, sum (record 124 of rank 37)\n");
    check_broken(
        g, 100, other_count,
        "collective 2 of communicator 338 (2 ranks) differs between ranks 96 and 100:\n"
        "  rank 96: alltoall, 16777216 x bfloat16 (record 38 of rank 96)\n"
        "  rank 100: alltoall, 16777217 x bfloat16 (record 38 of rank 100)\n");
    check_broken(g, 100, one_less,
                 "collective 1535 of communicator 338 (2 ranks) differs between ranks "
                 "96 and 100:\n"
                 "  rank 96: alltoall, 16777216 x bfloat16 (record 20224 of rank 96)\n"
                 "  rank 100: no more than 1535\n");
    check_broken(g, 100, empty_for_one,
                 "collective 1535 of communicator 338 (2 ranks) differs between ranks "
                 "96 and 100:\n"
                 "  rank 96: alltoall, 16777216 x bfloat16 (record 20224 of rank 96)\n"
                 "  rank 100: no more than 1535\n");
    edit_graph(g, broken_path, 100, empty_alone);
    v = verdict_of(broken_path);
    CHECK(v.is_sound);
    crystal_verdict_fini(&v);
    check_broken(g, 40, no_send,
                 "message 127 from rank 40 to rank 56 on communicator 148 (2 ranks) "
                 "does not fit:\n"
                 "  rank 40: no more than 127\n"
                 "  rank 56: recv, 4194304 x bfloat16 (record 16547 of rank 48)\n");
    check_broken(g, 70, other_bytes,
                 "message 1 from rank 54 to rank 70 on communicator 197 (2 ranks) does "
                 "not fit:\n"
                 "  rank 54: send, 4194304 x bfloat16 (record 140 of rank 48)\n"
                 "  rank 70: recv, 2097152 x bfloat16 (record 71 of rank 70)\n");
    check_broken(g, 6, crossed,
                 "2 ranks wait for each other for ever:\n"
                 "  rank 6 waits in reducescatter 0 of communicator 28 (2 ranks), "
                 "record 15897 of rank 6, for rank 14\n"
                 "  rank 14 waits in reducescatter 0 of communicator 11 (4 ranks), "
                 "record 15897 of rank 0, for rank 6\n");
    crystal_graph_close(g);
}

static void llama_and_what_breaks_it(void)
{
    struct crystal_graph *g = edit_example("llama3-405b-16384", 2, 1, path);
    struct crystal_verdict v = verdict_of(path);

    CHECK(v.is_sound);
    crystal_verdict_fini(&v);
    check_broken(g, 3, too_late,
                 "2 ranks wait for each other for ever:\n"
                 "  rank 19 waits in recv 127 of communicator 11 (2 ranks), record "
                 "2795 of rank 16, for rank 3\n"
                 "  rank 3 waits in recv 0 of communicator 12 (2 ranks), record 2542 "
                 "of rank 3, for rank 19\n");
    crystal_graph_close(g);
}

int main(void)
{
    (void)snprintf(path, sizeof path, "/tmp/crystal-verify.%ld", (long)getpid());
    (void)snprintf(broken_path, sizeof broken_path, "%s.broken", path);
    check_begin();
    CHECK_RUN(qwen_and_what_breaks_it);
    CHECK_RUN(llama_and_what_breaks_it);
    (void)unlink(path); /* temporary files */
    (void)unlink(broken_path);
    return check_end();
}
