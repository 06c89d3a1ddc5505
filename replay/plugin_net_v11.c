/* ncclNetPlugin_v11: NCCL's NET interface, translated to the core (net.h). */
#include "config.h"

#include "replay/plugin_net.h"

#include "replay/net.h"
#include "replay/net_copy.h"
#include "replay/net_device.h"
#include "replay/net_version.h"
#include "runtime/file_limit.h"
#include "runtime/log.h"
#include "runtime/nccl_net_abi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 16
#define FIRST_GUID UINT64_C(0x4352595354414c30) /* "CRYSTAL0" */

static ncclResult_t nccl_result(int code)
{
    switch (-code) {
    case 0:
        return ncclSuccess;
    case EINVAL:
    case ENODEV:
        return ncclInvalidUsage;
    case EPROTO:
    case ENOSYS:
        return ncclInternalError;
    case ECONNRESET:
    case EPIPE:
    case ECONNREFUSED:
        return ncclRemoteError;
    default:
        return ncclSystemError;
    }
}

/* For calls that are not on an end, which logs its own failure. */
static ncclResult_t told(int code, const struct crystal_error *err)
{
    if (code)
        crystal_log(CRYSTAL_LOG_ERROR, "net", "%s%s", crystal_error_text(err),
                    crystal_file_limit_hint(code));
    return nccl_result(code);
}

static ncclResult_t net_init(void **ctx, uint64_t comm_id,
                             ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
                             ncclProfilerCallback_t profile)
{
    struct crystal_error err = {0};
    struct crystal_net_module *module = crystal_net_module_get(&err);
    struct crystal_net_context *context;

    (void)config;
    (void)log;
    if (!module)
        return nccl_result(-err.code); /* logged by the module */
    if (crystal_net_version_check(module, __builtin_return_address(0)))
        return nccl_result(crystal_net_abort_check(module));
    context = calloc(1, sizeof *context);
    if (!context)
        return ncclSystemError;
    context->identify = (void *)(uintptr_t)profile;
    context->comm = crystal_net_comm_get(module, comm_id, CRYSTAL_CRANK_UNKNOWN, &err);
    if (!context->comm) {
        free(context);
        return told(-err.code, &err);
    }
    *ctx = context;
    return ncclSuccess;
}

static ncclResult_t net_finalize(void *ctx)
{
    struct crystal_net_context *context = ctx;

    if (context) {
        crystal_net_comm_put(context->comm);
        free(context);
    }
    return ncclSuccess;
}

ncclResult_t crystal_plugin_devices(int *ndev)
{
    struct crystal_net_module *module = crystal_net_module_get(NULL);

    *ndev = module ? (int)module->nic_count : 1;
    return ncclSuccess;
}

static int has_nic(const struct crystal_net_module *module, int dev)
{
    return dev >= 0 && (unsigned)dev < module->nic_count;
}

/* Mbit/s of the wire; 10 Gbit/s where it is not modelled. */
static int speed_mbps(const struct crystal_wire *wire)
{
    uint64_t mbps = wire->bytes_per_s / 125000;

    if (!wire->bytes_per_s)
        return 10000;
    return mbps < 1 ? 1 : mbps > 10000000 ? 10000000 : (int)mbps;
}

static ncclResult_t net_properties(int dev, ncclNetProperties_v11_t *props)
{
    static char names[CRYSTAL_NICS_MAX][NAME_BYTES];
    struct crystal_net_module *module = crystal_net_module_get(NULL);

    if (!module)
        return ncclInvalidUsage;
    if (!has_nic(module, dev))
        return ncclInvalidArgument;
    memset(props, 0, sizeof *props);
    /* the same text at every call, so that threads may write it at once */
    (void)snprintf(names[dev], NAME_BYTES, "crystal%d", dev);
    props->name = names[dev];
    props->pciPath = module->nic_paths[dev];
    props->guid = FIRST_GUID + (uint64_t)dev;
    props->ptrSupport = NCCL_PTR_HOST | (module->has_device ? NCCL_PTR_CUDA : 0);
    props->speed = speed_mbps(&module->wire);
    props->port = 1;
    props->latency = (float)module->wire.latency_ns / 1000.0F;
    props->maxComms = 1 << 20;
    props->maxRecvs = 1;
    props->vProps.ndevs = 1;
    props->vProps.devs[0] = dev;
    props->maxP2pBytes = (size_t)1 << 40;
    props->maxCollBytes = (size_t)1 << 40;
    props->maxMultiRequestSize = 1;
    return ncclSuccess;
}

_Static_assert(sizeof(struct crystal_net_handle) <= NCCL_NET_HANDLE_MAXSIZE, "fits");

static ncclResult_t net_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    struct crystal_error err = {0};
    struct crystal_net_listener *listener;
    struct crystal_net_handle made;
    int code;

    if (!has_nic(((struct crystal_net_context *)ctx)->comm->module, dev))
        return ncclInvalidArgument;
    code = crystal_net_listen(ctx, &made, &listener, &err);
    if (code)
        return told(code, &err);
    crystal_net_listener_set_nic(listener, (unsigned)dev);
    memcpy(handle, &made, sizeof made);
    *listen_comm = listener;
    return ncclSuccess;
}

