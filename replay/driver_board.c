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

#define LONG_AGO 1U

static void no_memory(struct crystal_driver *d)
{
    struct crystal_error err;

    (void)crystal_error_set(&err, ENOMEM, "timeline: out of memory");
    dr_fail(d, &err);
}

/* --- what the timeline knows --- */

static void known_add(struct crystal_driver *d, uint32_t comm, struct dr_known *k)
{
    struct dr_known **place = &d->known[comm];

    while (*place) /* in order: what came first is asked for first */
        place = &(*place)->next;
    k->next = NULL;
    *place = k;
}

void dr_board_on_coll(void *context, uint32_t comm, uint64_t seq,
                      const uint64_t *arrive)
{
    struct crystal_driver *d = context;
    struct crystal_graph_comm c;
    struct dr_known *k;

    if (d->has_local && !d->has_local[comm])
        return; /* nobody here waits for it */
    crystal_graph_comm(d->graph, comm, &c);
    k = malloc(sizeof *k + c.nranks * sizeof *arrive);
    if (!k) {
        no_memory(d);
        return;
    }
    k->is_p2p = false;
    k->from = k->to = 0;
    k->seq = seq;
    memcpy(k->arrive_ns, arrive, c.nranks * sizeof *arrive);
    known_add(d, comm, k);
}

void dr_board_on_p2p(void *context, uint32_t comm, uint32_t from, uint32_t to,
                     uint64_t seq, int inside_sends, uint64_t arrive_ns)
{
    struct crystal_driver *d = context;
    struct crystal_graph_comm c;
    struct dr_known *k;

    crystal_graph_comm(d->graph, comm, &c);
    if (d->has_local && !dr_is_local(d, c.members[inside_sends ? to : from]))
        return;
    k = malloc(sizeof *k + sizeof arrive_ns);
    if (!k) {
        no_memory(d);
        return;
    }
    k->is_p2p = true;
    k->from = from;
    k->to = to;
    k->seq = seq;
    k->arrive_ns[0] = arrive_ns;
    known_add(d, comm, k);
}

/* Takes what is known of one operation out of the list; caller frees. */
static struct dr_known *known_take(struct crystal_driver *d, uint32_t comm, bool is_p2p,
                                   uint32_t from, uint32_t to, uint64_t seq)
{
    for (struct dr_known **place = &d->known[comm]; *place; place = &(*place)->next) {
        struct dr_known *k = *place;

        if (k->is_p2p == is_p2p && k->seq == seq && k->from == from && k->to == to) {
            *place = k->next;
            return k;
        }
    }
    return NULL;
}

/* --- opening --- */

/* What the virtual members' programs say of the communicator. */
static void comm_time(struct crystal_driver *d, struct dr_comm *dc)
{
    uint32_t graph_comm = dc->entry->graph_comm;

    if (!d->graph || graph_comm >= crystal_graph_comm_count(d->graph))
        return;
    for (uint32_t k = 0; k < dc->entry->nranks; k++) {
        const struct crystal_program *p;
        uint32_t lrank = dc->members[k];

        if (dc->is_real[k] || lrank >= d->layout->lrank_count)
            continue;
        p = d->programs[crystal_graph_rep_of(d->graph, lrank)];
        for (uint32_t i = 0; i < p->local_count; i++) {
            if (crystal_graph_comm_of(d->graph, lrank, i) != graph_comm)
                continue;
            if (!dc->program || p->coll_before[i] < dc->before)
                dc->before = p->coll_before[i];
            dc->program = p;
            dc->local = i;
            dc->each = p->coll_each[i];
            break;
        }
    }
    dc->is_timed = dc->program && dc->each > 0;
}

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
    dc->members = crystal_board_members(d->board, entry);
    dc->is_real = crystal_board_is_real(d->board, entry);
    if (members_part(d, dc, entry->nranks)) {
        no_memory(d);
        return false;
    }
    dc->is_fed = calloc((size_t)CRYSTAL_BOARD_SLOTS * (dc->real_count + 1), 1);
    if (!dc->is_fed) {
        no_memory(d);
        return false;
    }
    dc->entry = entry;
    comm_time(d, dc);
    return true;
}

static void pair_time(struct crystal_driver *d, struct dr_comm *dc, struct dr_pair *dp,
                      const struct crystal_board_pair *pair)
{
    uint32_t graph_comm = dc->entry->graph_comm, lrank;
    const struct crystal_program *p;

    if (!d->graph || graph_comm >= crystal_graph_comm_count(d->graph))
        return;
    lrank = dc->members[pair->virtual_crank];
    p = d->programs[crystal_graph_rep_of(d->graph, lrank)];
    for (uint32_t i = 0; i < p->pair_count; i++) {
        const struct crystal_program_pair *pp = &p->pairs[i];

        if ((pp->is_send != 0) == (pair->real_sends != 0) ||
            crystal_graph_comm_of(d->graph, lrank, pp->local) != graph_comm ||
            crystal_graph_peer_of(d->graph, lrank, pp->local, pp->peer) !=
                pair->real_crank)
            continue;
        dp->before = pp->before;
        dp->is_timed = pp->each > 0;
        return;
    }
}

