/* See overhead.h. A collective's members are brought together by communicator and
 * number; the model, run with what their traces say of their arrivals, tells when each
 * would have ended without any cost of software.
 */
#include "config.h"

#include "replay/overhead.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct crystal_overhead {
    struct crystal_overhead_part *parts;
    size_t count, capacity;
    uint32_t most_ranks;
};

struct crystal_overhead *crystal_overhead_create(void)
{
    return calloc(1, sizeof(struct crystal_overhead));
}

void crystal_overhead_destroy(struct crystal_overhead *o)
{
    if (!o)
        return;
    free(o->parts);
    free(o);
}

int crystal_overhead_put(struct crystal_overhead *o,
                         const struct crystal_overhead_part *part,
                         struct crystal_error *err)
{
    if (o->count == o->capacity) {
        size_t capacity = o->capacity ? 2 * o->capacity : 256;
        struct crystal_overhead_part *parts =
            realloc(o->parts, capacity * sizeof *parts);

        if (!parts)
            return crystal_error_set(err, ENOMEM, "out of memory");
        o->parts = parts;
        o->capacity = capacity;
    }
    if (part->nranks > o->most_ranks)
        o->most_ranks = part->nranks;
    o->parts[o->count++] = *part;
    return 0;
}

int crystal_overhead_add(struct crystal_overhead *o, const struct crystal_graph *g,
                         uint32_t run, uint32_t lrank, const struct crystal_op *ops,
                         uint64_t op_count, uint64_t first, struct crystal_error *err)
{
    uint32_t local_count = crystal_graph_local_count(g, lrank);
    const struct crystal_op **done = calloc(op_count + 1, sizeof(*done));
    uint64_t *seq = calloc(local_count + 1, sizeof *seq);
    uint64_t start_ns = op_count ? ops[0].value : 0; /* START */
    int code = 0;

    if (!done || !seq)
        code = crystal_error_set(err, ENOMEM, "out of memory");
    for (uint64_t i = 0; !code && i < op_count; i++)
        if (ops[i].kind == CRYSTAL_OP_DONE && ops[i].peer < op_count)
            done[ops[i].peer] = &ops[i];
    for (uint64_t i = 0; !code && i < op_count; i++) {
        struct crystal_overhead_part s = {.run = run, .op = &ops[i]};
        struct crystal_graph_comm comm;

        if (ops[i].kind != CRYSTAL_OP_COLL || crystal_op_is_empty(&ops[i]) ||
            ops[i].comm >= local_count)
            continue;
        s.seq = seq[ops[i].comm]++;
        if (i < first || !done[i] || !crystal_dtype_bytes(ops[i].dtype))
            continue;
        s.comm = crystal_graph_comm_of(g, lrank, ops[i].comm);
        s.crank = crystal_graph_crank_of(g, s.comm, lrank);
        crystal_graph_comm(g, s.comm, &comm);
        s.nranks = comm.nranks;
        s.begin_ns = start_ns + done[i]->value;
        s.end_ns = start_ns + done[i]->t_ns;
        code = crystal_overhead_put(o, &s, err);
    }
    free(done);
    free(seq);
    return code;
}

static int compare(const void *a, const void *b)
{
    const struct crystal_overhead_part *x = a, *y = b;

    if (x->run != y->run)
        return x->run < y->run ? -1 : 1;
    if (x->comm != y->comm)
        return x->comm < y->comm ? -1 : 1;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return x->crank < y->crank ? -1 : x->crank > y->crank;
}

/* Message steps that follow each other. */
static uint32_t steps_of(const struct crystal_op *op, uint32_t nranks)
{
    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        return 2 * (nranks - 1);
    case CRYSTAL_FUNC_ALLGATHER:
    case CRYSTAL_FUNC_REDUCESCATTER:
    case CRYSTAL_FUNC_BROADCAST:
    case CRYSTAL_FUNC_REDUCE:
        return nranks - 1;
    default:
        return 1;
    }
}

/* How much later the collective whose nranks members begin at s ended than the bare
 * wire says: by the latest end. */
