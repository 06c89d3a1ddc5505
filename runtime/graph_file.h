/* The bytes of job.graph behind its crystal_filehead, for its writer and its reader
 * only. Integers are in the writer's byte order, as the header says. Versions 1 to 4:
 * in 1, ranks_per_node and network are 0 and no record is a KERNEL; from 3 on, the
 * records are packed; in 4, COLL may tell algorithm and protocol. Versions 5 to 8 have
 * the bodies of 1 to 4, and head_hash in the header.
 *
 *   struct crystal_graph_head                     128 bytes
 *   struct crystal_graph_rep    [rep_count]       one per representative
 *   struct crystal_graph_rank   [lrank_count]     the rank map
 *   struct crystal_graph_set    [comm_count]      communicators
 *   struct crystal_graph_local  [local_count]     communicators of representatives
 *   struct crystal_graph_coll   [coll_count]      what each collective contributed
 *   struct crystal_graph_send   [send_count]      what each send contributed
 *   struct crystal_op           [op_count]        traces, as they were recorded; or,
 *   from version 3 on,
 *   struct crystal_graph_pack_head
 *   struct crystal_op           [shape_count]
 *   struct crystal_graph_packed [op_count]        (graph_pack.h)
 *
 *   uint64_t marks              [mark_count]
 *   uint32_t map                [map_count]       local index -> communicator, by lrank
 *   uint32_t members            [member_count]    lranks by crank
 *   uint8_t  names              [name_bytes]      zero-terminated strings
 *   uint8_t  payload            [payload_bytes]   contributions, each 16-byte aligned
 * Each section begins at the next multiple of 16 bytes from the body's start.
 */
#ifndef CRYSTAL_GRAPH_FILE_H
#define CRYSTAL_GRAPH_FILE_H

#include "runtime/trace.h"

#include <stdint.h>

#define CRYSTAL_GRAPH_NONE UINT64_MAX

struct crystal_graph_head {
    uint32_t lrank_count; /* at least 1 */
    uint32_t rep_count;
    uint32_t comm_count;
    uint32_t dp_stride;      /* dp coordinate of a rank: lrank / dp_stride % dp_size */
    uint32_t dp_size;        /* 1 where every rank is live or there is no dp */
    uint32_t ranks_per_node; /* 0: the network is not told */
    uint64_t local_count, coll_count, send_count, op_count, mark_count, map_count,
        member_count, name_bytes, payload_bytes;
    uint64_t bytes_per_s, latency_ns, node_bytes_per_s, node_latency_ns;
};
_Static_assert(sizeof(struct crystal_graph_head) == 128, "frozen");

struct crystal_graph_rep {
    uint32_t lrank;
    uint32_t local_count; /* COMM records */
    uint64_t local_first;
    uint64_t op_first, op_count;
    uint64_t mark_first;
    uint32_t mark_count;
    uint32_t zero;
};
_Static_assert(sizeof(struct crystal_graph_rep) == 48, "frozen");

struct crystal_graph_pack_head {
    uint64_t shape_count;
    uint64_t zero;
};
_Static_assert(sizeof(struct crystal_graph_pack_head) == 16, "frozen");

struct crystal_graph_rank {
    uint32_t rep;
    uint32_t zero;
    uint64_t map_first; /* its local_count entries of the map */
};
_Static_assert(sizeof(struct crystal_graph_rank) == 16, "frozen");

struct crystal_graph_set {
    uint64_t name; /* offset in names, or NONE */
    uint64_t member_first;
    uint32_t nranks;
    /* The dp coordinates of its members are dp_first + i * dp_step, i < dp_count;
     * dp_count 0 where they are not evenly spaced. */
    uint32_t dp_first, dp_step, dp_count;
};
_Static_assert(sizeof(struct crystal_graph_set) == 32, "frozen");

struct crystal_graph_local {
    uint64_t coll_first, coll_count; /* in order of issue */
    uint64_t send_first, send_count; /* by peer, then in order of issue */
    /* Collectives before the last recorded iteration and in it; 0, 0 without marks. */
    uint64_t last_first, last_count;
};
_Static_assert(sizeof(struct crystal_graph_local) == 48, "frozen");

struct crystal_graph_coll {
    uint64_t payload; /* offset in payload, or NONE where it was not kept */
    uint64_t bytes;
};

struct crystal_graph_send {
    uint32_t peer; /* crank */
    uint32_t zero;
    uint64_t payload;
    uint64_t bytes;
};
_Static_assert(sizeof(struct crystal_graph_send) == 24, "frozen");

#endif
