/* Reductions: every type and operation against values worked out in double precision,
 * one rounding per step; conversions of small floats over their whole range. */
#include "config.h"

#include "runtime/reduce.h"

#include "tests/check.h"

#include <errno.h>
#include <math.h>

/* Slow and plain: the value of a stored element, and the nearest element (ties to even)
 * by search over all encodings. */
static double small_value(unsigned dtype, unsigned bits)
{
    int mantissa_bits = dtype == ncclFloat16 ? 10 : dtype == ncclFloat8e4m3 ? 3 : 2;
    int exponent_bits = dtype == ncclFloat8e4m3 ? 4 : 5;
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned sign = bits >> (mantissa_bits + exponent_bits) & 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    unsigned mantissa = bits & ((1U << mantissa_bits) - 1);
    double v;

    if (dtype == ncclFloat8e4m3 && (bits & 0x7f) == 0x7f)
        return NAN;
    if (dtype != ncclFloat8e4m3 && exponent == 31)
        return mantissa ? NAN : sign ? -INFINITY : INFINITY;
    if (exponent == 0)
        v = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        v = ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias);
    return sign ? -v : v;
}

static unsigned small_max(unsigned dtype)
{
    return dtype == ncclFloat16 ? 0x7bff : dtype == ncclFloat8e4m3 ? 0x7e : 0x7b;
}

/* Bits of the magnitude nearest to v; the encodings of magnitudes ascend. */
static unsigned small_nearest(unsigned dtype, double v)
{
    unsigned sign = dtype == ncclFloat16 ? 0x8000 : 0x80;
    unsigned low = 0, high = small_max(dtype);
    double mag = fabs(v), d_low, d_high;

    if (isnan(v))
        return 0;
    if (dtype == ncclFloat16 && mag >= 65520)
        return 0x7c00 | (signbit(v) ? sign : 0);
    if (mag >= small_value(dtype, high))
        return high | (signbit(v) ? sign : 0);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;

        if (small_value(dtype, middle) <= mag)
            low = middle;
        else
            high = middle;
    }
    d_low = mag - small_value(dtype, low);
    d_high = small_value(dtype, high) - mag;
    if (d_high < d_low || (d_high == d_low && (high & 1) == 0))
        low = high;
    return low | (signbit(v) ? sign : 0);
}

static double plain(double a, double b, unsigned redop)
{
    switch (redop) {
    case ncclProd:
        return a * b;
    case ncclMin:
        return isnan(a) ? b : b < a ? b : a;
    case ncclMax:
        return isnan(a) ? b : b > a ? b : a;
    default:
        return a + b;
    }
}

static void small_floats(unsigned dtype, unsigned step)
{
    unsigned limit = dtype == ncclFloat16 ? 65536 : 256;
    unsigned wrong = 0;

    for (unsigned redop = 0; redop < CRYSTAL_REDOP_COUNT; redop++)
        for (unsigned a = 0; a < limit; a += step)
            for (unsigned b = 0; b < limit; b += step) {
                double want =
                    plain(small_value(dtype, a), small_value(dtype, b), redop);
                uint16_t acc16 = (uint16_t)a, in16 = (uint16_t)b;
                uint8_t acc8 = (uint8_t)a, in8 = (uint8_t)b;
                unsigned got;

                if (dtype == ncclFloat16)
                    (void)crystal_reduce(&acc16, &in16, 1, dtype, redop);
                else
                    (void)crystal_reduce(&acc8, &in8, 1, dtype, redop);
                got = dtype == ncclFloat16 ? acc16 : acc8;
                if (isnan(want) ? !isnan(small_value(dtype, got))
                                : got != small_nearest(dtype, want) &&
                                      !(want == 0 && small_value(dtype, got) == 0))
                    wrong++;
            }
    CHECK_EQ(wrong, 0);
}

static void every_pair_of_e4m3(void)
{
    small_floats(ncclFloat8e4m3, 1);
}

static void every_pair_of_e5m2(void)
{
    small_floats(ncclFloat8e5m2, 1);
}

