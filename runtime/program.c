/* Compiling the last recorded iteration of a representative. See program.h. */
#include "config.h"

#include "runtime/program.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int crystal_program_is_instr(const struct crystal_op *op)
{
    switch (op->kind) {
    case CRYSTAL_OP_COLL:
    case CRYSTAL_OP_SEND:
    case CRYSTAL_OP_RECV:
    case CRYSTAL_OP_GROUP:
    case CRYSTAL_OP_RECORD:
    case CRYSTAL_OP_WAIT:
    case CRYSTAL_OP_SWAIT:
    case CRYSTAL_OP_SYNC:
    case CRYSTAL_OP_HINT:
    case CRYSTAL_OP_KERNEL:
        return 1;
    default:
        return 0;
    }
}

void crystal_program_destroy(struct crystal_program *p)
{
    if (!p)
        return;
    free(p->instrs);
    free(p->coll_before);
    free(p->coll_each);
    free(p->pairs);
    free(p);
}

/* The latest RECORD of each event: its number among those of its iteration. */
struct events {
    struct {
        uint32_t event, number;
        bool is_used;
    } * places;
    uint64_t mask;
};

static int events_init(struct events *e, uint64_t record_count)
{
    uint64_t capacity = 16;

    while (capacity < 2 * record_count)
        capacity *= 2;
    e->mask = capacity - 1;
    e->places = calloc(capacity, sizeof *e->places);
    return e->places ? 0 : -ENOMEM;
}

static uint32_t *events_get(struct events *e, uint32_t event, bool makes)
{
    uint64_t i = event * UINT64_C(0x9e3779b97f4a7c15) >> 20 & e->mask;

    while (e->places[i].is_used && e->places[i].event != event)
        i = (i + 1) & e->mask;
    if (!e->places[i].is_used) {
        if (!makes)
            return NULL;
        e->places[i].is_used = true;
        e->places[i].event = event;
    }
    return &e->places[i].number;
}

static uint32_t pair_find(struct crystal_program *p, const struct crystal_op *op)
{
    uint8_t is_send = op->kind == CRYSTAL_OP_SEND;

    for (uint32_t i = 0; i < p->pair_count; i++)
        if (p->pairs[i].local == op->comm && p->pairs[i].peer == op->peer &&
            p->pairs[i].is_send == is_send)
            return i;
    return CRYSTAL_PROGRAM_NONE;
}

static int pair_add(struct crystal_program *p, const struct crystal_op *op)
{
    struct crystal_program_pair *pairs;

    if (pair_find(p, op) != CRYSTAL_PROGRAM_NONE)
        return 0;
    pairs = realloc(p->pairs, (p->pair_count + 1) * sizeof *pairs);
    if (!pairs)
        return -ENOMEM;
    p->pairs = pairs;
    pairs[p->pair_count++] = (struct crystal_program_pair){
        op->comm, op->kind == CRYSTAL_OP_SEND, op->peer, 0, 0};
    return 0;
}

static bool is_p2p(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_SEND || op->kind == CRYSTAL_OP_RECV;
}

static void instr_fill(struct crystal_program *p, const struct crystal_op *op,
                       uint64_t record, uint16_t *streams)
{
    struct crystal_instr *in = &p->instrs[p->instr_count++];

    memset(in, 0, sizeof *in);
    in->kind = op->kind;
    in->func = op->func;
    in->dtype = op->dtype;
    in->local = op->comm;
    in->peer = op->peer;
    in->count = op->value;
    in->record = record;
    in->slot = CRYSTAL_PROGRAM_NONE;
    if (op->kind == CRYSTAL_OP_GROUP) {
        in->starts_group = op->aux != 0;
        return;
    }
    if (streams[op->stream] == UINT16_MAX)
        streams[op->stream] = (uint16_t)p->stream_count++;
    in->stream = streams[op->stream];
    if (is_p2p(op)) {
        in->slot = pair_find(p, op);
        p->pairs[in->slot].each++;
    } else if (op->kind == CRYSTAL_OP_COLL) {
        p->coll_each[op->comm] += !crystal_op_is_empty(op);
        in->flags = op->flags;
    } else if (op->kind == CRYSTAL_OP_RECORD) {
        in->slot = p->event_count++;
    }
}

/* Which records are an iteration, and where the one before begins. */
struct range {
    uint64_t first; /* of all iterations: behind what was before */
    uint64_t before, begin, end;
    bool with_kernels;
};

