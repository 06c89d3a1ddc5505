/* The CUDA runtime and NCCL of a GPU machine for test programs: everything comes by
 * dlopen (libcudart.so.13 or .12, libnccl.so.2, or the paths in CUDART and NCCL), so
 * that nothing of them is needed to build. Whatever fails ends the process with "Bail
 * out!".
 */
#ifndef CRYSTAL_TESTS_GPU_STOCK_H
#define CRYSTAL_TESTS_GPU_STOCK_H

#include "runtime/nccl_abi.h"

#include <stddef.h>
#include <stdio.h>

/* cudaMalloc and so on; 0 is success */
struct stock_cuda {
    int (*set_device)(int);
    int (*malloc)(void **, size_t);
    int (*free)(void *);
    int (*memcpy)(void *, const void *, size_t, int);
    int (*memset)(void *, int, size_t);
    int (*stream_create)(void **, unsigned);
    int (*stream_synchronize)(void *);
    int (*synchronize)(void);
    int (*memory)(size_t *ret_free, size_t *ret_all); /* of the device, bytes */
};

/* those that the library has, else NULL */
struct stock_nccl {
#define NCCL_API(type, name, proto, args) type(*name) proto;
#include "runtime/nccl_api.def"
#undef NCCL_API
};

extern struct stock_cuda stock_cuda;
extern struct stock_nccl stock_nccl;

/* Fills both. Where CHURN is set a thread allocates, frees and synchronises from now
 * on, without a pause and whatever NCCL does, and says at the end how often. */
void stock_open(void);

/* A unique id from the next line of ids: 256 digits. */
void stock_id(FILE *ids, ncclUniqueId *ret);

/* The same from the first line of a file, which may not be there yet: waits 20 s. */
void stock_id_wait(const char *path, ncclUniqueId *ret);
/* Makes that file, whole at once. */
void stock_id_write(const char *path, const ncclUniqueId *id);

double stock_seconds(void);

/* Ends with "Bail out!" where result is not 0; comm, which may be NULL, knows why. */
void stock_must(ncclComm_t comm, int result, const char *what);
size_t stock_memory_free(void); /* of the device, bytes */
void stock_sort(double *values, size_t count);

#endif
