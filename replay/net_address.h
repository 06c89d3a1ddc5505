/* The address at which this process listens. */
#ifndef CRYSTAL_NET_ADDRESS_H
#define CRYSTAL_NET_ADDRESS_H

#include "runtime/error.h"

#include <sys/socket.h>

/* Loopback, or the first usable address of an interface that NCCL_SOCKET_IFNAME names
 * (NCCL's syntax: a list of prefixes; "=" in front: whole names; "^": all but these).
 * The port is 0. */
int crystal_net_address(struct sockaddr_storage *ret, socklen_t *ret_bytes,
                        struct crystal_error *err);

/* Whether an interface name is in such a list. */
int crystal_net_ifname_match(const char *list, const char *name);

#endif
