/* CUDA's runtime as the program has it loaded. Nothing of CUDA is linked or needed to
 * build: types and values are those of its API reference, functions are found when the
 * first one is called. The object stands before them under LD_PRELOAD
 * (capture/cuda_entry.c); this is what lies behind.
 */
#ifndef CRYSTAL_CUDA_API_H
#define CRYSTAL_CUDA_API_H

#include <stddef.h>

typedef void *cuda_stream;       /* cudaStream_t */
typedef void *cuda_event_handle; /* cudaEvent_t */

enum { /* cudaError_t */
       CUDA_SUCCESS = 0,
       CUDA_NOT_READY = 600,
       CUDA_UNKNOWN = 999
};
#define CUDA_COPY_DEFAULT        4 /* cudaMemcpyDefault: the addresses say where they are */
#define CUDA_HOST_PORTABLE       1U /* cudaHostAllocPortable */
#define CUDA_EVENT_NO_TIMING     2U /* cudaEventDisableTiming */
#define CUDA_EVENT_BLOCKING_SYNC 1U /* cudaEventBlockingSync: waits sleep */
#define CUDA_STREAM_NON_BLOCKING \
    1U /* cudaStreamNonBlocking: not behind the null stream */
#define CUDA_CAPTURE_RELAXED \
    2 /* cudaStreamCaptureModeRelaxed: every call may be made */
#define CUDA_STREAM_LEGACY ((cuda_stream)1) /* cudaStreamLegacy: the null stream */

struct cuda_dim3 {
    unsigned x, y, z;
};

/* cudaLaunchConfig_t */
struct cuda_launch {
    struct cuda_dim3 grid, block;
    size_t shared_bytes;
    cuda_stream stream;
    void *attributes;
    unsigned attribute_count;
};

struct cuda_api {
    int is_whole; /* all CUDA_CALL functions are there */
#define CUDA_CALL(name, proto, args) int(*name) proto;
#define CUDA_WORK(name, proto, args) int(*name) proto;
#include "capture/cuda_api.def"
#undef CUDA_CALL
#undef CUDA_WORK
    int (*cudaLaunchKernelExC)(const struct cuda_launch *, const void *, void **);
    const char *(*cudaGetErrorString)(int);
};

/* The functions behind ours; those that the process lacks are NULL. Looked for until
 * there is a runtime, then kept. Thread-safe. */
const struct cuda_api *cuda_api_get(void);
/* 1 where the driver is loaded but no runtime that we could stand before: the program
 * has one inside (nvcc's default). */
int cuda_api_is_hidden(void);

#endif
