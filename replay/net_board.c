/* What an operation of this process does on the board, and its run record at the end.
 *
 * Timed mode only: a collective takes the slot of its number, or joins it where another
 * sandbox rank was first, and both must mean the same operation; a transfer to or from
 * a virtual rank takes a cell of its pair; one with a real root of a gather or a
 * scatter is noted in such a cell. In immediate mode virtual ranks have arrived long
 * ago and nobody asks when real ones do.
 */
#include "config.h"

#include "replay/net.h"
#include "replay/net_payload.h"
#include "replay/run_writer.h"
#include "replay/wait_list.h"
#include "runtime/clock.h"

#include <string.h>

static struct crystal_board *board_of(const struct crystal_operation *op)
{
    return op->comm->module->board;
}

/* The entry of the operation's communicator where the board times it. */
static struct crystal_board_comm *entry_of(struct crystal_operation *op)
{
    struct crystal_error err = {0};
    int found;

    if (atomic_load_explicit(&op->comm->is_plain, memory_order_relaxed))
        return NULL;
    found = crystal_net_comm_resolve(op->comm, &err);
    if (found < 0)
        crystal_net_stop(op->comm->module, "%s", crystal_error_text(&err));
    if (!found)
        atomic_store(&op->comm->is_plain, 1);
    return found > 0 ? atomic_load(&op->comm->board) : NULL;
}

static int is_timed(const struct crystal_operation *op)
{
    return op->comm->module->is_timed && op->comm->nranks > 1;
}

static int is_peer_virtual(const struct crystal_operation *op,
                           const struct crystal_board_comm *entry)
{
    return op->peer < entry->nranks &&
           !crystal_board_is_real(board_of(op), entry)[op->peer];
}

/* --- collectives: slots --- */

static const char *func_name(uint32_t func)
{
    static const char *const names[] = {"none",       "broadcast",      "reduce",
                                        "all-gather", "reduce-scatter", "all-reduce"};

    return func < sizeof names / sizeof names[0] ? names[func] : "unknown";
}

/* Writes what the operation is, or compares. 0: somebody else is writing. */
static int slot_describe(struct crystal_operation *op, struct crystal_board_slot *slot,
                         int is_first)
{
    if (is_first) {
        slot->func = op->func;
        slot->dtype = op->dtype;
        slot->root = op->root;
        slot->count = op->count;
        atomic_store_explicit(&slot->described, 1, memory_order_release);
        return 1;
    }
    if (!atomic_load_explicit(&slot->described, memory_order_acquire))
        return 0;
    if (slot->func != op->func || slot->dtype != op->dtype || slot->root != op->root ||
        slot->count != op->count)
        crystal_net_stop(
            op->comm->module,
            "communicator '%s', operation %llu: rank %u calls %s of %llu elements "
            "(type "
            "%u, root %u), another sandbox rank %s of %llu (type %u, root %u)",
            atomic_load(&op->comm->board)->name, (unsigned long long)op->seq,
            op->comm->crank, func_name(op->func), (unsigned long long)op->count,
            op->dtype, op->root, func_name(slot->func), (unsigned long long)slot->count,
            slot->dtype, slot->root);
    return 1;
}

/* Claims the slot if it can and tells it what is known. Returns it or NULL. */
static struct crystal_board_slot *slot_sync(struct crystal_operation *op,
                                            struct crystal_board_comm *entry)
{
    struct crystal_board_slot *slot = atomic_load(&op->slot);
    uint64_t arrive_ns = atomic_load(&op->arrive_ns), nobody = 0;
    int is_first = 0, is_news = !slot;

    if (!slot) {
        slot = crystal_board_slot(board_of(op), entry, op->seq);
        is_first =
            atomic_compare_exchange_strong(&slot->seq_plus1, &nobody, op->seq + 1);
        if (!is_first && nobody != op->seq + 1)
            return NULL;
        atomic_store(&op->slot, slot);
    }
    if (arrive_ns) {
        struct crystal_board_cell *cells =
            crystal_board_cells(board_of(op), entry, slot);

        is_news |= !atomic_exchange(&cells[op->comm->crank].arrive_ns, arrive_ns);
    }
    if (!atomic_load(&op->described) && slot_describe(op, slot, is_first))
        atomic_store(&op->described, 1);
    if (is_news)
        crystal_board_ring(board_of(op));
    return slot;
}

/* Whether its first message goes out as soon as it is there: then that tells when it
 * arrived. One that sends nothing, or only hands on what it receives, is there from its
 * start. */
