/* The part of NCCL that lets kernels communicate by themselves (nccl_device.h 2.28). It
 * is refused: no peer is on the device, and no call would tell what is sent. Defined
 * here all the same, since a program's call would else reach the real library with our
 * communicator.
 */
#include "config.h"

#include "capture/park.h"

#define EXPORT __attribute__((visibility("default")))

static ncclResult_t refuse(const char *name)
{
    return PARK_FAIL(
        ncclInvalidUsage,
        "recorder: %s: kernels that communicate by themselves cannot be "
        "captured; switch off symmetric memory and the device API (DeepEP, "
        "torch.distributed._symmetric_memory)",
        name);
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

DEVICE_API(DevCommCreate, (ncclComm_t comm, const void *request,
                           void *ret_comm __attribute__((unused))))
DEVICE_API(DevCommDestroy, (ncclComm_t comm, const void *request))
