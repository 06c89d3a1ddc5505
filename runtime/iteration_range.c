/* Iterations by the ranges of the program. See iteration_range.h. */
#include "config.h"

#include "runtime/iteration_range.h"

#include "runtime/program.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum crystal_range_sight crystal_range_look(const struct crystal_op *ops,
                                            uint64_t op_count)
{
    for (uint64_t i = 0; i < op_count; i++) {
        if (crystal_range_is_begin(&ops[i]))
            return CRYSTAL_RANGE_BEGINS;
        if (ops[i].kind == CRYSTAL_OP_HINT && ops[i].aux == CRYSTAL_HINT_HIDDEN)
            return CRYSTAL_RANGE_HIDDEN;
    }
    return CRYSTAL_RANGE_NEVER;
}

bool crystal_range_is_begin(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_HINT && op->aux == CRYSTAL_HINT_RANGE;
}

/* --- calls --- */

static bool is_call(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV || op->kind == CRYSTAL_OP_GROUP;
}

static bool is_same_call(const struct crystal_op *a, const struct crystal_op *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == CRYSTAL_OP_GROUP)
        return a->aux == b->aux;
    return a->func == b->func && a->comm == b->comm && a->peer == b->peer;
}

/* The first call in records at .. end, or end. */
static uint64_t call_from(const struct crystal_op *ops, uint64_t at, uint64_t end)
{
    while (at < end && !is_call(&ops[at]))
        at++;
    return at;
}

/* How many calls records a .. a_end and b .. b_end have in common from their beginning;
 * *ret_a and *ret_b where they go on, the ends where all are the same. */
static uint64_t common_calls(const struct crystal_op *ops, uint64_t a, uint64_t a_end,
                             uint64_t b, uint64_t b_end, uint64_t *ret_a,
                             uint64_t *ret_b)
{
    uint64_t count = 0;

    for (;; count++) {
        *ret_a = call_from(ops, a, a_end);
        *ret_b = call_from(ops, b, b_end);
        if (*ret_a == a_end || *ret_b == b_end ||
            !is_same_call(&ops[*ret_a], &ops[*ret_b]))
            return count;
        a = *ret_a + 1;
        b = *ret_b + 1;
    }
}

static bool is_same(const struct crystal_op *ops, const uint64_t *marks, uint32_t i,
                    uint32_t k)
{
    uint64_t a, b;

    (void)common_calls(ops, marks[i], marks[i + 1], marks[k], marks[k + 1], &a, &b);
    return a == marks[i + 1] && b == marks[k + 1];
}

/* --- the last range --- */

/* Records of the host behind the last call in begin .. end. */
static uint64_t tail_of(const struct crystal_op *ops, uint64_t begin, uint64_t end)
{
    uint64_t count = 0;

    while (end > begin && !is_call(&ops[end - 1]))
        count += crystal_program_is_instr(&ops[--end]);
    return count;
}

/* Where the iteration that begins with the last range ends: behind the calls of the one
 * before it, and as many waits and the like as that has behind its last call. 0 where a
 * call is missing. */
static uint64_t end_of_last(const struct crystal_op *ops, uint64_t op_count,
                            uint64_t model, uint64_t begin)
{
    uint64_t tail = tail_of(ops, model, begin), model_at, at = begin;
    uint64_t call_count =
        common_calls(ops, model, begin, begin, op_count, &model_at, &at);

    if (model_at != begin || !call_count)
        return 0;
    for (at = begin; call_count; at++)
        call_count -= is_call(&ops[at]);
    while (tail && at < op_count && !is_call(&ops[at]) &&
           ops[at].kind != CRYSTAL_OP_FREE && ops[at].kind != CRYSTAL_OP_END)
        tail -= crystal_program_is_instr(&ops[at++]);
    return at;
}

/* --- all --- */

static uint32_t begins_of(const struct crystal_op *ops, uint64_t op_count,
                          uint64_t *marks)
{
    uint32_t count = 0;

    for (uint64_t i = 0; i < op_count && count < UINT32_MAX - 1; i++)
        if (crystal_range_is_begin(&ops[i])) {
            if (marks)
                marks[count] = i;
            count++;
        }
    return count;
}

/* The latest iteration that is not as the last one, and where they part. */
static int differ(const struct crystal_op *ops, const struct crystal_range_marks *m,
                  uint32_t other, struct crystal_error *err)
{
    uint32_t last = m->count - 2;
    uint64_t a, b, count;

    count = common_calls(ops, m->marks[other], m->marks[other + 1], m->marks[last],
                         m->marks[last + 1], &a, &b);
    return crystal_error_set(
        err, EINVAL,
        "iterations %u and %u of the range part at their call %" PRIu64 "%s", other + 1,
        last + 1, count + 1,
        a == m->marks[other + 1]  ? ", which the former has not"
        : b == m->marks[last + 1] ? ", which the latter has not"
                                  : "");
}

int crystal_range_find(const struct crystal_op *ops, uint64_t op_count,
                       struct crystal_range_marks *ret, struct crystal_error *err)
{
    struct crystal_range_marks m = {.count = begins_of(ops, op_count, NULL)};
    uint32_t iteration_count, same_count = 1;
    uint64_t end;
    int code;

    if (m.count < 2)
        return crystal_error_set(err, ENODATA,
                                 m.count ? "the range began once only"
                                         : "the range did not begin");
    m.marks = malloc(((size_t)m.count + 1) * sizeof *m.marks);
    if (!m.marks)
        return crystal_error_set(err, ENOMEM, "out of memory");
    (void)begins_of(ops, op_count, m.marks);
    end = end_of_last(ops, op_count, m.marks[m.count - 2], m.marks[m.count - 1]);
    if (end)
        m.marks[m.count++] = end;
    iteration_count = m.count - 1;
    while (same_count < iteration_count &&
           is_same(ops, m.marks, iteration_count - 1 - same_count, iteration_count - 1))
        same_count++;
    if (2 * (uint64_t)same_count < iteration_count) {
        code = differ(ops, &m, iteration_count - 1 - same_count, err);
        free(m.marks);
        return code;
    }
    m.left_count = iteration_count - same_count;
    m.count -= m.left_count;
    for (uint32_t i = 0; i < m.count; i++)
        m.marks[i] = m.marks[i + m.left_count];
    *ret = m;
    return 0;
}
