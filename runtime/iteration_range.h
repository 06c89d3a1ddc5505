/* Where the iterations of a trace begin whose program says so itself: at the HINT
 * records of an NVTX range (capture.iteration_range, CRYSTAL_HINT_RANGE). iteration.h
 * has those that nobody marks.
 */
#ifndef CRYSTAL_ITERATION_RANGE_H
#define CRYSTAL_ITERATION_RANGE_H

#include "runtime/error.h"
#include "runtime/op.h"

#include <stdbool.h>
#include <stdint.h>

enum crystal_range_sight {
    CRYSTAL_RANGE_NEVER, /* it did not begin once, or none was asked for */
    CRYSTAL_RANGE_BEGINS,
    CRYSTAL_RANGE_HIDDEN /* another tool stood behind NVTX */
};
enum crystal_range_sight crystal_range_look(const struct crystal_op *ops,
                                            uint64_t op_count);

/* The record that an iteration begins with. */
bool crystal_range_is_begin(const struct crystal_op *op);

/* Iterations as crystal_iteration_find gives them. */
struct crystal_range_marks {
    uint64_t *marks;     /* owned */
    uint32_t count;      /* of marks: one more than iterations */
    uint32_t left_count; /* iterations in front of them that were left out */
};

/* Each iteration has to make the calls of the last one, sizes apart; those in front
 * that do not, at most half of all, are a warm-up and left out. What follows the last
 * range's begin is an iteration where it has the calls of the one before. Caller frees
 * ret->marks. Returns 0; -EINVAL, -ENODATA with what is wrong, to which the caller adds
 * whose trace it is; -ENOMEM. */
int crystal_range_find(const struct crystal_op *ops, uint64_t op_count,
                       struct crystal_range_marks *ret, struct crystal_error *err);

#endif
