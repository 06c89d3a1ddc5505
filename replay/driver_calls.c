/* What the operations of the board are, as far as the graph says: the calls of a
 * communicator's virtual members.
 */
#include "config.h"

#include "replay/driver_internal.h"

#include "runtime/nccl_names.h"

#include <stdlib.h>

/* Whether the graph has the communicator. */
static bool is_in_graph(const struct crystal_driver *d, const struct dr_comm *dc)
{
    return d->graph && dc->entry->graph_comm < crystal_graph_comm_count(d->graph);
}

const struct crystal_comm_calls *dr_calls(struct crystal_driver *d, struct dr_comm *dc,
                                          uint32_t crank)
{
    uint32_t lrank = dc->members[crank];
    struct crystal_error err = {0};

    if (!is_in_graph(d, dc) || lrank >= d->layout->lrank_count)
        return NULL;
    if (!dc->calls[crank])
        dc->calls[crank] =
            crystal_comm_calls_create(d->graph, dc->entry->graph_comm, lrank, &err);
    if (!dc->calls[crank])
        dr_fail(d, &err);
    return dc->calls[crank];
}

/* Collectives of crank before its iterations, where it has some in them. */
static bool colls_before(const struct crystal_driver *d, const struct dr_comm *dc,
                         uint32_t crank, uint64_t *ret)
{
    uint32_t lrank = dc->members[crank];
    const struct crystal_program *p =
        d->programs[crystal_graph_rep_of(d->graph, lrank)];

    for (uint32_t i = 0; i < p->local_count; i++)
        if (crystal_graph_comm_of(d->graph, lrank, i) == dc->entry->graph_comm) {
            *ret = p->coll_before[i];
            return p->coll_each[i] > 0;
        }
    return false;
}

void dr_calls_open(struct crystal_driver *d, struct dr_comm *dc)
{
    uint64_t least = UINT64_MAX, before;

    dc->first_crank = UINT32_MAX;
    for (uint32_t k = 0; k < dc->entry->nranks && is_in_graph(d, dc); k++)
        if (!dc->is_real[k] && dc->members[k] < d->layout->lrank_count &&
            colls_before(d, dc, k, &before) && before < least) {
            least = before;
            dc->first_crank = k;
        }
}

/* The next collective, where it is recorded behind the last iteration. */
static const struct crystal_comm_call *behind_find(struct crystal_driver *d,
                                                   struct dr_comm *dc)
{
    struct crystal_calls_found found;
    struct crystal_error err = {0};

    if (!dc->recorded)
        dc->recorded = crystal_comm_calls_recorded(d->graph, dc->entry->graph_comm,
                                                   dc->members[dc->first_crank], &err);
    if (!dc->recorded) {
        dr_fail(d, &err);
        return NULL;
    }
    return crystal_comm_calls_next(dc->recorded, &dc->recorded_walk, &found) &&
                   !found.is_timed
               ? found.call
               : NULL;
}

void dr_calls_find(struct crystal_driver *d, struct dr_comm *dc)
{
    const struct crystal_comm_calls *calls =
        dc->first_crank == UINT32_MAX ? NULL : dr_calls(d, dc, dc->first_crank);
    const struct crystal_comm_call *behind = calls ? behind_find(d, dc) : NULL;
    struct crystal_calls_found *found = &dc->found[dc->next % CRYSTAL_BOARD_SLOTS];

    if (!calls || !crystal_comm_calls_next(calls, &dc->walk, found))
        *found = (struct crystal_calls_found){.timed_seq = dc->next};
    dc->behind[dc->next % CRYSTAL_BOARD_SLOTS] = found->is_timed ? behind : NULL;
}

/* Whether the slot may be this call: what is only moved may be told as bytes, whatever
 * its type. */
static bool is_kind(const struct crystal_comm_call *call,
                    const struct crystal_board_slot *slot)
{
    return call->func == slot->func &&
           (!crystal_func_reduces(call->func) || call->dtype == slot->dtype);
}

static bool is_call(const struct crystal_comm_call *call,
                    const struct crystal_board_slot *slot)
{
    return is_kind(call, slot) &&
           (!crystal_func_has_root(call->func) || call->peer == slot->root) &&
           call->count * crystal_dtype_bytes(call->dtype) ==
               slot->count * crystal_dtype_bytes(slot->dtype);
}

bool dr_calls_follows(const struct dr_comm *dc, const struct crystal_board_slot *slot,
                      uint64_t seq)
{
    const struct crystal_comm_call *call = dc->found[seq % CRYSTAL_BOARD_SLOTS].call;
    const struct crystal_comm_call *behind = dc->behind[seq % CRYSTAL_BOARD_SLOTS];

    return is_kind(call, slot) &&
           (!behind || !is_call(behind, slot) || is_call(call, slot));
}

void dr_calls_close(struct dr_comm *dc)
{
    for (uint32_t k = 0; dc->calls && k < dc->entry->nranks; k++)
        crystal_comm_calls_destroy(dc->calls[k]);
    free(dc->calls);
    crystal_comm_calls_destroy(dc->recorded);
}
