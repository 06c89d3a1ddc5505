/* NCCL's NET plugin ABI, version 11, as facts of NCCL 2.28.9
 * (src/include/plugin/net/net_v11.h). A plugin exports one object named
 * ncclNetPlugin_v11; NCCL calls through its pointers from its proxy threads.
 */
#ifndef CRYSTAL_NCCL_NET_ABI_H
#define CRYSTAL_NCCL_NET_ABI_H

#include "runtime/nccl_abi.h"

#define NCCL_NET_HANDLE_MAXSIZE 128
#define NCCL_PTR_HOST           0x1
#define NCCL_PTR_CUDA           0x2
#define NCCL_PTR_DMABUF         0x4

/* request value that marks a receive whose completion the caller may skip */
#define NCCL_NET_OPTIONAL_RECV_COMPLETION ((void *)0x1)

typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char *file,
                                  int line, const char *format, ...);
/* The plugin's way to start a profiler event for a transfer; parent is the phandle. */
typedef ncclResult_t (*ncclProfilerCallback_t)(void **event, int type, void *parent,
                                               int64_t plugin_id, void *data);

typedef struct {
    int ndevs;
    int devs[4];
} ncclNetVDeviceProps_v11_t;

typedef struct {
    int trafficClass;
} ncclNetCommConfig_v11_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed; /* Mbit/s */
    int port;
    float latency; /* us, 0 = unknown */
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v11_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
} ncclNetProperties_v11_t;

typedef struct {
    int32_t maxConcurrentPeers, minConcurrentPeers, maxFlowsPerPeer, minFlowsPerPeer;
} ncclNetCommAttr_v11_t;

typedef struct {
    ncclNetCommAttr_v11_t sendCommAttr, recvCommAttr;
    uint32_t op, algo, proto;
} ncclNetAttr_v11_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config,
                         ncclDebugLogger_t log, ncclProfilerCallback_t profile);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
    ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listen_comm);
    /* may return success with *send_comm NULL: call again */
    ncclResult_t (*connect)(void *ctx, int dev, void *handle, void **send_comm,
                            void **send_dev_comm);
    ncclResult_t (*accept)(void *listen_comm, void **recv_comm, void **recv_dev_comm);
    ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type,
                          void **mhandle);
    ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,
                                uint64_t offset, int fd, void **mhandle);
    ncclResult_t (*deregMr)(void *comm, void *mhandle);
    /* may return success with *request NULL: call again */
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
    ncclResult_t (*finalize)(void *ctx);
    ncclResult_t (*setNetAttr)(void *ctx, ncclNetAttr_v11_t *attr);
} ncclNet_v11_t;

#endif
