/* The run records that one communication call leaves.
 *
 * A call takes numbers (`order` of a run record) in the order of the program's calls: a
 * send, a receive and most collectives one, and leave one record. An all-to-all, a
 * gather or a scatter is sends and receives for NCCL (2.28: taskAppend), of which each
 * takes a number and leaves a record, in this order:
 *
 *   all-to-all  for each crank r: send to r, receive from r
 *   gather      send to the root; the root: receive from each crank
 *   scatter     the root: send to each crank; receive from the root
 *
 * Those of a rank with itself are among them; where the call is in place NCCL moves
 * nothing there, and they may lack records. A collective of no elements, and a
 * communicator of one rank, take no numbers. Pure functions, thread-safe.
 */
#ifndef CRYSTAL_PARTS_H
#define CRYSTAL_PARTS_H

#include "replay/run_record.h"
#include "runtime/graph.h"
#include "runtime/op.h"
#include "runtime/program.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether NCCL makes a collective of sends and receives. */
static inline bool crystal_func_is_parted(uint8_t func)
{
    return func == CRYSTAL_FUNC_ALLTOALL || func == CRYSTAL_FUNC_GATHER ||
           func == CRYSTAL_FUNC_SCATTER;
}

/* A call, as far as its records depend on it. */
struct crystal_call {
    uint8_t kind; /* COLL, SEND or RECV; another one is no call */
    uint8_t func;
    bool is_in_place;
    uint32_t nranks;
    uint32_t crank; /* known for all-to-all, gather and scatter only */
    uint32_t root;
    uint64_t count; /* elements */
};

/* What lrank calls. An op or an instruction that is no call takes no numbers. */
struct crystal_call crystal_call_of_op(const struct crystal_graph *g, uint32_t lrank,
                                       const struct crystal_op *op);
struct crystal_call crystal_call_of_instr(const struct crystal_graph *g, uint32_t lrank,
                                          const struct crystal_instr *in);

/* How many numbers the call takes. */
uint64_t crystal_call_numbers(const struct crystal_call *call);
/* The same of all calls among a rank's records. */
uint64_t crystal_ops_numbers(const struct crystal_graph *g, uint32_t lrank,
                             const struct crystal_op *ops, uint64_t op_count);

struct crystal_part {
    uint8_t func; /* of the record */
    bool may_lack;
    bool is_message; /* a send to or a receive from another rank */
};
/* Part i of the call, i less than its numbers. */
struct crystal_part crystal_call_part(const struct crystal_call *call, uint64_t i);

/* The call's record from recs, of which count are left, sorted by order; its first
 * number is `number`. Parts become one record of the call: from the first send of a
 * message (where it has none: the first receive) to the end of the last part; it waited
 * as long as the part that waited most, since they go on together. Returns how many
 * records the call has taken, at least 1; -EAGAIN: recs ends before the call does;
 * -ESTALE: they are of another call, or one is missing. The call takes numbers. */
int64_t crystal_call_take(const struct crystal_call *call, uint64_t number,
                          const struct crystal_run_record *recs, uint64_t count,
                          struct crystal_run_record *ret);

/* qsort's comparison of records: by order. */
int crystal_run_by_order(const void *a, const void *b);
/* The first of count records, sorted, whose order is not less than number. */
uint64_t crystal_run_find(const struct crystal_run_record *recs, uint64_t count,
                          uint64_t number);

#endif
