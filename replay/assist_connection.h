/* One connection of an assistant (assist_server.h): reads requests, writes answers.
 * Used by the server's thread only.
 */
#ifndef CRYSTAL_ASSIST_CONNECTION_H
#define CRYSTAL_ASSIST_CONNECTION_H

#include "replay/assist_kept.h"
#include "replay/assist_message.h"
#include "runtime/error.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ASSIST_PIECE_BYTES (256U << 10) /* of payload in one system call */

struct crystal_graph;

/* What all connections share. */
struct assist_shared {
    int64_t (*clock_ns)(void *context);
    void *context;
    const struct crystal_graph *graph; /* borrowed; NULL: there is none */
    struct assist_kept_table kept;
    _Atomic uint64_t sent_bytes, taken_bytes;
    _Atomic uint64_t given_bytes; /* of what is sent, what came with the request */
    unsigned char piece[ASSIST_PIECE_BYTES]; /* of what is all zeros */
    unsigned char sink[ASSIST_PIECE_BYTES];  /* what it has taken */
};

/* Now, by the job's clock. */
uint64_t assist_job_ns(const struct assist_shared *shared);

/* Of a request: when it is begun, and what it says then. */
struct assist_answer {
    struct crystal_assist_message message;
    uint64_t begin_ns;      /* of the job's clock, 0 at once */
    unsigned char *payload; /* SENT: owned; NULL: zeros */
};

/* A request, as far as it is here. Its parts come one after the other. */
struct assist_request {
    struct crystal_assist_message message;
    struct crystal_assist_source source;
    struct crystal_assist_term terms[CRYSTAL_ASSIST_TERMS_MAX];
    uint64_t got;             /* bytes of all parts */
    struct assist_kept *kept; /* TAKE that is kept: its payload; owned */
    unsigned char *given;     /* SEND that comes with its payload; owned */
};

struct assist_connection {
    int fd;
    uint64_t number; /* of the next request */
    struct assist_request in;
    struct assist_answer answers[CRYSTAL_ASSIST_OPEN_MAX];
    uint64_t head, tail; /* tail <= head; modulo their number */
    uint64_t written;    /* of the oldest answer and its payload */
};

/* Frees what it holds, the descriptor aside. */
void assist_connection_fini(struct assist_connection *c);

/* The oldest answer that is not written, NULL: none. */
static inline struct assist_answer *assist_answer_first(struct assist_connection *c)
{
    return c->tail < c->head ? &c->answers[c->tail % CRYSTAL_ASSIST_OPEN_MAX] : NULL;
}

/* Reads what is there, for a while. 0, -EPIPE: the other side is through, or another
 * negative errno with err set. */
int assist_connection_read(struct assist_shared *shared, struct assist_connection *c,
                           struct crystal_error *err);
/* Writes the answers whose time has come. 0 or -EPIPE. */
int assist_connection_write(struct assist_shared *shared, struct assist_connection *c);

#endif
