/* Which bytes a ring collective moves in which message: NCCL 2.28's ring. One function
 * for everybody: hostccl sends by it, virtual ranks put their contributions by it, the
 * timeline counts by it.
 *
 * The one at place p of the ring receives from p-1 and sends to p+1 (mod n). A ring is
 * in rank order, where place and crank are the same, or `ring` lists it; crank 0 is at
 * place 0 in any case. Message `index` counts the network messages of one operation on
 * one connection and channel, from 0, as NCCL's proxy does (two slices per chunk step
 * for AllReduce, AllGather and ReduceScatter with the Simple protocol, one otherwise; a
 * slice of 0 bytes is a message too). Sizes are of the data; wire_form.h has what they
 * take on the wire. Pure functions, thread-safe.
 */
#ifndef CRYSTAL_RING_SCHEDULE_H
#define CRYSTAL_RING_SCHEDULE_H

#include "runtime/nccl_abi.h"
#include "runtime/wire_form.h"

#include <stdint.h>

struct crystal_ring_op {
    enum crystal_func func; /* BROADCAST, REDUCE, ALLGATHER, REDUCESCATTER, ALLREDUCE */
    uint32_t nranks;
    uint32_t root;  /* BROADCAST, REDUCE: its place */
    uint64_t count; /* elements as in the API call (per rank for AG and RS) */
    uint32_t elt_bytes;
    uint32_t channel_count; /* channels this operation may use (NCCL's own number of
                               channels used gives the same cuts); 1 .. 64 */
    uint32_t channel;       /* which one; small operations leave the last ones idle */
    enum crystal_proto proto;
    const uint32_t *ring; /* crank by place [nranks], borrowed; NULL: rank order */
};

struct crystal_ring_message {
    uint64_t offset_elts; /* where in the whole tensor: the send buffer of ALLREDUCE,
                             BROADCAST, REDUCE; the n*count side of AG and RS */
    uint32_t elts;        /* may be 0 */
    uint32_t step;        /* chunk step within the loop: 0 .. steps-1 */
    uint32_t slice;
    uint32_t loop;
    uint32_t block; /* AG, RS: crank whose block this is; AR: chunk of the loop,
                       0 .. nranks-1; else the loop */
};

/* Messages per chunk step, and steps of the connection that a chunk takes. */
uint32_t crystal_ring_slices(const struct crystal_ring_op *op);
uint32_t crystal_ring_chunk_steps(const struct crystal_ring_op *op);

/* Network messages that the one at place sends (is_send) or receives in this operation
 * on this channel; 0 where it has none (the root of a broadcast receives nothing). */
uint64_t crystal_ring_message_count(const struct crystal_ring_op *op, uint32_t place,
                                    int is_send);

/* The index-th message that it sends or receives. index < the count above. */
void crystal_ring_message(const struct crystal_ring_op *op, uint32_t place, int is_send,
                          uint64_t index, struct crystal_ring_message *ret);

/* Bytes of send and receive staging per message at most (NCCL's slot: 512 KiB times
 * sliceSteps). */
#define CRYSTAL_RING_STEP_BYTES (512U * 1024U)

/* Network messages of a p2p transfer: NCCL cuts it into chunks of this many bytes. A
 * transfer of 0 bytes is one message of 0 bytes. */
#define CRYSTAL_P2P_CHUNK_BYTES (512U * 1024U)

#endif
