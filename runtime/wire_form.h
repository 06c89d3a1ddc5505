/* The three forms in which NCCL puts a message's bytes on the wire, its protocols.
 *
 *   Simple  the bytes as they are
 *   LL      lines of 16 bytes: 4 data, flag, 4 data, flag (32 bits each)
 *   LL128   slices of 2048 bytes for 1920 of data: 16 lines of 128 bytes whose last 8
 *           are the flag (64 bits). Data stand in units of 16 bytes: of each half slice
 *           the first 32 units fill the first half's lines, with the second word of
 *           every unit that meets a flag in front of the flag 512 bytes further on; the
 *           other 28 units fill what is left there.
 * The flag of a message is the connection's step + 1: its steps so far, those of the
 * operations before included (Simple counts them too). A receiver takes a line when its
 * flag is there, so a message with the wrong flag is never received.
 * Facts of NCCL 2.28.9, src/device/prims_ll.h and prims_ll128.h.
 * Pure functions, thread-safe.
 */
#ifndef CRYSTAL_WIRE_FORM_H
#define CRYSTAL_WIRE_FORM_H

#include <stdint.h>

enum crystal_proto {
    CRYSTAL_PROTO_SIMPLE = 0,
    CRYSTAL_PROTO_LL,
    CRYSTAL_PROTO_LL128,
    CRYSTAL_PROTO_COUNT
};

/* Data that one step of a connection's buffer holds at most (NCCL_BUFFSIZE and its kin
 * at their defaults), and what chunks are multiples of. */
uint32_t crystal_form_step_bytes(enum crystal_proto proto);
uint32_t crystal_form_grain_bytes(enum crystal_proto proto);

/* Bytes on the wire for `bytes` of data. */
uint64_t crystal_form_bytes(enum crystal_proto proto, uint64_t bytes);

/* Writes a message with step's flags; flags last, so that a reader who sees one sees
 * its line's data. wire has room for crystal_form_bytes. */
void crystal_form_pack(enum crystal_proto proto, uint64_t step, const void *data,
                       uint64_t bytes, void *wire);

/* The same where the data are in another message's form already: its bytes with step's
 * flags instead of its own. wire_bytes is what crystal_form_bytes says of a message. */
void crystal_form_repack(enum crystal_proto proto, uint64_t step, const void *from,
                         uint64_t wire_bytes, void *wire);

/* Only step's flags; what stands between them stays. */
void crystal_form_flags(enum crystal_proto proto, uint64_t step, uint64_t wire_bytes,
                        void *wire);

/* The step whose flags a message has: that of its first line, which must be there. 0
 * where the form has none. */
uint64_t crystal_form_step(enum crystal_proto proto, const void *wire);

/* The data of a message. */
void crystal_form_unpack(enum crystal_proto proto, const void *wire, uint64_t bytes,
                         void *data);

#endif
