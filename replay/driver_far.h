/* What the drivers of several sandbox nodes tell each other: when their ranks arrive at
 * operations with virtual ranks. Every node's timeline has all virtual ranks and is fed
 * with all arrivals, its own from the board and the others' from here, so that all say
 * the same without asking (runtime/timeline.h: no result depends on the order). Two
 * things need one word for all: when the virtual ranks begin, which node 0 says, and
 * that the program has left its pattern, which whoever sees it says.
 *
 * Times are of node 0's clock (crystal_links_clock_ns).
 */
#ifndef CRYSTAL_DRIVER_FAR_H
#define CRYSTAL_DRIVER_FAR_H

#include <stdint.h>

enum crystal_far_kind {
    CRYSTAL_FAR_COLLECTIVE = 1,
    CRYSTAL_FAR_SENDS = 2,   /* the real rank sends to a virtual one */
    CRYSTAL_FAR_RECEIVES = 3 /* the other way */
};

/* CRYSTAL_LINK_ARRIVAL */
struct crystal_far_arrival {
    uint64_t comm_id;
    uint32_t graph_comm;
    uint32_t kind;     /* enum crystal_far_kind */
    uint32_t from, to; /* cranks; of a collective: who has arrived, and 0 */
    uint64_t seq;
    uint64_t time_ns;
    uint32_t func, dtype, root; /* of a collective, as on the board; func 0: not known
                                   yet, as count */
    uint32_t zero;
    uint64_t count;
};

/* CRYSTAL_LINK_START: to node 0 a wish, from it the word. */
struct crystal_far_start {
    uint64_t time_ns;
};

#endif
