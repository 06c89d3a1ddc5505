/* Messages under way: their pairs, who has arrived, and the ends when both have. */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RING_AT_LEAST 2

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t bucket_of(const struct crystal_timeline *t, uint32_t comm,
                          uint32_t from, uint32_t to)
{
    uint64_t key = ((uint64_t)comm << 40) ^ ((uint64_t)from << 20) ^ to;

    key ^= key >> 32; /* the communicator's number is in the upper half */
    key *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(key >> 32) & (t->bucket_count - 1);
}

struct tl_pair *tl_pair_find(const struct crystal_timeline *t, uint32_t comm,
                             uint32_t from, uint32_t to)
{
    struct tl_pair *pair = t->buckets[bucket_of(t, comm, from, to)];

    while (pair && (pair->comm != comm || pair->from != from || pair->to != to))
        pair = pair->next;
    return pair;
}

struct tl_pair *tl_pair_get(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                            uint32_t to)
{
    struct tl_pair **bucket = &t->buckets[bucket_of(t, comm, from, to)];
    struct tl_pair *pair = tl_pair_find(t, comm, from, to);
    uint32_t lranks[2];

    if (pair)
        return pair;
    pair = calloc(1, sizeof *pair);
    if (!pair) {
        t->code = -ENOMEM;
        return NULL;
    }
    pair->comm = comm;
    pair->from = from;
    pair->to = to;
    pair->from_lrank = lranks[0] = t->comms[comm].members[from];
    pair->to_lrank = lranks[1] = t->comms[comm].members[to];
    pair->wire = tl_wire(t, lranks, 2);
    if (t->ranks_per_node &&
        lranks[0] / t->ranks_per_node == lranks[1] / t->ranks_per_node)
        pair->way = TL_ON_NODE;
    pair->next = *bucket;
    *bucket = pair;
    return pair;
}

/* Makes room for seq. */
static int ring_grow(struct tl_pair *pair, uint64_t seq)
{
    uint32_t capacity = pair->capacity ? pair->capacity : RING_AT_LEAST;
    struct tl_message *ring;

    while (seq - pair->first >= capacity) {
        if (capacity > UINT32_MAX / 4)
            return -ENOMEM;
        capacity *= 2;
    }
    if (capacity == pair->capacity)
        return 0;
    ring = calloc(capacity, sizeof *ring);
    if (!ring)
        return -ENOMEM;
    for (uint64_t s = pair->first; s < pair->first + pair->capacity; s++)
        ring[s & (capacity - 1)] = pair->ring[s & (pair->capacity - 1)];
    free(pair->ring);
    pair->ring = ring;
    pair->capacity = capacity;
    return 0;
}

struct tl_message *tl_message_get(struct crystal_timeline *t, struct tl_pair *pair,
                                  uint64_t seq)
{
    struct tl_message *m;

    if (seq < pair->first)
        return NULL;
    if (seq - pair->first >= pair->capacity && ring_grow(pair, seq)) {
        t->code = -ENOMEM;
        return NULL;
    }
    m = &pair->ring[seq & (pair->capacity - 1)];
    if (m->is_over)
        return NULL;
    if (m->is_begun)
        return m;
    m->is_begun = true;
    m->send_instr = m->recv_instr = TL_NONE;
    /* from before the iterations at one side: that side has arrived */
    if (pair->send_inside && seq < pair->send_before) {
        m->has_send = true;
        m->send_ns = m->leave_ns = t->start_ns;
    }
    if (pair->recv_inside && seq < pair->recv_before) {
        m->has_recv = true;
        m->recv_ns = t->start_ns;
    }
    return m;
}

static void side_end(struct crystal_timeline *t, uint32_t lrank, uint32_t lane_index,
                     uint32_t instr, uint64_t arrive_ns, uint64_t end_ns)
{
    struct tl_rank *r = &t->ranks[lrank];
    struct tl_lane *lane = &r->lanes[lane_index];

    if (!t->config.is_untimed)
        end_ns += tl_cost_ns(r->list, instr);
    t->event_count++;
    if (t->config.on_end)
        t->config.on_end(t->config.context, lrank, lane->iteration, instr, arrive_ns,
                         end_ns);
    if (end_ns > lane->batch_end_ns)
        lane->batch_end_ns = end_ns;
    if (--lane->outstanding == 0)
        tl_lane_end(t, r, lane, lane->batch_end_ns);
}

