/* How a rank's time is spent: intervals of its operations, merged and subtracted. */
#include "config.h"

#include "runtime/predict_run.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct interval {
    uint64_t from, to;
};

struct intervals {
    struct interval *at;
    size_t count;
};

static int by_begin(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;

    return (x->from > y->from) - (x->from < y->from);
}

/* Sorted and without overlaps. */
static void merge(struct intervals *s)
{
    bool is_sorted = true;
    size_t n = 0;

    for (size_t i = 1; i < s->count && is_sorted; i++)
        is_sorted = s->at[i - 1].from <= s->at[i].from;
    if (!is_sorted)
        qsort(s->at, s->count, sizeof *s->at, by_begin);
    for (size_t i = 0; i < s->count; i++) {
        if (n && s->at[i].from <= s->at[n - 1].to) {
            if (s->at[i].to > s->at[n - 1].to)
                s->at[n - 1].to = s->at[i].to;
        } else {
            s->at[n++] = s->at[i];
        }
    }
    s->count = n;
}

static uint64_t length(const struct intervals *s)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < s->count; i++)
        sum += s->at[i].to - s->at[i].from;
    return sum;
}

/* Adds b to a; both merged. a has room. */
static void add(struct intervals *a, const struct intervals *b)
{
    memcpy(a->at + a->count, b->at, b->count * sizeof *b->at);
    a->count += b->count;
    merge(a);
}

static bool has_kernels(const struct crystal_program *p)
{
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (p->instrs[i].kind == CRYSTAL_OP_KERNEL)
            return true;
    return false;
}

enum { COMPUTE, COLLECTIVE, MESSAGE, SORTS };

static int sort_of(const struct crystal_walk_op *op, bool kernels)
{
    switch (op->kind) {
    case CRYSTAL_WALK_HOST:
        return kernels ? SORTS : COMPUTE;
    case CRYSTAL_WALK_KERNEL:
        return COMPUTE;
    case CRYSTAL_WALK_COLL:
        return COLLECTIVE;
    default:
        return MESSAGE;
    }
}

int crystal_prediction_stat(const struct crystal_prediction *pr, uint32_t lrank,
                            struct crystal_walk *walk, struct crystal_rank_stat *ret)
{
    uint32_t rep = crystal_graph_rep_of(pr->predict->graph, lrank);
    bool kernels = has_kernels(pr->predict->programs[rep]);
    int code = crystal_prediction_walk(pr, lrank, !kernels, walk);
    struct intervals s[SORTS];
    struct interval *room;
    uint64_t busy, covered;

    if (code)
        return code;
    room = malloc((2 * SORTS * walk->count + 1) * sizeof *room);
    if (!room)
        return -ENOMEM;
    for (int i = 0; i < SORTS; i++)
        s[i] = (struct intervals){room + 2 * (size_t)i * walk->count, 0};
    for (size_t i = 0; i < walk->count; i++) {
        int sort = sort_of(&walk->ops[i], kernels);

        if (sort < SORTS)
            s[sort].at[s[sort].count++] =
                (struct interval){walk->ops[i].start_ns, walk->ops[i].end_ns};
    }
    for (int i = 0; i < SORTS; i++)
        merge(&s[i]);
    memset(ret, 0, sizeof *ret);
    ret->total_ns = walk->end_ns;
    ret->compute_ns = busy = length(&s[COMPUTE]);
    add(&s[COMPUTE], &s[COLLECTIVE]);
    covered = length(&s[COMPUTE]);
    ret->exposed_ns = covered - busy;
    busy = covered;
    add(&s[COMPUTE], &s[MESSAGE]);
    covered = length(&s[COMPUTE]);
    ret->bubble_ns = covered - busy;
    ret->idle_ns = walk->end_ns > covered ? walk->end_ns - covered : 0;
    add(&s[COLLECTIVE], &s[MESSAGE]);
    ret->comm_ns = length(&s[COLLECTIVE]);
    free(room);
    return 0;
}
