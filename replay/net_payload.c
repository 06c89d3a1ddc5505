/* Recorded contributions and stand-ins. See net_payload.h. */
#include "config.h"

#include "replay/net_payload.h"

#include "replay/assist_recipe.h"
#include "replay/net.h"
#include "replay/net_prefetch.h"
#include "runtime/graph.h"
#include "runtime/log.h"
#include "runtime/nccl_names.h"
#include "runtime/reduce.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PART_BYTES 2048 /* of a contribution that is scaled */

int crystal_payload_init(struct crystal_net_comm *comm,
                         struct crystal_board_comm *entry, struct crystal_error *err)
{
    struct crystal_net_module *module = comm->module;
    const struct crystal_graph *g = module->graph;

    comm->records = NULL;
    if (!g || entry->graph_comm == UINT32_MAX)
        return 0;
    if (entry->graph_comm >= crystal_graph_comm_count(g) ||
        module->lrank >= crystal_graph_lrank_count(g))
        return crystal_error_set(err, EINVAL,
                                 "communicator '%s': number %u on the board is not in "
                                 "job.graph; run the graph stage again",
                                 entry->name, entry->graph_comm);
    comm->records = crystal_records_create(g, entry->graph_comm, module->lrank, err);
    if (!comm->records)
        return -ENOMEM;
    return module->prefetch
               ? crystal_prefetch_add(module->prefetch, entry->graph_comm,
                                      crystal_board_is_real(module->board, entry),
                                      entry->nranks, err)
               : 0;
}

void crystal_payload_fini(struct crystal_net_comm *comm)
{
    crystal_records_destroy(comm->records);
    comm->records = NULL;
}

static const char *comm_name(const struct crystal_operation *op)
{
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);

    return entry ? entry->name : "?";
}

/* Whether there is a recording in which integers have to be. */
static int is_recorded_job(const struct crystal_operation *op)
{
    return op->comm->module->is_timed || op->comm->module->graph;
}

static int is_real(const struct crystal_operation *op, uint32_t crank)
{
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);

    return !entry || crystal_board_is_real(op->comm->module->board, entry)[crank];
}

/* Its recorded floats are needed now. from: the sender of a transfer, else UINT32_MAX.
 */
static void use_tell(const struct crystal_operation *op, uint32_t from)
{
    struct crystal_net_module *module = op->comm->module;
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);

    if (module->prefetch && entry &&
        crystal_prefetch_use(module->prefetch, entry->graph_comm, from, op->graph_seq))
        (void)atomic_fetch_add(&module->head->payload_late_count, 1);
}

/* differs: those of the last recorded iteration are repeated, whatever the others were.
 */
static void repeat_tell(struct crystal_operation *op, bool differs)
{
    struct crystal_net_module *module = op->comm->module;

    if (atomic_exchange(differs ? &module->last_told : &module->repeat_told, 1))
        return;
    crystal_log(
        differs ? CRYSTAL_LOG_WARNING : CRYSTAL_LOG_INFO, "net",
        "iteration %u is the first that was not recorded: from there on integers "
        "of virtual ranks are those of the last recorded iteration, %s "
        "(communicator '%s', operation %llu)",
        crystal_records_iterations(op->comm->records),
        differs ? "though they differ by iteration (CRYSTAL_REPEAT=last), so "
                  "sizes and flags are as if it came again and again"
                : "as they were the same in all",
        comm_name(op), (unsigned long long)op->graph_seq);
}

int crystal_payload_call(struct crystal_operation *op, struct crystal_error *err)
{
    enum crystal_calls_what what = !op->is_p2p ? CRYSTAL_CALLS_COLLECTIVES
                                   : op->func == CRYSTAL_FUNC_SEND
                                       ? CRYSTAL_CALLS_SENDS
                                       : CRYSTAL_CALLS_RECEIVES;
    struct crystal_calls_found found;
    int code;

    if (!op->comm->records || atomic_load(&op->has_call))
        return 0;
    code = crystal_records_call(op->comm->records, what, op->peer, op->seq, &found);
    if (code < 0)
        return crystal_error_set(err, ENOMEM, "out of memory for recorded payload");
    if (code) {
        op->graph_seq = found.seq;
        op->api_func = op->is_p2p ? found.call->func : op->func;
    }
    atomic_store(&op->has_call, 1);
    return 0;
}

