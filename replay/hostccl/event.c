/* Events of runtime/crystal_stream.h on host memory. An event has generations: each
 * record is one, a wait is for the one that was the last when it was called.
 */
#include "config.h"

#include "replay/hostccl/event.h"

#include "runtime/crystal_stream.h"

#include "replay/hostccl/engine.h"
#include "replay/hostccl/result.h"
#include "runtime/clock.h"

#include <stdlib.h>

#define EVENT_MAGIC 0x4372794576656e74ULL

struct crystal_event {
    uint64_t magic;
    /* under the engine's lock */
    uint64_t recorded, done;
    uint64_t done_ns; /* when done was reached */
    ncclResult_t result;
    uint64_t result_comm;
    uint32_t refs; /* the handle and the items that name it */
};

static ncclResult_t bad_event(void)
{
    return hostccl_fail(ncclInvalidArgument, "hostccl: that is no event of ours");
}

void hostccl_event_unref(struct crystal_event *event)
{
    if (--event->refs)
        return;
    event->magic = 0;
    free(event);
}

void hostccl_event_reach(struct crystal_event *event, uint64_t generation,
                         ncclResult_t result, uint64_t comm)
{
    if (event->done >= generation)
        return; /* a later record was faster */
    event->done = generation;
    event->done_ns = crystal_now_ns();
    event->result = result;
    event->result_comm = comm;
}

bool hostccl_event_is_reached(const struct crystal_event *event, uint64_t generation,
                              ncclResult_t *ret_result, uint64_t *ret_comm)
{
    if (event->done < generation)
        return false;
    *ret_result = event->result;
    *ret_comm = event->result_comm;
    return true;
}

/* --- the API --- */

/* Puts a RECORD or WAIT into the stream. */
static ncclResult_t push(struct crystal_event *event, ncclStream_t handle,
                         enum hostccl_item_kind kind)
{
    struct crystal_error err = {0};
    struct hostccl_item *item;

    if (!event || event->magic != EVENT_MAGIC)
        return bad_event();
    if (hostccl_engine_start(&err))
        return hostccl_fail_error(&err);
    item = calloc(1, sizeof *item);
    if (!item)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    hostccl_lock();
    if (kind == HOSTCCL_ITEM_WAIT && !event->recorded)
        goto done; /* nothing to wait for */
    item->stream = hostccl_stream_locked(handle);
    if (!item->stream) {
        hostccl_unlock();
        free(item);
        return hostccl_stream_bad();
    }
    hostccl_stream_announce(item->stream);
    item->kind = kind;
    item->event = event;
    event->refs++;
    item->generation =
        kind == HOSTCCL_ITEM_RECORD ? ++event->recorded : event->recorded;
    hostccl_engine_push(item);
    item = NULL;
done:
    hostccl_unlock();
    free(item);
    return ncclSuccess;
}

__attribute__((visibility("default"))) ncclResult_t
crystal_stream_wait_event(ncclStream_t stream, crystal_event_t event)
{
    return push(event, stream, HOSTCCL_ITEM_WAIT);
}

__attribute__((visibility("default"))) ncclResult_t
crystal_event_create(crystal_event_t *ret_event)
{
    struct crystal_event *event;

    if (!ret_event)
        return hostccl_fail(ncclInvalidArgument, "hostccl: no place for an event");
    event = calloc(1, sizeof *event);
    if (!event)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    event->magic = EVENT_MAGIC;
    event->refs = 1;
    *ret_event = event;
    return ncclSuccess;
}

__attribute__((visibility("default"))) ncclResult_t
crystal_event_destroy(crystal_event_t event)
{
    if (!event || event->magic != EVENT_MAGIC)
        return bad_event();
    hostccl_lock();
    hostccl_event_unref(event);
    hostccl_unlock();
    return ncclSuccess;
}

__attribute__((visibility("default"))) ncclResult_t
crystal_event_record(crystal_event_t event, ncclStream_t stream)
{
    return push(event, stream, HOSTCCL_ITEM_RECORD);
}

__attribute__((visibility("default"))) ncclResult_t
crystal_event_synchronize(crystal_event_t event)
{
    ncclResult_t result;
    uint64_t until;

    if (!event || event->magic != EVENT_MAGIC)
        return bad_event();
    hostccl_lock();
    until = event->recorded;
    event->refs++;
    hostccl_wait_until(&event->done, until);
    result = event->done < until ? ncclInvalidUsage /* a forked child */
                                 : event->result;
    hostccl_event_unref(event);
    hostccl_unlock();
    return result;
}

__attribute__((visibility("default"))) ncclResult_t
crystal_event_query(crystal_event_t event)
{
    ncclResult_t result;

    if (!event || event->magic != EVENT_MAGIC)
        return bad_event();
    hostccl_lock();
    result = event->done < event->recorded ? ncclInProgress : event->result;
    hostccl_unlock();
    return result;
}

__attribute__((visibility("default"))) ncclResult_t
crystal_event_time(crystal_event_t event, uint64_t *ret_ns)
{
    ncclResult_t result;

    if (!event || event->magic != EVENT_MAGIC || !ret_ns)
        return bad_event();
    hostccl_lock();
    result = !event->recorded                ? ncclInvalidUsage
             : event->done < event->recorded ? ncclInProgress
                                             : event->result;
    if (result == ncclSuccess)
        *ret_ns = event->done_ns;
    hostccl_unlock();
    return result;
}
