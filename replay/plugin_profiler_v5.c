/* ncclProfiler_v5: NCCL's PROFILER interface, translated to the core (net_ops.h). */
#include "config.h"

#include "replay/net.h"
#include "runtime/log.h"
#include "runtime/nccl_profiler_abi.h"

#include <errno.h>
#include <string.h>

static void *to_pointer(crystal_event_handle handle)
{
    return (void *)(uintptr_t)handle;
}

static crystal_event_handle to_handle(const void *pointer)
{
    return (uintptr_t)pointer;
}
_Static_assert(sizeof(uintptr_t) == sizeof(crystal_event_handle), "64-bit pointers");

static uint32_t func_parse(const char *name)
{
    static const char *const names[CRYSTAL_FUNC_COUNT] = {
        [CRYSTAL_FUNC_BROADCAST] = "Broadcast",
        [CRYSTAL_FUNC_REDUCE] = "Reduce",
        [CRYSTAL_FUNC_ALLGATHER] = "AllGather",
        [CRYSTAL_FUNC_REDUCESCATTER] = "ReduceScatter",
        [CRYSTAL_FUNC_ALLREDUCE] = "AllReduce",
        [CRYSTAL_FUNC_SEND] = "Send",
        [CRYSTAL_FUNC_RECV] = "Recv",
        [CRYSTAL_FUNC_ALLTOALL] = "AlltoAll",
        [CRYSTAL_FUNC_GATHER] = "Gather",
        [CRYSTAL_FUNC_SCATTER] = "Scatter"};

    for (uint32_t i = 1; name && i < CRYSTAL_FUNC_COUNT; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return CRYSTAL_FUNC_NONE;
}

/* ncclInt8 where the name is unknown: bytes. */
static uint32_t dtype_parse(const char *name)
{
    static const char *const names[ncclNumTypes] = {
        "ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
        "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
        "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

    for (uint32_t i = 0; name && i < ncclNumTypes; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return ncclInt8;
}

static enum crystal_algo algo_parse(const char *name)
{
    if (!name || strcmp(name, "RING") == 0)
        return CRYSTAL_ALGO_RING;
    if (strcmp(name, "TREE") == 0)
        return CRYSTAL_ALGO_TREE;
    return strcmp(name, "PAT") == 0 ? CRYSTAL_ALGO_PAT : CRYSTAL_ALGO_OTHER;
}

static enum crystal_proto proto_parse(const char *name)
{
    if (name && strcmp(name, "LL") == 0)
        return CRYSTAL_PROTO_LL;
    return name && strcmp(name, "LL128") == 0 ? CRYSTAL_PROTO_LL128
                                              : CRYSTAL_PROTO_SIMPLE;
}

static crystal_event_handle coll(struct crystal_net_comm *comm,
                                 crystal_event_handle parent,
                                 const ncclProfilerEventDescr_v5_t *d)
{
    struct crystal_coll_facts facts = {.func = func_parse(d->coll.func),
                                       .dtype = dtype_parse(d->coll.datatype),
                                       .count = d->coll.count,
                                       .root = (uint32_t)d->coll.root,
                                       .channel_count = d->coll.nChannels,
                                       .algo = algo_parse(d->coll.algo),
                                       .proto = proto_parse(d->coll.proto)};

    return crystal_ops_coll(comm, parent, &facts);
}

/* Is anything done with events? A run of real ranks alone, without pacing and without
 * records, has no use for them. */
static int are_events_needed(const struct crystal_net_module *module)
{
    return module->board || module->run || crystal_wire_is_paced(&module->wire);
}

static ncclResult_t profiler_init(void **context, uint64_t comm_id,
                                  int *activation_mask, const char *comm_name,
                                  int nodes, int nranks, int rank,
                                  ncclDebugLogger_t log)
{
    struct crystal_error err = {0};
    struct crystal_net_module *module = crystal_net_module_get(&err);
    struct crystal_net_comm *comm;

    (void)comm_name;
    (void)nodes;
    (void)log;
    if (!module)
        return ncclInvalidUsage; /* logged by the module */
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return ncclInvalidArgument;
    comm = crystal_net_comm_get(module, comm_id, (uint32_t)rank, &err);
    if (!comm || crystal_net_comm_set(comm, (uint32_t)nranks, (uint32_t)rank, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "net", "%s", crystal_error_text(&err));
        if (comm)
            crystal_net_comm_put(comm);
        return ncclSystemError;
    }
    *activation_mask = are_events_needed(module)
                           ? ncclProfileCollApi | ncclProfileP2pApi | ncclProfileColl |
                                 ncclProfileP2p | ncclProfileProxyOp |
                                 ncclProfileProxyStep | ncclProfileNetPlugin
                           : 0;
    *context = comm;
    return ncclSuccess;
}

static crystal_event_handle start(struct crystal_net_comm *comm,
                                  const ncclProfilerEventDescr_v5_t *d)
{
    crystal_event_handle parent = to_handle(d->parentObj);

    switch (d->type) {
    case ncclProfileCollApi:
        return crystal_ops_call(comm, func_parse(d->collApi.func),
                                dtype_parse(d->collApi.datatype), d->collApi.count);
    case ncclProfileP2pApi:
        return crystal_ops_call(comm, func_parse(d->p2pApi.func),
                                dtype_parse(d->p2pApi.datatype), d->p2pApi.count);
    case ncclProfileColl:
        return coll(comm, parent, d);
    case ncclProfileP2p:
        return crystal_ops_p2p(comm, parent, func_parse(d->p2p.func),
                               dtype_parse(d->p2p.datatype), d->p2p.count,
                               (uint32_t)d->p2p.peer, d->p2p.nChannels);
    case ncclProfileProxyOp:
        return crystal_ops_proxy(parent, d->proxyOp.channelId,
                                 (uint32_t)d->proxyOp.peer, (uint32_t)d->proxyOp.nSteps,
                                 d->proxyOp.isSend);
    case ncclProfileProxyStep:
        return crystal_ops_step(parent, (uint32_t)d->proxyStep.step);
    case ncclProfileNetPlugin:
        if (d->netPlugin.id == CRYSTAL_NET_PLUGIN_ID && d->netPlugin.data)
            crystal_ops_identify(parent, d->netPlugin.data);
        return 0;
    default:
        return 0;
    }
}

static ncclResult_t profiler_start(void *context, void **event,
                                   ncclProfilerEventDescr_v5_t *descr)
{
    *event = context ? to_pointer(start(context, descr)) : NULL;
    return ncclSuccess;
}

static ncclResult_t profiler_stop(void *event)
{
    if (event)
        crystal_ops_stop(to_handle(event));
    return ncclSuccess;
}

static ncclResult_t profiler_record(void *event, int state, void *args)
{
    (void)event;
    (void)state;
    (void)args;
    return ncclSuccess;
}

static ncclResult_t profiler_finalize(void *context)
{
    if (context)
        crystal_net_comm_put(context);
    return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclProfiler_v5_t ncclProfiler_v5 = {
    .name = "Crystal",
    .init = profiler_init,
    .startEvent = profiler_start,
    .stopEvent = profiler_stop,
    .recordEventState = profiler_record,
    .finalize = profiler_finalize,
};
