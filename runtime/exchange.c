/* Capture's exchange of data between live ranks. See exchange.h.
 *
 * A rank's OPS message becomes a ticket that keeps the message's body alive; operations
 * point into it, and results are slices of it or of freshly computed blobs, so that
 * large payloads are copied only where they are reduced or gathered. Communicators are
 * in exchange_comm.c, collectives in exchange_coll.c, sends and receives meet in
 * exchange_p2p.c.
 */
#include "config.h"

#include "runtime/exchange.h"

#include "runtime/exchange_state.h"
#include "runtime/nccl_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct crystal_exchange *
crystal_exchange_create(const struct crystal_layout *layout,
                        const struct crystal_exchange_hooks *hooks)
{
    struct crystal_exchange *x = calloc(1, sizeof *x);

    if (!x)
        return NULL;
    x->layout = layout;
    x->hooks = *hooks;
    crystal_replica_init(&x->replica, layout);
    x->ranks = calloc((size_t)layout->lrank_count + 1, sizeof *x->ranks);
    if (!x->ranks) {
        free(x);
        return NULL;
    }
    for (uint32_t i = 0; i < layout->live_count; i++)
        if (layout->live[i] < layout->lrank_count)
            x->ranks[layout->live[i]].is_live = 1;
    return x;
}

static void ticket_free(struct ticket *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        crystal_blob_unref(t->ops[i].result.blob);
    crystal_blob_unref(t->body);
    free(t);
}

void crystal_exchange_destroy(struct crystal_exchange *x)
{
    if (!x)
        return;
    for (uint32_t r = 0; r < x->layout->lrank_count; r++)
        while (x->ranks[r].tickets) {
            struct ticket *gone = x->ranks[r].tickets;

            x->ranks[r].tickets = gone->next;
            ticket_free(gone);
        }
    for (uint32_t i = 0; i < x->comm_count; i++)
        crystal_exchange_comm_free(x->comms[i]);
    free(x->comms);
    free(x->ranks);
    free(x);
}

/* --- tickets --- */

static void ticket_release(struct crystal_exchange *x, struct ticket *t)
{
    struct rank *r = &x->ranks[t->lrank];
    struct ticket **at;

    if (--t->pending)
        return;
    for (at = &r->tickets; *at != t; at = &(*at)->next)
        continue;
    *at = t->next;
    if (r->blocked_request == t->request)
        r->blocked_request = 0;
    for (uint32_t i = 0; i < t->count; i++)
        t->results[i] = t->ops[i].result;
    x->hooks.result(x->hooks.context, t->lrank, t->request, t->results, t->count);
    ticket_free(t);
}

void crystal_exchange_done(struct crystal_exchange *x, struct op *op,
                           struct crystal_slice result)
{
    op->result = result;
    op->done = 1;
    ticket_release(x, op->ticket);
}

/* --- deposits --- */

static int op_parse(struct crystal_exchange *x, struct ticket *t, struct op *op,
                    struct crystal_message_cursor *cursor, struct crystal_error *err)
{
    struct member *member;

    op->ticket = t;
    if (crystal_message_take(cursor, &op->head, sizeof op->head) < 0)
        return crystal_error_set(err, EBADMSG, "coordinator: a deposit is too short");
    if (op->head.comm >= x->comm_count || !x->comms[op->head.comm]->ready)
        return crystal_error_set(err, EBADMSG,
                                 "coordinator: rank %" PRIu32
                                 " uses communicator number %" PRIu32
                                 ", which there is not",
                                 t->lrank, op->head.comm);
    op->comm = x->comms[op->head.comm];
    member = crystal_exchange_member(op->comm, t->lrank);
    if (!member)
        return crystal_error_set(err, EBADMSG,
                                 "coordinator: rank %" PRIu32
                                 " is no member of communicator '%s'",
                                 t->lrank, op->comm->name);
    if (crystal_op_check(&op->head, op->comm->nranks, member->crank, err) < 0) {
        crystal_error_prefix(err, "coordinator: rank %" PRIu32 ", communicator '%s'",
                             t->lrank, op->comm->name);
        return -EBADMSG;
    }
    op->slot = (uint32_t)(member - op->comm->live);
    op->send.bytes = (size_t)op->head.send_bytes;
    op->send.blob = t->body;
    op->send.at = crystal_message_view(cursor, op->head.send_bytes);
    if (!op->send.at)
        return crystal_error_set(err, EBADMSG, "coordinator: a deposit is too short");
    return 0;
}

static struct ticket *ticket_create(struct crystal_exchange *x, uint32_t lrank,
                                    uint32_t request, struct crystal_blob *body,
                                    struct crystal_error *err)
{
    struct crystal_message_cursor cursor = {body->data, body->bytes};
    struct ticket *t;
    uint32_t count;

