/* Reductions on host memory. See reduce.h for what the numbers mean.
 *
 * Each pair of type and operation is one loop without calls, branches or dependencies
 * between elements, so that the compiler turns it into vector code. Elements are read
 * through types of alignment 1 because buffers may come from a message.
 */
#include "config.h"

#include "runtime/reduce.h"

#include <errno.h>
#include <string.h>

#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize("O3") /* -O2 does not vectorise loops of unknown length */
#endif

#define LOOSE __attribute__((aligned(1), may_alias))
typedef int8_t loose_i8 LOOSE;
typedef uint8_t loose_u8 LOOSE;
typedef int32_t loose_i32 LOOSE;
typedef uint32_t loose_u32 LOOSE;
typedef int64_t loose_i64 LOOSE;
typedef uint64_t loose_u64 LOOSE;
typedef float loose_f32 LOOSE;
typedef double loose_f64 LOOSE;
typedef uint16_t loose_f16 LOOSE;
typedef uint16_t loose_bf16 LOOSE;
typedef uint8_t loose_e4m3 LOOSE;
typedef uint8_t loose_e5m2 LOOSE;

/* --- small floats: to single precision (exact) and back (nearest even) --- */

static inline float bits_float(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t float_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* A float whose exponent field has e bits less than single precision's, widened: mag is
 * the magnitude shifted into place, bias the difference of the biases. Subnormals are
 * made by a subtraction of two normal numbers, so that flush-to-zero does no harm. */
static inline float widen(uint32_t sign, uint32_t mag, uint32_t bias, uint32_t special)
{
    uint32_t normal = mag + (bias << 23);
    uint32_t tiny =
        float_bits(bits_float(mag + ((bias + 1) << 23)) - bits_float((bias + 1) << 23));
    uint32_t bits = mag < 1U << 23 ? tiny : normal;

    bits = mag >= special ? 0x7f800000U | (mag & 0x7fffffU) : bits;
    return bits_float(sign | bits);
}

static inline float widen_f16(uint16_t h)
{
    return widen((uint32_t)(h & 0x8000) << 16, (uint32_t)(h & 0x7fff) << 13, 112,
                 0x0f800000U);
}

static inline float widen_bf16(uint16_t h)
{
    return bits_float((uint32_t)h << 16);
}

static inline float widen_e4m3(uint8_t h)
{
    uint32_t mag = (uint32_t)(h & 0x7f) << 20;
    uint32_t sign = (uint32_t)(h & 0x80) << 24;
    float number = widen(sign, mag, 120, 0xffffffffU);

    return mag == 0x7f00000U ? bits_float(sign | 0x7fc00000U) : number;
}

static inline float widen_e5m2(uint8_t h)
{
    return widen_f16((uint16_t)(h << 8));
}

/* Rounds the magnitude of f to a format with drop mantissa bits less and bias less by
 * bias; tiny is the number whose unit in the last place is the format's smallest
 * subnormal. Overflow and NaN are the callers'. */
static inline uint32_t narrow(uint32_t mag, unsigned drop, uint32_t bias, float tiny)
{
    uint32_t odd = mag >> drop & 1;
    uint32_t normal = (mag + (1U << (drop - 1)) - 1 + odd - (bias << 23)) >> drop;
    uint32_t subnormal = float_bits(bits_float(mag) + tiny) - float_bits(tiny);

    return mag < (bias + 1) << 23 ? subnormal : normal;
}

static inline uint16_t narrow_f16(float f)
{
    uint32_t bits = float_bits(f), mag = bits & 0x7fffffffU;
    uint32_t out = narrow(mag, 13, 112, 0.5F);

    out = mag >= 0x477ff000U ? 0x7c00 : out; /* 65520 and more round to infinity */
    out = mag > 0x7f800000U ? 0x7e00 : out;
    return (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)out;
}

static inline uint16_t narrow_bf16(float f)
{
    uint32_t bits = float_bits(f);
    uint32_t out = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

    out = (bits & 0x7fffffffU) > 0x7f800000U ? (bits >> 16 | 0x40) : out;
    return (uint16_t)out;
}

static inline uint8_t narrow_e4m3(float f)
{
    uint32_t bits = float_bits(f), mag = bits & 0x7fffffffU;
    uint32_t out = narrow(mag, 20, 120, 16384.0F);

    out = mag >= 0x43e00000U ? 0x7e : out; /* 448 is the largest */
    out = mag > 0x7f800000U ? 0x7f : out;
    return (uint8_t)(bits >> 24 & 0x80) | (uint8_t)out;
}

static inline uint8_t narrow_e5m2(float f)
{
    uint32_t bits = float_bits(f), mag = bits & 0x7fffffffU;
    uint32_t out = narrow(mag, 21, 112, 128.0F);

    out = mag >= 0x47600000U ? 0x7b : out; /* 57344 is the largest */
    out = mag > 0x7f800000U ? 0x7f : out;
    return (uint8_t)(bits >> 24 & 0x80) | (uint8_t)out;
}

/* Rounding in place, where the next step needs the number wide again. */
static inline float round_f16(float f)
{
    return widen_f16(narrow_f16(f));
}

/* A NaN that a sum or product of bf16 gives ends in 16 zero bits, as its operands did:
 * it stays one. */
static inline float round_bf16(float f)
{
    uint32_t bits = float_bits(f);

    return bits_float((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000U);
}

static inline float round_e4m3(float f)
{
    return widen_e4m3(narrow_e4m3(f));
}

static inline float round_e5m2(float f)
{
    return widen_e5m2(narrow_e5m2(f));
}

/* --- the loops --- */

#define SAME(x)          (x)
#define OP_SUM(a, b)     ((a) + (b))
#define OP_PROD(a, b)    ((a) * (b))
#define OP_MIN_INT(a, b) ((b) < (a) ? (b) : (a))
#define OP_MAX_INT(a, b) ((b) > (a) ? (b) : (a))
/* A NaN in a gives b; a NaN in b leaves a. */
#define OP_MIN_FLOAT(a, b) ((b) < (a) || (a) != (a) ? (b) : (a))
#define OP_MAX_FLOAT(a, b) ((b) > (a) || (a) != (a) ? (b) : (a))

#define STEP(work, widen_fn, round_fn, op, from) \
    do {                                         \
        work y = widen_fn((from)[i]);            \
                                                 \
        x = (work)round_fn(op(x, y));            \
    } while (0)

/* Elements are stored as loose_<type> and computed as work. Four inputs at a time: the
 * value stays in a register meanwhile. */
#define LOOP(type, work, widen_fn, round_fn, narrow_fn, op)                        \
    do {                                                                           \
        loose_##type *a = acc;                                                     \
                                                                                   \
        for (; n >= 4; n -= 4, in += 4) {                                          \
            const loose_##type *b0 = in[0], *b1 = in[1], *b2 = in[2], *b3 = in[3]; \
                                                                                   \
            for (size_t i = 0; i < count; i++) {                                   \
                work x = widen_fn(a[i]);                                           \
                                                                                   \
                STEP(work, widen_fn, round_fn, op, b0);                            \
                STEP(work, widen_fn, round_fn, op, b1);                            \
                STEP(work, widen_fn, round_fn, op, b2);                            \
                STEP(work, widen_fn, round_fn, op, b3);                            \
                a[i] = narrow_fn(x);                                               \
            }                                                                      \
        }                                                                          \
        for (; n; n--, in++) {                                                     \
            const loose_##type *b = in[0];                                         \
                                                                                   \
            for (size_t i = 0; i < count; i++) {                                   \
                work x = widen_fn(a[i]);                                           \
                                                                                   \
                STEP(work, widen_fn, round_fn, op, b);                             \
                a[i] = narrow_fn(x);                                               \
            }                                                                      \
        }                                                                          \
    } while (0)

/* bf16 two by two, as halves of a word: no instruction is spent on making room. */
#define STEP_PAIR(op, from)                                          \
    do {                                                             \
        uint32_t word = (from)[i];                                   \
                                                                     \
        low = round_bf16(op(low, bits_float(word << 16)));           \
        high = round_bf16(op(high, bits_float(word & 0xffff0000U))); \
    } while (0)

#define LOOP_PAIRS(op)                                                          \
    do {                                                                        \
        loose_u32 *a = acc;                                                     \
                                                                                \
        for (; n >= 4; n -= 4, in += 4) {                                       \
            const loose_u32 *b0 = in[0], *b1 = in[1], *b2 = in[2], *b3 = in[3]; \
                                                                                \
            for (size_t i = 0; i < count / 2; i++) {                            \
                float low = bits_float(a[i] << 16);                             \
                float high = bits_float(a[i] & 0xffff0000U);                    \
                                                                                \
                STEP_PAIR(op, b0);                                              \
                STEP_PAIR(op, b1);                                              \
                STEP_PAIR(op, b2);                                              \
                STEP_PAIR(op, b3);                                              \
                a[i] = float_bits(high) | float_bits(low) >> 16;                \
            }                                                                   \
        }                                                                       \
        for (; n; n--, in++) {                                                  \
            const loose_u32 *b = in[0];                                         \
                                                                                \
            for (size_t i = 0; i < count / 2; i++) {                            \
                float low = bits_float(a[i] << 16);                             \
                float high = bits_float(a[i] & 0xffff0000U);                    \
                                                                                \
                STEP_PAIR(op, b);                                               \
                a[i] = float_bits(high) | float_bits(low) >> 16;                \
            }                                                                   \
        }                                                                       \
    } while (0)

/* The same loops once more for each set of instructions: the processor decides which
 * are used, results are the same. */
#define ARGUMENTS \
    void *acc, const void *const *in, uint32_t n, size_t count, unsigned redop
#if defined __x86_64__
#define AVX2   __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512dq")))
#define LEVELS(type)                                     \
    static void reduce_##type##_base(ARGUMENTS)          \
    {                                                    \
        reduce_##type(acc, in, n, count, redop);         \
    }                                                    \
    AVX2 static void reduce_##type##_avx2(ARGUMENTS)     \
    {                                                    \
        reduce_##type(acc, in, n, count, redop);         \
    }                                                    \
    AVX512 static void reduce_##type##_avx512(ARGUMENTS) \
    {                                                    \
        reduce_##type(acc, in, n, count, redop);         \
    }
#define LEVEL_COUNT 3
#define LEVEL_ROW(type)                                                    \
    {                                                                      \
        reduce_##type##_base, reduce_##type##_avx2, reduce_##type##_avx512 \
    }
#else
#define LEVELS(type)                             \
    static void reduce_##type##_base(ARGUMENTS)  \
    {                                            \
        reduce_##type(acc, in, n, count, redop); \
    }
#define LEVEL_COUNT 1
#define LEVEL_ROW(type)      \
    {                        \
        reduce_##type##_base \
    }
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sums and products of signed integers are those of the unsigned type: both wrap. */
#define REDUCE_INT(type, utype, work, uwork)                           \
    ALWAYS_INLINE void reduce_##type(ARGUMENTS)                        \
    {                                                                  \
        if (redop == ncclProd)                                         \
            LOOP(utype, uwork, SAME, SAME, SAME, OP_PROD);             \
        else if (redop == ncclMin)                                     \
            LOOP(type, work, SAME, SAME, SAME, OP_MIN_INT);            \
        else if (redop == ncclMax)                                     \
            LOOP(type, work, SAME, SAME, SAME, OP_MAX_INT);            \
        else                                                           \
            LOOP(utype, uwork, SAME, SAME, SAME, OP_SUM);              \
    }                                                                  \
    LEVELS(type)                                                       \
    static void divide_##type(void *acc, size_t count, uint32_t n)     \
    {                                                                  \
        loose_##type *a = acc;                                         \
                                                                       \
        for (size_t i = 0; i < count; i++)                             \
            a[i] = (work)(a[i] / (work##_wide)n);                      \
    }                                                                  \
    static void scale_##type(void *acc, size_t count, uint64_t scalar) \
    {                                                                  \
        loose_##utype *a = acc;                                        \
        const uwork factor = (uwork)scalar;                            \
                                                                       \
        for (size_t i = 0; i < count; i++)                             \
            a[i] = (uwork)(a[i] * factor);                             \
    }

#define REDUCE_FLOAT(type, work, widen_fn, round_fn, narrow_fn)        \
    ALWAYS_INLINE void reduce_##type(ARGUMENTS)                        \
    {                                                                  \
        if (redop == ncclProd)                                         \
            LOOP(type, work, widen_fn, round_fn, narrow_fn, OP_PROD);  \
        else if (redop == ncclMin)                                     \
            LOOP(type, work, widen_fn, SAME, narrow_fn, OP_MIN_FLOAT); \
        else if (redop == ncclMax)                                     \
            LOOP(type, work, widen_fn, SAME, narrow_fn, OP_MAX_FLOAT); \
        else                                                           \
            LOOP(type, work, widen_fn, round_fn, narrow_fn, OP_SUM);   \
    }                                                                  \
    LEVELS(type)

#define DIVIDE_FLOAT(type, work, widen_fn, narrow_fn, bits_type)       \
    static void divide_##type(void *acc, size_t count, uint32_t n)     \
    {                                                                  \
        loose_##type *a = acc;                                         \
        const work divisor = (work)n;                                  \
                                                                       \
        for (size_t i = 0; i < count; i++)                             \
            a[i] = narrow_fn(widen_fn(a[i]) / divisor);                \
    }                                                                  \
    static void scale_##type(void *acc, size_t count, uint64_t scalar) \
    {                                                                  \
        loose_##type *a = acc;                                         \
        const bits_type bits = (bits_type)scalar;                      \
        loose_##type stored;                                           \
        work factor;                                                   \
                                                                       \
        memcpy(&stored, &bits, sizeof stored);                         \
        factor = widen_fn(stored);                                     \
        for (size_t i = 0; i < count; i++)                             \
            a[i] = narrow_fn(widen_fn(a[i]) * factor);                 \
    }

/* x to the n by squaring, multiplication rounded as narrow_fn does. */
#define POWER(type, work, widen_fn, narrow_fn)                                   \
    do {                                                                         \
        loose_##type *a = acc;                                                   \
                                                                                 \
        for (size_t i = 0; i < count; i++) {                                     \
            loose_##type square = a[i], power = a[i];                            \
                                                                                 \
            for (uint32_t left = n - 1; left; left >>= 1) {                      \
                if (left & 1)                                                    \
                    power = narrow_fn(widen_fn(power) * (work)widen_fn(square)); \
                square = narrow_fn(widen_fn(square) * (work)widen_fn(square));   \
            }                                                                    \
            a[i] = power;                                                        \
        }                                                                        \
    } while (0)

#define REPEAT_INT(type, utype, uwork)                                             \
    static void repeat_##type(void *acc, size_t count, unsigned redop, uint32_t n) \
    {                                                                              \
        if (redop == ncclProd)                                                     \
            POWER(utype, uwork, SAME, SAME);                                       \
        else if (redop != ncclMin && redop != ncclMax)                             \
            scale_##type(acc, count, n);                                           \
    }

#define REPEAT_FLOAT(type, work, widen_fn, narrow_fn)                              \
    static void repeat_##type(void *acc, size_t count, unsigned redop, uint32_t n) \
    {                                                                              \
        loose_##type *sum = acc;                                                   \
        const work factor = (work)n;                                               \
                                                                                   \
        if (redop == ncclProd)                                                     \
            POWER(type, work, widen_fn, narrow_fn);                                \
        else if (redop != ncclMin && redop != ncclMax)                             \
            for (size_t i = 0; i < count; i++)                                     \
                sum[i] = narrow_fn(widen_fn(sum[i]) * factor);                     \
    }

/* What an element of each integer type is divided in, wide enough for any n. */
typedef int64_t int8_t_wide, int32_t_wide, int64_t_wide;
typedef uint64_t uint8_t_wide, uint32_t_wide, uint64_t_wide;

REDUCE_INT(i8, u8, int8_t, uint8_t)
REDUCE_INT(u8, u8, uint8_t, uint8_t)
REDUCE_INT(i32, u32, int32_t, uint32_t)
REDUCE_INT(u32, u32, uint32_t, uint32_t)
REDUCE_INT(i64, u64, int64_t, uint64_t)
REDUCE_INT(u64, u64, uint64_t, uint64_t)
REDUCE_FLOAT(f16, float, widen_f16, round_f16, narrow_f16)
REDUCE_FLOAT(f32, float, SAME, SAME, SAME)
REDUCE_FLOAT(f64, double, SAME, SAME, SAME)
REDUCE_FLOAT(e4m3, float, widen_e4m3, round_e4m3, narrow_e4m3)
REDUCE_FLOAT(e5m2, float, widen_e5m2, round_e5m2, narrow_e5m2)
DIVIDE_FLOAT(f16, float, widen_f16, narrow_f16, uint16_t)
DIVIDE_FLOAT(f32, float, SAME, SAME, uint32_t)
DIVIDE_FLOAT(f64, double, SAME, SAME, uint64_t)
DIVIDE_FLOAT(bf16, float, widen_bf16, narrow_bf16, uint16_t)
DIVIDE_FLOAT(e4m3, float, widen_e4m3, narrow_e4m3, uint8_t)
DIVIDE_FLOAT(e5m2, float, widen_e5m2, narrow_e5m2, uint8_t)

static void reduce_odd_bf16(void *acc, const void *const *in, uint32_t n, size_t i,
                            unsigned redop)
{
    loose_bf16 *a = acc;

    for (; n; n--, in++) {
        const loose_bf16 *b = in[0];
        float x = widen_bf16(a[i]), y = widen_bf16(b[i]);

        a[i] = narrow_bf16(redop == ncclProd ? OP_PROD(x, y) : OP_SUM(x, y));
    }
}

ALWAYS_INLINE void reduce_bf16(ARGUMENTS)
{
    if (redop == ncclMin) {
        LOOP(bf16, float, widen_bf16, SAME, narrow_bf16, OP_MIN_FLOAT);
        return;
    }
    if (redop == ncclMax) {
        LOOP(bf16, float, widen_bf16, SAME, narrow_bf16, OP_MAX_FLOAT);
        return;
    }
    if (count % 2)
        reduce_odd_bf16(acc, in, n, count - 1, redop);
    if (redop == ncclProd)
        LOOP_PAIRS(OP_PROD);
    else
        LOOP_PAIRS(OP_SUM);
}
LEVELS(bf16)

REPEAT_INT(i8, u8, uint32_t)
REPEAT_INT(u8, u8, uint32_t)
REPEAT_INT(i32, u32, uint32_t)
REPEAT_INT(u32, u32, uint32_t)
REPEAT_INT(i64, u64, uint64_t)
REPEAT_INT(u64, u64, uint64_t)
REPEAT_FLOAT(f16, float, widen_f16, narrow_f16)
REPEAT_FLOAT(f32, float, SAME, SAME)
REPEAT_FLOAT(f64, double, SAME, SAME)
REPEAT_FLOAT(bf16, float, widen_bf16, narrow_bf16)
REPEAT_FLOAT(e4m3, float, widen_e4m3, narrow_e4m3)
REPEAT_FLOAT(e5m2, float, widen_e5m2, narrow_e5m2)

/* --- the table --- */

#define ROW(type)                                                   \
    {                                                               \
        LEVEL_ROW(type), divide_##type, scale_##type, repeat_##type \
    }
static const struct {
    void (*reduce[LEVEL_COUNT])(ARGUMENTS);
    void (*divide)(void *acc, size_t count, uint32_t n);
    void (*scale)(void *acc, size_t count, uint64_t scalar);
    void (*repeat)(void *acc, size_t count, unsigned redop, uint32_t n);
} types[ncclNumTypes] = {
    [ncclInt8] = ROW(i8),         [ncclUint8] = ROW(u8),
    [ncclInt32] = ROW(i32),       [ncclUint32] = ROW(u32),
    [ncclInt64] = ROW(i64),       [ncclUint64] = ROW(u64),
    [ncclFloat16] = ROW(f16),     [ncclFloat32] = ROW(f32),
    [ncclFloat64] = ROW(f64),     [ncclBfloat16] = ROW(bf16),
    [ncclFloat8e4m3] = ROW(e4m3), [ncclFloat8e5m2] = ROW(e5m2),
};

unsigned crystal_reduce_level(void)
{
#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return 2;
    return __builtin_cpu_supports("avx2") ? 1 : 0;
#else
    return 0;
#endif
}

int crystal_reduce_at(unsigned level, void *acc, const void *const *in, uint32_t n,
                      size_t count, unsigned dtype, unsigned redop)
{
    if (dtype >= ncclNumTypes || redop >= CRYSTAL_REDOP_COUNT ||
        level > crystal_reduce_level())
        return -EINVAL;
    types[dtype].reduce[level](acc, in, n, count, redop);
    return 0;
}

int crystal_reduce_many(void *acc, const void *const *in, uint32_t n, size_t count,
                        unsigned dtype, unsigned redop)
{
    return crystal_reduce_at(crystal_reduce_level(), acc, in, n, count, dtype, redop);
}

int crystal_reduce(void *acc, const void *in, size_t count, unsigned dtype,
                   unsigned redop)
{
    return crystal_reduce_many(acc, &in, 1, count, dtype, redop);
}

/* The nearest integer towards zero of a type of so many bits. */
static uint64_t integer_bits(double value, int is_signed, unsigned bits)
{
    const double most = 2.0 * (double)(UINT64_C(1) << (bits - 1 - (unsigned)is_signed));
    const double least = is_signed ? -most : 0;

    if (value >= most)
        return UINT64_MAX >> (64 - bits + (unsigned)is_signed);
    if (value <= least)
        return is_signed ? UINT64_C(1) << (bits - 1) : 0;
    return value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
}

uint64_t crystal_reduce_bits(unsigned dtype, double value)
{
    const float single = (float)value;
    uint64_t bits = 0;

    switch (dtype) {
    case ncclFloat16:
        return narrow_f16(single);
    case ncclBfloat16:
        return narrow_bf16(single);
    case ncclFloat8e4m3:
        return narrow_e4m3(single);
    case ncclFloat8e5m2:
        return narrow_e5m2(single);
    case ncclFloat32:
        return float_bits(single);
    case ncclFloat64:
        memcpy(&bits, &value, sizeof bits);
        return bits;
    default:
        return dtype < ncclNumTypes
                   ? integer_bits(value,
                                  dtype == ncclInt8 || dtype == ncclInt32 ||
                                      dtype == ncclInt64,
                                  8 * (unsigned)crystal_dtype_bytes(dtype))
                   : 0;
    }
}

uint64_t crystal_reduce_avg_factor(unsigned dtype, uint32_t n)
{
    return crystal_reduce_bits(dtype, 1.0 / n);
}

int crystal_reduce_finish_avg(void *acc, size_t count, unsigned dtype, uint32_t n)
{
    if (dtype >= ncclNumTypes || n == 0)
        return -EINVAL;
    types[dtype].divide(acc, count, n);
    return 0;
}

int crystal_reduce_scale(void *acc, size_t count, unsigned dtype, uint64_t scalar)
{
    if (dtype >= ncclNumTypes)
        return -EINVAL;
    types[dtype].scale(acc, count, scalar);
    return 0;
}

int crystal_reduce_repeat(void *acc, size_t count, unsigned dtype, unsigned redop,
                          uint32_t n)
{
    if (dtype >= ncclNumTypes || redop >= CRYSTAL_REDOP_COUNT || n == 0)
        return -EINVAL;
    if (n > 1)
        types[dtype].repeat(acc, count, redop, n);
    return 0;
}
