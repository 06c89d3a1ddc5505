/* See pass_cuda.h. pass.host's functions, with which pass_stream.c and pass_done.c
 * work, are CUDA's here; the program gets CUDA's own codes.
 */
#include "config.h"

#include "capture/pass_cuda.h"

#include "capture/cuda_clock.h"
#include "capture/cuda_device.h"
#include "capture/flusher.h"
#include "capture/pass.h"
#include "capture/work.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

static struct {
    int is_open;
    int gpu;               /* of the first communicator */
    _Atomic int is_active; /* release: gpu is set */
} cuda;

static _Thread_local int last_code; /* what CUDA said, behind an ncclResult_t */

static ncclResult_t result_of(int code)
{
    last_code = code;
    return code == CUDA_SUCCESS     ? ncclSuccess
           : code == CUDA_NOT_READY ? ncclInProgress
                                    : ncclUnhandledCudaError;
}

/* --- CUDA as crystal_stream.h has it --- */

static cuda_event_handle handle_of(crystal_event_t event)
{
    return event;
}

static ncclResult_t no_stream_create(ncclStream_t *ret_stream)
{
    (void)ret_stream;
    return ncclInvalidUsage; /* only programs on host memory make streams of ours */
}

static ncclResult_t stream_destroy(ncclStream_t stream)
{
    return result_of(cuda_api_get()->cudaStreamDestroy(stream));
}

static ncclResult_t stream_synchronize(ncclStream_t stream)
{
    return result_of(cuda_api_get()->cudaStreamSynchronize(stream));
}

static ncclResult_t stream_query(ncclStream_t stream)
{
    return result_of(cuda_api_get()->cudaStreamQuery(stream));
}

static ncclResult_t stream_wait_event(ncclStream_t stream, crystal_event_t event)
{
    return result_of(cuda_api_get()->cudaStreamWaitEvent(stream, handle_of(event), 0));
}

/* The recorder's own events have times; where the host's clock cannot be told from
 * them, a lane's thread sleeps until they come. */
static ncclResult_t event_create(crystal_event_t *ret_event)
{
    cuda_event_handle handle = NULL;
    int code = cuda_api_get()->cudaEventCreateWithFlags(
        &handle, pass.done.event_time ? 0 : CUDA_EVENT_BLOCKING_SYNC);

    *ret_event = handle;
    return result_of(code);
}

static ncclResult_t event_destroy(crystal_event_t event)
{
    return result_of(cuda_api_get()->cudaEventDestroy(handle_of(event)));
}

static ncclResult_t event_record(crystal_event_t event, ncclStream_t stream)
{
    return result_of(cuda_api_get()->cudaEventRecord(handle_of(event), stream));
}

static ncclResult_t event_query(crystal_event_t event)
{
    return result_of(cuda_api_get()->cudaEventQuery(handle_of(event)));
}

/* A thread of the recorder's own has the first GPU until it says otherwise, and its
 * calls would break into a graph that another thread captures. */
static void enter_gpu(void)
{
    static _Thread_local int is_in;
    int mode = CUDA_CAPTURE_RELAXED;

    if (is_in)
        return;
    is_in = 1;
    (void)cuda_api_get()->cudaSetDevice(cuda.gpu); /* else the calls below fail */
    (void)cuda_api_get()->cudaThreadExchangeStreamCaptureMode(&mode); /* the same */
}

static ncclResult_t event_synchronize(crystal_event_t event)
{
    enter_gpu();
    return result_of(cuda_api_get()->cudaEventSynchronize(handle_of(event)));
}

static ncclResult_t event_elapsed(crystal_event_t from, crystal_event_t to,
                                  uint64_t *ret_ns)
{
    float ms = 0;
    int code =
        cuda_api_get()->cudaEventElapsedTime(&ms, handle_of(from), handle_of(to));

    *ret_ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return result_of(code);
}

/* Called by a program's thread at its end at most, where last errors tell nobody. */
static ncclResult_t event_time(crystal_event_t event, uint64_t *ret_ns)
{
    return result_of(cuda_clock_time(handle_of(event), ret_ns));
}

