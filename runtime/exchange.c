/* Capture's exchange of data between live ranks. See exchange.h.
 *
 * A rank's OPS message becomes a ticket that keeps the message's body alive; operations
 * point into it, and results are slices of it or of freshly computed blobs, so that
 * large payloads are copied only where they are reduced or gathered. Sends and receives
 * meet in exchange_p2p.c.
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

static void coll_free(struct coll *coll)
{
    free(coll->deposits);
    free(coll);
}

static void comm_free(struct comm *m)
{
    if (!m)
        return;
    while (m->first_coll) {
        struct coll *gone = m->first_coll;

        m->first_coll = gone->next;
        coll_free(gone);
    }
    crystal_exchange_p2p_fini(m);
    for (uint32_t i = 0; i < m->live_count; i++)
        crystal_blob_unref(m->live[i].scattered.blob);
    free(m->received);
    free(m->name);
    free(m->members);
    free(m->part_of);
    free(m->live);
    free(m);
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
        comm_free(x->comms[i]);
    free(x->comms);
    free(x->ranks);
    free(x);
}

/* --- communicators --- */

static struct comm *comm_add(struct crystal_exchange *x, const uint8_t *id,
                             const char *name, uint32_t nranks,
                             struct crystal_error *err)
{
    struct comm **more = realloc(x->comms, (x->comm_count + 1) * sizeof *more);
    struct comm *m = calloc(1, sizeof *m);

    if (more)
        x->comms = more;
    if (m) {
        m->name = strdup(name);
        m->members = malloc(((size_t)nranks + 1) * sizeof *m->members);
        m->part_of = malloc(((size_t)nranks + 1) * sizeof *m->part_of);
    }
    if (!more || !m || !m->name || !m->members || !m->part_of) {
        comm_free(m);
        (void)crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        return NULL;
    }
    memcpy(m->id, id, sizeof m->id);
    m->nranks = nranks;
    for (uint32_t c = 0; c < nranks; c++) {
        m->members[c] = NO_RANK;
        m->part_of[c] = CRYSTAL_NO_PART;
    }
    m->index = x->comm_count;
    x->comms[x->comm_count++] = m;
    return m;
}

static struct comm *comm_find(const struct crystal_exchange *x, const uint8_t *id)
{
    for (uint32_t i = x->comm_count; i-- > 0;) /* recent ones are asked for */
        if (memcmp(x->comms[i]->id, id, NCCL_UNIQUE_ID_BYTES) == 0)
            return x->comms[i];
    return NULL;
}

int crystal_exchange_knows(const struct crystal_exchange *x, const uint8_t *id)
{
    return comm_find(x, id) != NULL;
}

static struct member *member_add(struct comm *m, uint32_t lrank, uint32_t crank)
{
    struct member *more;

    if (m->live_count == m->live_capacity) {
        uint32_t capacity = m->live_capacity ? m->live_capacity * 2 : 8;

        more = realloc(m->live, capacity * sizeof *more);
        if (!more)
            return NULL;
        m->live = more;
        m->live_capacity = capacity;
    }
    m->live[m->live_count] = (struct member){.lrank = lrank, .crank = crank};
    return &m->live[m->live_count++];
}

static struct member *member_find(const struct comm *m, uint32_t lrank)
{
    for (uint32_t i = 0; i < m->live_count; i++)
        if (m->live[i].lrank == lrank)
            return &m->live[i];
    return NULL;
}

/* Fills part_of and times from members: each crank is stood for by the live member that
 * represents it, if that is a member. */
static int comm_represent(const struct crystal_exchange *x, struct comm *m,
                          struct crystal_error *err)
{
    uint32_t *slot_of = malloc(((size_t)x->layout->lrank_count + 1) * sizeof *slot_of);

    if (!slot_of)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    for (uint32_t r = 0; r < x->layout->lrank_count; r++)
        slot_of[r] = CRYSTAL_NO_PART;
    for (uint32_t i = 0; i < m->live_count; i++) {
        slot_of[m->live[i].lrank] = i;
        m->live[i].times = 0;
    }
    for (uint32_t c = 0; c < m->nranks; c++) {
        uint32_t lrank = m->members[c];
        uint32_t live = x->ranks[lrank].is_live
                            ? lrank
                            : crystal_layout_representative(x->layout, lrank);

        m->part_of[c] = live < x->layout->lrank_count ? slot_of[live] : CRYSTAL_NO_PART;
        if (m->part_of[c] != CRYSTAL_NO_PART)
            m->live[m->part_of[c]].times++;
    }
    free(slot_of);
    if (crystal_replica_span(&x->replica, m->members, m->nranks, &m->span))
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    return 0;
}

int crystal_exchange_learn(struct crystal_exchange *x, const uint8_t *id,
                           const char *name, const uint32_t *members, uint32_t nranks,
                           struct crystal_error *err)
{
    struct comm *m = comm_find(x, id);

    if (m)
        return 0; /* set twice */
    m = comm_add(x, id, name, members ? nranks : 0, err);
    if (!m)
        return -ENOMEM;
    if (!members) {
        m->named_only = 1;
        return 0;
    }
    memcpy(m->members, members, nranks * sizeof *members);
    for (uint32_t c = 0; c < nranks; c++)
        if (members[c] < x->layout->lrank_count && x->ranks[members[c]].is_live &&
            !member_add(m, members[c], c))
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    m->members_known = 1;
    return comm_represent(x, m, err);
}

