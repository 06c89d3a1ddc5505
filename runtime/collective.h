/* What each member of a communicator gets from a collective whose contributions are all
 * there: NCCL's semantics on host memory, nothing else. A contribution may stand for
 * several members (a live rank and the ranks that it represents).
 */
#ifndef CRYSTAL_COLLECTIVE_H
#define CRYSTAL_COLLECTIVE_H

#include "runtime/blob.h"
#include "runtime/error.h"
#include "runtime/message.h"

#include <stdint.h>

#define CRYSTAL_NO_PART UINT32_MAX

/* What one live member put in. */
struct crystal_part {
    struct crystal_slice send; /* borrowed; empty where the function needs nothing */
    uint64_t scalar;           /* factor of CRYSTAL_REDOP_PREMULSUM */
    uint32_t times;            /* members that it stands for, itself included */
    uint32_t lrank;            /* whose, for sentences */
};

struct crystal_collective {
    const struct crystal_msg_op *op; /* func, dtype, redop, count, peer = root */
    uint32_t nranks;
    const uint32_t *part_of; /* by crank: index into parts or CRYSTAL_NO_PART */
    const struct crystal_part *parts; /* ascending by the crank of the live member */
    uint32_t part_count;
};

/* Checks func, dtype, redop and peer of an operation, and that its byte counts are
 * those of the function: bytes that the function does not use may be 0 or the full
 * buffer. -EINVAL with a sentence. */
int crystal_op_check(const struct crystal_msg_op *op, uint32_t nranks, uint32_t crank,
                     struct crystal_error *err);
/* Bytes that a member receives; 0 where it gets nothing. The operation was checked. */
uint64_t crystal_op_recv_bytes(const struct crystal_msg_op *op, uint32_t nranks,
                               uint32_t crank);

/* 1 where all members get the same bytes, so that one result serves them all. */
int crystal_collective_is_shared(const struct crystal_collective *c);
/* The result for crank, with a reference; of a reduce, of its root. */
int crystal_collective_result(const struct crystal_collective *c, uint32_t crank,
                              struct crystal_slice *ret, struct crystal_error *err);

#endif
