/* Communicators on the board: adding one, finding one, and what belongs to it. See
 * board.h for the bytes.
 */
#include "config.h"

#include "replay/board_internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static uint32_t pair_capacity(uint32_t nranks, uint32_t real_count)
{
    uint64_t pairs = 2 * (uint64_t)real_count * (nranks - 1);

    return pairs < CRYSTAL_BOARD_PAIRS_MAX ? (uint32_t)pairs : CRYSTAL_BOARD_PAIRS_MAX;
}

uint64_t crystal_board_comm_bytes(uint32_t nranks, uint32_t pairs)
{
    return crystal_board_align(4 * (uint64_t)nranks) + crystal_board_align(nranks) +
           crystal_board_align(sizeof(struct crystal_board_slot) *
                               CRYSTAL_BOARD_SLOTS) +
           crystal_board_align(sizeof(struct crystal_board_cell) * (uint64_t)nranks) *
               CRYSTAL_BOARD_SLOTS +
           crystal_board_align(sizeof(struct crystal_board_pair) * (uint64_t)pairs);
}

static struct crystal_board_comm *comm_at(struct crystal_board *board, uint32_t index)
{
    return (struct crystal_board_comm *)(board->base + board->comms_offset) + index;
}

static int comm_check(struct crystal_board *board,
                      const struct crystal_board_comm *comm)
{
    const struct crystal_board_slot *slots;

    if (!comm->nranks || comm->nranks > CRYSTAL_BOARD_LRANKS_MAX ||
        comm->real_count > comm->nranks ||
        comm->pair_capacity > CRYSTAL_BOARD_PAIRS_MAX ||
        !crystal_board_is_inside(board, comm->members_offset, comm->nranks,
                                 sizeof(uint32_t)) ||
        !crystal_board_is_inside(board, comm->real_offset, comm->nranks, 1) ||
        !crystal_board_is_inside(board, comm->slots_offset, CRYSTAL_BOARD_SLOTS,
                                 sizeof *slots) ||
        !crystal_board_is_inside(board, comm->pairs_offset, comm->pair_capacity,
                                 sizeof(struct crystal_board_pair)))
        return 0;
    slots = (const struct crystal_board_slot *)(board->base + comm->slots_offset);
    for (unsigned i = 0; i < CRYSTAL_BOARD_SLOTS; i++)
        if (!crystal_board_is_inside(board, slots[i].cells_offset, comm->nranks,
                                     sizeof(struct crystal_board_cell)))
            return 0;
    return 1;
}

struct crystal_board_comm *crystal_board_comm_find(struct crystal_board *board,
                                                   uint64_t comm_id)
{
    struct crystal_board_header *head = crystal_board_header(board);
    uint32_t count = atomic_load_explicit(&head->comm_count, memory_order_acquire);

    if (count > board->comm_capacity)
        count = board->comm_capacity;
    for (uint32_t i = 0; i < count; i++) {
        struct crystal_board_comm *comm = comm_at(board, i);

        if (atomic_load_explicit(&comm->state, memory_order_acquire) ==
                CRYSTAL_BOARD_READY &&
            comm->comm_id == comm_id && comm_check(board, comm))
            return comm;
    }
    return NULL;
}

struct crystal_board_comm *crystal_board_comm_at(struct crystal_board *board,
                                                 uint32_t index)
{
    struct crystal_board_comm *comm;

    if (index >= board->comm_capacity)
        return NULL;
    comm = comm_at(board, index);
    if (atomic_load_explicit(&comm->state, memory_order_acquire) !=
            CRYSTAL_BOARD_READY ||
        !comm_check(board, comm))
        return NULL;
    return comm;
}

static void comm_fill(struct crystal_board *board, struct crystal_board_comm *comm,
                      const uint32_t *members, const uint8_t *is_real)
{
    struct crystal_board_slot *slots;

    comm->members_offset = crystal_board_heap_take(board, 4 * (uint64_t)comm->nranks);
    comm->real_offset = crystal_board_heap_take(board, comm->nranks);
    comm->slots_offset =
        crystal_board_heap_take(board, sizeof *slots * CRYSTAL_BOARD_SLOTS);
    comm->pairs_offset = crystal_board_heap_take(
        board, sizeof(struct crystal_board_pair) * (uint64_t)comm->pair_capacity);
    memcpy(board->base + comm->members_offset, members, 4 * (size_t)comm->nranks);
    memcpy(board->base + comm->real_offset, is_real, comm->nranks);
    slots = (struct crystal_board_slot *)(board->base + comm->slots_offset);
    for (unsigned i = 0; i < CRYSTAL_BOARD_SLOTS; i++)
        slots[i].cells_offset = crystal_board_heap_take(
            board, sizeof(struct crystal_board_cell) * (uint64_t)comm->nranks);
}

