/* Messages under way: their pairs, who has arrived, and the ends when both have. */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RING_AT_LEAST 2

static uint32_t bucket_of(const struct crystal_timeline *t, uint32_t comm,
                          uint32_t from, uint32_t to)
{
    uint64_t key = ((uint64_t)comm << 40) ^ ((uint64_t)from << 20) ^ to;

    key ^= key >> 32; /* the communicator's number is in the upper half */
    key *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(key >> 32) & (t->bucket_count - 1);
}

struct tl_pair *tl_pair_get(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                            uint32_t to)
{
    struct tl_pair **bucket = &t->buckets[bucket_of(t, comm, from, to)];
    uint32_t lranks[2];
    struct tl_pair *pair;

    for (pair = *bucket; pair; pair = pair->next)
        if (pair->comm == comm && pair->from == from && pair->to == to)
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
    pair->is_on_node = t->ranks_per_node &&
                       lranks[0] / t->ranks_per_node == lranks[1] / t->ranks_per_node;
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
    if (m->has_send || m->has_recv)
        return m;
    m->send_instr = m->recv_instr = TL_NONE;
    /* from before the iterations at one side: that side has arrived */
    if (pair->send_inside && seq < pair->send_before) {
        m->has_send = true;
        m->send_ns = t->start_ns;
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

    t->event_count++;
    if (t->config.on_end)
        t->config.on_end(t->config.context, lrank, lane->iteration, instr, arrive_ns,
                         end_ns);
    if (end_ns > lane->batch_end_ns)
        lane->batch_end_ns = end_ns;
    if (--lane->outstanding == 0)
        tl_lane_end(t, r, lane, lane->batch_end_ns);
}

static void nic_put(struct crystal_timeline *t, struct tl_nic *nic)
{
    if (nic->refs == 0 || --nic->refs)
        return;
    nic->next = t->free_nics;
    t->free_nics = nic;
}

/* It goes on the wire. */
static void leave(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq)
{
    struct tl_message *place = &pair->ring[seq & (pair->capacity - 1)], m = *place;
    const struct crystal_transfer_wire *wire = &t->wires[pair->wire];
    bool is_self = pair->from == pair->to;
    uint64_t start = m.send_ns > m.recv_ns ? m.send_ns : m.recv_ns;

    if (crystal_transfer_recv_ns(wire, m.bytes) > CRYSTAL_TIMELINE_LONGEST_NS)
        t->code = -ERANGE;
    memset(place, 0, sizeof *place);
    place->is_over = true;
    while (pair->ring[pair->first & (pair->capacity - 1)].is_over)
        pair->ring[pair->first++ & (pair->capacity - 1)].is_over = false;
    if (m.nic) {
        if (m.nic->free_ns > start)
            start = m.nic->free_ns;
        if (!is_self)
            m.nic->free_ns = start + crystal_transfer_occupy_ns(wire, m.bytes);
        nic_put(t, m.nic);
    }
    if (m.send_instr != TL_NONE)
        side_end(t, pair->from_lrank, m.send_lane, m.send_instr, m.send_ns,
                 start + crystal_transfer_send_ns(wire, m.bytes));
    if (m.recv_instr != TL_NONE)
        side_end(t, pair->to_lrank, m.recv_lane, m.recv_instr, m.recv_ns,
                 start + (is_self ? 0 : crystal_transfer_recv_ns(wire, m.bytes)));
}

/* --- turns at a NIC --- */

static bool is_before(const struct tl_held *a, const struct tl_held *b)
{
    return a->ready_ns != b->ready_ns ? a->ready_ns < b->ready_ns : a->order < b->order;
}

static void held_push(struct crystal_timeline *t, struct tl_held held)
{
    uint32_t i = t->held_count;

    if (t->held_count == t->held_capacity) {
        uint32_t capacity = t->held_capacity ? 2 * t->held_capacity : 64;
        struct tl_held *more = realloc(t->held, capacity * sizeof *more);

        if (!more) {
            t->code = -ENOMEM;
            return;
        }
        t->held = more;
        t->held_capacity = capacity;
    }
    t->held_count++;
    while (i && is_before(&held, &t->held[(i - 1) / 2])) {
        t->held[i] = t->held[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    t->held[i] = held;
}

void tl_held_next(struct crystal_timeline *t)
{
    struct tl_held first = t->held[0], last = t->held[--t->held_count];
    uint32_t i = 0, child;

    while ((child = 2 * i + 1) < t->held_count) {
        if (child + 1 < t->held_count &&
            is_before(&t->held[child + 1], &t->held[child]))
            child++;
        if (!is_before(&t->held[child], &last))
            break;
        t->held[i] = t->held[child];
        i = child;
    }
    t->held[i] = last;
    leave(t, first.pair, first.seq);
}

/* --- arrivals --- */

static void tell(struct crystal_timeline *t, const struct tl_pair *pair, uint64_t seq,
                 bool sends, uint64_t time_ns)
{
    bool from_inside = t->ranks[pair->from_lrank].state != TL_OUTSIDE;
    bool to_inside = t->ranks[pair->to_lrank].state != TL_OUTSIDE;

    if (from_inside != to_inside && from_inside == sends)
        t->config.on_p2p(t->config.context, pair->comm, pair->from, pair->to, seq,
                         sends, time_ns);
}

void tl_message_arrive(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq,
                       struct tl_message *m, bool sends, uint64_t time_ns)
{
    if (sends) {
        m->has_send = true;
        m->send_ns = time_ns;
    } else {
        m->has_recv = true;
        m->recv_ns = time_ns;
    }
    if (t->config.on_p2p)
        tell(t, pair, seq, sends, time_ns);
    if (sends && m->send_instr != TL_NONE &&
        (pair->from == pair->to || m->bytes <= CRYSTAL_TRANSFER_EAGER_BYTES)) {
        uint32_t instr = m->send_instr;

        m->send_instr = TL_NONE;
        side_end(t, pair->from_lrank, m->send_lane, instr, time_ns, time_ns);
    }
    if (!m->has_send || !m->has_recv)
        return;
    if (m->nic)
        held_push(t, (struct tl_held){m->send_ns > m->recv_ns ? m->send_ns : m->recv_ns,
                                      m->order, seq, pair});
    else
        leave(t, pair, seq);
}

static struct tl_nic *nic_new(struct crystal_timeline *t, uint32_t refs)
{
    struct tl_nic *nic = t->free_nics;

    if (nic)
        t->free_nics = nic->next;
    else if (!(nic = malloc(sizeof *nic)))
        t->code = -ENOMEM;
    if (nic)
        *nic = (struct tl_nic){.refs = refs};
    return nic;
}

/* NCCL's rounds: in each a rank sends to another one, equally far for all. */
static uint32_t round_of(const struct crystal_timeline *t, const struct tl_pair *pair)
{
    uint32_t n = t->comms[pair->comm].nranks;

    return (pair->to + n - pair->from) % n;
}

void tl_batch_begin(struct crystal_timeline *t, struct tl_rank *r, struct tl_lane *lane,
                    const struct tl_code *code, uint64_t time_ns)
{
    const struct tl_batch *batch = &r->list->batches[code->arg];
    const bool are_shared = t->config.shared_nics != 0;
    struct tl_nic *nic =
        batch->send_count > 1 && !are_shared ? nic_new(t, batch->send_count) : NULL;

    lane->outstanding = batch->count + 1; /* and one while they are begun */
    lane->batch_end_ns = time_ns;
    for (uint32_t i = 0; i < batch->count && !t->code; i++) {
        uint32_t instr = r->list->messages[batch->first + i];
        const struct crystal_instr *in = &r->list->program->instrs[instr];
        bool sends = in->kind == CRYSTAL_OP_SEND;
        struct tl_pair *pair = r->pair[in->slot];
        uint64_t seq = r->pair_seq[in->slot]++;
        struct tl_message *m = tl_message_get(t, pair, seq);

        if (!m) {
            t->code = t->code ? t->code : -EINVAL;
            return;
        }
        if (sends || !m->bytes)
            m->bytes = in->count * crystal_dtype_bytes(in->dtype);
        if (sends) {
            m->nic = are_shared ? &r->nics[pair->is_on_node] : nic;
            m->order = (uint64_t)round_of(t, pair) << 32 | instr;
            m->send_instr = instr;
            m->send_lane = (uint32_t)(lane - r->lanes);
        } else {
            m->recv_instr = instr;
            m->recv_lane = (uint32_t)(lane - r->lanes);
        }
        tl_message_arrive(t, pair, seq, m, sends, time_ns);
    }
    if (--lane->outstanding == 0)
        tl_lane_end(t, r, lane, lane->batch_end_ns);
}
