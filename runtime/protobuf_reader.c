/* See protobuf_reader.h. */
#include "config.h"

#include "runtime/protobuf_reader.h"

#include <errno.h>

/* Most are of one byte. */
static inline int varint(struct crystal_protobuf *p, uint64_t *ret)
{
    uint64_t value = 0;

    if (p->at == p->end)
        return 0;
    if (*p->at < 0x80) {
        *ret = *p->at++;
        return 1;
    }
    for (unsigned shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        unsigned char byte = *p->at++;

        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *ret = value;
            return 1;
        }
    }
    return -EINVAL;
}

static inline int message(struct crystal_protobuf *p, struct crystal_protobuf *ret)
{
    uint64_t bytes;
    int code = varint(p, &bytes);

    if (code <= 0)
        return code;
    if (bytes > (size_t)(p->end - p->at))
        return -EINVAL;
    *ret = (struct crystal_protobuf){p->at, p->at + bytes};
    p->at += bytes;
    return 1;
}

int crystal_protobuf_varint(struct crystal_protobuf *p, uint64_t *ret)
{
    return varint(p, ret);
}

int crystal_protobuf_message(struct crystal_protobuf *p, struct crystal_protobuf *ret)
{
    return message(p, ret);
}

/* Little-endian, by the format. */
static int fixed(struct crystal_protobuf *p, size_t bytes, uint64_t *ret)
{
    if (bytes > (size_t)(p->end - p->at))
        return -EINVAL;
    *ret = 0;
    for (size_t i = 0; i < bytes; i++)
        *ret |= (uint64_t)p->at[i] << 8 * i;
    p->at += bytes;
    return 1;
}

int crystal_protobuf_next(struct crystal_protobuf *p,
                          struct crystal_protobuf_field *ret)
{
    uint64_t tag;
    int code = varint(p, &tag);

    if (code <= 0)
        return code;
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
        return -EINVAL;
    ret->number = (uint32_t)(tag >> 3);
    ret->value = 0;
    ret->bytes = (struct crystal_protobuf){NULL, NULL};
    switch (tag & 7) {
    case CRYSTAL_PROTOBUF_VARINT:
        ret->kind = CRYSTAL_PROTOBUF_VARINT;
        code = varint(p, &ret->value);
        break;
    case CRYSTAL_PROTOBUF_FIXED64:
        ret->kind = CRYSTAL_PROTOBUF_FIXED64;
        code = fixed(p, 8, &ret->value);
        break;
    case CRYSTAL_PROTOBUF_BYTES:
        ret->kind = CRYSTAL_PROTOBUF_BYTES;
        code = message(p, &ret->bytes);
        break;
    case CRYSTAL_PROTOBUF_FIXED32:
        ret->kind = CRYSTAL_PROTOBUF_FIXED32;
        code = fixed(p, 4, &ret->value);
        break;
    default:
        return -EINVAL;
    }
    return code == 1 ? 1 : -EINVAL;
}
