/* NCCL's PROFILER plugin ABI, version 5, as facts of NCCL 2.28.9
 * (src/include/plugin/profiler/profiler_v5.h, nccl_profiler.h). A plugin exports one
 * object named ncclProfiler_v5.
 */
#ifndef CRYSTAL_NCCL_PROFILER_ABI_H
#define CRYSTAL_NCCL_PROFILER_ABI_H

#include "runtime/nccl_net_abi.h"

#include <stdbool.h>
#include <sys/types.h>

enum {
    ncclProfileGroup = 1 << 0,
    ncclProfileColl = 1 << 1,
    ncclProfileP2p = 1 << 2,
    ncclProfileProxyOp = 1 << 3,
    ncclProfileProxyStep = 1 << 4,
    ncclProfileProxyCtrl = 1 << 5,
    ncclProfileKernelCh = 1 << 6,
    ncclProfileNetPlugin = 1 << 7,
    ncclProfileGroupApi = 1 << 8,
    ncclProfileCollApi = 1 << 9,
    ncclProfileP2pApi = 1 << 10,
    ncclProfileKernelLaunch = 1 << 11
};

typedef struct {
    uint64_t type; /* one of the bits above */
    void *parentObj;
    int rank;
    union {
        struct {
            bool graphCaptured;
            int groupDepth;
        } groupApi;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool graphCaptured;
        } collApi;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            bool graphCaptured;
        } p2pApi;
        struct {
            void *stream;
        } kernelLaunch;
        struct {
            uint64_t seqNumber; /* per communicator and function */
            const char *func;   /* "AllReduce", ... */
            void const *sendBuff;
            void *recvBuff;
            size_t count; /* in bytes with datatype ncclInt8 for AllGather, Broadcast */
            int root;
            const char *datatype; /* "ncclFloat32", ... */
            uint8_t nChannels;
            uint8_t nWarps;
            const char *algo;  /* "RING", "TREE", ... */
            const char *proto; /* "SIMPLE", "LL", "LL128" */
            void *parentGroup;
        } coll;
        struct {
            const char *func; /* "Send" or "Recv" */
            void *buff;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t nChannels;
            void *parentGroup;
        } p2p;
        struct {
            pid_t pid;
            uint8_t channelId;
            int peer;
            int nSteps;    /* network messages of this proxy operation */
            int chunkSize; /* bytes */
            int isSend;
        } proxyOp;
        struct {
            int step; /* index of the message within the proxy operation */
        } proxyStep;
        struct {
            uint8_t channelId;
            uint64_t pTimer;
        } kernelCh;
        struct {
            int64_t id; /* plugin_id of ncclProfilerCallback_t */
            void *data;
        } netPlugin;
    };
} ncclProfilerEventDescr_v5_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t comm_id, int *activation_mask,
                         const char *comm_name, int nodes, int nranks, int rank,
                         ncclDebugLogger_t log);
    ncclResult_t (*startEvent)(void *context, void **event,
                               ncclProfilerEventDescr_v5_t *descr);
    ncclResult_t (*stopEvent)(void *event);
    ncclResult_t (*recordEventState)(void *event, int state, void *args);
    ncclResult_t (*finalize)(void *context);
} ncclProfiler_v5_t;

#endif
