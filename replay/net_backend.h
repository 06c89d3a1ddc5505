/* Connections whose both ends are real, over another NCCL net plugin
 * (CRYSTAL_NET_BACKEND: InfiniBand, a provider's network) in place of our own TCP.
 *
 * The two ends meet as they do for TCP: the sender's process connects to the listener
 * that our handle names, and says hello with kind 3. Then the receiver listens by the
 * backend and sends the backend's handle, 128 bytes, over that socket; the sender
 * connects by it. The socket stays open as long as the connection: who is not connected
 * yet sees by its end that the other has gone. So the backend needs no room in our
 * handle, and the bootstrap proxy sees nothing of it.
 *
 * The backend moves host memory; NCCL's buffers on a GPU are copied as for TCP
 * (net_copy.h), and such messages are registered one by one. Where the wire is paced, a
 * message is given to the backend when the modelled one has brought it, so the
 * backend's own time comes on top.
 */
#ifndef CRYSTAL_NET_BACKEND_H
#define CRYSTAL_NET_BACKEND_H

#include "replay/net.h"

struct crystal_backend;

/* The plugin at path, NET v11. NULL with err set. Lives as long as the process. */
struct crystal_backend *crystal_backend_open(const char *path,
                                             struct crystal_error *err);
/* One end; owns fd, the socket of the hello, also on failure. */
struct crystal_net_end *crystal_backend_end_create(struct crystal_net_context *context,
                                                   int fd, int is_send, unsigned nic,
                                                   uint32_t peer_crank,
                                                   struct crystal_error *err);

#endif
