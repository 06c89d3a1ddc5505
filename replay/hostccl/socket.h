/* NCCL's bootstrap sockets: TCP with a handshake, and waiting that can be aborted.
 *
 * All descriptors are non-blocking and closed on exec; the functions here wait by poll.
 * `abort` (may be NULL) is looked at ten times a second: where it is set, they return
 * -ECANCELED.
 */
#ifndef CRYSTAL_HOSTCCL_SOCKET_H
#define CRYSTAL_HOSTCCL_SOCKET_H

#include "replay/hostccl/wire.h"
#include "runtime/error.h"

#include <stdatomic.h>
#include <stddef.h>

/* The address that bootstrap sockets of this process listen on, port 0: loopback, or
 * that of the interface that NCCL_SOCKET_IFNAME names (a prefix, or =NAME). */
int hostccl_address_own(union hostccl_address *ret, struct crystal_error *err);

/* Listens on own with a free port; *ret_address is the complete address. */
int hostccl_listen(const union hostccl_address *own, int *ret_fd,
                   union hostccl_address *ret_address, struct crystal_error *err);
/* Connects and sends the handshake. Whoever gave the address listens already: where
 * nobody does, that process has ended. */
int hostccl_dial(const union hostccl_address *address, uint64_t magic,
                 const atomic_bool *abort, int *ret_fd, struct crystal_error *err);
/* The next connection whose handshake has this magic; others are closed. */
int hostccl_accept(int listen_fd, uint64_t magic, const atomic_bool *abort, int *ret_fd,
                   struct crystal_error *err);

int hostccl_send(int fd, const void *bytes, size_t count, const atomic_bool *abort,
                 struct crystal_error *err);
int hostccl_recv(int fd, void *bytes, size_t count, const atomic_bool *abort,
                 struct crystal_error *err);
/* A message: size and bytes. recv_message wants exactly count bytes. */
int hostccl_send_message(int fd, const void *bytes, uint32_t count,
                         const atomic_bool *abort, struct crystal_error *err);
int hostccl_recv_message(int fd, void *bytes, uint32_t count, const atomic_bool *abort,
                         struct crystal_error *err);

#endif
