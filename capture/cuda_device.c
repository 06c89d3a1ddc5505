/* See cuda_device.h. Two maps from CUDA's handles, under the queue's lock. A stream of
 * the device keeps its entry until the program destroys it; the null stream is one,
 * too.
 */
#include "config.h"

#include "capture/cuda_device.h"

#include "capture/cuda_memory.h"
#include "capture/park_queue_state.h"
#include "capture/pointer_map.h"
#include "capture/recorder.h"
#include "capture/work.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

_Thread_local int cuda_thread_issues;

static struct {
    struct pointer_map streams, events; /* the queue's lock */
    _Atomic int is_active;              /* acquire, release */
} device;

int cuda_device_is_active(void)
{
    return atomic_load_explicit(&device.is_active, memory_order_acquire);
}

int cuda_device_activate(struct crystal_error *err)
{
    const struct cuda_api *cuda = cuda_api_get();
    int count = 0;

    if (cuda_device_is_active())
        return 0;
    if (cuda_api_is_hidden())
        return crystal_error_set(
            err, ENOTSUP,
            "recorder: the program has CUDA's runtime inside, where its waits cannot "
            "be seen; link it with the shared one (nvcc -cudart shared)");
    if (cuda->is_whole && cuda->cudaGetDeviceCount(&count) == CUDA_SUCCESS &&
        count > 0) {
        cuda_memory_begin();
        work_start(0);
        atomic_store_explicit(&device.is_active, 1, memory_order_release);
    }
    return 0;
}

void cuda_device_forget(void)
{
    atomic_store_explicit(&device.is_active, 0, memory_order_release);
}

/* --- streams --- */

static const void *key_of(cuda_stream handle)
{
    static const char null_key;

    return !handle || handle == CUDA_STREAM_LEGACY ? &null_key : handle;
}

/* Lock held. */
static struct park_stream *stream_add(cuda_stream handle)
{
    struct park_stream *s = park_queue_stream_create(NULL);

    if (!s || pointer_map_put(&device.streams, key_of(handle), s)) {
        free(s);
        return NULL;
    }
    s->is_device = 1;
    s->handle = handle;
    s->has_index = key_of(handle) != handle;      /* the null stream's is 0 */
    (void)cuda_api_get()->cudaGetDevice(&s->gpu); /* else the first one */
    return s;
}

struct park_stream *cuda_device_stream(cuda_stream handle)
{
    struct park_stream *s;

    park_queue_lock();
    s = pointer_map_get(&device.streams, key_of(handle));
    if (!s)
        s = stream_add(handle);
    park_queue_unlock();
    return s;
}

int cuda_device_know(struct park_stream *stream)
{
    int code;

    park_queue_lock();
    code = pointer_map_put(&device.streams, stream, stream);
    park_queue_unlock();
    return code;
}

void cuda_device_drop(cuda_stream handle)
{
    struct park_stream *s;

    park_queue_lock();
    s = pointer_map_get(&device.streams, key_of(handle));
    if (s && s->is_device)
        (void)park_stream_drain(s); /* its failure was told to the communicator */
    s = pointer_map_take(&device.streams, key_of(handle));
    if (s)
        s->is_gone = 1;
    park_queue_unlock();
    if (s)
        park_queue_stream_release(s);
}

int cuda_device_may_defer(const struct park_stream *stream)
{
    return key_of(stream->handle) == stream->handle && stream->is_forked &&
           !stream->has_work;
}

void cuda_device_each_stream(void (*fn)(void *context, struct park_stream *stream),
                             void *context)
{
    struct park_stream **all;
    size_t count = 0;

    park_queue_lock();
    all = calloc(device.streams.count + 1, sizeof(struct park_stream *));
    for (size_t i = 0; all && i < device.streams.capacity; i++) {
        struct park_stream *s = device.streams.rows[i].value;

        if (device.streams.rows[i].key && s->is_device && s->has_index)
            all[count++] = s;
    }
    park_queue_unlock();
    for (size_t i = 0; i < count; i++)
        fn(context, all[i]);
    free(all);
}

static int error_of(int nccl_result)
{
    return nccl_result ? CUDA_UNKNOWN : CUDA_SUCCESS;
}

int cuda_device_park(struct park_stream *stream)
{
    int result;

    park_queue_lock();
    result = park_stream_drain(stream);
    park_queue_unlock();
    return error_of(result);
}

static void park_one(void *context, struct park_stream *stream)
{
    int *result = context, code = cuda_device_park(stream);

    *result = *result ? *result : code;
}

int cuda_device_park_all(void)
{
    int result = 0;

    if (park_queue_device_count())
        cuda_device_each_stream(park_one, &result);
    return result;
}

int cuda_device_stream_ended(struct park_stream *stream)
{
    struct park_mark end;
    int result;

    park_queue_lock();
    end = (struct park_mark){stream, stream->issued};
    park_queue_unlock();
    return park_queue_mark_query(&end, &result);
}

