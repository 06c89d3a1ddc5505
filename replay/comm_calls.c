/* See comm_calls.h. */
#include "config.h"

#include "replay/comm_calls.h"

#include "replay/parts.h"

#include <errno.h>
#include <stdlib.h>

struct crystal_comm_calls {
    uint32_t crank;
    uint64_t before; /* calls before the iterations */
    uint64_t end;    /* behind the last iteration, which are those from end - each on */
    uint64_t each;   /* in one iteration */
    uint64_t count;
    bool is_over;                     /* the program ended by itself */
    struct crystal_comm_call calls[]; /* [count] */
};

static bool is_call(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV;
}

/* Adds the calls on comm among some records. Returns how many; calls may be NULL. */
static uint64_t take(const struct crystal_graph *g, uint32_t comm, uint32_t lrank,
                     const struct crystal_op *ops, uint64_t count,
                     struct crystal_comm_call *calls)
{
    uint64_t taken = 0;

    for (uint64_t i = 0; i < count; i++) {
        const struct crystal_op *op = &ops[i];

        if (!is_call(op) || crystal_graph_comm_of(g, lrank, op->comm) != comm)
            continue;
        if (calls)
            calls[taken] = (struct crystal_comm_call){
                .func = op->kind == CRYSTAL_OP_COLL   ? op->func
                        : op->kind == CRYSTAL_OP_SEND ? CRYSTAL_FUNC_SEND
                                                      : CRYSTAL_FUNC_RECV,
                .dtype = op->dtype,
                .is_empty = crystal_op_is_empty(op),
                .peer = op->kind == CRYSTAL_OP_COLL
                            ? op->peer
                            : crystal_graph_peer_of(g, lrank, op->comm, op->peer),
                .count = op->value};
        taken++;
    }
    return taken;
}

/* Of the records those before the iterations, and some of the rest. */
struct stretch {
    uint64_t first;      /* iterations begin */
    uint64_t from;       /* what follows what was before */
    uint64_t begin, end; /* the last iteration */
    uint64_t to;
};

/* Whether a recording was not stopped. */
static bool is_over(const struct crystal_op *ops, uint64_t count)
{
    while (count && ops[count - 1].kind != CRYSTAL_OP_END)
        count--;
    return count && !ops[count - 1].aux;
}

static struct crystal_comm_calls *create(const struct crystal_graph *g, uint32_t comm,
                                         uint32_t lrank, const struct stretch *s,
                                         struct crystal_error *err)
{
    uint64_t op_count, before, count;
    const struct crystal_op *ops =
        crystal_graph_ops(g, crystal_graph_rep_of(g, lrank), &op_count);
    struct crystal_comm_calls *calls;

    before = take(g, comm, lrank, ops, s->first, NULL);
    count = before + take(g, comm, lrank, ops + s->from, s->to - s->from, NULL);
    calls = malloc(sizeof *calls + count * sizeof calls->calls[0]);
    if (!calls) {
        (void)crystal_error_set(err, ENOMEM, "rank %u: out of memory", lrank);
        return NULL;
    }
    calls->crank = crystal_graph_crank_of(g, comm, lrank);
    calls->count = count;
    calls->is_over = is_over(ops, op_count);
    calls->before = take(g, comm, lrank, ops, s->first, calls->calls);
    (void)take(g, comm, lrank, ops + s->from, s->to - s->from, calls->calls + before);
    calls->each = take(g, comm, lrank, ops + s->begin, s->end - s->begin, NULL);
    calls->end = before + take(g, comm, lrank, ops + s->from, s->end - s->from, NULL);
    return calls;
}

static struct stretch stretch_of(const struct crystal_graph *g, uint32_t lrank)
{
    uint32_t rep = crystal_graph_rep_of(g, lrank), mark_count;
    const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);
    struct stretch s;

    (void)crystal_graph_ops(g, rep, &s.to);
    s.first = mark_count > 1 ? marks[0] : s.to;
    s.begin = mark_count > 1 ? marks[mark_count - 2] : s.to;
    s.end = mark_count > 1 ? marks[mark_count - 1] : s.to;
    s.from = s.first;
    return s;
}

