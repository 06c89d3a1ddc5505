/* Collectives of capture's exchange: deposits of live members are compared and, when
 * all are there, performed. See exchange.h. */
#include "config.h"

#include "runtime/exchange.h"

#include "runtime/exchange_state.h"
#include "runtime/nccl_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void coll_free(struct coll *coll)
{
    free(coll->deposits);
    free(coll);
}

void crystal_exchange_coll_fini(struct comm *m)
{
    while (m->first_coll) {
        struct coll *gone = m->first_coll;

        m->first_coll = gone->next;
        coll_free(gone);
    }
}

static void call_text(const struct crystal_exchange *x, const struct op *op, char *text,
                      size_t text_bytes)
{
    const struct crystal_msg_op *h = &op->head;
    char detail[64] = "", site[CALL_SITE_BYTES];

    if (crystal_func_reduces(h->func))
        (void)snprintf(detail, sizeof detail, " (%s)", crystal_redop_name(h->redop));
    if (crystal_func_has_root(h->func))
        (void)snprintf(detail + strlen(detail), sizeof detail - strlen(detail),
                       " with root %" PRIu32, h->peer);
    (void)snprintf(text, text_bytes, "%s of %" PRIu64 " x %s%s at %s",
                   crystal_func_name(h->func), h->count, crystal_dtype_name(h->dtype),
                   detail,
                   crystal_exchange_site(x, op->ticket->lrank, h->call_site, site));
}

static int same_call(const struct crystal_msg_op *a, const struct crystal_msg_op *b)
{
    return a->func == b->func && a->dtype == b->dtype && a->count == b->count &&
           (!crystal_func_reduces(a->func) || a->redop == b->redop) &&
           (!crystal_func_has_root(a->func) || a->peer == b->peer);
}

static int mismatch(const struct crystal_exchange *x, const struct op *first,
                    const struct op *op, struct crystal_error *err)
{
    char a[192], b[192];

    call_text(x, first, a, sizeof a);
    call_text(x, op, b, sizeof b);
    return crystal_error_set(err, EPROTO,
                             "mismatch in operation %" PRIu64
                             " of communicator '%s': rank %" PRIu32 " calls %s, rank "
                             "%" PRIu32 " calls %s",
                             op->seq, op->comm->name, first->ticket->lrank, a,
                             op->ticket->lrank, b);
}

static void root_tell(const struct crystal_exchange *x, struct comm *m,
                      const struct coll *coll, const struct member *rep)
{
    const struct crystal_msg_op *head = &coll->deposits[0]->head;
    char text[CRYSTAL_ERROR_TEXT_BYTES];

    if (m->root_told || !x->hooks.notice)
        return;
    m->root_told = 1;
    (void)snprintf(text, sizeof text,
                   "rank %" PRIu32 ", root of %s %" PRIu64
                   " on '%s', is not live; it sends what %s rank %" PRIu32,
                   m->members[head->peer], crystal_func_name(head->func), coll->seq,
                   m->name,
                   head->func == CRYSTAL_FUNC_SCATTER ? "was scattered last by"
                                                      : "is in the buffer of",
                   rep->lrank);
    x->hooks.notice(x->hooks.context, text);
}

/* Where the root is not live, its part is what the one that stands for it has for it;
 * see exchange.h. */
static void root_stand_in(const struct crystal_exchange *x, struct comm *m,
                          const struct coll *coll, struct crystal_part *parts)
{
    const struct crystal_msg_op *head = &coll->deposits[0]->head;
    uint32_t slot = CRYSTAL_NO_PART;
    struct member *rep;

    if (head->func == CRYSTAL_FUNC_BROADCAST || head->func == CRYSTAL_FUNC_SCATTER)
        slot = m->part_of[head->peer];
    if (slot == CRYSTAL_NO_PART)
        return; /* nothing to do, or the collective's own sentence */
    rep = &m->live[slot];
    if (head->func == CRYSTAL_FUNC_SCATTER && rep->crank == head->peer) {
        crystal_blob_unref(rep->scattered.blob);
        rep->scattered = parts[slot].send;
        (void)crystal_blob_ref(rep->scattered.blob);
    } else if (head->func == CRYSTAL_FUNC_SCATTER) {
        parts[slot].send = rep->scattered;
    }
    if (rep->crank != head->peer && parts[slot].send.bytes)
        root_tell(x, m, coll, rep);
}

