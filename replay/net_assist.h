/* The connection of an end whose other side is a virtual rank to its assistant, where
 * the wire is real (assist_message.h). Belongs to one thread at a time, as the end
 * does; what it waits for is noted on the wait list.
 */
#ifndef CRYSTAL_NET_ASSIST_H
#define CRYSTAL_NET_ASSIST_H

#include "runtime/error.h"

#include <stdint.h>

struct crystal_assist;
struct crystal_net_module;

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

/* Asks for so many bytes of a virtual rank, which begins at begin_ns. */
int crystal_assist_ask(struct crystal_assist *assist, uint64_t bytes, uint64_t begin_ns,
                       struct crystal_error *err);
/* Gives a message to a virtual rank; the same one again where the value was 0. 1 all is
 * written, 0 wait, negative errno. */
int crystal_assist_give(struct crystal_assist *assist, const void *data, uint64_t bytes,
                        struct crystal_error *err);
/* The answer to the oldest request: its bytes are here (*ret_ns is now), or there
 * (*ret_ns is when the last one was). 1, 0 not yet, negative errno. */
int crystal_assist_answer(struct crystal_assist *assist, uint64_t *ret_ns,
                          struct crystal_error *err);

#endif
