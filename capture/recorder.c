/* The recording side of libcrystal-nccl.so: trace, counters, payload file. See
 * recorder.h. A forked child records nothing: the trace belongs to the process that
 * opened it.
 */
#include "config.h"

#include "capture/recorder.h"

#include "capture/flusher.h"
#include "runtime/clock.h"
#include "runtime/env.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct recorder recorder = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t recorder_once = PTHREAD_ONCE_INIT;
static int is_started; /* release: recorder_start is through */

uint64_t recorder_now_ns(const struct recorder *r)
{
    return crystal_now_ns() - r->start_ns;
}

/* A number of the environment below limit; fallback where it is unset or wrong. */
static uint64_t env_number(const char *name, uint64_t limit, uint64_t fallback)
{
    const char *text = getenv(name);
    char *end;
    unsigned long long value;

    if (!text || text[0] < '0' || text[0] > '9')
        return fallback;
    errno = 0;
    value = strtoull(text, &end, 0);
    return errno || *end || value >= limit ? fallback : value;
}

static void child_after_fork(void)
{
    (void)pthread_mutex_init(&recorder.lock, NULL); /* its owner is not in here */
    recorder.trace = NULL; /* the file and its buffer stay the parent's */
    recorder.payload = NULL;
    recorder.on_issue = NULL;
    memset(recorder.on_flush, 0, sizeof recorder.on_flush);
}

void recorder_hooks(struct recorder *r, void (*on_issue)(uint64_t record),
                    void (*on_flush)(int is_last))
{
    int i = 0;

    (void)pthread_mutex_lock(&r->lock);
    if (on_issue)
        r->on_issue = on_issue;
    while (i < RECORDER_FLUSHES - 1 && r->on_flush[i])
        i++;
    r->on_flush[i] = on_flush;
    (void)pthread_mutex_unlock(&r->lock);
}

/* Lets records be appended that are known late. */
static void flush_late(int is_last)
{
    void (*on_flush[RECORDER_FLUSHES])(int is_last) = {NULL};

    (void)pthread_mutex_lock(&recorder.lock);
    if (recorder.trace)
        memcpy(on_flush, recorder.on_flush, sizeof on_flush);
    if (is_last)
        recorder.on_issue = NULL;
    (void)pthread_mutex_unlock(&recorder.lock);
    for (int i = 0; i < RECORDER_FLUSHES; i++)
        if (on_flush[i])
            on_flush[i](is_last);
}

/* What a rank did before it hangs and is killed should be in its trace, so records do
 * not stay in the buffer for longer than a turn. */
static void flush_turn(void)
{
    flush_late(0);
    (void)pthread_mutex_lock(&recorder.lock);
    if (recorder.trace)
        (void)crystal_trace_flush(recorder.trace, NULL); /* told at the end */
    (void)pthread_mutex_unlock(&recorder.lock);
}

static void recorder_start(void)
{
    struct recorder *r = &recorder;
    const char *directory = getenv(CRYSTAL_ENV_TRACE_DIR);
    struct crystal_error err = {0};
    uint64_t fingerprint = env_number(CRYSTAL_ENV_FINGERPRINT, UINT64_MAX, 0);
    char path[4096];

    r->start_ns = crystal_now_ns();
    r->stream_count = 1;
    r->lrank = (uint32_t)env_number(CRYSTAL_ENV_LRANK, UINT32_MAX, UINT32_MAX);
    r->iterations = (uint32_t)env_number(CRYSTAL_ENV_ITERATIONS, UINT32_MAX, 0);
    r->keep.is_all =
        getenv(CRYSTAL_ENV_PAYLOAD) && strcmp(getenv(CRYSTAL_ENV_PAYLOAD), "all") == 0;
    r->is_replica =
        getenv(CRYSTAL_ENV_LIVE) && strcmp(getenv(CRYSTAL_ENV_LIVE), "replica") == 0;
    if (!directory || r->lrank == UINT32_MAX) {
        (void)snprintf(r->broken, sizeof r->broken,
                       "recorder: %s is not set; start the program with scrystal "
                       "capture or plan",
                       directory ? CRYSTAL_ENV_LRANK : CRYSTAL_ENV_TRACE_DIR);
        return;
    }
    if (snprintf(path, sizeof path, "%s/%u.trace", directory, r->lrank) >=
        (int)sizeof path) {
        (void)snprintf(r->broken, sizeof r->broken, "recorder: %.200s: path too long",
                       directory);
        return;
    }
    r->trace = crystal_trace_create(path, r->lrank, fingerprint, &err);
    if (r->trace && !getenv(CRYSTAL_ENV_PASS_LIBRARY)) {
        if (!crystal_payload_path(directory, r->lrank, path, sizeof path, &err))
            r->payload = crystal_payload_create(path, r->lrank, fingerprint, &err);
    }
    if (err.code) {
        (void)snprintf(r->broken, sizeof r->broken, "recorder: %.480s", err.text);
        (void)crystal_trace_close(r->trace, NULL); /* the first error is told */
        r->trace = NULL;
        return;
    }
    r->start_ns = crystal_trace_start_ns(r->trace);
    (void)pthread_atfork(NULL, NULL, child_after_fork); /* else children share a file */
    flusher_start(flush_turn); /* else appending still flushes when records are old */
}

