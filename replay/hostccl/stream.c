/* Streams and events of runtime/crystal_stream.h on host memory.
 *
 * A stream is a queue of items. Calling threads count what they put in (issued) and
 * wait for what came out (ended); the items themselves are the driver's. An
 * event has generations: each record is one, a wait is for the one that was the last
 * when it was called. A failure of a communicator stays with the streams in which its
 * work stood until that communicator is destroyed.
 */
#include "config.h"

#include "runtime/crystal_stream.h"

#include "replay/hostccl/engine.h"
#include "replay/hostccl/fork.h"
#include "replay/hostccl/result.h"
#include "runtime/clock.h"

#include <stdlib.h>

#define STREAM_MAGIC 0x4372795374726d31ULL
#define EVENT_MAGIC  0x4372794576656e74ULL

struct hostccl_stream {
    uint64_t magic;
    /* under the engine's lock */
    uint64_t issued, ended;
    ncclResult_t result; /* the first failure */
    uint64_t result_comm;
    uint32_t waiting;  /* threads in synchronize */
    bool is_destroyed; /* freed when ended = issued and nobody waits */
    struct hostccl_stream *prev_all, *next_all;
    /* the driver's */
    struct hostccl_item *items, **last_item;
    struct hostccl_stream *next_active;
    bool is_active; /* changed under the lock */
};

struct crystal_event {
    uint64_t magic;
    /* under the engine's lock */
    uint64_t recorded, done;
    uint64_t done_ns; /* when done was reached */
    ncclResult_t result;
    uint64_t result_comm;
    uint32_t refs; /* the handle and the items that name it */
};

static struct hostccl_stream null_stream = {.magic = STREAM_MAGIC};
static struct {
    struct hostccl_stream *all;    /* under the lock; without the null stream */
    struct hostccl_stream *active; /* the driver's */
} streams;

static struct hostccl_stream *stream_of(ncclStream_t handle)
{
    struct hostccl_stream *stream = handle ? handle : &null_stream;

    return stream->magic == STREAM_MAGIC && !stream->is_destroyed &&
                   !hostccl_fork_is_child()
               ? stream
               : NULL;
}

static ncclResult_t bad_stream(void)
{
    struct crystal_error err = {0};

    if (hostccl_fork_check(&err))
        return hostccl_fail_error(&err);
    return hostccl_fail(ncclInvalidArgument, "hostccl: that is no stream of ours");
}

static ncclResult_t bad_event(void)
{
    return hostccl_fail(ncclInvalidArgument, "hostccl: that is no event of ours");
}

static void event_unref(struct crystal_event *event)
{
    if (--event->refs)
        return;
    event->magic = 0;
    free(event);
}

/* Lock held. */
static void free_if_unused(struct hostccl_stream *stream)
{
    if (!stream->is_destroyed || stream->is_active || stream->waiting ||
        stream->ended < stream->issued)
        return;
    if (stream->prev_all)
        stream->prev_all->next_all = stream->next_all;
    else
        streams.all = stream->next_all;
    if (stream->next_all)
        stream->next_all->prev_all = stream->prev_all;
    stream->magic = 0;
    free(stream);
}

struct hostccl_stream *hostccl_stream_find(ncclStream_t handle)
{
    struct hostccl_stream *stream;

    hostccl_lock();
    stream = stream_of(handle);
    hostccl_unlock();
    return stream;
}

void hostccl_stream_announce(struct hostccl_stream *stream)
{
    stream->issued++;
}

/* --- the driver's part --- */

void hostccl_stream_feed(struct hostccl_item *item)
{
    struct hostccl_stream *stream = item->stream;

    if (!stream->items)
        stream->last_item = &stream->items;
    item->next = NULL;
    *stream->last_item = item;
    stream->last_item = &item->next;
    if (stream->is_active)
        return;
    stream->is_active = true;
    stream->next_active = streams.active;
    streams.active = stream;
}

/* Takes the first item out of its stream. Lock held. */
static void pop(struct hostccl_stream *stream)
{
    struct hostccl_item *item = stream->items;

    stream->items = item->next;
    stream->ended++;
    if (item->kind == HOSTCCL_ITEM_LAUNCH)
        return; /* the launch owns it */
    event_unref(item->event);
    free(item);
}

static void inherit(struct hostccl_stream *stream, ncclResult_t result, uint64_t comm)
{
    if (stream->result || !result)
        return;
    stream->result = result;
    stream->result_comm = comm;
}

/* Lock held. Returns true where the head item is done and gone. */
static bool step(struct hostccl_stream *stream, struct hostccl_launch **ret_orphan)
{
    struct hostccl_item *item = stream->items;
    struct crystal_event *event = item->event;

    switch (item->kind) {
    case HOSTCCL_ITEM_RECORD:
        if (event->done < item->generation) { /* else a later record was faster */
            event->done = item->generation;
            event->done_ns = crystal_now_ns();
            event->result = stream->result;
            event->result_comm = stream->result_comm;
        }
        break;
    case HOSTCCL_ITEM_WAIT:
        if (event->done < item->generation)
            return false;
        inherit(stream, event->result, event->result_comm);
        break;
    default:
        if (!item->is_seen) {
            item->is_seen = true;
            item->launch->head_count++;
        }
        if (!item->launch->comm &&
            item->launch->head_count == item->launch->stream_count)
            *ret_orphan = item->launch;
        return false;
    }
    pop(stream);
    return true;
}

