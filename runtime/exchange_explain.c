/* Sentences about what ranks of capture wait for. See exchange.h. */
#include "config.h"

#include "runtime/exchange_state.h"
#include "runtime/nccl_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The first live member that op's collective still waits for; NULL if there is none. */
static const struct member *missing_member(const struct op *op)
{
    const struct comm *m = op->comm;
    const struct coll *coll = m->first_coll;

    while (coll && coll->seq != op->seq)
        coll = coll->next;
    for (uint32_t i = 0; coll && i < m->live_count; i++)
        if (!coll->deposits[i])
            return &m->live[i];
    return NULL;
}

static void describe_op(const struct crystal_exchange *x, const struct op *op,
                        char *text, size_t text_bytes)
{
    const struct member *missing;
    char site[CALL_SITE_BYTES];
    uint32_t from;

    (void)crystal_exchange_site(x, op->ticket->lrank, op->head.call_site, site);
    if (op->head.func == CRYSTAL_FUNC_RECV) {
        from = op->comm->members[op->head.peer];
        (void)snprintf(text, text_bytes,
                       "waits to receive from rank %" PRIu32 "%s on '%s' (called at "
                       "%s)",
                       from,
                       x->ranks[from].is_live
                           ? (x->ranks[from].left ? ", which has ended," : "")
                           : ", which is not live (use --crystal-live=all),",
                       op->comm->name, site);
        return;
    }
    missing = missing_member(op);
    (void)snprintf(text, text_bytes, "waits in %s %" PRIu64 " of '%s' (called at %s)",
                   crystal_func_name(op->head.func), op->seq, op->comm->name, site);
    if (missing)
        (void)snprintf(text + strlen(text), text_bytes - strlen(text),
                       " for rank %" PRIu32 "%s", missing->lrank,
                       x->ranks[missing->lrank].left ? ", which has ended" : "");
}

static void describe_joining(const struct crystal_exchange *x, const struct comm *m,
                             char *text, size_t text_bytes)
{
    const struct member *missing = NULL;

    for (uint32_t i = 0; i < m->live_count && !missing; i++)
        if (!m->live[i].joined)
            missing = &m->live[i];
    (void)snprintf(text, text_bytes, "waits for communicator '%s'", m->name);
    if (missing)
        (void)snprintf(text + strlen(text), text_bytes - strlen(text),
                       ", which rank %" PRIu32 " has not joined%s", missing->lrank,
                       x->ranks[missing->lrank].left ? " before it ended" : "");
    else if (!m->members_known)
        (void)snprintf(text + strlen(text), text_bytes - strlen(text),
                       " of %" PRIu32 " ranks, and nothing says which they are; is "
                       "contrib/pytorch installed where the program runs?",
                       m->nranks);
}

void crystal_exchange_describe(const struct crystal_exchange *x, uint32_t lrank,
                               char *text, size_t text_bytes)
{
    const struct rank *r = &x->ranks[lrank];
    char site[CALL_SITE_BYTES];
    const struct ticket *t = r->blocked_request
                                 ? crystal_exchange_ticket(r, r->blocked_request)
                                 : r->tickets;

    if (r->joining) {
        describe_joining(x, r->joining, text, text_bytes);
        return;
    }
    for (uint32_t i = 0; t && i < t->count; i++)
        if (!t->ops[i].done) {
            describe_op(x, &t->ops[i], text, text_bytes);
            return;
        }
    if (r->has_last)
        (void)snprintf(text, text_bytes, "computes after %s on '%s' (called at %s)",
                       crystal_func_name(r->last.func), x->comms[r->last.comm]->name,
                       crystal_exchange_site(x, lrank, r->last.call_site, site));
    else
        (void)snprintf(text, text_bytes, "has not communicated yet");
}

static void unreceived_text(const struct crystal_exchange *x, const struct comm *m,
                            const struct queue *q, char *text, size_t text_bytes)
{
    uint32_t from = m->live[q->src_slot].lrank;
    uint64_t count = q->first_index + q->count - q->consumers->next_index;
    const struct message *msg = q->messages;
    char site[CALL_SITE_BYTES];

    for (uint64_t i = q->first_index; i < q->consumers->next_index; i++)
        msg = msg->next;
    (void)snprintf(text, text_bytes,
                   "rank %" PRIu32 " sent %" PRIu64 " message%s to rank %" PRIu32
                   " on '%s' that it has not received, the first of %zu bytes at %s",
                   from, count, count == 1 ? "" : "s", m->members[q->dst_crank],
                   m->name, msg->data.bytes,
                   crystal_exchange_site(x, from, msg->call_site, site));
}

void crystal_exchange_each_unreceived(const struct crystal_exchange *x,
                                      void (*fn)(void *context, const char *text),
                                      void *context)
{
    char text[CRYSTAL_ERROR_TEXT_BYTES];

    for (uint32_t i = 0; i < x->comm_count; i++)
        for (unsigned k = 0; k < QUEUE_CHAINS; k++)
            for (const struct queue *q = x->comms[i]->queues[k]; q; q = q->next) {
                const struct comm *m = x->comms[i];

                /* the first consumer is the receiver itself */
                if (!x->ranks[m->members[q->dst_crank]].is_live ||
                    q->consumers->next_index >= q->first_index + q->count)
                    continue;
                unreceived_text(x, m, q, text, sizeof text);
                fn(context, text);
            }
}

const char *crystal_exchange_site(const struct crystal_exchange *x, uint32_t lrank,
                                  uint64_t address, char *text)
{
    if (!x->hooks.site ||
        x->hooks.site(x->hooks.context, lrank, address, text, CALL_SITE_BYTES) < 0)
        (void)snprintf(text, CALL_SITE_BYTES, "0x%" PRIx64, address);
    return text;
}