static void recorder_start_once(void)
{
    recorder_start();
    __atomic_store_n(&is_started, 1, __ATOMIC_RELEASE);
}

struct recorder *recorder_get(void)
{
    if (!__atomic_load_n(&is_started, __ATOMIC_ACQUIRE))
        (void)pthread_once(&recorder_once, recorder_start_once); /* valid arguments */
    return &recorder;
}

/* Records that tell what happened elsewhere meanwhile. */
static int is_late(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_DONE || op->kind == CRYSTAL_OP_WORK ||
           op->kind == CRYSTAL_OP_EXT || op->kind == CRYSTAL_OP_PAYLOAD;
}

static uint64_t append_locked(struct recorder *r, const struct crystal_op *op)
{
    uint64_t index;

    if (!r->trace)
        return 0;
    index = crystal_trace_count(r->trace);
    crystal_trace_append(r->trace, op);
    if (op->kind != CRYSTAL_OP_DONE && op->kind != CRYSTAL_OP_WORK)
        r->issued_count++;
    if (r->on_issue && !is_late(op))
        r->on_issue(index);
    return index;
}

uint64_t recorder_append(struct recorder *r, const struct crystal_op *op)
{
    uint64_t index;

    (void)pthread_mutex_lock(&r->lock);
    index = append_locked(r, op);
    (void)pthread_mutex_unlock(&r->lock);
    return index;
}

uint16_t recorder_stream_next(struct recorder *r)
{
    uint32_t index;

    (void)pthread_mutex_lock(&r->lock);
    index = r->stream_count < UINT16_MAX ? r->stream_count++ : UINT16_MAX;
    (void)pthread_mutex_unlock(&r->lock);
    return (uint16_t)index;
}

uint32_t recorder_event_next(struct recorder *r)
{
    uint32_t index;

    (void)pthread_mutex_lock(&r->lock);
    index = r->event_count++;
    (void)pthread_mutex_unlock(&r->lock);
    return index;
}

int recorder_comm(struct recorder *r, const char *name, uint32_t nranks, uint32_t crank,
                  uint16_t *ret_comm, struct crystal_error *err)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_COMM, .peer = crank, .value = nranks};
    size_t left = strlen(name);

    op.t_ns = recorder_now_ns(r);
    (void)pthread_mutex_lock(&r->lock);
    if (r->comm_count >= UINT16_MAX) {
        (void)pthread_mutex_unlock(&r->lock);
        return crystal_error_set(err, ENOSPC,
                                 "recorder: more than 65535 communicators; a trace "
                                 "cannot name them");
    }
    op.comm = (uint16_t)r->comm_count++;
    (void)append_locked(r, &op);
    while (left) {
        struct crystal_op_ext ext = {.kind = CRYSTAL_OP_EXT};
        struct crystal_op record;
        size_t part = left < sizeof ext.data ? left : sizeof ext.data;

        memcpy(ext.data, name, part);
        memcpy(&record, &ext, sizeof record);
        (void)append_locked(r, &record);
        name += part;
        left -= part;
    }
    (void)pthread_mutex_unlock(&r->lock);
    *ret_comm = op.comm;
    return 0;
}

void recorder_comm_free(struct recorder *r, uint16_t comm)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_FREE, .comm = comm};

    op.t_ns = recorder_now_ns(r);
    (void)recorder_append(r, &op);
}

uint64_t recorder_call_locked(struct recorder *r, const struct recorder_call *call,
                              uint64_t t_ns)
{
    struct crystal_op op = {.func = call->func,
                            .dtype = call->dtype,
                            .flags = call->flags,
                            .stream = call->stream,
                            .comm = call->comm,
                            .aux = call->redop,
                            .peer = call->peer,
                            .value = call->count,
                            .t_ns = t_ns};

    op.kind = call->func == CRYSTAL_FUNC_SEND   ? CRYSTAL_OP_SEND
              : call->func == CRYSTAL_FUNC_RECV ? CRYSTAL_OP_RECV
                                                : CRYSTAL_OP_COLL;
    return append_locked(r, &op);
}

