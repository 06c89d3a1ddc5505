/* What an operation or a message takes alone: the parts of the closed forms of
 * transfer.c that do not depend on who arrives when.
 */
#include "config.h"

#include "runtime/transfer.h"

#include <string.h>

#define STAGED_CHUNKS CRYSTAL_TRANSFER_STAGED_CHUNKS

static uint64_t ring_alone(const struct crystal_transfer_plan *plan)
{
    uint64_t sum = 0;

    for (int last = 0; last < 2; last++) {
        const struct crystal_transfer_cost *cost = last ? &plan->last : &plan->each;
        uint64_t nic_ns = cost->steps * cost->chunk_ns;
        uint64_t got = cost->hop_ns > cost->chunk_ns
                           ? cost->steps * cost->hop_ns + cost->last_ns
                           : nic_ns + cost->last_ns + cost->hop_ns - cost->chunk_ns;
        uint64_t sent = last ? cost->held_ns : nic_ns;

        sum += (last ? 1 : plan->loops - 1) * (got > sent ? got : sent);
    }
    return sum;
}

static uint64_t chain_alone(const struct crystal_transfer_plan *plan, uint32_t n,
                            uint32_t d)
{
    uint64_t before = (plan->loops - 1) * plan->each.chunk_ns;
    uint64_t got = d ? before + d * plan->last.hop_ns : 0;
    uint64_t fit_ns = STAGED_CHUNKS * plan->each.chunk_ns, sent;

    if (d + 1 == n || plan->loops <= STAGED_CHUNKS)
        return got;
    sent = before + d * plan->last.hop_ns + plan->last.chunk_ns - fit_ns;
    return got > sent ? got : sent;
}

static uint64_t alone_of(const struct crystal_transfer_plan *plan, uint32_t crank)
{
    uint32_t n = plan->nranks, from_root = crank + n - plan->root;

    switch (plan->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
    case CRYSTAL_FUNC_ALLGATHER:
    case CRYSTAL_FUNC_REDUCESCATTER:
        return plan->loops ? ring_alone(plan) : 0;
    case CRYSTAL_FUNC_BROADCAST:
        return plan->loops ? chain_alone(plan, n, from_root % n) : 0;
    case CRYSTAL_FUNC_REDUCE:
        return plan->loops ? chain_alone(plan, n, (from_root - 1) % n) : 0;
    case CRYSTAL_FUNC_ALLTOALL:
        return (n - 1) * plan->bytes_ns + plan->way_ns;
    case CRYSTAL_FUNC_GATHER:
        return crank == plan->root ? (n - 1) * plan->bytes_ns + plan->way_ns
                                   : plan->bytes_ns;
    default:
        return (n - 1) * plan->bytes_ns + (crank == plan->root ? 0 : plan->way_ns);
    }
}

uint64_t crystal_transfer_alone_ns(const struct crystal_transfer_wire *wire,
                                   const struct crystal_transfer_op *op, uint32_t crank,
                                   uint64_t *scratch)
{
    struct crystal_transfer_plan plan;

    if (op->nranks == 1)
        return 0;
    crystal_transfer_plan_init(&plan, wire, op);
    if (!plan.repeat.count)
        return alone_of(&plan, crank) + wire->op_overhead_ns;
    memset(scratch, 0, op->nranks * sizeof *scratch);
    crystal_transfer_plan_ends(&plan, scratch, scratch + op->nranks,
                               scratch + 2 * (size_t)op->nranks);
    return scratch[op->nranks + crank];
}

uint64_t crystal_transfer_send_ns(const struct crystal_transfer_wire *wire,
                                  uint64_t bytes)
{
    if (bytes <= CRYSTAL_TRANSFER_EAGER_BYTES)
        return 0;
    return crystal_transfer_occupy_ns(wire, bytes - CRYSTAL_TRANSFER_EAGER_BYTES);
}

uint64_t crystal_transfer_recv_ns(const struct crystal_transfer_wire *wire,
                                  uint64_t bytes)
{
    return crystal_transfer_occupy_ns(wire, bytes) + wire->latency_ns +
           wire->overhead_ns + wire->op_overhead_ns;
}