int crystal_payload_is_valued(const struct crystal_operation *op)
{
    return !op->comm->module->is_valueless || !crystal_dtype_is_float(op->dtype);
}

int crystal_payload_plan(struct crystal_operation *op, struct crystal_payload_plan *ret,
                         struct crystal_error *err)
{
    struct crystal_payload_plan plan = {.dtype = op->dtype, .redop = ncclSum};
    const struct crystal_op *record = NULL;
    int code = crystal_payload_call(op, err);

    if (code)
        return code;
    plan.at.asked = op->graph_seq;
    if (op->comm->records)
        record = crystal_records_coll(op->comm->records, op->graph_seq, &plan.at);
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
        plan.record = record;
    }
    /* only a reduction's root sees its result */
    if (op->func == CRYSTAL_FUNC_REDUCE && op->root != op->comm->crank)
        plan.is_unneeded = !is_real(op, op->root);
    plan.is_recorded =
        !plan.is_unneeded && !crystal_dtype_is_float(plan.dtype) && is_recorded_job(op);
    /* the factor of a pre-multiplied sum is not recorded */
    plan.is_bulk = !plan.is_unneeded && !plan.is_recorded && record &&
                   plan.redop <= ncclAvg && op->comm->module->head->payload_all;
    if (plan.is_bulk)
        use_tell(op, UINT32_MAX);
    *ret = plan;
    return 0;
}

/* The sentence for what find has not found. */
static int missing(const struct crystal_operation *op,
                   const struct crystal_record_at *at, uint32_t crank, int code,
                   uint64_t have, uint64_t need, struct crystal_error *err)
{
    const struct crystal_records *records = op->comm->records;
    const char *func = crystal_func_name(op->api_func), *why;
    uint32_t iterations = records ? crystal_records_iterations(records) : 0;
    char where[64] = "";

    if (code == -EBADMSG)
        return crystal_error_set(
            err, ENODATA,
            "communicator '%s', operation %llu (%s): rank %u recorded %llu bytes, %llu "
            "are needed; the program does not do what was captured, capture it again",
            comm_name(op), (unsigned long long)op->graph_seq, func, crank,
            (unsigned long long)have, (unsigned long long)need);
    if (at->period && at->asked >= at->first)
        (void)snprintf(where, sizeof where, ", iteration %llu",
                       (unsigned long long)crystal_records_iteration(at));
    if (code == -ESTALE)
        why = "differ by iteration and were";
    else if (code == 0)
        why = "(not kept: --crystal-payload=all) were";
    else
        why = "were";
    return crystal_error_set(
        err, ENODATA,
        "communicator '%s', operation %llu (%s%s): integers of its virtual rank %u %s "
        "not recorded; capture more iterations than %u (--crystal-iterations)%s",
        comm_name(op), (unsigned long long)op->graph_seq, func, where, crank, why,
        iterations,
        code == -ESTALE ? ", or repeat those of the last one (CRYSTAL_REPEAT=last)"
                        : "");
}

int crystal_payload_get(struct crystal_operation *op,
                        const struct crystal_payload_plan *plan, uint32_t crank,
                        uint64_t offset, uint64_t bytes, const void **ret,
                        struct crystal_error *err)
{
    uint64_t have = 0;
    int code = -ERANGE;

    if (op->comm->records)
        code = crystal_records_find(op->comm->records, &plan->at, crank, offset, bytes,
                                    op->comm->module->repeats_last && plan->is_recorded,
                                    ret, &have);
    if (code < 1) /* nobody reads the sentence of what is a stand-in then */
        return err ? missing(op, &plan->at, crank, code, have, offset + bytes, err)
                   : -ENODATA;
    if (plan->is_recorded && (plan->at.is_repeated || code == 2))
        repeat_tell(op, code == 2);
    return 0;
}

