/* What one call asks for, and how far it is.
 *
 * A task is made by the calling thread, belongs to a launch once its group ends, and is
 * worked on by the driver alone.
 */
#ifndef CRYSTAL_HOSTCCL_TASK_H
#define CRYSTAL_HOSTCCL_TASK_H

#include "replay/hostccl/conn.h"
#include "runtime/ring_schedule.h"
#include "runtime/tree_schedule.h"
#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct hostccl_redop {
    unsigned op; /* ncclRedOp_t 0..4, or CRYSTAL_REDOP_PREMULSUM */
    uint64_t scalar;
};

/* An all-reduce over the tree. Lanes: 0 the parent's, then the children's. */
struct hostccl_tree {
    bool has_parent;
    uint32_t child_count;
    uint64_t total, up, down; /* chunks: in all, reduced, complete */
    struct hostccl_lane in[1 + CRYSTAL_TREE_ARITY], out[1 + CRYSTAL_TREE_ARITY];
};

struct hostccl_task {
    struct hostccl_task *next;
    struct ncclComm *comm;         /* borrowed */
    struct hostccl_launch *launch; /* its owner */
    enum crystal_func func;
    unsigned dtype;
    uint64_t count; /* elements as in the call */
    const void *send;
    void *recv;
    struct hostccl_redop redop;
    uint32_t peer; /* or root */
    ncclStream_t stream;
    struct hostccl_stream *queue; /* behind stream, borrowed */
    void *api_event, *event;      /* profiler */

    bool is_begun, is_ended;
    struct hostccl_task *self; /* send to oneself: the receive that takes it */
    /* ring collectives */
    struct crystal_ring_op ring;
    uint64_t step, step_count; /* slices of chunk steps, see ring.c */
    struct hostccl_lane in, out;
    struct hostccl_tree tree;
};

/* Begins: opens lanes. The communicator has more than one rank. */
void hostccl_ring_begin(struct hostccl_task *task);
/* Does what can be done. 1: something, 0: nothing; *ret_done: all is done. */
int hostccl_ring_progress(struct hostccl_task *task, bool *ret_done);
/* Does NCCL_PROTO ask for LL? */
bool hostccl_ring_is_ll(void);
/* A collective of a communicator with one rank. */
void hostccl_ring_alone(struct hostccl_task *task);

/* All-reduce over the tree; the communicator is connected for it. */
void hostccl_tree_begin(struct hostccl_task *task);
int hostccl_tree_progress(struct hostccl_task *task, bool *ret_done);
/* Does NCCL_ALGO say so? */
bool hostccl_tree_is_wanted(void);
/* The tree of a communicator, without an operation's count and type. */
struct crystal_tree_op hostccl_tree_op(const struct ncclComm *comm);

/* Send or receive. The connection exists; it may not be joined yet. */
void hostccl_p2p_begin(struct hostccl_task *task);
int hostccl_p2p_progress(struct hostccl_task *task, bool *ret_done);

#endif
