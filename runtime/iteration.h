/* Where the iterations of a trace begin: from the repeating structure of its
 * communication records, so that a program needs to say nothing. Microbatches inside an
 * iteration repeat too, but over a smaller part of the trace.
 */
#ifndef CRYSTAL_ITERATION_H
#define CRYSTAL_ITERATION_H

#include "runtime/trace.h"

#include <stddef.h>
#include <stdint.h>

/* The stretch of symbols[0 .. count-1] that repeats over the greatest length, at least
 * twice: symbols[i] == symbols[i + period] for start <= i < end - period. Of several
 * periods that explain nearly the same stretch the smallest is taken. period is 0 where
 * nothing repeats. Returns 0 or -ENOMEM. Time O(n log^2 n). */
struct crystal_stretch {
    size_t start, end, period;
};
int crystal_stretch_find(const uint64_t *symbols, size_t count,
                         struct crystal_stretch *ret);

/* Record indices where iterations begin and, last, where the last one ends; *ret is
 * NULL and *ret_count 0 where nothing repeats. Caller frees *ret. Returns 0 or -ENOMEM.
 *
 * Structure is kind, function, communicator, stream and peer. Where sizes and iteration
 * hints repeat as well they sharpen it: three buckets of one kind in each iteration are
 * three records of different size, not three iterations. */
int crystal_iteration_find(const struct crystal_op *ops, uint64_t op_count,
                           uint64_t **ret, uint32_t *ret_count);

#endif
