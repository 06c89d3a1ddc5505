/* Payload and time of NCCL's double binary tree where virtual ranks are the neighbours
 * of this process (runtime/tree_schedule.h has the tree).
 *
 * A virtual child sends the sum of its subtree; a virtual parent the sum of all: this
 * rank's own message up, with the same index, and the contributions of everybody
 * outside its subtree. Times: a virtual rank's contribution goes up one hop per level,
 * the sum comes down one hop per level; message m leaves m times s later
 * (virtual_time.h has the words).
 *
 * Real ranks behind a virtual neighbour, of this sandbox node or another, have sent
 * what their subtrees sum up to, or what comes down to them: their messages go to the
 * near ones, those with none but virtual ranks between, as delay lines do
 * (virtual_feed.h), and are there one hop per level later. A rank with a real ancestor
 * gets the ancestor's result; ranks without any add up each other's.
 *
 * Limits: where target nodes have several ranks of the communicator no other real node
 * on the far side of a virtual neighbour (the ranks of this rank's own node stand
 * between them and are real neighbours): -ENOTSUP.
 * All functions are thread-safe.
 */
#ifndef CRYSTAL_VIRTUAL_TREE_H
#define CRYSTAL_VIRTUAL_TREE_H

#include "replay/board.h"
#include "replay/virtual_time.h"
#include "runtime/error.h"
#include "runtime/tree_schedule.h"

#include <stdint.h>

struct crystal_net_comm;
struct crystal_operation;
struct crystal_recipe;
struct crystal_trees; /* of one communicator at this process */

/* A message to or from a virtual neighbour. */
struct crystal_tree_transfer {
    struct crystal_operation *op;
    uint32_t channel;
    uint32_t peer; /* crank */
    uint64_t index;
    uint64_t step;       /* receive: of the connection, for the flags */
    uint64_t started_ns; /* send: when its first byte left */
    const struct crystal_board_cell *cells; /* receive: arrivals, NULL: long ago */
    struct crystal_recipe *recipe; /* receive: is told what the message is made of;
                                      NULL: nobody asks */
};

/* NULL with err set. */
struct crystal_trees *crystal_trees_create(struct crystal_net_comm *comm,
                                           struct crystal_board_comm *entry,
                                           struct crystal_error *err);
void crystal_trees_destroy(struct crystal_trees *trees);

/* The real ranks that a message of this rank is to be fed to, each once. */
struct crystal_tree_hearers {
    const uint32_t *cranks; /* borrowed until the trees are destroyed */
    uint32_t count;
    uint64_t message_count; /* of the operation on its connection */
};

/* A message of this rank, checked against the schedule; kept where it is part of what
 * comes down. */
int crystal_trees_send(struct crystal_trees *trees,
                       const struct crystal_tree_transfer *m, const void *wire,
                       uint64_t wire_bytes, struct crystal_tree_hearers *ret,
                       struct crystal_error *err);

/* A message that another real rank sent to its virtual neighbour. */
struct crystal_tree_feed {
    uint64_t seq, index;
    uint32_t channel, crank;
    uint64_t started_ns; /* this node's clock */
    uint64_t wire_bytes;
};
/* data: the bytes as on the wire, NULL where only the time matters; moves to the trees,
 * also on failure. -EPROTO where the rank is no near one. */
int crystal_trees_fed(struct crystal_trees *trees, const struct crystal_tree_feed *m,
                      void *data, struct crystal_error *err);

/* Puts the message into wire (room bytes). 1: done, *ret_ns is when it is there,
 * *ret_free_ns when it would be had all virtual ranks come long ago; 0: this rank's own
 * message, or a near one's, is not there yet; negative errno. */
int crystal_trees_take(struct crystal_trees *trees,
                       const struct crystal_tree_transfer *m, void *wire, uint64_t room,
                       uint64_t *ret_bytes, uint64_t *ret_ns, uint64_t *ret_free_ns,
                       struct crystal_error *err);

/* Operations that are not over, for tests. */
uint32_t crystal_trees_count(struct crystal_trees *trees);

#endif
