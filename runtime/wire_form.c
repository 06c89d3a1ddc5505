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

/* One line of 8 bytes of data. */
static void pack_line(uint64_t flag, const unsigned char *data, unsigned char *wire)
{
    uint32_t words[2];

    memcpy(words, data, LL_DATA);
    put_flag64(wire, flag | words[0]); /* a word and its flag are one store */
    put_flag64(wire + 8, flag | words[1]);
}

static void pack_ll(uint64_t step, const unsigned char *data, uint64_t bytes,
                    unsigned char *wire)
{
    const uint64_t flag = (uint64_t)(uint32_t)(step + 1) << 32;
    unsigned char last[LL_DATA] = {0};

    for (; bytes >= LL_DATA; wire += LL_LINE, data += LL_DATA, bytes -= LL_DATA)
        pack_line(flag, data, wire);
    if (bytes) {
        memcpy(last, data, bytes);
        pack_line(flag, last, wire);
    }
}

/* A whole slice's data, line by line as place_unit has it: 15 words of a line of the
 * first block and 14 of one of the second stand together; the line's sixteenth word is
 * the other one's fifteenth. */
static void pack_slice(const unsigned char *data, unsigned char *wire)
{
    for (uint32_t half = 0; half < 2; half++) {
        const unsigned char *from = data + (size_t)half * HALF_UNITS * UNIT_BYTES;
        unsigned char *to = wire + (size_t)half * HALF_WIRE;

        for (uint32_t line = 0; line < HALF_WIRE / 2 / LINE_BYTES; line++) {
            memcpy(to, from, LINE_BYTES - 8);
            memcpy(to + BLOCK_WIRE + LINE_BYTES - 16, from + LINE_BYTES - 8, 8);
            to += LINE_BYTES;
            from += LINE_BYTES;
        }
        for (uint32_t line = 0; line < HALF_WIRE / 2 / LINE_BYTES; line++) {
            memcpy(to, from, LINE_BYTES - 16);
            to += LINE_BYTES;
            from += LINE_BYTES - 16;
        }
    }
}

static void unpack_slice(const unsigned char *wire, unsigned char *data)
{
    for (uint32_t half = 0; half < 2; half++) {
        const unsigned char *from = wire + (size_t)half * HALF_WIRE;
        unsigned char *to = data + (size_t)half * HALF_UNITS * UNIT_BYTES;

        for (uint32_t line = 0; line < HALF_WIRE / 2 / LINE_BYTES; line++) {
            memcpy(to, from, LINE_BYTES - 8);
            memcpy(to + LINE_BYTES - 8, from + BLOCK_WIRE + LINE_BYTES - 16, 8);
            from += LINE_BYTES;
            to += LINE_BYTES;
        }
        for (uint32_t line = 0; line < HALF_WIRE / 2 / LINE_BYTES; line++) {
            memcpy(to, from, LINE_BYTES - 16);
            from += LINE_BYTES;
            to += LINE_BYTES - 16;
        }
    }
}

/* What there is of a slice. */
static void pack_piece(const unsigned char *data, uint64_t piece, unsigned char *wire)
{
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
}

static void slice_flags(uint64_t step, unsigned char *wire)
{
    for (uint32_t line = 0; line < SLICE_WIRE; line += LINE_BYTES)
        put_flag64(wire + line + LINE_BYTES - 8, step + 1);
}

static void pack_ll128(uint64_t step, const unsigned char *data, uint64_t bytes,
                       unsigned char *wire)
{
    for (; bytes; wire += SLICE_WIRE) {
        uint64_t piece = bytes < SLICE_DATA ? bytes : SLICE_DATA;

        if (piece == SLICE_DATA)
            pack_slice(data, wire);
        else
            pack_piece(data, piece, wire);
        atomic_thread_fence(memory_order_release);
        slice_flags(step, wire);
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
    unsigned char line[LL_DATA];

    for (; bytes; wire += LL_LINE) {
        uint64_t piece = bytes < LL_DATA ? bytes : LL_DATA;

        memcpy(line, wire, 4);
        memcpy(line + 4, wire + 8, 4);
        if (piece == LL_DATA)
            memcpy(data, line, LL_DATA);
        else
            memcpy(data, line, piece);
        data += piece;
        bytes -= piece;
    }
}

static void unpack_piece(const unsigned char *wire, uint64_t piece, unsigned char *data)
{
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
}

static void unpack_ll128(const unsigned char *wire, uint64_t bytes, unsigned char *data)
{
    for (; bytes; wire += SLICE_WIRE) {
        uint64_t piece = bytes < SLICE_DATA ? bytes : SLICE_DATA;

        if (piece == SLICE_DATA)
            unpack_slice(wire, data);
        else
            unpack_piece(wire, piece, data);
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

void crystal_form_flags(enum crystal_proto proto, uint64_t step, uint64_t wire_bytes,
                        void *wire)
{
    unsigned char *at = wire;
    const uint32_t flag = (uint32_t)(step + 1);

    if (proto == CRYSTAL_PROTO_LL)
        for (uint64_t i = 4; i < wire_bytes; i += 8)
            memcpy(at + i, &flag, sizeof flag);
    else if (proto == CRYSTAL_PROTO_LL128)
        for (uint64_t i = 0; i + SLICE_WIRE <= wire_bytes; i += SLICE_WIRE)
            slice_flags(step, at + i);
}

static void repack_ll(uint64_t step, const unsigned char *from, uint64_t wire_bytes,
                      unsigned char *wire)
{
    const uint64_t flag = (uint64_t)(uint32_t)(step + 1) << 32;

    for (uint64_t i = 0; i + 8 <= wire_bytes; i += 8) {
        uint32_t word;

        memcpy(&word, from + i, sizeof word);
        put_flag64(wire + i, flag | word);
    }
}

static void repack_ll128(uint64_t step, const unsigned char *from, uint64_t wire_bytes,
                         unsigned char *wire)
{
    for (uint64_t i = 0; i + SLICE_WIRE <= wire_bytes; i += SLICE_WIRE) {
        for (uint32_t line = 0; line < SLICE_WIRE; line += LINE_BYTES)
            memcpy(wire + i + line, from + i + line, LINE_BYTES - 8);
        atomic_thread_fence(memory_order_release);
        slice_flags(step, wire + i);
    }
}

void crystal_form_repack(enum crystal_proto proto, uint64_t step, const void *from,
                         uint64_t wire_bytes, void *wire)
{
    if (proto == CRYSTAL_PROTO_LL)
        repack_ll(step, from, wire_bytes, wire);
    else if (proto == CRYSTAL_PROTO_LL128)
        repack_ll128(step, from, wire_bytes, wire);
    else if (wire_bytes)
        memcpy(wire, from, wire_bytes);
}

uint64_t crystal_form_step(enum crystal_proto proto, const void *wire)
{
    const unsigned char *at = wire;
    uint32_t flag32;
    uint64_t flag64;

    switch (proto) {
    case CRYSTAL_PROTO_LL:
        memcpy(&flag32, at + 4, sizeof flag32);
        return (uint32_t)(flag32 - 1);
    case CRYSTAL_PROTO_LL128:
        memcpy(&flag64, at + LINE_BYTES - 8, sizeof flag64);
        return flag64 - 1;
    default:
        return 0;
    }
}
