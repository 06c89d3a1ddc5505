/* CUDA's runtime on host memory, with streams that run behind the host: each is a
 * thread that takes one piece of work after the other, and waits a moment before each
 * (FAKE_CUDA_DELAY_US, default 200), so that whoever does not keep the order of a
 * stream reads old values. Work is copies and host functions, which stand for kernels.
 * The function FAKE_CUDA_FAIL=NAME:N names fails at its Nth call and later. As much of
 * cuda_runtime_api.h as capture and tests/programs/cudaprog.c use.
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT    __attribute__((visibility("default")))
#define FAILED    999 /* cudaErrorUnknown */
#define NOT_READY 600

typedef struct event event;

struct work {
    struct work *next;
    enum { COPY, FUNCTION, RECORD, WAIT } kind;
    void *to;
    const void *from;
    size_t bytes;
    void (*function)(void *);
    void *data;
    event *event;
    unsigned long number; /* of the record that is made or waited for */
};

typedef struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct work *first, **last;
    unsigned long issued, done;
} stream;

struct event {
    event *next; /* of those that are destroyed */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned long issued, done; /* records */
    double done_ms;             /* when the last one was made */
};

static stream null_stream;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static long delay_us = 200;

static double now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Whether this call is to fail. */
static int fails(const char *name, unsigned *count)
{
    const char *rule = getenv("FAKE_CUDA_FAIL");
    size_t bytes = strlen(name);

    return rule && strncmp(rule, name, bytes) == 0 && rule[bytes] == ':' &&
           __atomic_add_fetch(count, 1, __ATOMIC_RELAXED) >=
               strtoul(rule + bytes + 1, NULL, 10);
}

#define MAY_FAIL                      \
    do {                              \
        static unsigned count_;       \
                                      \
        if (fails(__func__, &count_)) \
            return FAILED;            \
    } while (0)

static void perform(struct work *w)
{
    const struct timespec pause = {delay_us / 1000000, delay_us % 1000000 * 1000};

    (void)nanosleep(&pause, NULL);
    if (w->kind == COPY)
        memcpy(w->to, w->from, w->bytes);
    else if (w->kind == FUNCTION)
        w->function(w->data);
    if (!w->event)
        return;
    (void)pthread_mutex_lock(&w->event->lock);
    if (w->kind == RECORD && w->event->done < w->number) {
        w->event->done = w->number;
        w->event->done_ms = now_ms();
    }
    (void)pthread_cond_broadcast(&w->event->changed);
    while (w->kind == WAIT && w->event->done < w->number)
        (void)pthread_cond_wait(&w->event->changed, &w->event->lock);
    (void)pthread_mutex_unlock(&w->event->lock);
}

static void *stream_main(void *argument)
{
    stream *s = argument;

    for (;;) {
        struct work *w;

        (void)pthread_mutex_lock(&s->lock);
        while (!s->first)
            (void)pthread_cond_wait(&s->changed, &s->lock);
        w = s->first;
        s->first = w->next;
        if (!s->first)
            s->last = &s->first;
        (void)pthread_mutex_unlock(&s->lock);
        perform(w);
        free(w);
        (void)pthread_mutex_lock(&s->lock);
        s->done++;
        (void)pthread_cond_broadcast(&s->changed);
        (void)pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static void stream_start(stream *s)
{
    pthread_t thread;

    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    if (pthread_create(&thread, NULL, stream_main, s) != 0)
        abort();
    (void)pthread_detach(thread);
}

static void start(void)
{
    const char *delay = getenv("FAKE_CUDA_DELAY_US");

    if (delay)
        delay_us = strtol(delay, NULL, 10);
    stream_start(&null_stream);
}

static stream *stream_of(stream *s)
{
    (void)pthread_once(&once, start);
    return s ? s : &null_stream;
}

static int put(stream *handle, struct work work)
{
    struct work *w = malloc(sizeof *w);
    stream *s = stream_of(handle);

    if (!w)
        return FAILED;
    *w = work;
    (void)pthread_mutex_lock(&s->lock);
    *s->last = w;
    s->last = &w->next;
    s->issued++;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    return 0;
}

/* --- devices and memory --- */

EXPORT int cudaGetDeviceCount(int *ret);
int cudaGetDeviceCount(int *ret)
{
    *ret = 1;
    return 0;
}

EXPORT int cudaGetDevice(int *ret);
int cudaGetDevice(int *ret)
{
    *ret = 0;
    return 0;
}

EXPORT int cudaSetDevice(int gpu);
int cudaSetDevice(int gpu)
{
    return gpu ? FAILED : 0;
}

EXPORT int cudaMalloc(void **ret, size_t bytes);
int cudaMalloc(void **ret, size_t bytes)
{
    MAY_FAIL;
    *ret = malloc(bytes ? bytes : 1);
    return *ret ? 0 : FAILED;
}

EXPORT int cudaHostAlloc(void **ret, size_t bytes, unsigned flags);
int cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
    (void)flags;
    MAY_FAIL;
    *ret = malloc(bytes ? bytes : 1);
    return *ret ? 0 : FAILED;
}

EXPORT int cudaFree(void *memory);
int cudaFree(void *memory)
{
    free(memory);
    return 0;
}

EXPORT const char *cudaGetErrorString(int code);
const char *cudaGetErrorString(int code)
{
    return code == FAILED ? "unknown error" : "an error";
}

/* --- work --- */

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *s);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *s)
{
    (void)kind;
    MAY_FAIL;
    return put(s, (struct work){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}

EXPORT int cudaLaunchHostFunc(void *s, void (*function)(void *), void *data);
int cudaLaunchHostFunc(void *s, void (*function)(void *), void *data)
{
    return put(s, (struct work){.kind = FUNCTION, .function = function, .data = data});
}

/* --- streams --- */

EXPORT int cudaStreamCreateWithFlags(void **ret, unsigned flags);
int cudaStreamCreateWithFlags(void **ret, unsigned flags)
{
    stream *s = calloc(1, sizeof *s);

    (void)flags;
    if (!s)
        return FAILED;
    stream_start(s);
    *ret = s;
    return 0;
}

/* Nothing is captured here. */
EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode);
int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    *mode = 0;
    return 0;
}

