/* What the ranks of a communicator tell each other while it is made: the all-gathers
 * behind the bootstrap's own, in NCCL's order and bytes (wire.h). Each blocks until all
 * ranks are there; more than one rank. 0 or a negative errno.
 */
#ifndef CRYSTAL_HOSTCCL_EXCHANGE_H
#define CRYSTAL_HOSTCCL_EXCHANGE_H

#include "replay/hostccl/comm.h"

#include "runtime/error.h"

/* All-gather 1: who each rank is; refuses another NCCL. */
int hostccl_exchange_info(ncclComm_t comm, struct crystal_error *err);
/* All-gather 2: how each rank's node is wired. */
int hostccl_exchange_topology(ncclComm_t comm, struct crystal_error *err);
/* All-gather 3: may user buffers be registered with the ring's network? */
int hostccl_exchange_ring_info(ncclComm_t comm, struct crystal_error *err);

#endif
