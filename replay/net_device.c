/* Copies to and from a GPU. See net_device.h. A lane is a stream with a word in host
 * memory, which the stream sets to the number of the last copy that it has done: asking
 * for it is a load. The word is written once for all copies since the last time, when
 * somebody asks for one of them.
 */
#include "config.h"

#include "replay/net_device.h"

#include "replay/cuda_driver.h"
#include "runtime/env.h"
#include "runtime/log.h"
#include "runtime/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PINS_MOST 4096U
/* Fewer bytes to the GPU the driver does not leave to a copy engine but writes with a
 * command of the context, which waits its turn beside a kernel of another context: 2.7
 * ms in place of 7 us. Two rows of a rectangle go to the engine (measured on an H200,
 * driver 580). */
#define ENGINE_BYTES 32768U
#define STACK_BYTES  256U /* of a context that runs no kernels: as little as can be */
#define HEAP_BYTES   65536U

enum { LANE_PUT = 0, LANE_FETCH, LANES };

struct lane {
    pthread_mutex_t lock; /* everything below and the order on the stream */
    cu_stream stream;
    uint32_t issued, marked;  /* copies, and those whose end the stream will tell */
    volatile uint32_t *ended; /* written by the GPU */
};

/* Memory that is to be made known to the GPU, or is. */
struct pin {
    void *memory; /* NULL: not any more */
    uint64_t bytes;
};

struct crystal_device {
    struct cu_driver cu;
    int number; /* CUDA's */
    cu_context context;
    struct lane lanes[LANES];
    struct crystal_rooms *rooms;
    /* memory that a thread makes known to the GPU; under pin_lock */
    pthread_mutex_t pin_lock;
    pthread_cond_t pin_news, pin_done;
    struct pin pins[PINS_MOST];
    unsigned pin_head, pin_tail;
    void *pinning; /* what the thread is at */
    uint64_t pinned_bytes, pinned_bytes_max;
    int is_limit_told;
};

/* The process's; set once. */
static struct {
    pthread_mutex_t lock;
    struct crystal_device *device;
} self = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int cu_error(const struct cu_driver *cu, cu_result result, const char *what,
                    struct crystal_error *err)
{
    const char *name = NULL;

    if (!result)
        return 0;
    (void)cu->error_name(result, &name);
    return crystal_error_set(err, EIO, "buffers on a GPU: %s: %s", what,
                             name ? name : "unknown error");
}

/* --- memory --- */

/* Until this thread has come to it the driver copies such memory through its own. */
static void *pin_main(void *argument)
{
    struct crystal_device *d = argument;

    if (d->cu.ctx_push(d->context)) {
        crystal_log(CRYSTAL_LOG_WARNING, "net",
                    "buffers on a GPU: cannot pin host memory, copying more slowly");
        return NULL;
    }
    (void)pthread_mutex_lock(&d->pin_lock);
    for (;;) {
        struct pin pin;

        while (d->pin_tail == d->pin_head)
            (void)pthread_cond_wait(&d->pin_news, &d->pin_lock);
        pin = d->pins[d->pin_tail++ % PINS_MOST];
        if (!pin.memory)
            continue;
        d->pinning = pin.memory;
        (void)pthread_mutex_unlock(&d->pin_lock);
        (void)d->cu.host_register(pin.memory, pin.bytes, CU_HOST_PORTABLE);
        (void)pthread_mutex_lock(&d->pin_lock);
        d->pinning = NULL;
        (void)pthread_cond_broadcast(&d->pin_done);
    }
    return NULL;
}

/* With the lock held: what does not fit into limits.pinned_bytes stays slower. */
static int may_pin(struct crystal_device *d, uint64_t bytes)
{
    if (d->pinned_bytes + bytes <= d->pinned_bytes_max)
        return d->pin_head - d->pin_tail < PINS_MOST;
    if (!d->is_limit_told)
        crystal_log(CRYSTAL_LOG_WARNING, "net",
                    "buffers on a GPU: this rank may lock no more than %" PRIu64
                    " bytes of host memory (limits.pinned_bytes), copying more slowly",
                    d->pinned_bytes_max);
    d->is_limit_told = 1;
    return 0;
}

