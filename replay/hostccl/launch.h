/* The tasks of one communicator in one group, and their way through the communicator:
 * launches of a communicator are done one after the other in the order of submission,
 * each when it stands at the head of all its streams.
 *
 * Everything here is the driver's (engine.h).
 */
#ifndef CRYSTAL_HOSTCCL_LAUNCH_H
#define CRYSTAL_HOSTCCL_LAUNCH_H

#include "replay/hostccl/stream.h"
#include "replay/hostccl/task.h"
#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct hostccl_launch {
    struct hostccl_launch *next; /* of the communicator */
    ncclComm_t comm;             /* NULL once the communicator let go of it */
    struct hostccl_task *colls;  /* done one after the other, owned */
    struct hostccl_task *p2ps;   /* then these together, owned */
    struct hostccl_task *current;
    uint32_t stream_count, head_count; /* streams in which it has reached the head */
    uint32_t open_lanes;
    bool is_running, is_over;
    ncclResult_t result;
    struct hostccl_item items[]; /* [stream_count] */
};

/* What a round says. */
#define HOSTCCL_MOVED     1
#define HOSTCCL_TRANSFERS 2 /* the plugin has requests of ours */
#define HOSTCCL_JOINING   4 /* connections are being made */

/* Puts the launch behind the others of its communicator. */
void hostccl_launch_add(struct hostccl_launch *launch);
/* A round: looks once at every communicator that has work. The engine's lock is not
 * held. */
int hostccl_launches_progress(void);
/* The communicator goes away at once: its launches end when their streams get there. */
void hostccl_launches_let_go(ncclComm_t comm);
/* Is something still on its way to others of which the calls are over? */
bool hostccl_launches_are_sending(void);

/* A task's lane, counted so that the launch outlives it. */
void hostccl_launch_open_lane(struct hostccl_task *task, struct hostccl_lane *lane,
                              struct hostccl_conn *conn, uint64_t message_count,
                              uint32_t steps, uint32_t chunk_bytes);
void hostccl_launch_free(struct hostccl_launch *launch);

#endif
