/* Streams as the engine sees them: queues of items. Their API is
 * runtime/crystal_stream.h.
 */
#ifndef CRYSTAL_HOSTCCL_STREAM_H
#define CRYSTAL_HOSTCCL_STREAM_H

#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct hostccl_launch;
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

/* The driver's, lock held: takes an item in; moves what can move (launches that reached
 * all their heads are left to their communicators; those without one end here). Returns
 * 1 if something moved. */
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
/* The same with the lock held; the failure of a call that names no stream of ours. */
struct hostccl_stream *hostccl_stream_locked(ncclStream_t handle);
ncclResult_t hostccl_stream_bad(void);
/* One item more will come through hostccl_engine_push. Lock held. */
void hostccl_stream_announce(struct hostccl_stream *stream);

#endif
