/* Profiler events. AllGather and Broadcast count bytes, as NCCL moves them. */
#include "config.h"

#include "replay/hostccl/profile.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/plugin.h"
#include "replay/hostccl/task.h"
#include "runtime/log.h"

#include <string.h>
#include <unistd.h>

/* What the last parameter of a net plugin's callback asks for. */
enum callback_type {
    NET_START = 0,
    NET_STOP = 1,
    NET_UPDATE = 2,
    NET_UPDATE_AND_STOP = 3
};
#define STATE_NET_UPDATE 21

/* Events below a level are of no use without those above. */
#define MASK_STEP  (ncclProfileProxyStep | ncclProfileNetPlugin)
#define MASK_OP    (ncclProfileProxyOp | MASK_STEP)
#define MASK_BELOW (MASK_OP | ncclProfileKernelCh)
#define MASK_COLL  (ncclProfileColl | MASK_BELOW)
#define MASK_P2P   (ncclProfileP2p | MASK_BELOW)
#define MASK_GROUP                                                              \
    (ncclProfileGroupApi | ncclProfileCollApi | ncclProfileP2pApi | MASK_COLL | \
     MASK_P2P | ncclProfileKernelLaunch | ncclProfileGroup)

const char *hostccl_func_name(unsigned func)
{
    static const char *const names[CRYSTAL_FUNC_COUNT] = {
        "Unknown", "Broadcast", "Reduce",   "AllGather", "ReduceScatter", "AllReduce",
        "Send",    "Recv",      "AlltoAll", "Gather",    "Scatter"};

    return func < CRYSTAL_FUNC_COUNT ? names[func] : "Unknown";
}

const char *hostccl_dtype_name(unsigned dtype)
{
    static const char *const names[ncclNumTypes] = {
        "ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
        "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
        "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

    return dtype < ncclNumTypes ? names[dtype] : "Unknown";
}

static int is_p2p(const struct hostccl_task *task)
{
    return task->func == CRYSTAL_FUNC_SEND || task->func == CRYSTAL_FUNC_RECV;
}

static void *start(const struct hostccl_profile *profile,
                   ncclProfilerEventDescr_v5_t *descr)
{
    void *event = NULL;

    descr->rank = profile->crank;
    if (profile->plugin->startEvent(profile->context, &event, descr) != ncclSuccess)
        return NULL;
    return event;
}

void hostccl_profile_init(struct hostccl_profile *profile,
                          const ncclProfiler_v5_t *plugin, uint64_t comm_id,
                          const char *name, uint32_t nranks, uint32_t crank)
{
    *profile = (struct hostccl_profile){
        .plugin = plugin, .crank = (int)crank, .pid = (int)getpid()};
    if (!plugin)
        return;
    if (plugin->init(&profile->context, comm_id, &profile->mask, name, (int)nranks,
                     (int)nranks, (int)crank, hostccl_plugin_log) != ncclSuccess) {
        crystal_log(CRYSTAL_LOG_WARNING, "hostccl",
                    "the profiler plugin does not start, ignoring it");
        profile->plugin = NULL;
    }
}

void hostccl_profile_fini(struct hostccl_profile *profile)
{
    if (profile->plugin)
        (void)profile->plugin->finalize(profile->context); /* nothing to do about it */
    profile->plugin = NULL;
}

void *hostccl_profile_group_start(const struct hostccl_profile *profile, int depth)
{
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileGroupApi};

    if (!profile->plugin || !(profile->mask & MASK_GROUP))
        return NULL;
    d.groupApi.groupDepth = depth;
    return start(profile, &d);
}

void *hostccl_profile_api_start(const struct hostccl_profile *profile, void *group,
                                const struct hostccl_task *task, const char *name)
{
    ncclProfilerEventDescr_v5_t d = {.parentObj = group};
    int wanted =
        is_p2p(task) ? ncclProfileP2pApi | MASK_P2P : ncclProfileCollApi | MASK_COLL;

    if (!profile->plugin || !(profile->mask & wanted))
        return NULL;
    if (is_p2p(task)) {
        d.type = ncclProfileP2pApi;
        d.p2pApi.func = name;
        d.p2pApi.count = task->count;
        d.p2pApi.datatype = hostccl_dtype_name(task->dtype);
        d.p2pApi.stream = task->stream;
    } else {
        d.type = ncclProfileCollApi;
        d.collApi.func = name;
        d.collApi.count = task->count;
        d.collApi.datatype = hostccl_dtype_name(task->dtype);
        d.collApi.root = (int)task->peer;
        d.collApi.stream = task->stream;
    }
    return start(profile, &d);
}

