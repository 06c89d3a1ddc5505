/* Deposits of capture: when one may be posted, and how its end is noticed.
 *
 * When an operation may be posted. On host memory a program's own work is done when it
 * issues, so only operations under way matter. With E an earlier one that has not ended
 * and B the one to post:
 *   - E writes memory that B reads or writes: B waits until E has ended;
 *   - E is not posted itself and reads memory that B writes, or has a communicator in
 *     common with B (the coordinator sees each communicator in order): B waits until E
 *     is posted.
 * Nothing else holds B back, in particular no receive that waits for its sender: a 1F1B
 * pipeline that posts receives early goes on.
 *
 * On a device B's own stream says what is before it, as in NCCL: it is staged when all
 * of that has ended (cuda_stage.h), and posted when it is staged, but not before an
 * earlier one of the same communicator. Memory is not compared.
 *
 * Who notices that an operation has ended: a host wait blocks in the client for it (and
 * so tells the coordinator that this rank waits); queries and later issues poll; and
 * only while an operation is held back or staged a worker thread polls every 0.2 to 2
 * ms.
 */
#include "config.h"

#include "capture/park_queue_state.h"

#include "capture/cuda_stage.h"
#include "capture/recorder.h"
#include "runtime/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static int result_of(int code)
{
    switch (-code) {
    case 0:
        return ncclSuccess;
    case ECANCELED:
        return ncclRemoteError;
    case EINVAL:
        return ncclInvalidArgument;
    default:
        return ncclSystemError;
    }
}

void park_comm_unref(struct ncclComm *comm)
{
    if (!--comm->refs)
        free(comm);
}

void park_item_unref(struct park_item *item)
{
    if (--item->refs)
        return;
    for (uint32_t i = 0; i < item->count; i++)
        park_comm_unref(item->ops[i].comm);
    cuda_stage_destroy(item->stage);
    free(item);
}

static int overlaps(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    uintptr_t a_at = (uintptr_t)a, b_at = (uintptr_t)b;

    return a_bytes && b_bytes && a_at < b_at + b_bytes && b_at < a_at + a_bytes;
}

/* Whether e, which was issued before b and has not ended, holds b back. */
static int holds_back(const struct park_item *e, const struct park_item *b)
{
    for (uint32_t i = 0; i < e->count; i++) {
        const struct crystal_client_op *early = &e->ops[i].client;

        for (uint32_t k = 0; k < b->count; k++) {
            const struct crystal_client_op *late = &b->ops[k].client;

            if (e->state < ITEM_POSTED && e->ops[i].comm == b->ops[k].comm)
                return 1;
            if (e->stage || b->stage)
                continue; /* their streams say what comes first */
            if (overlaps(early->recv, early->op.recv_bytes, late->send,
                         late->op.send_bytes) ||
                overlaps(early->recv, early->op.recv_bytes, late->recv,
                         late->op.recv_bytes))
                return 1;
            if (e->state < ITEM_POSTED && overlaps(early->send, early->op.send_bytes,
                                                   late->recv, late->op.recv_bytes))
                return 1;
        }
    }
    return 0;
}

struct park_item *park_item_holder(struct park_item *item)
{
    for (struct park_item *e = park_queue.first; e && e != item; e = e->next)
        if (holds_back(e, item))
            return e;
    return NULL;
}

/* What the program's streams hold behind an operation on a device is done at once. */
static void advance_streams(struct park_item *item)
{
    for (uint32_t i = 0; i < item->count; i++)
        if (item->ops[i].stream->is_device)
            park_stream_advance(item->ops[i].stream);
}

int park_item_stage(struct park_item *item)
{
    item->stage = cuda_stage_create(item);
    if (!item->stage)
        return -ENOMEM;
    atomic_fetch_add_explicit(&park_queue.device_count, 1, memory_order_relaxed);
    return 0;
}

void park_item_end(struct park_item *item, int code, const struct crystal_error *err)
{
    struct crystal_error own = {0};

    if (item->stage) {
        if (!code && cuda_stage_end(item->stage, item, &own)) {
            code = -own.code;
            err = &own;
        }
        atomic_fetch_sub_explicit(&park_queue.device_count, 1, memory_order_relaxed);
    }
    item->state = ITEM_ENDED;
    item->result = result_of(code);
    if (item->previous)
        item->previous->next = item->next;
    else
        park_queue.first = item->next;
    if (item->next)
        item->next->previous = item->previous;
    else
        park_queue.last = item->previous;
    if (item->result) {
        recorder_fail(err);
        for (uint32_t i = 0; i < item->count; i++)
            atomic_store_explicit(&item->ops[i].comm->error, item->result,
                                  memory_order_relaxed);
    }
    (void)pthread_cond_broadcast(&park_queue.changed);
    advance_streams(item);
    park_item_unref(item);
}