int pass_cuda_open(struct crystal_error *err)
{
    if (!cuda_api_get()->is_whole)
        return crystal_error_set(err, ENOTSUP,
                                 "recorder: the program has NCCL but no CUDA runtime "
                                 "that is shared; link it "
                                 "with the shared one (nvcc -cudart shared)");
    pass.host.stream_create = no_stream_create;
    pass.host.stream_destroy = stream_destroy;
    pass.host.stream_synchronize = stream_synchronize;
    pass.host.stream_query = stream_query;
    pass.host.stream_wait_event = stream_wait_event;
    pass.host.event_create = event_create;
    pass.host.event_destroy = event_destroy;
    pass.host.event_record = event_record;
    pass.host.event_synchronize = event_synchronize;
    pass.host.event_query = event_query;
    pass.done.event_elapsed = event_elapsed;
    cuda.is_open = 1;
    return 0;
}

void pass_cuda_activate(void)
{
    if (!cuda.is_open || atomic_load_explicit(&cuda.is_active, memory_order_acquire))
        return;
    (void)cuda_api_get()->cudaGetDevice(&cuda.gpu); /* else the first one */
    if (cuda_clock_open() == CUDA_SUCCESS) {
        pass.done.event_time = event_time;
        pass.done.settle_soon = flusher_hurry;
    } else {
        crystal_log(CRYSTAL_LOG_WARNING, "pass",
                    "CUDA tells no times, recording ends when they are seen");
    }
    (void)atexit(pass_drain); /* else the destructor does it, after CUDA's own end */
    work_start(1);
    atomic_store_explicit(&cuda.is_active, 1, memory_order_release);
}

void pass_cuda_renew(void)
{
    if (!pass.done.event_time ||
        !atomic_load_explicit(&cuda.is_active, memory_order_acquire))
        return;
    enter_gpu();
    cuda_clock_renew();
}

int pass_cuda_is_watched(int issues)
{
    if (!atomic_load_explicit(&cuda.is_active, memory_order_acquire))
        return 0;
    cuda_thread_issues |= issues;
    return cuda_thread_issues;
}

/* --- what the program calls --- */

/* The legacy handle of the null stream is the null stream. */
static ncclStream_t stream_of(cuda_stream stream)
{
    return stream == CUDA_STREAM_LEGACY ? NULL : stream;
}

/* The code behind what a function of pass_stream.c returned. */
#define CODE(call) ((void)(call), last_code)

int pass_cuda_stream_synchronize(cuda_stream stream)
{
    return CODE(pass_stream_synchronize(stream_of(stream)));
}

int pass_cuda_stream_query(cuda_stream stream)
{
    return CODE(pass_stream_query(stream_of(stream)));
}

int pass_cuda_stream_wait_event(cuda_stream stream, cuda_event_handle event)
{
    return CODE(pass_stream_wait_event(stream_of(stream), event));
}

int pass_cuda_stream_destroy(cuda_stream stream)
{
    return CODE(pass_stream_destroy(stream_of(stream)));
}

int pass_cuda_event_record(cuda_event_handle event, cuda_stream stream)
{
    return CODE(pass_event_record(event, stream_of(stream)));
}

int pass_cuda_event_synchronize(cuda_event_handle event)
{
    return CODE(pass_event_synchronize(event));
}

int pass_cuda_event_query(cuda_event_handle event)
{
    return CODE(pass_event_query(event));
}

int pass_cuda_event_destroy(cuda_event_handle event)
{
    return CODE(pass_event_destroy(event));
}

int pass_cuda_device_synchronize(void)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    int code = cuda_api_get()->cudaDeviceSynchronize();

    for (struct pass_stream *s = pass_streams(); s; s = s->next)
        recorder_waited(r, CRYSTAL_OP_SYNC, 0, s->index, from_ns);
    return code;
}

void pass_cuda_copied(uint64_t from_ns)
{
    recorder_waited(recorder_get(), CRYSTAL_OP_SYNC, 0, pass_stream_index(NULL),
                    from_ns);
}