static int sends_first(const struct crystal_operation *op)
{
    const uint32_t n = op->comm->nranks, me = op->comm->crank;

    if (op->is_p2p)
        return op->func == CRYSTAL_FUNC_SEND;
    if (op->func == CRYSTAL_FUNC_BROADCAST)
        return me == op->root;
    if (op->func == CRYSTAL_FUNC_REDUCE)
        return me == (op->root + 1) % n;
    return op->count > 0;
}

const struct crystal_board_cell *
crystal_operation_arrivals(struct crystal_operation *op)
{
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);
    struct crystal_board_slot *slot = entry ? slot_sync(op, entry) : NULL;

    if (!slot || !atomic_load_explicit(&slot->published, memory_order_acquire))
        return NULL;
    return crystal_board_cells(board_of(op), entry, slot);
}

static void slot_end(struct crystal_operation *op, struct crystal_board_comm *entry,
                     uint64_t end_ns)
{
    struct crystal_board_slot *slot = slot_sync(op, entry);
    struct crystal_board_cell *cells;

    if (!slot)
        return; /* it sent and received nothing */
    cells = crystal_board_cells(board_of(op), entry, slot);
    atomic_store_explicit(&cells[op->comm->crank].end_ns, end_ns, memory_order_release);
    (void)atomic_fetch_add_explicit(&slot->ended_count, 1, memory_order_acq_rel);
    crystal_board_ring(board_of(op));
}

/* --- point-to-point: pairs --- */

/* Adds a pair to the board. Returns its index plus 1, 0 if there is no room. */
static uint32_t pair_add(struct crystal_operation *op, struct crystal_board_comm *entry)
{
    uint32_t index = atomic_fetch_add(&entry->pair_count, 1);
    struct crystal_board_pair *pair;

    if (index >= entry->pair_capacity) {
        (void)atomic_fetch_sub(&entry->pair_count, 1);
        crystal_net_stop(op->comm->module,
                         "communicator '%s': more than %u pairs of a sandbox rank "
                         "and a virtual one exchange messages",
                         entry->name, entry->pair_capacity);
        return 0;
    }
    pair = &crystal_board_pairs(board_of(op), entry)[index];
    pair->real_crank = op->comm->crank;
    pair->virtual_crank = op->peer;
    pair->real_sends = op->func == CRYSTAL_FUNC_SEND;
    atomic_store_explicit(&pair->state, CRYSTAL_BOARD_READY, memory_order_release);
    return index + 1;
}

static struct crystal_board_pair *pair_find(struct crystal_operation *op,
                                            struct crystal_board_comm *entry)
{
    uint32_t at = op->peer + (op->func == CRYSTAL_FUNC_SEND ? 0 : entry->nranks);
    uint32_t known = atomic_load(&op->comm->pairs[at]);

    if (!known) {
        (void)pthread_mutex_lock(&op->comm->lock);
        known = atomic_load(&op->comm->pairs[at]);
        if (!known) {
            known = pair_add(op, entry);
            atomic_store(&op->comm->pairs[at], known);
        }
        (void)pthread_mutex_unlock(&op->comm->lock);
    }
    return known ? &crystal_board_pairs(board_of(op), entry)[known - 1] : NULL;
}

static struct crystal_board_pair_cell *cell_sync(struct crystal_operation *op,
                                                 struct crystal_board_comm *entry)
{
    struct crystal_board_pair_cell *cell = atomic_load(&op->pair_cell);
    uint64_t arrive_ns = atomic_load(&op->arrive_ns);
    uint64_t leave_ns = atomic_load(&op->leave_ns);
    struct crystal_board_pair *pair;
    int is_news = !cell;

    if (!cell) {
        pair = pair_find(op, entry);
        if (!pair)
            return NULL;
        cell = &pair->cells[op->seq % CRYSTAL_BOARD_SLOTS];
        if (atomic_load_explicit(&cell->seq_plus1, memory_order_acquire))
            return NULL; /* an older transfer's, until the agent frees it */
        cell->bytes = op->count * op->elt_bytes;
        atomic_store_explicit(&cell->seq_plus1, op->seq + 1, memory_order_release);
        atomic_store(&op->pair_cell, cell);
    }
    if (arrive_ns)
        is_news |=
            !atomic_exchange(&cell->real_arrive_ns, leave_ns ? leave_ns : arrive_ns);
    if (is_news)
        crystal_board_ring(board_of(op));
    return cell;
}

