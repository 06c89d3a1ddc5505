/* The all-gather of NCCL 2.28.9's bootstrap over the two sockets of a ring. */
#ifndef CRYSTAL_HOSTCCL_GATHER_H
#define CRYSTAL_HOSTCCL_GATHER_H

#include "runtime/error.h"

#include <stdatomic.h>
#include <stdint.h>

/* slices has nranks times bytes (bytes > 0); slices[crank] is given. Both sockets are
 * non-blocking. -ECONNRESET where a neighbour leaves, -EPROTO where it speaks of other
 * sizes, -ECANCELED where *abort is set. */
int hostccl_gather(int next_fd, int prev_fd, uint32_t nranks, uint32_t crank,
                   void *slices, uint32_t bytes, const atomic_bool *abort,
                   struct crystal_error *err);

#endif