void tl_message_leave(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq)
{
    struct tl_message *place = &pair->ring[seq & (pair->capacity - 1)], m = *place;
    const struct crystal_transfer_wire *wire = &t->wires[pair->wire];
    uint64_t own_ns = crystal_transfer_occupy_ns(wire, m.bytes), leave_ns, end_ns;
    uint64_t occupy_ns = own_ns + m.held_ns;

    memset(place, 0, sizeof *place);
    place->is_over = true;
    while (pair->ring[pair->first & (pair->capacity - 1)].is_over)
        pair->ring[pair->first++ & (pair->capacity - 1)].is_over = false;
    leave_ns = later(m.leave_ns, m.recv_ns);
    end_ns = leave_ns;
    if (pair->from != pair->to) {
        if (crystal_transfer_recv_ns(wire, m.bytes) > CRYSTAL_TIMELINE_LONGEST_NS)
            t->code = -ERANGE;
        leave_ns = later(leave_ns, pair->free_ns);
        pair->free_ns = leave_ns + occupy_ns;
        end_ns = leave_ns + occupy_ns + wire->latency_ns + wire->overhead_ns +
                 wire->op_overhead_ns;
    }
    if (m.inlet) {
        uint64_t ready_ns = leave_ns + wire->latency_ns + wire->overhead_ns;
        uint64_t in_ns =
            tl_flow_slowed(&t->ranks[pair->to_lrank].nics[pair->way], own_ns);

        end_ns =
            crystal_ingress_take(&m.inlet->ingress, ready_ns, later(occupy_ns, in_ns)) +
            wire->op_overhead_ns;
        tl_inlet_put(t, m.inlet);
    }
    if (m.send_instr != TL_NONE)
        side_end(t, pair->from_lrank, m.send_lane, m.send_instr, m.send_ns,
                 leave_ns + crystal_transfer_send_ns(wire, m.bytes) + m.held_ns);
    if (m.recv_instr != TL_NONE)
        side_end(t, pair->to_lrank, m.recv_lane, m.recv_instr, m.recv_ns, end_ns);
}

/* --- arrivals --- */

static bool is_outside(const struct crystal_timeline *t, uint32_t lrank)
{
    return t->ranks[lrank].state == TL_OUTSIDE;
}

static void tell(struct crystal_timeline *t, const struct tl_pair *pair, uint64_t seq,
                 bool sends, uint64_t time_ns)
{
    bool from_inside = !is_outside(t, pair->from_lrank);
    bool to_inside = !is_outside(t, pair->to_lrank);

    if (from_inside != to_inside && from_inside == sends)
        t->config.on_p2p(t->config.context, pair->comm, pair->from, pair->to, seq,
                         sends, time_ns);
}

/* One side more is there. */
static void side_begin(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq,
                       const struct tl_message *m)
{
    if (!m->has_send || !m->has_recv)
        return;
    if (m->inlet)
        tl_turn_wait(t, (struct tl_turn){.time_ns = later(m->send_ns, m->recv_ns),
                                         .order = m->order,
                                         .seq = seq,
                                         .pair = pair,
                                         .kind = TL_TURN_RECEIVER});
    else
        tl_message_leave(t, pair, seq);
}

/* How long after the inside side of a message its outside side comes. */
static uint64_t after_ns(const struct crystal_timeline *t, uint32_t lrank,
                         uint32_t instr)
{
    const struct crystal_program *p = t->ranks[lrank].list->program;

    return instr == TL_NONE ? 0 : t->config.outside_after_ns[p->rep][instr];
}

void tl_message_sent(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq,
                     uint64_t leave_ns, uint64_t held_ns)
{
    struct tl_message *m = &pair->ring[seq & (pair->capacity - 1)];

    m->held_ns = held_ns;
    m->has_send = true;
    m->leave_ns = leave_ns;
    if (t->config.on_p2p)
        tell(t, pair, seq, true, leave_ns);
    if (t->config.outside_after_ns && is_outside(t, pair->to_lrank)) {
        m->has_recv = true;
        m->recv_ns = leave_ns + after_ns(t, pair->from_lrank, m->send_instr);
    }
    side_begin(t, pair, seq, m);
}

void tl_message_posted(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq,
                       uint64_t time_ns)
{
    struct tl_message *m = &pair->ring[seq & (pair->capacity - 1)];

    m->has_recv = true;
    m->recv_ns = time_ns;
    if (t->config.on_p2p)
        tell(t, pair, seq, false, time_ns);
    if (t->config.outside_after_ns && is_outside(t, pair->from_lrank)) {
        m->has_send = true;
        m->send_ns = m->leave_ns = time_ns + after_ns(t, pair->to_lrank, m->recv_instr);
    }
    side_begin(t, pair, seq, m);
}

/* NCCL's rounds: in each a rank sends to another one, equally far for all. */
static uint64_t order_of(const struct crystal_timeline *t, const struct tl_pair *pair,
                         uint32_t instr)
{
    uint32_t n = t->comms[pair->comm].nranks;

    return (uint64_t)((pair->to + n - pair->from) % n) << 32 | instr;
}

static int compare(const void *a, const void *b)
{
    const struct tl_send *x = a, *y = b;

    return x->order < y->order ? -1 : x->order > y->order;
}

/* Mostly they are few, and in order. */
static void sends_sort(struct tl_send *sends, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (sends[i].order < sends[i - 1].order) {
            qsort(sends, count, sizeof *sends, compare);
            return;
        }
}

