/* The connections of an assistant: a thread that reads requests, sends bytes when it is
 * time, and takes what comes. Used by assistant.c, and by tests without links.
 */
#ifndef CRYSTAL_ASSIST_SERVER_H
#define CRYSTAL_ASSIST_SERVER_H

#include "runtime/error.h"

#include <stdint.h>

struct crystal_assist_server;
struct crystal_graph;

/* Bytes of payload so far. */
struct crystal_assist_counts {
    uint64_t sent_bytes, taken_bytes;
    uint64_t given_bytes; /* of those sent, what the sandbox had to make */
};

/* clock: add to CLOCK_MONOTONIC for the clock of the messages' times; asked by the
 * thread. graph: what virtual ranks contribute; borrowed until destroy; NULL: nothing
 * of it is asked for. NULL with err set on failure. */
struct crystal_assist_server *
crystal_assist_server_create(int64_t (*clock_ns)(void *context), void *context,
                             const struct crystal_graph *graph,
                             struct crystal_error *err);
/* A connection, behind its HELLO; fd is the server's. Any thread. */
void crystal_assist_server_add(struct crystal_assist_server *server, int fd);
/* Any thread. */
void crystal_assist_server_counts(const struct crystal_assist_server *server,
                                  struct crystal_assist_counts *ret);
/* Ends the thread and closes everything. NULL is fine. */
void crystal_assist_server_destroy(struct crystal_assist_server *server);

#endif
