/* Packing and unpacking of the wire's forms; see wire_form.h. */
#include "config.h"

#include "runtime/wire_form.h"

#include <stdatomic.h>
#include <string.h>

#define LL_LINE     16U
#define LL_DATA     8U
#define SLICE_WIRE  2048U
#define SLICE_DATA  1920U
#define UNIT_BYTES  16U
#define LINE_BYTES  128U
#define HALF_UNITS  60U   /* units of data in half a slice */
#define HALF_WIRE   1024U /* two blocks of 512 bytes */
#define BLOCK_WIRE  512U
#define BLOCK_UNITS 32U

uint64_t crystal_form_bytes(enum crystal_proto proto, uint64_t bytes)
{
    switch (proto) {
    case CRYSTAL_PROTO_LL:
        return (bytes + LL_DATA - 1) / LL_DATA * LL_LINE;
    case CRYSTAL_PROTO_LL128:
        return (bytes + SLICE_DATA - 1) / SLICE_DATA * SLICE_WIRE;
    default:
        return bytes;
    }
}

uint32_t crystal_form_step_bytes(enum crystal_proto proto)
{
    return proto == CRYSTAL_PROTO_LL      ? 32U << 10
           : proto == CRYSTAL_PROTO_LL128 ? 300U * SLICE_DATA
                                          : 512U << 10;
}

uint32_t crystal_form_grain_bytes(enum crystal_proto proto)
{
    return proto == CRYSTAL_PROTO_LL      ? LL_LINE
           : proto == CRYSTAL_PROTO_LL128 ? SLICE_DATA
                                          : 512U;
}

/* Where the two words of a slice's unit stand. */
static void place_unit(uint32_t unit, uint32_t *ret_first, uint32_t *ret_second)
{
    uint32_t half = unit / HALF_UNITS, j = unit % HALF_UNITS;
    uint32_t base = half * HALF_WIRE;

    if (j >= BLOCK_UNITS) { /* second block: seven units to a line */
        j -= BLOCK_UNITS;
        *ret_first = base + BLOCK_WIRE + (j + j / 7) * UNIT_BYTES;
        *ret_second = *ret_first + 8;
        return;
    }
    *ret_first = base + j * UNIT_BYTES;
    *ret_second = j % 8 == 7 ? *ret_first + BLOCK_WIRE : *ret_first + 8;
}

static void put_flag64(unsigned char *at, uint64_t flag)
{
    __atomic_store_n((uint64_t *)(void *)at, flag, __ATOMIC_RELEASE);
}

static void pack_ll(uint64_t step, const unsigned char *data, uint64_t bytes,
                    unsigned char *wire)
{
    const uint64_t flag = (uint64_t)(uint32_t)(step + 1) << 32;

    for (; bytes; wire += LL_LINE) {
        uint32_t words[2] = {0};
        uint64_t piece = bytes < LL_DATA ? bytes : LL_DATA;

        memcpy(words, data, piece);
        put_flag64(wire, flag | words[0]); /* a word and its flag are one store */
        put_flag64(wire + 8, flag | words[1]);
        data += piece;
        bytes -= piece;
    }
}

static void pack_ll128(uint64_t step, const unsigned char *data, uint64_t bytes,
                       unsigned char *wire)
{
    for (; bytes; wire += SLICE_WIRE) {
        uint64_t piece = bytes < SLICE_DATA ? bytes : SLICE_DATA;

        for (uint32_t unit = 0; unit * UNIT_BYTES < piece; unit++) {
            unsigned char words[UNIT_BYTES] = {0};
            uint64_t left = piece - unit * UNIT_BYTES;
            uint32_t first, second;

            memcpy(words, data + (size_t)unit * UNIT_BYTES,
                   left < UNIT_BYTES ? left : UNIT_BYTES);
            place_unit(unit, &first, &second);
            memcpy(wire + first, words, 8);
            memcpy(wire + second, words + 8, 8);
        }
        atomic_thread_fence(memory_order_release);
        for (uint32_t line = 0; line < SLICE_WIRE; line += LINE_BYTES)
            put_flag64(wire + line + LINE_BYTES - 8, step + 1);
        data += piece;
        bytes -= piece;
    }
}

void crystal_form_pack(enum crystal_proto proto, uint64_t step, const void *data,
                       uint64_t bytes, void *wire)
{
    if (proto == CRYSTAL_PROTO_LL)
        pack_ll(step, data, bytes, wire);
    else if (proto == CRYSTAL_PROTO_LL128)
        pack_ll128(step, data, bytes, wire);
    else if (bytes && data != wire)
        memcpy(wire, data, bytes);
}

static void unpack_ll(const unsigned char *wire, uint64_t bytes, unsigned char *data)
{
    for (; bytes; wire += LL_LINE) {
        unsigned char line[LL_DATA];
        uint64_t piece = bytes < LL_DATA ? bytes : LL_DATA;

        memcpy(line, wire, 4);
        memcpy(line + 4, wire + 8, 4);
        memcpy(data, line, piece);
        data += piece;
        bytes -= piece;
    }
}

static void unpack_ll128(const unsigned char *wire, uint64_t bytes, unsigned char *data)
{
    for (; bytes; wire += SLICE_WIRE) {
        uint64_t piece = bytes < SLICE_DATA ? bytes : SLICE_DATA;

        for (uint32_t unit = 0; unit * UNIT_BYTES < piece; unit++) {
            uint64_t left = piece - unit * UNIT_BYTES;
            unsigned char words[UNIT_BYTES];
            uint32_t first, second;

            place_unit(unit, &first, &second);
            memcpy(words, wire + first, 8);
            memcpy(words + 8, wire + second, 8);
            memcpy(data + (size_t)unit * UNIT_BYTES, words,
                   left < UNIT_BYTES ? left : UNIT_BYTES);
        }
        data += piece;
        bytes -= piece;
    }
}

void crystal_form_unpack(enum crystal_proto proto, const void *wire, uint64_t bytes,
                         void *data)
{
    if (proto == CRYSTAL_PROTO_LL)
        unpack_ll(wire, bytes, data);
    else if (proto == CRYSTAL_PROTO_LL128)
        unpack_ll128(wire, bytes, data);
    else if (bytes)
        memcpy(data, wire, bytes);
}