int cuda_device_before_work(cuda_stream handle)
{
    static _Thread_local struct {
        cuda_stream handle;
        int is_set;
    } marked; /* the last one that was told to have work */
    struct park_stream *s;
    int result = 0;

    if (marked.is_set && marked.handle == handle && !park_queue_device_count())
        return 0;
    s = cuda_device_stream(handle);
    if (!s || !s->is_device)
        return 0;
    park_queue_lock();
    s->has_work = 1;
    if (cuda_device_is_active())
        result = park_stream_drain(s);
    park_queue_unlock();
    marked.handle = handle;
    marked.is_set = 1;
    return error_of(result);
}

/* --- events --- */

struct cuda_event *cuda_device_event_find(cuda_event_handle handle)
{
    struct cuda_event *e;

    park_queue_lock();
    e = pointer_map_get(&device.events, handle);
    park_queue_unlock();
    return e;
}

struct cuda_event *cuda_device_event(cuda_event_handle handle)
{
    struct cuda_event *e = cuda_device_event_find(handle);

    if (e)
        return e;
    e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->handle = handle;
    e->refs = 1;
    e->base.index = recorder_event_next(recorder_get());
    park_queue_lock();
    if (pointer_map_put(&device.events, handle, e)) {
        free(e);
        e = NULL;
    }
    park_queue_unlock();
    return e;
}

void cuda_event_unref(struct cuda_event *event)
{
    if (--event->refs)
        return;
    if (event->is_gone)
        (void)cuda_api_get()->cudaEventDestroy(event->handle); /* nobody to tell */
    free(event);
}

int cuda_device_event_destroy(cuda_event_handle handle)
{
    struct cuda_event *e;

    park_queue_lock();
    e = pointer_map_take(&device.events, handle);
    if (e) {
        park_mark_drop(&e->base.mark);
        e->generation++; /* a record that has not been performed need not be any more */
        e->is_gone = 1;
        cuda_event_unref(e);
    }
    park_queue_unlock();
    return e ? CUDA_SUCCESS : cuda_api_get()->cudaEventDestroy(handle);
}

/* Lets stream wait for what stood before mark, which has ended: with the event that was
 * recorded there or, where that was recorded anew meanwhile, with one of our own behind
 * what the mark's stream has by now, none of which waits for a peer. */
static int wait_now(const struct park_stream *stream, const struct cuda_event *event,
                    uint64_t generation, const struct park_mark *mark)
{
    const struct cuda_api *cuda = cuda_api_get();
    cuda_event_handle own;
    int result;

    if (event->generation == generation || !mark->stream)
        return cuda->cudaStreamWaitEvent(stream->handle, event->handle, 0);
    if (mark->stream->is_gone)
        return cuda->cudaDeviceSynchronize();
    result = cuda->cudaEventCreateWithFlags(&own, CUDA_EVENT_NO_TIMING);
    if (result)
        return result;
    result = cuda->cudaEventRecord(own, mark->stream->handle);
    if (!result)
        result = cuda->cudaStreamWaitEvent(stream->handle, own, 0);
    (void)cuda->cudaEventDestroy(own); /* once the device has done with it */
    return result;
}

void cuda_event_perform(struct cuda_event *event, struct park_stream *stream,
                        uint64_t generation, const struct park_mark *mark)
{
    /* A failing device tells the program at its next call. */
    if (mark->stream)
        (void)wait_now(stream, event, generation, mark);
    else if (event->generation == generation)
        (void)cuda_api_get()->cudaEventRecord(event->handle, stream->handle);
}

int cuda_device_record(struct cuda_event *event, struct park_stream *stream)
{
    int result = CUDA_SUCCESS;

    park_queue_lock();
    park_stream_advance(stream);
    event->generation++;
    if (!stream->first)
        result = cuda_api_get()->cudaEventRecord(event->handle, stream->handle);
    else if (park_stream_append_event(stream, event, event->generation, NULL))
        result = CUDA_UNKNOWN;
    park_mark_set(&event->base.mark, stream);
    park_queue_unlock();
    return result;
}

int cuda_device_wait(struct park_stream *stream, struct cuda_event *event)
{
    struct park_mark mark = {0};
    uint64_t generation;
    int result = CUDA_SUCCESS;

    park_queue_lock();
    event->refs++; /* it may be recorded anew or destroyed while we wait */
    park_mark_copy(&mark, &event->base.mark);
    generation = event->generation;
    park_stream_advance(stream);
    if (!stream->first)
        result = error_of(park_mark_wait(&mark));
    park_stream_advance(stream);
    stream->is_forked = 1;
    if (!result && (!stream->first || !mark.stream))
        result = wait_now(stream, event, generation, &mark);
    else if (!result && park_stream_append_event(stream, event, generation, &mark))
        result = CUDA_UNKNOWN;
    park_mark_drop(&mark);
    cuda_event_unref(event);
    park_queue_unlock();
    return result;
}
