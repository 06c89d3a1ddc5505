/* Which NCCL has loaded the plugin. The proxy answers for virtual ranks as one version
 * does (replay/proxy_layout.h); another one may wait in its set-up for ever, so that is
 * looked at before it begins.
 */
#ifndef CRYSTAL_NET_VERSION_H
#define CRYSTAL_NET_VERSION_H

#include "replay/net.h"

/* NCCL_VERSION_CODE that the library says (ncclGetVersion) whose code is at `code`; 0
 * where it exports none. Any thread. */
int crystal_net_version_of(const void *code);
/* Stops the job, -EPROTO, where there is a board and NCCL, whose code is at `nccl`, is
 * none of the versions of CRYSTAL_NCCL_VERSIONS; 0 where it is one or nobody knows. */
int crystal_net_version_check(struct crystal_net_module *module, const void *nccl);

#endif
