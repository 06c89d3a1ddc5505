/* See cuda_stage.h. A buffer serves both ways of one operation: the coordinator has all
 * of what is sent before it answers. Its event says when the device's last copy from or
 * to it has been made.
 */
#include "config.h"

#include "capture/cuda_stage.h"

#include "capture/cuda_api.h"
#include "capture/park_queue_state.h"
#include "capture/work.h"
#include "runtime/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define ROUND_SMALL ((size_t)64 << 10)
#define ROUND_LARGE ((size_t)2 << 20)
#define WASTE       4 /* a buffer is not used for less than this part of it */

struct buffer {
    struct buffer *next;
    void *host; /* pinned; stays to the end of the process */
    size_t bytes;
    cuda_event_handle used;
};

static struct buffer *idle, *draining; /* under the queue's lock */
static uint64_t pinned_bytes;          /* of all buffers; the same */

struct staged_op {
    struct buffer *buffer; /* owned; NULL: no bytes, or host memory */
    const void *send;      /* on the device */
    void *recv;
};

struct cuda_stage {
    int gpu;
    uint32_t count;
    struct staged_op ops[];
};

static int cuda_fail(struct crystal_error *err, const char *call, int code)
{
    const struct cuda_api *cuda = cuda_api_get();

    return crystal_error_set(err, EIO, "recorder: %s: %s", call,
                             cuda->cudaGetErrorString ? cuda->cudaGetErrorString(code)
                                                      : "it failed");
}

