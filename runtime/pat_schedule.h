/* Messages of NCCL 2.28's PAT algorithm (parallel aggregated trees), which AllGather
 * and ReduceScatter use where every node has one rank of the communicator.
 *
 * ReduceScatter: the chunk for rank X travels to X along a binomial tree. The rank at
 * distance s before X sends it over 2^d ranks, d the lowest set bit of s, after adding
 * what those behind it sent: its own contribution and that of the 2^d - 1 ranks before
 * it, as far as they are closer to X than all ranks are. AllGather goes the opposite
 * way: the chunk of X, unchanged. So a rank exchanges messages with the ranks 1, 2, 4,
 * ... away only, the dimensions. A message holds several chunks where they are small:
 * `pieces`, one behind the other, each with its X. Every chunk of the channel's part is
 * one round with the same pieces.
 *
 * Which pieces stand in which message follows from the order in which NCCL works
 * (src/include/collectives.h of 2.28.9): the pattern is made once per communicator,
 * size class and direction by walking through that order.
 */
#ifndef CRYSTAL_PAT_SCHEDULE_H
#define CRYSTAL_PAT_SCHEDULE_H

#include "runtime/nccl_abi.h"

#include <stdint.h>

#define CRYSTAL_PAT_DIMS 31

struct crystal_pat_piece {
    uint32_t dim;
    uint32_t message; /* of this dimension, within a round */
    uint32_t place;   /* behind how many chunks in the message */
    uint32_t rank;    /* X - the sender (ReduceScatter), X - the receiver (AllGather) */
};

/* What every rank of a communicator receives per round. */
struct crystal_pat {
    uint32_t dims;
    uint32_t messages[CRYSTAL_PAT_DIMS]; /* per dimension and round */
    uint32_t piece_count;
    struct crystal_pat_piece *pieces; /* by dim, message, place; owned */
    uint32_t first[CRYSTAL_PAT_DIMS + 1];
};

struct crystal_pat_op {
    enum crystal_func func; /* ALLGATHER or REDUCESCATTER */
    uint32_t nranks;
    uint64_t count; /* elements of the API call, per rank */
    uint32_t elt_bytes;
    uint32_t channel_count, channel;
};

/* Which part of each rank's block the channel moves, in bytes, and in which chunks. */
struct crystal_pat_cut {
    uint64_t offset_bytes, bytes, chunk_bytes;
    uint32_t aggregate; /* chunks per message at most; a power of two */
};
void crystal_pat_cut(const struct crystal_pat_op *op, struct crystal_pat_cut *ret);

/* The pattern for that aggregation. 0 or -ENOMEM. Caller: fini. */
int crystal_pat_init(struct crystal_pat *pat, enum crystal_func func, uint32_t nranks,
                     uint32_t aggregate);
void crystal_pat_fini(struct crystal_pat *pat);

/* Messages that each rank receives over dim in this operation on this channel. */
uint64_t crystal_pat_message_count(const struct crystal_pat *pat,
                                   const struct crystal_pat_cut *cut, uint32_t dim);

/* Pieces of the message-th message of a round over dim. */
const struct crystal_pat_piece *crystal_pat_pieces(const struct crystal_pat *pat,
                                                   uint32_t dim, uint32_t message,
                                                   uint32_t *ret_count);

#endif
