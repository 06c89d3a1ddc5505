/* What stands before CUDA's runtime under LD_PRELOAD: where a program waits, it is
 * parked first (capture/cuda_device.h), but in plan; events and waits are written down
 * (capture/pass_cuda.h). Before the first communicator, and in a process that has none,
 * every call goes straight through.
 *
 * Seen is what goes through the shared runtime: PyTorch's own kernels, copies, events
 * and waits. Libraries with a runtime inside (cuBLAS) and users of the driver (Triton)
 * only put kernels into streams; they do so in streams that PyTorch's kernels are in,
 * too, so that calls there wait (cuda_device_may_defer).
 */
#include "config.h"

#include "capture/cuda_device.h"

#include "capture/cuda_memory.h"
#include "capture/pass_cuda.h"
#include "capture/recorder.h"

#define EXPORT __attribute__((visibility("default")))

/* A function of the runtime; one that it does not have fails. */
#define REAL(name, args) \
    (cuda_api_get()->name ? cuda_api_get()->name args : CUDA_UNKNOWN)

#define CUDA_CALL(name, proto, args) EXPORT int name proto;
#define CUDA_WORK(name, proto, args) EXPORT int name proto;
#include "capture/cuda_api.def"
#undef CUDA_CALL
#undef CUDA_WORK
EXPORT int cudaLaunchKernelExC(const struct cuda_launch *launch, const void *kernel,
                               void **args);

/* --- work --- */

#define CUDA_WORK(name, proto, args)                  \
    int name proto                                    \
    {                                                 \
        int result = cuda_device_before_work(stream); \
                                                      \
        return result ? result : REAL(name, args);    \
    }
#include "capture/cuda_api.def"
#undef CUDA_WORK

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind,
                    cuda_stream stream)
{
    int result = cuda_device_before_work(stream);

    return result ? result : REAL(cudaMemcpyAsync, (to, from, bytes, kind, stream));
}

int cudaLaunchKernelExC(const struct cuda_launch *launch, const void *kernel,
                        void **args)
{
    int result = launch ? cuda_device_before_work(launch->stream) : 0;

    return result ? result : REAL(cudaLaunchKernelExC, (launch, kernel, args));
}

/* --- memory --- */

int cudaMalloc(void **ret, size_t bytes)
{
    int result = REAL(cudaMalloc, (ret, bytes));

    if (result == CUDA_SUCCESS)
        cuda_memory_add(*ret, bytes);
    return result;
}

int cudaFree(void *memory)
{
    cuda_memory_drop(memory); /* before another thread can get the address */
    return REAL(cudaFree, (memory));
}

/* --- waits of the host --- */

static int is_watched(void)
{
    return cuda_device_is_active();
}

static void note_sync(struct park_stream *stream, uint64_t from_ns)
{
    if (cuda_thread_issues)
        recorder_waited(recorder_get(), CRYSTAL_OP_SYNC, 0,
                        park_queue_stream_index(stream), from_ns);
}

int cudaStreamSynchronize(cuda_stream stream)
{
    struct park_stream *s = is_watched() ? cuda_device_stream(stream) : NULL;
    uint64_t from_ns;
    int parked, result;

    if (pass_cuda_is_watched(0))
        return pass_cuda_stream_synchronize(stream);
    if (!s)
        return REAL(cudaStreamSynchronize, (stream));
    from_ns = recorder_now_ns(recorder_get());
    parked = cuda_device_park(s);
    result = REAL(cudaStreamSynchronize, (stream));
    note_sync(s, from_ns);
    return result ? result : parked;
}

int cudaStreamQuery(cuda_stream stream)
{
    struct park_stream *s = is_watched() ? cuda_device_stream(stream) : NULL;
    uint64_t from_ns;
    int result;

    if (pass_cuda_is_watched(0))
        return pass_cuda_stream_query(stream);
    if (!s)
        return REAL(cudaStreamQuery, (stream));
    from_ns = recorder_now_ns(recorder_get());
    if (!cuda_device_stream_ended(s))
        return CUDA_NOT_READY;
    result = REAL(cudaStreamQuery, (stream));
    if (result == CUDA_SUCCESS)
        note_sync(s, from_ns);
    return result;
}

static void note_each(void *context, struct park_stream *stream)
{
    note_sync(stream, *(const uint64_t *)context);
}

int cudaDeviceSynchronize(void)
{
    uint64_t from_ns;
    int parked, result;

    if (pass_cuda_is_watched(0))
        return pass_cuda_device_synchronize();
    if (!is_watched())
        return REAL(cudaDeviceSynchronize, ());
    from_ns = recorder_now_ns(recorder_get());
    parked = cuda_device_park_all();
    result = REAL(cudaDeviceSynchronize, ());
    if (cuda_thread_issues)
        cuda_device_each_stream(note_each, &from_ns);
    return result ? result : parked;
}

