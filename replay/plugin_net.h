/* The functions of NCCL's NET interface that all its versions have alike, as the table
 * of version 11 has them (plugin_net_v11.c); older tables take the same. What they do
 * and return is NCCL's (runtime/nccl_net_abi.h). */
#ifndef CRYSTAL_PLUGIN_NET_H
#define CRYSTAL_PLUGIN_NET_H

#include "runtime/nccl_net_abi.h"

ncclResult_t crystal_plugin_devices(int *ndev);
ncclResult_t crystal_plugin_accept(void *listen_comm, void **recv_comm,
                                   void **recv_dev_comm);
ncclResult_t crystal_plugin_reg(void *comm, void *data, size_t size, int type,
                                void **mhandle);
ncclResult_t crystal_plugin_reg_dmabuf(void *comm, void *data, size_t size, int type,
                                       uint64_t offset, int fd, void **mhandle);
ncclResult_t crystal_plugin_dereg(void *comm, void *mhandle);
ncclResult_t crystal_plugin_flush(void *recv_comm, int n, void **data, int *sizes,
                                  void **mhandles, void **request);
ncclResult_t crystal_plugin_test(void *request, int *done, int *sizes);
ncclResult_t crystal_plugin_close(void *comm); /* a sender or a receiver */
ncclResult_t crystal_plugin_close_listen(void *listen_comm);

#endif