uint64_t crystal_operation_partner_ns(struct crystal_operation *op)
{
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);
    struct crystal_board_pair_cell *cell;

    if (!is_timed(op))
        return 1;
    cell = entry ? cell_sync(op, entry) : NULL;
    return cell ? atomic_load_explicit(&cell->virtual_arrive_ns, memory_order_acquire)
                : 0;
}

/* --- notes --- */

/* Whether this rank has no other part in a collective with virtual ranks than this
 * transfer, which is with a real one: the root of a gather or a scatter. */
static int is_with_root(const struct crystal_operation *op)
{
    return atomic_load(&op->has_call) && op->peer != op->comm->crank &&
           ((op->api_func == CRYSTAL_FUNC_GATHER && op->func == CRYSTAL_FUNC_SEND) ||
            (op->api_func == CRYSTAL_FUNC_SCATTER && op->func == CRYSTAL_FUNC_RECV));
}

/* Tells that this rank has come, at once and for good: the cell is the agent's from
 * then on. 0: it has not freed the place yet. */
static int note(struct crystal_operation *op, struct crystal_board_comm *entry)
{
    uint32_t nranks = op->comm->ops.nranks;
    _Atomic uint64_t *seq =
        &op->comm->ops.peer_seq[2 * nranks + op->peer +
                                (op->func == CRYSTAL_FUNC_RECV ? nranks : 0)];
    struct crystal_board_pair *pair = pair_find(op, entry);
    struct crystal_board_pair_cell *cell;

    if (!pair)
        return 1; /* the job is stopped */
    cell = &pair->cells[atomic_load(seq) % CRYSTAL_BOARD_SLOTS];
    if (atomic_load_explicit(&cell->seq_plus1, memory_order_acquire))
        return 0;
    cell->bytes = op->count * op->elt_bytes;
    atomic_store_explicit(&cell->real_arrive_ns, op->start_ns, memory_order_relaxed);
    atomic_store_explicit(&cell->end_ns, op->start_ns, memory_order_relaxed);
    atomic_store_explicit(&cell->seq_plus1, atomic_fetch_add(seq, 1) + 1,
                          memory_order_release);
    crystal_board_ring(board_of(op));
    return 1;
}

static int note_sync(struct crystal_operation *op, struct crystal_board_comm *entry)
{
    struct crystal_error err = {0};

    if (atomic_load(&op->is_noted))
        return 1;
    if (crystal_payload_call(op, &err)) {
        crystal_net_stop(op->comm->module, "%s", crystal_error_text(&err));
        return 1;
    }
    if (is_with_root(op) && !note(op, entry))
        return 0;
    atomic_store(&op->is_noted, 1);
    return 1;
}

/* --- both --- */

int crystal_operation_is_ready(struct crystal_operation *op)
{
    struct crystal_board_comm *entry;

    if (!is_timed(op) || atomic_load(&op->slot) || atomic_load(&op->pair_cell))
        return 1;
    entry = entry_of(op);
    if (!entry)
        return 1;
    if (!op->is_p2p)
        return slot_sync(op, entry) != NULL;
    return is_peer_virtual(op, entry) ? cell_sync(op, entry) != NULL
                                      : note_sync(op, entry);
}

void crystal_operation_begin(struct crystal_operation *op)
{
    if (!sends_first(op))
        atomic_store(&op->arrive_ns, op->start_ns);
    (void)crystal_operation_is_ready(op); /* else its first message tries again */
}

void crystal_operation_arrive(struct crystal_operation *op, uint64_t now_ns,
                              uint64_t leave_ns)
{
    uint64_t not_yet = 0;

    if (atomic_load_explicit(&op->arrive_ns, memory_order_relaxed))
        return;
    (void)atomic_compare_exchange_strong(&op->leave_ns, &not_yet, leave_ns);
    not_yet = 0;
    if (!atomic_compare_exchange_strong(&op->arrive_ns, &not_yet, now_ns))
        return;
    if (atomic_load(&op->slot))
        (void)slot_sync(op, atomic_load(&op->comm->board));
    else if (atomic_load(&op->pair_cell))
        (void)cell_sync(op, atomic_load(&op->comm->board));
}