static void many_pairs_of_f16(void)
{
    small_floats(ncclFloat16, 97); /* 676 x 676 pairs per operation */
}

static float bf16_value(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The nearer of the two neighbours of v; ties to even. */
static uint16_t bf16_nearest(float v)
{
    uint32_t bits;
    uint16_t low, high;
    double d_low, d_high;

    memcpy(&bits, &v, sizeof bits);
    low = (uint16_t)(bits >> 16);
    high = (uint16_t)(low + 1);
    if (isinf(v))
        return low;
    d_low = fabs((double)v - (double)bf16_value(low));
    d_high = isinf(bf16_value(high))
                 ? fabs(copysign(ldexp(1, 128), (double)v) - (double)v)
                 : fabs((double)bf16_value(high) - (double)v);
    return d_high < d_low || (d_high == d_low && (high & 1) == 0) ? high : low;
}

static void many_pairs_of_bf16(void)
{
    unsigned wrong = 0;

    for (unsigned redop = 0; redop < CRYSTAL_REDOP_COUNT; redop++)
        for (unsigned a = 0; a < 65536; a += 89)
            for (unsigned b = 0; b < 65536; b += 97) {
                uint16_t acc = (uint16_t)a, in = (uint16_t)b;
                float want = (float)plain((double)bf16_value(acc),
                                          (double)bf16_value(in), redop);

                (void)crystal_reduce(&acc, &in, 1, ncclBfloat16, redop);
                if (isnan(want) ? !isnan(bf16_value(acc))
                                : acc != bf16_nearest(want) && want != 0)
                    wrong++;
            }
    CHECK_EQ(wrong, 0);
}

static void known_bits(void)
{
    static const struct {
        unsigned dtype, redop;
        unsigned a, b, want;
    } rows[] = {
        {ncclFloat16, ncclSum, 0x3c00, 0x3c00, 0x4000},   /* 1 + 1 = 2 */
        {ncclFloat16, ncclSum, 0x7bff, 0x4c00, 0x7c00},   /* 65504 + 16 = inf */
        {ncclFloat16, ncclSum, 0x6800, 0x3c00, 0x6800},   /* 2048 + 1: tie to even */
        {ncclFloat16, ncclSum, 0x6801, 0x3c00, 0x6802},   /* 2050 + 1: tie to even */
        {ncclFloat16, ncclProd, 0x0001, 0x3800, 0x0000},  /* 2^-24 / 2: tie to 0 */
        {ncclFloat16, ncclProd, 0x0003, 0x3800, 0x0002},  /* 3 x 2^-24 / 2: to 2 */
        {ncclFloat16, ncclMin, 0x7e00, 0x3c00, 0x3c00},   /* NaN gives way */
        {ncclFloat16, ncclMax, 0x3c00, 0x7e00, 0x3c00},   /* on either side */
        {ncclBfloat16, ncclSum, 0x3f80, 0x3f80, 0x4000},  /* 1 + 1 */
        {ncclBfloat16, ncclSum, 0x4380, 0x3f80, 0x4380},  /* 256 + 1: tie to even */
        {ncclBfloat16, ncclProd, 0x7f7f, 0x4000, 0x7f80}, /* max x 2 = inf */
        {ncclFloat8e4m3, ncclSum, 0x38, 0x38, 0x40},      /* 1 + 1 */
        {ncclFloat8e4m3, ncclSum, 0x7e, 0x7e, 0x7e},      /* saturates at 448 */
        {ncclFloat8e4m3, ncclSum, 0xfe, 0xfe, 0xfe},      /* and at -448 */
        {ncclFloat8e4m3, ncclSum, 0x7f, 0x38, 0x7f},      /* NaN */
        {ncclFloat8e4m3, ncclProd, 0x01, 0x38, 0x01},     /* 2^-9 x 1 */
        {ncclFloat8e5m2, ncclSum, 0x3c, 0x3c, 0x40},      /* 1 + 1 */
        {ncclFloat8e5m2, ncclSum, 0x7b, 0x7b, 0x7b},      /* saturates at 57344 */
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint16_t acc = (uint16_t)rows[i].a, in = (uint16_t)rows[i].b;

        CHECK_EQ(crystal_reduce(&acc, &in, 1, rows[i].dtype, rows[i].redop), 0);
        if (acc != rows[i].want)
            printf("# row %zu\n", i);
        CHECK_EQ(acc, rows[i].want);
    }
}

/* Every integer type: the result is that of 64-bit arithmetic cut to the type. */
#define INTEGER_CASE(name, type, dtype)                                    \
    static void name(void)                                                 \
    {                                                                      \
        static const int64_t edge[] = {0,                                  \
                                       1,                                  \
                                       -1,                                 \
                                       2,                                  \
                                       3,                                  \
                                       7,                                  \
                                       100,                                \
                                       127,                                \
                                       128,                                \
                                       255,                                \
                                       -128,                               \
                                       INT32_MAX,                          \
                                       INT32_MIN,                          \
                                       UINT32_MAX,                         \
                                       INT64_MAX,                          \
                                       INT64_MIN,                          \
                                       0x123456789abcdef};                 \
        const size_t n = sizeof edge / sizeof edge[0];                     \
                                                                           \
        for (unsigned redop = 0; redop < CRYSTAL_REDOP_COUNT; redop++)     \
            for (size_t i = 0; i < n; i++) {                               \
                type acc[17], in[17], want[17];                            \
                                                                           \
                for (size_t j = 0; j < n; j++) {                           \
                    uint64_t x = (uint64_t)edge[i], y = (uint64_t)edge[j]; \
                    type a = (type)x, b = (type)y;                         \
                                                                           \
                    acc[j] = a;                                            \
                    in[j] = b;                                             \
                    want[j] = redop == ncclProd  ? (type)(x * y)           \
                              : redop == ncclMin ? (a < b ? a : b)         \
                              : redop == ncclMax ? (a > b ? a : b)         \
                                                 : (type)(x + y);          \
                }                                                          \
                CHECK_EQ(crystal_reduce(acc, in, n, dtype, redop), 0);     \
                CHECK(memcmp(acc, want, n * sizeof(type)) == 0);           \
            }                                                              \
        for (size_t j = 0; j < n; j++) {                                   \
            type a = (type)edge[j], b = a;                                 \
                                                                           \
            CHECK_EQ(crystal_reduce_scale(&a, 1, dtype, (uint64_t)-3), 0); \
            CHECK(a == (type)((uint64_t)edge[j] * (uint64_t)-3));          \
            CHECK_EQ(crystal_reduce_finish_avg(&b, 1, dtype, 3), 0);       \
            CHECK(b == (type)((type)edge[j] / (type)3));                   \
        }                                                                  \
    }
INTEGER_CASE(int8, int8_t, ncclInt8)
INTEGER_CASE(uint8, uint8_t, ncclUint8)
INTEGER_CASE(int32, int32_t, ncclInt32)
INTEGER_CASE(uint32, uint32_t, ncclUint32)
INTEGER_CASE(int64, int64_t, ncclInt64)
INTEGER_CASE(uint64, uint64_t, ncclUint64)

#define FLOAT_CASE(name, type, bits_type, dtype)                                   \
    static void name(void)                                                         \
    {                                                                              \
        static const type v[] = {0, 1, -1, 0.5, 3, 1e30, -1e30, 1e-30, (type)0.1}; \
        const size_t n = sizeof v / sizeof v[0];                                   \
        const type factor = (type)0.3;                                             \
        bits_type bits;                                                            \
                                                                                   \
        memcpy(&bits, &factor, sizeof bits);                                       \
        for (unsigned redop = 0; redop < CRYSTAL_REDOP_COUNT; redop++)             \
            for (size_t i = 0; i < n; i++) {                                       \
                type acc[9], want[9];                                              \
                                                                                   \
                for (size_t j = 0; j < n; j++) {                                   \
                    acc[j] = v[i];                                                 \
                    want[j] = redop == ncclProd  ? v[i] * v[j]                     \
                              : redop == ncclMin ? (v[j] < v[i] ? v[j] : v[i])     \
                              : redop == ncclMax ? (v[j] > v[i] ? v[j] : v[i])     \
                                                 : v[i] + v[j];                    \
                }                                                                  \
                CHECK_EQ(crystal_reduce(acc, v, n, dtype, redop), 0);              \
                CHECK(memcmp(acc, want, sizeof want) == 0);                        \
            }                                                                      \
        for (size_t j = 0; j < n; j++) {                                           \
            type a = v[j], b = v[j];                                               \
                                                                                   \
            CHECK_EQ(crystal_reduce_scale(&a, 1, dtype, bits), 0);                 \
            CHECK(a == v[j] * factor);                                             \
            CHECK_EQ(crystal_reduce_finish_avg(&b, 1, dtype, 7), 0);               \
            CHECK(b == v[j] / (type)7);                                            \
        }                                                                          \
    }
FLOAT_CASE(f32, float, uint32_t, ncclFloat32)
FLOAT_CASE(f64, double, uint64_t, ncclFloat64)

static void small_floats_scale_and_average(void)
{
    uint16_t f16[2] = {0x4200, 0xc200}, bf16[1] = {0x4040}; /* 3, -3; 3 */
    uint8_t e4m3[1] = {0x44}, e5m2[1] = {0x42};             /* 3; 3 */

    CHECK_EQ(crystal_reduce_finish_avg(f16, 2, ncclFloat16, 2), 0);
    CHECK_EQ(f16[0], 0x3e00); /* 1.5 */
    CHECK_EQ(f16[1], 0xbe00);
    CHECK_EQ(crystal_reduce_scale(f16, 2, ncclFloat16, 0x3800), 0);
    CHECK_EQ(f16[0], 0x3a00); /* 0.75 */
    CHECK_EQ(crystal_reduce_scale(bf16, 1, ncclBfloat16, 0x3f00), 0);
    CHECK_EQ(bf16[0], 0x3fc0); /* 1.5 */
    CHECK_EQ(crystal_reduce_finish_avg(e4m3, 1, ncclFloat8e4m3, 2), 0);
    CHECK_EQ(e4m3[0], 0x3c); /* 1.5 */
    CHECK_EQ(crystal_reduce_scale(e5m2, 1, ncclFloat8e5m2, 0x38), 0);
    CHECK_EQ(e5m2[0], 0x3e); /* 1.5 */
}

static void any_alignment(void)
{
    unsigned char acc[1 + 100 * 4], in[3 + 100 * 4];

    for (int i = 0; i < 100; i++) {
        float a = (float)i, b = (float)(2 * i);

        memcpy(acc + 1 + i * 4, &a, 4);
        memcpy(in + 3 + i * 4, &b, 4);
    }
    CHECK_EQ(crystal_reduce(acc + 1, in + 3, 100, ncclFloat32, ncclSum), 0);
    for (int i = 0; i < 100; i++) {
        float a;

        memcpy(&a, acc + 1 + i * 4, 4);
        CHECK_EQ(a, 3 * i);
    }
}

static void repetition(void)
{
    uint8_t u8[2] = {3, 200};
    int64_t i64[1] = {-3};
    float f32[1] = {1.5F};
    uint16_t f16[1] = {0x4000}; /* 2 */
    uint8_t e4m3[1] = {0x38};   /* 1 */

    CHECK_EQ(crystal_reduce_repeat(u8, 2, ncclUint8, ncclSum, 5), 0);
    CHECK_EQ(u8[0], 15);
    CHECK_EQ(u8[1], 1000 % 256);
    CHECK_EQ(crystal_reduce_repeat(i64, 1, ncclInt64, ncclProd, 5), 0);
    CHECK_EQ(i64[0], -243);
    CHECK_EQ(crystal_reduce_repeat(i64, 1, ncclInt64, ncclMin, 9), 0);
    CHECK_EQ(i64[0], -243);
    CHECK_EQ(crystal_reduce_repeat(f32, 1, ncclFloat32, ncclAvg, 64), 0);
    CHECK(f32[0] == 96);
    CHECK_EQ(crystal_reduce_repeat(f32, 1, ncclFloat32, ncclProd, 1), 0);
    CHECK(f32[0] == 96);
    CHECK_EQ(crystal_reduce_repeat(f16, 1, ncclFloat16, ncclProd, 10), 0);
    CHECK_EQ(f16[0], 0x6400); /* 1024 */
    CHECK_EQ(crystal_reduce_repeat(e4m3, 1, ncclFloat8e4m3, ncclSum, 8192), 0);
    CHECK_EQ(e4m3[0], 0x7e); /* 448, saturated */
    CHECK_EQ(crystal_reduce_repeat(f32, 1, ncclFloat32, ncclSum, 0), -EINVAL);
}

/* Which of two NaN an addition returns is the compiler's choice. */
static bool is_nan_at(const unsigned char *data, size_t i, unsigned dtype)
{
    uint16_t h;
    float f;
    double d;

    switch (dtype) {
    case ncclFloat8e4m3:
        return (data[i] & 0x7f) == 0x7f;
    case ncclFloat8e5m2:
        return (data[i] & 0x7f) > 0x7c;
    case ncclFloat16:
    case ncclBfloat16:
        memcpy(&h, data + i * sizeof h, sizeof h);
        return (h & 0x7fff) > (dtype == ncclFloat16 ? 0x7c00 : 0x7f80);
    case ncclFloat32:
        memcpy(&f, data + i * sizeof f, sizeof f);
        return isnan(f);
    case ncclFloat64:
        memcpy(&d, data + i * sizeof d, sizeof d);
        return isnan(d);
    default:
        return false;
    }
}

static bool is_same(const unsigned char *a, const unsigned char *b, unsigned dtype)
{
    size_t bytes = crystal_dtype_bytes(dtype);

    for (size_t i = 0; i < 1024 / bytes; i++)
        if (memcmp(a + i * bytes, b + i * bytes, bytes) != 0 &&
            !(is_nan_at(a, i, dtype) && is_nan_at(b, i, dtype)))
            return false;
    return true;
}

/* Random bits of every type: any number of inputs at every set of instructions gives
 * what one input after the other gives. */
static void many_inputs(void)
{
    enum { INPUTS = 9, BYTES = 1024 };
    static unsigned char in[INPUTS][BYTES], want[BYTES], got[BYTES];
    const void *from[INPUTS];
    uint64_t state = 88172645463325252U;

    for (int i = 0; i < INPUTS; i++) {
        from[i] = in[i];
        for (size_t k = 0; k < BYTES; k++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            in[i][k] = (unsigned char)state;
        }
    }
    for (unsigned dtype = 0; dtype < ncclNumTypes; dtype++)
        for (unsigned redop = 0; redop < CRYSTAL_REDOP_COUNT; redop++)
            for (uint32_t n = 1; n < INPUTS; n++) {
                size_t count = BYTES / 8 - n;

                memcpy(want, in[0], BYTES);
                for (uint32_t i = 1; i <= n; i++)
                    CHECK_EQ(
                        crystal_reduce_at(0, want, &from[i], 1, count, dtype, redop),
                        0);
                for (unsigned level = 0; level <= crystal_reduce_level(); level++) {
                    memcpy(got, in[0], BYTES);
                    CHECK_EQ(
                        crystal_reduce_at(level, got, &from[1], n, count, dtype, redop),
                        0);
                    CHECK(is_same(got, want, dtype));
                }
            }
    CHECK_EQ(crystal_reduce_at(crystal_reduce_level() + 1, got, from, 1, 1, ncclInt8,
                               ncclSum),
             -EINVAL);
}

static void factors_of_averages(void)
{
    CHECK_EQ(crystal_reduce_avg_factor(ncclFloat16, 2), 0x3800);
    CHECK_EQ(crystal_reduce_avg_factor(ncclFloat16, 3), 0x3555);
    CHECK_EQ(crystal_reduce_avg_factor(ncclBfloat16, 3), 0x3eab);
    CHECK_EQ(crystal_reduce_avg_factor(ncclFloat8e4m3, 3), 0x2b); /* 0.34375 */
    CHECK_EQ(crystal_reduce_avg_factor(ncclFloat8e5m2, 3), 0x35); /* 0.3125 */
    CHECK_EQ(crystal_reduce_avg_factor(ncclFloat32, 3), 0x3eaaaaab);
    CHECK_EQ(crystal_reduce_avg_factor(ncclFloat64, 3), 0x3fd5555555555555);
}

static void numbers_have_bits(void)
{
    CHECK_EQ(crystal_reduce_bits(ncclFloat32, -2.5), 0xc0200000);
    CHECK_EQ(crystal_reduce_bits(ncclFloat64, 1), UINT64_C(0x3ff0000000000000));
    CHECK_EQ(crystal_reduce_bits(ncclBfloat16, 1), 0x3f80);
    CHECK_EQ(crystal_reduce_bits(ncclInt8, -1.9), UINT64_MAX); /* its low byte */
    CHECK_EQ(crystal_reduce_bits(ncclInt8, 300), 0x7f);
    CHECK_EQ(crystal_reduce_bits(ncclInt8, -300), 0x80);
    CHECK_EQ(crystal_reduce_bits(ncclUint8, 300), 0xff);
    CHECK_EQ(crystal_reduce_bits(ncclUint8, -1), 0);
    CHECK_EQ(crystal_reduce_bits(ncclInt32, 2147483648.0), 0x7fffffff);
    CHECK_EQ(crystal_reduce_bits(ncclUint32, 4294967295.5), 0xffffffff);
    CHECK_EQ(crystal_reduce_bits(ncclInt64, 1e30), INT64_MAX);
    CHECK_EQ(crystal_reduce_bits(ncclInt64, -1e30), UINT64_C(0x8000000000000000));
    CHECK_EQ(crystal_reduce_bits(ncclUint64, 1e30), UINT64_MAX);
    CHECK_EQ(crystal_reduce_bits(ncclUint64, 9223372036854775808.0),
             UINT64_C(0x8000000000000000));
    CHECK_EQ(crystal_reduce_bits(ncclNumTypes, 1), 0);
}

static void bad_arguments(void)
{
    uint32_t a = 1, b = 1;

    CHECK_EQ(crystal_reduce(&a, &b, 1, ncclNumTypes, ncclSum), -EINVAL);
    CHECK_EQ(crystal_reduce(&a, &b, 1, ncclInt32, CRYSTAL_REDOP_COUNT), -EINVAL);
    CHECK_EQ(crystal_reduce_finish_avg(&a, 1, ncclInt32, 0), -EINVAL);
    CHECK_EQ(crystal_reduce_finish_avg(&a, 1, ncclNumTypes, 1), -EINVAL);
    CHECK_EQ(crystal_reduce_scale(&a, 1, ncclNumTypes, 1), -EINVAL);
    CHECK_EQ(a, 1);
}

int main(void)
{
    check_begin();
    CHECK_RUN(numbers_have_bits);
    CHECK_RUN(int8);
    CHECK_RUN(uint8);
    CHECK_RUN(int32);
    CHECK_RUN(uint32);
    CHECK_RUN(int64);
    CHECK_RUN(uint64);
    CHECK_RUN(f32);
    CHECK_RUN(f64);
    CHECK_RUN(every_pair_of_e4m3);
    CHECK_RUN(every_pair_of_e5m2);
    CHECK_RUN(many_pairs_of_f16);
    CHECK_RUN(many_pairs_of_bf16);
    CHECK_RUN(known_bits);
    CHECK_RUN(small_floats_scale_and_average);
    CHECK_RUN(any_alignment);
    CHECK_RUN(repetition);
    CHECK_RUN(many_inputs);
    CHECK_RUN(factors_of_averages);
    CHECK_RUN(bad_arguments);
    return check_end();
}
