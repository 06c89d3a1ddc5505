/* Values of every NCCL type that are exact in it: element i of an input is i % 7 + 2,
 * and that over a power of two. Same bytes on the host and on the GPU.
 */
#ifndef CRYSTAL_TESTS_GPU_VALUES_H
#define CRYSTAL_TESTS_GPU_VALUES_H

#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const struct {
    const char *name;
    int exponent_bits, mantissa_bits; /* 0: an integer */
} values_types[ncclNumTypes] = {
    [ncclInt8] = {"int8", 0, 0},          [ncclUint8] = {"uint8", 0, 0},
    [ncclInt32] = {"int32", 0, 0},        [ncclUint32] = {"uint32", 0, 0},
    [ncclInt64] = {"int64", 0, 0},        [ncclUint64] = {"uint64", 0, 0},
    [ncclFloat16] = {"half", 5, 10},      [ncclFloat32] = {"float", 8, 23},
    [ncclFloat64] = {"double", 11, 52},   [ncclBfloat16] = {"bfloat16", 8, 7},
    [ncclFloat8e4m3] = {"fp8e4m3", 4, 3}, [ncclFloat8e5m2] = {"fp8e5m2", 5, 2},
};

static inline const char *values_name(ncclDataType_t type)
{
    return values_types[type].name;
}

static inline const char *values_op_name(ncclRedOp_t op)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg"};

    return op <= ncclAvg ? names[op] : "none";
}

/* Whether value / divide is exact in the type: a normal number, or any integer, which
 * NCCL divides towards zero. */
static inline bool values_can_divide(ncclDataType_t type, int divide)
{
    int bias = (1 << (values_types[type].exponent_bits - 1 +
                      (values_types[type].exponent_bits == 0))) -
               1;

    if (!values_types[type].exponent_bits)
        return true;
    return (divide & (divide - 1)) == 0 && __builtin_ctz((unsigned)divide) <= bias;
}

/* value (2 .. 8, for which two bits behind the first are enough) over divide. */
static inline uint64_t values_bits(ncclDataType_t type, unsigned value, int divide)
{
    const int mantissa = values_types[type].mantissa_bits;
    const int exponent = values_types[type].exponent_bits;
    int log = 31 - __builtin_clz(value), bias;

    if (!exponent)
        return value / (unsigned)divide;
    bias = (1 << (exponent - 1)) - 1;
    return (uint64_t)(log - __builtin_ctz((unsigned)divide) + bias) << mantissa |
           ((uint64_t)value << mantissa >> log & ((UINT64_C(1) << mantissa) - 1));
}

/* Elements first .. first + count - 1 of an input, each over divide. */
static inline void values_fill(void *to, ncclDataType_t type, size_t first,
                               size_t count, int divide)
{
    const size_t bytes = crystal_dtype_bytes(type);
    size_t done = count < 7 ? count : 7;

    for (size_t i = 0; i < done; i++) {
        uint64_t bits = values_bits(type, (first + i) % 7 + 2, divide);

        memcpy((char *)to + i * bytes, &bits, bytes); /* little endian */
    }
    for (size_t more; done < count; done += more) { /* a multiple of 7 is there */
        more = done < count - done ? done : count - done;
        memcpy((char *)to + done * bytes, to, more * bytes);
    }
}

#endif