/* --- collectives --- */

/* The instruction of the virtual members' program behind number seq, or NULL. */
static const struct crystal_instr *expected(const struct dr_comm *dc, uint64_t seq)
{
    uint64_t nth = (seq - dc->before) % dc->each;

    for (uint32_t i = 0; i < dc->program->instr_count; i++) {
        const struct crystal_instr *in = &dc->program->instrs[i];

        if (in->kind == CRYSTAL_OP_COLL && in->local == dc->local && nth-- == 0)
            return in;
    }
    return NULL;
}

static void publish(struct crystal_driver *d, const struct dr_comm *dc,
                    struct crystal_board_slot *slot, const uint64_t *arrive)
{
    struct crystal_board_cell *cells = crystal_board_cells(d->board, dc->entry, slot);

    for (uint32_t k = 0; k < dc->entry->nranks; k++)
        if (!dc->is_real[k])
            atomic_store_explicit(&cells[k].arrive_ns,
                                  arrive && arrive[k] ? dr_own_ns(d, arrive[k])
                                                      : LONG_AGO,
                                  memory_order_relaxed);
    atomic_store_explicit(&slot->published, 1, memory_order_release);
}

/* Tells when virtual ranks arrive, if that is known. */
static bool coll_tell(struct crystal_driver *d, struct dr_comm *dc,
                      struct crystal_board_slot *slot, uint64_t seq, uint64_t now_ns)
{
    const struct crystal_instr *in;
    struct dr_known *k;

    if (!dc->is_timed || seq < dc->before || d->is_free) {
        publish(d, dc, slot, NULL);
        return true;
    }
    if (!atomic_load_explicit(&slot->described, memory_order_acquire))
        return false;
    in = expected(dc, seq);
    /* what is only moved may be told as bytes, whatever its type */
    if (in && (in->func != slot->func ||
               (crystal_func_reduces(in->func) && in->dtype != slot->dtype))) {
        dr_set_free(d, CRYSTAL_BOARD_FINISHED);
        publish(d, dc, slot, NULL);
        return true;
    }
    dr_start(d, now_ns);
    k = known_take(d, dc->entry->graph_comm, false, 0, 0, seq);
    if (!k)
        return false;
    publish(d, dc, slot, k->arrive_ns);
    free(k);
    return true;
}

/* Tells the timeline, here and elsewhere, of a rank of this node. The slot is
 * described. */
static int coll_arrive(struct crystal_driver *d, struct dr_comm *dc,
                       const struct crystal_board_slot *slot, uint64_t seq,
                       uint32_t crank, uint64_t arrive_ns)
{
    struct crystal_far_arrival arrival = {.comm_id = dc->entry->comm_id,
                                          .graph_comm = dc->entry->graph_comm,
                                          .kind = CRYSTAL_FAR_COLLECTIVE,
                                          .from = crank,
                                          .seq = seq,
                                          .func = slot->func,
                                          .dtype = slot->dtype,
                                          .root = slot->root,
                                          .count = slot->count,
                                          .time_ns = dr_job_ns(d, arrive_ns)};
    struct crystal_error err = {0};

    dr_far_tell(d, &arrival);
    if (!crystal_timeline_feed(d->timeline, arrival.graph_comm, seq, crank,
                               arrival.time_ns, &err))
        return 0;
    dr_fail(d, &err);
    return -EINVAL;
}

