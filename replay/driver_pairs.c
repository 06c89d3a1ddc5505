/* The driver's look at messages between sandbox ranks and virtual ones.
 *
 * A message is a call of its own or a part of an all-to-all, a gather or a scatter,
 * which the virtual rank's calls say (comm_calls.h). Parts are timed as the collective
 * is: the timeline hears once that the sandbox rank has come, and its messages go when
 * the virtual ranks have come to it, so that it ends when the timeline says
 * (runtime/transfer.c, star).
 */
#include "config.h"

#include "replay/driver_internal.h"

#include "replay/parts.h"

#include <stdlib.h>

/* --- parts of collectives --- */

static bool is_part(const struct crystal_calls_found *found)
{
    return found->is_timed && crystal_func_is_parted(found->call->func);
}

static uint32_t virtual_count(const struct dr_comm *dc)
{
    return dc->entry->nranks - dc->real_count - dc->far_count;
}

/* How many messages of this node belong to the call. */
static uint64_t part_count(const struct dr_comm *dc,
                           const struct crystal_comm_call *call)
{
    if (call->func == CRYSTAL_FUNC_ALLTOALL)
        return 2 * (uint64_t)dc->real_count * virtual_count(dc);
    return dc->is_real[call->peer] ? virtual_count(dc) : dc->real_count;
}

static uint64_t latest_virtual(const struct dr_comm *dc, const uint64_t *arrive_ns)
{
    uint64_t latest_ns = 0;

    for (uint32_t k = 0; k < dc->entry->nranks; k++)
        if (!dc->is_real[k] && arrive_ns[k] > latest_ns)
            latest_ns = arrive_ns[k];
    return latest_ns;
}

/* When the virtual side of a message is ready for it, on the timeline's clock. A root
 * that scatters has one message after the other, and the timeline says when all are
 * through. */
static uint64_t part_ready(const struct crystal_driver *d, const struct dr_comm *dc,
                           const struct crystal_comm_call *call, uint32_t virtual_crank,
                           uint64_t bytes, const uint64_t *arrive_ns)
{
    const struct crystal_transfer_wire wire = {.bytes_per_s =
                                                   d->head->wire_bytes_per_s};
    uint64_t others_ns =
        (dc->entry->nranks - 2) * crystal_transfer_occupy_ns(&wire, bytes);

    switch (call->func) {
    case CRYSTAL_FUNC_ALLTOALL:
        return latest_virtual(dc, arrive_ns);
    case CRYSTAL_FUNC_SCATTER:
        return (dc->is_real[call->peer] ? latest_virtual(dc, arrive_ns)
                                        : arrive_ns[call->peer]) +
               others_ns;
    default:
        return arrive_ns[virtual_crank];
    }
}

/* False: the timeline does not know yet. */
static bool part_tell(struct crystal_driver *d, const struct dr_comm *dc,
                      const struct crystal_calls_found *found, uint32_t virtual_crank,
                      uint64_t bytes, uint64_t *ret_ns)
{
    uint32_t graph_comm = dc->entry->graph_comm;
    const struct dr_known *k = dr_known_ask(d, graph_comm, found->timed_seq);

    if (!k)
        return false;
    *ret_ns = part_ready(d, dc, found->call, virtual_crank, bytes, k->arrive_ns);
    dr_known_asked(d, graph_comm, found->timed_seq, part_count(dc, found->call));
    return true;
}

/* Whether the messages of this direction say when the sandbox rank has come: what it
 * sends, where it sends anything. */
static bool does_tell(const struct crystal_board_pair *pair,
                      const struct crystal_comm_call *call)
{
    return pair->real_sends || call->func != CRYSTAL_FUNC_ALLTOALL;
}

/* Of its messages the earliest one counts. The plugin writes one after the other, and a
 * look may have passed the first before it was there; so the timeline is told behind
 * the next look. */
static void part_note(struct crystal_driver *d, struct dr_comm *dc, uint64_t seq,
                      uint32_t crank, uint64_t arrive_ns)
{
    struct dr_part **place = &dc->parts, *part;

    if (seq < dc->parts_told[crank])
        return;
    while (*place && ((*place)->crank != crank || (*place)->seq != seq))
        place = &(*place)->next;
    if (!*place) {
        part = calloc(1, sizeof *part);
        if (!part) {
            dr_no_memory(d);
            return;
        }
        part->crank = crank;
        part->seq = seq;
        part->arrive_ns = arrive_ns;
        *place = part;
    } else if (arrive_ns < (*place)->arrive_ns) {
        (*place)->arrive_ns = arrive_ns;
    }
}

