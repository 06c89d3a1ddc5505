/* Where this process stands in the rings of a communicator.
 *
 * Every channel has a ring of its own order: NCCL goes through the GPUs of a node as
 * its search found it, and every target node does the same (board.h). Where one GPU of
 * a node is real the ring is in rank order. Thread-safe; what is returned stays.
 */
#ifndef CRYSTAL_NET_RINGS_H
#define CRYSTAL_NET_RINGS_H

#include "replay/board.h"
#include "runtime/error.h"

#include <stdint.h>

/* In one ring. The run of virtual ranks before this one with the real rank before that,
 * and the same behind it; a run of 0 is a real neighbour. */
struct crystal_ring_place {
    const uint32_t *cranks; /* by place; NULL: rank order. Borrowed from the board */
    const uint32_t *places; /* by crank; NULL: rank order */
    uint32_t nranks;
    uint32_t place;
    uint32_t run_before, sender;   /* sender: crank */
    uint32_t run_behind, receiver; /* receiver: crank */
};

static inline uint32_t crystal_ring_crank(const struct crystal_ring_place *p,
                                          uint32_t place)
{
    return p->cranks ? p->cranks[place] : place;
}

static inline uint32_t crystal_ring_place_of(const struct crystal_ring_place *p,
                                             uint32_t crank)
{
    return p->places ? p->places[crank] : crank;
}

struct crystal_net_comm;
struct crystal_rings; /* of one communicator at this process */

/* NULL with err set. The entry is one of comm's board and outlives the rings. */
struct crystal_rings *crystal_rings_create(struct crystal_net_comm *comm,
                                           struct crystal_board_comm *entry,
                                           struct crystal_error *err);
void crystal_rings_destroy(struct crystal_rings *rings);

/* This process's place in the ring of a channel. 1 found, 0 the members have not told
 * yet (noted on the wait list), negative errno. */
int crystal_rings_place(struct crystal_rings *rings, uint32_t channel,
                        const struct crystal_ring_place **ret,
                        struct crystal_error *err);

#endif
