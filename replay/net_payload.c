/* Recorded contributions and stand-ins. See net_payload.h. */
#include "config.h"

#include "replay/net_payload.h"

#include "replay/net.h"
#include "runtime/graph.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What this rank recorded of each collective of a communicator, by number. */
struct crystal_payload_table {
    uint32_t graph_comm;
    uint64_t count;
    const struct crystal_op **records; /* owned array of the graph's records */
};

static uint64_t records_find(const struct crystal_graph *g, uint32_t lrank,
                             uint32_t graph_comm, const struct crystal_op **ret)
{
    uint64_t op_count, count = 0;
    const struct crystal_op *ops =
        crystal_graph_ops(g, crystal_graph_rep_of(g, lrank), &op_count);

    for (uint64_t i = 0; i < op_count; i++) {
        if (ops[i].kind != CRYSTAL_OP_COLL ||
            crystal_graph_comm_of(g, lrank, ops[i].comm) != graph_comm)
            continue;
        if (ret)
            ret[count] = &ops[i];
        count++;
    }
    return count;
}

int crystal_payload_init(struct crystal_net_comm *comm,
                         struct crystal_board_comm *entry, struct crystal_error *err)
{
    struct crystal_net_module *module = comm->module;
    const struct crystal_graph *g = module->graph;
    struct crystal_payload_table *t;

    comm->payload = NULL;
    if (!g || entry->graph_comm == UINT32_MAX)
        return 0;
    if (entry->graph_comm >= crystal_graph_comm_count(g) ||
        module->lrank >= crystal_graph_lrank_count(g))
        return crystal_error_set(err, EINVAL,
                                 "communicator '%s': number %u on the board is not in "
                                 "job.graph; run the graph stage again",
                                 entry->name, entry->graph_comm);
    t = calloc(1, sizeof *t);
    if (!t)
        return crystal_error_set(err, ENOMEM, "out of memory for recorded payload");
    t->graph_comm = entry->graph_comm;
    t->count = records_find(g, module->lrank, t->graph_comm, NULL);
    t->records = calloc(t->count + 1, sizeof(*t->records));
    if (!t->records) {
        free(t);
        return crystal_error_set(err, ENOMEM, "out of memory for recorded payload");
    }
    (void)records_find(g, module->lrank, t->graph_comm, t->records);
    comm->payload = t;
    return 0;
}

void crystal_payload_fini(struct crystal_net_comm *comm)
{
    if (comm->payload)
        free((void *)comm->payload->records);
    free(comm->payload);
    comm->payload = NULL;
}

static const char *comm_name(const struct crystal_operation *op)
{
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);

    return entry ? entry->name : "?";
}

/* The record of the same collective, of an earlier iteration where this one was not
 * captured. NULL if there is none. */
static const struct crystal_op *record_of(struct crystal_operation *op,
                                          struct crystal_payload_plan *plan)
{
    struct crystal_payload_table *t = op->comm->payload;

    plan->seq = op->graph_seq;
    if (plan->seq >= t->count) {
        plan->seq = crystal_graph_seq_repeat(op->comm->module->graph, t->graph_comm,
                                             op->graph_seq, op->comm->crank);
        plan->is_repeated = 1;
    }
    return plan->seq < t->count ? t->records[plan->seq] : NULL;
}

static void repeat_tell(struct crystal_operation *op)
{
    if (!atomic_exchange(&op->comm->module->repeat_told, 1))
        crystal_log(CRYSTAL_LOG_WARNING, "net",
                    "communicator '%s': operation %llu lies behind the recorded "
                    "iterations, using what the last recorded one had",
                    comm_name(op), (unsigned long long)op->graph_seq);
}

int crystal_payload_plan(struct crystal_operation *op, struct crystal_payload_plan *ret,
                         struct crystal_error *err)
{
    struct crystal_payload_plan plan = {.dtype = op->dtype, .redop = ncclSum};
    const struct crystal_op *record = op->comm->payload ? record_of(op, &plan) : NULL;

    if (record) {
        if (record->func != op->func)
            return crystal_error_set(err, EINVAL,
                                     "communicator '%s', operation %llu: function %u "
                                     "was recorded, now %u is called; the program does "
                                     "not do what was captured, capture it again",
                                     comm_name(op), (unsigned long long)op->graph_seq,
                                     record->func, op->func);
        plan.dtype = record->dtype; /* NCCL's events call a gather's elements bytes */
        plan.redop = record->aux;
        plan.is_unneeded = record->flags & CRYSTAL_OP_FLAG_BARRIER;
    }
    *ret = plan;
    if (plan.is_unneeded || crystal_dtype_is_float(plan.dtype))
        return 0;
    if (record) {
        ret->is_recorded = 1;
        if (plan.is_repeated)
            repeat_tell(op);
        return 0;
    }
    if (!op->comm->module->is_timed && !op->comm->module->graph)
        return 0; /* no recording to ask: zeros */
    return crystal_error_set(err, ENODATA,
                             "communicator '%s', operation %llu: no recorded integers "
                             "of virtual ranks; capture more iterations "
                             "(--crystal-iterations)",
                             comm_name(op), (unsigned long long)op->graph_seq);
}