/* Returns whether there is one to look for once more. */
static bool parts_feed(struct crystal_driver *d, struct dr_comm *dc)
{
    struct dr_part **place = &dc->parts, *part;
    bool is_new = false;

    while ((part = *place) && !d->is_failed) {
        struct crystal_far_arrival arrival = {.from = part->crank, .seq = part->seq};

        is_new = true;
        if (!part->is_looked_for) {
            part->is_looked_for = true;
            place = &part->next;
            continue;
        }
        if (!d->is_free)
            (void)dr_coll_arrive(d, dc, &arrival, part->arrive_ns);
        dc->parts_told[part->crank] = part->seq + 1;
        *place = part->next;
        free(part);
    }
    return is_new;
}

/* --- messages --- */

static bool call_tell(struct crystal_driver *d, const struct dr_comm *dc, uint32_t from,
                      uint32_t to, uint64_t seq, uint64_t *ret_ns)
{
    struct dr_known *k = dr_known_take(d, dc->entry->graph_comm, true, from, to, seq);

    if (!k)
        return false;
    *ret_ns = k->arrive_ns[0];
    free(k);
    return true;
}

/* Whether it only says when the sandbox rank has come: its root is real, too. */
static bool is_note(const struct dr_comm *dc, const struct crystal_board_pair *pair)
{
    return dc->is_real[pair->virtual_crank];
}

static bool message_tell(struct crystal_driver *d, struct dr_comm *dc,
                         struct dr_pair *dp, struct crystal_board_pair *pair,
                         struct crystal_board_pair_cell *cell, uint64_t seq,
                         uint64_t now_ns)
{
    uint32_t from = pair->real_sends ? pair->real_crank : pair->virtual_crank;
    uint32_t to = pair->real_sends ? pair->virtual_crank : pair->real_crank;
    const struct crystal_calls_found *found =
        &dp->walk.found[seq % CRYSTAL_BOARD_SLOTS];
    uint64_t arrive_ns = DR_LONG_AGO;

    if (found->is_timed && !d->is_free &&
        !dr_calls_message_follows(&dp->walk, cell->bytes, seq))
        dr_set_free(d, CRYSTAL_BOARD_FINISHED);
    if (found->is_timed && !d->is_free) {
        uint64_t job_ns = 0;

        dr_start(d, now_ns);
        if (!is_note(dc, pair) &&
            (is_part(found)
                 ? !part_tell(d, dc, found, pair->virtual_crank, cell->bytes, &job_ns)
                 : !call_tell(d, dc, from, to, found->timed_seq, &job_ns)))
            return false;
        if (job_ns)
            arrive_ns = dr_own_ns(d, job_ns);
    }
    atomic_store_explicit(&cell->virtual_arrive_ns, arrive_ns, memory_order_release);
    return true;
}

/* Tells the timeline, here and elsewhere, of a message that is a call of its own. */
static void call_feed(struct crystal_driver *d, const struct dr_comm *dc,
                      const struct crystal_board_pair *pair, uint64_t seq,
                      uint64_t time_ns)
{
    struct crystal_far_arrival arrival = {
        .comm_id = dc->entry->comm_id,
        .graph_comm = dc->entry->graph_comm,
        .kind = pair->real_sends ? CRYSTAL_FAR_SENDS : CRYSTAL_FAR_RECEIVES,
        .from = pair->real_sends ? pair->real_crank : pair->virtual_crank,
        .to = pair->real_sends ? pair->virtual_crank : pair->real_crank,
        .seq = seq,
        .time_ns = dr_job_ns(d, time_ns)};
    struct crystal_error err = {0};

    dr_far_tell(d, &arrival);
    if (crystal_timeline_feed_p2p(d->timeline, arrival.graph_comm, arrival.from,
                                  arrival.to, seq, pair->real_sends != 0,
                                  arrival.time_ns, &err))
        dr_fail(d, &err);
}

/* Returns 1 where the sandbox rank has just arrived, 0 where it did before, -1 not yet.
 */
static int message_feed(struct crystal_driver *d, struct dr_comm *dc,
                        struct dr_pair *dp, struct crystal_board_pair *pair,
                        struct crystal_board_pair_cell *cell, uint64_t seq)
{
    const struct crystal_calls_found *found =
        &dp->walk.found[seq % CRYSTAL_BOARD_SLOTS];
    bool *fed = &dp->is_fed[seq % CRYSTAL_BOARD_SLOTS];
    uint64_t end_ns = atomic_load_explicit(&cell->end_ns, memory_order_acquire);
    uint64_t time_ns =
        atomic_load_explicit(&cell->real_arrive_ns, memory_order_acquire);

    if (*fed)
        return 0;
    if (!time_ns)
        time_ns = end_ns;
    if (!time_ns)
        return -1;
    if (found->is_timed && !d->is_free) {
        if (!is_part(found))
            call_feed(d, dc, pair, found->timed_seq, time_ns);
        else if (does_tell(pair, found->call))
            part_note(d, dc, found->timed_seq, pair->real_crank, time_ns);
    }
    *fed = true;
    return 1;
}

