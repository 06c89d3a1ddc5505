/* What the net plugin and an assistant say on a connection for one end whose other side
 * is a virtual rank. It begins with the HELLO of link_dial.h in the role WIRE; then
 * messages of 32 bytes, those of the plugin in any order, their answers in the same
 * one.
 *
 *   offset bytes what
 *        0     4 0x57595243 ("CRYW")
 *        4     4 type
 *        8     8 number of the message on this connection, from 0; of an answer: of
 *                what it answers
 *       16     8 bytes of payload, at most CRYSTAL_ASSIST_BYTES_MAX
 *       24     8 time in ns of node 0's clock, see the types
 * The payload follows TAKE and SENT. Byte order of the host. Whoever gets anything else
 * closes the connection.
 * Frozen: version 1 (the magic; another one has another letter).
 */
#ifndef CRYSTAL_ASSIST_MESSAGE_H
#define CRYSTAL_ASSIST_MESSAGE_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_ASSIST_MAGIC     0x57595243U
#define CRYSTAL_ASSIST_BYTES_MAX (UINT64_C(1) << 30)
/* Requests of a connection without an answer; as many as an end has (net.h). */
#define CRYSTAL_ASSIST_OPEN_MAX 32U

enum crystal_assist_type {
    CRYSTAL_ASSIST_SEND = 1, /* plugin: send me so many bytes, not before this time */
    CRYSTAL_ASSIST_TAKE = 2, /* plugin: bytes for a virtual rank; time 0 */
    CRYSTAL_ASSIST_SENT = 3, /* to SEND; the time at which the first byte left */
    CRYSTAL_ASSIST_TAKEN = 4 /* to TAKE, same bytes; the time at which the last came */
};

struct crystal_assist_message {
    uint32_t magic;
    uint32_t type;
    uint64_t number;
    uint64_t bytes;
    uint64_t time_ns;
};
_Static_assert(sizeof(struct crystal_assist_message) == 32, "drawn above");

/* 0: well formed, one of the plugin's (is_answer: the assistant's) and the number-th;
 * else -EBADMSG. */
int crystal_assist_check(const struct crystal_assist_message *message, int is_answer,
                         uint64_t number, struct crystal_error *err);

#endif