int crystal_device_pin(struct crystal_device *d, void *memory, uint64_t bytes)
{
    int is_taken;

    (void)pthread_mutex_lock(&d->pin_lock);
    is_taken = may_pin(d, bytes);
    if (is_taken) {
        d->pins[d->pin_head++ % PINS_MOST] = (struct pin){memory, bytes};
        d->pinned_bytes += bytes;
        (void)pthread_cond_signal(&d->pin_news);
    }
    (void)pthread_mutex_unlock(&d->pin_lock);
    return is_taken;
}

void crystal_device_unpin(struct crystal_device *d, void *memory, uint64_t bytes)
{
    cu_context old;

    (void)pthread_mutex_lock(&d->pin_lock);
    for (unsigned i = d->pin_tail; i != d->pin_head; i++)
        if (d->pins[i % PINS_MOST].memory == memory)
            d->pins[i % PINS_MOST].memory = NULL;
    while (d->pinning == memory)
        (void)pthread_cond_wait(&d->pin_done, &d->pin_lock);
    d->pinned_bytes -= bytes;
    (void)pthread_mutex_unlock(&d->pin_lock);
    if (d->cu.ctx_push(d->context))
        return;
    (void)d->cu.host_unregister(memory); /* it may not be known at all */
    (void)d->cu.ctx_pop(&old);
}

static void on_memory(void *user, void *memory, uint64_t bytes)
{
    (void)crystal_device_pin(user, memory, bytes); /* else it is slower */
}

static int pin_start(struct crystal_device *d, struct crystal_error *err)
{
    int code;

    (void)pthread_mutex_init(&d->pin_lock, NULL); /* cannot fail on Linux */
    (void)pthread_cond_init(&d->pin_news, NULL);
    (void)pthread_cond_init(&d->pin_done, NULL);
    d->rooms = crystal_rooms_create(on_memory, d);
    if (!d->rooms)
        return crystal_error_set(err, ENOMEM, "out of memory for buffers on a GPU");
    code = crystal_thread_start(NULL, pin_main, d);
    if (code)
        return crystal_error_set(err, code, "cannot start a thread: %s",
                                 strerror(code));
    return 0;
}

struct crystal_rooms *crystal_device_rooms(struct crystal_device *d)
{
    return d->rooms;
}

/* --- the device --- */

/* In the new context. */
static int lanes_init(struct crystal_device *d, struct crystal_error *err)
{
    void *words = NULL;
    int code = cu_error(&d->cu, d->cu.host_alloc(&words, 4096, CU_HOST_PORTABLE),
                        "cuMemHostAlloc", err);

    for (unsigned i = 0; i < LANES && !code; i++) {
        (void)pthread_mutex_init(&d->lanes[i].lock, NULL);
        d->lanes[i].ended = (volatile uint32_t *)words + (size_t)64 * i;
        *d->lanes[i].ended = 0;
        code = cu_error(
            &d->cu,
            d->cu.stream_create(&d->lanes[i].stream, CU_STREAM_NON_BLOCKING_FLAG),
            "cuStreamCreate", err);
    }
    return code;
}

static int device_init(struct crystal_device *d, struct crystal_error *err)
{
    cu_context old;
    int code = cu_error(&d->cu, d->cu.ctx_create(&d->context, 0, d->number),
                        "cuCtxCreate", err); /* and makes it this thread's */

    if (code)
        return code;
    (void)d->cu.ctx_limit(CU_LIMIT_STACK, STACK_BYTES); /* only saves memory */
    (void)d->cu.ctx_limit(CU_LIMIT_HEAP, HEAP_BYTES);
    (void)d->cu.ctx_limit(CU_LIMIT_PRINTF, HEAP_BYTES);
    code = lanes_init(d, err);
    (void)d->cu.ctx_pop(&old);
    return code ? code : pin_start(d, err);
}

