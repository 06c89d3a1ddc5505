/* A representative's program as code for its ranks: groups become the operations that
 * they launch, events that nobody waits for disappear, and the others share slots.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* So many slots rest before one is used again, so that few still wait for the older
 * event where a lane lags behind. */
#define RESTING_SLOTS 64

struct compile {
    struct crystal_timeline *t;
    struct tl_list *list;
    const struct crystal_program *p;
    uint32_t code_capacity, batch_capacity;
    uint32_t *last_wait; /* by event: the last instruction that waits for it, NONE */
    bool *is_for_ever;   /* by event: waited for in the next iteration */
    uint32_t *slot_of;   /* by event */
    uint32_t *rest;      /* free slots, first in first out */
    uint32_t rest_first, rest_count;
    uint32_t *frees_at; /* by instruction: the event that is no longer needed, NONE */
};

static bool is_p2p(const struct crystal_instr *in)
{
    return in->kind == CRYSTAL_OP_SEND || in->kind == CRYSTAL_OP_RECV;
}

static bool waits(const struct crystal_instr *in)
{
    return in->kind == CRYSTAL_OP_WAIT || in->kind == CRYSTAL_OP_SWAIT;
}

static int put(struct compile *c, struct tl_code code)
{
    struct tl_list *list = c->list;

    if (list->code_count == c->code_capacity) {
        uint32_t capacity = c->code_capacity ? 2 * c->code_capacity : 256;
        struct tl_code *more = realloc(list->code, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        list->code = more;
        c->code_capacity = capacity;
    }
    list->code[list->code_count++] = code;
    return 0;
}

/* --- slots --- */

static int slots_init(struct compile *c)
{
    const struct crystal_program *p = c->p;
    uint32_t *recorded_at = malloc((p->event_count + 1) * sizeof *recorded_at);

    c->last_wait = malloc((p->event_count + 1) * sizeof *c->last_wait);
    c->is_for_ever = calloc(p->event_count + 1, sizeof *c->is_for_ever);
    c->slot_of = malloc((p->event_count + 1) * sizeof *c->slot_of);
    c->rest = malloc((p->event_count + 1) * sizeof *c->rest);
    c->frees_at = malloc((p->instr_count + 1) * sizeof *c->frees_at);
    if (!recorded_at || !c->last_wait || !c->is_for_ever || !c->slot_of || !c->rest ||
        !c->frees_at) {
        free(recorded_at);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < p->event_count; i++)
        c->last_wait[i] = c->slot_of[i] = TL_NONE;
    for (uint32_t i = 0; i < p->instr_count; i++) {
        c->frees_at[i] = TL_NONE;
        if (p->instrs[i].kind == CRYSTAL_OP_RECORD)
            recorded_at[p->instrs[i].slot] = i;
    }
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (waits(&p->instrs[i]) && p->instrs[i].slot != CRYSTAL_PROGRAM_NONE) {
            c->last_wait[p->instrs[i].slot] = i;
            if (recorded_at[p->instrs[i].slot] > i)
                c->is_for_ever[p->instrs[i].slot] = true;
        }
    for (uint32_t i = 0; i < p->event_count; i++)
        if (c->last_wait[i] != TL_NONE && !c->is_for_ever[i])
            c->frees_at[c->last_wait[i]] = i;
    free(recorded_at);
    return 0;
}

static uint32_t slot_take(struct compile *c, uint32_t event)
{
    if (!c->is_for_ever[event] && c->rest_count > RESTING_SLOTS) {
        uint32_t slot = c->rest[c->rest_first];

        c->rest_first = (c->rest_first + 1) % (c->p->event_count + 1);
        c->rest_count--;
        return slot;
    }
    return c->list->slot_count++;
}

static void slot_rest(struct compile *c, uint32_t slot)
{
    c->rest[(c->rest_first + c->rest_count++) % (c->p->event_count + 1)] = slot;
}

/* Events that are waited for before they are recorded need their slot from the start.
 */
static void slots_for_ever(struct compile *c)
{
    for (uint32_t i = 0; i < c->p->event_count; i++)
        if (c->is_for_ever[i])
            c->slot_of[i] = c->list->slot_count++;
}

/* --- operations --- */

static bool is_same_call(const struct tl_call *a, const struct tl_call *b)
{
    return a->func == b->func && a->dtype == b->dtype && a->nranks == b->nranks &&
           a->root == b->root && a->count == b->count && a->way == b->way;
}

static uint8_t way_of(const struct crystal_timeline *t, const struct crystal_instr *in)
{
    return t->config.ignores_algos
               ? CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_UNKNOWN, CRYSTAL_OP_PROTO(in->flags))
               : in->flags & CRYSTAL_OP_WAY_MASK;
}

