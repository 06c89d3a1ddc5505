/* Reads recorded contributions of virtual ranks ahead of their use.
 *
 * With --crystal-payload=all they lie in job.graph, which is mapped. A thread walks
 * this rank's own operations in the order of the recording and touches what virtual
 * members put into each, at most budget_bytes ahead of the operation that was asked for
 * last; what lies behind it is given back to the system. So disk is read in time and
 * memory stays bounded. An operation that is used before the thread has come to it is
 * late: its pages are read in NCCL's thread then.
 */
#ifndef CRYSTAL_NET_PREFETCH_H
#define CRYSTAL_NET_PREFETCH_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdint.h>

#define CRYSTAL_PREFETCH_BYTES (UINT64_C(128) << 20)

struct crystal_prefetch;

/* g is borrowed. The thread starts with the first add. NULL with err set. */
struct crystal_prefetch *crystal_prefetch_create(const struct crystal_graph *g,
                                                 uint32_t lrank, uint64_t budget_bytes,
                                                 struct crystal_error *err);
/* Ends the thread. NULL is fine. */
void crystal_prefetch_destroy(struct crystal_prefetch *p);

/* The communicator's virtual members contribute from now on; is_real by crank is
 * copied. -ENOMEM, or the thread's error. */
int crystal_prefetch_add(struct crystal_prefetch *p, uint32_t graph_comm,
                         const uint8_t *is_real, uint32_t nranks,
                         struct crystal_error *err);

/* Operation number `seq` is used now: a collective, or (from not UINT32_MAX) the seq-th
 * transfer from that crank. Returns 1 where it is late. No lock, no system call. */
int crystal_prefetch_use(struct crystal_prefetch *p, uint32_t graph_comm, uint32_t from,
                         uint64_t seq);

/* How many of the rank's records have been walked, and bytes ahead; for tests. */
uint64_t crystal_prefetch_walked(struct crystal_prefetch *p, uint64_t *ret_bytes);

#endif
