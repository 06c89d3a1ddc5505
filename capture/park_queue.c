/* The queue of capture: what was issued, posted and has ended. See park_queue.h.
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
 * Who notices that an operation has ended: a host wait blocks in the client for it (and
 * so tells the coordinator that this rank waits); queries and later issues poll; and
 * only while an operation is held back a worker thread polls every 0.2 to 2 ms.
 *
 * When the whole rank waits: when its main thread does, or when another thread does and
 * the main one waits for a thread (two looks in a row; it may be a short wait); or when
 * the main thread has done nothing but poll for POLLED_NS.
 *
 * One lock guards everything here; it is not held while the host waits.
 */
#include "config.h"

#include "capture/park_queue.h"

#include "capture/recorder.h"

#include "runtime/process.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POLL_MIN_NS 200000L
#define POLL_MAX_NS 2000000L
#define POLLED_NS   UINT64_C(500000000)
#define POLL_GAP_NS UINT64_C(200000000) /* a longer pause ends a row of polls */

enum item_state { ITEM_HELD, ITEM_POSTED, ITEM_ENDED };

/* One deposit: the operations of a call or a group. */
struct park_item {
    struct park_item *previous, *next; /* of those under way, in order of issue */
    uint32_t refs;                     /* list, stream entries, waiting threads */
    enum item_state state;
    int is_waited; /* a thread is in crystal_client_wait for it */
    int result;    /* ncclResult_t once ended */
    uint32_t ticket;
    uint32_t count;
    struct park_op ops[];
};

/* What stands in a stream: an item, or another stream's mark to wait for. */
struct park_entry {
    struct park_entry *next;
    struct park_item *item; /* NULL: mark */
    struct park_mark mark;
};

struct park_stream {
    uint32_t refs; /* handle, marks */
    int has_index;
    uint16_t index;
    int advancing;   /* guards against going round in circles */
    int result;      /* ncclResult_t of the first failure before `ended` */
    uint64_t issued; /* entries so far */
    uint64_t ended;  /* of these, from the front */
    struct park_entry *first, **last;
};

static struct park_queue {
    pthread_mutex_t lock; /* everything in this file */
    pthread_cond_t changed;
    struct crystal_client *client;
    struct crystal_payload_writer *payload;
    struct park_item *first, *last;
    uint32_t held_count;
    int has_worker;
    uint64_t issue_count;
    struct { /* the main thread's row of polls that said "not yet" */
        uint64_t first_ns, last_ns, issue_count;
        int is_told;
    } polls;
    struct park_stream null_stream;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void lock(void)
{
    (void)pthread_mutex_lock(&queue.lock); /* a plain mutex, never taken twice */
}

static void unlock(void)
{
    (void)pthread_mutex_unlock(&queue.lock);
}

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

/* --- references, lock held --- */

static void stream_unref(struct park_stream *s)
{
    if (!s || s == &queue.null_stream || --s->refs)
        return;
    free(s); /* no entries: each holds a reference through its item's end */
}

static void comm_unref(struct ncclComm *comm)
{
    if (!--comm->refs)
        free(comm);
}

static void item_unref(struct park_item *item)
{
    if (--item->refs)
        return;
    for (uint32_t i = 0; i < item->count; i++)
        comm_unref(item->ops[i].comm);
    free(item);
}

/* --- posting, lock held --- */

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

            if (overlaps(early->recv, early->op.recv_bytes, late->send,
                         late->op.send_bytes) ||
                overlaps(early->recv, early->op.recv_bytes, late->recv,
                         late->op.recv_bytes))
                return 1;
            if (e->state != ITEM_HELD)
                continue;
            if (e->ops[i].comm == b->ops[k].comm ||
                overlaps(early->send, early->op.send_bytes, late->recv,
                         late->op.recv_bytes))
                return 1;
        }
    }
    return 0;
}

static struct park_item *holder_of(struct park_item *item)
{
    for (struct park_item *e = queue.first; e && e != item; e = e->next)
        if (holds_back(e, item))
            return e;
    return NULL;
}