/* Events that are waited for, of this iteration or the one before, become the slots of
 * their RECORD in this one. */
static int events_resolve(struct crystal_program *p, const struct crystal_op *ops,
                          const struct range *range)
{
    uint32_t number = 0, instr = 0, *latest;
    struct events events;

    if (events_init(&events, range->end - range->before))
        return -ENOMEM;
    for (uint64_t i = range->before; i < range->end; i++) {
        if (i == range->begin)
            number = 0;
        if (ops[i].kind == CRYSTAL_OP_RECORD)
            *events_get(&events, ops[i].peer, true) = number++;
        while (instr < p->instr_count && p->instrs[instr].record < i)
            instr++;
        if (instr == p->instr_count || p->instrs[instr].record != i ||
            (ops[i].kind != CRYSTAL_OP_WAIT && ops[i].kind != CRYSTAL_OP_SWAIT))
            continue;
        latest = events_get(&events, ops[i].peer, false);
        if (latest && *latest < p->event_count)
            p->instrs[instr].slot = *latest;
    }
    free(events.places);
    return 0;
}

static int compile(struct crystal_program *p, const struct crystal_op *ops,
                   const struct range *range)
{
    uint64_t begin = range->begin, end = range->end;
    uint16_t *streams;

    for (uint64_t i = begin; i < end; i++)
        if (is_p2p(&ops[i]) && pair_add(p, &ops[i]))
            return -ENOMEM;
    for (uint64_t i = 0; i < range->first; i++) {
        if (ops[i].kind == CRYSTAL_OP_COLL)
            p->coll_before[ops[i].comm] += !crystal_op_is_empty(&ops[i]);
        if (is_p2p(&ops[i]) && pair_find(p, &ops[i]) != CRYSTAL_PROGRAM_NONE)
            p->pairs[pair_find(p, &ops[i])].before++;
    }
    streams = malloc((UINT16_MAX + 1) * sizeof *streams);
    p->instrs = malloc((size_t)(end - begin + 1) * sizeof *p->instrs);
    if (!streams || !p->instrs) {
        free(streams);
        return -ENOMEM;
    }
    memset(streams, 0xff, (UINT16_MAX + 1) * sizeof *streams);
    for (uint64_t i = begin; i < end; i++)
        if (crystal_program_is_instr(&ops[i]) &&
            (range->with_kernels || ops[i].kind != CRYSTAL_OP_KERNEL))
            instr_fill(p, &ops[i], i, streams);
    free(streams);
    return events_resolve(p, ops, range);
}

static struct crystal_program *create(const struct crystal_graph *g, uint32_t rep,
                                      const struct range *range,
                                      struct crystal_error *err)
{
    uint32_t lrank = crystal_graph_rep_lrank(g, rep);
    struct crystal_program *p = calloc(1, sizeof *p);
    uint64_t op_count;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &op_count);

    if (!p)
        goto err_memory;
    p->rep = rep;
    p->local_count = crystal_graph_local_count(g, lrank);
    p->coll_before = calloc(p->local_count + 1, sizeof *p->coll_before);
    p->coll_each = calloc(p->local_count + 1, sizeof *p->coll_each);
    if (!p->coll_before || !p->coll_each || compile(p, ops, range))
        goto err_memory;
    return p;

err_memory:
    crystal_program_destroy(p);
    (void)crystal_error_set(err, ENOMEM, "rank %u: out of memory", lrank);
    return NULL;
}

struct crystal_program *crystal_program_create_range(const struct crystal_graph *g,
                                                     uint32_t rep, uint64_t begin,
                                                     uint64_t end, int with_kernels,
                                                     struct crystal_error *err)
{
    struct range range = {0, begin, begin, end, with_kernels != 0};

    return create(g, rep, &range, err);
}

struct crystal_program *crystal_program_create(const struct crystal_graph *g,
                                               uint32_t rep, struct crystal_error *err)
{
    uint32_t lrank = crystal_graph_rep_lrank(g, rep), mark_count;
    const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);
    struct range range;

    if (mark_count < 2) {
        (void)crystal_error_set(err, ENODATA,
                                "rank %u: no repeating iterations in its recording; "
                                "capture more of them (--crystal-iterations)",
                                lrank);
        return NULL;
    }
    range.first = marks[0];
    range.begin = marks[mark_count - 2];
    range.end = marks[mark_count - 1];
    range.before = mark_count > 2 ? marks[mark_count - 3] : range.begin;
    range.with_kernels = true;
    return create(g, rep, &range, err);
}
