/* The progress thread: one per process, for all streams and communicators.
 *
 * Calling threads hand it items for streams (launches, event marks); it keeps each
 * stream's order, runs each communicator's launches one after the other in the order of
 * submission, and drives the net plugin. It sleeps in the plugin while transfers are
 * under way and on a condition otherwise.
 */
#ifndef CRYSTAL_HOSTCCL_ENGINE_H
#define CRYSTAL_HOSTCCL_ENGINE_H

#include "replay/hostccl/task.h"
#include "runtime/error.h"
#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct hostccl_stream;
struct crystal_event;

enum hostccl_item_kind {
    HOSTCCL_ITEM_LAUNCH, /* stands in each of its streams */
    HOSTCCL_ITEM_RECORD,
    HOSTCCL_ITEM_WAIT
};

struct hostccl_item {
    struct hostccl_item *next;
    enum hostccl_item_kind kind;
    struct hostccl_stream *stream;
    struct hostccl_launch *launch; /* LAUNCH */
    struct crystal_event *event;   /* RECORD, WAIT: a reference */
    uint64_t generation;
    bool is_seen; /* LAUNCH: it has reached the head of the stream */
};

/* The tasks of one communicator in one group. */
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

/* Starts the thread where it does not run yet. */
int hostccl_engine_start(struct crystal_error *err);
/* Ends it; work that is not done stays undone. */
void hostccl_engine_stop(void);

/* Launches of one group, chained by next, items filled in; they move to the engine. */
void hostccl_engine_submit(struct hostccl_launch *launches);
/* Something outside may have changed (mail). Any thread. */
void hostccl_engine_notify(void);

/* Waits until the communicator has nothing left to do. */
void hostccl_engine_flush(ncclComm_t comm);
/* Waits until the progress thread has let go of comm: when its work is done or has
 * failed, or at once where is_abort. Streams forget comm's failures. */
void hostccl_engine_close(ncclComm_t comm, bool is_abort);

/* A task's lane, counted so that the launch outlives it. */
void hostccl_launch_open_lane(struct hostccl_task *task, struct hostccl_lane *lane,
                              struct hostccl_conn *conn, uint64_t message_count,
                              uint32_t steps, uint32_t chunk_bytes);
void hostccl_launch_free(struct hostccl_launch *launch);

/* --- between engine.c and stream.c --- */

/* The lock of streams, events and the inbox. Who is to be woken by what happened under
 * it is woken by the unlock. */
void hostccl_lock(void);
void hostccl_unlock(void);
/* Waits until *value, which is under the lock, is at least until. Lock held. */
void hostccl_wait_until(const uint64_t *value, uint64_t until);
/* Values that others may wait for have grown. Lock held. */
void hostccl_tell(void);
/* Hands an item over; lock held. */
void hostccl_engine_push(struct hostccl_item *item);
/* The streams' part of the progress thread, lock held: takes an item in; moves what can
 * move (launches that reached all their heads are left to their communicators; those
 * without one end here). Returns 1 if something moved. */
void hostccl_stream_feed(struct hostccl_item *item);
int hostccl_streams_progress(void);
/* Takes launch from its streams, which go on; it has ended with result. Lock not held.
 */
void hostccl_streams_end(struct hostccl_launch *launch, ncclResult_t result,
                         uint64_t comm_id);
/* Lock held: forgets failures of the communicator. */
void hostccl_streams_forget(uint64_t comm_id);
/* The stream behind a handle, NULL: none such. Lock not held. */
struct hostccl_stream *hostccl_stream_find(ncclStream_t handle);
/* One item more will come through hostccl_engine_push. Lock held. */
void hostccl_stream_announce(struct hostccl_stream *stream);

#endif
