/* The wire's forms against lines written by hand, and back. */
#include "config.h"

#include "runtime/wire_form.h"

#include "tests/check.h"

#include <stdlib.h>

static uint64_t word_at(const unsigned char *wire, uint64_t offset)
{
    uint64_t word;

    memcpy(&word, wire + offset, sizeof word);
    return word;
}

static void sizes(void)
{
    static const struct {
        enum crystal_proto proto;
        uint64_t bytes, want;
    } rows[] = {
        {CRYSTAL_PROTO_SIMPLE, 0, 0},      {CRYSTAL_PROTO_SIMPLE, 77, 77},
        {CRYSTAL_PROTO_LL, 0, 0},          {CRYSTAL_PROTO_LL, 1, 16},
        {CRYSTAL_PROTO_LL, 8, 16},         {CRYSTAL_PROTO_LL, 9, 32},
        {CRYSTAL_PROTO_LL, 32768, 65536},  {CRYSTAL_PROTO_LL128, 0, 0},
        {CRYSTAL_PROTO_LL128, 1, 2048},    {CRYSTAL_PROTO_LL128, 1920, 2048},
        {CRYSTAL_PROTO_LL128, 1921, 4096}, {CRYSTAL_PROTO_LL128, 576000, 614400},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK_EQ(crystal_form_bytes(rows[i].proto, rows[i].bytes), rows[i].want);
}

static void ll_lines(void)
{
    static const unsigned char data[11] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    unsigned char wire[32], back[11] = {0};

    memset(wire, 0xee, sizeof wire);
    crystal_form_pack(CRYSTAL_PROTO_LL, 0x1122, data, sizeof data, wire);
    CHECK_EQ(word_at(wire, 0), UINT64_C(0x0000112304030201));
    CHECK_EQ(word_at(wire, 8), UINT64_C(0x0000112308070605));
    CHECK_EQ(word_at(wire, 16), UINT64_C(0x00001123000b0a09));
    CHECK_EQ(word_at(wire, 24), UINT64_C(0x0000112300000000));
    crystal_form_unpack(CRYSTAL_PROTO_LL, wire, sizeof back, back);
    CHECK(memcmp(back, data, sizeof data) == 0);
    /* the flag has 32 bits */
    crystal_form_pack(CRYSTAL_PROTO_LL, UINT64_C(0x5ffffffff), data, 8, wire);
    CHECK_EQ(word_at(wire, 0), UINT64_C(0x0000000004030201));
}

/* Which word of a slice's data stands where, for all that moves. */
static void ll128_slice(void)
{
    static const struct {
        unsigned data, wire; /* words */
    } rows[] = {
        {0, 0},     {1, 1},     {13, 13},   {14, 14},   {15, 78}, /* the flag stands at
                                                                     15: second block,
                                                                     same unit */
        {16, 16},   {30, 30},   {31, 94},   {47, 110},  {62, 62},   {63, 126},
        {64, 64},   {65, 65},   {77, 77},   {78, 80},   {91, 93},   {92, 96},
        {119, 125}, {120, 128}, {135, 206}, {184, 192}, {239, 253},
    };
    uint64_t data[240], wire[256];

    for (unsigned i = 0; i < 240; i++)
        data[i] = 1000 + i;
    memset(wire, 0xee, sizeof wire);
    crystal_form_pack(CRYSTAL_PROTO_LL128, 41, data, sizeof data, wire);
    for (unsigned i = 15; i < 256; i += 16)
        CHECK_EQ(wire[i], 42);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK_EQ(wire[rows[i].wire], 1000 + rows[i].data);
}

static void comes_back(void)
{
    static const uint64_t sizes[] = {1, 15, 16, 1000, 1919, 1920, 1921, 5000, 576000};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int proto = 0; proto < CRYSTAL_PROTO_COUNT; proto++) {
            uint64_t bytes = sizes[i];
            uint64_t wire_bytes = crystal_form_bytes((enum crystal_proto)proto, bytes);
            unsigned char *data = malloc(bytes), *back = calloc(bytes, 1);
            unsigned char *wire = malloc(wire_bytes + 1);

            for (uint64_t b = 0; b < bytes; b++)
                data[b] = (unsigned char)(b * 7 + b / 251);
            wire[wire_bytes] = 0x5a;
            crystal_form_pack((enum crystal_proto)proto, 9, data, bytes, wire);
            crystal_form_unpack((enum crystal_proto)proto, wire, bytes, back);
            CHECK(memcmp(data, back, bytes) == 0);
            CHECK_EQ(wire[wire_bytes], 0x5a);
            free(data);
            free(back);
            free(wire);
        }
}

/* A message in another one's form: the same bytes as packed anew. */
static void repacked(void)
{
    static const uint64_t sizes[] = {1, 8, 1000, 1920, 5000, 576000};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int p = 0; p < CRYSTAL_PROTO_COUNT; p++) {
            const enum crystal_proto proto = (enum crystal_proto)p;
            uint64_t bytes = sizes[i], wire_bytes = crystal_form_bytes(proto, bytes);
            unsigned char *data = malloc(bytes), *old = calloc(wire_bytes, 1);
            unsigned char *want = calloc(wire_bytes, 1), *got = malloc(wire_bytes);

            for (uint64_t b = 0; b < bytes; b++)
                data[b] = (unsigned char)(b * 5 + b / 253);
            crystal_form_pack(proto, 7, data, bytes, old);
            crystal_form_pack(proto, UINT64_C(0x7fffffffe), data, bytes, want);
            memset(got, 0xee, wire_bytes);
            crystal_form_repack(proto, UINT64_C(0x7fffffffe), old, wire_bytes, got);
            CHECK(memcmp(got, want, wire_bytes) == 0);
            CHECK_EQ(crystal_form_step(proto, old), proto ? 7 : 0);
            CHECK_EQ(crystal_form_step(proto, got), proto == CRYSTAL_PROTO_LL
                                                        ? UINT64_C(0xfffffffe)
                                                    : proto ? UINT64_C(0x7fffffffe)
                                                            : 0);
            crystal_form_flags(proto, UINT64_C(0x7fffffffe), wire_bytes, old);
            CHECK(memcmp(old, want, wire_bytes) == 0);
            free(data);
            free(old);
            free(want);
            free(got);
        }
}

int main(void)
{
    check_begin();
    CHECK_RUN(sizes);
    CHECK_RUN(ll_lines);
    CHECK_RUN(ll128_slice);
    CHECK_RUN(comes_back);
    CHECK_RUN(repacked);
    return check_end();
}
