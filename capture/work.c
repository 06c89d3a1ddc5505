/* CUPTI's records to WORK records. See work.h.
 *
 * Locks: the recorder's, then ours. CUPTI's thread (buffers) takes ours only; nobody
 * calls CUPTI with ours held.
 */
#include "config.h"

#include "capture/work.h"

#include "capture/cuda_api.h"
#include "capture/cupti_api.h"
#include "capture/recorder.h"
#include "runtime/env.h"
#include "runtime/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES (1U << 20)
#define MARKS        (1U << 20) /* host records of which work may still be told */
#define OWN          (1U << 16)
#define SUMS         (1U << 15)
#define SUMS_FULL    (SUMS / 4 * 3)
#define STREAMS      256
#define NAMES        256

/* Calls with numbers above this one: which record they came behind, or up to which
 * number they are the recorder's own. */
struct mark {
    uint32_t number, what;
};

struct sum {
    uint64_t ns;
    uint32_t record;
    uint32_t count; /* 0: free */
    uint16_t stream;
    uint8_t what; /* enum crystal_work */
};

static struct {
    struct cupti_api cupti;
    void *subscriber;
    int is_shared;
    _Atomic int is_on;    /* acquire, release */
    pthread_mutex_t lock; /* of all below */
    struct mark *marks;   /* [MARKS], a ring */
    uint64_t mark_count;
    struct mark *own; /* [OWN], a ring */
    uint64_t own_count;
    struct sum *sums; /* [SUMS], a hash table */
    uint32_t sum_count;
    struct {
        uint32_t id;
        uint16_t index;
    } streams[STREAMS];
    uint32_t stream_count;
    struct {
        const char *name;
        int is_nccl;
    } names[NAMES];
    uint64_t lost, dropped, unnamed;
} work = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t work_once = PTHREAD_ONCE_INIT;
static _Thread_local uint32_t thread_number;

/* --- numbers --- */

static void on_call(void *data, int domain, uint32_t id, const void *call)
{
    (void)data;
    (void)domain;
    (void)id;
    memcpy(&thread_number, (const char *)call + CUPTI_CALLBACK_ID,
           sizeof thread_number);
}

/* The number of a call that is made now. */
static uint32_t number_now(void)
{
    int version;

    (void)work.cupti.cuDriverGetVersion(&version); /* only its number is wanted */
    return thread_number;
}

/* The recorder has appended a record of the host; its lock is held. */
static void on_issue(uint64_t record)
{
    struct mark mark = {number_now(), (uint32_t)record};

    (void)pthread_mutex_lock(&work.lock);
    work.marks[work.mark_count++ % MARKS] = mark;
    (void)pthread_mutex_unlock(&work.lock);
}

void work_own_begin(void)
{
    if (!atomic_load_explicit(&work.is_on, memory_order_acquire))
        return;
    work.own[work.own_count % OWN].number = number_now(); /* not yet seen */
}

void work_own_end(void)
{
    uint32_t end;

    if (!atomic_load_explicit(&work.is_on, memory_order_acquire))
        return;
    end = number_now();
    (void)pthread_mutex_lock(&work.lock);
    work.own[work.own_count++ % OWN].what = end;
    (void)pthread_mutex_unlock(&work.lock);
}

/* --- CUPTI's records; lock held --- */

/* Of the marks in a ring of this size the last one with a smaller number; NULL: none.
 */
