/* ncclMemAlloc and ncclMemFree in capture. */
#include "config.h"

#include "capture/cuda_device.h"
#include "capture/cuda_memory.h"
#include "capture/park.h"
#include "capture/recorder.h"

#include <stdlib.h>
#include <string.h>

#define MEM_HEAD_BYTES 64 /* in front of ncclMemAlloc's host memory: its size */

/* Whether memory is the device's. What NCCL allocates there is an ordinary allocation
 * here, since no peer maps it. */
static int on_device(struct crystal_error *err)
{
    return cuda_device_activate(err) == 0 && cuda_device_is_active();
}

ncclResult_t park_MemAlloc(void **ptr, size_t size)
{
    struct crystal_error err = {0};
    char *base = NULL;

    if (!ptr)
        return PARK_FAIL(ncclInvalidArgument, "recorder: ncclMemAlloc: ptr is NULL");
    if (on_device(&err)) {
        if (cuda_api_get()->cudaMalloc(ptr, size))
            return PARK_FAIL(ncclUnhandledCudaError,
                             "recorder: ncclMemAlloc: the device has no %zu bytes",
                             size);
        cuda_memory_add(*ptr, size);
        return ncclSuccess;
    }
    if (err.code)
        return park_fail(&err, ncclInvalidUsage);
    if (size > SIZE_MAX - MEM_HEAD_BYTES ||
        posix_memalign((void **)&base, MEM_HEAD_BYTES, size + MEM_HEAD_BYTES) != 0)
        return PARK_FAIL(ncclSystemError, "recorder: out of memory for %zu bytes",
                         size);
    memcpy(base, &size, sizeof size);
    recorder_alloc(recorder_get(), size, 0);
    *ptr = base + MEM_HEAD_BYTES;
    return ncclSuccess;
}

ncclResult_t park_MemFree(void *ptr)
{
    char *base = ptr;
    size_t size;

    if (!ptr)
        return ncclSuccess;
    if (on_device(NULL))
        return cuda_api_get()->cudaFree(ptr)
                   ? PARK_FAIL(
                         ncclUnhandledCudaError,
                         "recorder: ncclMemFree: the device does not take it back")
                   : ncclSuccess;
    base -= MEM_HEAD_BYTES;
    memcpy(&size, base, sizeof size);
    recorder_alloc(recorder_get(), size, 1);
    free(base);
    return ncclSuccess;
}
