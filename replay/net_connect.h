/* Checks of what arrives before the first message; see net_handle.h for the bytes. */
#ifndef CRYSTAL_NET_CONNECT_H
#define CRYSTAL_NET_CONNECT_H

#include "replay/net_handle.h"
#include "runtime/error.h"

/* Whether a hello is well formed and meant for the listener with this id. */
int crystal_net_hello_check(const struct crystal_net_hello *hello, uint64_t id);
int crystal_net_handle_check(const struct crystal_net_handle *handle,
                             struct crystal_error *err);

#endif
