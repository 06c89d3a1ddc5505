/* Sends and receives of capture's exchange: messages in order per communicator, sender
 * and receiver. See exchange.h.
 *
 * A receive from a rank that is not live takes what the live rank that stands for it
 * sent to the same receiver; so one message can be taken several times: once per rank
 * that asks. A queue keeps a message until all who have ever asked took it.
 *
 * Where the receiver itself stands for the sender, as in a ring of replicas, it takes
 * what it sent to the rank that is as many replicas behind it as the receiver is behind
 * the sender (the graph's rule, crystal_graph_peer_of). So what is sent to a rank that
 * is not live is kept, too, but no more than UNASKED_MAX messages that nobody has asked
 * for: then they and all later ones are dropped.
 */
#include "config.h"

#include "runtime/exchange_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define UNASKED_MAX 16

static int is_live_crank(const struct comm *m, uint32_t crank)
{
    uint32_t slot = m->part_of[crank];

    return slot != CRYSTAL_NO_PART && m->live[slot].crank == crank;
}

static struct queue *queue_get(struct comm *m, uint32_t src_slot, uint32_t dst_crank)
{
    struct queue **at = &m->queues[(src_slot * 31 + dst_crank) % QUEUE_CHAINS];
    struct queue *q;

    while (*at && ((*at)->src_slot != src_slot || (*at)->dst_crank != dst_crank))
        at = &(*at)->next;
    if (*at)
        return *at;
    q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->src_slot = src_slot;
    q->dst_crank = dst_crank;
    q->end = &q->messages;
    if (is_live_crank(m, dst_crank)) { /* it will ask for all of them itself */
        q->consumers = calloc(1, sizeof *q->consumers);
        if (!q->consumers) {
            free(q);
            return NULL;
        }
        q->consumers->src_crank = m->live[src_slot].crank;
    }
    *at = q;
    return q;
}

static struct consumer *consumer_get(struct queue *q, uint32_t src_crank)
{
    struct consumer **at = &q->consumers;

    while (*at && (*at)->src_crank != src_crank)
        at = &(*at)->next;
    if (!*at) {
        *at = calloc(1, sizeof **at);
        if (*at) {
            (*at)->src_crank = src_crank;
            (*at)->next_index = q->first_index;
        }
    }
    return *at;
}

/* Whose messages of that live rank a receive takes: by the receiver's crank. */
static uint32_t destination(const struct crystal_exchange *x, const struct op *op,
                            uint32_t src_slot)
{
    const struct comm *m = op->comm;
    const struct member *own = &m->live[op->slot];
    uint32_t lrank;

    if (src_slot != op->slot || op->head.peer == own->crank)
        return own->crank;
    lrank = crystal_replica_behind(&x->replica, &m->span, own->lrank,
                                   m->members[op->head.peer], own->lrank);
    for (uint32_t c = 0; c < m->nranks; c++)
        if (m->members[c] == lrank)
            return c;
    return own->crank;
}

int crystal_exchange_p2p_announce(struct crystal_exchange *x, struct op *op,
                                  struct crystal_error *err)
{
    struct comm *m = op->comm;
    uint32_t src_slot = m->part_of[op->head.peer];
    struct consumer *consumer;

    if (src_slot == CRYSTAL_NO_PART)
        return crystal_error_set(err, ENOTSUP,
                                 "coordinator: rank %" PRIu32 " receives from rank "
                                 "%" PRIu32 " on '%s' (called at 0x%" PRIx64
                                 "), which is not live and nobody there stands for it; "
                                 "use --crystal-live=all",
                                 op->ticket->lrank, m->members[op->head.peer], m->name,
                                 op->head.call_site);
    op->queue = queue_get(m, src_slot, destination(x, op, src_slot));
    consumer = op->queue ? consumer_get(op->queue, op->head.peer) : NULL;
    if (!consumer)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    if (op->queue->is_closed)
        return crystal_error_set(
            err, ENOTSUP,
            "coordinator: rank %" PRIu32 " receives from rank %" PRIu32
            " on '%s' (called at 0x%" PRIx64 "), which is not live, and more than %d "
            "messages that could stand for its have gone by; use --crystal-live=all",
            op->ticket->lrank, m->members[op->head.peer], m->name, op->head.call_site,
            UNASKED_MAX);
    if (consumer->last)
        consumer->last->next = op;
    else
        consumer->first = op;
    consumer->last = op;
    return 0;
}