static const struct mark *mark_before(const struct mark *ring, uint32_t size,
                                      uint64_t count, uint32_t number)
{
    const uint64_t first = count > size ? count - size : 0;
    uint64_t low = first, high = count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (ring[middle % size].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low > first ? &ring[(low - 1) % size] : NULL;
}

/* The record behind which a call with this number came; 0: none. */
static int record_of(uint32_t number, uint32_t *ret)
{
    const struct mark *mark = mark_before(work.marks, MARKS, work.mark_count, number);

    if (!mark) {
        work.lost += work.mark_count > MARKS; /* else: before the first record */
        return 0;
    }
    *ret = mark->what;
    return 1;
}

static int is_own(uint32_t number)
{
    const struct mark *mark = mark_before(work.own, OWN, work.own_count, number);

    return mark && number < mark->what;
}

static int is_nccl(const char *name)
{
    uint32_t at = (uint32_t)(((uintptr_t)name >> 4) % NAMES);

    if (!name)
        return 0;
    if (work.names[at].name != name) {
        work.names[at].name = name;
        work.names[at].is_nccl = strstr(name, "ncclDevKernel") != NULL;
    }
    return work.names[at].is_nccl;
}

static int stream_of(uint32_t id, uint16_t *ret)
{
    for (uint32_t i = work.stream_count; i-- > 0;) /* an id may come again */
        if (work.streams[i].id == id) {
            *ret = work.streams[i].index;
            return 1;
        }
    return 0;
}

static void add(const struct sum *s)
{
    uint32_t at = (s->record * 2654435761U + s->stream * 40503U + s->what) % SUMS;
    struct sum *to = &work.sums[at];

    while (to->count && (to->record != s->record || to->stream != s->stream ||
                         to->what != s->what)) {
        at = (at + 1) % SUMS;
        to = &work.sums[at];
    }
    if (!to->count) {
        if (work.sum_count == SUMS_FULL) {
            work.lost++;
            return;
        }
        work.sum_count++;
        *to = *s;
        return;
    }
    to->ns += s->ns;
    to->count += s->count;
}

static uint64_t wide_at(const uint8_t *record, size_t offset)
{
    uint64_t value;

    memcpy(&value, record + offset, sizeof value);
    return value;
}

static uint32_t word_at(const uint8_t *record, size_t offset)
{
    uint32_t value;

    memcpy(&value, record + offset, sizeof value);
    return value;
}

static void take(const uint8_t *record)
{
    uint32_t kind = word_at(record, 0), number, id;
    uint64_t begin = wide_at(record, CUPTI_BEGIN), end = wide_at(record, CUPTI_END);
    struct sum s = {.count = 1};

    if (kind == CUPTI_KERNEL) {
        if (is_nccl((const char *)(uintptr_t)wide_at(record, CUPTI_KERNEL_NAME)))
            return;
        s.what = CRYSTAL_WORK_KERNEL;
        id = word_at(record, CUPTI_KERNEL_STREAM);
        number = word_at(record, CUPTI_KERNEL_CORRELATION);
    } else {
        id = word_at(record, CUPTI_COPY_STREAM);
        number = word_at(record, kind == CUPTI_PEER_COPY ? CUPTI_PEER_CORRELATION
                                                         : CUPTI_COPY_CORRELATION);
        s.what = kind == CUPTI_MEMSET ? CRYSTAL_WORK_MEMSET
                 : is_own(number)     ? CRYSTAL_WORK_OWN
                                      : CRYSTAL_WORK_COPY;
    }
    if (!record_of(number, &s.record))
        return;
    if (!stream_of(id, &s.stream)) {
        work.unnamed++;
        return;
    }
    s.ns = end > begin ? end - begin : 0; /* both 0: it could not be timed */
    add(&s);
}

static void on_completed(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                         size_t valid_bytes)
{
    uint8_t *record = NULL;
    size_t dropped = 0;

    (void)bytes;
    while (valid_bytes && work.cupti.cuptiActivityGetNextRecord(
                              buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
        (void)pthread_mutex_lock(&work.lock);
        take(record);
        (void)pthread_mutex_unlock(&work.lock);
    }
    if (work.cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) ==
        CUPTI_SUCCESS) {
        (void)pthread_mutex_lock(&work.lock);
        work.dropped += dropped;
        (void)pthread_mutex_unlock(&work.lock);
    }
    free(buffer);
}

static void on_requested(uint8_t **ret_buffer, size_t *ret_bytes,
                         size_t *ret_records_max)
{
    *ret_buffer = aligned_alloc(8, BUFFER_BYTES); /* NULL: CUPTI counts as dropped */
    *ret_bytes = *ret_buffer ? BUFFER_BYTES : 0;
    *ret_records_max = 0;
}

/* --- into the trace --- */

/* Writes down what is known by now. The recorder's lock is not held. */
static void write_sums(void)
{
    struct recorder *r = recorder_get();
    struct crystal_op ops[64];
    uint32_t count = 0;

    (void)pthread_mutex_lock(&work.lock);
    for (uint32_t i = 0; work.sum_count && i < SUMS; i++) {
        struct sum *s = &work.sums[i];

        if (s->count)
            ops[count++] = (struct crystal_op){.kind = CRYSTAL_OP_WORK,
                                               .func = s->what,
                                               .stream = s->stream,
                                               .aux = s->count,
                                               .peer = s->record,
                                               .value = s->ns,
                                               .t_ns = recorder_now_ns(r)};
        work.sum_count -= s->count != 0;
        s->count = 0;
        if (count == 64 || (count && !work.sum_count)) {
            (void)pthread_mutex_unlock(&work.lock);
            recorder_append_all(r, ops, count);
            (void)pthread_mutex_lock(&work.lock);
            count = 0;
        }
    }
    (void)pthread_mutex_unlock(&work.lock);
}

static void say_what_is_missing(void)
{
    const uint64_t missing = work.lost + work.dropped;

    if (missing)
        crystal_log(CRYSTAL_LOG_WARNING, "work",
                    "recording without %" PRIu64
                    " kernels and copies, for want of room",
                    missing);
    if (work.unnamed)
        crystal_log(CRYSTAL_LOG_DEBUG, "work",
                    "%" PRIu64
                    " kernels and copies were in streams that no record names",
                    work.unnamed);
}

static void on_flush(int is_last)
{
    if (!atomic_load_explicit(&work.is_on, memory_order_acquire))
        return;
    if (is_last && !work.is_shared)
        (void)cuda_api_get()->cudaDeviceSynchronize(); /* its failure is known */
    (void)work.cupti.cuptiActivityFlushAll(is_last ? CUPTI_FLUSH_FORCED : 0);
    write_sums();
    if (!is_last)
        return;
    atomic_store_explicit(&work.is_on, 0, memory_order_release);
    say_what_is_missing();
}

/* Before CUDA's own end, which was registered earlier. */
static void at_exit(void)
{
    on_flush(1);
}

/* --- the start --- */

void work_stream(void *handle, uint16_t index)
{
    void *context = NULL;
    uint32_t id;

    if (!atomic_load_explicit(&work.is_on, memory_order_acquire) ||
        work.cupti.cuCtxGetCurrent(&context) || !context ||
        work.cupti.cuptiGetStreamIdEx(context, handle, 0, &id))
        return;
    (void)pthread_mutex_lock(&work.lock);
    if (work.stream_count < STREAMS) {
        work.streams[work.stream_count].id = id;
        work.streams[work.stream_count++].index = index;
    }
    (void)pthread_mutex_unlock(&work.lock);
}

static int subscribe(struct crystal_error *err)
{
    static const int kinds[] = {CUPTI_KERNEL, CUPTI_MEMCPY, CUPTI_MEMSET,
                                CUPTI_PEER_COPY};
    const struct cupti_api *cupti = &work.cupti;
    int code = cupti->cuptiSubscribe(&work.subscriber, on_call, NULL);
    uint32_t first;

    if (code == CUPTI_IN_USE)
        return crystal_error_set(err, EBUSY, "a profiler has CUPTI already");
    if (!code)
        code = cupti->cuptiEnableCallback(1, work.subscriber, CUPTI_DOMAIN_DRIVER,
                                          CUPTI_DRIVER_VERSION);
    if (!code)
        code = cupti->cuptiActivityRegisterCallbacks(on_requested, on_completed);
    for (size_t i = 0; !code && i < sizeof kinds / sizeof kinds[0]; i++)
        code = cupti->cuptiActivityEnable(kinds[i]);
    first = code ? 0 : number_now();
    if (!code && (!first || number_now() <= first))
        return crystal_error_set(err, ENOTSUP, "CUPTI tells no numbers of calls");
    return code ? crystal_error_set(err, EIO, "CUPTI refuses, error %d", code) : 0;
}

static void start(void)
{
    struct recorder *r = recorder_get();
    const char *off = getenv(CRYSTAL_ENV_CUPTI);
    struct crystal_error err = {0};
    int code;

    if (!r->trace || (off && strcmp(off, "off") == 0))
        return;
    work.marks = calloc(MARKS, sizeof *work.marks);
    work.own = calloc(OWN, sizeof *work.own);
    work.sums = calloc(SUMS, sizeof *work.sums);
    code = work.marks && work.own && work.sums
               ? 0
               : crystal_error_set(&err, ENOMEM, "out of memory");
    if (!code)
        code = cupti_api_open(&work.cupti, &err);
    if (!code)
        code = subscribe(&err);
    if (code) {
        if (code != -ENODEV) /* else there is no such work */
            crystal_log(CRYSTAL_LOG_WARNING, "work",
                        "%s, recording without the work of the GPU", err.text);
        if (work.subscriber)
            (void)work.cupti.cuptiUnsubscribe(work.subscriber); /* nothing to tell */
        return;
    }
    atomic_store_explicit(&work.is_on, 1, memory_order_release);
    work_stream(NULL, 0);
    recorder_hooks(r, on_issue, on_flush);
    (void)atexit(at_exit); /* else the destructor flushes, maybe too late */
}

void work_start(int is_shared)
{
    work.is_shared = is_shared;
    (void)pthread_once(&work_once, start); /* valid arguments */
}
