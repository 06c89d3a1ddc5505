/* What the operations of the board are, as far as the graph says: the calls of a
 * communicator's virtual members.
 */
#include "config.h"

#include "replay/driver_internal.h"

#include "replay/parts.h"
#include "runtime/nccl_names.h"

#include <stdlib.h>

/* Whether the graph has the communicator. */
static bool is_in_graph(const struct crystal_driver *d, const struct dr_comm *dc)
{
    return d->graph && dc->entry->graph_comm < crystal_graph_comm_count(d->graph);
}

typedef struct crystal_comm_calls *(*make_fn)(const struct crystal_graph *g,
                                              uint32_t comm, uint32_t lrank,
                                              struct crystal_error *err);

/* Makes those of a member, once. */
static const struct crystal_comm_calls *made(struct crystal_driver *d,
                                             struct dr_comm *dc, uint32_t crank,
                                             struct crystal_comm_calls **calls,
                                             make_fn make)
{
    uint32_t lrank = dc->members[crank];
    struct crystal_error err = {0};

    if (!is_in_graph(d, dc) || lrank >= d->layout->lrank_count)
        return NULL;
    if (!calls[crank])
        calls[crank] = make(d->graph, dc->entry->graph_comm, lrank, &err);
    if (!calls[crank])
        dr_fail(d, &err);
    return calls[crank];
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

/* The next one of the walk, if it is recorded behind the last iteration. */
static const struct crystal_comm_call *behind_find(struct crystal_driver *d,
                                                   struct dr_comm *dc, uint32_t crank,
                                                   struct crystal_calls_walk *walk)
{
    const struct crystal_comm_calls *calls =
        made(d, dc, crank, dc->recorded, crystal_comm_calls_recorded);
    struct crystal_calls_found found;

    return calls && crystal_comm_calls_next(calls, walk, &found) && !found.is_timed
               ? found.call
               : NULL;
}

void dr_calls_find(struct crystal_driver *d, struct dr_comm *dc, uint32_t crank,
                   struct dr_walk *walk, uint64_t seq)
{
    const struct crystal_comm_calls *calls =
        crank == UINT32_MAX ? NULL
                            : made(d, dc, crank, dc->calls, crystal_comm_calls_create);
    const struct crystal_comm_call *behind =
        calls ? behind_find(d, dc, crank, &walk->recorded) : NULL;
    struct crystal_calls_found *found = &walk->found[seq % CRYSTAL_BOARD_SLOTS];

    if (!calls || !crystal_comm_calls_next(calls, &walk->timed, found) ||
        (crystal_func_is_parted(found->call->func) &&
         found->call->peer >= dc->entry->nranks))
        *found = (struct crystal_calls_found){.timed_seq = seq};
    walk->behind[seq % CRYSTAL_BOARD_SLOTS] = found->is_timed ? behind : NULL;
}

static uint64_t bytes_of(const struct crystal_comm_call *call)
{
    return call->count * crystal_dtype_bytes(call->dtype);
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
           bytes_of(call) == slot->count * crystal_dtype_bytes(slot->dtype);
}

bool dr_calls_follows(const struct dr_comm *dc, const struct crystal_board_slot *slot,
                      uint64_t seq)
{
    const struct dr_walk *walk = &dc->walk;
    const struct crystal_comm_call *call = walk->found[seq % CRYSTAL_BOARD_SLOTS].call;
    const struct crystal_comm_call *behind = walk->behind[seq % CRYSTAL_BOARD_SLOTS];

    return is_kind(call, slot) &&
           (!behind || !is_call(behind, slot) || is_call(call, slot));
}

bool dr_calls_message_follows(const struct dr_walk *walk, uint64_t bytes, uint64_t seq)
{
    const struct crystal_comm_call *call = walk->found[seq % CRYSTAL_BOARD_SLOTS].call;
    const struct crystal_comm_call *behind = walk->behind[seq % CRYSTAL_BOARD_SLOTS];

    return !behind || bytes_of(behind) != bytes || bytes_of(call) == bytes;
}

void dr_calls_close(struct dr_comm *dc)
{
    for (uint32_t k = 0; dc->calls && dc->recorded && k < dc->entry->nranks; k++) {
        crystal_comm_calls_destroy(dc->calls[k]);
        crystal_comm_calls_destroy(dc->recorded[k]);
    }
    free(dc->calls);
    free(dc->recorded);
}
