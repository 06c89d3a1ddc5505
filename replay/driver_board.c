/* The driver's look at the board: operations that sandbox ranks have come to are told
 * when virtual ranks arrive; when sandbox ranks have arrived, the timeline is told;
 * what all have ended is freed. See board.h for who writes what.
 *
 * Operations from before the iterations, on communicators that have no part in them, or
 * of a program that has left its pattern meet virtual ranks that arrived long ago.
 */
#include "config.h"

#include "replay/driver_internal.h"

#include "runtime/nccl_names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- opening --- */

/* The real members: those of this node, and those of others. */
static int members_part(struct crystal_driver *d, struct dr_comm *dc, uint32_t nranks)
{
    dc->real = malloc((nranks + 1) * sizeof *dc->real);
    dc->far = malloc((nranks + 1) * sizeof *dc->far);
    dc->real_count = dc->far_count = 0;
    if (!dc->real || !dc->far)
        return -ENOMEM;
    for (uint32_t k = 0; k < nranks; k++)
        if (dc->is_real[k] && dr_is_local(d, dc->members[k]))
            dc->real[dc->real_count++] = k;
        else if (dc->is_real[k])
            dc->far[dc->far_count++] = k;
    if (!dc->far_count)
        return 0;
    dc->far_next = calloc(dc->far_count, sizeof *dc->far_next);
    dc->told = calloc(CRYSTAL_BOARD_SLOTS, sizeof *dc->told);
    return dc->far_next && dc->told ? 0 : -ENOMEM;
}

static bool comm_open(struct crystal_driver *d, struct dr_comm *dc, uint32_t index)
{
    struct crystal_board_comm *entry = crystal_board_comm_at(d->board, index);

    if (!entry)
        return false;
    dc->entry = entry;
    dc->members = crystal_board_members(d->board, entry);
    dc->is_real = crystal_board_is_real(d->board, entry);
    if (members_part(d, dc, entry->nranks)) {
        dr_no_memory(d);
        return false;
    }
    dc->is_fed = calloc((size_t)CRYSTAL_BOARD_SLOTS * (dc->real_count + 1), 1);
    dc->calls = calloc(entry->nranks, sizeof(*dc->calls));
    dc->recorded = calloc(entry->nranks, sizeof(*dc->recorded));
    dc->parts_told = calloc(entry->nranks, sizeof *dc->parts_told);
    if (!dc->is_fed || !dc->calls || !dc->recorded || !dc->parts_told) {
        dr_no_memory(d);
        return false;
    }
    dr_calls_open(d, dc);
    return true;
}

/* --- collectives --- */

static void publish(struct crystal_driver *d, const struct dr_comm *dc,
                    struct crystal_board_slot *slot, const uint64_t *arrive)
{
    struct crystal_board_cell *cells = crystal_board_cells(d->board, dc->entry, slot);

    for (uint32_t k = 0; k < dc->entry->nranks; k++)
        if (!dc->is_real[k])
            atomic_store_explicit(&cells[k].arrive_ns,
                                  arrive && arrive[k] ? dr_own_ns(d, arrive[k])
                                                      : DR_LONG_AGO,
                                  memory_order_relaxed);
    atomic_store_explicit(&slot->published, 1, memory_order_release);
}

/* Tells when virtual ranks arrive, if that is known. */
static bool coll_tell(struct crystal_driver *d, struct dr_comm *dc,
                      struct crystal_board_slot *slot, uint64_t seq, uint64_t now_ns)
{
    const struct crystal_calls_found *found =
        &dc->walk.found[seq % CRYSTAL_BOARD_SLOTS];
    struct dr_known *k;

    if (!found->is_timed || d->is_free) {
        publish(d, dc, slot, NULL);
        return true;
    }
    if (!atomic_load_explicit(&slot->described, memory_order_acquire))
        return false;
    if (!dr_calls_follows(dc, slot, seq)) {
        dr_set_free(d, CRYSTAL_BOARD_FINISHED);
        publish(d, dc, slot, NULL);
        return true;
    }
    dr_start(d, now_ns);
    k = dr_known_take(d, dc->entry->graph_comm, false, 0, 0, found->timed_seq);
    if (!k)
        return false;
    publish(d, dc, slot, k->arrive_ns);
    free(k);
    return true;
}

