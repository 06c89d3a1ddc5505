/* Addresses of sockets, in one form: IPv6, with IPv4 as ::ffff:a.b.c.d. */
#ifndef CRYSTAL_ADDRESS_H
#define CRYSTAL_ADDRESS_H

#include <netinet/in.h>

/* -EAFNOSUPPORT where it is of another family. */
int crystal_address_from(const struct sockaddr *sa, struct in6_addr *ret);
/* The peer's (is_peer) or the own address of the connected socket fd. Negative errno
 * where it has none. */
int crystal_address_of(int fd, int is_peer, struct in6_addr *ret);
int crystal_address_is_loopback(const struct in6_addr *address);

#endif