EXPORT int cudaStreamDestroy(void *s);
int cudaStreamDestroy(void *s)
{
    (void)s; /* its thread waits for the end of the process */
    return 0;
}

EXPORT int cudaStreamSynchronize(void *handle);
int cudaStreamSynchronize(void *handle)
{
    stream *s = stream_of(handle);
    unsigned long end;

    (void)pthread_mutex_lock(&s->lock);
    end = s->issued;
    while (s->done < end)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
    return 0;
}

EXPORT int cudaStreamQuery(void *handle);
int cudaStreamQuery(void *handle)
{
    stream *s = stream_of(handle);
    int result;

    (void)pthread_mutex_lock(&s->lock);
    result = s->done < s->issued ? NOT_READY : 0;
    (void)pthread_mutex_unlock(&s->lock);
    return result;
}

EXPORT int cudaStreamIsCapturing(void *s, int *ret);
int cudaStreamIsCapturing(void *s, int *ret)
{
    (void)s;
    *ret = getenv("FAKE_CUDA_CAPTURES") != NULL;
    return 0;
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    int result = cudaMemcpyAsync(to, from, bytes, kind, NULL);

    return result ? result : cudaStreamSynchronize(NULL);
}

EXPORT int cudaMemset(void *to, int value, size_t bytes);
int cudaMemset(void *to, int value, size_t bytes)
{
    (void)cudaStreamSynchronize(NULL);
    memset(to, value, bytes);
    return 0;
}

/* Of the null stream alone: a program here waits for the others by name. */
EXPORT int cudaDeviceSynchronize(void);
int cudaDeviceSynchronize(void)
{
    return cudaStreamSynchronize(NULL);
}

/* --- events --- */

EXPORT int cudaEventCreateWithFlags(void **ret, unsigned flags);
int cudaEventCreateWithFlags(void **ret, unsigned flags)
{
    event *e = calloc(1, sizeof *e);

    (void)flags;
    if (!e)
        return FAILED;
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->changed, NULL);
    *ret = e;
    return 0;
}

/* Events stay, since a stream may still have one in its queue. */
EXPORT int cudaEventDestroy(void *handle);
int cudaEventDestroy(void *handle)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static event *destroyed;
    event *e = handle;

    (void)pthread_mutex_lock(&lock);
    e->next = destroyed;
    destroyed = e;
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cudaEventRecord(void *handle, void *s);
int cudaEventRecord(void *handle, void *s)
{
    event *e = handle;
    unsigned long number;

    MAY_FAIL;
    (void)pthread_mutex_lock(&e->lock);
    number = ++e->issued;
    (void)pthread_mutex_unlock(&e->lock);
    return put(s, (struct work){.kind = RECORD, .event = e, .number = number});
}

EXPORT int cudaEventRecordWithFlags(void *e, void *s, unsigned flags);
int cudaEventRecordWithFlags(void *e, void *s, unsigned flags)
{
    (void)flags;
    return cudaEventRecord(e, s);
}

EXPORT int cudaStreamWaitEvent(void *s, void *handle, unsigned flags);
int cudaStreamWaitEvent(void *s, void *handle, unsigned flags)
{
    event *e = handle;
    unsigned long number;

    (void)flags;
    (void)pthread_mutex_lock(&e->lock);
    number = e->issued;
    (void)pthread_mutex_unlock(&e->lock);
    return put(s, (struct work){.kind = WAIT, .event = e, .number = number});
}

EXPORT int cudaEventQuery(void *handle);
int cudaEventQuery(void *handle)
{
    event *e = handle;
    int result;

    (void)pthread_mutex_lock(&e->lock);
    result = e->done < e->issued ? NOT_READY : 0;
    (void)pthread_mutex_unlock(&e->lock);
    return result;
}

EXPORT int cudaEventElapsedTime(float *ret_ms, void *from, void *to);
int cudaEventElapsedTime(float *ret_ms, void *from, void *to)
{
    event *a = from, *b = to;
    int is_done;
    double
        ms; /* as floats, times since the machine's start are good to a millisecond */

    (void)pthread_mutex_lock(&a->lock);
    ms = -a->done_ms;
    is_done = a->done == a->issued;
    (void)pthread_mutex_unlock(&a->lock);
    (void)pthread_mutex_lock(&b->lock);
    *ret_ms = (float)(b->done_ms + ms);
    is_done = is_done && b->done == b->issued;
    (void)pthread_mutex_unlock(&b->lock);
    return is_done ? 0 : NOT_READY;
}

EXPORT int cudaEventSynchronize(void *handle);
int cudaEventSynchronize(void *handle)
{
    event *e = handle;
    unsigned long end;

    (void)pthread_mutex_lock(&e->lock);
    end = e->issued;
    while (e->done < end)
        (void)pthread_cond_wait(&e->changed, &e->lock);
    (void)pthread_mutex_unlock(&e->lock);
    return 0;
}