struct crystal_comm_calls *crystal_comm_calls_create(const struct crystal_graph *g,
                                                     uint32_t comm, uint32_t lrank,
                                                     struct crystal_error *err)
{
    struct stretch s = stretch_of(g, lrank);

    s.from = s.begin;
    s.to = s.end;
    return create(g, comm, lrank, &s, err);
}

struct crystal_comm_calls *crystal_comm_calls_recorded(const struct crystal_graph *g,
                                                       uint32_t comm, uint32_t lrank,
                                                       struct crystal_error *err)
{
    struct stretch s = stretch_of(g, lrank);

    return create(g, comm, lrank, &s, err);
}

void crystal_comm_calls_destroy(struct crystal_comm_calls *calls)
{
    free(calls);
}

static bool is_message(const struct crystal_comm_call *call)
{
    return call->func == CRYSTAL_FUNC_SEND || call->func == CRYSTAL_FUNC_RECV;
}

/* Whether the call, of crank, makes the library send to the peer, or receive from it.
 */
static bool is_between(const struct crystal_comm_call *call, uint32_t crank,
                       uint32_t peer, bool is_send)
{
    switch (call->func) {
    case CRYSTAL_FUNC_SEND:
        return is_send && call->peer == peer;
    case CRYSTAL_FUNC_RECV:
        return !is_send && call->peer == peer;
    case CRYSTAL_FUNC_ALLTOALL:
        return !call->is_empty;
    case CRYSTAL_FUNC_GATHER:
        return !call->is_empty && call->peer == (is_send ? peer : crank);
    case CRYSTAL_FUNC_SCATTER:
        return !call->is_empty && call->peer == (is_send ? crank : peer);
    default:
        return false;
    }
}

static bool is_wanted(const struct crystal_comm_call *call, uint32_t crank,
                      const struct crystal_calls_walk *walk)
{
    switch (walk->what) {
    case CRYSTAL_CALLS_SENDS:
        return is_between(call, crank, walk->peer, true);
    case CRYSTAL_CALLS_RECEIVES:
        return is_between(call, crank, walk->peer, false);
    case CRYSTAL_CALLS_GATHERED:
        return call->func == CRYSTAL_FUNC_GATHER &&
               is_between(call, crank, walk->peer, true);
    case CRYSTAL_CALLS_SCATTERED:
        return call->func == CRYSTAL_FUNC_SCATTER &&
               is_between(call, crank, walk->peer, false);
    default:
        return !is_message(call) && !crystal_func_is_parted(call->func) &&
               !call->is_empty;
    }
}

/* The nth call, from 0; some iteration has calls where n is not less than the count. */
static const struct crystal_comm_call *call_at(const struct crystal_comm_calls *calls,
                                               uint64_t n)
{
    return &calls->calls[n < calls->count ? n
                                          : calls->end - calls->each +
                                                (n - calls->end) % calls->each];
}

bool crystal_comm_calls_next(const struct crystal_comm_calls *calls,
                             struct crystal_calls_walk *walk,
                             struct crystal_calls_found *ret)
{
    struct crystal_calls_walk at = *walk;
    uint64_t last = at.next < calls->count ? calls->count : at.next;

    for (last += calls->each; at.next < last; at.next++) {
        const struct crystal_comm_call *call = call_at(calls, at.next);
        bool is_found = is_wanted(call, calls->crank, &at);

        if (is_found)
            *ret = (struct crystal_calls_found){
                .call = call,
                .seq = is_message(call) ? at.messages : at.collectives,
                .timed_seq = is_message(call) ? at.messages : at.collectives - at.empty,
                .is_timed = at.next >= calls->before &&
                            (!calls->is_over || at.next < calls->end ||
                             at.next >= calls->count)};
        at.empty += call->is_empty;
        if (!is_message(call))
            at.collectives++;
        else if (is_found)
            at.messages++;
        if (is_found) {
            at.next++;
            at.found++;
            *walk = at;
            return true;
        }
    }
    return false;
}
