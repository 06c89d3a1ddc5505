/* Who waits for whom, on a node of the sandbox, as its roll and its board say.
 *
 * A rank waits for another where
 *   - a transfer with it has not moved for 3 s (roll: WAITS),
 *   - the transfer is with a virtual rank, whose message may depend on it: it is a
 *     member of that communicator and has not arrived at an operation that the waiting
 *     rank has arrived at (board; where virtual ranks answer at once, it does not say
 *     who has arrived),
 *   - it has not joined a communicator that the other has joined 1 s ago.
 */
#ifndef CRYSTAL_RANK_WAITS_H
#define CRYSTAL_RANK_WAITS_H

#include "replay/board.h"
#include "replay/roll.h"

#include <stdint.h>

/* What is looked at; everything borrowed. */
struct crystal_rank_waits {
    struct crystal_roll *roll;
    struct crystal_board *board;
    const struct crystal_roll_record *records; /* of the roll */
    uint32_t count;
};

/* Why one rank waits for another. */
struct crystal_rank_wait {
    uint32_t lrank;   /* who waits */
    uint64_t comm_id; /* where */
    int joins;        /* for the other to join it */
};

/* Does this rank wait for another, or is it inside a collective? */
int crystal_rank_waits_is_waiting(const struct crystal_rank_waits *w, uint32_t lrank);

/* Who waits for lrank? 0: nobody; else 1 and the first one that does. */
int crystal_rank_waits_find(const struct crystal_rank_waits *w, uint32_t lrank,
                            struct crystal_rank_wait *ret);

#endif
