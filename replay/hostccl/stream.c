/* Streams of runtime/crystal_stream.h on host memory.
 *
 * A stream is a queue of items. Calling threads count what they put in (issued) and
 * wait for what came out (ended); the items themselves are the driver's. A failure of a
 * communicator stays with the streams in which its work stood until that communicator
 * is destroyed.
 */
#include "config.h"

#include "runtime/crystal_stream.h"

#include "replay/hostccl/engine.h"
#include "replay/hostccl/event.h"
#include "replay/hostccl/fork.h"
#include "replay/hostccl/result.h"

#include <stdlib.h>

#define STREAM_MAGIC 0x4372795374726d31ULL

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

static struct hostccl_stream null_stream = {.magic = STREAM_MAGIC};
static struct {
    struct hostccl_stream *all;    /* under the lock; without the null stream */
    struct hostccl_stream *active; /* the driver's */
} streams;

struct hostccl_stream *hostccl_stream_locked(ncclStream_t handle)
{
    struct hostccl_stream *stream = handle ? handle : &null_stream;

    return stream->magic == STREAM_MAGIC && !stream->is_destroyed &&
                   !hostccl_fork_is_child()
               ? stream
               : NULL;
}

ncclResult_t hostccl_stream_bad(void)
{
    struct crystal_error err = {0};

    if (hostccl_fork_check(&err))
        return hostccl_fail_error(&err);
    return hostccl_fail(ncclInvalidArgument, "hostccl: that is no stream of ours");
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
    stream = hostccl_stream_locked(handle);
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
    hostccl_event_unref(item->event);
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
    ncclResult_t result;
    uint64_t comm;

    switch (item->kind) {
    case HOSTCCL_ITEM_RECORD:
        hostccl_event_reach(item->event, item->generation, stream->result,
                            stream->result_comm);
        break;
    case HOSTCCL_ITEM_WAIT:
        if (!hostccl_event_is_reached(item->event, item->generation, &result, &comm))
            return false;
        inherit(stream, result, comm);
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
    stream = handle ? hostccl_stream_locked(handle) : NULL;
    if (stream) {
        stream->is_destroyed = true;
        free_if_unused(stream); /* else when its last item is done */
    }
    hostccl_unlock();
    return stream ? ncclSuccess : hostccl_stream_bad();
}

__attribute__((visibility("default"))) ncclResult_t
crystal_stream_synchronize(ncclStream_t handle)
{
    struct hostccl_stream *stream;
    ncclResult_t result = ncclSuccess;
    uint64_t until;

    hostccl_lock();
    stream = hostccl_stream_locked(handle);
    if (stream) {
        until = stream->issued;
        stream->waiting++;
        hostccl_wait_until(&stream->ended, until);
        stream->waiting--;
        result = stream->result;
        free_if_unused(stream);
    }
    hostccl_unlock();
    return stream ? result : hostccl_stream_bad();
}

__attribute__((visibility("default"))) ncclResult_t
crystal_stream_query(ncclStream_t handle)
{
    struct hostccl_stream *stream;
    ncclResult_t result = ncclSuccess;

    hostccl_lock();
    stream = hostccl_stream_locked(handle);
    if (stream)
        result = stream->ended < stream->issued ? ncclInProgress : stream->result;
    hostccl_unlock();
    return stream ? result : hostccl_stream_bad();
}

__attribute__((visibility("default"))) void crystal_iteration_hint(void)
{
    /* only the recorder counts iterations */
}
