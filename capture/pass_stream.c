/* Streams and events passed through. */
#include "config.h"

#include "capture/pass.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pass_event {
    uint32_t index;
    int is_recorded;
    struct recorder_poll poll;
};

ncclResult_t pass_stream_create(ncclStream_t *ret_stream)
{
    return pass_is_open() ? pass.host.stream_create(ret_stream) : ncclSystemError;
}

ncclResult_t pass_stream_destroy(ncclStream_t stream)
{
    if (!pass_is_open())
        return ncclSystemError;
    pass_rec_lock(); /* the entry stays with its lane, the address may come again */
    (void)pointer_map_take(&pass.streams, pass_stream_key(stream));
    pass_rec_unlock();
    return pass.host.stream_destroy(stream);
}

ncclResult_t pass_stream_synchronize(ncclStream_t stream)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    result = pass.host.stream_synchronize(stream);
    recorder_waited(r, CRYSTAL_OP_SYNC, 0, pass_stream_index(stream), from_ns);
    return result;
}

ncclResult_t pass_stream_query(ncclStream_t stream)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    result = pass.host.stream_query(stream);
    if (result != ncclInProgress)
        recorder_waited(r, CRYSTAL_OP_SYNC, 0, pass_stream_index(stream), from_ns);
    return result;
}

ncclResult_t pass_stream_wait_event(ncclStream_t stream, crystal_event_t event)
{
    const struct pass_event *known;

    if (!pass_is_open())
        return ncclSystemError;
    known = pass_map_get(&pass.events, event);
    if (known && known->is_recorded)
        recorder_event(recorder_get(), CRYSTAL_OP_SWAIT, known->index,
                       pass_stream_index(stream));
    return pass.host.stream_wait_event(stream, event);
}

/* CUDA's events are made known here when they are recorded first. NULL: no memory. */
static struct pass_event *event_add(crystal_event_t event)
{
    struct pass_event *known = calloc(1, sizeof *known);

    if (known) {
        known->index = recorder_event_next(recorder_get());
        pass_map_put(&pass.events, event, known);
        known = pass_map_get(&pass.events, event);
    }
    return known;
}

ncclResult_t pass_event_create(crystal_event_t *ret_event)
{
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    result = pass.host.event_create(ret_event);
    if (result == ncclSuccess)
        (void)event_add(*ret_event);
    return result;
}

ncclResult_t pass_event_destroy(crystal_event_t event)
{
    if (!pass_is_open())
        return ncclSystemError;
    if (event)
        pass_map_drop(&pass.events, event);
    return pass.host.event_destroy(event);
}

ncclResult_t pass_event_record(crystal_event_t event, ncclStream_t stream)
{
    struct pass_event *known;

    if (!pass_is_open())
        return ncclSystemError;
    known = pass_map_get(&pass.events, event);
    if (!known)
        known = event_add(event);
    if (known) {
        known->is_recorded = 1;
        memset(&known->poll, 0, sizeof known->poll);
        recorder_event(recorder_get(), CRYSTAL_OP_RECORD, known->index,
                       pass_stream_index(stream));
    }
    return pass.host.event_record(event, stream);
}

ncclResult_t pass_event_synchronize(crystal_event_t event)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    struct pass_event *known;
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    result = pass.host.event_synchronize(event);
    known = pass_map_get(&pass.events, event);
    if (known && known->is_recorded) {
        known->poll.waited = 1;
        recorder_waited(r, CRYSTAL_OP_WAIT, known->index, 0, from_ns);
    }
    return result;
}

ncclResult_t pass_event_query(crystal_event_t event)
{
    struct pass_event *known;
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    result = pass.host.event_query(event);
    known = pass_map_get(&pass.events, event);
    if (known && known->is_recorded)
        recorder_polled(recorder_get(), &known->poll, result != ncclInProgress,
                        CRYSTAL_OP_WAIT, known->index, 0);
    return result;
}