static int coll_complete(struct crystal_exchange *x, struct comm *m, struct coll *coll,
                         struct crystal_error *err)
{
    struct crystal_part *parts = calloc(m->live_count, sizeof *parts);
    struct crystal_collective c = {.op = &coll->deposits[0]->head,
                                   .nranks = m->nranks,
                                   .part_of = m->part_of,
                                   .parts = parts,
                                   .part_count = m->live_count};
    struct crystal_msg_op head = *c.op; /* its ticket may go before the loop ends */
    struct crystal_slice shared = {0},
                         *results = calloc(m->live_count, sizeof *results);
    int rc = 0;

    if (!parts || !results) {
        rc = crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        goto out;
    }
    c.op = &head;
    for (uint32_t i = 0; i < m->live_count; i++)
        parts[i] = (struct crystal_part){.send = coll->deposits[i]->send,
                                         .scalar = coll->deposits[i]->head.scalar,
                                         .times = m->live[i].times,
                                         .lrank = m->live[i].lrank};
    root_stand_in(x, m, coll, parts);
    for (uint32_t i = 0; rc == 0 && i < m->live_count; i++) {
        if (!coll->deposits[i]->head.recv_bytes)
            continue;
        if (shared.blob) {
            results[i] = shared;
            (void)crystal_blob_ref(shared.blob);
            continue;
        }
        rc = crystal_collective_result(&c, m->live[i].crank, &results[i], err);
        if (crystal_collective_is_shared(&c))
            shared = results[i];
    }
    if (rc < 0) {
        for (uint32_t i = 0; i < m->live_count; i++)
            crystal_blob_unref(results[i].blob);
        crystal_error_prefix(err, "coordinator: %s %" PRIu64 " of communicator '%s'",
                             crystal_func_name(head.func), coll->seq, m->name);
        goto out;
    }
    for (uint32_t i = 0; i < m->live_count; i++)
        crystal_exchange_done(x, coll->deposits[i], results[i]);
out:
    free(results);
    free(parts);
    return rc;
}

/* The same for the only live member: parts of all members are made for the moment. */
static int coll_complete_alone(struct crystal_exchange *x, struct comm *m,
                               const struct coll *coll, struct crystal_error *err)
{
    struct op *own = coll->deposits[0];
    struct crystal_msg_op head = own->head;
    struct crystal_part *parts = calloc(m->nranks, sizeof *parts);
    uint32_t *part_of = malloc(m->nranks * sizeof *part_of);
    struct crystal_collective c = {.op = &head,
                                   .nranks = m->nranks,
                                   .part_of = part_of,
                                   .parts = parts,
                                   .part_count = m->nranks};
    struct crystal_slice result = {0};
    int rc = 0;

    if (!parts || !part_of)
        rc = crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    for (uint32_t i = 0; rc == 0 && i < m->nranks; i++)
        part_of[i] = i;
    if (rc == 0)
        rc = crystal_exchange_inject_parts(x, m, own, parts, err);
    if (rc == 0 && head.recv_bytes)
        rc = crystal_collective_result(&c, m->live[own->slot].crank, &result, err);
    for (uint32_t i = 0; parts && i < m->nranks; i++)
        crystal_blob_unref(parts[i].send.blob);
    free(part_of);
    free(parts);
    if (rc == 0)
        crystal_exchange_done(x, own, result);
    return rc;
}

static struct coll *coll_get(struct comm *m, uint64_t seq)
{
    struct coll **at = &m->first_coll;
    struct coll *coll;

    while (*at && (*at)->seq != seq)
        at = &(*at)->next;
    if (*at)
        return *at;
    coll = calloc(1, sizeof *coll);
    if (coll)
        coll->deposits = calloc(m->live_count, sizeof(struct op *));
    if (!coll || !coll->deposits) {
        free(coll);
        return NULL;
    }
    coll->seq = seq;
    *at = coll;
    return coll;
}

int crystal_exchange_coll_deposit(struct crystal_exchange *x, struct op *op,
                                  struct crystal_error *err)
{
    struct comm *m = op->comm;
    struct coll *coll = coll_get(m, op->seq), **at;
    int rc;

    if (!coll)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    if (!coll->first)
        coll->first = op;
    else if (!same_call(&coll->first->head, &op->head))
        return mismatch(x, coll->first, op, err);
    coll->deposits[op->slot] = op;
    if (++coll->count < m->live_count)
        return 0;
    /* Members deposit in order, so the complete one is the first. */
    for (at = &m->first_coll; *at != coll; at = &(*at)->next)
        continue;
    *at = coll->next;
    rc = x->inject ? coll_complete_alone(x, m, coll, err)
                   : coll_complete(x, m, coll, err);
    coll_free(coll);
    return rc;
}
