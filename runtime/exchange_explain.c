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
    uint32_t from;

    if (op->head.func == CRYSTAL_FUNC_RECV) {
        from = op->comm->members[op->head.peer];
        (void)snprintf(text, text_bytes,
                       "waits to receive from rank %" PRIu32 "%s on '%s' (called at "
                       "0x%" PRIx64 ")",
                       from,
                       x->ranks[from].is_live
                           ? (x->ranks[from].left ? ", which has ended," : "")
                           : ", which is not live (use --crystal-live=all),",
                       op->comm->name, op->head.call_site);
        return;
    }
    missing = missing_member(op);
    (void)snprintf(
        text, text_bytes, "waits in %s %" PRIu64 " of '%s' (called at 0x%" PRIx64 ")",
        crystal_func_name(op->head.func), op->seq, op->comm->name, op->head.call_site);
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
}

void crystal_exchange_describe(const struct crystal_exchange *x, uint32_t lrank,
                               char *text, size_t text_bytes)
{
    const struct rank *r = &x->ranks[lrank];
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
        (void)snprintf(text, text_bytes,
                       "computes after %s on '%s' (called at 0x%" PRIx64 ")",
                       crystal_func_name(r->last.func), x->comms[r->last.comm]->name,
                       r->last.call_site);
    else
        (void)snprintf(text, text_bytes, "has not communicated yet");
}

void crystal_exchange_explain(const struct crystal_exchange *x,
                              struct crystal_error *err)
{
    char all[CRYSTAL_ERROR_TEXT_BYTES] = "", one[200];
    uint32_t shown = 0, more = 0;

    for (uint32_t i = 0; i < x->layout->live_count; i++) {
        uint32_t lrank = x->layout->live[i];
        size_t used = strlen(all);

        if (x->ranks[lrank].left)
            continue;
        if (shown == 2) {
            more++;
            continue;
        }
        crystal_exchange_describe(x, lrank, one, sizeof one);
        (void)snprintf(all + used, sizeof all - used, "%srank %" PRIu32 " %s",
                       shown ? "; " : "", lrank, one);
        shown++;
    }
    if (more)
        (void)snprintf(all + strlen(all), sizeof all - strlen(all),
                       "; and %" PRIu32 " more ranks wait", more);
    (void)crystal_error_set(err, EDEADLK,
                            "coordinator: the live ranks wait for ever: %s", all);
}
