/* Listening sockets and who may connect to them.
 *
 * A socket listens on all addresses, so that a node's own name works as well as
 * localhost; a connection is accepted from this host (loopback, or a peer address that
 * is the local one) and from the addresses of the list, else closed at once. Of this
 * host's processes only those of our user may come in.
 */
#ifndef CRYSTAL_LISTEN_H
#define CRYSTAL_LISTEN_H

#include "runtime/address.h"
#include "runtime/error.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_access; /* a list of addresses */

/* names: host names and addresses with commas between, NULL or "" for none; a name adds
 * all its addresses. NULL on failure. */
struct crystal_access *crystal_access_create(const char *names,
                                             struct crystal_error *err);
void crystal_access_destroy(struct crystal_access *access);
/* 1 where the peer of the connected socket fd may come in. access may be NULL. */
int crystal_access_allows(const struct crystal_access *access, int fd);

/* Non-blocking, close-on-exec; port 0 takes any, ret_port says which. -EADDRINUSE names
 * the port and the option by which another is chosen. */
int crystal_listen(uint16_t port, const char *option, int *ret_fd, uint16_t *ret_port,
                   struct crystal_error *err);
/* Ports that may be listened at; first = 0: any. */
struct crystal_ports {
    uint16_t first, last;
};
/* The same at any free port of the range. -EADDRINUSE where there is none. */
int crystal_listen_within(const struct crystal_ports *ports, int *ret_fd,
                          uint16_t *ret_port, struct crystal_error *err);
/* The next connection that is allowed and, where it comes from this host, of our user
 * (runtime/peer.h), non-blocking; -EAGAIN when there is none. component is who says
 * that one was refused. */
int crystal_accept(int listen_fd, const struct crystal_access *access,
                   const char *component, int *ret_fd);

#endif
