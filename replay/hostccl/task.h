/* What one call asks for, and how far it is.
 *
 * A task is made by the calling thread, belongs to a launch once its group ends, and is
 * worked on by the progress thread alone.
 */
#ifndef CRYSTAL_HOSTCCL_TASK_H
#define CRYSTAL_HOSTCCL_TASK_H

#include "replay/hostccl/conn.h"
#include "runtime/ring_schedule.h"
#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct hostccl_redop {
    unsigned op; /* ncclRedOp_t 0..4, or CRYSTAL_REDOP_PREMULSUM */
    uint64_t scalar;
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
    void *api_event, *event; /* profiler */

    bool is_begun, is_ended;
    struct hostccl_task *self; /* send to oneself: the receive that takes it */
    /* ring collectives */
    struct crystal_ring_op ring;
    uint64_t step, step_count; /* slices of chunk steps, see ring.c */
    struct hostccl_lane in, out;
};

/* Begins: opens lanes. The communicator has more than one rank. */
void hostccl_ring_begin(struct hostccl_task *task);
/* Does what can be done. 1: something, 0: nothing; *ret_done: all is done. */
int hostccl_ring_progress(struct hostccl_task *task, bool *ret_done);
/* A collective of a communicator with one rank. */
void hostccl_ring_alone(struct hostccl_task *task);

/* Send or receive. The connection exists; it may not be joined yet. */
void hostccl_p2p_begin(struct hostccl_task *task);
int hostccl_p2p_progress(struct hostccl_task *task, bool *ret_done);

#endif
