/* Small integers as every NCCL datatype holds them. */
#ifndef CRYSTAL_TESTS_VALUES_H
#define CRYSTAL_TESTS_VALUES_H

#include "runtime/nccl_abi.h"

#include <stdint.h>
#include <string.h>

static inline size_t type_bytes(ncclDataType_t t)
{
    return crystal_dtype_bytes(t);
}

/* Small non-negative integers as the type holds them. */
static inline void put(void *at, ncclDataType_t t, size_t i, uint64_t v)
{
    float f = (float)v;
    double d = (double)v;
    uint32_t bits;
    uint16_t half = 0;

    switch (t) {
    case ncclFloat64:
        memcpy((char *)at + 8 * i, &d, 8);
        return;
    case ncclFloat32:
        memcpy((char *)at + 4 * i, &f, 4);
        return;
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: { /* 0, or 2^e with a mantissa of 3 or 2 bits */
        int drop = t == ncclFloat8e4m3 ? 20 : 21;
        uint8_t small = 0;

        memcpy(&bits, &f, 4);
        if (v)
            small = (uint8_t)((bits >> drop) -
                              ((t == ncclFloat8e4m3 ? 120U : 112U) << (23 - drop)));
        memcpy((char *)at + i, &small, 1);
        return;
    }
    case ncclBfloat16:
    case ncclFloat16:
        memcpy(&bits, &f, 4);
        if (t == ncclBfloat16)
            half = (uint16_t)(bits >> 16);
        else if (v)
            half = (uint16_t)((((bits >> 23) - 112) << 10) | ((bits >> 13) & 0x3ff));
        memcpy((char *)at + 2 * i, &half, 2);
        return;
    default: /* little endian: the low bytes, wrapped */
        memcpy((char *)at + type_bytes(t) * i, &v, type_bytes(t));
    }
}

#endif