static int64_t cost_of(const struct crystal_overhead_part *s, uint32_t nranks,
                       const struct crystal_transfer_wire *wire, uint64_t *memory)
{
    struct crystal_transfer_op op = {.func = s->op->func,
                                     .nranks = nranks,
                                     .root = s->op->peer,
                                     .count = s->op->value,
                                     .elt_bytes =
                                         (uint32_t)crystal_dtype_bytes(s->op->dtype)};
    uint64_t *arrive = memory, *ends = memory + nranks, model = 0, real = 0;

    for (uint32_t k = 0; k < nranks; k++)
        arrive[k] = s[k].begin_ns;
    crystal_transfer_coll(wire, &op, arrive, ends, memory + 2 * nranks);
    for (uint32_t k = 0; k < nranks; k++) {
        if (ends[k] > model)
            model = ends[k];
        if (s[k].end_ns > real)
            real = s[k].end_ns;
    }
    return (int64_t)real - (int64_t)model;
}

/* What one whole collective cost. */
struct cost {
    uint32_t steps;
    int64_t ns;
};

static int compare_cost(const void *a, const void *b)
{
    const struct cost *x = a, *y = b;

    if (x->steps != y->steps)
        return x->steps < y->steps ? -1 : 1;
    return x->ns < y->ns ? -1 : x->ns > y->ns;
}

/* Collects the costs of all whole collectives; returns how many. */
static uint32_t costs_of(struct crystal_overhead *o,
                         const struct crystal_transfer_wire *bare, struct cost *costs,
                         uint64_t *memory)
{
    uint32_t count = 0;

    for (size_t i = 0; i < o->count;) {
        uint32_t nranks = o->parts[i].nranks;
        size_t end = i;

        while (end < o->count && o->parts[end].run == o->parts[i].run &&
               o->parts[end].comm == o->parts[i].comm &&
               o->parts[end].seq == o->parts[i].seq)
            end++;
        if (end - i == nranks && nranks > 1) {
            costs[count].steps = steps_of(o->parts[i].op, nranks);
            costs[count++].ns = cost_of(&o->parts[i], nranks, bare, memory);
        }
        i = end;
    }
    return count;
}

/* The lower quartile of the costs of those with as many steps as costs[at], which are
 * sorted: what it costs where no rank is kept from the CPU by another one. */
static double quartile_at(const struct cost *costs, uint32_t count, uint32_t at)
{
    uint32_t begin = at, end = at, quarter;

    while (begin > 0 && costs[begin - 1].steps == costs[at].steps)
        begin--;
    while (end < count && costs[end].steps == costs[at].steps)
        end++;
    quarter = begin + (end - begin) / 4;
    return (double)costs[quarter].ns;
}

static uint64_t not_negative(double ns)
{
    return ns > 0 ? (uint64_t)(ns + 0.5) : 0;
}

int crystal_overhead_find(struct crystal_overhead *o,
                          struct crystal_transfer_wire *wire, uint32_t *ret_count,
                          struct crystal_error *err)
{
    struct cost *costs = malloc((o->count + 1) * sizeof *costs);
    uint64_t *memory = malloc(4 * ((size_t)o->most_ranks + 1) * sizeof *memory);
    uint32_t count;

    if (!costs || !memory) {
        free(costs);
        free(memory);
        return crystal_error_set(err, ENOMEM, "out of memory");
    }
    wire->overhead_ns = wire->op_overhead_ns = 0;
    if (o->count)
        qsort(o->parts, o->count, sizeof *o->parts, compare);
    count = costs_of(o, wire, costs, memory);
    if (count) {
        double few, many, per_step;
        uint32_t span;

        qsort(costs, count, sizeof *costs, compare_cost);
        few = quartile_at(costs, count, 0);
        many = quartile_at(costs, count, count - 1);
        span = costs[count - 1].steps - costs[0].steps;
        per_step = span ? (many - few) / span : few / costs[0].steps;
        if (per_step < 0)
            per_step = 0;
        wire->overhead_ns = not_negative(per_step);
        wire->op_overhead_ns = not_negative(few - per_step * costs[0].steps);
    }
    *ret_count = count;
    free(costs);
    free(memory);
    return 0;
}
