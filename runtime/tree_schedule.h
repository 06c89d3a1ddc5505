/* Which bytes a tree all-reduce moves on which connection: NCCL 2.28's double binary
 * tree. The tree's part of what runtime/ring_schedule.h is for
 * rings.
 *
 * Nodes of `ranks_per_node` consecutive cranks form a binary tree (the second half of a
 * communicator's channels: its mirror image, or with an odd number of nodes the same
 * one node further). Within a node the ranks are a chain, crank order, whose first rank
 * (and for some shapes whose second) has the connections to other nodes.
 *
 * Data: message i of a connection, in each direction, carries chunk i of the channel's
 * part of the tensor (one network message per chunk and direction, also where it is the
 * last and short). From child to parent it is the reduction over the child's subtree,
 * the child's own contribution first, then its children's in the order of `down`; from
 * parent to child it is the result over all ranks. A rank sends chunk i up when chunk i
 * of each of its children is there; the root sends chunk i down then. With an average
 * the root divides. Pure functions, thread-safe.
 */
#ifndef CRYSTAL_TREE_SCHEDULE_H
#define CRYSTAL_TREE_SCHEDULE_H

#include "runtime/wire_form.h"

#include <stdint.h>

#define CRYSTAL_TREE_ARITY 3 /* children: two of other nodes, one of the chain */

/* Which rank of a node's chain has which connections (NCCL's graph patterns). */
enum crystal_tree_shape {
    CRYSTAL_TREE_BALANCED = 1, /* first: parent and second child; second: first child */
    CRYSTAL_TREE_SPLIT = 2,    /* first: parent; second: both children */
    CRYSTAL_TREE_SINGLE = 3    /* first: all; the shape of nodes with one rank */
};

struct crystal_tree_op {
    uint32_t nranks;
    uint32_t ranks_per_node; /* divides nranks */
    enum crystal_tree_shape shape;
    uint32_t half; /* channels of the communicator's first tree: those of NCCL's graph.
                      Channel c is of the second tree where c / half is odd */
    uint64_t count;
    uint32_t elt_bytes;
    uint32_t channel_count; /* that this operation may use, as in crystal_ring_op */
    uint32_t channel;
    enum crystal_proto proto;
};

/* Neighbours of one rank; cranks, -1: none. */
struct crystal_tree_place {
    int32_t up;
    int32_t down[CRYSTAL_TREE_ARITY]; /* those that are there come first */
};

struct crystal_tree_message {
    uint64_t offset_elts; /* in the tensor */
    uint32_t elts;
};

/* op's count and elt_bytes do not matter here. crank < nranks. */
void crystal_tree_place(const struct crystal_tree_op *op, uint32_t crank,
                        struct crystal_tree_place *ret);
/* Is crank in the subtree of top (which is part of it)? */
int crystal_tree_is_below(const struct crystal_tree_op *op, uint32_t crank,
                          uint32_t top);

/* Network messages per connection and direction on op's channel. */
uint64_t crystal_tree_message_count(const struct crystal_tree_op *op);
/* The index-th of them. index < the count above. */
void crystal_tree_message(const struct crystal_tree_op *op, uint64_t index,
                          struct crystal_tree_message *ret);

#endif