static void item_end(struct park_item *item, int code, const struct crystal_error *err)
{
    item->state = ITEM_ENDED;
    item->result = result_of(code);
    if (item->previous)
        item->previous->next = item->next;
    else
        queue.first = item->next;
    if (item->next)
        item->next->previous = item->previous;
    else
        queue.last = item->previous;
    if (item->result) {
        recorder_fail(err);
        for (uint32_t i = 0; i < item->count; i++)
            atomic_store_explicit(&item->ops[i].comm->error, item->result,
                                  memory_order_relaxed);
    }
    (void)pthread_cond_broadcast(&queue.changed);
    item_unref(item);
}

/* Hands item to the coordinator; a failure ends it. */
static void item_post(struct park_item *item)
{
    struct crystal_client_op one, *ops = &one;
    struct crystal_error err = {0};
    int code = 0;

    item->state = ITEM_POSTED;
    if (!queue.client)
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
        if (op->payload_bytes && queue.payload)
            code = crystal_payload_write(queue.payload, op->payload_offset,
                                         op->client.send, op->payload_bytes, &err);
    }
    if (!code)
        code = crystal_client_post(queue.client, ops, item->count, &item->ticket, &err);
    if (ops != &one)
        free(ops);
    if (code)
        item_end(item, code, &err);
}

static void post_what_can_be(void)
{
    struct park_item *item = queue.first;

    while (item && queue.held_count) {
        struct park_item *next = item->next;

        if (item->state == ITEM_HELD && !holder_of(item)) {
            queue.held_count--;
            item_post(item);
        }
        item = next;
    }
}

/* Ends what has ended meanwhile, without blocking. */
static void reap(void)
{
    struct park_item *item = queue.client ? queue.first : NULL;

    while (item) {
        struct park_item *next = item->next;

        if (item->state == ITEM_POSTED && !item->is_waited &&
            crystal_client_poll(queue.client, item->ticket) != 0) {
            struct crystal_error err = {0};

            item_end(item, crystal_client_wait(queue.client, item->ticket, &err), &err);
        }
        item = next;
    }
    post_what_can_be();
}

static void pause_until_changed(long ns)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until); /* the clock of static conditions */
    until.tv_nsec += ns;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    (void)pthread_cond_timedwait(&queue.changed, &queue.lock, &until);
}

static void *worker_main(void *unused)
{
    long pause_ns = POLL_MIN_NS;

    lock();
    for (;;) {
        if (!queue.held_count) {
            (void)pthread_cond_wait(&queue.changed, &queue.lock);
            pause_ns = POLL_MIN_NS;
            continue;
        }
        pause_until_changed(pause_ns);
        reap();
        pause_ns = pause_ns * 2 < POLL_MAX_NS ? pause_ns * 2 : POLL_MAX_NS;
    }
    return unused;
}