static ncclResult_t net_connect(void *ctx, int dev, void *handle, void **send_comm,
                                void **send_dev_comm)
{
    struct crystal_error err = {0};
    struct crystal_net_handle copy;
    struct crystal_net_end *end;
    int code;

    (void)send_dev_comm;
    if (!has_nic(((struct crystal_net_context *)ctx)->comm->module, dev))
        return ncclInvalidArgument;
    memcpy(&copy, handle, sizeof copy); /* the caller's may be unaligned */
    code = crystal_net_connect(ctx, (unsigned)dev, &copy, &end, &err);
    memcpy(handle, &copy, sizeof copy);
    *send_comm = end;
    return told(code, &err);
}

ncclResult_t crystal_plugin_accept(void *listen_comm, void **recv_comm,
                                   void **recv_dev_comm)
{
    struct crystal_error err = {0};
    struct crystal_net_end *end;
    int code = crystal_net_accept(listen_comm, &end, &err);

    (void)recv_dev_comm;
    *recv_comm = end;
    return told(code, &err);
}

/* A handle is the device whose memory it is, NULL for host memory. */
ncclResult_t crystal_plugin_reg(void *comm, void *data, size_t size, int type,
                                void **mhandle)
{
    struct crystal_error err = {0};
    struct crystal_net_end *end = comm;
    struct crystal_device *device;

    *mhandle = NULL;
    if (type == NCCL_PTR_HOST)
        return end && end->ops->region
                   ? told(end->ops->region(end, data, size, &err), &err)
                   : ncclSuccess;
    if (type != NCCL_PTR_CUDA)
        return ncclInvalidUsage;
    device = crystal_device_get(&err);
    if (!device || crystal_device_check(device, data, &err))
        return told(-err.code, &err);
    *mhandle = device;
    return ncclSuccess;
}

/* The descriptor is not needed: copies go through the GPU's own address. */
ncclResult_t crystal_plugin_reg_dmabuf(void *comm, void *data, size_t size, int type,
                                       uint64_t offset, int fd, void **mhandle)
{
    (void)offset;
    (void)fd;
    return crystal_plugin_reg(comm, data, size, type, mhandle);
}

ncclResult_t crystal_plugin_dereg(void *comm, void *mhandle)
{
    (void)comm;
    (void)mhandle;
    return ncclSuccess;
}

/* Asks our own PROFILER part which message a transfer is. */
static void identify(const struct crystal_net_end *end, void *phandle,
                     struct crystal_message_id *id)
{
    ncclProfilerCallback_t profile =
        (ncclProfilerCallback_t)(uintptr_t)end->context->identify;
    void *event = NULL;

    memset(id, 0, sizeof *id);
    if (profile && phandle)
        (void)profile(&event, 0, phandle, CRYSTAL_NET_PLUGIN_ID, id);
}

static ncclResult_t net_isend(void *send_comm, void *data, size_t size, int tag,
                              void *mhandle, void *phandle, void **request)
{
    struct crystal_error err = {0};
    struct crystal_message_id id;
    struct crystal_net_request *r;
    int code;

    (void)tag;
    identify(send_comm, phandle, &id);
    code = crystal_net_post(send_comm, data, size, mhandle, &id, &r, &err);
    *request = r;
    return nccl_result(code);
}

static ncclResult_t net_irecv(void *recv_comm, int n, void **data, size_t *sizes,
                              int *tags, void **mhandles, void **phandles,
                              void **request)
{
    struct crystal_error err = {0};
    struct crystal_message_id id;
    struct crystal_net_request *r;
    int code;

    (void)tags;
    if (n != 1)
        return ncclInternalError; /* maxRecvs is 1 */
    identify(recv_comm, phandles ? phandles[0] : NULL, &id);
    code = crystal_net_post(recv_comm, data[0], sizes[0], mhandles ? mhandles[0] : NULL,
                            &id, &r, &err);
    *request = r;
    return nccl_result(code);
}

ncclResult_t crystal_plugin_flush(void *recv_comm, int n, void **data, int *sizes,
                                  void **mhandles, void **request)
{
    (void)recv_comm;
    (void)n;
    (void)data;
    (void)sizes;
    (void)mhandles;
    *request = NULL; /* a receive is done when its bytes are where they belong */
    return ncclSuccess;
}

ncclResult_t crystal_plugin_test(void *request, int *done, int *sizes)
{
    struct crystal_error err = {0};
    uint64_t bytes = 0;
    int code = crystal_net_test(request, done, &bytes, &err);

    if (!code && *done && sizes)
        sizes[0] = (int)bytes; /* NCCL's messages are far below 2 GiB */
    return nccl_result(code);
}

ncclResult_t crystal_plugin_close(void *comm)
{
    struct crystal_net_end *end = comm;

    if (end) {
        crystal_copy_drain(end);
        end->ops->close(end);
    }
    return ncclSuccess;
}

ncclResult_t crystal_plugin_close_listen(void *listen_comm)
{
    crystal_net_listener_close(listen_comm);
    return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclNet_v11_t ncclNetPlugin_v11 = {
    .name = "Crystal",
    .init = net_init,
    .devices = crystal_plugin_devices,
    .getProperties = net_properties,
    .listen = net_listen,
    .connect = net_connect,
    .accept = crystal_plugin_accept,
    .regMr = crystal_plugin_reg,
    .regMrDmaBuf = crystal_plugin_reg_dmabuf,
    .deregMr = crystal_plugin_dereg,
    .isend = net_isend,
    .irecv = net_irecv,
    .iflush = crystal_plugin_flush,
    .test = crystal_plugin_test,
    .closeSend = crystal_plugin_close,
    .closeRecv = crystal_plugin_close,
    .closeListen = crystal_plugin_close_listen,
    .finalize = net_finalize,
};
