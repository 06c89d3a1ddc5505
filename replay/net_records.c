/* Looking up recorded contributions. See net_records.h. Every member of a communicator
 * has the same collectives in each iteration, so this rank's own list tells where the
 * iterations begin; of transfers the sender's representative's list does.
 */
#include "config.h"

#include "replay/net_records.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Where the iterations lie in a row of operations: those before the first, then
 * `period` in each. */
struct row {
    uint64_t count, first, period;
    int is_known;
};

/* What was looked up once: the number of the first contribution of a shape. */
struct shape {
    uint64_t size; /* elements or, of a transfer, bytes */
    uint32_t crank;
    uint8_t func, dtype; /* func SEND: a transfer; NONE: free */
    int is_kept;
    uint64_t seq;
};
#define SHAPES 64

struct crystal_records {
    const struct crystal_graph *graph;
    uint32_t comm, lrank, crank, nranks;
    uint32_t iterations;
    struct row colls;
    const struct crystal_op **ops; /* own records of the collectives; owned */
    pthread_mutex_t lock;          /* the rest */
    struct shape shapes[SHAPES];
    uint32_t shape_next;              /* to be overwritten */
    struct row *senders;              /* by crank; NULL until asked for; owned */
    struct crystal_comm_calls *calls; /* of this rank; the same */
    struct crystal_calls_walk
        *walks; /* [1 + 2 * nranks]: collectives, sends, receives */
};

/* Walks a representative's list: rows of operations that `counts` says yes to. */
struct walk {
    const struct crystal_records *r;
    uint32_t lrank; /* whose list */
    int is_send;    /* sends to r's crank, else collectives */
};

static int walk_counts(const struct walk *w, const struct crystal_op *op)
{
    const struct crystal_graph *g = w->r->graph;

    if (op->kind != (w->is_send ? CRYSTAL_OP_SEND : CRYSTAL_OP_COLL) ||
        crystal_graph_comm_of(g, w->lrank, op->comm) != w->r->comm)
        return 0;
    return !w->is_send ||
           crystal_graph_peer_of(g, w->lrank, op->comm, op->peer) == w->r->crank;
}

static void walk_row(const struct walk *w, struct row *ret,
                     const struct crystal_op **ret_ops)
{
    uint32_t rep = crystal_graph_rep_of(w->r->graph, w->lrank), mark_count;
    const uint64_t *marks = crystal_graph_marks(w->r->graph, rep, &mark_count);
    uint64_t op_count, before_last = 0;
    const struct crystal_op *ops = crystal_graph_ops(w->r->graph, rep, &op_count);
    struct row row = {.is_known = 1};

    for (uint64_t i = 0; i < op_count; i++) {
        if (!walk_counts(w, &ops[i]))
            continue;
        if (ret_ops)
            ret_ops[row.count] = &ops[i];
        row.count++;
        if (!mark_count)
            continue;
        row.first += i < marks[0];
        before_last += i < marks[mark_count - 2];
        row.period += i >= marks[mark_count - 2] && i < marks[mark_count - 1];
    }
    /* each iteration has the same calls; where it does not, nothing repeats */
    if (!mark_count || before_last != row.first + row.period * (mark_count - 2))
        row.period = 0;
    *ret = row;
}

struct crystal_records *crystal_records_create(const struct crystal_graph *g,
                                               uint32_t graph_comm, uint32_t lrank,
                                               struct crystal_error *err)
{
    struct crystal_records *r = calloc(1, sizeof *r);
    struct walk own = {.r = r, .lrank = lrank};
    struct crystal_graph_comm comm;
    uint32_t mark_count;

    if (!r)
        goto err_memory;
    crystal_graph_comm(g, graph_comm, &comm);
    r->graph = g;
    r->comm = graph_comm;
    r->lrank = lrank;
    r->nranks = comm.nranks;
    r->crank = crystal_graph_crank_of(g, graph_comm, lrank);
    (void)crystal_graph_marks(g, crystal_graph_rep_of(g, lrank), &mark_count);
    r->iterations = mark_count ? mark_count - 1 : 0;
    (void)pthread_mutex_init(&r->lock, NULL); /* cannot fail on Linux */
    walk_row(&own, &r->colls, NULL);
    r->ops = calloc(r->colls.count + 1, sizeof *r->ops);
    if (!r->ops)
        goto err_memory;
    walk_row(&own, &r->colls, r->ops);
    return r;
err_memory:
    free(r);
    (void)crystal_error_set(err, ENOMEM, "out of memory for recorded payload");
    return NULL;
}

