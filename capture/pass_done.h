/* When did operations end that another library performs? Behind each one (or each
 * group) an event of that library is recorded, and a thread per stream waits for it.
 * An operation began when it was issued or when the one before it on its stream ended,
 * whichever is later. Where events have times, as CUDA's, one is recorded before it,
 * too: it began as long before its end as lies between the two, so that what the
 * stream waited for before is not counted.
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
    /* ns between two events that are done; NULL: events have no times */
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
/* Waits, at most timeout_ms, until all that was noted has ended. Returns how many
 * operations got no DONE record for want of room. */
uint64_t pass_lane_drain(struct pass_lane *lane, int timeout_ms);

#endif