/* Lock held. */
static void end(struct hostccl_launch *launch, ncclResult_t result, uint64_t comm_id)
{
    for (uint32_t i = 0; i < launch->stream_count; i++) {
        struct hostccl_stream *stream = launch->items[i].stream;

        inherit(stream, result, comm_id);
        pop(stream);
    }
}

/* One look at each active stream. Lock held. */
static int look(void)
{
    struct hostccl_stream **at = &streams.active, *stream;
    int moved = 0;

    while ((stream = *at)) {
        bool was_seen = stream->items && stream->items->is_seen;
        struct hostccl_launch *orphan = NULL;

        while (stream->items && step(stream, &orphan))
            moved = 1;
        if (orphan) {
            end(orphan, ncclInternalError, 0);
            hostccl_launch_free(orphan);
            moved = 1;
            continue;
        }
        if (stream->items) {
            moved |= stream->items->is_seen && !was_seen;
            at = &stream->next_active;
            continue;
        }
        *at = stream->next_active;
        stream->is_active = false;
        free_if_unused(stream);
    }
    return moved;
}

int hostccl_streams_progress(void)
{
    int moved = 0;

    while (look()) /* what one stream did may be what another waits for */
        moved = 1;
    if (moved)
        hostccl_tell();
    return moved;
}

void hostccl_streams_end(struct hostccl_launch *launch, ncclResult_t result,
                         uint64_t comm_id)
{
    hostccl_lock();
    end(launch, result, comm_id);
    (void)hostccl_streams_progress(); /* what comes next is seen by its own thread */
    hostccl_tell();
    hostccl_unlock();
}

void hostccl_streams_forget(uint64_t comm_id)
{
    if (null_stream.result_comm == comm_id)
        null_stream.result = ncclSuccess;
    for (struct hostccl_stream *s = streams.all; s; s = s->next_all)
        if (s->result_comm == comm_id)
            s->result = ncclSuccess;
}

/* --- the API --- */

__attribute__((visibility("default"))) int crystal_stream_abi_version(void)
{
    return CRYSTAL_STREAM_ABI;
}

__attribute__((visibility("default"))) ncclResult_t
crystal_stream_create(ncclStream_t *ret_stream)
{
    struct crystal_error err = {0};
    struct hostccl_stream *stream;

    if (!ret_stream)
        return hostccl_fail(ncclInvalidArgument, "hostccl: no place for a stream");
    if (hostccl_engine_start(&err))
        return hostccl_fail_error(&err);
    stream = calloc(1, sizeof *stream);
    if (!stream)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    stream->magic = STREAM_MAGIC;
    hostccl_lock();
    stream->next_all = streams.all;
    if (streams.all)
        streams.all->prev_all = stream;
    streams.all = stream;
    hostccl_unlock();
    *ret_stream = stream;
    return ncclSuccess;
}

__attribute__((visibility("default"))) ncclResult_t
crystal_stream_destroy(ncclStream_t handle)
{
    struct hostccl_stream *stream;

    hostccl_lock();
    stream = handle ? stream_of(handle) : NULL;
    if (stream) {
        stream->is_destroyed = true;
        free_if_unused(stream); /* else when its last item is done */
    }
    hostccl_unlock();
    return stream ? ncclSuccess : bad_stream();
}

__attribute__((visibility("default"))) ncclResult_t
crystal_stream_synchronize(ncclStream_t handle)
{
    struct hostccl_stream *stream;
    ncclResult_t result = ncclSuccess;
    uint64_t until;

    hostccl_lock();
    stream = stream_of(handle);
    if (stream) {
        until = stream->issued;
        stream->waiting++;
        hostccl_wait_until(&stream->ended, until);
        stream->waiting--;
        result = stream->result;
        free_if_unused(stream);
    }
    hostccl_unlock();
    return stream ? result : bad_stream();
}

__attribute__((visibility("default"))) ncclResult_t
crystal_stream_query(ncclStream_t handle)
{
    struct hostccl_stream *stream;
    ncclResult_t result = ncclSuccess;

    hostccl_lock();
    stream = stream_of(handle);
    if (stream)
        result = stream->ended < stream->issued ? ncclInProgress : stream->result;
    hostccl_unlock();
    return stream ? result : bad_stream();
}

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
    item->stream = stream_of(handle);
    if (!item->stream) {
        hostccl_unlock();
        free(item);
        return bad_stream();
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
    event_unref(event);
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
    event_unref(event);
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

__attribute__((visibility("default"))) void crystal_iteration_hint(void)
{
    /* only the recorder counts iterations */
}
