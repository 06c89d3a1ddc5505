/* The part of NCCL that lets kernels communicate by themselves (nccl_device.h 2.28). It
 * is refused: no peer is on the device, and no call would tell what is sent. Defined
 * here all the same, since a program's call would else reach the real library with our
 * communicator.
 */
#include "config.h"

#include "capture/park.h"

#include "runtime/log.h"

#include <errno.h>

#define EXPORT __attribute__((visibility("default")))

static ncclResult_t refuse(const char *name)
{
    struct crystal_error err = {0};

    (void)crystal_error_set(
        &err, ENOTSUP,
        "recorder: %s: kernels that communicate by themselves cannot be "
        "captured; switch off symmetric memory and the device API (DeepEP, NVSHMEM, "
        "torch.distributed._symmetric_memory)",
        name);
    crystal_log(CRYSTAL_LOG_ERROR, "recorder", "%s",
                err.text); /* NVSHMEM tells nothing */
    return park_fail(&err, ncclInvalidUsage);
}

#define DEVICE_API(name, proto)            \
    EXPORT ncclResult_t nccl##name proto;  \
    EXPORT ncclResult_t pnccl##name proto; \
    ncclResult_t nccl##name proto          \
    {                                      \
        (void)comm;                        \
        (void)request;                     \
        return refuse("nccl" #name);       \
    }                                      \
    ncclResult_t pnccl##name proto         \
    {                                      \
        (void)comm;                        \
        (void)request;                     \
        return refuse("nccl" #name);       \
    }

/* NVSHMEM's host library, as NCCL's device API or DeepEP bring it: the functions that
 * its users' own part calls first, of 3.x, whatever their arguments. */
#define NVSHMEM_FAILED 7 /* NVSHMEMX_ERROR_INTERNAL */
#define NVSHMEM_API(name)      \
    EXPORT int name(void);     \
    int name(void)             \
    {                          \
        (void)refuse(#name);   \
        return NVSHMEM_FAILED; \
    }
NVSHMEM_API(nvshmemx_hostlib_init_attr)
NVSHMEM_API(nvshmemid_hostlib_init_attr)

DEVICE_API(DevCommCreate, (ncclComm_t comm, const void *request,
                           void *ret_comm __attribute__((unused))))
DEVICE_API(DevCommDestroy, (ncclComm_t comm, const void *request))
