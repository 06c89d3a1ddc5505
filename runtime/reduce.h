/* Reductions on host memory for every NCCL datatype and operation.
 *
 * Shared by the coordinator's collectives (capture) and hostccl. Results do not depend
 * on the machine: integers wrap around, 16- and 8-bit floats are computed in single
 * precision and rounded to nearest even after every step, 8-bit floats saturate at
 * their largest finite value as on NVIDIA GPUs. Minimum and maximum prefer a number to
 * a NaN. Buffers may have any alignment and do not overlap. No state, thread-safe.
 */
#ifndef CRYSTAL_REDUCE_H
#define CRYSTAL_REDUCE_H

#include "runtime/nccl_abi.h"

#include <stddef.h>
#include <stdint.h>

/* Sum with a factor per rank (ncclRedOpCreatePreMulSum): the factor is applied with
 * crystal_reduce_scale beforehand, the reduction itself is a sum. */
#define CRYSTAL_REDOP_PREMULSUM 5
#define CRYSTAL_REDOP_COUNT     6

/* acc[i] = acc[i] <redop> in[i]. ncclAvg and premulsum add. redop is one of
 * ncclRedOp_t 0..4 or CRYSTAL_REDOP_PREMULSUM. -EINVAL for another dtype or redop. */
int crystal_reduce(void *acc, const void *in, size_t count, unsigned dtype,
                   unsigned redop);
/* The same with in[0], then in[1] ... in[n-1], which costs less than one by one. */
int crystal_reduce_many(void *acc, const void *const *in, uint32_t n, size_t count,
                        unsigned dtype, unsigned redop);
/* The sets of instructions that this processor has are 0 .. level; many uses the last.
 * All give the same results: at is for tests, -EINVAL beyond level. */
unsigned crystal_reduce_level(void);
int crystal_reduce_at(unsigned level, void *acc, const void *const *in, uint32_t n,
                      size_t count, unsigned dtype, unsigned redop);
/* A number's bits in dtype's own form, in the low bytes: rounded to nearest even, to an
 * integer towards zero (the nearest that there is). 0 for a bad dtype. */
uint64_t crystal_reduce_bits(unsigned dtype, double value);
/* An average over n ranks as NCCL does it: of floats, every contribution is scaled with
 * this factor (1/n rounded to dtype) and the sum is the result; of integers, the sum is
 * divided at the end by crystal_reduce_finish_avg. n is at least 1. */
uint64_t crystal_reduce_avg_factor(unsigned dtype, uint32_t n);
/* acc[i] /= n (integers: towards zero). -EINVAL for a bad dtype or n = 0. */
int crystal_reduce_finish_avg(void *acc, size_t count, unsigned dtype, uint32_t n);
/* acc[i] *= the factor whose bits, in dtype's own form, are the low bytes of scalar. */
int crystal_reduce_scale(void *acc, size_t count, unsigned dtype, uint64_t scalar);
/* Reduces acc with n - 1 copies of itself in one step (n at least 1): n times acc for
 * sums, rounded once; acc to the n for products, rounded per multiplication; acc for
 * minimum and maximum. So many equal contributions cost what one costs. */
int crystal_reduce_repeat(void *acc, size_t count, unsigned dtype, unsigned redop,
                          uint32_t n);

#endif