static unsigned redop_of(const struct crystal_payload_plan *plan)
{
    return plan->redop < CRYSTAL_REDOP_COUNT ? plan->redop : (unsigned)ncclSum;
}

/* Whether what each rank adds is its share of an average. */
static bool is_shared(const struct crystal_payload_plan *plan)
{
    return redop_of(plan) == ncclAvg && crystal_dtype_is_float(plan->dtype);
}

/* A contribution as its rank puts it into the sum; of an average of floats that is its
 * share. -EINVAL for a bad type or operation. */
static int sum_add(struct crystal_payload_sum *sum, const char *in)
{
    const uint32_t dtype = sum->plan->dtype, elt_bytes = crystal_dtype_bytes(dtype);
    const unsigned redop = redop_of(sum->plan);
    const bool is_scaled = is_shared(sum->plan);
    const uint64_t factor =
        is_scaled ? crystal_reduce_avg_factor(dtype, sum->op->comm->nranks) : 0;
    char part[PART_BYTES], *to = sum->data;
    int code = 0;

    if (!sum->is_started) {
        memcpy(to, in, (size_t)sum->elts * elt_bytes);
        return is_scaled ? crystal_reduce_scale(to, sum->elts, dtype, factor) : 0;
    }
    if (!is_scaled)
        return crystal_reduce(to, in, sum->elts, dtype, redop);
    for (size_t at = 0, count; !code && at < sum->elts; at += count) {
        count = sum->elts - at < sizeof part / elt_bytes ? sum->elts - at
                                                         : sizeof part / elt_bytes;
        memcpy(part, in + at * elt_bytes, count * elt_bytes);
        code = crystal_reduce_scale(part, count, dtype, factor);
        if (!code)
            code = crystal_reduce(to + at * elt_bytes, part, count, dtype, redop);
    }
    return code;
}

int crystal_payload_add(struct crystal_payload_sum *sum, uint32_t crank,
                        uint64_t offset, struct crystal_error *err)
{
    const struct crystal_payload_plan *plan = sum->plan;
    const uint64_t bytes = (uint64_t)sum->elts * crystal_dtype_bytes(plan->dtype);
    const void *recorded;
    int code = -ENODATA;

    if (plan->is_recorded || plan->is_bulk)
        code = crystal_payload_get(sum->op, plan, crank, offset, bytes, &recorded,
                                   plan->is_recorded ? err : NULL);
    if (code && plan->is_recorded)
        return code;
    sum->is_missing |= code != 0;
    if (code)
        return 0;
    crystal_recipe_reduce(sum->recipe, plan->dtype, redop_of(plan),
                          sum->op->comm->nranks);
    crystal_recipe_add(sum->recipe, recorded,
                       (sum->is_started ? CRYSTAL_ASSIST_ADDED : 0) |
                           (is_shared(plan) ? CRYSTAL_ASSIST_SCALED : 0));
    if (sum_add(sum, recorded))
        return crystal_error_set(err, EINVAL, "cannot reduce type %u by %u",
                                 plan->dtype, plan->redop);
    sum->is_started = 1;
    return 0;
}

void crystal_payload_end(struct crystal_payload_sum *sum)
{
    const struct crystal_payload_plan *plan = sum->plan;
    const uint64_t bytes = (uint64_t)sum->elts * crystal_dtype_bytes(plan->dtype);

    if (!sum->is_started) {
        crystal_payload_neutral(sum->data, bytes, plan->dtype, plan->redop);
        if (!crystal_payload_neutral_is_zero(plan->dtype, plan->redop))
            crystal_recipe_spoil(sum->recipe);
    }
    if (sum->is_missing && !plan->is_unneeded)
        crystal_operation_standin(sum->op, bytes);
}

