/* A rank: its host goes through the code and issues work to lanes, its lanes do it. See
 * timeline_internal.h.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void tl_rank_queue(struct crystal_timeline *t, struct tl_rank *r)
{
    if (r->is_queued)
        return;
    r->is_queued = true;
    r->next = t->stack;
    t->stack = r;
}

static inline void lane_wake(struct tl_rank *r, struct tl_lane *lane)
{
    if (lane->is_dirty)
        return;
    lane->is_dirty = true;
    lane->next_dirty = r->dirty;
    r->dirty = lane;
}

/* An event was recorded or an operation of a communicator has ended: lanes that wait
 * for such a thing look again. */
static void lanes_wake_held(struct tl_rank *r)
{
    for (uint32_t i = 0; r->held_count && i < r->list->lane_count; i++)
        if (r->lanes[i].is_held)
            lane_wake(r, &r->lanes[i]);
}

/* --- beyond the horizon --- */

static void beyond_push(struct crystal_timeline *t, const struct tl_rank *r,
                        uint64_t time_ns)
{
    uint32_t i = t->beyond_count;

    if (i == t->beyond_capacity) {
        uint32_t capacity = 2 * t->beyond_capacity;
        struct tl_beyond *more = realloc(t->beyond, capacity * sizeof *more);

        if (!more) {
            t->code = -ENOMEM;
            return;
        }
        t->beyond = more;
        t->beyond_capacity = capacity;
    }
    t->beyond_count++;
    while (i && t->beyond[(i - 1) / 2].time_ns > time_ns) {
        t->beyond[i] = t->beyond[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    t->beyond[i] = (struct tl_beyond){time_ns, r->lrank};
}

void tl_rank_within(struct crystal_timeline *t, struct tl_rank *r)
{
    if (r->state == TL_BEYOND && r->host_ns <= t->until_ns)
        r->state = TL_RUNS;
    for (uint32_t i = 0; i < r->list->lane_count; i++) {
        struct tl_lane *lane = &r->lanes[i];

        if (!lane->is_beyond || lane->clock_ns > t->until_ns)
            continue;
        lane->is_beyond = false;
        lane_wake(r, lane);
    }
    tl_rank_queue(t, r);
}

/* --- lanes --- */

static void reader_add(struct crystal_timeline *t, struct tl_slot *slot, uint32_t lane,
                       uint32_t at)
{
    uint32_t reader = t->free_reader;

    if (reader) {
        t->free_reader = t->readers[reader - 1].next;
    } else {
        if (t->reader_count == t->reader_capacity) {
            uint32_t capacity = t->reader_capacity ? 2 * t->reader_capacity : 256;
            struct tl_reader *more = realloc(t->readers, capacity * sizeof *more);

            if (!more) {
                t->code = -ENOMEM;
                return;
            }
            t->readers = more;
            t->reader_capacity = capacity;
        }
        reader = ++t->reader_count;
    }
    t->readers[reader - 1] = (struct tl_reader){lane, at, slot->readers};
    slot->readers = reader;
}

/* Takes *place out of its list. */
static void reader_drop(struct crystal_timeline *t, uint32_t *place)
{
    uint32_t reader = *place;

    *place = t->readers[reader - 1].next;
    t->readers[reader - 1].next = t->free_reader;
    t->free_reader = reader;
}

static void reader_end(struct crystal_timeline *t, struct tl_slot *slot, uint32_t lane,
                       uint32_t at)
{
    uint32_t *place = &slot->readers;

    while (*place &&
           (t->readers[*place - 1].lane != lane || t->readers[*place - 1].at != at))
        place = &t->readers[*place - 1].next;
    if (*place)
        reader_drop(t, place);
}

/* A slot is recorded again while some still wait for the time before: they get it. */
static void readers_settle(struct crystal_timeline *t, struct tl_rank *r, uint32_t slot)
{
    struct tl_slot *s = &r->slots[slot];

    for (uint32_t *place = &s->readers; *place;) {
        const struct tl_reader *reader = &t->readers[*place - 1];
        struct tl_lane *lane = &r->lanes[reader->lane];
        struct tl_entry *e = &lane->ring[reader->at & lane->mask];

        if (e->need > s->done) {
            place = &t->readers[*place - 1].next;
            continue;
        }
        if (s->value_ns > e->time_ns)
            e->time_ns = s->value_ns;
        e->need = 0;
        reader_drop(t, place);
    }
}

void tl_lane_end(struct crystal_timeline *t, struct tl_rank *r, struct tl_lane *lane,
                 uint64_t end_ns)
{
    struct tl_local *local = &r->locals[lane->local];

    if (end_ns > 4 * CRYSTAL_TIMELINE_LONGEST_NS && !t->config.is_untimed)
        t->code = -ERANGE;
    lane->outstanding = 0;
    lane->clock_ns = end_ns;
    local->end_ns = end_ns;
    local->done++;
    lane_wake(r, lane);
    lanes_wake_held(r);
    tl_rank_queue(t, r);
}

static inline uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void coll_begin(struct crystal_timeline *t, struct tl_rank *r,
                       struct tl_lane *lane, const struct tl_code *c, uint64_t time_ns)
{
    struct tl_local *local = &r->locals[c->local];
    struct tl_comm *comm = local->comm;
    struct tl_coll *coll = comm->colls;

    if (!coll || coll->seq != local->seq)
        coll = tl_coll_get(t, comm, local->seq);
    local->seq++;
    if (!coll) { /* out of memory; a seq that is over cannot be launched again */
        t->code = t->code ? t->code : -EINVAL;
        return;
    }
    lane->outstanding = 1;
    lane->local = c->local;
    coll->is_described = true;
    coll->call = c->arg;
    coll->seats[local->crank].code = (uint32_t)(c - r->list->code);
    coll->seats[local->crank].lane = (uint32_t)(lane - r->lanes);
    tl_coll_arrive(t, comm, coll, local->crank, time_ns);
}

/* The lane does c, which the host issued at time_ns; nothing of c's rank is in the way.
 */
static inline void perform(struct crystal_timeline *t, struct tl_rank *r,
                           struct tl_lane *lane, const struct tl_code *c,
                           uint64_t time_ns, uint32_t iteration)
{
    uint64_t at = later(lane->clock_ns, time_ns), ns;
    struct tl_slot *slot;

    lane->iteration = iteration;
    switch (c->kind) {
    case TL_KERNEL:
        ns = c->arg != TL_WIDE ? c->arg : r->list->program->instrs[c->instr].count;
        lane->clock_ns = at + tl_computation(t, r, ns, lane->iteration, c->instr, 1);
        t->event_count++;
        break;
    case TL_RECORD:
        slot = &r->slots[c->arg];
        if (slot->readers)
            readers_settle(t, r, c->arg);
        slot->value_ns = lane->clock_ns;
        slot->done++;
        lanes_wake_held(r);
        break;
    case TL_SWAIT:
        lane->clock_ns = at;
        break;
    case TL_COLL:
        coll_begin(t, r, lane, c, later(at, r->locals[c->local].end_ns));
        break;
    case TL_BATCH:
        lane->local = c->local;
        tl_batch_begin(t, r, lane, c, later(at, r->locals[c->local].end_ns));
        break;
    default:
        break;
    }
}

/* Is what the lane's first entry needs of the rank's other lanes there? */
static inline bool is_ready(struct crystal_timeline *t, struct tl_rank *r,
                            const struct tl_lane *lane, const struct tl_code *c,
                            struct tl_entry *e)
{
    struct tl_slot *slot;

    switch (c->kind) {
    case TL_SWAIT:
        if (!e->need)
            return true;
        slot = &r->slots[c->arg];
        if (slot->done < e->need)
            return false;
        e->time_ns = later(e->time_ns, slot->value_ns);
        reader_end(t, slot, (uint32_t)(lane - r->lanes), lane->head);
        return true;
    case TL_COLL:
    case TL_BATCH:
        return r->locals[c->local].done == e->need;
    default:
        return true;
    }
}

static void lane_run(struct crystal_timeline *t, struct tl_rank *r,
                     struct tl_lane *lane)
{
    r->held_count -= lane->is_held;
    lane->is_held = false;
    while (lane->head != lane->tail && !lane->outstanding && !lane->is_beyond &&
           !t->code) {
        struct tl_entry *e = &lane->ring[lane->head & lane->mask];
        const struct tl_code *c = &r->list->code[e->code % TL_CODE_MAX];
        uint64_t time_ns;
        uint32_t iteration;

        if (!is_ready(t, r, lane, c, e)) {
            lane->is_held = true;
            r->held_count++;
            break;
        }
        if (c->kind == TL_KERNEL && lane->clock_ns > t->until_ns) {
            lane->is_beyond = true;
            beyond_push(t, r, lane->clock_ns);
            break;
        }
        time_ns = e->time_ns;
        iteration = (uint32_t)r->iteration;
        iteration -= (iteration - e->code / TL_CODE_MAX) % 256;
        lane->head++;
        perform(t, r, lane, c, time_ns, iteration);
    }
}

/* --- the host --- */

/* Gives c to its lane; false where the lane's queue is full. */
static inline bool issue(struct crystal_timeline *t, struct tl_rank *r,
                         const struct tl_code *c)
{
    struct tl_lane *lane = &r->lanes[c->lane];
    bool is_idle = lane->head == lane->tail && !lane->outstanding;
    uint64_t time_ns = r->host_ns;
    struct tl_slot *slot;
    uint32_t need = 0;

    if (!is_idle && lane->tail - lane->head > lane->mask) {
        r->state = TL_WAITS_ROOM;
        r->wait_lane = c->lane;
        return false;
    }
    switch (c->kind) {
    case TL_KERNEL:
        if (is_idle && lane->clock_ns > t->until_ns) {
            is_idle = false;
            lane_wake(r, lane); /* to see that it is beyond the horizon */
        }
        break;
    case TL_RECORD:
        r->slots[c->arg].issued++;
        break;
    case TL_SWAIT:
        slot = &r->slots[c->arg];
        if (!slot->issued)
            return true; /* never recorded: nothing to wait for */
        if (slot->done == slot->issued) {
            time_ns = later(time_ns, slot->value_ns);
        } else {
            need = slot->issued;
            reader_add(t, slot, c->lane, lane->tail);
            is_idle = false;
        }
        break;
    case TL_COLL:
    case TL_BATCH:
        need = r->locals[c->local].issued++;
        is_idle = is_idle && r->locals[c->local].done == need;
        break;
    default:
        break;
    }
    if (is_idle) {
        perform(t, r, lane, c, time_ns, (uint32_t)r->iteration);
        return true;
    }
    if (lane->head == lane->tail && !lane->outstanding && !lane->is_held &&
        c->kind != TL_KERNEL) {
        lane->is_held = true; /* it would stop at once */
        r->held_count++;
    }
    lane->ring[lane->tail++ & lane->mask] = (struct tl_entry){
        time_ns,
        (uint32_t)(c - r->list->code) | (uint32_t)r->iteration % 256 * TL_CODE_MAX,
        need};
    return true;
}

void tl_rank_room(struct crystal_timeline *t, struct tl_rank *r)
{
    struct tl_lane *lane = &r->lanes[r->wait_lane];
    uint32_t capacity = 2 * (lane->mask + 1);
    struct tl_entry *ring;

    ring = capacity < UINT32_MAX / 4 ? malloc(capacity * sizeof *ring) : NULL;
    if (!ring) {
        t->code = -ENOMEM;
        return;
    }
    for (uint32_t k = lane->head; k != lane->tail; k++)
        ring[k & (capacity - 1)] = lane->ring[k & lane->mask];
    if (lane->owns_ring)
        free(lane->ring);
    lane->ring = ring;
    lane->owns_ring = true;
    lane->mask = capacity - 1;
    r->state = TL_RUNS;
    tl_rank_queue(t, r);
}

/* The end of an iteration; true where it was the last one. */
static bool turn(struct crystal_timeline *t, struct tl_rank *r)
{
    r->host_ns += tl_computation(t, r, r->list->tail_ns, (uint32_t)r->iteration,
                                 r->list->program->instr_count, 0);
    if (t->config.on_iteration)
        t->config.on_iteration(t->config.context, r->lrank, r->iteration, r->begin_ns,
                               r->host_ns);
    r->iteration++;
    r->begin_ns = r->host_ns;
    r->code = 0;
    if (t->config.iterations == 0 || r->iteration < t->config.iterations)
        return false;
    r->state = TL_DONE;
    t->done_count++;
    return true;
}

/* Has what the host waits for come? Then its clock shows so. */
static bool host_is_free(struct tl_rank *r)
{
    const struct tl_lane *lane = &r->lanes[r->wait_lane];
    const struct tl_slot *slot = &r->slots[r->wait_lane];

    switch (r->state) {
    case TL_RUNS:
        return true;
    case TL_WAITS_EVENT:
        if (slot->done != slot->issued)
            return false;
        r->host_ns = later(r->host_ns, slot->value_ns);
        break;
    case TL_WAITS_LANE:
        if (lane->head != lane->tail || lane->outstanding)
            return false;
        r->host_ns = later(r->host_ns, lane->clock_ns);
        break;
    case TL_WAITS_ROOM:
        if (lane->tail - lane->head > lane->mask / 2)
            return false;
        r->state = TL_RUNS;
        return true; /* the same record again */
    default:
        return false;
    }
    r->state = TL_RUNS;
    r->code++;
    r->gap_done = false;
    return true;
}

/* The operations of a group, from where it stopped last time. */
static bool launch(struct crystal_timeline *t, struct tl_rank *r, uint32_t first)
{
    const struct tl_code *c = &r->list->code[first + r->launched];

    for (; c->kind != TL_END; c++, r->launched++)
        if (!issue(t, r, c))
            return false;
    r->launched = 0;
    return true;
}

/* One record; true where the host cannot go on. */
static inline bool step(struct crystal_timeline *t, struct tl_rank *r,
                        const struct tl_code *c)
{
    switch (c->kind) {
    case TL_NOTHING:
        return false;
    case TL_LAUNCH:
        return !launch(t, r, c->arg);
    case TL_WAIT:
        r->wait_lane = c->arg;
        r->state = TL_WAITS_EVENT;
        break;
    case TL_SYNC:
        r->wait_lane = c->lane;
        r->state = TL_WAITS_LANE;
        break;
    default:
        return !issue(t, r, c);
    }
    if (!host_is_free(r))
        return true;
    r->code--; /* the caller moves on */
    return false;
}

static void host_run(struct crystal_timeline *t, struct tl_rank *r)
{
    while (!t->code) {
        const struct tl_code *c = &r->list->code[r->code];

        if (c->kind == TL_END) {
            if (turn(t, r))
                return;
            c = r->list->code;
        }
        if (!r->gap_done && c->gap_ns) {
            uint64_t ns =
                c->gap_ns != TL_WIDE ? c->gap_ns : tl_gap(r, r->iteration, c->instr);

            r->host_ns += tl_computation(t, r, ns, (uint32_t)r->iteration, c->instr, 0);
        }
        r->gap_done = true;
        if (r->host_ns > t->until_ns) {
            r->state = TL_BEYOND;
            beyond_push(t, r, r->host_ns);
            return;
        }
        if (step(t, r, c))
            return;
        r->code++;
        r->gap_done = false;
    }
}

void tl_rank_run(struct crystal_timeline *t, struct tl_rank *r)
{
    bool goes_on = true;

    while (goes_on && !t->code) {
        while (r->dirty && !t->code) {
            struct tl_lane *lane = r->dirty;

            r->dirty = lane->next_dirty;
            lane->is_dirty = false;
            lane_run(t, r, lane);
        }
        goes_on = host_is_free(r);
        if (goes_on)
            host_run(t, r);
        goes_on = goes_on && r->dirty;
    }
    r->is_queued = false;
    if (r->state == TL_WAITS_ROOM && !r->is_full && !r->lanes[r->wait_lane].is_beyond) {
        r->is_full = true;
        r->next_full = t->full;
        t->full = r;
    }
}
