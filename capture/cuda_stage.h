/* Operations on device memory: their copies in pinned host memory, and the way there
 * and back in the order of the call's stream.
 *
 *   issue   copy device -> host put into the stream, an event behind it
 *   staged  the event has come: the operation may be posted (capture/park_item.c)
 *   result  the coordinator's answer is in the same host memory
 *   end     copy host -> device put into the stream
 *
 * "Ended" in the queue's words so means: everything is in the device's own hands, and
 * what is put into the stream now comes behind it. In between nothing waits on the
 * device. Considered and left: a host function that waits in the stream (CUDA runs them
 * on one thread, so two receives that wait for each other's sender stop all), and
 * stream memory operations that wait for a flag (streams share hardware queues, one
 * with CUDA_DEVICE_MAX_CONNECTIONS=1, so a waiting receive stops the computation that
 * its sender waits for; and a parked rank could not leave the device). So a stream with
 * an operation under way takes nothing more, and the host waits before it puts anything
 * behind (capture/cuda_entry.c); what the program records and waits for there meanwhile
 * is kept in the queue.
 *
 * Buffers are kept and used again. The queue's lock is held by whoever calls.
 */
#ifndef CRYSTAL_CUDA_STAGE_H
#define CRYSTAL_CUDA_STAGE_H

#include "runtime/error.h"

struct park_item;
struct cuda_stage;

/* Of the item's operations on device streams; NULL without memory. */
struct cuda_stage *cuda_stage_create(struct park_item *item);
void cuda_stage_destroy(struct cuda_stage *stage);
/* Puts the copies to the host into the streams and lets the item's operations point to
 * them. Everything before in its streams has ended. */
int cuda_stage_begin(struct cuda_stage *stage, struct park_item *item,
                     struct crystal_error *err);
/* 1 the copies have been made, 0 not yet. */
int cuda_stage_poll(struct cuda_stage *stage, const struct park_item *item,
                    struct crystal_error *err);
/* Puts the copies of the results into the streams. */
int cuda_stage_end(struct cuda_stage *stage, const struct park_item *item,
                   struct crystal_error *err);

#endif
