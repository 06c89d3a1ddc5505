/* How long one communication operation takes: from the arrivals of its members to their
 * ends, in closed form.
 *
 * The rules are those of single messages. A message of b bytes occupies its sender's
 * NIC for b / bytes_per_s and arrives latency_ns + overhead_ns after its last byte has
 * left. In a ring a rank sends message m when it and the next rank have arrived, its
 * message m - 1 has left, and the message that m passes on (one chunk step earlier,
 * same slice) has arrived. What depends on what is a graph of which the closed form is
 * the longest path; it is exact where all chunks have the size of the first one.
 *
 * So every message is a rendezvous: it leaves when both sides have arrived.
 *
 * Tree and PAT repeat one pattern of messages, once for each chunk of the channel's
 * part (runtime/tree_schedule.h, pat_schedule.h). The connections of a rank share its
 * NIC evenly: a connection begins with the next chunk one period after the chunk
 * before, the period being the time of all that the busiest rank sends for one chunk.
 * So the last chunk is everywhere the number of chunks less one periods behind the
 * first, exactly. Tree: a rank sends a chunk up when it and its parent have arrived and
 * its children's chunks are there; from the root on it comes down. PAT: in step s = 0,
 * 1, ... a rank sends what it has of the chunk, 2^s blocks at most, to the rank 2^s
 * behind it when both have arrived and what the step before brought is there (a
 * reduce-scatter from the last step to the first). Pure functions, thread-safe.
 */
#ifndef CRYSTAL_TRANSFER_H
#define CRYSTAL_TRANSFER_H

#include "runtime/nccl_abi.h"
#include "runtime/wire_form.h"

#include <stdint.h>

enum crystal_transfer_algo { /* bits; what has none of them is a ring */
                             CRYSTAL_TRANSFER_TREE = 1, /* all-reduce: one or, with two
                                                           channels, both trees */
                             CRYSTAL_TRANSFER_PAT =
                                 2 /* all-gather and reduce-scatter */
};

/* The bits of a list as NCCL_ALGO has it: "tree", "ring,pat", in any case; what a tree
 * or PAT cannot do stays a ring. Other names, and NULL, are none. */
uint32_t crystal_transfer_algos(const char *list);
/* The protocol of a list as NCCL_PROTO has it where that is the only one; else Simple.
 */
enum crystal_proto crystal_transfer_proto(const char *list);

struct crystal_transfer_wire {
    uint64_t bytes_per_s; /* 0: bytes cost nothing */
    uint64_t latency_ns;
    uint64_t overhead_ns;     /* software cost per message, see the profile */
    uint32_t channel_count;   /* channels of the ring, 1 .. 64 */
    uint64_t op_overhead_ns;  /* software cost of an operation at its end */
    uint32_t algos;           /* enum crystal_transfer_algo */
    uint32_t node_ranks;      /* tree: members on each node, consecutive; 0: one */
    enum crystal_proto proto; /* of rings and trees */
};

struct crystal_transfer_op {
    enum crystal_func func; /* a collective */
    uint32_t nranks;        /* at least 1 */
    uint32_t root;
    uint64_t count; /* elements as in the API call */
    uint32_t elt_bytes;
    uint8_t way; /* CRYSTAL_OP_WAY: the algorithm and the protocol that it had; what is
                    not known of them is as the wire says */
};

/* Messages of one step that fit in a connection's staging memory. */
#define CRYSTAL_TRANSFER_STAGED_CHUNKS 8U

/* What an operation costs on a wire, worked out once for many calls. Its fields belong
 * to transfer.c. */
struct crystal_transfer_cost {
    uint64_t steps, hop_ns, chunk_ns, last_ns, held_ns;
};
struct crystal_transfer_repeat { /* of tree and PAT */
    uint64_t count;              /* chunks, 0: a ring */
    uint64_t period_ns;
    uint64_t hop_ns[2]; /* tree: of a chunk, and of the last one, way included */
    uint64_t chunk_bytes, last_bytes; /* PAT: of a block, over all channels */
};
struct crystal_transfer_plan {
    struct crystal_transfer_repeat repeat;
    struct crystal_transfer_wire wire;
    struct crystal_transfer_cost each, last;
    uint64_t loops;
    uint64_t bytes_ns, way_ns, op_overhead_ns;
    enum crystal_func func;
    uint32_t nranks, root;
};
void crystal_transfer_plan_init(struct crystal_transfer_plan *plan,
                                const struct crystal_transfer_wire *wire,
                                const struct crystal_transfer_op *op);
/* As crystal_transfer_coll, for the operation and wire of the plan. */
void crystal_transfer_plan_ends(const struct crystal_transfer_plan *plan,
                                const uint64_t *arrive, uint64_t *ends,
                                uint64_t *scratch);

/* How long the NIC of the busiest member is in use, had all arrived together. */
uint64_t crystal_transfer_plan_nic_ns(const struct crystal_transfer_plan *plan);

/* How long the operation can take behind its last arrival, as a number that cannot
 * overflow. */
double crystal_transfer_plan_most_ns(const struct crystal_transfer_plan *plan);

/* transfer_repeat.c, for transfer.c: sets plan->repeat where the wire's algorithm is
 * tree or PAT, and fills ends from it. */
void crystal_transfer_repeat_init(struct crystal_transfer_plan *plan,
                                  const struct crystal_transfer_op *op);
void crystal_transfer_repeat_ends(const struct crystal_transfer_plan *plan,
                                  const uint64_t *arrive, uint64_t *ends,
                                  uint64_t *scratch);

/* Time of bytes on a NIC, rounded up. */
uint64_t crystal_transfer_occupy_ns(const struct crystal_transfer_wire *wire,
                                    uint64_t bytes);

/* Ends by crank from arrivals by crank. scratch has 2 * nranks elements; the three
 * arrays are distinct. O(nranks). */
void crystal_transfer_coll(const struct crystal_transfer_wire *wire,
                           const struct crystal_transfer_op *op, const uint64_t *arrive,
                           uint64_t *ends, uint64_t *scratch);

/* How long the operation takes at crank where all arrive together: the part of its
 * duration that is no waiting for others. scratch has 4 * nranks elements. O(1) for
 * rings. */
uint64_t crystal_transfer_alone_ns(const struct crystal_transfer_wire *wire,
                                   const struct crystal_transfer_op *op, uint32_t crank,
                                   uint64_t *scratch);

/* Point-to-point. A sender is done when the rest of its message fits in staging memory:
 * at once up to this many bytes, without its receiver. */
#define CRYSTAL_TRANSFER_EAGER_BYTES (8U * 512U * 1024U)
/* From the moment when both sides have arrived (and the sender's NIC is free) until the
 * sender is done with more bytes than that; 0 up to then. */
uint64_t crystal_transfer_send_ns(const struct crystal_transfer_wire *wire,
                                  uint64_t bytes);
/* From the same moment until the receiver has all. */
uint64_t crystal_transfer_recv_ns(const struct crystal_transfer_wire *wire,
                                  uint64_t bytes);

#endif