static int comm_add_locked(struct crystal_board *board, uint64_t comm_id,
                           const char *name, uint32_t graph_comm, uint32_t nranks,
                           const uint32_t *members, const uint8_t *is_real,
                           struct crystal_error *err)
{
    struct crystal_board_header *head = crystal_board_header(board);
    uint32_t index = atomic_load(&head->comm_count), real_count = 0, pairs;
    struct crystal_board_comm *comm;

    for (uint32_t i = 0; i < nranks; i++) {
        if (members[i] >= head->lrank_count)
            return crystal_error_set(err, ERANGE,
                                     "communicator '%s': member %u is rank %u of %u",
                                     name, i, members[i], head->lrank_count);
        real_count += is_real[i] ? 1 : 0;
    }
    if (crystal_board_comm_find(board, comm_id))
        return crystal_error_set(
            err, EEXIST, "communicator '%s': id %016llx is on the board already", name,
            (unsigned long long)comm_id);
    if (index >= board->comm_capacity)
        return crystal_error_set(err, ENOSPC,
                                 "communicator '%s': the board has room for %u only",
                                 name, board->comm_capacity);
    pairs = pair_capacity(nranks, real_count);
    if (crystal_board_heap_check(board, name, crystal_board_comm_bytes(nranks, pairs),
                                 err))
        return -ENOSPC;
    comm = comm_at(board, index);
    comm->nranks = nranks;
    comm->comm_id = comm_id;
    comm->graph_comm = graph_comm;
    comm->real_count = real_count;
    comm->pair_capacity = pairs;
    memcpy(comm->name, name, strlen(name) + 1);
    comm_fill(board, comm, members, is_real);
    atomic_store_explicit(&comm->state, CRYSTAL_BOARD_READY, memory_order_release);
    atomic_store_explicit(&head->comm_count, index + 1, memory_order_release);
    return 0;
}

int crystal_board_comm_add(struct crystal_board *board, uint64_t comm_id,
                           const char *name, uint32_t graph_comm, uint32_t nranks,
                           const uint32_t *members, const uint8_t *is_real,
                           struct crystal_error *err)
{
    int code;

    if (strlen(name) >= CRYSTAL_BOARD_NAME)
        return crystal_error_set(err, ENAMETOOLONG,
                                 "communicator '%s': name of more than %d bytes", name,
                                 CRYSTAL_BOARD_NAME - 1);
    if (!nranks || nranks > CRYSTAL_BOARD_LRANKS_MAX)
        return crystal_error_set(err, EINVAL, "communicator '%s': %u members", name,
                                 nranks);
    (void)pthread_mutex_lock(&board->add_lock); /* cannot fail: no error checking */
    code = comm_add_locked(board, comm_id, name, graph_comm, nranks, members, is_real,
                           err);
    (void)pthread_mutex_unlock(&board->add_lock);
    return code;
}

const uint32_t *crystal_board_members(struct crystal_board *board,
                                      const struct crystal_board_comm *comm)
{
    return (const uint32_t *)(board->base + comm->members_offset);
}

uint32_t crystal_board_crank(struct crystal_board *board,
                             const struct crystal_board_comm *comm, uint32_t lrank)
{
    const uint32_t *members = crystal_board_members(board, comm);

    for (uint32_t crank = 0; crank < comm->nranks; crank++)
        if (members[crank] == lrank)
            return crank;
    return UINT32_MAX;
}

const uint8_t *crystal_board_is_real(struct crystal_board *board,
                                     const struct crystal_board_comm *comm)
{
    return board->base + comm->real_offset;
}

struct crystal_board_slot *crystal_board_slot(struct crystal_board *board,
                                              const struct crystal_board_comm *comm,
                                              uint64_t seq)
{
    return (struct crystal_board_slot *)(board->base + comm->slots_offset) +
           seq % CRYSTAL_BOARD_SLOTS;
}

struct crystal_board_cell *crystal_board_cells(struct crystal_board *board,
                                               const struct crystal_board_comm *comm,
                                               const struct crystal_board_slot *slot)
{
    (void)comm; /* says how many */
    return (struct crystal_board_cell *)(board->base + slot->cells_offset);
}

struct crystal_board_pair *crystal_board_pairs(struct crystal_board *board,
                                               const struct crystal_board_comm *comm)
{
    return (struct crystal_board_pair *)(board->base + comm->pairs_offset);
}
