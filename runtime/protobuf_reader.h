/* The wire format of protocol buffers, read from memory without a schema: a message is
 * fields, each a number with a varint, four or eight bytes, or a slice of bytes. For
 * traces of other tools. Nothing is allocated; every length is checked. Source: the
 * encoding guide at protobuf.dev. Pure, thread-safe.
 */
#ifndef CRYSTAL_PROTOBUF_READER_H
#define CRYSTAL_PROTOBUF_READER_H

#include <stddef.h>
#include <stdint.h>

struct crystal_protobuf {
    const unsigned char *at, *end;
};

enum crystal_protobuf_kind {
    CRYSTAL_PROTOBUF_VARINT = 0,
    CRYSTAL_PROTOBUF_FIXED64 = 1,
    CRYSTAL_PROTOBUF_BYTES = 2, /* a string, a message, or packed numbers */
    CRYSTAL_PROTOBUF_FIXED32 = 5
};

struct crystal_protobuf_field {
    uint32_t number;
    enum crystal_protobuf_kind kind;
    uint64_t value;                /* of numbers */
    struct crystal_protobuf bytes; /* of BYTES */
};

/* Returns 1 with a field, 0 at the end, -EINVAL where the bytes are none. */
int crystal_protobuf_next(struct crystal_protobuf *p,
                          struct crystal_protobuf_field *ret);
/* A plain varint, as before each message of a stream and in packed fields; the same
 * values. */
int crystal_protobuf_varint(struct crystal_protobuf *p, uint64_t *ret);
/* The next message of a stream of messages behind their lengths; the same values. */
int crystal_protobuf_message(struct crystal_protobuf *p, struct crystal_protobuf *ret);

#endif