static struct crystal_device *device_make(int number, const struct cu_driver *cu,
                                          struct crystal_error *err)
{
    struct crystal_device *d = calloc(1, sizeof *d);
    const char *most;

    if (!d) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for buffers on a GPU");
        return NULL;
    }
    d->cu = *cu;
    d->number = number;
    most = getenv(CRYSTAL_ENV_PINNED);
    d->pinned_bytes_max = most ? strtoull(most, NULL, 10) : UINT64_MAX;
    if (device_init(d, err)) {
        free(d);
        return NULL;
    }
    return d;
}

static struct crystal_device *device_find(struct crystal_error *err)
{
    struct cu_driver cu;
    cu_context current = NULL;
    int number = 0;

    if (cu_driver_open(&cu, err) ||
        cu_error(&cu, cu.ctx_current(&current), "cuCtxGetCurrent", err))
        return NULL;
    if (!current) {
        (void)crystal_error_set(err, EINVAL,
                                "buffers on a GPU: the calling thread has no context");
        return NULL;
    }
    if (cu_error(&cu, cu.ctx_device(&number), "cuCtxGetDevice", err))
        return NULL;
    if (!self.device)
        self.device = device_make(number, &cu, err);
    else if (self.device->number != number) {
        (void)crystal_error_set(err, ENOTSUP,
                                "buffers on GPUs %d and %d: one process uses one GPU; "
                                "start a process for each or unset CRYSTAL_BUFFERS",
                                self.device->number, number);
        return NULL;
    }
    return self.device;
}

struct crystal_device *crystal_device_get(struct crystal_error *err)
{
    struct crystal_device *device;

    (void)pthread_mutex_lock(&self.lock);
    device = device_find(err);
    (void)pthread_mutex_unlock(&self.lock);
    return device;
}

int crystal_device_check(struct crystal_device *d, const void *buffer,
                         struct crystal_error *err)
{
    uint64_t handle = 0;

    if (d->cu.memory_retain(&handle, (void *)(uintptr_t)buffer))
        return crystal_error_set(
            err, ENOTSUP,
            "buffers on a GPU: NCCL's are not of cuMemCreate, so that copies to them "
            "could wait for the program's cudaFree; unset NCCL_CUMEM_ENABLE or "
            "CRYSTAL_BUFFERS");
    (void)d->cu.memory_release(handle);
    return 0;
}

/* --- copies --- */

/* Numbers of copies go round; no two that are asked for are 2^31 apart. */
static int is_behind(uint32_t number, uint32_t of)
{
    return (int32_t)(number - of) < 0;
}

static uint64_t ticket_of(unsigned lane, uint32_t number)
{
    return (uint64_t)lane << 32 | number;
}

/* Around calls of a lane: its lock and our context. */
static int lane_enter(struct crystal_device *d, unsigned lane,
                      struct crystal_error *err)
{
    int code;

    (void)pthread_mutex_lock(&d->lanes[lane].lock);
    code = cu_error(&d->cu, d->cu.ctx_push(d->context), "cuCtxPushCurrent", err);
    if (code)
        (void)pthread_mutex_unlock(&d->lanes[lane].lock);
    return code;
}

static void lane_leave(struct crystal_device *d, unsigned lane)
{
    cu_context old;

    (void)d->cu.ctx_pop(&old);
    (void)pthread_mutex_unlock(&d->lanes[lane].lock);
}

