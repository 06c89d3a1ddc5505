/* Ends whose other side is a virtual rank. */
#include "config.h"

#include "replay/net.h"

#include <errno.h>

struct crystal_net_end *crystal_virtual_end_create(struct crystal_net_context *context,
                                                   int is_send, uint32_t peer_crank,
                                                   struct crystal_error *err)
{
    (void)context;
    (void)crystal_error_set(err, ENOSYS, "%s virtual rank %u: not yet",
                            is_send ? "connecting to" : "accepting from", peer_crank);
    return NULL;
}
