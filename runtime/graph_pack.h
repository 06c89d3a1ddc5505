/* Records in half the room: job.graph of version 3 keeps a table of shapes, records
 * without what differs each time, and for each record 16 bytes that name its shape.
 *
 * A record has its shape's fields, but peer and t_ns of its own (as the distance from
 * the record before) and, by kind, the value: of WAIT and SYNC the distance from t_ns,
 * of KERNEL the duration, of PAYLOAD the distance from the PAYLOAD before; other values
 * belong to the shape. Where one of these does not fit 32 bits, and for EXT, the shape
 * is the whole record (WIDE). Pure, thread-safe.
 */
#ifndef CRYSTAL_GRAPH_PACK_H
#define CRYSTAL_GRAPH_PACK_H

#include "runtime/op.h"

#include <stdint.h>

#define CRYSTAL_GRAPH_WIDE UINT32_C(0x80000000)

struct crystal_graph_packed {
    uint32_t shape; /* index, with WIDE */
    int32_t dt_ns;
    uint32_t peer, value;
};

/* Records that have been packed so far, in any number of pieces. Zeroed: none. */
struct crystal_graph_packer {
    struct crystal_op *shapes;
    uint64_t shape_count, shape_capacity;
    uint32_t *places; /* of shapes, open addressing: 1 + index, 0: free */
    uint64_t mask;
    struct crystal_graph_packed *rows;
    uint64_t count, capacity;
    uint64_t t_ns, payload; /* what the next record is told from */
};

void crystal_graph_packer_fini(struct crystal_graph_packer *p);
/* 0, -ENOMEM, or -E2BIG for more than 2^31 shapes: then it can only be ended. */
int crystal_graph_packer_put(struct crystal_graph_packer *p,
                             const struct crystal_op *ops, uint64_t count);

/* Fills ops, which has room for count; -EINVAL where a record names no shape. */
int crystal_graph_unpack(const struct crystal_op *shapes, uint64_t shape_count,
                         const struct crystal_graph_packed *packed, uint64_t count,
                         struct crystal_op *ops);

#endif
