/* The queue of capture: what was issued and has not ended. See park_queue.h;
 * park_item.c says when something is posted, park_mark.c what streams and events wait
 * for, park_blocked.c when the whole rank waits. One lock guards everything there; it
 * is not held while the host waits.
 */
#include "config.h"

#include "capture/park_queue_state.h"

#include "capture/cuda_device.h"
#include "capture/recorder.h"
#include "runtime/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct park_queue park_queue = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .changed = PTHREAD_COND_INITIALIZER};

void park_queue_lock(void)
{
    (void)pthread_mutex_lock(&park_queue.lock); /* a plain mutex, never taken twice */
}

void park_queue_unlock(void)
{
    (void)pthread_mutex_unlock(&park_queue.lock);
}

void park_queue_open(struct crystal_client *client,
                     struct crystal_payload_writer *payload)
{
    park_queue_lock();
    park_queue.client = client;
    park_queue.payload = payload;
    crystal_client_ask_blocked(client, park_is_blocked);
    park_queue_unlock();
}

struct crystal_client *park_queue_close(void)
{
    struct crystal_client *client;

    park_queue_lock();
    client = park_queue.client;
    for (const struct park_item *item = park_queue.first; item; item = item->next)
        if (item->is_waited)
            client = NULL;
    if (client) {
        park_queue.client = NULL;
        park_queue.payload = NULL;
        park_queue.held_count = 0;
    }
    park_queue_unlock();
    return client;
}

void park_queue_forget(void)
{
    (void)pthread_mutex_init(&park_queue.lock,
                             NULL); /* its owner is not in the child */
    park_queue.client = NULL;
    park_queue.payload = NULL;
    park_queue.first = park_queue.last = NULL;
    park_queue.held_count = 0;
    park_queue.has_worker = 0;
}

struct ncclComm *park_queue_comm_create(struct crystal_error *err)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);

    if (comm)
        comm->refs = 1;
    else
        (void)crystal_error_set(err, ENOMEM, "recorder: out of memory");
    return comm;
}

void park_queue_comm_release(struct ncclComm *comm)
{
    park_queue_lock();
    park_comm_unref(comm);
    park_queue_unlock();
}

/* Puts item once into every stream that its operations name. */
static int enter_streams(struct park_item *item)
{
    int code = 0;

    for (uint32_t i = 0; !code && i < item->count; i++) {
        uint32_t k = 0;

        while (k < i && item->ops[k].stream != item->ops[i].stream)
            k++;
        if (k == i)
            code = park_stream_append(item->ops[i].stream, item, NULL);
        item->ops[i].place = k == i ? item->ops[i].stream->issued : item->ops[k].place;
    }
    return code;
}

uint32_t park_queue_device_count(void)
{
    return atomic_load_explicit(&park_queue.device_count, memory_order_relaxed);
}

static int on_device(const struct park_item *item)
{
    for (uint32_t i = 0; i < item->count; i++)
        if (item->ops[i].stream->is_device)
            return 1;
    return 0;
}

/* Whether the call waits until the item has ended. */
static int is_for_now(const struct park_item *item)
{
    int is_for_now = 0;

    for (uint32_t i = 0; i < item->count; i++)
        if (item->ops[i].stream->is_device)
            is_for_now |= !cuda_device_may_defer(item->ops[i].stream);
    for (uint32_t i = 0; i < item->count; i++)
        item->ops[i].stream->is_forked = 0;
    return is_for_now;
}

/* Puts it behind all that is under way. */
static void enter_list(struct park_item *item)
{
    item->previous = park_queue.last;
    if (park_queue.last)
        park_queue.last->next = item;
    else
        park_queue.first = item;
    park_queue.last = item;
}

int park_queue_issue(const struct park_op *ops, uint32_t count,
                     struct crystal_error *err)
{
    struct park_item *item;
    int code = 0;

    if (!count)
        return 0;
    item = calloc(1, sizeof *item + count * sizeof *ops);
    if (!item)
        return crystal_error_set(err, ENOMEM, "recorder: out of memory");
    memcpy(item->ops, ops, count * sizeof *ops);
    item->count = count;
    item->refs = 2; /* the list's and ours */
    park_queue_lock();
    for (uint32_t i = 0; i < count; i++) {
        ops[i].comm->refs++;
        park_stream_advance(ops[i].stream); /* keeps the lists short */
    }
    if (park_queue.first)
        park_items_reap();
    park_queue.issue_count++;
    if (on_device(item))
        code = park_item_stage(item);
    if (!code)
        code = enter_streams(item);
    enter_list(item);
    if (code) {
        struct crystal_error why = {0};

        (void)crystal_error_set(&why, ENOMEM, "recorder: out of memory");
        park_item_end(item, code, &why);
    } else {
        park_queue.held_count++;
        park_item_go_on(item);
        if (item->stage && is_for_now(item))
            park_item_wait(item);
        if (item->state < ITEM_POSTED) {
            park_items_watch();
            (void)pthread_cond_broadcast(&park_queue.changed);
        }
    }
    if (item->state == ITEM_ENDED && item->result)
        code = crystal_error_set(err, ECANCELED, "%s", recorder_last_error());
    park_item_unref(item);
    park_queue_unlock();
    return code;
}

void park_queue_drain(int timeout_ms)
{
    uint64_t until_ns = crystal_now_ns() + (uint64_t)timeout_ms * 1000000ULL;

    park_queue_lock();
    while (park_queue.held_count && crystal_now_ns() < until_ns) {
        park_items_reap();
        if (park_queue.held_count)
            park_items_pause(PARK_POLL_MIN_NS);
    }
    park_queue_unlock();
}
