/* Operations between the program and the coordinator in capture.
 *
 * Issuing never blocks for a peer: an operation is posted at once unless an earlier one
 * still writes what it reads (or the like, see park_item.c); then it is posted as soon
 * as that one has ended. Only the host's own waits park the rank. Streams and events
 * have CUDA's meaning. All functions are thread-safe.
 *
 * Operations on device memory go through the same queue, with their copies to and from
 * host memory in between (cuda_stage.h); those whose stream also takes other work end
 * before the call returns (cuda_device.h).
 */
#ifndef CRYSTAL_PARK_QUEUE_H
#define CRYSTAL_PARK_QUEUE_H

#include "runtime/coord_client.h"
#include "runtime/error.h"

#include <stdatomic.h>
#include <stdint.h>

#define CRYSTAL_COMM_NAME_BYTES 256

struct crystal_payload_writer;
struct park_stream;

/* A communicator as the program holds it (ncclComm_t). */
struct ncclComm {
    uint16_t index;  /* in the trace */
    uint32_t number; /* by which the coordinator knows it */
    uint32_t nranks;
    uint32_t crank;
    int gpu;              /* as CUDA counts them; 0 on host memory */
    uint32_t refs;        /* handle and operations under way; park lock */
    uint32_t child_count; /* splits and shrinks so far; the program's one caller */
    char name[CRYSTAL_COMM_NAME_BYTES];
    _Atomic int error; /* ncclResult_t of its first failed operation; relaxed */
};

/* One operation of a call or group. */
struct park_op {
    struct crystal_client_op client;
    struct ncclComm *comm;
    struct park_stream *stream;
    uint64_t place;         /* in the stream, once issued: entries up to it */
    uint64_t payload_bytes; /* kept; 0 = not */
    uint64_t payload_offset;
};

/* The present end of a stream; what an event holds. */
struct park_mark {
    struct park_stream *stream; /* owned reference; NULL: never recorded, complete */
    uint64_t seq;
};

/* Where operations go; both are borrowed. Call before the first issue. */
void park_queue_open(struct crystal_client *client,
                     struct crystal_payload_writer *payload);
/* Takes the client away, for closing: later operations fail. NULL where there is none,
 * or where a thread still waits in it (the process ends without closing then). */
struct crystal_client *park_queue_close(void);
/* Forgets the client: later operations fail. For the child of a fork. */
void park_queue_forget(void);

/* Operations on device memory under way, for a quick look; thread-safe. */
uint32_t park_queue_device_count(void);

struct park_stream *park_queue_stream_create(struct crystal_error *err);
struct park_stream *park_queue_stream_null(void);
void park_queue_stream_release(struct park_stream *stream);
/* The index in the trace, given at the first use. */
uint16_t park_queue_stream_index(struct park_stream *stream);

struct ncclComm *park_queue_comm_create(struct crystal_error *err);
void park_queue_comm_release(struct ncclComm *comm);

/* Takes a copy of ops, which belong together (posted as one deposit). */
int park_queue_issue(const struct park_op *ops, uint32_t count,
                     struct crystal_error *err);
/* Waits, at most timeout_ms, until everything issued has been posted. */
void park_queue_drain(int timeout_ms);

void park_queue_mark_set(struct park_mark *mark, struct park_stream *stream);
void park_queue_mark_clear(struct park_mark *mark);
/* Later work of stream waits for the mark. */
int park_queue_stream_wait(struct park_stream *stream, const struct park_mark *mark,
                           struct crystal_error *err);
/* Blocks until all before the mark has ended; the ncclResult_t of the first failure. */
int park_queue_mark_wait(const struct park_mark *mark);
/* 1 ended, 0 not yet; *ret_result as park_queue_mark_wait's where 1. */
int park_queue_mark_query(const struct park_mark *mark, int *ret_result);

#endif