void crystal_records_destroy(struct crystal_records *r)
{
    if (!r)
        return;
    (void)pthread_mutex_destroy(&r->lock);
    free((void *)r->ops);
    free(r->senders);
    crystal_comm_calls_destroy(r->calls);
    free(r->walks);
    free(r);
}

static int calls_make(struct crystal_records *r)
{
    if (!r->calls)
        r->calls = crystal_comm_calls_recorded(r->graph, r->comm, r->lrank, NULL);
    if (!r->walks)
        r->walks = calloc(1 + 2 * (size_t)r->nranks, sizeof *r->walks);
    return r->calls && r->walks ? 0 : -ENOMEM;
}

int crystal_records_call(struct crystal_records *r, enum crystal_calls_what what,
                         uint32_t peer, uint64_t nth, struct crystal_calls_found *ret)
{
    uint64_t at = what == CRYSTAL_CALLS_COLLECTIVES ? 0
                  : what == CRYSTAL_CALLS_SENDS     ? 1 + (uint64_t)peer
                                                    : 1 + (uint64_t)r->nranks + peer;
    struct crystal_calls_walk *walk;
    int code;

    (void)pthread_mutex_lock(&r->lock);
    code = calls_make(r);
    walk = code ? NULL : &r->walks[at];
    if (walk && (!walk->next || walk->found > nth))
        *walk = (struct crystal_calls_walk){.what = what, .peer = peer};
    while (!code && walk->found <= nth)
        code = !crystal_comm_calls_next(r->calls, walk, ret);
    (void)pthread_mutex_unlock(&r->lock);
    return code < 0 ? code : !code;
}

static void at_set(const struct crystal_records *r, const struct row *row,
                   uint32_t pair, uint64_t seq, struct crystal_record_at *ret)
{
    uint64_t last = row->first + row->period * (r->iterations ? r->iterations - 1 : 0);

    *ret = (struct crystal_record_at){.seq = seq,
                                      .asked = seq,
                                      .period = row->period,
                                      .first = row->first,
                                      .pair = pair};
    if (seq < row->count || !row->period)
        return;
    ret->seq = last + (seq - last) % row->period;
    ret->is_repeated = 1;
}

const struct crystal_op *crystal_records_coll(struct crystal_records *r, uint64_t seq,
                                              struct crystal_record_at *ret)
{
    at_set(r, &r->colls, UINT32_MAX, seq, ret);
    return ret->seq < r->colls.count ? r->ops[ret->seq] : NULL;
}

int crystal_records_transfer(struct crystal_records *r, uint32_t from, uint64_t seq,
                             struct crystal_record_at *ret)
{
    struct crystal_graph_comm comm;
    struct walk walk = {.r = r, .is_send = 1};
    int code = -ENOMEM;

    crystal_graph_comm(r->graph, r->comm, &comm);
    (void)pthread_mutex_lock(&r->lock);
    if (!r->senders)
        r->senders = calloc(r->nranks, sizeof *r->senders);
    if (r->senders && from < r->nranks) {
        walk.lrank = comm.members[from];
        if (!r->senders[from].is_known)
            walk_row(&walk, &r->senders[from], NULL);
        at_set(r, &r->senders[from], from, seq, ret);
        code = 0;
    }
    (void)pthread_mutex_unlock(&r->lock);
    return code;
}

/* One recorded contribution: as crystal_records_find. */
static int recorded(const struct crystal_records *r, const struct crystal_record_at *at,
                    uint64_t seq, uint32_t crank, const void **ret, uint64_t *ret_have)
{
    if (at->pair != UINT32_MAX)
        return crystal_graph_p2p_payload(r->graph, r->comm, at->pair, r->crank, seq,
                                         ret, ret_have);
    return crystal_graph_payload(r->graph, r->comm, seq, crank, ret, ret_have);
}

static int part(uint64_t have, uint64_t offset, uint64_t bytes, const void **at)
{
    if (offset > have || bytes > have - offset)
        return -EBADMSG;
    *at = (const char *)*at + offset;
    return 1;
}

/* The bytes of `at` where those of all recorded iterations are the same, else those of
 * the last one, if they may be repeated. */
