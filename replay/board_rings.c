/* What the board says of a communicator's channels and of the order of its rings, once
 * its real members have told. See board.h. */
#include "config.h"

#include "replay/board_internal.h"

#include <errno.h>
#include <string.h>

void crystal_board_comm_channels(struct crystal_board *board, uint64_t comm_id,
                                 uint32_t graph_channels)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, comm_id);

    if (comm)
        atomic_store_explicit(&comm->graph_channels, graph_channels,
                              memory_order_release);
}

void crystal_board_comm_await_rings(struct crystal_board *board, uint64_t comm_id)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, comm_id);

    if (comm)
        atomic_store_explicit(&comm->rings, CRYSTAL_BOARD_RINGS_AWAITED,
                              memory_order_release);
}

static int rings_put(struct crystal_board *board, struct crystal_board_comm *comm,
                     uint32_t ring_count, const uint32_t *ranks,
                     struct crystal_error *err)
{
    const uint64_t bytes = sizeof *ranks * (uint64_t)ring_count * comm->nranks;
    int code = crystal_board_heap_check(board, comm->name, bytes, err);

    if (code)
        return code;
    comm->rings_offset = crystal_board_heap_take(board, bytes);
    comm->ring_count = ring_count;
    memcpy(board->base + comm->rings_offset, ranks, bytes);
    return 0;
}

int crystal_board_comm_rings(struct crystal_board *board, uint64_t comm_id,
                             uint32_t ring_count, const uint32_t *ranks, bool alone,
                             struct crystal_error *err)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, comm_id);
    int code = 0;

    if (!comm)
        return crystal_error_set(err, ENOENT, "communicator %016llx: not on the board",
                                 (unsigned long long)comm_id);
    if (ring_count) {
        (void)pthread_mutex_lock(&board->add_lock); /* cannot fail */
        code = rings_put(board, comm, ring_count, ranks, err);
        (void)pthread_mutex_unlock(&board->add_lock);
    }
    comm->alone = alone;
    if (!code)
        atomic_store_explicit(&comm->rings,
                              ring_count ? CRYSTAL_BOARD_RINGS_LISTED
                                         : CRYSTAL_BOARD_RINGS_RANK,
                              memory_order_release);
    return code;
}

const uint32_t *crystal_board_ring_ranks(struct crystal_board *board,
                                         const struct crystal_board_comm *comm,
                                         uint32_t channel)
{
    const uint32_t count = comm->ring_count;

    if (!count ||
        !crystal_board_is_inside(board, comm->rings_offset,
                                 (uint64_t)count * comm->nranks, sizeof(uint32_t)))
        return NULL;
    return (const uint32_t *)(board->base + comm->rings_offset) +
           (uint64_t)(channel % count) * comm->nranks;
}