static void worker_start(void)
{
    sigset_t all, before;
    pthread_t thread;

    if (queue.has_worker)
        return;
    (void)sigfillset(&all); /* the program's signals are for its own threads */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    /* Without it, held operations are posted at the next call or wait. */
    if (pthread_create(&thread, NULL, worker_main, NULL) == 0) {
        (void)pthread_detach(thread);
        queue.has_worker = 1;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* --- whether the whole rank waits --- */

static int is_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

/* Asked by a thread that waits in the client. */
static int rank_is_blocked(void)
{
    static _Thread_local uint64_t ticks_before;
    static _Thread_local int waited_before;
    uint64_t ticks = 0;
    int waits, is_blocked;

    if (is_main_thread())
        return 1;
    waits = crystal_process_main_waits(&ticks);
    is_blocked = waits && waited_before && ticks == ticks_before;
    waited_before = waits;
    ticks_before = ticks;
    return is_blocked;
}

/* The oldest operation that a mark waits for; NULL where that is not known. */
static const struct park_item *first_of(const struct park_mark *mark)
{
    const struct park_entry *e = mark->stream ? mark->stream->first : NULL;

    return e ? e->item : NULL;
}

/* A query has said "not yet". Lock held. */
static void polled(const struct park_mark *mark)
{
    uint64_t now_ns = recorder_absolute_ns();
    const struct park_item *item;

    if (!is_main_thread())
        return;
    if (!queue.polls.first_ns || queue.polls.issue_count != queue.issue_count ||
        now_ns - queue.polls.last_ns > POLL_GAP_NS) {
        queue.polls.first_ns = now_ns;
        queue.polls.issue_count = queue.issue_count;
        queue.polls.is_told = 0;
    }
    queue.polls.last_ns = now_ns;
    item = first_of(mark);
    if (queue.polls.is_told || now_ns - queue.polls.first_ns < POLLED_NS || !item ||
        item->state != ITEM_POSTED || !queue.client)
        return;
    queue.polls.is_told = 1;
    crystal_client_blocked(queue.client, item->ticket);
}

/* --- waiting, lock held on entry and exit --- */

static void item_wait(struct park_item *item)
{
    item->refs++;
    while (item->state != ITEM_ENDED) {
        struct crystal_error err = {0};
        struct park_item *holder = item->state == ITEM_HELD ? holder_of(item) : NULL;
        int code;

        if (item->state == ITEM_HELD) {
            if (holder)
                item_wait(holder); /* earlier, so this ends */
            post_what_can_be();
        } else if (!queue.client) {
            code =
                crystal_error_set(&err, ECANCELED, "recorder: the process is ending");
            item_end(item, code, &err);
        } else if (item->is_waited) {
            (void)pthread_cond_wait(&queue.changed, &queue.lock);
        } else {
            item->is_waited = 1;
            unlock();
            code = crystal_client_wait(queue.client, item->ticket, &err);
            lock();
            item_end(item, code, &err);
            post_what_can_be();
        }
    }
    item_unref(item);
}

static int mark_ended(const struct park_mark *mark);

static void stream_advance(struct park_stream *s)
{
    struct park_entry *e;

    if (s->advancing)
        return;
    s->advancing = 1;
    while ((e = s->first) != NULL) {
        int result;

        if (e->item ? e->item->state != ITEM_ENDED : !mark_ended(&e->mark))
            break;
        result = e->item ? e->item->result : e->mark.stream->result;
        if (result && !s->result)
            s->result = result;
        s->first = e->next;
        if (!s->first)
            s->last = &s->first;
        s->ended++;
        if (e->item)
            item_unref(e->item);
        else
            stream_unref(e->mark.stream);
        free(e);
    }
    s->advancing = 0;
}

static int mark_ended(const struct park_mark *mark)
{
    if (!mark->stream)
        return 1;
    if (mark->stream->ended < mark->seq)
        stream_advance(mark->stream);
    return mark->stream->ended >= mark->seq;
}

static void mark_wait(const struct park_mark *mark)
{
    while (!mark_ended(mark)) {
        struct park_entry *e = mark->stream->first;

        if (e->item) {
            item_wait(e->item);
        } else {
            struct park_mark other = e->mark;

            other.stream->refs++;
            mark_wait(&other);
            stream_unref(other.stream);
        }
    }
}

static int stream_append(struct park_stream *s, struct park_item *item,
                         const struct park_mark *mark)
{
    struct park_entry *e = calloc(1, sizeof *e);

    if (!e)
        return -ENOMEM;
    if (item) {
        e->item = item;
        item->refs++;
    } else {
        e->mark = *mark;
        e->mark.stream->refs++;
    }
    *s->last = e;
    s->last = &e->next;
    s->issued++;
    return 0;
}

/* --- calls --- */

void park_queue_open(struct crystal_client *client,
                     struct crystal_payload_writer *payload)
{
    lock();
    queue.client = client;
    queue.payload = payload;
    crystal_client_ask_blocked(client, rank_is_blocked);
    unlock();
}

struct crystal_client *park_queue_close(void)
{
    struct crystal_client *client;

    lock();
    client = queue.client;
    for (const struct park_item *item = queue.first; item; item = item->next)
        if (item->is_waited)
            client = NULL;
    if (client) {
        queue.client = NULL;
        queue.payload = NULL;
        queue.held_count = 0;
    }
    unlock();
    return client;
}

void park_queue_forget(void)
{
    (void)pthread_mutex_init(&queue.lock, NULL); /* its owner is not in the child */
    queue.client = NULL;
    queue.payload = NULL;
    queue.first = queue.last = NULL;
    queue.held_count = 0;
    queue.has_worker = 0;
}

static void stream_init(struct park_stream *s)
{
    s->refs = 1;
    s->last = &s->first;
}

struct park_stream *park_queue_stream_create(struct crystal_error *err)
{
    struct park_stream *s = calloc(1, sizeof *s);

    if (s)
        stream_init(s);
    else
        (void)crystal_error_set(err, ENOMEM, "recorder: out of memory");
    return s;
}

struct park_stream *park_queue_stream_null(void)
{
    lock();
    if (!queue.null_stream.refs) {
        stream_init(&queue.null_stream);
        queue.null_stream.has_index = 1;
    }
    unlock();
    return &queue.null_stream;
}

void park_queue_stream_release(struct park_stream *s)
{
    struct park_mark end = {s, s->issued};

    lock();
    /* What is under way goes on; its entries leave when somebody looks. Streams whose
     * work has not ended stay, a few bytes each. */
    if (mark_ended(&end))
        stream_unref(s);
    unlock();
}

uint16_t park_queue_stream_index(struct park_stream *s)
{
    uint16_t index;

    lock();
    if (!s->has_index) {
        s->index = recorder_stream_next(recorder_get());
        s->has_index = 1;
    }
    index = s->index;
    unlock();
    return index;
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
    lock();
    comm_unref(comm);
    unlock();
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
            code = stream_append(item->ops[i].stream, item, NULL);
    }
    return code;
}

int park_queue_issue(const struct park_op *ops, uint32_t count,
                     struct crystal_error *err)
{
    struct park_item *item;
    int code;

    if (!count)
        return 0;
    item = calloc(1, sizeof *item + count * sizeof *ops);
    if (!item)
        return crystal_error_set(err, ENOMEM, "recorder: out of memory");
    memcpy(item->ops, ops, count * sizeof *ops);
    item->count = count;
    item->refs = 1;
    lock();
    for (uint32_t i = 0; i < count; i++) {
        ops[i].comm->refs++;
        stream_advance(ops[i].stream); /* keeps the lists short */
    }
    if (queue.first)
        reap();
    queue.issue_count++;
    code = enter_streams(item);
    item->previous = queue.last;
    if (queue.last)
        queue.last->next = item;
    else
        queue.first = item;
    queue.last = item;
    if (code) {
        struct crystal_error why = {0};

        (void)crystal_error_set(&why, ENOMEM, "recorder: out of memory");
        item_end(item, code, &why);
        code = crystal_error_set(err, ENOMEM, "recorder: out of memory");
    } else if (holder_of(item)) {
        queue.held_count++;
        worker_start();
        (void)pthread_cond_broadcast(&queue.changed);
    } else {
        item->refs++;
        item_post(item);
        if (item->state == ITEM_ENDED) /* only a failure ends it here */
            code = crystal_error_set(err, ECANCELED, "%s", recorder_last_error());
        item_unref(item);
    }
    unlock();
    return code;
}

void park_queue_drain(int timeout_ms)
{
    uint64_t until_ns = recorder_absolute_ns() + (uint64_t)timeout_ms * 1000000ULL;

    lock();
    while (queue.held_count && recorder_absolute_ns() < until_ns) {
        reap();
        if (queue.held_count)
            pause_until_changed(POLL_MIN_NS);
    }
    unlock();
}

void park_queue_mark_set(struct park_mark *mark, struct park_stream *stream)
{
    lock();
    stream_advance(stream);
    if (stream != &queue.null_stream)
        stream->refs++;
    stream_unref(mark->stream);
    mark->stream = stream;
    mark->seq = stream->issued;
    unlock();
}

void park_queue_mark_clear(struct park_mark *mark)
{
    lock();
    stream_unref(mark->stream);
    mark->stream = NULL;
    unlock();
}

int park_queue_stream_wait(struct park_stream *stream, const struct park_mark *mark,
                           struct crystal_error *err)
{
    int code = 0;

    lock();
    if (mark->stream != stream && !mark_ended(mark))
        code = stream_append(stream, NULL, mark);
    unlock();
    return code ? crystal_error_set(err, ENOMEM, "recorder: out of memory") : 0;
}

int park_queue_mark_wait(const struct park_mark *mark)
{
    struct park_mark own;
    int result = ncclSuccess;

    lock();
    own = *mark; /* the event may be recorded anew while we wait */
    if (own.stream) {
        own.stream->refs++;
        mark_wait(&own);
        result = own.stream->result;
        stream_unref(own.stream);
    }
    unlock();
    return result;
}

int park_queue_mark_query(const struct park_mark *mark, int *ret_result)
{
    int ended;

    lock();
    ended = mark_ended(mark);
    if (!ended) {
        reap();
        ended = mark_ended(mark);
    }
    if (ended)
        *ret_result = mark->stream ? mark->stream->result : ncclSuccess;
    else
        polled(mark);
    unlock();
    return ended;
}