static int repeated_find(const struct crystal_records *r,
                         const struct crystal_record_at *at, uint32_t crank,
                         uint64_t offset, uint64_t bytes, int repeats_last,
                         const void **ret, uint64_t *ret_have)
{
    const void *last, *earlier;
    uint64_t have;
    int code, has_last;

    if (!at->period || r->iterations < 2)
        return -ERANGE;
    code = recorded(r, at, at->seq, crank, &last, ret_have);
    if (code == 1)
        code = part(*ret_have, offset, bytes, &last);
    has_last = code == 1;
    for (uint32_t k = 1; code == 1 && k < r->iterations; k++) {
        code = recorded(r, at, at->seq - k * at->period, crank, &earlier, &have);
        if (code == 1)
            code = part(have, offset, bytes, &earlier);
        if (code == 1 && memcmp(earlier, last, bytes) != 0)
            code = -ESTALE;
    }
    if (repeats_last && (code == -ESTALE || code == -EBADMSG) && has_last)
        code = 2;
    if (code > 0)
        *ret = last;
    return code;
}

int crystal_records_find(struct crystal_records *r, const struct crystal_record_at *at,
                         uint32_t crank, uint64_t offset, uint64_t bytes,
                         int repeats_last, const void **ret, uint64_t *ret_have)
{
    struct crystal_record_at again = *at;
    const void *data;
    int code;

    *ret_have = 0;
    if (at->is_repeated)
        return repeated_find(r, at, crank, offset, bytes, repeats_last, ret, ret_have);
    code = recorded(r, at, at->seq, crank, &data, ret_have);
    if (code == -ERANGE && at->seq >= at->first + r->iterations * at->period) {
        again.seq -= at->period; /* its recording ends before this rank's */
        return repeated_find(r, &again, crank, offset, bytes, repeats_last, ret,
                             ret_have);
    }
    if (code == 1)
        code = part(*ret_have, offset, bytes, &data);
    if (code == 1)
        *ret = data;
    return code;
}

/* One contribution of that shape: 1 kept, 0 not, -ERANGE none behind. */
static int shape_look(const struct crystal_records *r, const struct crystal_op *op,
                      const struct shape *shape, uint64_t seq, const void **ret,
                      uint64_t *ret_have)
{
    const struct crystal_op *own;

    if (!op) {
        int code = crystal_graph_p2p_payload(r->graph, r->comm, shape->crank, r->crank,
                                             seq, ret, ret_have);

        return code == 1 ? *ret_have == shape->size : code;
    }
    if (seq >= r->colls.count)
        return -ERANGE;
    own = r->ops[seq];
    if (own->func != op->func || own->dtype != op->dtype || own->value != op->value ||
        own->peer != op->peer)
        return 0;
    return crystal_graph_payload(r->graph, r->comm, seq, shape->crank, ret, ret_have) ==
           1;
}

static void shape_search(struct crystal_records *r, const struct crystal_op *op,
                         struct shape *shape)
{
    const void *data;
    uint64_t have;
    int code = 0;

    for (shape->seq = 0; code == 0; shape->seq += code == 0)
        code = shape_look(r, op, shape, shape->seq, &data, &have);
    shape->is_kept = code == 1;
}

int crystal_records_first(struct crystal_records *r, const struct crystal_op *op,
                          uint32_t crank, uint64_t bytes, const void **ret,
                          uint64_t *ret_have)
{
    struct shape *s = NULL;
    struct shape want = {.size = op ? op->value : bytes,
                         .crank = crank,
                         .func = op ? op->func : (uint8_t)CRYSTAL_FUNC_SEND,
                         .dtype = op ? op->dtype : 0};
    int code;

    (void)pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < SHAPES && !s; i++)
        if (r->shapes[i].func == want.func && r->shapes[i].dtype == want.dtype &&
            r->shapes[i].crank == crank && r->shapes[i].size == want.size)
            s = &r->shapes[i];
    if (!s) {
        s = &r->shapes[r->shape_next++ % SHAPES];
        shape_search(r, op, &want);
        *s = want;
    }
    code = s->is_kept ? shape_look(r, op, s, s->seq, ret, ret_have) : 0;
    (void)pthread_mutex_unlock(&r->lock);
    return code == 1;
}

uint32_t crystal_records_iterations(const struct crystal_records *r)
{
    return r->iterations;
}

uint64_t crystal_records_iteration(const struct crystal_record_at *at)
{
    return at->period && at->asked >= at->first ? (at->asked - at->first) / at->period
                                                : 0;
}
