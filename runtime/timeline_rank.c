/* The host thread of one rank: goes through its program, gives work to streams, waits.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

void tl_rank_queue(struct crystal_timeline *t, struct tl_rank *r)
{
    r->state = TL_RUNS;
    r->next = NULL;
    if (t->run_tail)
        t->run_tail->next = r;
    else
        t->run_head = r;
    t->run_tail = r;
}

/* Begins a piece of work behind what its stream and its communicator do. */
static struct tl_node *work(struct crystal_timeline *t, struct tl_rank *r, uint32_t pc,
                            enum tl_kind kind, struct tl_node *stream_end,
                            struct tl_node *comm_end)
{
    struct tl_node *node = tl_node_new(t, kind, r, r->host_ns);

    if (!node)
        return NULL;
    node->iteration = r->iteration;
    node->instr = pc;
    tl_node_wait(t, node, stream_end);
    if (comm_end != stream_end)
        tl_node_wait(t, node, comm_end);
    return node;
}

static void launch_coll(struct crystal_timeline *t, struct tl_rank *r, uint32_t pc)
{
    const struct crystal_instr *in = &r->program->instrs[pc];
    struct tl_comm *comm = r->comm[in->local];
    struct tl_coll *coll = tl_coll_get(t, comm, r->coll_seq[in->local]++);
    struct tl_node *node;

    if (!coll) { /* out of memory; a seq that is over cannot be launched again */
        t->code = t->code ? t->code : -EINVAL;
        return;
    }
    node = work(t, r, pc, TL_COLL, r->stream_end[in->stream], r->comm_end[in->local]);
    if (!node)
        return;
    coll->is_described = true;
    coll->func = in->func;
    coll->dtype = in->dtype;
    coll->root = in->peer;
    coll->count = in->count;
    node->coll = coll;
    node->crank = crystal_graph_crank_of(t->config.graph, comm->index, r->lrank);
    coll->nodes[node->crank] = node;
    tl_node_set(t, &r->stream_end[in->stream], node);
    tl_node_set(t, &r->comm_end[in->local], node);
    tl_node_made(t, node);
}

static bool is_p2p(const struct crystal_instr *in)
{
    return in->kind == CRYSTAL_OP_SEND || in->kind == CRYSTAL_OP_RECV;
}

/* Is instruction pc the first message of its stream and communicator in the group? */
static bool is_first(const struct tl_rank *r, uint32_t begin, uint32_t pc)
{
    const struct crystal_instr *in = &r->program->instrs[pc];

    for (uint32_t i = begin; i < pc; i++) {
        const struct crystal_instr *other = &r->program->instrs[i];

        if (is_p2p(other) && other->stream == in->stream && other->local == in->local)
            return false;
    }
    return true;
}

/* All messages of a group on one stream and communicator: they begin together, and what
 * comes later waits for all of them. */
static void launch_batch(struct crystal_timeline *t, struct tl_rank *r, uint32_t begin,
                         uint32_t end)
{
    const struct crystal_instr *first = &r->program->instrs[begin];
    struct tl_node *join = tl_node_new(t, TL_JOIN, r, r->host_ns);

    if (!join)
        return;
    for (uint32_t pc = begin; pc < end && !t->code; pc++) {
        const struct crystal_instr *in = &r->program->instrs[pc];
        bool sends = in->kind == CRYSTAL_OP_SEND;
        struct tl_message *m;
        struct tl_node *node;

        if (!is_p2p(in) || in->stream != first->stream || in->local != first->local)
            continue;
        m = tl_message_get(t, r->pair[in->slot], r->pair_seq[in->slot]++);
        if (!m) {
            t->code = t->code ? t->code : -EINVAL;
            break;
        }
        node = work(t, r, pc, sends ? TL_SEND : TL_RECV, r->stream_end[in->stream],
                    r->comm_end[in->local]);
        if (!node)
            break;
        node->message = m;
        if (sends) {
            tl_node_set(t, &m->batch, join); /* shares the sender's NIC */
            m->send = node;
            m->bytes = in->count * crystal_dtype_bytes(in->dtype);
        } else {
            m->recv = node;
            if (!m->send)
                m->bytes = in->count * crystal_dtype_bytes(in->dtype);
        }
        tl_node_wait(t, join, node);
        tl_node_made(t, node);
    }
    tl_node_set(t, &r->stream_end[first->stream], join);
    tl_node_set(t, &r->comm_end[first->local], join);
    tl_node_made(t, join);
}

static void launch(struct crystal_timeline *t, struct tl_rank *r, uint32_t begin,
                   uint32_t end)
{
    for (uint32_t pc = begin; pc < end && !t->code; pc++) {
        const struct crystal_instr *in = &r->program->instrs[pc];

        if (in->kind == CRYSTAL_OP_COLL)
            launch_coll(t, r, pc);
        else if (is_p2p(in) && is_first(r, begin, pc))
            launch_batch(t, r, pc, end);
    }
}

static void stream_waits(struct crystal_timeline *t, struct tl_rank *r, uint32_t pc)
{
    const struct crystal_instr *in = &r->program->instrs[pc];
    struct tl_node *event =
        in->slot == CRYSTAL_PROGRAM_NONE ? NULL : r->event[in->slot];
    struct tl_node *node;

    if (!event)
        return;
    node = work(t, r, pc, TL_JOIN, r->stream_end[in->stream], event);
    if (!node)
        return;
    tl_node_set(t, &r->stream_end[in->stream], node);
    tl_node_made(t, node);
}

