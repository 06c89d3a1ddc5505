/* What the net plugin and an assistant say on a connection for one end whose other side
 * is a virtual rank. It begins with the HELLO of link_dial.h in the role WIRE; then
 * messages of 32 bytes, those of the plugin in any order, their answers in the same
 * one.
 *
 *   offset bytes what
 *        0     4 0x58595243 ("CRYX")
 *        4     4 type
 *        8     8 number of the message on this connection, from 0; of an answer: of
 *                what it answers
 *       16     8 bytes of payload, at most CRYSTAL_ASSIST_BYTES_MAX
 *       24     8 time in ns of node 0's clock, see the types
 * Behind the head of a request stand 80 bytes that say what its payload is:
 *        0     8 bytes of data; SEND: the payload is these in the form of the protocol,
 *                then zeros; TAKE: those that are in it
 *        8     8 step for that form's flags (wire_form.h)
 *       16    32 key (below)
 *       48     8 hash of job.graph, 0: no contribution of it is named
 *       56     4 flags (below)
 *       60     4 protocol
 *       64     4 data type, 68: 4 operation, 72: 4 number of ranks, of a reduction
 *       76     4 contributions that are named, at most CRYSTAL_ASSIST_TERMS_MAX
 * and behind SEND's these contributions, 16 bytes each:
 *        0     8 where in the body of job.graph it begins; it has as many bytes as the
 *                data
 *        8     4 its flags, 12: 4 zero
 * Then the payload of TAKE, and of SEND with GIVEN; and of SENT. Byte order of the
 * host. Whoever gets anything else closes the connection.
 * Frozen: version 2 (the magic; version 1 was "CRYW").
 */
#ifndef CRYSTAL_ASSIST_MESSAGE_H
#define CRYSTAL_ASSIST_MESSAGE_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_ASSIST_MAGIC     0x58595243U
#define CRYSTAL_ASSIST_BYTES_MAX (UINT64_C(1) << 30)
#define CRYSTAL_ASSIST_TERMS_MAX 1024U
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

/* A message of a real rank that virtual ranks pass on to a real one: each once. */
struct crystal_assist_key {
    uint64_t comm_id, seq, index;
    uint32_t channel, crank; /* its sender */
};
_Static_assert(sizeof(struct crystal_assist_key) == 32, "drawn above");

enum crystal_assist_flags {
    CRYSTAL_ASSIST_GIVEN = 1, /* SEND: the payload comes with it, as it is to be sent */
    CRYSTAL_ASSIST_KEPT =
        2, /* TAKE: keep it. SEND: the data begin with what was kept */
    CRYSTAL_ASSIST_DIVIDED = 4 /* SEND: in the end integers are divided by the ranks */
};

struct crystal_assist_source {
    uint64_t data_bytes;
    uint64_t step;
    struct crystal_assist_key key;
    uint64_t graph;
    uint32_t flags;
    uint32_t proto; /* enum crystal_proto */
    uint32_t dtype, redop, nranks;
    uint32_t term_count;
};
_Static_assert(sizeof(struct crystal_assist_source) == 80, "drawn above");

enum crystal_assist_term_flags {
    CRYSTAL_ASSIST_ADDED = 1, /* reduced with what is there; else it is the beginning */
    CRYSTAL_ASSIST_SCALED = 2 /* its share of an average of floats */
};

struct crystal_assist_term {
    uint64_t at;
    uint32_t flags;
    uint32_t zero;
};
_Static_assert(sizeof(struct crystal_assist_term) == 16, "drawn above");

/* 0: well formed, one of the plugin's (is_answer: the assistant's) and the number-th;
 * else -EBADMSG. */
int crystal_assist_check(const struct crystal_assist_message *message, int is_answer,
                         uint64_t number, struct crystal_error *err);
/* The same for what follows a request. */
int crystal_assist_check_source(const struct crystal_assist_message *message,
                                const struct crystal_assist_source *source,
                                struct crystal_error *err);

#endif
