/* A rank's code again, in the order of issue: everything that an operation waits for
 * was issued before it, so one pass is enough. See timeline_walk.h.
 */
#include "config.h"

#include "runtime/timeline_walk.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A time, and the operation whose end it is. */
struct point {
    uint64_t ns;
    uint32_t op;
};

struct walker {
    const struct crystal_timeline *t;
    const struct tl_rank *r;
    struct crystal_walk *walk;
    crystal_walk_end_fn end_of;
    void *context;
    struct point host, *lanes, *locals, *slots;
    uint32_t *colls, *messages; /* so far, by local and by program pair */
    bool with_host;
    int code;
};

static struct crystal_walk_op *put(struct walker *w, struct crystal_walk_op op)
{
    struct crystal_walk *walk = w->walk;

    if (walk->count == walk->capacity) {
        size_t capacity = walk->capacity ? 2 * walk->capacity : 4096;
        struct crystal_walk_op *ops = realloc(walk->ops, capacity * sizeof *ops);

        if (!ops) {
            w->code = -ENOMEM;
            return NULL;
        }
        walk->ops = ops;
        walk->capacity = capacity;
    }
    walk->ops[walk->count] = op;
    return &walk->ops[walk->count++];
}

/* The later of two; a where they are equal. */
static struct point later(struct point a, struct point b)
{
    return b.ns > a.ns ? b : a;
}

static void compute(struct walker *w, const struct tl_code *c, uint64_t ns)
{
    struct point from = w->host;

    ns = tl_computation(w->t, w->r, ns, 0, c->instr, 0);
    if (!ns)
        return;
    w->host.ns += ns;
    if (!w->with_host)
        return;
    w->host.op = (uint32_t)w->walk->count;
    (void)put(w, (struct crystal_walk_op){.start_ns = from.ns, /* code remembers */
                                          .end_ns = w->host.ns,
                                          .instr = c->instr,
                                          .before = from.op,
                                          .lane = UINT16_MAX,
                                          .kind = CRYSTAL_WALK_HOST});
}

static void kernel(struct walker *w, const struct tl_code *c)
{
    struct point *lane = &w->lanes[c->lane], from = later(*lane, w->host);
    uint64_t ns =
        c->arg != TL_WIDE ? c->arg : w->r->list->program->instrs[c->instr].count;

    lane->ns = from.ns + tl_computation(w->t, w->r, ns, 0, c->instr, 1);
    lane->op = (uint32_t)w->walk->count;
    (void)put(w, (struct crystal_walk_op){.start_ns = from.ns, /* code remembers */
                                          .end_ns = lane->ns,
                                          .instr = c->instr,
                                          .before = from.op,
                                          .lane = c->lane,
                                          .kind = CRYSTAL_WALK_KERNEL});
}

static struct point communicate(struct walker *w, const struct tl_code *c,
                                uint32_t instr, struct point from,
                                enum crystal_walk_kind kind, uint32_t nth)
{
    struct point end = {w->end_of(w->context, instr), (uint32_t)w->walk->count};

    (void)put(w, (struct crystal_walk_op){.start_ns = from.ns, /* code remembers */
                                          .end_ns = end.ns,
                                          .instr = instr,
                                          .before = from.op,
                                          .nth = nth,
                                          .lane = c->lane,
                                          .kind = (uint8_t)kind});
    return end;
}

static void operation(struct walker *w, const struct tl_code *c)
{
    const struct crystal_instr *instrs = w->r->list->program->instrs;
    struct point from = later(later(w->lanes[c->lane], w->locals[c->local]), w->host);
    struct point end = {0, TL_NONE};

    if (c->kind == TL_COLL) {
        end =
            communicate(w, c, c->instr, from, CRYSTAL_WALK_COLL, w->colls[c->local]++);
    } else {
        const struct tl_batch *batch = &w->r->list->batches[c->arg];

        for (uint32_t i = 0; i < batch->count; i++) {
            uint32_t instr = w->r->list->messages[batch->first + i];

            end = later(end, communicate(w, c, instr, from,
                                         instrs[instr].kind == CRYSTAL_OP_SEND
                                             ? CRYSTAL_WALK_SEND
                                             : CRYSTAL_WALK_RECV,
                                         w->messages[instrs[instr].slot]++));
        }
    }
    w->lanes[c->lane] = w->locals[c->local] = end;
}

static void step(struct walker *w, const struct tl_code *c)
{
    switch (c->kind) {
    case TL_KERNEL:
        kernel(w, c);
        break;
    case TL_COLL:
    case TL_BATCH:
        operation(w, c);
        break;
    case TL_LAUNCH:
        for (c = &w->r->list->code[c->arg]; c->kind != TL_END; c++)
            operation(w, c);
        break;
    case TL_RECORD:
        w->slots[c->arg] = w->lanes[c->lane];
        break;
    case TL_SWAIT:
        w->lanes[c->lane] = later(later(w->lanes[c->lane], w->slots[c->arg]), w->host);
        break;
    case TL_WAIT:
        w->host = later(w->host, w->slots[c->arg]);
        break;
    case TL_SYNC:
        w->host = later(w->host, w->lanes[c->lane]);
        break;
    default:
        break;
    }
}

int crystal_timeline_walk(const struct crystal_timeline *t, uint32_t lrank,
                          uint64_t begin_ns, int with_host, crystal_walk_end_fn end_of,
                          void *context, struct crystal_walk *walk)
{
    const struct tl_rank *r = &t->ranks[lrank];
    const struct tl_list *list = r->list;
    uint32_t lanes = list->lane_count, locals = list->program->local_count;
    uint32_t points = lanes + locals + list->slot_count;
    struct walker w = {.t = t,
                       .r = r,
                       .walk = walk,
                       .end_of = end_of,
                       .context = context,
                       .host = {begin_ns, TL_NONE},
                       .with_host = with_host != 0};

    walk->count = 0;
    w.lanes = malloc((points + 1) * sizeof *w.lanes);
    w.colls = calloc(locals + list->program->pair_count + 1, sizeof *w.colls);
    if (!w.lanes || !w.colls) {
        free(w.lanes);
        free(w.colls);
        return -ENOMEM;
    }
    w.locals = w.lanes + lanes;
    w.slots = w.locals + locals;
    w.messages = w.colls + locals;
    for (uint32_t i = 0; i < points; i++)
        w.lanes[i] = (struct point){0, TL_NONE};
    for (const struct tl_code *c = list->code; c->kind != TL_END && !w.code; c++) {
        if (c->gap_ns)
            compute(&w, c, c->gap_ns != TL_WIDE ? c->gap_ns : list->gap_ns[c->instr]);
        step(&w, c);
    }
    walk->end_ns = w.host.ns + tl_computation(t, r, list->tail_ns, 0,
                                              list->program->instr_count, 0);
    walk->last = w.host.op;
    free(w.lanes);
    free(w.colls);
    return w.code;
}

void crystal_walk_fini(struct crystal_walk *walk)
{
    free(walk->ops);
    walk->ops = NULL;
    walk->count = walk->capacity = 0;
}