int crystal_payload_get(struct crystal_operation *op,
                        const struct crystal_payload_plan *plan, uint32_t crank,
                        uint64_t offset, uint64_t bytes, const void **ret,
                        struct crystal_error *err)
{
    uint64_t have = 0;
    const void *data;
    int kept;

    kept = op->comm->payload ? crystal_graph_payload(op->comm->module->graph,
                                                     op->comm->payload->graph_comm,
                                                     plan->seq, crank, &data, &have)
                             : 0;
    if (kept == 1 && offset <= have && bytes <= have - offset) {
        *ret = (const char *)data + offset;
        return 0;
    }
    if (kept == 1)
        return crystal_error_set(err, ENODATA,
                                 "communicator '%s', operation %llu: rank %u recorded "
                                 "%llu bytes, %llu are needed",
                                 comm_name(op), (unsigned long long)op->graph_seq,
                                 crank, (unsigned long long)have,
                                 (unsigned long long)(offset + bytes));
    return crystal_error_set(err, ENODATA,
                             "communicator '%s', operation %llu: no recorded "
                             "contribution of rank %u of it; capture with "
                             "--crystal-payload=all or more iterations",
                             comm_name(op), (unsigned long long)op->graph_seq, crank);
}

/* The part of a collective's contribution that the virtual peer sends to this rank. */
static int part_offset(const struct crystal_operation *op, uint64_t *offset)
{
    if (op->api_func == CRYSTAL_FUNC_ALLTOALL || op->api_func == CRYSTAL_FUNC_SCATTER)
        *offset += op->comm->crank * op->count * op->elt_bytes;
    else if (op->api_func != CRYSTAL_FUNC_GATHER)
        return 0;
    return 1;
}

static int p2p_find(struct crystal_operation *op, uint64_t seq, uint64_t *offset,
                    const void **ret, uint64_t *ret_bytes)
{
    const struct crystal_graph *g = op->comm->module->graph;
    uint32_t graph_comm = op->comm->payload->graph_comm;

    if (part_offset(op, offset))
        return crystal_graph_payload(g, graph_comm, seq, op->peer, ret, ret_bytes);
    return crystal_graph_p2p_payload(g, graph_comm, op->peer, op->comm->crank, seq, ret,
                                     ret_bytes);
}

int crystal_payload_p2p(struct crystal_operation *op, uint64_t offset, uint64_t bytes,
                        const void **ret, struct crystal_error *err)
{
    uint64_t have = 0;
    int kept = 0;

    if (op->comm->payload)
        kept = p2p_find(op, op->graph_seq, &offset, ret, &have);
    if (kept == 1 && offset <= have && bytes <= have - offset) {
        *ret = (const char *)*ret + offset;
        return 1;
    }
    if (crystal_dtype_is_float(op->dtype) ||
        (!op->comm->module->is_timed && !op->comm->module->graph))
        return 0;
    return crystal_error_set(err, ENODATA,
                             "communicator '%s': transfer %llu from rank %u of it: no "
                             "recorded integers; capture more iterations "
                             "(--crystal-iterations)",
                             comm_name(op), (unsigned long long)op->seq, op->peer);
}

/* Bits of 1, the largest and the smallest value of each type. */
static const struct {
    uint64_t one, highest, lowest;
} values[ncclNumTypes] = {
    [ncclInt8] = {1, 0x7f, 0x80},
    [ncclUint8] = {1, 0xff, 0},
    [ncclInt32] = {1, 0x7fffffff, 0x80000000},
    [ncclUint32] = {1, 0xffffffff, 0},
    [ncclInt64] = {1, INT64_MAX, UINT64_C(0x8000000000000000)},
    [ncclUint64] = {1, UINT64_MAX, 0},
    [ncclFloat16] = {0x3c00, 0x7c00, 0xfc00},
    [ncclFloat32] = {0x3f800000, 0x7f800000, 0xff800000},
    [ncclFloat64] = {UINT64_C(0x3ff0000000000000), UINT64_C(0x7ff0000000000000),
                     UINT64_C(0xfff0000000000000)},
    [ncclBfloat16] = {0x3f80, 0x7f80, 0xff80},
    [ncclFloat8e4m3] = {0x38, 0x7e, 0xfe}, /* has no infinity: +-448 */
    [ncclFloat8e5m2] = {0x3c, 0x7c, 0xfc},
};

void crystal_payload_neutral(void *data, uint64_t bytes, uint32_t dtype, uint32_t redop)
{
    size_t step = crystal_dtype_bytes(dtype);
    uint64_t value = 0;

    if (step && redop == ncclProd)
        value = values[dtype].one;
    else if (step && redop == ncclMax)
        value = values[dtype].lowest;
    else if (step && redop == ncclMin)
        value = values[dtype].highest;
    if (!value) {
        memset(data, 0, bytes);
        return;
    }
    for (uint64_t i = 0; i + step <= bytes; i += step)
        memcpy((char *)data + i, &value, step); /* low bytes first: both our hosts */
}