/* Tells the timeline of sandbox ranks that have arrived. Returns how many are new. */
static uint32_t coll_feed(struct crystal_driver *d, struct dr_comm *dc,
                          struct crystal_board_slot *slot, uint64_t seq,
                          uint32_t *ret_missing)
{
    struct crystal_board_cell *cells = crystal_board_cells(d->board, dc->entry, slot);
    uint8_t *fed = dc->is_fed + (seq % CRYSTAL_BOARD_SLOTS) * dc->real_count;
    bool is_inside = dc->is_timed && seq >= dc->before && !d->is_free;
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
        if (is_inside && coll_arrive(d, dc, slot, seq, dc->real[i], arrive_ns))
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
    uint32_t missing;
    bool is_new;

    if (*stage == DR_FREED)
        return false;
    is_new = coll_feed(d, dc, slot, seq, &missing) > 0;
    if (*stage == DR_OPEN && coll_tell(d, dc, slot, seq, now_ns)) {
        *stage = DR_TOLD;
        is_new = true;
    }
    dr_far_compare(d, dc, slot, seq);
    if (*stage == DR_OPEN && !missing && !dr_far_is_missing(dc, seq))
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

/* --- messages --- */

static bool message_tell(struct crystal_driver *d, struct dr_comm *dc,
                         struct dr_pair *dp, struct crystal_board_pair *pair,
                         struct crystal_board_pair_cell *cell, uint64_t seq,
                         uint64_t now_ns)
{
    uint32_t from = pair->real_sends ? pair->real_crank : pair->virtual_crank;
    uint32_t to = pair->real_sends ? pair->virtual_crank : pair->real_crank;
    uint64_t arrive_ns = LONG_AGO;

    if (dp->is_timed && seq >= dp->before && !d->is_free) {
        struct dr_known *k;

        dr_start(d, now_ns);
        k = known_take(d, dc->entry->graph_comm, true, from, to, seq);
        if (!k)
            return false;
        if (k->arrive_ns[0])
            arrive_ns = dr_own_ns(d, k->arrive_ns[0]);
        free(k);
    }
    atomic_store_explicit(&cell->virtual_arrive_ns, arrive_ns, memory_order_release);
    return true;
}

/* Returns 1 where the sandbox rank has just arrived, 0 where it did before, -1 not yet.
 */
static int message_feed(struct crystal_driver *d, struct dr_comm *dc,
                        struct dr_pair *dp, struct crystal_board_pair *pair,
                        struct crystal_board_pair_cell *cell, uint64_t seq)
{
    uint32_t from = pair->real_sends ? pair->real_crank : pair->virtual_crank;
    uint32_t to = pair->real_sends ? pair->virtual_crank : pair->real_crank;
    bool *fed = &dp->is_fed[seq % CRYSTAL_BOARD_SLOTS];
    uint64_t end_ns = atomic_load_explicit(&cell->end_ns, memory_order_acquire);
    uint64_t time_ns =
        atomic_load_explicit(&cell->real_arrive_ns, memory_order_acquire);
    struct crystal_error err = {0};

    if (*fed)
        return 0;
    if (!time_ns)
        time_ns = end_ns;
    if (!time_ns)
        return -1;
    if (dp->is_timed && seq >= dp->before && !d->is_free) {
        struct crystal_far_arrival arrival = {
            .comm_id = dc->entry->comm_id,
            .graph_comm = dc->entry->graph_comm,
            .kind = pair->real_sends ? CRYSTAL_FAR_SENDS : CRYSTAL_FAR_RECEIVES,
            .from = from,
            .to = to,
            .seq = seq,
            .time_ns = dr_job_ns(d, time_ns)};

        dr_far_tell(d, &arrival);
        if (crystal_timeline_feed_p2p(d->timeline, arrival.graph_comm, from, to, seq,
                                      pair->real_sends != 0, arrival.time_ns, &err))
            dr_fail(d, &err);
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
        pair_time(d, dc, dp, pair);
    }
    while (dp->next - dp->first < CRYSTAL_BOARD_SLOTS &&
           atomic_load_explicit(&pair->cells[dp->next % CRYSTAL_BOARD_SLOTS].seq_plus1,
                                memory_order_acquire) == dp->next + 1) {
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

static bool pairs_look(struct crystal_driver *d, struct dr_comm *dc, uint64_t now_ns)
{
    uint32_t count = atomic_load_explicit(&dc->entry->pair_count, memory_order_acquire);
    struct crystal_board_pair *pairs = crystal_board_pairs(d->board, dc->entry);
    bool is_new = false;

    if (count > dc->entry->pair_capacity)
        count = dc->entry->pair_capacity;
    if (count && !dc->pairs) {
        dc->pairs = calloc(dc->entry->pair_capacity, sizeof *dc->pairs);
        if (!dc->pairs) {
            no_memory(d);
            return false;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        is_new |= pair_look(d, dc, &dc->pairs[i], &pairs[i], now_ns);
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
        is_new |= pairs_look(d, dc, now_ns);
    }
    return is_new;
}

void dr_board_fini(struct crystal_driver *d)
{
    for (uint32_t i = 0; d->comms && i < d->head->comm_capacity; i++) {
        free(d->comms[i].real);
        free(d->comms[i].is_fed);
        free(d->comms[i].far);
        free(d->comms[i].far_next);
        free(d->comms[i].told);
        free(d->comms[i].pairs);
    }
    free(d->comms);
    for (uint32_t i = 0; d->known && i < crystal_graph_comm_count(d->graph); i++)
        while (d->known[i]) {
            struct dr_known *next = d->known[i]->next;

            free(d->known[i]);
            d->known[i] = next;
        }
    free(d->known);
}
