/* The target's network as the timeline sees it: one wire between nodes, one inside a
 * node, and links between two nodes that are slower than the others. A communicator has
 * one wire: the inner one where all members are on one node, else the outer one, slowed
 * down by the slowest link between neighbours of its ring. A tree joins nodes that have
 * equally many consecutive members, else single ranks; PAT needs one member on each
 * node, as NCCL's does, and is a ring elsewhere. Pure, thread-safe.
 */
#ifndef CRYSTAL_NETWORK_H
#define CRYSTAL_NETWORK_H

#include "runtime/transfer.h"

#include <stdint.h>

/* What is left of the bandwidth between two nodes (one node: inside it). */
struct crystal_network_link {
    uint32_t node_a, node_b;
    uint32_t left_ppm; /* 1 .. 1000000 */
};

struct crystal_network {
    struct crystal_transfer_wire wire;
    struct crystal_transfer_wire node_wire;
    uint32_t ranks_per_node; /* 0: one wire for all, no links */
    const struct crystal_network_link *links;
    uint32_t link_count;
    uint32_t algos; /* enum crystal_transfer_algo, of all communicators */
};

/* Is the way between these two nodes this link? */
int crystal_network_is_on(const struct crystal_network_link *link, uint32_t node_a,
                          uint32_t node_b);

/* The wire of a communicator with these members (lranks by crank), or of the messages
 * between two ranks. */
struct crystal_transfer_wire crystal_network_wire(const struct crystal_network *net,
                                                  const uint32_t *members,
                                                  uint32_t nranks);

#endif
