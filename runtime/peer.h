/* Whose process is at the other end of a connection. On a node that several users share
 * loopback is open to all of them; here the kernel is asked who holds the other end,
 * once, when the connection is accepted: SO_PEERCRED for unix sockets, sock_diag for
 * TCP (some microseconds; see sock_diag(7)), /proc/net/tcp where the kernel has none
 * (as long as there are sockets, those that only wait for their end included).
 *
 * Limit: sees the sockets of its own network namespace; what comes from another one is
 * another machine to it, and bounded by address (runtime/listen.h).
 */
#ifndef CRYSTAL_PEER_H
#define CRYSTAL_PEER_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/types.h>

/* A TCP socket as its own side has it; IPv4 as ::ffff:a.b.c.d, ports of the host's byte
 * order. */
struct crystal_peer_socket {
    struct in6_addr own, other;
    uint16_t own_port, other_port;
};

/* Who holds this socket on this machine. 0; -ENOENT: nobody here; -ENOTCONN: it was
 * closed, *ret is whose it was, or 0; else the way does not work here. */
int crystal_peer_ask_kernel(const struct crystal_peer_socket *socket, uid_t *ret);
int crystal_peer_ask_proc(const struct crystal_peer_socket *socket, uid_t *ret);

/* The user at the other end of the connected socket fd. 0; -EREMOTE: on another
 * machine; -ENOTCONN: the other end was closed; *ret is whose it was, or 0. */
int crystal_peer_uid(int fd, uid_t *ret);

/* A peer that has sent what it had to say and closed: whose it was may not be known.
 * NCCL's ranks check in so; what they say has a secret in it. */
enum crystal_peer_gone { CRYSTAL_PEER_GONE_MUST_NOT, CRYSTAL_PEER_GONE_MAY };
/* 1 where the peer of fd is on another machine, or a process of our effective user or
 * of root, or has gone and may. Else 0, and one line in the log (of many refusals the
 * first, second, fourth, ...) for component. Never blocks on anything but the kernel.
 */
int crystal_peer_admit(int fd, const char *component, enum crystal_peer_gone gone);

#endif
