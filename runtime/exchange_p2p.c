/* Sends and receives of capture's exchange: messages in order per communicator, sender
 * and receiver. See exchange.h.
 *
 * A receive from a rank that is not live takes what the live rank that stands for it
 * sent to the same receiver; so one message can be taken several times: once per rank
 * that asks. A queue keeps a message until all who have ever asked took it. What is
 * sent to a rank that is not live is dropped.
 */
#include "config.h"

#include "runtime/exchange_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static struct queue *queue_get(struct comm *m, uint32_t src_slot, uint32_t dst_crank)
{
    struct queue **at = &m->queues[(src_slot * 31 + dst_crank) % QUEUE_CHAINS];
    struct queue *q;

    while (*at && ((*at)->src_slot != src_slot || (*at)->dst_crank != dst_crank))
        at = &(*at)->next;
    if (*at)
        return *at;
    q = calloc(1, sizeof *q);
    if (q)
        q->consumers = calloc(1, sizeof *q->consumers);
    if (!q || !q->consumers) {
        free(q);
        return NULL;
    }
    q->src_slot = src_slot;
    q->dst_crank = dst_crank;
    q->end = &q->messages;
    q->consumers->src_crank = m->live[src_slot].crank;
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

int crystal_exchange_p2p_announce(struct op *op, struct crystal_error *err)
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
    op->queue = queue_get(m, src_slot, m->live[op->slot].crank);
    consumer = op->queue ? consumer_get(op->queue, op->head.peer) : NULL;
    if (!consumer)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
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

static int size_mismatch(const struct queue *q, const struct op *op,
                         const struct message *msg, struct crystal_error *err)
{
    const struct comm *m = op->comm;

    return crystal_error_set(
        err, EPROTO,
        "mismatch on communicator '%s': rank %" PRIu32 " sends %zu bytes at 0x%" PRIx64
        ", rank %" PRIu32 " receives %" PRIu64 " bytes at 0x%" PRIx64,
        m->name, m->live[q->src_slot].lrank, msg->data.bytes, msg->call_site,
        op->ticket->lrank, op->head.recv_bytes, op->head.call_site);
}

static void drop_taken(struct queue *q)
{
    uint64_t taken = UINT64_MAX;

    for (const struct consumer *c = q->consumers; c; c = c->next)
        if (c->next_index < taken)
            taken = c->next_index;
    while (q->messages && q->first_index < taken) {
        struct message *gone = q->messages;

        q->messages = gone->next;
        if (!q->messages)
            q->end = &q->messages;
        q->first_index++;
        crystal_blob_unref(gone->data.blob);
        free(gone);
    }
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
                return size_mismatch(q, op, msg, err);
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

int crystal_exchange_p2p_send(struct crystal_exchange *x, struct op *op,
                              struct crystal_error *err)
{
    struct comm *m = op->comm;
    uint32_t dst = m->members[op->head.peer];
    struct message *msg;
    struct queue *q;
    int rc;

    if (x->ranks[dst].is_live) {
        q = queue_get(m, op->slot, op->head.peer);
        msg = q ? calloc(1, sizeof *msg) : NULL;
        if (!msg)
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        msg->data = op->send;
        (void)crystal_blob_ref(msg->data.blob);
        msg->call_site = op->head.call_site;
        *q->end = msg;
        q->end = &msg->next;
        rc = crystal_exchange_p2p_match(x, q, err);
        if (rc < 0)
            return rc;
    }
    crystal_exchange_done(x, op, (struct crystal_slice){0});
    return 0;
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