/* Rows of `width` bytes that stand together at `from`. */
static int put_rows(struct crystal_device *d, void *buffer, uint64_t pitch,
                    const void *from, uint64_t width, uint64_t rows,
                    uint64_t *ret_ticket, struct crystal_error *err)
{
    const struct cu_copy2d copy = {.from_type = CU_MEMORY_HOST,
                                   .from_host = from,
                                   .from_pitch = width,
                                   .to_type = CU_MEMORY_DEVICE,
                                   .to_device = (cu_pointer)(uintptr_t)buffer,
                                   .to_pitch = pitch,
                                   .width_bytes = width,
                                   .height = rows};
    struct lane *lane = &d->lanes[LANE_PUT];
    int code = lane_enter(d, LANE_PUT, err);

    if (code)
        return code;
    code = cu_error(&d->cu, d->cu.copy2d(&copy, lane->stream), "cuMemcpy2DAsync", err);
    *ret_ticket = ticket_of(LANE_PUT, ++lane->issued);
    lane_leave(d, LANE_PUT);
    return code;
}

int crystal_device_put(struct crystal_device *d, void *buffer, const void *from,
                       uint64_t bytes, uint64_t *ret_ticket, struct crystal_error *err)
{
    struct lane *lane = &d->lanes[LANE_PUT];
    int code;

    if (bytes < ENGINE_BYTES)
        return put_rows(d, buffer, (bytes + 1) / 2, from, (bytes + 1) / 2, 2,
                        ret_ticket, err);
    code = lane_enter(d, LANE_PUT, err);
    if (code)
        return code;
    code = cu_error(&d->cu,
                    d->cu.put((cu_pointer)(uintptr_t)buffer, from, bytes, lane->stream),
                    "cuMemcpyHtoDAsync", err);
    *ret_ticket = ticket_of(LANE_PUT, ++lane->issued);
    lane_leave(d, LANE_PUT);
    return code;
}

int crystal_device_fetch(struct crystal_device *d, void *to, const void *buffer,
                         uint64_t bytes, uint64_t *ret_ticket,
                         struct crystal_error *err)
{
    struct lane *lane = &d->lanes[LANE_FETCH];
    int code = lane_enter(d, LANE_FETCH, err);

    if (code)
        return code;
    code = cu_error(&d->cu,
                    d->cu.fetch(to, (cu_pointer)(uintptr_t)buffer, bytes, lane->stream),
                    "cuMemcpyDtoHAsync", err);
    *ret_ticket = ticket_of(LANE_FETCH, ++lane->issued);
    lane_leave(d, LANE_FETCH);
    return code;
}

int crystal_device_put_words(struct crystal_device *d, void *buffer, uint64_t pitch,
                             const void *from, uint64_t words, uint64_t *ret_ticket,
                             struct crystal_error *err)
{
    return put_rows(d, buffer, pitch, from, 8, words, ret_ticket, err);
}

/* Lets the stream tell when it has done all that was issued. */
static int lane_mark(struct crystal_device *d, unsigned number,
                     struct crystal_error *err)
{
    struct lane *lane = &d->lanes[number];
    int code = lane_enter(d, number, err);

    if (code)
        return code;
    if (lane->marked != lane->issued)
        code = cu_error(&d->cu,
                        d->cu.write32(lane->stream, (cu_pointer)(uintptr_t)lane->ended,
                                      lane->issued, 0),
                        "cuStreamWriteValue32", err);
    lane->marked = lane->issued;
    lane_leave(d, number);
    return code;
}

int crystal_device_is_done(struct crystal_device *d, uint64_t ticket,
                           struct crystal_error *err)
{
    const unsigned number = (unsigned)(ticket >> 32);
    struct lane *lane = &d->lanes[number];
    const uint32_t copy = (uint32_t)ticket;
    int is_marked, code;

    if (!is_behind(*lane->ended, copy)) {
        atomic_thread_fence(memory_order_acquire);
        return 1;
    }
    (void)pthread_mutex_lock(&lane->lock);
    is_marked = !is_behind(lane->marked, copy);
    (void)pthread_mutex_unlock(&lane->lock);
    code = is_marked ? 0 : lane_mark(d, number, err);
    return code;
}