/* Hands item to the coordinator; a failure ends it. */
void park_item_post(struct park_item *item)
{
    struct crystal_client_op one, *ops = &one;
    struct crystal_error err = {0};
    int code = 0;

    item->state = ITEM_POSTED;
    if (!park_queue.client)
        code = crystal_error_set(&err, EINVAL,
                                 "recorder: this process has no coordinator; NCCL "
                                 "cannot be used in the child of a fork");
    if (item->count > 1)
        ops = calloc(item->count, sizeof *ops);
    if (!ops)
        code = crystal_error_set(&err, ENOMEM, "recorder: out of memory");
    for (uint32_t i = 0; !code && i < item->count; i++) {
        const struct park_op *op = &item->ops[i];

        ops[i] = op->client;
        if (op->payload_bytes && park_queue.payload)
            code = crystal_payload_write(park_queue.payload, op->payload_offset,
                                         op->client.send, op->payload_bytes, &err);
    }
    if (!code)
        code = crystal_client_post(park_queue.client, ops, item->count, &item->ticket,
                                   &err);
    if (ops != &one)
        free(ops);
    if (code)
        park_item_end(item, code, &err);
}

/* Whether all before it in its streams has ended. */
static int is_front(const struct park_item *item)
{
    for (uint32_t i = 0; i < item->count; i++)
        if (item->ops[i].stream->ended + 1 < item->ops[i].place)
            return 0;
    return 1;
}

/* Begins to stage it, or looks whether that is done: 1, 0 not yet. */
static int stage_go_on(struct park_item *item, struct crystal_error *err)
{
    int code;

    if (item->state == ITEM_HELD) {
        if (!is_front(item))
            return 0;
        code = cuda_stage_begin(item->stage, item, err);
        if (code)
            return code;
        item->state = ITEM_STAGED;
    }
    return cuda_stage_poll(item->stage, item, err);
}

void park_item_go_on(struct park_item *item)
{
    struct crystal_error err = {0};
    int staged = 1;

    if (item->state >= ITEM_POSTED)
        return;
    if (item->stage)
        staged = stage_go_on(item, &err);
    if (!staged || (staged > 0 && park_item_holder(item)))
        return;
    park_queue.held_count--;
    if (staged < 0)
        park_item_end(item, staged, &err);
    else
        park_item_post(item);
}

static void post_what_can_be(void)
{
    struct park_item *item = park_queue.first;

    while (item && park_queue.held_count) {
        struct park_item *next;

        item->refs++; /* it, and with it what is next, may end */
        park_item_go_on(item);
        next = item->next;
        park_item_unref(item);
        item = next;
    }
}

/* Ends what has ended meanwhile, without blocking. */
void park_items_reap(void)
{
    struct park_item *item = park_queue.client ? park_queue.first : NULL;

    while (item) {
        struct park_item *next = item->next;

        if (item->state == ITEM_POSTED && !item->is_waited &&
            crystal_client_poll(park_queue.client, item->ticket) != 0) {
            struct crystal_error err = {0};

            park_item_end(
                item, crystal_client_wait(park_queue.client, item->ticket, &err), &err);
        }
        item = next;
    }
    post_what_can_be();
}

void park_items_pause(long ns)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until); /* the clock of static conditions */
    until.tv_nsec += ns;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    (void)pthread_cond_timedwait(&park_queue.changed, &park_queue.lock, &until);
}

static void *worker_main(void *unused)
{
    long pause_ns = PARK_POLL_MIN_NS;

    park_queue_lock();
    for (;;) {
        if (!park_queue.held_count) {
            (void)pthread_cond_wait(&park_queue.changed, &park_queue.lock);
            pause_ns = PARK_POLL_MIN_NS;
            continue;
        }
        park_items_pause(pause_ns);
        park_items_reap();
        pause_ns = pause_ns * 2 < PARK_POLL_MAX_NS ? pause_ns * 2 : PARK_POLL_MAX_NS;
        if (park_queue_device_count())
            pause_ns = PARK_POLL_MIN_NS; /* a copy takes less than that */
    }
    return unused;
}

void park_items_watch(void)
{
    if (park_queue.has_worker)
        return;
    /* Without it, held operations are posted at the next call or wait. */
    if (crystal_thread_start(NULL, worker_main, NULL) == 0)
        park_queue.has_worker = 1;
}

/* Blocks for what keeps a held item from being posted, or a moment. */
static void wait_held(struct park_item *item)
{
    struct park_item *holder;

    if (item->stage && !is_front(item)) {
        for (uint32_t i = 0; i < item->count; i++) {
            struct park_mark before = {item->ops[i].stream, item->ops[i].place - 1};

            (void)park_mark_wait(&before); /* its failure is not ours */
        }
        return;
    }
    if (item->stage) {
        park_items_pause(PARK_STAGED_NS);
        return;
    }
    holder = park_item_holder(item);
    if (holder)
        park_item_wait(holder); /* earlier, so this ends */
}

void park_item_wait(struct park_item *item)
{
    item->refs++;
    while (item->state != ITEM_ENDED) {
        struct crystal_error err = {0};
        int code;

        if (item->state < ITEM_POSTED) {
            park_item_go_on(item);
            if (item->state < ITEM_POSTED)
                wait_held(item);
            post_what_can_be();
        } else if (!park_queue.client) {
            code =
                crystal_error_set(&err, ECANCELED, "recorder: the process is ending");
            park_item_end(item, code, &err);
        } else if (item->is_waited) {
            (void)pthread_cond_wait(&park_queue.changed, &park_queue.lock);
        } else {
            item->is_waited = 1;
            park_queue_unlock();
            code = crystal_client_wait(park_queue.client, item->ticket, &err);
            park_queue_lock();
            park_item_end(item, code, &err);
            post_what_can_be();
        }
    }
    park_item_unref(item);
}
