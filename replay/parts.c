/* See parts.h. */
#include "config.h"

#include "replay/parts.h"

#include <errno.h>

static bool is_parted(const struct crystal_call *call)
{
    return call->kind == CRYSTAL_OP_COLL && crystal_func_is_parted(call->func);
}

/* Fills nranks and crank, of those that have a communicator. */
static void member(const struct crystal_graph *g, uint32_t lrank, uint16_t local,
                   struct crystal_call *call)
{
    struct crystal_graph_comm c;
    uint32_t comm;

    if (call->kind != CRYSTAL_OP_COLL && call->kind != CRYSTAL_OP_SEND &&
        call->kind != CRYSTAL_OP_RECV)
        return;
    comm = crystal_graph_comm_of(g, lrank, local);
    crystal_graph_comm(g, comm, &c);
    call->nranks = c.nranks;
    if (is_parted(call))
        call->crank = crystal_graph_crank_of(g, comm, lrank);
}

struct crystal_call crystal_call_of_op(const struct crystal_graph *g, uint32_t lrank,
                                       const struct crystal_op *op)
{
    struct crystal_call call = {.kind = op->kind,
                                .func = op->func,
                                .is_in_place = op->flags & CRYSTAL_OP_FLAG_IN_PLACE,
                                .root = op->peer,
                                .count = op->value};

    member(g, lrank, op->comm, &call);
    return call;
}

struct crystal_call crystal_call_of_instr(const struct crystal_graph *g, uint32_t lrank,
                                          const struct crystal_instr *in)
{
    struct crystal_call call = {.kind = in->kind,
                                .func = in->func,
                                .is_in_place = in->flags & CRYSTAL_OP_FLAG_IN_PLACE,
                                .root = in->peer,
                                .count = in->count};

    member(g, lrank, in->local, &call);
    return call;
}

uint64_t crystal_call_numbers(const struct crystal_call *call)
{
    if (call->nranks < 2 || (call->kind == CRYSTAL_OP_COLL && !call->count))
        return 0;
    if (!is_parted(call))
        return 1;
    if (call->func == CRYSTAL_FUNC_ALLTOALL)
        return 2 * (uint64_t)call->nranks;
    return call->crank == call->root ? (uint64_t)call->nranks + 1 : 1;
}

uint64_t crystal_ops_numbers(const struct crystal_graph *g, uint32_t lrank,
                             const struct crystal_op *ops, uint64_t op_count)
{
    uint64_t numbers = 0;

    for (uint64_t i = 0; i < op_count; i++) {
        struct crystal_call call = crystal_call_of_op(g, lrank, &ops[i]);

        numbers += crystal_call_numbers(&call);
    }
    return numbers;
}

/* With whom a part of an all-to-all, gather or scatter exchanges, and which way. */
static uint8_t part_func(const struct crystal_call *call, uint64_t i, uint64_t *peer)
{
    uint64_t sends = call->crank == call->root ? call->nranks : 0;

    if (call->func == CRYSTAL_FUNC_ALLTOALL) {
        *peer = i / 2;
        return i % 2 ? CRYSTAL_FUNC_RECV : CRYSTAL_FUNC_SEND;
    }
    if (call->func == CRYSTAL_FUNC_GATHER) {
        *peer = i ? i - 1 : call->root;
        return i ? CRYSTAL_FUNC_RECV : CRYSTAL_FUNC_SEND;
    }
    *peer = i < sends ? i : call->root;
    return i < sends ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV;
}

struct crystal_part crystal_call_part(const struct crystal_call *call, uint64_t i)
{
    struct crystal_part part = {.func = call->func, .is_message = true};
    uint64_t peer;

    if (!is_parted(call))
        return part;
    part.func = part_func(call, i, &peer);
    part.is_message = peer != call->crank;
    part.may_lack = !part.is_message && call->is_in_place;
    return part;
}

/* Where the work of the parts began: the sooner, a send before a receive before what a
 * rank has with itself, which NCCL tells of when it starts the kernel. */
static int begin_rank(const struct crystal_part *part)
{
    return !part->is_message ? 0 : part->func == CRYSTAL_FUNC_SEND ? 2 : 1;
}

static void join(struct crystal_run_record *sum, const struct crystal_run_record *rec,
                 const struct crystal_part *part, int *best)
{
    int rank = begin_rank(part);

    if (rank > *best || (rank == *best && rec->arrive_ns < sum->arrive_ns))
        sum->arrive_ns = rec->arrive_ns;
    *best = rank > *best ? rank : *best;
    if (rec->api_ns < sum->api_ns)
        sum->api_ns = rec->api_ns;
    if (rec->end_ns > sum->end_ns)
        sum->end_ns = rec->end_ns;
    if (rec->waited_us > sum->waited_us)
        sum->waited_us = rec->waited_us;
    sum->flags |= rec->flags;
}

int64_t crystal_call_take(const struct crystal_call *call, uint64_t number,
                          const struct crystal_run_record *recs, uint64_t count,
                          struct crystal_run_record *ret)
{
    uint64_t numbers = crystal_call_numbers(call), at = 0;
    struct crystal_run_record sum = {0};
    int best = -1;

    for (uint64_t i = 0; i < numbers; i++) {
        struct crystal_part part = crystal_call_part(call, i);

        if (part.may_lack && (at == count || recs[at].order != number + i))
            continue;
        if (at == count)
            return -EAGAIN;
        if (recs[at].order != number + i || recs[at].func != part.func)
            return -ESTALE;
        if (!at)
            sum = recs[at];
        join(&sum, &recs[at++], &part, &best);
    }
    if (is_parted(call))
        sum.func = call->func;
    *ret = sum;
    return (int64_t)at;
}

int crystal_run_by_order(const void *a, const void *b)
{
    const struct crystal_run_record *x = a, *y = b;

    return x->order < y->order ? -1 : x->order > y->order;
}

uint64_t crystal_run_find(const struct crystal_run_record *recs, uint64_t count,
                          uint64_t number)
{
    uint64_t low = 0, high = count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (recs[middle].order < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