/* Returns true where the host has to wait. */
static bool host_waits(struct crystal_timeline *t, struct tl_rank *r,
                       struct tl_node *node)
{
    if (!node)
        return false;
    if (node->is_ended) {
        if (node->end_ns > r->host_ns)
            r->host_ns = node->end_ns;
        return false;
    }
    node->waiter = r;
    tl_node_set(t, &r->awaited, node);
    r->state = TL_WAITS;
    return true;
}

/* One instruction; true where the host cannot go on. */
static bool step(struct crystal_timeline *t, struct tl_rank *r)
{
    const struct crystal_instr *in = &r->program->instrs[r->pc];

    switch (in->kind) {
    case CRYSTAL_OP_GROUP:
        if (in->starts_group) {
            r->in_group = true;
            r->group_begin = r->pc + 1;
        } else if (r->in_group) {
            r->in_group = false;
            launch(t, r, r->group_begin, r->pc);
        }
        return false;
    case CRYSTAL_OP_COLL:
    case CRYSTAL_OP_SEND:
    case CRYSTAL_OP_RECV:
        if (!r->in_group)
            launch(t, r, r->pc, r->pc + 1);
        return false;
    case CRYSTAL_OP_RECORD:
        tl_node_set(t, &r->event[in->slot], r->stream_end[in->stream]);
        return false;
    case CRYSTAL_OP_SWAIT:
        stream_waits(t, r, r->pc);
        return false;
    case CRYSTAL_OP_WAIT:
        return host_waits(t, r,
                          in->slot == CRYSTAL_PROGRAM_NONE ? NULL : r->event[in->slot]);
    case CRYSTAL_OP_SYNC:
        return host_waits(t, r, r->stream_end[in->stream]);
    default:
        return false;
    }
}

static void compute(struct crystal_timeline *t, struct tl_rank *r, uint64_t gap_ns)
{
    if (t->config.slow_ppm_of_one && r->lrank == t->config.slow_lrank)
        gap_ns += gap_ns / 1000000 * t->config.slow_ppm_of_one +
                  gap_ns % 1000000 * t->config.slow_ppm_of_one / 1000000;
    r->host_ns += gap_ns;
}

/* The end of an iteration; true where it was the last one. */
static bool turn(struct crystal_timeline *t, struct tl_rank *r)
{
    compute(t, r, r->tail_ns);
    if (t->config.on_iteration)
        t->config.on_iteration(t->config.context, r->lrank, r->iteration, r->begin_ns,
                               r->host_ns);
    r->iteration++;
    r->begin_ns = r->host_ns;
    r->pc = 0;
    r->in_group = false;
    if (t->config.iterations == 0 || r->iteration < t->config.iterations)
        return false;
    r->state = TL_DONE;
    t->done_count++;
    return true;
}

void tl_rank_run(struct crystal_timeline *t, struct tl_rank *r)
{
    while (!t->code) {
        if (r->pc == r->program->instr_count && turn(t, r))
            return;
        if (!r->gap_done) {
            compute(t, r, r->gap_ns[r->pc]);
            r->gap_done = true;
        }
        if (r->host_ns > t->until_ns) {
            r->state = TL_BEYOND;
            r->next = t->beyond;
            t->beyond = r;
            return;
        }
        if (step(t, r))
            return;
        r->pc++;
        r->gap_done = false;
    }
}

/* --- why nothing happens --- */

/* A crank that has not arrived, or UINT32_MAX. */
static uint32_t missing(const struct tl_coll *coll)
{
    for (uint32_t k = 0; k < coll->comm->nranks; k++)
        if (!coll->has_arrived[k])
            return k;
    return UINT32_MAX;
}

int crystal_timeline_explain(const struct crystal_timeline *t,
                             struct crystal_error *err)
{
    for (uint32_t i = 0; i < t->lrank_count; i++) {
        const struct tl_rank *r = &t->ranks[i];

        if (r->state != TL_WAITS && r->state != TL_BEYOND)
            continue;
        for (uint32_t c = 0; c < t->comm_count; c++) {
            const struct tl_comm *comm = &t->comms[c];

            for (uint64_t seq = comm->first; seq < comm->end; seq++) {
                const struct tl_coll *coll = comm->colls[seq % comm->capacity];
                uint32_t crank = coll ? missing(coll) : UINT32_MAX;
                uint32_t own = crystal_graph_crank_of(t->config.graph, c, i);

                if (crank != UINT32_MAX && own != UINT32_MAX && coll->has_arrived[own])
                    return crystal_error_set(
                        err, EDEADLK,
                        "rank %u waits in collective %" PRIu64
                        " of communicator %u for rank %u, which never arrives",
                        i, seq, c, comm->members[crank]);
            }
        }
        return crystal_error_set(err, EDEADLK,
                                 "rank %u waits in iteration %" PRIu64
                                 " (record %" PRIu64
                                 ") for a message that is never sent or received",
                                 i, r->iteration, r->program->instrs[r->pc].record);
    }
    return 0;
}
