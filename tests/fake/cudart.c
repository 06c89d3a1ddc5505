/* libcudart on host memory, as far as the programs in tests/gpu use it: with
 * libcrystal-hostccl.so as NCCL they run, and their scripts, where there is no GPU. A
 * stream is one of hostccl's, so that its work really runs behind it.
 */
#include "config.h"

#include "runtime/crystal_stream.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA_FAILED 999 /* cudaErrorUnknown */
#define EXPORT      __attribute__((visibility("default")))

EXPORT int cudaSetDevice(int device);
EXPORT int cudaMalloc(void **ret, size_t bytes);
EXPORT int cudaFree(void *memory);
EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
EXPORT int cudaMemset(void *to, int value, size_t bytes);
EXPORT int cudaStreamCreateWithFlags(void **ret, unsigned flags);
EXPORT int cudaStreamSynchronize(void *stream);
EXPORT int cudaDeviceSynchronize(void);
EXPORT int cudaMemGetInfo(size_t *ret_free, size_t *ret_all);

int cudaSetDevice(int device)
{
    (void)device;
    return 0;
}

int cudaMalloc(void **ret, size_t bytes)
{
    *ret = malloc(bytes ? bytes : 1);
    return *ret ? 0 : CUDA_FAILED;
}

int cudaFree(void *memory)
{
    free(memory);
    return 0;
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return 0;
}

int cudaMemset(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return 0;
}

/* hostccl is loaded behind this library, so it is looked for at each call. */
static int stream_call(const char *name, void *argument)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    int (*call)(void *);

    if (!found)
        return CUDA_FAILED;
    memcpy(&call, &found, sizeof call);
    return call(argument) ? CUDA_FAILED : 0;
}

int cudaStreamCreateWithFlags(void **ret, unsigned flags)
{
    (void)flags;
    return stream_call("crystal_stream_create", ret);
}

int cudaStreamSynchronize(void *stream)
{
    return stream_call("crystal_stream_synchronize", stream);
}

int cudaDeviceSynchronize(void)
{
    return 0;
}

int cudaMemGetInfo(size_t *ret_free, size_t *ret_all)
{
    *ret_free = *ret_all = (size_t)1 << 30; /* nothing of a device is ever used */
    return 0;
}
