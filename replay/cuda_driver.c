/* CUDA's driver by dlopen. See cuda_driver.h. */
#include "config.h"

#include "replay/cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

int cu_driver_open(struct cu_driver *ret, struct crystal_error *err)
{
    struct cu_driver d;
    const struct {
        const char *name;
        void *function; /* where its address goes */
    } rows[] = {{"cuCtxGetCurrent", &d.ctx_current},
                {"cuCtxGetDevice", &d.ctx_device},
                {"cuCtxCreate_v2", &d.ctx_create},
                {"cuCtxPushCurrent_v2", &d.ctx_push},
                {"cuCtxPopCurrent_v2", &d.ctx_pop},
                {"cuCtxSetLimit", &d.ctx_limit},
                {"cuStreamCreate", &d.stream_create},
                {"cuMemHostAlloc", &d.host_alloc},
                {"cuMemHostRegister_v2", &d.host_register},
                {"cuMemHostUnregister", &d.host_unregister},
                {"cuMemcpyHtoDAsync_v2", &d.put},
                {"cuMemcpyDtoHAsync_v2", &d.fetch},
                {"cuMemcpy2DAsync_v2", &d.copy2d},
                {"cuStreamWriteValue32_v2", &d.write32},
                {"cuMemRetainAllocationHandle", &d.memory_retain},
                {"cuMemRelease", &d.memory_release},
                {"cuGetErrorName", &d.error_name}};
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL); /* stays open */

    if (!library)
        return crystal_error_set(err, ENOENT, "buffers on a GPU: %s", dlerror());
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        void *found = dlsym(library, rows[i].name);

        if (!found)
            return crystal_error_set(
                err, ENOENT, "buffers on a GPU: " LIBRARY " has no %s", rows[i].name);
        memcpy(rows[i].function, &found, sizeof found);
    }
    *ret = d;
    return 0;
}
