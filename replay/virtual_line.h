/* Delay lines: what a run of virtual ranks hands to the real rank behind it.
 *
 * Between real rank a and real rank b of a ring stands a run of k virtual ranks. What a
 * sends into the run comes out at b k steps later, with the contributions of the run
 * (crystal_line_source says which). A line is one collective on one channel at b: it
 * keeps a's messages until b has taken them. a may be b itself or another process of
 * this node, whose messages come through a feed (virtual_feed.h).
 *
 * All functions are thread-safe; a line's receiving side belongs to one thread.
 */
#ifndef CRYSTAL_VIRTUAL_LINE_H
#define CRYSTAL_VIRTUAL_LINE_H

#include "replay/board.h"
#include "replay/net_payload.h"
#include "replay/net_rings.h"
#include "runtime/ring_schedule.h"
#include "replay/virtual_time.h"
#include "runtime/error.h"

#include <stdint.h>

/* What the index-th message that the one at `place` receives at the end of `path` is
 * made of: a copy of a's message copy_index, or nothing yet, reduced with the
 * contributions of `count` virtual ranks from place `first` on (in ring order);
 * is_block: the bytes of the rank at place `first` as they are. */
struct crystal_line_source {
    int has_copy;
    int is_block;
    int is_completed; /* an all-reduce's sum was partial at a and is complete at b */
    uint64_t copy_index;
    uint32_t first, count;
};
void crystal_line_source(const struct crystal_ring_op *op,
                         const struct crystal_vt_path *path, uint32_t place,
                         uint64_t index, struct crystal_line_source *ret);
/* Whether the bytes of a's message reach b, or only its time matters. */
int crystal_line_is_passed(const struct crystal_vt_path *path, uint64_t index);

struct crystal_lines; /* of one communicator at this process */
struct crystal_line;

struct crystal_net_comm;
struct crystal_recipe;
struct crystal_room;
struct crystal_lines *crystal_lines_create(struct crystal_net_comm *comm,
                                           struct crystal_error *err);
void crystal_lines_destroy(struct crystal_lines *lines);

/* A message of a for operation seq: its time and, where bytes are passed, a copy of
 * them as they are on the wire. count = those of a's messages of this operation on
 * this channel that matter to b (crystal_vt_sent_count). */
int crystal_lines_push(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                       uint64_t index, uint64_t count,
                       const struct crystal_vt_sent *sent, const void *data,
                       struct crystal_error *err);
/* The same for bytes that are in *room, of which the line becomes an owner. */
int crystal_lines_push_room(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                            uint64_t index, uint64_t count,
                            const struct crystal_vt_sent *sent,
                            struct crystal_room *room, struct crystal_error *err);
/* The same, taking over data (malloc'ed, may be NULL), also on failure. */
int crystal_lines_push_owned(struct crystal_lines *lines, uint64_t seq,
                             uint32_t channel, uint64_t index, uint64_t count,
                             const struct crystal_vt_sent *sent, void *data,
                             struct crystal_error *err);
/* This rank's own first step of an all-gather, as it is on the wire, where it is a and
 * b in one: stands in for blocks of virtual ranks. (Else a's first step, which comes
 * through the line, stands in.) room: where
 * the bytes are, of which the line becomes an owner; NULL: they are copied. */
int crystal_lines_own(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                      uint64_t index, const void *data, uint64_t bytes,
                      struct crystal_room *room, struct crystal_error *err);

/* The next message of an operation from the run before this rank. */
struct crystal_line_next {
    struct crystal_operation *op;
    struct crystal_ring_op ring;
    const struct crystal_ring_place *place; /* in the channel's ring */
    uint32_t channel;
    uint64_t index, count; /* count = messages received in all */
    uint64_t step;         /* of the connection, for the flags of LL and LL128 */
    crystal_vt_arrive_fn arrive;
    const void *arrive_user;
    /* NULL, or where the room is that data is in: *room may be exchanged for another
     * one that holds the message */
    struct crystal_room **room;
    struct crystal_recipe *recipe; /* is told what it is made of; NULL: nobody asks */
    int is_kept; /* a's messages are kept where the recipe goes (assist_message.h) */
};
/* Puts it into data (room bytes) in the form of its protocol; data NULL: only its size
 * and time are asked for. 1: done, *ret_ns is when
 * it is there, *ret_free_ns when it would be had all virtual ranks come long ago; 0:
 * what it needs is not there yet, noted on the wait list; negative errno. */
int crystal_lines_take(struct crystal_lines *lines,
                       const struct crystal_line_next *next, void *data, uint64_t room,
                       uint64_t *ret_bytes, uint64_t *ret_ns, uint64_t *ret_free_ns,
                       struct crystal_error *err);

/* A count of what came for a channel's lines: what a take was in want of is not there
 * before it changes. */
uint64_t crystal_lines_news(const struct crystal_lines *lines, uint32_t channel);

/* Lines that are not over, for tests. */
uint32_t crystal_lines_count(struct crystal_lines *lines);

#endif
