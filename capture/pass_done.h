/* When did operations end that another library performs? Behind each one (or each
 * group) an event of that library is recorded, and the library is asked later when it
 * was reached: about every 200 ms from the recorder's own thread, so that nobody need
 * be woken when a call is made. Where many notes have come together, the issuing thread
 * asks, or hurries that thread. A library whose events have no times
 * (crystal_event_time is optional) costs a thread per stream, which waits for each.
 *
 * An operation began when it was issued or when the one before it on its stream ended,
 * whichever is later. Where the library tells the time between two events, as CUDA
 * does, one is recorded before it, too: it began as long before its end as lies between
 * the two, so that what the stream waited for before is not counted.
 */
#ifndef CRYSTAL_PASS_DONE_H
#define CRYSTAL_PASS_DONE_H

#include "runtime/crystal_stream.h"
#include "runtime/error.h"

#include <stdint.h>

/* What is needed of the library. */
struct pass_done_library {
    ncclResult_t (*event_create)(crystal_event_t *ret_event);
    ncclResult_t (*event_record)(crystal_event_t event, ncclStream_t stream);
    ncclResult_t (*event_synchronize)(crystal_event_t event);
    ncclResult_t (*event_destroy)(crystal_event_t event);
    /* crystal_event_time; NULL: the library lacks it */
    ncclResult_t (*event_time)(crystal_event_t event, uint64_t *ret_ns);
    /* from now on another thread settles soon; NULL: the issuing ones can do it */
    void (*settle_soon)(void);
    /* ns between two events that are done; NULL: unknown */
    ncclResult_t (*event_elapsed)(crystal_event_t from, crystal_event_t to,
                                  uint64_t *ret_ns);
};

/* One stream's operations under way. Lives until the process ends. */
struct pass_lane;

/* library is borrowed for ever. NULL on failure. */
struct pass_lane *pass_lane_create(const struct pass_done_library *library,
                                   ncclStream_t stream, struct crystal_error *err);
/* Before the operation, or the first of a group, whose end is noted next. */
void pass_lane_begin(struct pass_lane *lane);
/* Notes the operation of trace record `record`, issued at issue_ns. last = 1: an event
 * is recorded behind it, which stands for those noted before it, too. Where too many
 * are under way the operation gets no DONE record. record is not 0. Thread-safe, no
 * lock, no allocation. */
void pass_lane_note(struct pass_lane *lane, uint64_t record, uint64_t issue_ns,
                    int last);
/* Writes down what has ended, without waiting; returns 1 where that is all that was
 * noted. 0, too, where another thread is at it. Thread-safe. */
int pass_lane_settle(struct pass_lane *lane);
/* Sees to it that what has ended is written down: now, or soon by another thread. */
void pass_lane_hurry(struct pass_lane *lane);
/* Waits, at most timeout_ms, until all that was noted has ended. Returns how many
 * operations got no DONE record for want of room since the last time. */
uint64_t pass_lane_drain(struct pass_lane *lane, int timeout_ms);

#endif
