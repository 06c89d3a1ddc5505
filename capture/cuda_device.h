/* CUDA's streams and events in capture: which of the queue's stand for them
 * (capture/park_queue.h). A process has them from its first communicator on where it
 * has CUDA's runtime and a device. All functions are thread-safe and take the queue's
 * lock, unless they say that it is held.
 */
#ifndef CRYSTAL_CUDA_DEVICE_H
#define CRYSTAL_CUDA_DEVICE_H

#include "capture/cuda_api.h"
#include "capture/park.h"

#include "runtime/error.h"

struct cuda_event {
    struct crystal_event base; /* its index, its mark, how it was polled */
    cuda_event_handle handle;
    uint32_t refs;       /* of the map and of entries in streams; the queue's lock */
    uint64_t generation; /* of its last record */
    int is_gone;         /* the program has destroyed it */
};

/* Whether the calling thread gives work to the device. What another one waits for, as
 * PyTorch's watchdog does, is not the program's. */
extern _Thread_local int cuda_thread_issues;

/* Before the first communicator. -ENOTSUP with a sentence where the program has CUDA in
 * a form that cannot be captured; 0 where it can, or has none. */
int cuda_device_activate(struct crystal_error *err);
int cuda_device_is_active(void);
/* For the child of a fork, which cannot use the device. */
void cuda_device_forget(void);

/* The stream that a program's handle stands for: one of host memory, which
 * crystal_stream_create has made, or one of the device, made known now. NULL: out of
 * memory. */
struct park_stream *cuda_device_stream(cuda_stream handle);
/* Makes a stream of host memory known. -ENOMEM. */
int cuda_device_know(struct park_stream *stream);
/* The program destroys it: what is under way there ends first. */
void cuda_device_drop(cuda_stream handle);

/* An event that was recorded since the first communicator, else NULL; it stays valid
 * until the program destroys it. */
struct cuda_event *cuda_device_event_find(cuda_event_handle handle);
/* The same, made known where it is not. NULL: out of memory. */
struct cuda_event *cuda_device_event(cuda_event_handle handle);
/* cudaEventDestroy, once nothing in a stream needs it any more. */
int cuda_device_event_destroy(cuda_event_handle handle);

/* What follows returns a cudaError_t. */

/* cudaEventRecord: now, or once what is before it in the stream has ended. */
int cuda_device_record(struct cuda_event *event, struct park_stream *stream);
/* cudaStreamWaitEvent. Where the stream has nothing under way the host is parked until
 * what is before the event has ended. */
int cuda_device_wait(struct park_stream *stream, struct cuda_event *event);
/* Parks until nothing is under way in the stream, or in all of the device. */
int cuda_device_park(struct park_stream *stream);
int cuda_device_park_all(void);
/* 1 nothing is under way in the stream, 0 not yet. */
int cuda_device_stream_ended(struct park_stream *stream);
/* The program puts work into a stream. */
int cuda_device_before_work(cuda_stream handle);
/* Calls fn for every stream of the device that the trace knows. */
void cuda_device_each_stream(void (*fn)(void *context, struct park_stream *stream),
                             void *context);

/* Whether an operation on this stream may be under way while the program goes on: it
 * came right behind a wait for another stream, and nothing but communication was ever
 * seen in this one, which is not the null stream. Else the call itself waits. Lock
 * held.
 */
int cuda_device_may_defer(const struct park_stream *stream);

/* An entry of a stream has come to its front (capture/park_mark.c): the real record, or
 * (mark has a stream) the wait; generation is the event's when it was called for. Lock
 * held. */
void cuda_event_perform(struct cuda_event *event, struct park_stream *stream,
                        uint64_t generation, const struct park_mark *mark);
void cuda_event_unref(struct cuda_event *event);

#endif
