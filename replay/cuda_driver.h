/* The part of CUDA's driver interface that copies need, found in libcuda.so.1 at run
 * time, so that nothing of CUDA is needed to build or to run without a GPU. Names,
 * types and values are those of CUDA's driver API reference, versions 12 and 13 (the
 * suffixes are part of the exported names).
 */
#ifndef CRYSTAL_CUDA_DRIVER_H
#define CRYSTAL_CUDA_DRIVER_H

#include "runtime/error.h"

#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* 0 is success */
typedef void *cu_context;
typedef void *cu_stream;
typedef uint64_t cu_pointer; /* CUdeviceptr */

#define CU_STREAM_NON_BLOCKING_FLAG 1U
#define CU_LIMIT_STACK              0x00
#define CU_LIMIT_PRINTF             0x01
#define CU_LIMIT_HEAP               0x02
#define CU_MEMORY_HOST              1U
#define CU_MEMORY_DEVICE            2U
#define CU_HOST_PORTABLE            1U

/* CUDA_MEMCPY2D */
struct cu_copy2d {
    size_t from_x, from_y;
    unsigned from_type;
    const void *from_host;
    cu_pointer from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_type;
    void *to_host;
    cu_pointer to_device;
    void *to_array;
    size_t to_pitch;
    size_t width_bytes, height;
};

struct cu_driver {
    cu_result (*ctx_current)(cu_context *);
    cu_result (*ctx_device)(int *);
    cu_result (*ctx_create)(cu_context *, unsigned flags, int device);
    cu_result (*ctx_push)(cu_context);
    cu_result (*ctx_pop)(cu_context *);
    cu_result (*ctx_limit)(int limit, size_t value);
    cu_result (*stream_create)(cu_stream *, unsigned flags);
    cu_result (*host_alloc)(void **, size_t bytes, unsigned flags);
    cu_result (*host_register)(void *, size_t bytes, unsigned flags);
    cu_result (*host_unregister)(void *);
    cu_result (*put)(cu_pointer to, const void *from, size_t bytes, cu_stream);
    cu_result (*fetch)(void *to, cu_pointer from, size_t bytes, cu_stream);
    cu_result (*copy2d)(const struct cu_copy2d *, cu_stream);
    cu_result (*write32)(cu_stream, cu_pointer to, uint32_t value, unsigned flags);
    cu_result (*memory_retain)(uint64_t *handle, void *pointer);
    cu_result (*memory_release)(uint64_t handle);
    cu_result (*error_name)(cu_result, const char **);
};

/* Fills it; -ENOENT with err set where the library or a function of it is missing. */
int cu_driver_open(struct cu_driver *ret, struct crystal_error *err);

#endif
