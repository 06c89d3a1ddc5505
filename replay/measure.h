/* What a trace with real times tells: the computation before each instruction of a
 * program, and how long its operations took.
 */
#ifndef CRYSTAL_MEASURE_H
#define CRYSTAL_MEASURE_H

#include "runtime/error.h"
#include "runtime/program.h"
#include "runtime/trace.h"

#include <stdint.h>

/* Samples by instruction, from several iterations and traces. */
struct crystal_measure {
    uint32_t instr_count;
    uint32_t sample_count; /* iterations */
    uint64_t *gap_ns;      /* [sample_count][instr_count] */
    uint64_t *transfer_ns; /* the same; UINT64_MAX where the end was not recorded */
};

/* Adds the iterations of one trace from mark number `first` on (0 is the warm-up). Its
 * communication calls have to be those of the program; waits may differ, as a program
 * that polls need not wait each time. marks as crystal_iteration_find gives them. */
int crystal_measure_add(struct crystal_measure *m, const struct crystal_program *p,
                        const struct crystal_op *ops, uint64_t op_count,
                        const uint64_t *marks, uint32_t mark_count, uint32_t first,
                        struct crystal_error *err);
void crystal_measure_fini(struct crystal_measure *m);

/* Mean, 10th and 90th percentile (nearest rank) of samples; UINT64_MAX ones are left
 * out. All 0 where there are none. Returns how many. values may be reordered. */
uint32_t crystal_measure_spread(uint64_t *values, uint32_t count, uint64_t *ret_mean,
                                uint64_t *ret_p10, uint64_t *ret_p90);

#endif
