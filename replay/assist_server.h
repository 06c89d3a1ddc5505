/* The connections of an assistant: a thread that reads requests, sends bytes when it is
 * time, and takes what comes. Used by assistant.c, and by tests without links.
 */
#ifndef CRYSTAL_ASSIST_SERVER_H
#define CRYSTAL_ASSIST_SERVER_H

#include "runtime/error.h"

#include <stdint.h>

struct crystal_assist_server;

/* clock: add to CLOCK_MONOTONIC for the clock of the messages' times; asked by the
 * thread. NULL with err set on failure. */
struct crystal_assist_server *
crystal_assist_server_create(int64_t (*clock_ns)(void *context), void *context,
                             struct crystal_error *err);
/* A connection, behind its HELLO; fd is the server's. Any thread. */
void crystal_assist_server_add(struct crystal_assist_server *server, int fd);
/* Bytes of payload so far. Any thread. */
void crystal_assist_server_counts(const struct crystal_assist_server *server,
                                  uint64_t *ret_sent_bytes, uint64_t *ret_taken_bytes);
/* Ends the thread and closes everything. NULL is fine. */
void crystal_assist_server_destroy(struct crystal_assist_server *server);

#endif
