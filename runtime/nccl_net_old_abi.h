/* NCCL's NET plugin ABI, versions 10 and 8, as facts of
 * src/include/plugin/net/net_v10.h and net_v8.h of NCCL's public source. NCCL 2.26
 * and 2.27 take version 10 first, 2.20 to 2.25 know 8 (net_v9 lies between). Both are
 * initialised once for the process, and nothing that they are called with names a
 * communicator. What is not here is as in version 11.
 */
#ifndef CRYSTAL_NCCL_NET_OLD_ABI_H
#define CRYSTAL_NCCL_NET_OLD_ABI_H

#include "runtime/nccl_net_abi.h"

/* version 11's without its last field */
typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed; /* Mbit/s */
    int port;
    float latency; /* us */
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v11_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
} ncclNetProperties_v10_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t log, ncclProfilerCallback_t profile);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v10_t *props);
    ncclResult_t (*listen)(int dev, void *handle, void **listen_comm);
    ncclResult_t (*connect)(int dev, ncclNetCommConfig_v11_t *config, void *handle,
                            void **send_comm, void **send_dev_comm);
    ncclResult_t (*accept)(void *listen_comm, void **recv_comm, void **recv_dev_comm);
    ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type,
                          void **mhandle);
    ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
                                uint64_t offset, int fd, void **mhandle);
    ncclResult_t (*deregMr)(void *comm, void *mhandle);
    ncclResult_t (*isend)(void *send_comm, void *data, size_t size, int tag,
                          void *mhandle, void *phandle, void **request);
    ncclResult_t (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
                          void **mhandles, void **phandles, void **request);
    ncclResult_t (*iflush)(void *recv_comm, int n, void **data, int *sizes,
                           void **mhandles, void **request);
    ncclResult_t (*test)(void *request, int *done, int *sizes);
    ncclResult_t (*closeSend)(void *send_comm);
    ncclResult_t (*closeRecv)(void *recv_comm);
    ncclResult_t (*closeListen)(void *listen_comm);
    ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    ncclResult_t (*irecvConsumed)(void *recv_comm, int n, void *request);
    ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v11_t *props);
} ncclNet_v10_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int speed; /* Mbit/s */
    int port;
    float latency; /* us */
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
} ncclNetProperties_v8_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t log);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t *props);
    ncclResult_t (*listen)(int dev, void *handle, void **listen_comm);
    ncclResult_t (*connect)(int dev, void *handle, void **send_comm,
                            void **send_dev_comm);
    ncclResult_t (*accept)(void *listen_comm, void **recv_comm, void **recv_dev_comm);
    ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type,
                          void **mhandle);
    ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
                                uint64_t offset, int fd, void **mhandle);
    ncclResult_t (*deregMr)(void *comm, void *mhandle);
    ncclResult_t (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle,
                          void **request);
    ncclResult_t (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags,
                          void **mhandles, void **request);
    ncclResult_t (*iflush)(void *recv_comm, int n, void **data, int *sizes,
                           void **mhandles, void **request);
    ncclResult_t (*test)(void *request, int *done, int *sizes);
    ncclResult_t (*closeSend)(void *send_comm);
    ncclResult_t (*closeRecv)(void *recv_comm);
    ncclResult_t (*closeListen)(void *listen_comm);
    ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    ncclResult_t (*irecvConsumed)(void *recv_comm, int n, void *request);
} ncclNet_v8_t;

#endif