/* The batch's sends in the order of their turns. NULL: out of memory. */
static const struct tl_send *sends_sorted(struct crystal_timeline *t,
                                          const struct tl_rank *r,
                                          const struct tl_batch *batch)
{
    const struct crystal_instr *instrs = r->list->program->instrs;
    uint32_t count = 0;

    if (batch->send_count > t->send_capacity) {
        struct tl_send *more = realloc(t->sends, batch->send_count * sizeof *more);

        if (!more) {
            t->code = -ENOMEM;
            return NULL;
        }
        t->sends = more;
        t->send_capacity = batch->send_count;
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        uint32_t instr = r->list->messages[batch->first + i];

        if (instrs[instr].kind == CRYSTAL_OP_SEND)
            t->sends[count++] = (struct tl_send){
                order_of(t, r->pair[instrs[instr].slot], instr), instr};
    }
    sends_sort(t->sends, count);
    return t->sends;
}

static void send_begin(struct crystal_timeline *t, struct tl_rank *r,
                       struct tl_lane *lane, const struct tl_send *send,
                       uint64_t time_ns, uint64_t *free_ns)
{
    const struct crystal_instr *in = &r->list->program->instrs[send->instr];
    const bool is_shared = t->config.nics != CRYSTAL_NICS_OF_GROUPS;
    struct tl_pair *pair = r->pair[in->slot];
    uint64_t seq = r->pair_seq[in->slot]++, leave_ns = time_ns;
    struct tl_message *m = tl_message_get(t, pair, seq);

    if (!m) {
        t->code = t->code ? t->code : -EINVAL;
        return;
    }
    m->bytes = in->count * crystal_dtype_bytes(in->dtype);
    m->order = send->order;
    m->send_ns = time_ns;
    m->send_instr = send->instr;
    m->send_lane = (uint32_t)(lane - r->lanes);
    if (pair->from == pair->to || m->bytes <= CRYSTAL_TRANSFER_EAGER_BYTES) {
        m->send_instr = TL_NONE;
        side_end(t, r->lrank, m->send_lane, send->instr, time_ns, time_ns);
    }
    if (pair->from != pair->to && is_shared) {
        tl_turn_wait(t, (struct tl_turn){.time_ns = time_ns,
                                         .order = m->order,
                                         .seq = seq,
                                         .pair = pair,
                                         .kind = TL_TURN_SENDER});
        return;
    }
    if (pair->from != pair->to) {
        leave_ns = free_ns[pair->way];
        free_ns[pair->way] +=
            crystal_transfer_occupy_ns(&t->wires[pair->wire], m->bytes);
    }
    tl_message_sent(t, pair, seq, leave_ns, 0);
}

static void recv_begin(struct crystal_timeline *t, struct tl_rank *r,
                       struct tl_lane *lane, uint32_t instr, uint64_t time_ns,
                       struct tl_inlet **inlets)
{
    const struct crystal_instr *in = &r->list->program->instrs[instr];
    struct tl_pair *pair = r->pair[in->slot];
    uint64_t seq = r->pair_seq[in->slot]++;
    struct tl_message *m = tl_message_get(t, pair, seq);

    if (!m) {
        t->code = t->code ? t->code : -EINVAL;
        return;
    }
    if (!m->bytes) /* the sender may be outside */
        m->bytes = in->count * crystal_dtype_bytes(in->dtype);
    m->recv_instr = instr;
    m->recv_lane = (uint32_t)(lane - r->lanes);
    if (!m->order)
        m->order = order_of(t, pair, 0);
    if (inlets && pair->from != pair->to && t->wires[pair->wire].bytes_per_s) {
        struct tl_inlet **inlet = &inlets[pair->way];

        if (!*inlet)
            *inlet = tl_inlet_new(t, 0);
        m->inlet = *inlet;
        if (m->inlet && t->config.nics == CRYSTAL_NICS_OF_GROUPS)
            m->inlet->refs++;
    }
    tl_message_posted(t, pair, seq, time_ns);
}

void tl_batch_begin(struct crystal_timeline *t, struct tl_rank *r, struct tl_lane *lane,
                    const struct tl_code *code, uint64_t time_ns)
{
    const struct tl_batch *batch = &r->list->batches[code->arg];
    const struct tl_send *sends = sends_sorted(t, r, batch);
    uint64_t free_ns[TL_WAYS] = {time_ns, time_ns};
    struct tl_inlet *own[TL_WAYS] = {NULL, NULL}, **inlets = NULL;

    if (t->config.nics != CRYSTAL_NICS_OF_GROUPS)
        inlets = r->inlets;
    else if (batch->count - batch->send_count > 1)
        inlets = own;
    lane->outstanding = batch->count + 1; /* and one while they are begun */
    lane->batch_end_ns = time_ns;
    for (uint32_t i = 0; i < batch->send_count && !t->code; i++)
        send_begin(t, r, lane, &sends[i], time_ns, free_ns);
    for (uint32_t i = 0; i < batch->count && !t->code; i++) {
        uint32_t instr = r->list->messages[batch->first + i];

        if (r->list->program->instrs[instr].kind == CRYSTAL_OP_RECV)
            recv_begin(t, r, lane, instr, time_ns, inlets);
    }
    if (--lane->outstanding == 0)
        tl_lane_end(t, r, lane, lane->batch_end_ns);
}
