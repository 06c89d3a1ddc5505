/* Shared by the files that make delay lines (virtual_line.h): the lines themselves and
 * what is put into a receiver's buffer.
 */
#ifndef CRYSTAL_VIRTUAL_LINE_INTERNAL_H
#define CRYSTAL_VIRTUAL_LINE_INTERNAL_H

#include "replay/net_room.h"
#include "replay/virtual_line.h"

#include <pthread.h>

struct line_message {
    struct crystal_vt_sent sent;
    void *data;                /* owned; NULL: only its time matters */
    struct crystal_room *room; /* where data is; NULL: malloc'ed */
};

struct line_own {
    struct crystal_room *room; /* owned */
    uint64_t bytes;
    uint64_t index_plus1;
};

struct crystal_line {
    struct crystal_line *next;
    uint64_t seq;
    uint32_t channel;
    /* from a: messages first .. first + kept - 1 in a ring of `room` */
    struct line_message *messages;
    uint64_t first, kept, room;
    uint64_t arrived, arrived_count; /* count 0: not known yet */
    struct line_own own[2];          /* by slice */
    /* to b */
    int is_taking;
    uint64_t taken, taken_count;
    struct crystal_vt vt;
    struct crystal_vt_rank *ranks;
    struct crystal_payload_plan plan;
};

struct crystal_lines {
    struct crystal_net_comm *comm;
    pthread_mutex_t lock; /* everything below and the lines */
    struct crystal_line *first;
    struct crystal_room *scratch; /* a message's data before it takes its form; owned */
    int is_waited;                /* a thread waits for a's messages */
    pthread_t waiter;
    _Atomic uint64_t news[CRYSTAL_NET_CHANNELS]; /* written under the lock */
};

/* a's message, NULL where it is not there (yet). */
static inline struct line_message *crystal_line_message(struct crystal_line *line,
                                                        uint64_t index)
{
    if (index < line->first || index >= line->first + line->kept)
        return NULL;
    return &line->messages[index % line->room];
}

/* A message on its way into the receiver's buffer. */
struct line_put {
    struct crystal_lines *lines;
    struct crystal_line *line;
    const struct crystal_line_next *next;
    struct crystal_ring_message message;
    struct crystal_line_source source;
    uint64_t bytes, wire_bytes;
    unsigned char *wire; /* the receiver's buffer; NULL: contents are not asked for */
};

/* Puts the message into put->wire. 1 put, 0 something that it needs is not there yet,
 * negative errno. Under the lock. */
int crystal_line_put(const struct line_put *put, struct crystal_error *err);

#endif
