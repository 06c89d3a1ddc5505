/* Collectives and messages under way: who has arrived, and the ends when all have. */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RING_AT_LEAST 8

void tl_coll_free(struct tl_coll *coll)
{
    if (!coll)
        return;
    free(coll->arrive);
    free(coll->nodes);
    free(coll->has_arrived);
    free(coll);
}

static bool is_inside(const struct crystal_timeline *t, const struct tl_comm *comm,
                      uint32_t crank)
{
    return t->ranks[comm->members[crank]].state != TL_OUTSIDE;
}

/* Makes room in the ring for seq. */
static int ring_grow(struct tl_comm *comm, uint64_t seq)
{
    uint32_t capacity = comm->capacity ? comm->capacity : RING_AT_LEAST;
    struct tl_coll **colls;

    while (seq - comm->first >= capacity) {
        if (capacity > UINT32_MAX / 4)
            return -ENOMEM;
        capacity *= 2;
    }
    if (capacity == comm->capacity)
        return 0;
    colls = calloc(capacity, sizeof *colls);
    if (!colls)
        return -ENOMEM;
    for (uint64_t s = comm->first; s < comm->end; s++)
        colls[s % capacity] = comm->colls[s % comm->capacity];
    free(comm->colls);
    comm->colls = colls;
    comm->capacity = capacity;
    return 0;
}

struct tl_coll *tl_coll_get(struct crystal_timeline *t, struct tl_comm *comm,
                            uint64_t seq)
{
    struct tl_coll *coll;

    if (seq < comm->first)
        return NULL; /* over, or from before the iterations */
    if (ring_grow(comm, seq)) {
        t->code = -ENOMEM;
        return NULL;
    }
    for (; comm->end <= seq; comm->end++)
        comm->colls[comm->end % comm->capacity] = NULL;
    coll = comm->colls[seq % comm->capacity];
    if (coll)
        return coll;
    coll = calloc(1, sizeof *coll);
    if (coll) {
        coll->arrive = calloc(comm->nranks, sizeof *coll->arrive);
        coll->nodes = calloc(comm->nranks, sizeof *coll->nodes);
        coll->has_arrived = calloc(comm->nranks, 1);
    }
    if (!coll || !coll->arrive || !coll->nodes || !coll->has_arrived) {
        tl_coll_free(coll);
        t->code = -ENOMEM;
        return NULL;
    }
    coll->seq = seq;
    coll->comm = comm;
    comm->colls[seq % comm->capacity] = coll;
    /* for some members this one was before the iterations: they have arrived */
    for (uint32_t k = 0; k < comm->nranks; k++)
        if (seq < comm->before[k] && is_inside(t, comm, k))
            tl_coll_arrive(t, coll, k, t->start_ns ? t->start_ns : 1);
    return coll;
}

/* Frees those at the front that are over. */
static void ring_trim(struct tl_comm *comm)
{
    while (comm->first < comm->end) {
        struct tl_coll *coll = comm->colls[comm->first % comm->capacity];

        if (!coll || !coll->is_ended)
            return;
        tl_coll_free(coll);
        comm->colls[comm->first % comm->capacity] = NULL;
        comm->first++;
    }
}

static void coll_end(struct crystal_timeline *t, struct tl_coll *coll)
{
    struct tl_comm *comm = coll->comm;
    struct crystal_transfer_op op = {.func = coll->func,
                                     .nranks = comm->nranks,
                                     .root = coll->root,
                                     .count = coll->count,
                                     .elt_bytes =
                                         (uint32_t)crystal_dtype_bytes(coll->dtype)};

    coll->is_ended = true;
    if (!coll->is_described)
        return; /* all inside members had it before their iterations */
    crystal_transfer_coll(&t->config.wire, &op, coll->arrive, t->ends, t->scratch);
    for (uint32_t k = 0; k < comm->nranks; k++)
        if (coll->nodes[k])
            tl_node_end(t, coll->nodes[k], t->ends[k]);
}

