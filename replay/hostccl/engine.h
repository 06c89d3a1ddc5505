/* Who drives: streams, communicators' launches and the net plugin move only while some
 * thread runs rounds, and one thread does so at a time, the driver.
 *
 * A thread that waits (for a stream, an event, a communicator's end) drives itself
 * where nobody else does, so that what it waits for needs no other thread to be woken;
 * it looks again and again for a few microseconds before it sleeps, where the waits
 * before were as short and there is more than one CPU. What is left when it goes is for
 * the next waiting thread, else for the progress thread, of which there is one per
 * process. It also takes what calls leave under way: at once, or, where callers have
 * come to wait right after their calls, only what stays a while.
 *
 * The driver sleeps in the plugin while transfers are under way and on a condition
 * otherwise.
 */
#ifndef CRYSTAL_HOSTCCL_ENGINE_H
#define CRYSTAL_HOSTCCL_ENGINE_H

#include "replay/hostccl/launch.h"
#include "replay/hostccl/stream.h"
#include "runtime/error.h"
#include "runtime/nccl_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* Starts the progress thread where it does not run yet. */
int hostccl_engine_start(struct crystal_error *err);
/* Ends it; work that is not done stays undone. */
void hostccl_engine_stop(void);

/* Launches of one group, chained by next, items filled in; they move to the engine. */
void hostccl_engine_submit(struct hostccl_launch *launches);
/* Something outside may have changed (mail). Any thread. */
void hostccl_engine_notify(void);

/* Waits until the communicator has nothing left to do. */
void hostccl_engine_flush(ncclComm_t comm);
/* Waits until the driver has let go of comm: when its work is done or has failed, or at
 * once where is_abort. Streams forget comm's failures. */
void hostccl_engine_close(ncclComm_t comm, bool is_abort);

/* The lock of streams, events and the inbox. Who is to be woken by what happened under
 * it is woken by the unlock. */
void hostccl_lock(void);
void hostccl_unlock(void);
/* Waits until *value, which is under the lock, is at least until. Lock held. */
void hostccl_wait_until(const uint64_t *value, uint64_t until);
/* Values that others may wait for have grown. Lock held. */
void hostccl_tell(void);
/* Hands an item over; lock held. */
void hostccl_engine_push(struct hostccl_item *item);

#endif
