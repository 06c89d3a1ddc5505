/* ncclNetPlugin_v10 and _v8: the interfaces of NCCL before 2.28, translated to the
 * table of version 11, which alone knows the core.
 *
 * NCCL names no communicator here and has no PROFILER v5 that says what a message is,
 * so a virtual rank cannot be told apart: these tables are a transport between real
 * ranks (paced like any other), and refuse a job that has virtual ones.
 */
#include "config.h"

#include "replay/net.h"
#include "replay/plugin_net.h"
#include "runtime/log.h"
#include "runtime/nccl_net_old_abi.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NET    (&ncclNetPlugin_v11)
/* The one id of all communicators, the same in every process. */
#define COMM_ID UINT64_C(0x6e6f2d636f6d6d30)

EXPORT extern const ncclNet_v11_t ncclNetPlugin_v11;
EXPORT extern const ncclNet_v10_t ncclNetPlugin_v10;
EXPORT extern const ncclNet_v8_t ncclNetPlugin_v8;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *context; /* of the process; made once and kept to its end */

static ncclResult_t start(ncclDebugLogger_t log)
{
    ncclNetCommConfig_v11_t config = {-1};
    const struct crystal_net_module *module = crystal_net_module_get(NULL);
    ncclResult_t result = ncclSuccess;

    if (module && module->board) {
        crystal_log(CRYSTAL_LOG_ERROR, "net",
                    "this NCCL is older than 2.28 and does not name its communicators "
                    "to a net plugin, so it cannot have virtual ranks; use NCCL 2.28");
        return ncclInvalidUsage;
    }
    (void)pthread_mutex_lock(&lock);
    if (!context)
        result = NET->init(&context, COMM_ID, &config, log, NULL);
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static ncclResult_t start_v10(ncclDebugLogger_t log, ncclProfilerCallback_t profile)
{
    (void)profile; /* its events are of an older PROFILER, which we have not */
    return start(log);
}

/* A field of both: both structs are cleared by whoever fills them. */
#define SAME(field) props->field = now.field

#define SAME_IN_BOTH     \
    SAME(name);          \
    SAME(pciPath);       \
    SAME(guid);          \
    SAME(ptrSupport);    \
    SAME(regIsGlobal);   \
    SAME(speed);         \
    SAME(port);          \
    SAME(latency);       \
    SAME(maxComms);      \
    SAME(maxRecvs);      \
    SAME(netDeviceType); \
    SAME(netDeviceVersion)

static ncclResult_t properties_v10(int dev, ncclNetProperties_v10_t *props)
{
    ncclNetProperties_v11_t now;
    ncclResult_t result = NET->getProperties(dev, &now);

    if (result != ncclSuccess)
        return result;
    SAME_IN_BOTH;
    SAME(forceFlush);
    SAME(vProps);
    SAME(maxP2pBytes);
    SAME(maxCollBytes);
    return ncclSuccess;
}

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *props)
{
    ncclNetProperties_v11_t now;
    ncclResult_t result = NET->getProperties(dev, &now);

    if (result != ncclSuccess)
        return result;
    SAME_IN_BOTH;
    return ncclSuccess;
}

static ncclResult_t listen_old(int dev, void *handle, void **listen_comm)
{
    return context ? NET->listen(context, dev, handle, listen_comm) : ncclInvalidUsage;
}

static ncclResult_t connect_v8(int dev, void *handle, void **send_comm,
                               void **send_dev_comm)
{
    return context ? NET->connect(context, dev, handle, send_comm, send_dev_comm)
                   : ncclInvalidUsage;
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v11_t *config, void *handle,
                                void **send_comm, void **send_dev_comm)
{
    (void)config;
    return connect_v8(dev, handle, send_comm, send_dev_comm);
}

static ncclResult_t isend_v10(void *send_comm, void *data, size_t size, int tag,
                              void *mhandle, void *phandle, void **request)
{
    (void)phandle;
    return NET->isend(send_comm, data, size, tag, mhandle, NULL, request);
}

static ncclResult_t isend_v8(void *send_comm, void *data, int size, int tag,
                             void *mhandle, void **request)
{
    if (size < 0)
        return ncclInvalidArgument;
    return NET->isend(send_comm, data, (size_t)size, tag, mhandle, NULL, request);
}

static ncclResult_t irecv_v10(void *recv_comm, int n, void **data, size_t *sizes,
                              int *tags, void **mhandles, void **phandles,
                              void **request)
{
    (void)phandles;
    return NET->irecv(recv_comm, n, data, sizes, tags, mhandles, NULL, request);
}

static ncclResult_t irecv_v8(void *recv_comm, int n, void **data, int *sizes, int *tags,
                             void **mhandles, void **request)
{
    size_t size;

    if (n != 1 || sizes[0] < 0) /* maxRecvs is 1 */
        return ncclInvalidArgument;
    size = (size_t)sizes[0];
    return NET->irecv(recv_comm, n, data, &size, tags, mhandles, NULL, request);
}

const ncclNet_v10_t ncclNetPlugin_v10 = {
    .name = "Crystal",
    .init = start_v10,
    .devices = crystal_plugin_devices,
    .getProperties = properties_v10,
    .listen = listen_old,
    .connect = connect_v10,
    .accept = crystal_plugin_accept,
    .regMr = crystal_plugin_reg,
    .regMrDmaBuf = crystal_plugin_reg_dmabuf,
    .deregMr = crystal_plugin_dereg,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .iflush = crystal_plugin_flush,
    .test = crystal_plugin_test,
    .closeSend = crystal_plugin_close,
    .closeRecv = crystal_plugin_close,
    .closeListen = crystal_plugin_close_listen,
};

const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = "Crystal",
    .init = start,
    .devices = crystal_plugin_devices,
    .getProperties = properties_v8,
    .listen = listen_old,
    .connect = connect_v8,
    .accept = crystal_plugin_accept,
    .regMr = crystal_plugin_reg,
    .regMrDmaBuf = crystal_plugin_reg_dmabuf,
    .deregMr = crystal_plugin_dereg,
    .isend = isend_v8,
    .irecv = irecv_v8,
    .iflush = crystal_plugin_flush,
    .test = crystal_plugin_test,
    .closeSend = crystal_plugin_close,
    .closeRecv = crystal_plugin_close,
    .closeListen = crystal_plugin_close_listen,
};
