/* Requests of PyTorch's TCPStore protocol as bytes: where one ends and what is in it.
 *
 *   request = u8 opcode, then by opcode: a fixed part, a count, strings, a fixed part
 *   string  = u64 length, bytes        (keys at most 8 KiB, values at most 8 MiB)
 *   count   = u64, at most 131072      (of keys, or of key-value pairs)
 * Integers are little-endian as the machines that PyTorch runs on are; no alignment.
 * Opcodes 0 to 16 are those of PyTorch 2.4 to 2.11; later ones are appended there.
 */
#ifndef CRYSTAL_STORE_WIRE_H
#define CRYSTAL_STORE_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum crystal_store_opcode {
    CRYSTAL_STORE_VALIDATE = 0,
    CRYSTAL_STORE_SET = 1,
    CRYSTAL_STORE_COMPARE_SET = 2,
    CRYSTAL_STORE_GET = 3,
    CRYSTAL_STORE_ADD = 4,
    CRYSTAL_STORE_CHECK = 5,
    CRYSTAL_STORE_WAIT = 6,
    CRYSTAL_STORE_GETNUMKEYS = 7,
    CRYSTAL_STORE_DELETE_KEY = 8,
    CRYSTAL_STORE_APPEND = 9,
    CRYSTAL_STORE_MULTI_GET = 10,
    CRYSTAL_STORE_MULTI_SET = 11,
    CRYSTAL_STORE_CANCEL_WAIT = 12,
    CRYSTAL_STORE_PING = 13,
    CRYSTAL_STORE_QUEUE_PUSH = 14,
    CRYSTAL_STORE_QUEUE_POP = 15,
    CRYSTAL_STORE_QUEUE_LEN = 16,
    CRYSTAL_STORE_OPCODES = 17
};

#define CRYSTAL_STORE_MAGIC         0x3C85F7CEU /* VALIDATE's u32 */
#define CRYSTAL_STORE_KEY_MAX       8192U
#define CRYSTAL_STORE_VALUE_MAX     (8U << 20)
#define CRYSTAL_STORE_COUNT_MAX     131072U
#define CRYSTAL_STORE_REQUEST_MAX   (1U << 30) /* of our own: one request in all */
#define CRYSTAL_STORE_READY         0U
#define CRYSTAL_STORE_NOT_READY     1U
#define CRYSTAL_STORE_STOP_WAITING  0U
#define CRYSTAL_STORE_WAIT_CANCELED 1U

/* How far the scan of one request has come; all zero at its beginning. */
struct crystal_store_scan {
    size_t end;       /* bytes known to belong to the request */
    uint64_t strings; /* still to come */
    unsigned string;  /* index of the next in the opcode's pattern */
    uint8_t opcode;
    uint8_t started; /* opcode, fixed part and count are behind us */
    uint8_t complete;
};

/* Looks at data, which begins with the request's first byte and has grown since the
 * last call. 1 = the request is data[0 .. scan->end); 0 = more bytes are needed;
 * -EBADMSG = no request of this protocol, or beyond its limits. */
int crystal_store_scan(struct crystal_store_scan *scan, const uint8_t *data,
                       size_t data_bytes);

/* Reads a complete request field by field, behind the opcode. No checks: the scan made
 * them. */
struct crystal_store_string {
    const uint8_t *at;
    size_t bytes;
};
uint32_t crystal_store_take_u32(const uint8_t **at);
uint64_t crystal_store_take_u64(const uint8_t **at);
struct crystal_store_string crystal_store_take_string(const uint8_t **at);

#endif
