/* Streams and events in capture: marks in the queue (park_queue.h), and where the host
 * is parked. */
#include "config.h"

#include "capture/cuda_device.h"
#include "capture/park.h"
#include "capture/recorder.h"

#include <stdlib.h>
#include <string.h>

static struct park_stream *stream_of(ncclStream_t stream)
{
    return stream ? (struct park_stream *)stream : park_queue_stream_null();
}

ncclResult_t park_stream_create(ncclStream_t *ret_stream)
{
    struct crystal_error err = {0};
    struct park_stream *s;

    if (!ret_stream)
        return PARK_FAIL(ncclInvalidArgument, "recorder: crystal_stream_create: NULL");
    s = park_queue_stream_create(&err);
    if (!s)
        return park_fail(&err, ncclSystemError);
    if (cuda_device_know(s)) {
        park_queue_stream_release(s);
        return PARK_FAIL(ncclSystemError, "recorder: out of memory");
    }
    *ret_stream = s;
    return ncclSuccess;
}

ncclResult_t park_stream_destroy(ncclStream_t stream)
{
    if (stream)
        cuda_device_drop(stream);
    return ncclSuccess;
}

ncclResult_t park_stream_synchronize(ncclStream_t stream)
{
    struct park_stream *s = stream_of(stream);
    struct recorder *r = recorder_get();
    struct park_mark end = {0};
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    park_queue_mark_set(&end, s);
    result = (ncclResult_t)park_queue_mark_wait(&end);
    park_queue_mark_clear(&end);
    recorder_waited(r, CRYSTAL_OP_SYNC, 0, park_queue_stream_index(s), from_ns);
    return result;
}

ncclResult_t park_stream_query(ncclStream_t stream)
{
    struct park_stream *s = stream_of(stream);
    struct recorder *r = recorder_get();
    struct park_mark end = {0};
    uint64_t from_ns = recorder_now_ns(r);
    int result = ncclInProgress;

    park_queue_mark_set(&end, s);
    if (park_queue_mark_query(&end, &result))
        recorder_waited(r, CRYSTAL_OP_SYNC, 0, park_queue_stream_index(s), from_ns);
    park_queue_mark_clear(&end);
    return (ncclResult_t)result;
}

ncclResult_t park_stream_wait_event(ncclStream_t stream, crystal_event_t event)
{
    struct park_stream *s = stream_of(stream);
    struct crystal_error err = {0};

    if (!event)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: crystal_stream_wait_event: event is NULL");
    if (!event->mark.stream)
        return ncclSuccess;
    recorder_event(recorder_get(), CRYSTAL_OP_SWAIT, event->index,
                   park_queue_stream_index(s));
    if (park_queue_stream_wait(s, &event->mark, &err))
        return park_fail(&err, ncclSystemError);
    return ncclSuccess;
}

ncclResult_t park_event_create(crystal_event_t *ret_event)
{
    struct crystal_event *event = calloc(1, sizeof *event);

    if (!ret_event || !event) {
        free(event);
        return PARK_FAIL(ncclSystemError, "recorder: crystal_event_create: no memory");
    }
    event->index = recorder_event_next(recorder_get());
    *ret_event = event;
    return ncclSuccess;
}

ncclResult_t park_event_destroy(crystal_event_t event)
{
    if (!event)
        return ncclSuccess;
    park_queue_mark_clear(&event->mark);
    free(event);
    return ncclSuccess;
}

ncclResult_t park_event_record(crystal_event_t event, ncclStream_t stream)
{
    struct park_stream *s = stream_of(stream);

    if (!event)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: crystal_event_record: event is NULL");
    park_queue_mark_set(&event->mark, s);
    memset(&event->poll, 0, sizeof event->poll);
    recorder_event(recorder_get(), CRYSTAL_OP_RECORD, event->index,
                   park_queue_stream_index(s));
    return ncclSuccess;
}

ncclResult_t park_event_synchronize(crystal_event_t event)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!event)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: crystal_event_synchronize: event is NULL");
    if (!event->mark.stream)
        return ncclSuccess;
    result = (ncclResult_t)park_queue_mark_wait(&event->mark);
    event->poll.waited = 1;
    recorder_waited(r, CRYSTAL_OP_WAIT, event->index, 0, from_ns);
    return result;
}

ncclResult_t park_event_query(crystal_event_t event)
{
    int result = ncclSuccess, ended;

    if (!event)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: crystal_event_query: event is NULL");
    if (!event->mark.stream)
        return ncclSuccess;
    ended = park_queue_mark_query(&event->mark, &result);
    recorder_polled(recorder_get(), &event->poll, ended, CRYSTAL_OP_WAIT, event->index,
                    0);
    return ended ? (ncclResult_t)result : ncclInProgress;
}
