/* Events as streams see them. Their API is runtime/crystal_stream.h. All under the
 * engine's lock.
 */
#ifndef CRYSTAL_HOSTCCL_EVENT_H
#define CRYSTAL_HOSTCCL_EVENT_H

#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct crystal_event;

/* An item that names the event is gone; the last reference frees it. */
void hostccl_event_unref(struct crystal_event *event);
/* A stream has come to the record of that generation, with the failure that stands in
 * it and the communicator it is of. */
void hostccl_event_reach(struct crystal_event *event, uint64_t generation,
                         ncclResult_t result, uint64_t comm);
/* Whether it or a later one was reached; then the failure that was told is returned. */
bool hostccl_event_is_reached(const struct crystal_event *event, uint64_t generation,
                              ncclResult_t *ret_result, uint64_t *ret_comm);

#endif