    if (crystal_message_take(&cursor, &count, sizeof count) < 0 ||
        count > cursor.left_bytes / sizeof(struct crystal_msg_op)) {
        (void)crystal_error_set(err, EBADMSG, "coordinator: a deposit is too short");
        return NULL;
    }
    t = calloc(1,
               sizeof *t + count * (sizeof(struct op) + sizeof(struct crystal_slice)));
    if (!t) {
        (void)crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        return NULL;
    }
    t->results = (struct crystal_slice *)(void *)&t->ops[count];
    t->lrank = lrank;
    t->request = request;
    t->body = crystal_blob_ref(body);
    for (uint32_t i = 0; i < count; i++) {
        if (op_parse(x, t, &t->ops[i], &cursor, err) < 0)
            goto err_free;
        t->count++;
    }
    if (cursor.left_bytes) {
        (void)crystal_error_set(err, EBADMSG, "coordinator: a deposit is too long");
        goto err_free;
    }
    return t;
err_free:
    ticket_free(t);
    return NULL;
}

/* A receive from somebody else while only one rank runs. */
static int is_injected(const struct crystal_exchange *x, const struct op *op)
{
    return x->inject && op->head.peer != op->comm->live[op->slot].crank;
}

/* Receives are announced first, then everything that is sent goes in, then what can
 * complete does: a group of calls is atomic. */
static int ticket_deposit(struct crystal_exchange *x, struct ticket *t,
                          struct crystal_error *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < t->count; i++)
        if (t->ops[i].head.func == CRYSTAL_FUNC_RECV && !is_injected(x, &t->ops[i]))
            rc = crystal_exchange_p2p_announce(x, &t->ops[i], err);
    for (uint32_t i = 0; rc == 0 && i < t->count; i++)
        if (t->ops[i].head.func == CRYSTAL_FUNC_SEND)
            rc = crystal_exchange_p2p_send(x, &t->ops[i], err);
    for (uint32_t i = 0; rc == 0 && i < t->count; i++)
        if (t->ops[i].head.func == CRYSTAL_FUNC_RECV)
            rc = is_injected(x, &t->ops[i])
                     ? crystal_exchange_inject_receive(x, &t->ops[i], err)
                     : crystal_exchange_p2p_match(x, t->ops[i].queue, err);
    for (uint32_t i = 0; rc == 0 && i < t->count; i++) {
        struct op *op = &t->ops[i];

        if (op->head.func == CRYSTAL_FUNC_SEND || op->head.func == CRYSTAL_FUNC_RECV)
            continue;
        op->seq = op->comm->live[op->slot].next_seq++;
        rc = crystal_exchange_coll_deposit(x, op, err);
    }
    return rc;
}

int crystal_exchange_ops(struct crystal_exchange *x, uint32_t lrank, uint32_t request,
                         struct crystal_blob *body, struct crystal_error *err)
{
    struct rank *r = &x->ranks[lrank];
    struct ticket *t = ticket_create(x, lrank, request, body, err);
    struct ticket **at;
    int rc;

    if (!t)
        return -EBADMSG;
    for (at = &r->tickets; *at; at = &(*at)->next)
        continue;
    *at = t;
    r->blocked_request = 0;
    if (t->count) {
        r->last = t->ops[t->count - 1].head;
        r->has_last = 1;
    }
    t->pending = t->count + 1; /* one for us, so that t lives till the end */
    rc = ticket_deposit(x, t, err);
    if (rc == 0)
        ticket_release(x, t);
    return rc;
}

/* --- who is there, and who waits --- */

int crystal_exchange_join(struct crystal_exchange *x, uint32_t lrank)
{
    struct rank *r = &x->ranks[lrank];

    if (!r->is_live)
        return -EINVAL;
    if (r->joined)
        return -EEXIST;
    r->joined = 1;
    return 0;
}

void crystal_exchange_leave(struct crystal_exchange *x, uint32_t lrank)
{
    x->ranks[lrank].left = 1;
}

struct ticket *crystal_exchange_ticket(const struct rank *r, uint32_t request)
{
    struct ticket *t = r->tickets;

    while (t && t->request != request)
        t = t->next;
    return t;
}

void crystal_exchange_waiting(struct crystal_exchange *x, uint32_t lrank,
                              uint32_t request)
{
    if (crystal_exchange_ticket(&x->ranks[lrank], request))
        x->ranks[lrank].blocked_request = request;
}

enum crystal_exchange_state crystal_exchange_state(const struct crystal_exchange *x,
                                                   uint32_t lrank)
{
    const struct rank *r = &x->ranks[lrank];

    if (r->left)
        return CRYSTAL_EXCHANGE_LEFT;
    if (!r->joined)
        return CRYSTAL_EXCHANGE_ABSENT;
    return r->joining || r->blocked_request ? CRYSTAL_EXCHANGE_WAITS
                                            : CRYSTAL_EXCHANGE_RUNS;
}