static void describe_coll(const struct hostccl_profile *profile,
                          const struct hostccl_task *task,
                          ncclProfilerEventDescr_v5_t *d)
{
    int is_bytes =
        task->func == CRYSTAL_FUNC_ALLGATHER || task->func == CRYSTAL_FUNC_BROADCAST;

    d->type = ncclProfileColl;
    d->coll.seqNumber = profile->seq[task->func];
    d->coll.func = hostccl_func_name(task->func);
    d->coll.sendBuff = task->send;
    d->coll.recvBuff = task->recv;
    d->coll.count =
        is_bytes ? task->count * crystal_dtype_bytes(task->dtype) : task->count;
    d->coll.root = (int)task->peer;
    d->coll.datatype =
        is_bytes ? hostccl_dtype_name(ncclInt8) : hostccl_dtype_name(task->dtype);
    d->coll.nChannels = 1;
    d->coll.nWarps = 1;
    d->coll.algo =
        task->func == CRYSTAL_FUNC_ALLREDUCE && task->comm->has_tree ? "TREE" : "RING";
    d->coll.proto = d->coll.algo[0] == 'R' && task->comm->proto ? "LL" : "SIMPLE";
}

void *hostccl_profile_task_start(struct hostccl_profile *profile,
                                 const struct hostccl_task *task)
{
    ncclProfilerEventDescr_v5_t d = {.parentObj = task->api_event};
    void *event = NULL;

    if (is_p2p(task)) {
        if (!profile->plugin || !(profile->mask & MASK_P2P))
            return NULL;
        d.type = ncclProfileP2p;
        d.p2p.func = hostccl_func_name(task->func);
        d.p2p.buff = task->func == CRYSTAL_FUNC_SEND ? (void *)(uintptr_t)task->send
                                                     : task->recv;
        d.p2p.datatype = hostccl_dtype_name(task->dtype);
        d.p2p.count = task->count;
        d.p2p.peer = (int)task->peer;
        d.p2p.nChannels = 1;
        return start(profile, &d);
    }
    if (profile->plugin && profile->mask & MASK_COLL) {
        describe_coll(profile, task, &d);
        event = start(profile, &d);
    }
    profile->seq[task->func]++;
    return event;
}

void *hostccl_profile_op_start(const struct hostccl_profile *profile, void *task_event,
                               uint32_t peer, int is_send, uint64_t message_count,
                               uint32_t chunk_bytes)
{
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileProxyOp,
                                     .parentObj = task_event};

    if (!profile->plugin || !(profile->mask & MASK_OP))
        return NULL;
    d.proxyOp.pid = profile->pid;
    d.proxyOp.peer = (int)peer;
    d.proxyOp.nSteps = message_count > INT_MAX ? INT_MAX : (int)message_count;
    d.proxyOp.chunkSize = (int)chunk_bytes;
    d.proxyOp.isSend = is_send;
    return start(profile, &d);
}

void *hostccl_profile_step_start(const struct hostccl_profile *profile, void *op_event,
                                 uint64_t index)
{
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileProxyStep,
                                     .parentObj = op_event};

    if (!profile->plugin || !(profile->mask & MASK_STEP))
        return NULL;
    d.proxyStep.step = index > INT_MAX ? INT_MAX : (int)index;
    return start(profile, &d);
}

void hostccl_profile_stop(const struct hostccl_profile *profile, void *event)
{
    if (event && profile->plugin)
        (void)profile->plugin->stopEvent(event); /* it has nobody to tell */
}

ncclResult_t hostccl_profile_callback(void **event, int type, void *phandle, int64_t id,
                                      void *data)
{
    const struct hostccl_phandle *handle = phandle;
    const struct hostccl_plugin *plugin = hostccl_plugin_loaded();
    const ncclProfiler_v5_t *profiler = plugin ? plugin->profiler : NULL;

    if (!profiler)
        return ncclSuccess;
    if (type == NET_START) {
        ncclProfilerEventDescr_v5_t d = {.type = ncclProfileNetPlugin};

        if (!handle || !handle->profile->plugin ||
            !(handle->profile->mask & ncclProfileNetPlugin))
            return ncclSuccess;
        d.parentObj = handle->step;
        d.netPlugin.id = id;
        d.netPlugin.data = data;
        *event = start(handle->profile, &d);
        return ncclSuccess;
    }
    if (!*event)
        return ncclSuccess;
    if (type == NET_UPDATE || type == NET_UPDATE_AND_STOP) {
        struct {
            void *data; /* NCCL's union of arguments is one word */
        } args = {.data = data};

        (void)profiler->recordEventState(*event, STATE_NET_UPDATE, &args);
    }
    if (type == NET_STOP || type == NET_UPDATE_AND_STOP)
        (void)profiler->stopEvent(*event);
    return ncclSuccess;
}
