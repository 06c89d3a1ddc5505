/* WORK to KERNEL records. See trace_work.h. */
#include "config.h"

#include "runtime/trace_work.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct work {
    uint64_t record;
    uint64_t ns;
    uint16_t stream;
};

static int by_place(const void *a, const void *b)
{
    const struct work *x = a, *y = b;

    if (x->record != y->record)
        return x->record < y->record ? -1 : 1;
    return (int)x->stream - (int)y->stream;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a + b < CRYSTAL_OP_NS_MAX ? a + b : CRYSTAL_OP_NS_MAX;
}

/* Takes the WORK records together, sorted; *ret is the caller's. */
static int gather(const struct crystal_trace *t, struct work **ret, uint64_t *ret_count,
                  struct crystal_error *err)
{
    struct work *all = malloc((t->op_count + 1) * sizeof *all);
    uint64_t count = 0, kept = 0;

    if (!all)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint64_t i = 0; i < t->op_count; i++) {
        const struct crystal_op *op = &t->ops[i];

        if (op->kind != CRYSTAL_OP_WORK)
            continue;
        if (op->peer >= i || op->func >= CRYSTAL_WORK_COUNT ||
            op->value > CRYSTAL_OP_NS_MAX) {
            free(all);
            return crystal_error_set(err, EINVAL,
                                     "record %llu: work has a value out of range",
                                     (unsigned long long)i);
        }
        if (op->func != CRYSTAL_WORK_OWN)
            all[count++] = (struct work){op->peer, op->value, op->stream};
    }
    qsort(all, count, sizeof *all, by_place);
    for (uint64_t i = 0; i < count; i++)
        if (kept && by_place(&all[kept - 1], &all[i]) == 0)
            all[kept - 1].ns = add(all[kept - 1].ns, all[i].ns);
        else
            all[kept++] = all[i];
    *ret = all;
    *ret_count = kept;
    return 0;
}

/* Belongs to the record before it. */
static bool is_attached(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_EXT || op->kind == CRYSTAL_OP_PAYLOAD;
}

static bool has_work(const struct crystal_trace *t)
{
    for (uint64_t i = 0; i < t->op_count; i++)
        if (t->ops[i].kind == CRYSTAL_OP_WORK)
            return true;
    return false;
}

/* Copies the records to `to` with the work between them; place[i] is where record i has
 * gone. Returns how many there are. */
static uint64_t put(const struct crystal_trace *t, const struct work *works,
                    uint64_t work_count, struct crystal_op *to, uint64_t *place)
{
    uint64_t count = 0, next = 0, now_ns = 0;

    for (uint64_t i = 0; i < t->op_count; i++) {
        const struct crystal_op *op = &t->ops[i];

        if (op->kind == CRYSTAL_OP_WORK) {
            place[i] = UINT64_MAX;
            continue;
        }
        while (next < work_count && works[next].record < i && !is_attached(op)) {
            to[count++] = (struct crystal_op){.kind = CRYSTAL_OP_KERNEL,
                                              .stream = works[next].stream,
                                              .value = works[next].ns,
                                              .t_ns = now_ns};
            next++;
        }
        place[i] = count;
        to[count++] = *op;
        if (!is_attached(op) && op->kind != CRYSTAL_OP_DONE &&
            crystal_op_end_ns(op) > now_ns)
            now_ns = crystal_op_end_ns(op);
    }
    return count; /* behind the last record is nothing: END is there, or it was cut */
}

int crystal_trace_place_work(struct crystal_trace *trace, struct crystal_error *err)
{
    struct work *works = NULL;
    struct crystal_op *ops;
    uint64_t *place, count = 0;
    int code;

    if (!has_work(trace))
        return 0;
    code = gather(trace, &works, &count, err);
    if (code)
        return code;
    ops = malloc((trace->op_count + count) * sizeof *ops);
    place = malloc(trace->op_count * sizeof *place);
    if (!ops || !place) {
        code = crystal_error_set(err, ENOMEM, "out of memory");
        free(ops);
        goto out;
    }
    count = put(trace, works, count, ops, place);
    for (uint64_t i = 0; i < count; i++)
        if (ops[i].kind == CRYSTAL_OP_DONE && ops[i].peer < trace->op_count)
            ops[i].peer = (uint32_t)place[ops[i].peer];
    free(trace->ops);
    trace->ops = ops;
    trace->op_count = count;
out:
    free(works);
    free(place);
    return code;
}