/* A call of the runtime's function of this name; goes out where it fails. */
#define TRY_CALL(name, call)                     \
    do {                                         \
        int code_ = call;                        \
                                                 \
        if (code_) {                             \
            code = cuda_fail(err, #name, code_); \
            goto out;                            \
        }                                        \
    } while (0)
#define TRY(name, ...) TRY_CALL(name, cuda_api_get()->name(__VA_ARGS__))

/* A copy that is no work of the program. */
static int own_copy(void *to, const void *from, size_t bytes, cuda_stream stream)
{
    int code;

    work_own_begin();
    code = cuda_api_get()->cudaMemcpyAsync(to, from, bytes, CUDA_COPY_DEFAULT, stream);
    work_own_end();
    return code;
}

/* --- buffers --- */

static void buffer_free(struct buffer *b)
{
    b->next = idle;
    idle = b;
}

/* What the device has done with is idle. */
static void collect(void)
{
    struct buffer **at = &draining, *b;

    while ((b = *at) != NULL) {
        if (cuda_api_get()->cudaEventQuery(b->used) == CUDA_NOT_READY) {
            at = &b->next;
            continue;
        }
        *at = b->next; /* where the device has failed, later calls say so */
        buffer_free(b);
    }
}

static struct buffer *take_idle(size_t bytes)
{
    struct buffer **best = NULL, *b;

    for (struct buffer **at = &idle; *at; at = &(*at)->next)
        if ((*at)->bytes >= bytes && (!best || (*at)->bytes < (*best)->bytes))
            best = at;
    if (!best || ((*best)->bytes > ROUND_LARGE && (*best)->bytes / WASTE > bytes))
        return NULL;
    b = *best;
    *best = b->next;
    return b;
}

/* This rank's part of limits.pinned_bytes. */
static int may_pin(uint64_t bytes, struct crystal_error *err)
{
    const char *text = getenv(CRYSTAL_ENV_PINNED);
    uint64_t most = text ? strtoull(text, NULL, 10) : UINT64_MAX;

    if (pinned_bytes + bytes <= most)
        return 0;
    return crystal_error_set(err, ENOMEM,
                             "recorder: %" PRIu64 " bytes of host memory for copies to "
                             "and from the GPU are more than the %" PRIu64
                             " that limits.pinned_bytes leaves to each rank of the "
                             "node; raise it or let fewer ranks be live",
                             pinned_bytes + bytes, most);
}

static int buffer_take(size_t bytes, struct buffer **ret, struct crystal_error *err)
{
    size_t step = bytes > ROUND_LARGE ? ROUND_LARGE : ROUND_SMALL;
    struct buffer *b;
    int code = 0;

    collect();
    b = take_idle(bytes);
    if (b) {
        *ret = b;
        return 0;
    }
    b = calloc(1, sizeof *b);
    if (!b)
        return crystal_error_set(err, ENOMEM, "recorder: out of memory");
    b->bytes = (bytes + step - 1) / step * step;
    code = may_pin(b->bytes, err);
    if (code)
        goto out;
    TRY(cudaHostAlloc, &b->host, b->bytes, CUDA_HOST_PORTABLE);
    pinned_bytes += b->bytes;
    TRY(cudaEventCreateWithFlags, &b->used, CUDA_EVENT_NO_TIMING);
    *ret = b;
    b = NULL;
out:
    free(b); /* its pinned memory is lost with the failed device */
    return code;
}

/* --- the calling thread's device --- */

/* Makes gpu the current one; *ret_before is to be set again. */
static int enter(int gpu, int *ret_before, struct crystal_error *err)
{
    int code = 0;

    TRY(cudaGetDevice, ret_before);
    if (*ret_before != gpu)
        TRY(cudaSetDevice, gpu);
out:
    return code;
}

static void leave(int gpu, int before)
{
    if (before != gpu)
        (void)cuda_api_get()->cudaSetDevice(before); /* it was current before */
}

/* --- stages --- */

struct cuda_stage *cuda_stage_create(struct park_item *item)
{
    struct cuda_stage *stage =
        calloc(1, sizeof *stage + item->count * sizeof *stage->ops);

    if (!stage)
        return NULL;
    stage->count = item->count;
    for (uint32_t i = 0; i < item->count; i++) {
        stage->ops[i].send = item->ops[i].client.send;
        stage->ops[i].recv = item->ops[i].client.recv;
        if (item->ops[i].stream->is_device)
            stage->gpu = item->ops[i].stream->gpu;
    }
    return stage;
}

/* Buffers that the device may still be writing or reading. */
void cuda_stage_destroy(struct cuda_stage *stage)
{
    for (uint32_t i = 0; stage && i < stage->count; i++)
        if (stage->ops[i].buffer) {
            stage->ops[i].buffer->next = draining;
            draining = stage->ops[i].buffer;
        }
    free(stage);
}

int cuda_stage_begin(struct cuda_stage *stage, struct park_item *item,
                     struct crystal_error *err)
{
    int before, code = enter(stage->gpu, &before, err);

    if (code)
        return code;
    for (uint32_t i = 0; i < stage->count; i++) {
        struct crystal_client_op *op = &item->ops[i].client;
        const struct park_stream *stream = item->ops[i].stream;
        size_t send_bytes = (size_t)op->op.send_bytes;
        size_t recv_bytes = (size_t)op->op.recv_bytes;
        struct buffer *b = NULL;

        if (!stream->is_device || (!send_bytes && !recv_bytes))
            continue;
        code = buffer_take(send_bytes > recv_bytes ? send_bytes : recv_bytes, &b, err);
        if (code)
            goto out;
        stage->ops[i].buffer = b;
        op->send = op->recv = b->host;
        if (!send_bytes)
            continue;
        TRY_CALL(cudaMemcpyAsync,
                 own_copy(b->host, stage->ops[i].send, send_bytes, stream->handle));
        TRY(cudaEventRecord, b->used, stream->handle);
    }
out:
    leave(stage->gpu, before);
    return code;
}

int cuda_stage_poll(struct cuda_stage *stage, const struct park_item *item,
                    struct crystal_error *err)
{
    for (uint32_t i = 0; i < stage->count; i++) {
        int code;

        if (!stage->ops[i].buffer || !item->ops[i].client.op.send_bytes)
            continue;
        code = cuda_api_get()->cudaEventQuery(stage->ops[i].buffer->used);
        if (code == CUDA_NOT_READY)
            return 0;
        if (code)
            return cuda_fail(err, "cudaEventQuery", code);
    }
    return 1;
}

int cuda_stage_end(struct cuda_stage *stage, const struct park_item *item,
                   struct crystal_error *err)
{
    int before, code = enter(stage->gpu, &before, err);

    if (code)
        return code;
    for (uint32_t i = 0; i < stage->count; i++) {
        const struct buffer *b = stage->ops[i].buffer;
        const struct park_stream *stream = item->ops[i].stream;
        size_t recv_bytes = (size_t)item->ops[i].client.op.recv_bytes;

        if (!b || !recv_bytes)
            continue;
        TRY_CALL(cudaMemcpyAsync,
                 own_copy(stage->ops[i].recv, b->host, recv_bytes, stream->handle));
        TRY(cudaEventRecord, b->used, stream->handle);
    }
out:
    leave(stage->gpu, before);
    return code;
}