static struct message *message_at(const struct queue *q, uint64_t index)
{
    struct message *msg = q->messages;

    for (uint64_t i = q->first_index; msg && i < index; i++)
        msg = msg->next;
    return msg;
}

static int size_mismatch(const struct crystal_exchange *x, const struct queue *q,
                         const struct op *op, const struct message *msg,
                         struct crystal_error *err)
{
    const struct comm *m = op->comm;
    const uint32_t from = m->live[q->src_slot].lrank, to = op->ticket->lrank;
    char sent[CALL_SITE_BYTES], received[CALL_SITE_BYTES];

    return crystal_error_set(
        err, EPROTO,
        "mismatch on communicator '%s': rank %" PRIu32 " sends %zu bytes at %s, rank "
        "%" PRIu32 " receives %" PRIu64 " bytes at %s",
        m->name, from, msg->data.bytes,
        crystal_exchange_site(x, from, msg->call_site, sent), to, op->head.recv_bytes,
        crystal_exchange_site(x, to, op->head.call_site, received));
}

static void drop_first(struct queue *q)
{
    struct message *gone = q->messages;

    q->messages = gone->next;
    if (!q->messages)
        q->end = &q->messages;
    q->first_index++;
    q->count--;
    crystal_blob_unref(gone->data.blob);
    free(gone);
}

static void drop_taken(struct queue *q)
{
    uint64_t taken = q->consumers ? UINT64_MAX : 0;

    for (const struct consumer *c = q->consumers; c; c = c->next)
        if (c->next_index < taken)
            taken = c->next_index;
    while (q->messages && q->first_index < taken)
        drop_first(q);
}

int crystal_exchange_p2p_match(struct crystal_exchange *x, struct queue *q,
                               struct crystal_error *err)
{
    for (struct consumer *c = q->consumers; c; c = c->next) {
        struct message *msg = message_at(q, c->next_index);

        for (; msg && c->first; msg = msg->next) {
            struct op *op = c->first;
            struct crystal_slice data = msg->data;

            if (op->head.recv_bytes != data.bytes)
                return size_mismatch(x, q, op, msg, err);
            c->first = op->next;
            if (!c->first)
                c->last = NULL;
            c->next_index++;
            (void)crystal_blob_ref(data.blob);
            crystal_exchange_done(x, op, data);
        }
    }
    drop_taken(q);
    return 0;
}

static int message_add(struct queue *q, const struct op *op)
{
    struct message *msg = calloc(1, sizeof *msg);

    if (!msg)
        return -ENOMEM;
    msg->data = op->send;
    (void)crystal_blob_ref(msg->data.blob);
    msg->call_site = op->head.call_site;
    *q->end = msg;
    q->end = &msg->next;
    q->count++;
    return 0;
}

int crystal_exchange_p2p_send(struct crystal_exchange *x, struct op *op,
                              struct crystal_error *err)
{
    struct comm *m = op->comm;
    int is_live = x->ranks[m->members[op->head.peer]].is_live, rc = 0;
    struct queue *q = NULL;

    if (is_live || m->span.count > 1) { /* else nobody can ask for it */
        q = queue_get(m, op->slot, op->head.peer);
        if (!q)
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        q->is_closed |= !is_live && !q->consumers && q->count >= UNASKED_MAX;
        while (q->is_closed && q->messages)
            drop_first(q);
    }
    if (q && !q->is_closed) {
        if (message_add(q, op))
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        rc = crystal_exchange_p2p_match(x, q, err);
    }
    if (rc == 0)
        crystal_exchange_done(x, op, (struct crystal_slice){0});
    return rc;
}

void crystal_exchange_p2p_fini(struct comm *m)
{
    for (unsigned i = 0; i < QUEUE_CHAINS; i++)
        while (m->queues[i]) {
            struct queue *q = m->queues[i];

            m->queues[i] = q->next;
            while (q->messages) {
                struct message *gone = q->messages;

                q->messages = gone->next;
                crystal_blob_unref(gone->data.blob);
                free(gone);
            }
            while (q->consumers) {
                struct consumer *gone = q->consumers;

                q->consumers = gone->next;
                free(gone);
            }
            free(q);
        }
}
