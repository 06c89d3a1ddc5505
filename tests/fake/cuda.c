/* A GPU for tests of replay/net_device.c: "device memory" is this process's own, and a
 * stream does its copies in its own thread, each FAKE_CUDA_DELAY_US (default 50) after
 * the one before. So a buffer that is used again too early, or a copy that is taken for
 * done too early, shows in the bytes. What CUDA would refuse is refused: calls without
 * a context of our making, memory that is not of cuMemCreate where FAKE_CUDA_FOREIGN is
 * set. fake_cuda_copies() counts copies and their bytes.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef int result;
enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201 };

struct copy2d {
    size_t from_x, from_y;
    unsigned from_type;
    const void *from_host;
    uint64_t from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_type;
    void *to_host;
    uint64_t to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
};

struct work {
    struct work *next;
    void *to;
    const void *from;
    size_t width, height, to_pitch, from_pitch;
    uint32_t value; /* from NULL: this word */
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct work *first, **last;
};

static char program_context, own_context;
static __thread void *current = &program_context;
static __thread void *stack[8];
static __thread unsigned depth;
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t copies, copied_bytes;

EXPORT uint64_t fake_cuda_copies(uint64_t *ret_bytes);
uint64_t fake_cuda_copies(uint64_t *ret_bytes)
{
    uint64_t count;

    (void)pthread_mutex_lock(&count_lock);
    count = copies;
    *ret_bytes = copied_bytes;
    (void)pthread_mutex_unlock(&count_lock);
    return count;
}

static void *stream_main(void *argument)
{
    const char *delay = getenv("FAKE_CUDA_DELAY_US");
    const useconds_t us = delay ? (useconds_t)atoi(delay) : 50;
    struct stream *s = argument;

    for (;;) {
        struct work *w;

        (void)pthread_mutex_lock(&s->lock);
        while (!s->first)
            (void)pthread_cond_wait(&s->news, &s->lock);
        w = s->first;
        s->first = w->next;
        if (!s->first)
            s->last = &s->first;
        (void)pthread_mutex_unlock(&s->lock);
        if (w->from)
            (void)usleep(us);
        for (size_t i = 0; i < w->height && w->from; i++)
            memcpy((char *)w->to + i * w->to_pitch,
                   (const char *)w->from + i * w->from_pitch, w->width);
        if (!w->from)
            __atomic_store_n((uint32_t *)w->to, w->value, __ATOMIC_RELEASE);
        free(w);
    }
    return NULL;
}

static result submit(void *stream, struct work work)
{
    struct stream *s = stream;
    struct work *w;

    if (current != &own_context)
        return INVALID_CONTEXT; /* a copy in the program's own could wait for ever */
    w = malloc(sizeof *w);
    if (!w)
        return INVALID_VALUE;
    *w = work;
    w->next = NULL;
    if (work.from) {
        (void)pthread_mutex_lock(&count_lock);
        copies++;
        copied_bytes += work.width * work.height;
        (void)pthread_mutex_unlock(&count_lock);
    }
    (void)pthread_mutex_lock(&s->lock);
    *s->last = w;
    s->last = &w->next;
    (void)pthread_cond_signal(&s->news);
    (void)pthread_mutex_unlock(&s->lock);
    return OK;
}

EXPORT result cuCtxGetCurrent(void **context);
result cuCtxGetCurrent(void **context)
{
    *context = current;
    return OK;
}

EXPORT result cuCtxGetDevice(int *device);
result cuCtxGetDevice(int *device)
{
    *device = 0;
    return OK;
}

EXPORT result cuCtxPushCurrent_v2(void *context);
result cuCtxPushCurrent_v2(void *context)
{
    if (depth == sizeof stack / sizeof stack[0])
        return INVALID_VALUE;
    stack[depth++] = current;
    current = context;
    return OK;
}

EXPORT result cuCtxPopCurrent_v2(void **context);
result cuCtxPopCurrent_v2(void **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    *context = current;
    current = stack[--depth];
    return OK;
}

EXPORT result cuCtxCreate_v2(void **context, unsigned flags, int device);
result cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    (void)flags;
    (void)device;
    *context = &own_context;
    return cuCtxPushCurrent_v2(&own_context);
}

EXPORT result cuCtxSetLimit(int limit, size_t value);
result cuCtxSetLimit(int limit, size_t value)
{
    (void)limit;
    (void)value;
    return OK;
}

EXPORT result cuStreamCreate(void **stream, unsigned flags);
result cuStreamCreate(void **stream, unsigned flags)
{
    struct stream *s = calloc(1, sizeof *s);
    pthread_t thread;

    (void)flags;
    if (!s)
        return INVALID_VALUE;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->news, NULL);
    s->last = &s->first;
    if (pthread_create(&thread, NULL, stream_main, s))
        return INVALID_VALUE;
    (void)pthread_detach(thread);
    *stream = s;
    return OK;
}

EXPORT result cuMemHostAlloc(void **memory, size_t bytes, unsigned flags);
result cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory = calloc(1, bytes);
    return *memory ? OK : INVALID_VALUE;
}

EXPORT result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    (void)memory;
    (void)flags;
    return bytes ? OK : INVALID_VALUE;
}

EXPORT result cuMemHostUnregister(void *memory);
result cuMemHostUnregister(void *memory)
{
    return memory ? OK : INVALID_VALUE;
}

EXPORT result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes,
                                   void *stream);
result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    return submit(stream, (struct work){.to = (void *)(uintptr_t)to,
                                        .from = from,
                                        .width = bytes,
                                        .height = 1});
}

EXPORT result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    return submit(stream, (struct work){.to = to,
                                        .from = (const void *)(uintptr_t)from,
                                        .width = bytes,
                                        .height = 1});
}

EXPORT result cuMemcpy2DAsync_v2(const struct copy2d *c, void *stream);
result cuMemcpy2DAsync_v2(const struct copy2d *c, void *stream)
{
    if (c->from_type != 1 || c->to_type != 2 || c->width > c->to_pitch || !c->height)
        return INVALID_VALUE;
    return submit(stream, (struct work){.to = (void *)(uintptr_t)c->to_device,
                                        .from = c->from_host,
                                        .width = c->width,
                                        .height = c->height,
                                        .to_pitch = c->to_pitch,
                                        .from_pitch = c->from_pitch});
}

EXPORT result cuStreamWriteValue32_v2(void *stream, uint64_t to, uint32_t value,
                                      unsigned flags);
result cuStreamWriteValue32_v2(void *stream, uint64_t to, uint32_t value,
                               unsigned flags)
{
    (void)flags;
    return submit(stream, (struct work){.to = (void *)(uintptr_t)to, .value = value});
}

EXPORT result cuMemRetainAllocationHandle(uint64_t *handle, void *pointer);
result cuMemRetainAllocationHandle(uint64_t *handle, void *pointer)
{
    *handle = (uintptr_t)pointer;
    return getenv("FAKE_CUDA_FOREIGN") ? INVALID_VALUE : OK;
}

EXPORT result cuMemRelease(uint64_t handle);
result cuMemRelease(uint64_t handle)
{
    return handle ? OK : INVALID_VALUE;
}

EXPORT result cuGetErrorName(result error, const char **name);
result cuGetErrorName(result error, const char **name)
{
    *name = error == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
                                     : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