/* Copies that return when they are done, on the null stream. */
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    const int passes = pass_cuda_is_watched(0);
    uint64_t from_ns = is_watched() || passes ? recorder_now_ns(recorder_get()) : 0;
    int result = cuda_device_before_work(NULL);
    struct park_stream *s;

    if (!result)
        result = REAL(cudaMemcpy, (to, from, bytes, kind));
    if (passes)
        pass_cuda_copied(from_ns);
    s = is_watched() ? cuda_device_stream(NULL) : NULL;
    if (s)
        note_sync(s, from_ns);
    return result;
}

int cudaMemset(void *to, int value, size_t bytes)
{
    int result = cuda_device_before_work(NULL);

    return result ? result : REAL(cudaMemset, (to, value, bytes));
}

int cudaStreamDestroy(cuda_stream stream)
{
    if (pass_cuda_is_watched(0))
        return pass_cuda_stream_destroy(stream);
    cuda_device_drop(stream);
    return REAL(cudaStreamDestroy, (stream));
}

/* --- events --- */

static int event_record(cuda_event_handle event, cuda_stream stream)
{
    struct park_stream *s = cuda_device_stream(stream);
    struct cuda_event *e = s ? cuda_device_event(event) : NULL;

    if (!e)
        return REAL(cudaEventRecord, (event, stream));
    cuda_thread_issues = 1;
    recorder_event(recorder_get(), CRYSTAL_OP_RECORD, e->base.index,
                   park_queue_stream_index(s));
    return cuda_device_record(e, s);
}

int cudaEventRecord(cuda_event_handle event, cuda_stream stream)
{
    if (pass_cuda_is_watched(1))
        return pass_cuda_event_record(event, stream);
    return is_watched() ? event_record(event, stream)
                        : REAL(cudaEventRecord, (event, stream));
}

/* The flag is for the capture of graphs, where nothing is under way. */
int cudaEventRecordWithFlags(cuda_event_handle event, cuda_stream stream,
                             unsigned flags)
{
    if (!flags && pass_cuda_is_watched(1))
        return pass_cuda_event_record(event, stream);
    return is_watched() && !flags
               ? event_record(event, stream)
               : REAL(cudaEventRecordWithFlags, (event, stream, flags));
}

int cudaStreamWaitEvent(cuda_stream stream, cuda_event_handle event, unsigned flags)
{
    struct cuda_event *e =
        is_watched() && !flags ? cuda_device_event_find(event) : NULL;
    struct park_stream *s = e ? cuda_device_stream(stream) : NULL;

    if (!flags && pass_cuda_is_watched(1))
        return pass_cuda_stream_wait_event(stream, event);
    if (!s)
        return REAL(cudaStreamWaitEvent, (stream, event, flags));
    cuda_thread_issues = 1;
    recorder_event(recorder_get(), CRYSTAL_OP_SWAIT, e->base.index,
                   park_queue_stream_index(s));
    return cuda_device_wait(s, e);
}

int cudaEventQuery(cuda_event_handle event)
{
    struct cuda_event *e = is_watched() ? cuda_device_event_find(event) : NULL;
    int result, nccl_result = ncclSuccess;

    if (pass_cuda_is_watched(0))
        return pass_cuda_event_query(event);
    if (!e)
        return REAL(cudaEventQuery, (event));
    result = park_queue_mark_query(&e->base.mark, &nccl_result)
                 ? REAL(cudaEventQuery, (event))
                 : CUDA_NOT_READY;
    if (cuda_thread_issues)
        recorder_polled(recorder_get(), &e->base.poll, result != CUDA_NOT_READY,
                        CRYSTAL_OP_WAIT, e->base.index, 0);
    return result;
}

int cudaEventSynchronize(cuda_event_handle event)
{
    struct cuda_event *e = is_watched() ? cuda_device_event_find(event) : NULL;
    uint64_t from_ns;
    int parked, result;

    if (pass_cuda_is_watched(0))
        return pass_cuda_event_synchronize(event);
    if (!e)
        return REAL(cudaEventSynchronize, (event));
    from_ns = recorder_now_ns(recorder_get());
    parked = park_queue_mark_wait(&e->base.mark);
    result = REAL(cudaEventSynchronize, (event));
    if (cuda_thread_issues)
        recorder_waited(recorder_get(), CRYSTAL_OP_WAIT, e->base.index, 0, from_ns);
    return result ? result : parked ? CUDA_UNKNOWN : CUDA_SUCCESS;
}

int cudaEventDestroy(cuda_event_handle event)
{
    if (pass_cuda_is_watched(0))
        return pass_cuda_event_destroy(event);
    return cuda_device_event_destroy(event);
}
