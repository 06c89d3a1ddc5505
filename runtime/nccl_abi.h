/* The part of NCCL's C ABI that Crystal speaks: types and constants of nccl.h 2.28.
 *
 * Written from the facts of that header (values and struct layouts, version 2.28.9), so
 * that nothing of CUDA or NCCL has to be installed. Function prototypes come from the
 * one table runtime/nccl_api.def. A stream is an opaque pointer: a CUDA stream on a
 * GPU, a crystal_stream (crystal_stream.h) on host memory.
 */
#ifndef CRYSTAL_NCCL_ABI_H
#define CRYSTAL_NCCL_ABI_H

#include "runtime/op.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_VERSION_CODE     22809
#define NCCL_UNIQUE_ID_BYTES  128
#define NCCL_CONFIG_MAGIC     0xcafebeefU
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR    (-1)

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef void *ncclStream_t; /* cudaStream_t in nccl.h */

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8
} ncclResult_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = 0x7fffffff /* handles of ncclRedOpCreatePreMulSum lie below */
} ncclRedOp_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
    ncclScalarDevice = 0,
    ncclScalarHostImmediate = 1
} ncclScalarResidence_t;

typedef struct {
    size_t size;        /* bytes of the caller's struct */
    unsigned int magic; /* NCCL_CONFIG_MAGIC */
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
} ncclConfig_t;

typedef struct {
    size_t size;
    unsigned int magic; /* 0x74685283 */
    unsigned int version;
    float estimatedTime;
} ncclSimInfo_t;

/* Bytes of one element; 0 for a value outside the enum. */
static inline size_t crystal_dtype_bytes(unsigned dtype)
{
    static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return dtype < ncclNumTypes ? bytes[dtype] : 0;
}

/* Integers steer control flow; floating point is bulk data (8-bit floats are bulk). */
static inline int crystal_dtype_is_float(unsigned dtype)
{
    return dtype >= ncclFloat16 && dtype < ncclNumTypes;
}

#endif