void crystal_payload_complete(struct crystal_payload_sum *sum)
{
    const struct crystal_payload_plan *plan = sum->plan;

    if (!plan->is_recorded || plan->redop != ncclAvg)
        return;
    crystal_recipe_divide(sum->recipe);
    (void)crystal_reduce_finish_avg(sum->data, sum->elts, plan->dtype,
                                    sum->op->comm->nranks);
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

int crystal_payload_first(struct crystal_operation *op,
                          const struct crystal_payload_plan *plan, uint32_t crank,
                          uint64_t offset, uint64_t bytes, const void **ret)
{
    uint64_t have;

    if (!plan->record ||
        !crystal_records_first(op->comm->records, plan->record, crank, 0, ret, &have) ||
        offset > have || bytes > have - offset)
        return 0;
    *ret = (const char *)*ret + offset;
    return 1;
}

/* Where the transfer stands in the recording, and how far into its contribution. */
static int p2p_at(struct crystal_operation *op, struct crystal_record_at *ret,
                  uint64_t *offset)
{
    if (!part_offset(op, offset))
        return crystal_records_transfer(op->comm->records, op->peer, op->graph_seq,
                                        ret);
    (void)crystal_records_coll(op->comm->records, op->graph_seq, ret);
    return 0;
}

/* offset: in the contribution. */
static int p2p_first(struct crystal_operation *op, uint64_t offset, uint64_t bytes,
                     const void **ret)
{
    struct crystal_payload_plan plan = {.record = NULL};
    uint64_t have;

    if (op->api_func != CRYSTAL_FUNC_SEND && op->api_func != CRYSTAL_FUNC_RECV) {
        plan.record = crystal_records_coll(op->comm->records, op->graph_seq, &plan.at);
        return crystal_payload_first(op, &plan, op->peer, offset, bytes, ret);
    }
    if (!crystal_records_first(op->comm->records, NULL, op->peer,
                               op->count * op->elt_bytes, ret, &have) ||
        offset > have || bytes > have - offset)
        return 0;
    *ret = (const char *)*ret + offset;
    return 1;
}

int crystal_payload_p2p(struct crystal_operation *op, uint64_t offset, uint64_t bytes,
                        const void **ret, struct crystal_error *err)
{
    struct crystal_record_at at = {0};
    uint64_t have = 0;
    int code = bytes ? crystal_payload_call(op, err) : 0;

    if (code || !bytes) /* an all-to-all's empty share: nothing was kept of it */
        return code;
    code = -ERANGE;
    at.asked = op->graph_seq;
    if (op->comm->records) {
        if (p2p_at(op, &at, &offset))
            return crystal_error_set(err, ENOMEM, "out of memory for recorded payload");
        if (offset == 0)
            use_tell(op, at.pair);
        code = crystal_records_find(op->comm->records, &at, op->peer, offset, bytes,
                                    op->comm->module->repeats_last &&
                                        !crystal_dtype_is_float(op->dtype),
                                    ret, &have);
    }
    if (code < 1 && (crystal_dtype_is_float(op->dtype) || !is_recorded_job(op)))
        return op->comm->records && p2p_first(op, offset, bytes, ret) ? 2 : 0;
    if (code < 1)
        return missing(op, &at, op->peer, code, have, offset + bytes, err);
    if ((at.is_repeated || code == 2) && !crystal_dtype_is_float(op->dtype))
        repeat_tell(op, code == 2);
    return 1;
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

static uint64_t neutral_bits(uint32_t dtype, uint32_t redop)
{
    if (!crystal_dtype_bytes(dtype))
        return 0;
    return redop == ncclProd  ? values[dtype].one
           : redop == ncclMax ? values[dtype].lowest
           : redop == ncclMin ? values[dtype].highest
                              : 0;
}

int crystal_payload_neutral_is_zero(uint32_t dtype, uint32_t redop)
{
    return neutral_bits(dtype, redop) == 0;
}

void crystal_payload_neutral(void *data, uint64_t bytes, uint32_t dtype, uint32_t redop)
{
    const size_t step = crystal_dtype_bytes(dtype);
    const uint64_t value = neutral_bits(dtype, redop);

    if (!value) {
        memset(data, 0, bytes);
        return;
    }
    for (uint64_t i = 0; i + step <= bytes; i += step)
        memcpy((char *)data + i, &value, step); /* low bytes first: both our hosts */
}