/* The name alone was known: members come from who joins. */
static int comm_size(struct comm *m, uint32_t nranks, struct crystal_error *err)
{
    uint32_t *members = malloc(((size_t)nranks + 1) * sizeof *members);
    uint32_t *part_of = malloc(((size_t)nranks + 1) * sizeof *part_of);

    if (!members || !part_of) {
        free(members);
        free(part_of);
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    }
    for (uint32_t c = 0; c < nranks; c++) {
        members[c] = NO_RANK;
        part_of[c] = CRYSTAL_NO_PART;
    }
    free(m->members);
    free(m->part_of);
    m->members = members;
    m->part_of = part_of;
    m->nranks = nranks;
    m->named_only = 0;
    return 0;
}

static int compare_cranks(const void *a, const void *b)
{
    uint32_t x = ((const struct member *)a)->crank,
             y = ((const struct member *)b)->crank;

    return x < y ? -1 : x > y;
}

/* All live members have asked. */
static int comm_complete(struct crystal_exchange *x, struct comm *m,
                         struct crystal_error *err)
{
    int known_name = 0;

    if (!m->members_known) {
        qsort(m->live, m->live_count, sizeof *m->live, compare_cranks);
        if (comm_represent(x, m, err) < 0)
            return -ENOMEM;
    }
    m->ready = 1;
    for (uint32_t i = 0; i < x->comm_count; i++)
        if (x->comms[i] != m && x->comms[i]->ready &&
            strcmp(x->comms[i]->name, m->name) == 0)
            known_name = 1;
    if (!known_name && x->hooks.comm_made)
        x->hooks.comm_made(x->hooks.context, m->name, m->members, m->nranks);
    for (uint32_t i = 0; i < m->live_count; i++) {
        x->ranks[m->live[i].lrank].joining = NULL;
        x->hooks.comm_ready(x->hooks.context, m->live[i].lrank, m->live[i].request,
                            m->index, m->name);
    }
    return 0;
}

static struct comm *comm_of_init(struct crystal_exchange *x,
                                 const struct crystal_msg_comm_init *init,
                                 struct crystal_error *err)
{
    struct comm *m = comm_find(x, init->id);
    char name[128];

    if (m)
        return m->named_only && comm_size(m, init->nranks, err) < 0 ? NULL : m;
    /* Its id did not come through the store: a child's says what it is a child of
     * (capture/park_split.c). */
    if (memcmp(init->id, "CRCHILD1", 8) == 0)
        (void)snprintf(name, sizeof name, "%.112s", (const char *)init->id + 16);
    else
        (void)snprintf(name, sizeof name, "id:%02x%02x%02x%02x%02x%02x%02x%02x",
                       init->id[0], init->id[1], init->id[2], init->id[3], init->id[4],
                       init->id[5], init->id[6], init->id[7]);
    for (char *c = name; *c; c++)
        if ((unsigned char)*c < ' ') /* it goes into lines of comms.tab */
            *c = '?';
    return comm_add(x, init->id, name, init->nranks, err);
}

int crystal_exchange_comm_init(struct crystal_exchange *x, uint32_t lrank,
                               uint32_t request,
                               const struct crystal_msg_comm_init *init,
                               struct crystal_error *err)
{
    struct comm *m;
    struct member *member;

    if (init->nranks == 0 || init->nranks > x->layout->lrank_count ||
        init->crank >= init->nranks)
        return crystal_error_set(
            err, EINVAL,
            "coordinator: rank %" PRIu32 " joins a communicator as %" PRIu32
            " of %" PRIu32 ", but the job has %" PRIu32 " ranks",
            lrank, init->crank, init->nranks, x->layout->lrank_count);
    m = comm_of_init(x, init, err);
    if (!m)
        return -ENOMEM;
    if (init->nranks != m->nranks)
        return crystal_error_set(
            err, EINVAL,
            "coordinator: rank %" PRIu32 " joins communicator '%s' "
            "as one of %" PRIu32 " ranks, but it has %" PRIu32 " (the job has %" PRIu32
            " logical ranks); does the "
            "program take its world size from WORLD_SIZE?",
            lrank, m->name, init->nranks, m->nranks, x->layout->lrank_count);
    if (m->members[init->crank] == NO_RANK)
        m->members[init->crank] = lrank;
    if (m->members[init->crank] != lrank)
        return crystal_error_set(err, EINVAL,
                                 "coordinator: rank %" PRIu32
                                 " joins communicator '%s' "
                                 "as its rank %" PRIu32 ", which is rank %" PRIu32,
                                 lrank, m->name, init->crank, m->members[init->crank]);
    member = member_find(m, lrank);
    if (!member && !m->members_known)
        member = member_add(m, lrank, init->crank);
    if (!member)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    if (member->joined || member->crank != init->crank)
        return crystal_error_set(
            err, EINVAL, "coordinator: rank %" PRIu32 " joins communicator '%s' twice",
            lrank, m->name);
    member->joined = 1;
    member->request = request;
    x->ranks[lrank].joining = m;
    m->joined_count++;
    if (m->joined_count == (m->members_known ? m->live_count : m->nranks))
        return comm_complete(x, m, err);
    return 0;
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

/* --- collectives --- */

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

static int coll_deposit(struct crystal_exchange *x, struct op *op,
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
    member = member_find(op->comm, t->lrank);
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
        rc = coll_deposit(x, op, err);
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