void tl_coll_arrive(struct crystal_timeline *t, struct tl_coll *coll, uint32_t crank,
                    uint64_t time_ns)
{
    struct tl_comm *comm = coll->comm;

    coll->has_arrived[crank] = 1;
    coll->arrive[crank] = time_ns;
    coll->arrived++;
    if (is_inside(t, comm, crank))
        coll->inside_arrived++;
    if (!coll->is_told && coll->inside_arrived == comm->inside_count &&
        comm->inside_count < comm->nranks) {
        coll->is_told = true;
        if (t->config.on_coll) {
            for (uint32_t k = 0; k < comm->nranks; k++)
                t->ends[k] = is_inside(t, comm, k) ? coll->arrive[k] : 0;
            t->config.on_coll(t->config.context, comm->index, coll->seq, t->ends);
        }
    }
    if (coll->arrived < comm->nranks)
        return;
    coll_end(t, coll);
    ring_trim(comm);
}

/* --- messages --- */

static uint32_t bucket_of(const struct crystal_timeline *t, uint32_t comm,
                          uint32_t from, uint32_t to)
{
    uint64_t key = ((uint64_t)comm << 40) ^ ((uint64_t)from << 20) ^ to;

    key *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(key >> 32) & (t->bucket_count - 1);
}

struct tl_pair *tl_pair_get(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                            uint32_t to)
{
    struct tl_pair **bucket = &t->buckets[bucket_of(t, comm, from, to)];
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
    pair->next = *bucket;
    *bucket = pair;
    return pair;
}

struct tl_message *tl_message_get(struct crystal_timeline *t, struct tl_pair *pair,
                                  uint64_t seq)
{
    struct tl_message **place = &pair->messages, *m;

    while (*place && (*place)->seq < seq)
        place = &(*place)->next;
    if (*place && (*place)->seq == seq)
        return *place;
    if (seq < pair->over)
        return NULL;
    m = tl_message_new(t);
    if (!m)
        return NULL;
    m->pair = pair;
    m->seq = seq;
    m->next = *place;
    *place = m;
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

static bool is_eager(const struct tl_message *m)
{
    return m->pair->from == m->pair->to || m->bytes <= CRYSTAL_TRANSFER_EAGER_BYTES;
}

/* Both sides have arrived. */
static void message_end(struct crystal_timeline *t, struct tl_message *m)
{
    const struct crystal_transfer_wire *wire = &t->config.wire;
    struct tl_pair *pair = m->pair;
    bool is_self = pair->from == pair->to;
    uint64_t start = m->send_ns > m->recv_ns ? m->send_ns : m->recv_ns;
    struct tl_message **place = &pair->messages;

    if (m->batch) {
        if (m->batch->egress_ns > start)
            start = m->batch->egress_ns;
        if (!is_self)
            m->batch->egress_ns = start + crystal_transfer_occupy_ns(wire, m->bytes);
        tl_node_put(t, m->batch);
    }
    if (m->send)
        tl_node_end(t, m->send, start + crystal_transfer_send_ns(wire, m->bytes));
    if (m->recv)
        tl_node_end(t, m->recv,
                    start + (is_self ? 0 : crystal_transfer_recv_ns(wire, m->bytes)));
    while (*place != m)
        place = &(*place)->next;
    *place = m->next;
    if (m->seq >= pair->over)
        pair->over = m->seq + 1;
    m->next = t->free_messages;
    t->free_messages = m;
}

void tl_message_arrive(struct crystal_timeline *t, struct tl_message *m, bool sends,
                       uint64_t time_ns)
{
    struct tl_pair *pair = m->pair;

    if (sends) {
        m->has_send = true;
        m->send_ns = time_ns;
    } else {
        m->has_recv = true;
        m->recv_ns = time_ns;
    }
    if (t->config.on_p2p) {
        const uint32_t *members = t->comms[pair->comm].members;
        bool from_inside = t->ranks[members[pair->from]].state != TL_OUTSIDE;
        bool to_inside = t->ranks[members[pair->to]].state != TL_OUTSIDE;

        if (from_inside != to_inside && from_inside == sends)
            t->config.on_p2p(t->config.context, pair->comm, pair->from, pair->to,
                             m->seq, sends, time_ns);
    }
    if (sends && m->send && is_eager(m)) {
        tl_node_end(t, m->send, time_ns);
        m->send = NULL;
    }
    if (m->has_send && m->has_recv)
        message_end(t, m);
}
