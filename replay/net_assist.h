/* The connection of an end whose other side is a virtual rank to its assistant, where
 * the wire is real (assist_message.h). Belongs to one thread at a time, as the end
 * does; what it waits for is noted on the wait list.
 */
#ifndef CRYSTAL_NET_ASSIST_H
#define CRYSTAL_NET_ASSIST_H

#include "runtime/error.h"

#include <stdint.h>

struct crystal_assist;
struct crystal_assist_source;
struct crystal_net_module;
struct crystal_recipe;

/* Dials the assistant of this process; where it is not there that is said later, as of
 * a connection that is cut. NULL with err set where memory runs out. */
struct crystal_assist *crystal_assist_open(const struct crystal_net_module *module,
                                           struct crystal_error *err);
/* The same over a connection that is there, behind its HELLO; fd is taken over, also on
 * failure. */
struct crystal_assist *crystal_assist_create(const struct crystal_net_module *module,
                                             int fd, struct crystal_error *err);
void crystal_assist_close(struct crystal_assist *assist); /* NULL is fine */

/* At most CRYSTAL_ASSIST_OPEN_MAX requests are without an answer: the caller's
 * business. Times are of this process's clock. */

/* Bytes of a virtual rank. */
struct crystal_assist_ask {
    uint64_t bytes, begin_ns; /* the first one leaves then */
    /* what they are; NULL: of no interest */
    const struct crystal_recipe *recipe;
    const void *given; /* where the recipe is not known: the bytes */
    void *to;          /* where they go until the answer is here; NULL: nowhere */
};

/* Asks for a message. What ask points to, `to` aside, is copied. */
int crystal_assist_ask(struct crystal_assist *assist,
                       const struct crystal_assist_ask *ask, struct crystal_error *err);
/* Gives a message to a virtual rank; the same one again where the value was 0. source:
 * with KEPT, another virtual rank passes it on; NULL: nobody does. 1 all is written, 0
 * wait, negative errno. */
int crystal_assist_give(struct crystal_assist *assist, const void *data, uint64_t bytes,
                        const struct crystal_assist_source *source,
                        struct crystal_error *err);
/* The answer to the oldest request: its bytes are here (*ret_ns is now), or there
 * (*ret_ns is when the last one was). 1, 0 not yet, negative errno. */
int crystal_assist_answer(struct crystal_assist *assist, uint64_t *ret_ns,
                          struct crystal_error *err);

#endif