static int call_index(struct compile *c, const struct crystal_instr *in, uint32_t *ret)
{
    struct crystal_timeline *t = c->t;
    uint32_t lrank = crystal_graph_rep_lrank(t->config.graph, c->p->rep);
    struct crystal_graph_comm comm;
    struct tl_call call;

    crystal_graph_comm(t->config.graph,
                       crystal_graph_comm_of(t->config.graph, lrank, in->local), &comm);
    call = (struct tl_call){.func = in->func,
                            .dtype = in->dtype,
                            .way = way_of(t, in),
                            .nranks = comm.nranks,
                            .root = in->peer,
                            .count = in->count};
    for (uint32_t i = 0; i < t->call_count; i++)
        if (is_same_call(&t->calls[i], &call)) {
            *ret = i;
            return 0;
        }
    if (t->call_count == t->call_capacity) {
        uint32_t capacity = t->call_capacity ? 2 * t->call_capacity : 64;
        struct tl_call *more = realloc(t->calls, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        t->calls = more;
        t->call_capacity = capacity;
    }
    *ret = t->call_count;
    t->calls[t->call_count++] = call;
    return 0;
}

static int batch_make(struct compile *c, uint32_t begin, uint32_t end, uint32_t *ret)
{
    const struct crystal_instr *first = &c->p->instrs[begin];
    struct tl_list *list = c->list;
    struct tl_batch batch = {list->message_count, 0, 0};

    if (list->batch_count == c->batch_capacity) {
        uint32_t capacity = c->batch_capacity ? 2 * c->batch_capacity : 64;
        struct tl_batch *more = realloc(list->batches, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        list->batches = more;
        c->batch_capacity = capacity;
    }
    for (uint32_t i = begin; i < end; i++) {
        const struct crystal_instr *in = &c->p->instrs[i];

        if (!is_p2p(in) || in->stream != first->stream || in->local != first->local)
            continue;
        list->messages[list->message_count++] = i;
        batch.count++;
        batch.send_count += in->kind == CRYSTAL_OP_SEND;
    }
    *ret = list->batch_count;
    list->batches[list->batch_count++] = batch;
    return 0;
}

/* Is instruction i the first message of its stream and communicator in the group? */
static bool is_first(const struct compile *c, uint32_t begin, uint32_t i)
{
    const struct crystal_instr *in = &c->p->instrs[i];

    for (uint32_t k = begin; k < i; k++) {
        const struct crystal_instr *other = &c->p->instrs[k];

        if (is_p2p(other) && other->stream == in->stream && other->local == in->local)
            return false;
    }
    return true;
}

/* The operation that instruction i, of a group up to end, launches; kind NOTHING where
 * an earlier one of the group launches it, too. */
static int operation(struct compile *c, uint32_t begin, uint32_t i, uint32_t end,
                     struct tl_code *ret)
{
    const struct crystal_instr *in = &c->p->instrs[i];
    uint32_t arg = 0;
    int code = 0;

    *ret = (struct tl_code){.kind = TL_NOTHING};
    if (in->kind == CRYSTAL_OP_COLL && !crystal_instr_is_empty(in)) {
        ret->kind = TL_COLL;
        code = call_index(c, in, &arg);
    } else if (is_p2p(in) && is_first(c, begin, i)) {
        ret->kind = TL_BATCH;
        code = batch_make(c, i, end, &arg);
    }
    ret->lane = (uint8_t)in->stream;
    ret->local = in->local;
    ret->instr = i;
    ret->arg = arg;
    return code;
}

/* What a group launches: one operation stands in the iteration itself, several behind
 * it, where `later` says. */
static int group(struct compile *c, uint32_t begin, uint32_t end, struct tl_code *ret)
{
    struct tl_code code, first = {.kind = TL_NOTHING};
    uint32_t count = 0, arg = 0;
    int bad = 0;

    for (uint32_t i = begin; !bad && i < end; i++) {
        bad = operation(c, begin, i, end, &code);
        if (bad || code.kind == TL_NOTHING)
            continue;
        if (count == 0) {
            first = code;
        } else {
            if (count == 1) {
                arg = c->list->code_count;
                bad = put(c, first);
            }
            if (!bad)
                bad = put(c, code);
        }
        count++;
    }
    if (!bad && count > 1)
        bad = put(c, (struct tl_code){.kind = TL_END});
    *ret = count > 1 ? (struct tl_code){.kind = TL_LAUNCH, .instr = end, .arg = arg}
                     : first;
    return bad;
}

/* --- the iteration --- */

static uint32_t narrow(uint64_t ns)
{
    return ns < TL_WIDE ? (uint32_t)ns : TL_WIDE;
}

/* What the host does at instruction i, with the group that is open. */
static int instruction(struct compile *c, uint32_t i, uint32_t *group_begin,
                       struct tl_code *ret)
{
    const struct crystal_instr *in = &c->p->instrs[i];
    int bad = 0;

    *ret = (struct tl_code){.kind = TL_NOTHING, .instr = i};
    switch (in->kind) {
    case CRYSTAL_OP_GROUP:
        if (in->starts_group) {
            *group_begin = i + 1;
        } else if (*group_begin != TL_NONE) {
            bad = group(c, *group_begin, i, ret);
            *group_begin = TL_NONE;
        }
        return bad;
    case CRYSTAL_OP_COLL:
    case CRYSTAL_OP_SEND:
    case CRYSTAL_OP_RECV:
        return *group_begin == TL_NONE ? operation(c, i, i, i + 1, ret) : 0;
    case CRYSTAL_OP_KERNEL:
        ret->kind = TL_KERNEL;
        ret->arg = narrow(in->count);
        break;
    case CRYSTAL_OP_RECORD:
        if (c->last_wait[in->slot] != TL_NONE) {
            ret->kind = TL_RECORD;
            if (c->slot_of[in->slot] == TL_NONE)
                c->slot_of[in->slot] = slot_take(c, in->slot);
            ret->arg = c->slot_of[in->slot];
        }
        break;
    case CRYSTAL_OP_SWAIT:
    case CRYSTAL_OP_WAIT:
        if (in->slot != CRYSTAL_PROGRAM_NONE) {
            ret->kind = in->kind == CRYSTAL_OP_WAIT ? TL_WAIT : TL_SWAIT;
            ret->arg = c->slot_of[in->slot];
            if (c->frees_at[i] != TL_NONE)
                slot_rest(c, ret->arg);
        }
        break;
    case CRYSTAL_OP_SYNC:
        ret->kind = TL_SYNC;
        break;
    default:
        break;
    }
    ret->lane = (uint8_t)in->stream;
    ret->local = in->local;
    return 0;
}

/* --- one hardware queue --- */

/* Slots for the begins of work, used in turn. */
#define QUEUE_SLOTS 16U

/* The lane of device work, NONE: it is none. A group is where its first operation is.
 */
static uint32_t work_lane(const struct compile *c, const struct tl_code *code)
{
    switch (code->kind) {
    case TL_KERNEL:
    case TL_COLL:
    case TL_BATCH:
        return code->lane;
    case TL_LAUNCH:
        return c->list->code[code->arg].lane;
    default:
        return TL_NONE;
    }
}

/* All streams share one hardware queue: no work begins before the work in front of it
 * has begun. Where two neighbours are on different streams, the one in front is
 * preceded by the record of an event, which has the time of its begin, and the other
 * one waits for that. Frees main; NULL: out of memory. */
static struct tl_code *share_queue(struct compile *c, struct tl_code *main,
                                   uint32_t *count)
{
    struct tl_code *shared = malloc((3 * (size_t)*count + 2) * sizeof *shared);
    uint32_t to = 0, front = TL_NONE, front_lane = TL_NONE, turn = 0;
    uint32_t first_slot = c->list->slot_count;

    c->list->slot_count += QUEUE_SLOTS;
    for (uint32_t i = 0; shared && i < *count; i++) {
        uint32_t lane = work_lane(c, &main[i]);

        if (lane != TL_NONE && front != TL_NONE && lane != front_lane) {
            uint32_t slot = first_slot + turn++ % QUEUE_SLOTS;

            memmove(shared + front + 1, shared + front, (to - front) * sizeof *shared);
            to++;
            shared[front] = (struct tl_code){.kind = TL_RECORD,
                                             .lane = (uint8_t)front_lane,
                                             .instr = shared[front + 1].instr,
                                             .arg = slot};
            shared[to++] = (struct tl_code){.kind = TL_SWAIT,
                                            .lane = (uint8_t)lane,
                                            .instr = main[i].instr,
                                            .arg = slot};
        }
        if (lane != TL_NONE) {
            front = to;
            front_lane = lane;
        }
        shared[to++] = main[i];
    }
    free(main);
    *count = to;
    return shared;
}

uint64_t tl_longest_gap(const struct tl_list *list, uint32_t instr)
{
    const struct crystal_timeline_samples *s = &list->samples;
    uint64_t most = s->count ? 0 : list->gap_ns[instr];

    for (uint32_t i = 0; i < s->count; i++) {
        uint64_t ns = s->gap_ns[(size_t)i * list->program->instr_count + instr];

        if (ns > most)
            most = ns;
    }
    return most;
}

/* What is drawn is found by instr. */
static uint32_t gap_of(const struct tl_list *list, uint32_t instr)
{
    uint64_t longest_ns = tl_longest_gap(list, instr);

    return list->samples.count && longest_ns ? TL_WIDE : narrow(longest_ns);
}

/* The groups' operations go behind the iteration, so they are made first into the
 * list's code and moved. */
static int iteration(struct compile *c)
{
    struct tl_list *list = c->list;
    struct tl_code *main = malloc((2 * (size_t)c->p->instr_count + 2) * sizeof *main);
    uint32_t count = 0, group_begin = TL_NONE, behind;
    int bad = main ? 0 : -ENOMEM;

    for (uint32_t i = 0; !bad && i < c->p->instr_count; i++) {
        struct tl_code code;

        bad = instruction(c, i, &group_begin, &code);
        code.gap_ns = gap_of(list, i);
        if (code.gap_ns == TL_WIDE && code.instr != i) { /* the gap is found by instr */
            main[count++] =
                (struct tl_code){.kind = TL_NOTHING, .instr = i, .gap_ns = TL_WIDE};
            code.gap_ns = 0;
        }
        if (!bad && (code.kind != TL_NOTHING || code.gap_ns))
            main[count++] = code;
    }
    if (!bad && c->t->config.one_queue) {
        main = share_queue(c, main, &count);
        bad = main ? 0 : -ENOMEM;
    }
    if (!bad) {
        if (!count)
            main[count++] = (struct tl_code){.kind = TL_NOTHING};
        main[count++] = (struct tl_code){.kind = TL_END, .instr = c->p->instr_count};
        behind = list->code_count;
        for (uint32_t i = 0; !bad && i < count; i++) /* room */
            bad = put(c, main[i]);
        if (!bad) {
            memmove(list->code + count, list->code, behind * sizeof *list->code);
            for (uint32_t i = 0; i < count; i++)
                if (main[i].kind == TL_LAUNCH)
                    main[i].arg += count;
            memcpy(list->code, main, count * sizeof *main);
            list->begin_count = count;
        }
    }
    free(main);
    return bad;
}

int tl_list_init(struct crystal_timeline *t, uint32_t rep, struct crystal_error *err)
{
    struct tl_list *list = &t->lists[rep];
    struct compile c = {.t = t, .list = list, .p = t->config.programs[rep]};
    int bad;

    list->program = c.p;
    list->gap_ns = t->config.gap_ns[rep];
    if (t->config.samples)
        list->samples = t->config.samples[rep];
    list->tail_ns = t->config.tail_ns ? t->config.tail_ns[rep] : 0;
    list->lane_count = c.p->stream_count ? c.p->stream_count : 1;
    if (list->lane_count > 256)
        return crystal_error_set(err, EINVAL,
                                 "timeline: rank %u uses %u streams in an iteration; "
                                 "at most 256 are possible",
                                 crystal_graph_rep_lrank(t->config.graph, rep),
                                 list->lane_count);
    list->messages = malloc((c.p->instr_count + 1) * sizeof *list->messages);
    bad = list->messages ? slots_init(&c) : -ENOMEM;
    if (!bad) {
        slots_for_ever(&c);
        bad = iteration(&c);
    }
    free(c.last_wait);
    free(c.is_for_ever);
    free(c.slot_of);
    free(c.rest);
    free(c.frees_at);
    if (!bad && list->code_count >= TL_CODE_MAX)
        return crystal_error_set(err, EINVAL,
                                 "timeline: rank %u has more than %u records in an "
                                 "iteration; give it more iterations",
                                 crystal_graph_rep_lrank(t->config.graph, rep),
                                 TL_CODE_MAX);
    return bad ? crystal_error_set(err, -bad, "timeline: out of memory") : 0;
}

void tl_list_fini(struct tl_list *list)
{
    free(list->code);
    free(list->batches);
    free(list->messages);
}
