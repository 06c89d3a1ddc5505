/* Reduction operators with a factor (ncclRedOpCreatePreMulSum) in capture. */
#include "config.h"

#include "capture/cuda_device.h"
#include "capture/park.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define PREMUL_MAX 256

struct premul {
    int in_use;
    ncclDataType_t datatype;
    uint64_t bits;
};

static struct redops {
    pthread_mutex_t lock;
    struct premul premul[PREMUL_MAX];
} redops = {.lock = PTHREAD_MUTEX_INITIALIZER};

ncclResult_t park_RedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
                                       ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm)
{
    size_t bytes = crystal_dtype_bytes(datatype);
    uint64_t bits = 0;
    unsigned i = 0;

    if (!op || !scalar || !comm || !bytes)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclRedOpCreatePreMulSum: bad argument");
    if (residence == ncclScalarHostImmediate || !cuda_device_is_active())
        memcpy(&bits, scalar, bytes);
    else if (cuda_api_get()->cudaMemcpy(&bits, scalar, bytes, CUDA_COPY_DEFAULT))
        return PARK_FAIL(ncclUnhandledCudaError,
                         "recorder: ncclRedOpCreatePreMulSum: the factor cannot be "
                         "copied from the device");
    (void)pthread_mutex_lock(&redops.lock);
    while (i < PREMUL_MAX && redops.premul[i].in_use)
        i++;
    if (i < PREMUL_MAX) {
        redops.premul[i] =
            (struct premul){.in_use = 1, .datatype = datatype, .bits = bits};
    }
    (void)pthread_mutex_unlock(&redops.lock);
    if (i == PREMUL_MAX)
        return PARK_FAIL(
            ncclInternalError,
            "recorder: more than %d pre-multiplied sums at once; destroy those "
            "no longer needed",
            PREMUL_MAX);
    *op = (ncclRedOp_t)(ncclNumOps + (int)i);
    return ncclSuccess;
}

ncclResult_t park_RedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    int i = (int)op - ncclNumOps, found = 0;

    (void)comm;
    if (i >= 0 && i < PREMUL_MAX) {
        (void)pthread_mutex_lock(&redops.lock);
        found = redops.premul[i].in_use;
        redops.premul[i].in_use = 0;
        (void)pthread_mutex_unlock(&redops.lock);
    }
    return found ? ncclSuccess
                 : PARK_FAIL(ncclInvalidArgument,
                             "recorder: ncclRedOpDestroy: %d was not created", (int)op);
}

int park_redop_get(ncclRedOp_t op, ncclDataType_t datatype,
                   struct crystal_msg_op *message)
{
    int i = (int)op - ncclNumOps, found = 1;

    if (op >= ncclSum && op < ncclNumOps) {
        message->redop = (uint8_t)op;
        return 0;
    }
    if (i < 0 || i >= PREMUL_MAX)
        return -EINVAL;
    (void)pthread_mutex_lock(&redops.lock);
    found = redops.premul[i].in_use && redops.premul[i].datatype == datatype;
    message->scalar = redops.premul[i].bits;
    (void)pthread_mutex_unlock(&redops.lock);
    message->redop = ncclNumOps;
    return found ? 0 : -EINVAL;
}