int dr_coll_arrive(struct crystal_driver *d, const struct dr_comm *dc,
                   struct crystal_far_arrival *arrival, uint64_t arrive_ns)
{
    struct crystal_error err = {0};

    arrival->comm_id = dc->entry->comm_id;
    arrival->graph_comm = dc->entry->graph_comm;
    arrival->kind = CRYSTAL_FAR_COLLECTIVE;
    arrival->time_ns = dr_job_ns(d, arrive_ns);
    dr_far_tell(d, arrival);
    if (!crystal_timeline_feed(d->timeline, arrival->graph_comm, arrival->seq,
                               arrival->from, arrival->time_ns, &err))
        return 0;
    dr_fail(d, &err);
    return -EINVAL;
}

/* A rank of this node has come to a slot, which is described. */
static int coll_arrive(struct crystal_driver *d, struct dr_comm *dc,
                       const struct crystal_board_slot *slot, uint64_t seq,
                       uint32_t crank, uint64_t arrive_ns)
{
    struct crystal_far_arrival arrival = {.from = crank,
                                          .seq = seq,
                                          .func = slot->func,
                                          .dtype = slot->dtype,
                                          .root = slot->root,
                                          .count = slot->count};

    return dr_coll_arrive(d, dc, &arrival, arrive_ns);
}

/* Tells the timeline of sandbox ranks that have arrived. Returns how many are new. */
static uint32_t coll_feed(struct crystal_driver *d, struct dr_comm *dc,
                          struct crystal_board_slot *slot, uint64_t seq,
                          uint32_t *ret_missing)
{
    struct crystal_board_cell *cells = crystal_board_cells(d->board, dc->entry, slot);
    uint8_t *fed = dc->is_fed + (seq % CRYSTAL_BOARD_SLOTS) * dc->real_count;
    const struct crystal_calls_found *found =
        &dc->walk.found[seq % CRYSTAL_BOARD_SLOTS];
    bool is_inside = found->is_timed && !d->is_free;
    bool is_described = atomic_load_explicit(&slot->described, memory_order_acquire);
    uint32_t count = 0;

    *ret_missing = 0;
    for (uint32_t i = 0; i < dc->real_count; i++) {
        struct crystal_board_cell *cell = &cells[dc->real[i]];
        uint64_t end_ns = atomic_load_explicit(&cell->end_ns, memory_order_acquire);
        uint64_t arrive_ns =
            atomic_load_explicit(&cell->arrive_ns, memory_order_acquire);

        if (fed[i])
            continue;
        if (!arrive_ns) /* it may have ended without a message of its own */
            arrive_ns = end_ns;
        if (!arrive_ns || !is_described) { /* other nodes compare what it is */
            ++*ret_missing;
            continue;
        }
        if (is_inside &&
            coll_arrive(d, dc, slot, found->timed_seq, dc->real[i], arrive_ns))
            return count;
        fed[i] = 1;
        count++;
    }
    return count;
}

static void coll_free(struct crystal_driver *d, struct dr_comm *dc,
                      struct crystal_board_slot *slot, uint64_t seq)
{
    struct crystal_board_cell *cells = crystal_board_cells(d->board, dc->entry, slot);

    for (uint32_t i = 0; i < dc->real_count; i++) {
        uint64_t end_ns =
            atomic_load_explicit(&cells[dc->real[i]].end_ns, memory_order_acquire);

        if (!d->is_started && end_ns > d->setup_end_ns)
            d->setup_end_ns = end_ns;
    }
    for (uint32_t k = 0; k < dc->entry->nranks; k++) {
        atomic_store_explicit(&cells[k].arrive_ns, 0, memory_order_relaxed);
        atomic_store_explicit(&cells[k].end_ns, 0, memory_order_relaxed);
    }
    atomic_store_explicit(&slot->published, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->described, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->ended_count, 0, memory_order_relaxed);
    memset(dc->is_fed + (seq % CRYSTAL_BOARD_SLOTS) * dc->real_count, 0,
           dc->real_count);
    atomic_store_explicit(&slot->seq_plus1, 0, memory_order_release);
}