uint64_t recorder_call(struct recorder *r, const struct recorder_call *call,
                       uint64_t send_bytes, uint64_t *ret_payload_bytes,
                       uint64_t *ret_payload_offset)
{
    uint64_t t_ns = recorder_now_ns(r), index;

    (void)pthread_mutex_lock(&r->lock);
    index = recorder_call_locked(r, call, t_ns);
    *ret_payload_bytes = r->payload ? keep_bytes(&r->keep, call, send_bytes) : 0;
    if (*ret_payload_bytes) {
        struct crystal_op payload = {.kind = CRYSTAL_OP_PAYLOAD,
                                     .peer = (uint32_t)*ret_payload_bytes,
                                     .t_ns = t_ns};

        payload.value = crystal_payload_reserve(r->payload, *ret_payload_bytes);
        *ret_payload_offset = payload.value;
        (void)append_locked(r, &payload);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return index;
}

void recorder_group(struct recorder *r, int start)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_GROUP, .aux = start ? 1 : 0};

    op.t_ns = recorder_now_ns(r);
    (void)recorder_append(r, &op);
}

void recorder_event(struct recorder *r, enum crystal_op_kind kind, uint32_t event,
                    uint16_t stream)
{
    struct crystal_op op = {.kind = (uint8_t)kind, .stream = stream, .peer = event};

    op.t_ns = recorder_now_ns(r);
    (void)recorder_append(r, &op);
}

void recorder_waited(struct recorder *r, enum crystal_op_kind kind, uint32_t event,
                     uint16_t stream, uint64_t from_ns)
{
    struct crystal_op op = {
        .kind = (uint8_t)kind, .stream = stream, .peer = event, .t_ns = from_ns};

    op.value = recorder_now_ns(r);
    (void)recorder_append(r, &op);
}

void recorder_append_all(struct recorder *r, const struct crystal_op *ops,
                         uint32_t count)
{
    if (!count)
        return;
    (void)pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < count; i++)
        (void)append_locked(r, &ops[i]);
    (void)pthread_mutex_unlock(&r->lock);
}

void recorder_alloc(struct recorder *r, uint64_t bytes, int is_free)
{
    struct crystal_op op = {
        .kind = CRYSTAL_OP_ALLOC, .aux = is_free ? 1 : 0, .value = bytes};

    op.t_ns = recorder_now_ns(r);
    (void)recorder_append(r, &op);
}

uint64_t recorder_hint(struct recorder *r, enum crystal_hint hint)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_HINT, .aux = hint};

    op.t_ns = recorder_now_ns(r);
    (void)pthread_mutex_lock(&r->lock);
    if (hint == CRYSTAL_HINT_STEP)
        op.value = ++r->hint_count;
    else if (hint == CRYSTAL_HINT_RANGE)
        op.value = r->range_count++; /* the first one ends nothing */
    (void)append_locked(r, &op);
    if (r->trace)
        (void)crystal_trace_flush(r->trace, NULL); /* told at the end */
    (void)pthread_mutex_unlock(&r->lock);
    return op.value;
}

/* Peak resident memory. Not from getrusage: its value survives exec and so may be the
 * launcher's. */
static uint64_t peak_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    unsigned long long kib = 0;
    char line[256];

    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1)
            break;
    (void)fclose(file); /* read-only */
    return kib * 1024;
}

void recorder_finish(struct recorder *r, int stopped)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_END, .aux = stopped ? 1 : 0};
    struct crystal_error err = {0};

    flush_late(1);
    op.value = peak_bytes();
    op.t_ns = recorder_now_ns(r);
    (void)pthread_mutex_lock(&r->lock);
    if (r->trace) {
        (void)append_locked(r, &op);
        (void)crystal_payload_close(r->payload, &err);
        (void)crystal_trace_close(r->trace, &err);
        r->trace = NULL;
        r->payload = NULL;
        if (err.code)
            crystal_log(CRYSTAL_LOG_ERROR, "recorder", "%s", err.text);
    }
    (void)pthread_mutex_unlock(&r->lock);
}

void recorder_polled(struct recorder *r, struct recorder_poll *poll, int is_done,
                     enum crystal_op_kind kind, uint32_t event, uint16_t stream)
{
    struct crystal_op op = {.kind = (uint8_t)kind, .stream = stream, .peer = event};
    uint64_t now_ns = recorder_now_ns(r);

    (void)pthread_mutex_lock(&r->lock);
    if (!poll->first_ns || poll->issued_count != r->issued_count)
        poll->first_ns = now_ns;
    poll->issued_count = r->issued_count;
    if (is_done && !poll->waited) {
        op.t_ns = poll->first_ns;
        op.value = now_ns;
        (void)append_locked(r, &op);
        poll->waited = 1;
    }
    (void)pthread_mutex_unlock(&r->lock);
}