static void message_free(struct crystal_driver *d, struct crystal_board_pair_cell *cell,
                         uint64_t end_ns)
{
    if (!d->is_started && end_ns > d->setup_end_ns)
        d->setup_end_ns = end_ns;
    atomic_store_explicit(&cell->real_arrive_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->virtual_arrive_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->end_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->seq_plus1, 0, memory_order_release);
}

static bool message_look(struct crystal_driver *d, struct dr_comm *dc,
                         struct dr_pair *dp, struct crystal_board_pair *pair,
                         uint64_t seq, uint64_t now_ns)
{
    struct crystal_board_pair_cell *cell = &pair->cells[seq % CRYSTAL_BOARD_SLOTS];
    uint8_t *stage = &dp->stage[seq % CRYSTAL_BOARD_SLOTS];
    uint64_t end_ns = atomic_load_explicit(&cell->end_ns, memory_order_acquire);
    bool is_new;
    int fed;

    if (*stage == DR_FREED)
        return false;
    fed = message_feed(d, dc, dp, pair, cell, seq);
    is_new = fed > 0;
    if (*stage == DR_OPEN && message_tell(d, dc, dp, pair, cell, seq, now_ns)) {
        *stage = DR_TOLD;
        is_new = true;
    }
    if (*stage == DR_OPEN && fed >= 0)
        d->stuck_count++;
    if (*stage == DR_TOLD && fed >= 0 && end_ns) {
        message_free(d, cell, end_ns);
        dp->is_fed[seq % CRYSTAL_BOARD_SLOTS] = false;
        *stage = DR_FREED;
        return true;
    }
    d->open_count++;
    return is_new;
}

/* Through the calls of the virtual rank, or those of the rank that notes. */
static void walk_begin(const struct dr_comm *dc, const struct crystal_board_pair *pair,
                       struct crystal_calls_walk *walk)
{
    if (is_note(dc, pair)) {
        walk->what =
            pair->real_sends ? CRYSTAL_CALLS_GATHERED : CRYSTAL_CALLS_SCATTERED;
        walk->peer = pair->virtual_crank;
        return;
    }
    walk->what = pair->real_sends ? CRYSTAL_CALLS_RECEIVES : CRYSTAL_CALLS_SENDS;
    walk->peer = pair->real_crank;
}

static bool pair_look(struct crystal_driver *d, struct dr_comm *dc, struct dr_pair *dp,
                      struct crystal_board_pair *pair, uint64_t now_ns)
{
    bool is_new = false;

    if (!dp->is_seen) {
        if (atomic_load_explicit(&pair->state, memory_order_acquire) !=
            CRYSTAL_BOARD_READY)
            return false;
        if (pair->real_crank >= dc->entry->nranks ||
            pair->virtual_crank >= dc->entry->nranks)
            return false; /* a plugin's mistake cannot be waited for */
        dp->is_seen = true;
        walk_begin(dc, pair, &dp->walk.timed);
        dp->walk.recorded = dp->walk.timed;
    }
    while (dp->next - dp->first < CRYSTAL_BOARD_SLOTS &&
           atomic_load_explicit(&pair->cells[dp->next % CRYSTAL_BOARD_SLOTS].seq_plus1,
                                memory_order_acquire) == dp->next + 1) {
        dr_calls_find(d, dc, is_note(dc, pair) ? pair->real_crank : pair->virtual_crank,
                      &dp->walk, dp->next);
        dp->stage[dp->next++ % CRYSTAL_BOARD_SLOTS] = DR_OPEN;
        is_new = true;
    }
    for (uint64_t seq = dp->first; seq < dp->next; seq++)
        is_new |= message_look(d, dc, dp, pair, seq, now_ns);
    while (dp->first < dp->next &&
           dp->stage[dp->first % CRYSTAL_BOARD_SLOTS] == DR_FREED)
        dp->first++;
    return is_new;
}

bool dr_pairs_look(struct crystal_driver *d, struct dr_comm *dc, uint64_t now_ns)
{
    uint32_t count = atomic_load_explicit(&dc->entry->pair_count, memory_order_acquire);
    struct crystal_board_pair *pairs = crystal_board_pairs(d->board, dc->entry);
    bool is_new = false;

    if (count > dc->entry->pair_capacity)
        count = dc->entry->pair_capacity;
    if (count && !dc->pairs) {
        dc->pairs = calloc(dc->entry->pair_capacity, sizeof *dc->pairs);
        if (!dc->pairs) {
            dr_no_memory(d);
            return false;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        is_new |= pair_look(d, dc, &dc->pairs[i], &pairs[i], now_ns);
    is_new |= parts_feed(d, dc);
    return is_new;
}

void dr_pairs_fini(struct dr_comm *dc)
{
    while (dc->parts) {
        struct dr_part *next = dc->parts->next;

        free(dc->parts);
        dc->parts = next;
    }
    free(dc->pairs);
}