static bool coll_look(struct crystal_driver *d, struct dr_comm *dc, uint64_t seq,
                      uint64_t now_ns)
{
    struct crystal_board_slot *slot = crystal_board_slot(d->board, dc->entry, seq);
    uint8_t *stage = &dc->stage[seq % CRYSTAL_BOARD_SLOTS];
    const struct crystal_calls_found *found =
        &dc->walk.found[seq % CRYSTAL_BOARD_SLOTS];
    uint32_t missing;
    bool is_new;

    if (*stage == DR_FREED)
        return false;
    is_new = coll_feed(d, dc, slot, seq, &missing) > 0;
    if (*stage == DR_OPEN && coll_tell(d, dc, slot, seq, now_ns)) {
        *stage = DR_TOLD;
        is_new = true;
    }
    dr_far_compare(d, dc, slot, found->timed_seq);
    if (*stage == DR_OPEN && !missing && !dr_far_is_missing(dc, found->timed_seq))
        d->stuck_count++;
    if (*stage == DR_TOLD && !missing &&
        atomic_load_explicit(&slot->ended_count, memory_order_acquire) ==
            dc->real_count) {
        coll_free(d, dc, slot, seq);
        *stage = DR_FREED;
        return true;
    }
    d->open_count++;
    return is_new;
}

static bool colls_look(struct crystal_driver *d, struct dr_comm *dc, uint64_t now_ns)
{
    bool is_new = false;

    while (dc->next - dc->first < CRYSTAL_BOARD_SLOTS) {
        struct crystal_board_slot *slot =
            crystal_board_slot(d->board, dc->entry, dc->next);

        if (atomic_load_explicit(&slot->seq_plus1, memory_order_acquire) !=
            dc->next + 1)
            break;
        dr_calls_find(d, dc, dc->first_crank, &dc->walk, dc->next);
        dc->stage[dc->next++ % CRYSTAL_BOARD_SLOTS] = DR_OPEN;
        is_new = true;
    }
    for (uint64_t seq = dc->first; seq < dc->next; seq++)
        is_new |= coll_look(d, dc, seq, now_ns);
    while (dc->first < dc->next &&
           dc->stage[dc->first % CRYSTAL_BOARD_SLOTS] == DR_FREED)
        dc->first++;
    return is_new;
}

/* --- all --- */

bool dr_board_look(struct crystal_driver *d, uint64_t now_ns)
{
    uint32_t count = atomic_load_explicit(&d->head->comm_count, memory_order_acquire);
    bool is_new = false;

    d->open_count = d->stuck_count = 0;
    if (count > d->head->comm_capacity)
        count = d->head->comm_capacity;
    for (uint32_t i = 0; i < count && !d->is_failed; i++) {
        struct dr_comm *dc = &d->comms[i];

        if (!dc->entry && !comm_open(d, dc, i))
            continue;
        is_new |= colls_look(d, dc, now_ns);
        is_new |= dr_pairs_look(d, dc, now_ns);
    }
    return is_new;
}

static void comm_close(struct dr_comm *dc)
{
    dr_calls_close(dc);
    free(dc->parts_told);
    free(dc->real);
    free(dc->is_fed);
    free(dc->far);
    free(dc->far_next);
    free(dc->told);
    dr_pairs_fini(dc);
}

void dr_board_fini(struct crystal_driver *d)
{
    for (uint32_t i = 0; d->comms && i < d->head->comm_capacity; i++)
        comm_close(&d->comms[i]);
    free(d->comms);
    dr_known_fini(d);
}
