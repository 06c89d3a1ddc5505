/* A request's bytes between the caller's buffer and a place where this process can work
 * on them.
 *
 * Where the buffer is on a GPU that place is room in host memory: what is sent is
 * fetched before it moves, what was received is put afterwards. So it is with large
 * messages in host memory where there are threads that copy (net_copiers.h). An end may
 * have places of its own, in memory that it shares with the other side. LL and LL128
 * are received by their flags, whenever these are there and whatever test() says; so
 * with a paced wire a message of theirs is made in room too, and put into the buffer
 * when it is due. Flags of LL128 follow the data of their line, in a copy of their own.
 * A message whose bytes nobody asks for has no place at all.
 */
#ifndef CRYSTAL_NET_COPY_H
#define CRYSTAL_NET_COPY_H

#include "replay/net.h"

/* Finds the request's place, and begins to fetch what is to be sent. */
int crystal_copy_prepare(struct crystal_net_end *end, struct crystal_net_request *r,
                         struct crystal_error *err);

/* Whether what is received is put into the buffer by a copy of its own, from wherever
 * it is; else it is worked on in the buffer. */
int crystal_copy_is_put(const struct crystal_net_request *r);

/* 1: no copy is on its way (any more), 0: not yet, negative errno. */
int crystal_copy_is_done(struct crystal_net_request *r, struct crystal_error *err);

/* Begins to put the bytes of messages that have moved, oldest first, into their
 * buffers, as far as that is due. 0 or negative errno. */
int crystal_copy_put_all(struct crystal_net_end *end, struct crystal_error *err);

/* Gives the request's room or place back. */
void crystal_copy_release(struct crystal_net_request *r);

/* The end closes: waits for copies that are on their way, which must not outlive the
 * callers' buffers (at most a second), and gives all room back. */
void crystal_copy_drain(struct crystal_net_end *end);

#endif