/* What the library said of a collective when it began. */
static uint8_t way_of(const struct crystal_operation *op)
{
    static const uint8_t algos[] = {[CRYSTAL_ALGO_RING] = CRYSTAL_OP_ALGO_RING,
                                    [CRYSTAL_ALGO_TREE] = CRYSTAL_OP_ALGO_TREE,
                                    [CRYSTAL_ALGO_PAT] = CRYSTAL_OP_ALGO_PAT,
                                    [CRYSTAL_ALGO_OTHER] = CRYSTAL_OP_ALGO_UNKNOWN};
    static const uint8_t protos[] = {[CRYSTAL_PROTO_SIMPLE] = CRYSTAL_OP_PROTO_SIMPLE,
                                     [CRYSTAL_PROTO_LL] = CRYSTAL_OP_PROTO_LL,
                                     [CRYSTAL_PROTO_LL128] = CRYSTAL_OP_PROTO_LL128};

    if (op->is_p2p || op->algo > CRYSTAL_ALGO_OTHER || op->proto >= CRYSTAL_PROTO_COUNT)
        return 0;
    return CRYSTAL_OP_WAY(algos[op->algo], protos[op->proto]);
}

static void record_write(struct crystal_operation *op, uint64_t end_ns)
{
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);
    uint64_t waited_us = atomic_load(&op->waited_ns) / 1000;
    uint64_t arrive_ns = atomic_load(&op->arrive_ns);
    struct crystal_run_record record = {
        .comm_id = op->comm->comm_id,
        .order = op->order,
        .api_ns = crystal_net_job_ns(op->comm->module, op->api_ns),
        .arrive_ns =
            crystal_net_job_ns(op->comm->module, arrive_ns ? arrive_ns : op->start_ns),
        .end_ns = crystal_net_job_ns(op->comm->module, end_ns),
        .bytes = op->count * op->elt_bytes,
        .nranks = op->comm->nranks,
        .crank = op->comm->crank,
        .func = op->func,
        .dtype = op->dtype,
        .way = way_of(op),
        .waited_us = waited_us > UINT32_MAX ? UINT32_MAX : (uint32_t)waited_us,
    };

    if (entry &&
        (op->is_p2p ? is_peer_virtual(op, entry) : entry->real_count < entry->nranks))
        record.flags |= CRYSTAL_RUN_VIRTUAL;
    if (atomic_load(&op->standin))
        record.flags |= CRYSTAL_RUN_STANDIN;
    crystal_run_append(op->comm->module->run, &record);
}

void crystal_operation_finish(struct crystal_operation *op)
{
    struct crystal_board_comm *entry = atomic_load(&op->comm->board);
    uint64_t end_ns = crystal_now_ns();

    if (entry && is_timed(op)) {
        if (!op->is_p2p)
            slot_end(op, entry, end_ns);
        else if (atomic_load(&op->pair_cell)) {
            atomic_store_explicit(&atomic_load(&op->pair_cell)->end_ns, end_ns,
                                  memory_order_release);
            crystal_board_ring(board_of(op));
        }
    }
    if (op->comm->module->run)
        record_write(op, end_ns);
}

void crystal_operation_waited(struct crystal_operation *op, uint64_t from_ns,
                              uint64_t to_ns)
{
    uint64_t until_ns = atomic_load(&op->waited_until_ns);

    do {
        if (to_ns <= until_ns)
            return;
    } while (!atomic_compare_exchange_weak(&op->waited_until_ns, &until_ns, to_ns));
    if (from_ns < until_ns)
        from_ns = until_ns; /* counted before */
    if (from_ns < to_ns)
        (void)atomic_fetch_add(&op->waited_ns, to_ns - from_ns);
}

void crystal_operation_standin(struct crystal_operation *op, uint64_t bytes)
{
    struct crystal_board_header *head = op->comm->module->head;

    if (!atomic_load_explicit(&op->standin, memory_order_relaxed) &&
        !atomic_exchange(&op->standin, 1))
        (void)atomic_fetch_add(&head->standin_ops, 1);
    (void)atomic_fetch_add_explicit(&head->standin_bytes, bytes, memory_order_relaxed);
}

void crystal_operation_late(struct crystal_operation *op, uint64_t due_ns,
                            uint64_t now_ns)
{
    struct crystal_board_header *head = op->comm->module->head;
    uint64_t late_ns = now_ns - due_ns, max_ns = atomic_load(&head->late_max_ns);

    if (now_ns <= due_ns)
        return;
    if (!atomic_exchange(&op->is_late, 1))
        (void)atomic_fetch_add(&head->late_count, 1);
    while (late_ns > max_ns &&
           !atomic_compare_exchange_weak(&head->late_max_ns, &max_ns, late_ns))
        ;
}
