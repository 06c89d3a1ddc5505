/* The NCCL API: reductions' operations, collectives, sends and receives. Gather,
 * scatter and all-to-all are sends and receives of one group, as in NCCL. */
#include "config.h"

#include "replay/hostccl/api.h"
#include "replay/hostccl/comm.h"
#include "replay/hostccl/group.h"
#include "replay/hostccl/result.h"
#include "runtime/reduce.h"

#include <string.h>

#define BYTES_MAX (UINT64_C(1) << 62)

ncclResult_t hostccl_api_RedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
                                              ncclDataType_t datatype,
                                              ncclScalarResidence_t residence,
                                              ncclComm_t comm)
{
    size_t bytes = crystal_dtype_bytes(datatype);
    int i = 0;

    /* host memory is the device: both residences are read now */
    if (!op || !scalar || !bytes || !hostccl_comm_is_valid(comm) ||
        (residence != ncclScalarDevice && residence != ncclScalarHostImmediate))
        return hostccl_fail(ncclInvalidArgument,
                            "hostccl: ncclRedOpCreatePreMulSum: datatype %d", datatype);
    pthread_mutex_lock(&comm->lock);
    while (i < HOSTCCL_PREMUL_MAX && comm->premul_used[i])
        i++;
    if (i < HOSTCCL_PREMUL_MAX) {
        comm->premul_used[i] = true;
        comm->premul_dtype[i] = (uint8_t)datatype;
        comm->premul[i] = (struct hostccl_redop){.op = CRYSTAL_REDOP_PREMULSUM};
        memcpy(&comm->premul[i].scalar, scalar, bytes);
    }
    pthread_mutex_unlock(&comm->lock);
    if (i == HOSTCCL_PREMUL_MAX)
        return hostccl_fail(ncclInvalidUsage,
                            "hostccl: more than %d operations at once",
                            HOSTCCL_PREMUL_MAX);
    *op = (ncclRedOp_t)(ncclNumOps + i);
    return ncclSuccess;
}

ncclResult_t hostccl_api_RedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    int i = (int)op - ncclNumOps;

    if (!hostccl_comm_is_valid(comm) || i < 0 || i >= HOSTCCL_PREMUL_MAX ||
        !comm->premul_used[i])
        return hostccl_fail(ncclInvalidArgument, "hostccl: no reduction operation %d",
                            (int)op);
    pthread_mutex_lock(&comm->lock);
    comm->premul_used[i] = false;
    pthread_mutex_unlock(&comm->lock);
    return ncclSuccess;
}

/* Fills in the operation of a reduction. */
static ncclResult_t resolve(struct hostccl_task *task, ncclRedOp_t op)
{
    int i = (int)op - ncclNumOps;
    bool is_known;

    if (op == ncclAvg && crystal_dtype_is_float(task->dtype)) {
        task->redop.op = CRYSTAL_REDOP_PREMULSUM; /* as NCCL does */
        task->redop.scalar = crystal_reduce_avg_factor(task->dtype, task->comm->nranks);
        return ncclSuccess;
    }
    if ((unsigned)op < ncclNumOps) {
        task->redop.op = (unsigned)op;
        return ncclSuccess;
    }
    pthread_mutex_lock(&task->comm->lock);
    is_known = i >= 0 && i < HOSTCCL_PREMUL_MAX && task->comm->premul_used[i] &&
               task->comm->premul_dtype[i] == task->dtype;
    if (is_known)
        task->redop = task->comm->premul[i];
    pthread_mutex_unlock(&task->comm->lock);
    return is_known ? ncclSuccess
                    : hostccl_fail(ncclInvalidArgument,
                                   "hostccl: %s: no operation %d for datatype %u",
                                   hostccl_func_name(task->func), (int)op, task->dtype);
}

/* What every call checks first. */
static ncclResult_t check(const struct hostccl_task *task, int peer, const char *name)
{
    ncclComm_t comm = task->comm;
    ncclResult_t result;
    size_t bytes = crystal_dtype_bytes(task->dtype);

    if (!hostccl_comm_is_valid(comm))
        return hostccl_fail(ncclInvalidArgument, "hostccl: nccl%s: no communicator",
                            name);
    if (atomic_load(&comm->async_result) == ncclInProgress)
        return hostccl_fail(ncclInvalidUsage,
                            "hostccl: nccl%s: the communicator is not ready; ask "
                            "ncclCommGetAsyncError until it is",
                            name);
    if (!bytes)
        return hostccl_fail(ncclInvalidArgument, "hostccl: nccl%s: datatype %u", name,
                            task->dtype);
    if (peer < 0 || (uint32_t)peer >= comm->nranks)
        return hostccl_fail(ncclInvalidArgument, "hostccl: nccl%s: rank %d of %u", name,
                            peer, comm->nranks);
    if (task->count > BYTES_MAX / bytes / comm->nranks)
        return hostccl_fail(ncclInvalidArgument, "hostccl: nccl%s: count %llu", name,
                            (unsigned long long)task->count);
    result = (ncclResult_t)atomic_load(&comm->async_result);
    return result ? hostccl_fail(result, "hostccl: nccl%s: the communicator has failed",
                                 name)
                  : ncclSuccess;
}

static ncclResult_t need(const void *buffer, uint64_t count, const char *name)
{
    return buffer || !count
               ? ncclSuccess
               : hostccl_fail(ncclInvalidArgument, "hostccl: nccl%s: no buffer", name);
}

/* A collective with op (ncclSum where it has none). */
static ncclResult_t collective(struct hostccl_task *task, ncclRedOp_t op,
                               bool needs_send, bool needs_recv)
{
    const char *name = hostccl_func_name(task->func);
    ncclResult_t result = check(task, (int)task->peer, name);

    if (!result && needs_send)
        result = need(task->send, task->count, name);
    if (!result && needs_recv)
        result = need(task->recv, task->count, name);
    if (!result)
        result = resolve(task, op);
    hostccl_group_start();
    if (!result && task->count) /* an empty one moves nothing, as in NCCL */
        result = hostccl_group_add(task, name);
    return hostccl_group_end(result);
}

ncclResult_t hostccl_api_Reduce(const void *send, void *recv, size_t count,
                                ncclDataType_t datatype, ncclRedOp_t op, int root,
                                ncclComm_t comm, ncclStream_t stream)
{
    struct hostccl_task task = {.comm = comm,
                                .func = CRYSTAL_FUNC_REDUCE,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = datatype,
                                .peer = (uint32_t)root,
                                .stream = stream};

    return collective(&task, op, true,
                      hostccl_comm_is_valid(comm) && comm->crank == task.peer);
}

ncclResult_t hostccl_api_Broadcast(const void *send, void *recv, size_t count,
                                   ncclDataType_t datatype, int root, ncclComm_t comm,
                                   ncclStream_t stream)
{
    struct hostccl_task task = {.comm = comm,
                                .func = CRYSTAL_FUNC_BROADCAST,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = datatype,
                                .peer = (uint32_t)root,
                                .stream = stream};

    return collective(&task, ncclSum,
                      hostccl_comm_is_valid(comm) && comm->crank == task.peer, true);
}

ncclResult_t hostccl_api_Bcast(void *buffer, size_t count, ncclDataType_t datatype,
                               int root, ncclComm_t comm, ncclStream_t stream)
{
    return hostccl_api_Broadcast(buffer, buffer, count, datatype, root, comm, stream);
}

ncclResult_t hostccl_api_AllReduce(const void *send, void *recv, size_t count,
                                   ncclDataType_t datatype, ncclRedOp_t op,
                                   ncclComm_t comm, ncclStream_t stream)
{
    struct hostccl_task task = {.comm = comm,
                                .func = CRYSTAL_FUNC_ALLREDUCE,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = datatype,
                                .stream = stream};

    return collective(&task, op, true, true);
}

ncclResult_t hostccl_api_ReduceScatter(const void *send, void *recv, size_t recvcount,
                                       ncclDataType_t datatype, ncclRedOp_t op,
                                       ncclComm_t comm, ncclStream_t stream)
{
    struct hostccl_task task = {.comm = comm,
                                .func = CRYSTAL_FUNC_REDUCESCATTER,
                                .send = send,
                                .recv = recv,
                                .count = recvcount,
                                .dtype = datatype,
                                .stream = stream};

    return collective(&task, op, true, true);
}

ncclResult_t hostccl_api_AllGather(const void *send, void *recv, size_t sendcount,
                                   ncclDataType_t datatype, ncclComm_t comm,
                                   ncclStream_t stream)
{
    struct hostccl_task task = {.comm = comm,
                                .func = CRYSTAL_FUNC_ALLGATHER,
                                .send = send,
                                .recv = recv,
                                .count = sendcount,
                                .dtype = datatype,
                                .stream = stream};

    return collective(&task, ncclSum, true, true);
}

/* One send or receive; api: the call that it is part of. */
static ncclResult_t transfer(struct hostccl_task *task, enum crystal_func func,
                             const char *buffer, uint32_t peer, const char *api)
{
    ncclResult_t result = need(buffer, task->count, api);

    task->func = func;
    task->peer = peer;
    if (func == CRYSTAL_FUNC_SEND)
        task->send = buffer;
    else
        task->recv = (void *)(uintptr_t)buffer;
    return result ? result : hostccl_group_add(task, api);
}

ncclResult_t hostccl_api_Send(const void *send, size_t count, ncclDataType_t datatype,
                              int peer, ncclComm_t comm, ncclStream_t stream)
{
    struct hostccl_task task = {
        .comm = comm, .count = count, .dtype = datatype, .stream = stream};
    ncclResult_t result = check(&task, peer, "Send");

    hostccl_group_start();
    if (!result)
        result = transfer(&task, CRYSTAL_FUNC_SEND, send, (uint32_t)peer, "Send");
    return hostccl_group_end(result);
}

ncclResult_t hostccl_api_Recv(void *recv, size_t count, ncclDataType_t datatype,
                              int peer, ncclComm_t comm, ncclStream_t stream)
{
    struct hostccl_task task = {
        .comm = comm, .count = count, .dtype = datatype, .stream = stream};
    ncclResult_t result = check(&task, peer, "Recv");

    hostccl_group_start();
    if (!result)
        result = transfer(&task, CRYSTAL_FUNC_RECV, recv, (uint32_t)peer, "Recv");
    return hostccl_group_end(result);
}

ncclResult_t hostccl_api_AlltoAll(const void *send, void *recv, size_t count,
                                  ncclDataType_t datatype, ncclComm_t comm,
                                  ncclStream_t stream)
{
    struct hostccl_task task = {
        .comm = comm, .count = count, .dtype = datatype, .stream = stream};
    ncclResult_t result = check(&task, 0, "AlltoAll");
    size_t bytes = count * crystal_dtype_bytes(datatype);

    hostccl_group_start();
    for (uint32_t i = 0; !result && count && i < comm->nranks; i++) {
        result = transfer(&task, CRYSTAL_FUNC_SEND, (const char *)send + i * bytes, i,
                          "AlltoAll");
        if (!result)
            result = transfer(&task, CRYSTAL_FUNC_RECV, (char *)recv + i * bytes, i,
                              "AlltoAll");
    }
    return hostccl_group_end(result);
}

ncclResult_t hostccl_api_Gather(const void *send, void *recv, size_t count,
                                ncclDataType_t datatype, int root, ncclComm_t comm,
                                ncclStream_t stream)
{
    struct hostccl_task task = {
        .comm = comm, .count = count, .dtype = datatype, .stream = stream};
    ncclResult_t result = check(&task, root, "Gather");
    size_t bytes = count * crystal_dtype_bytes(datatype);

    hostccl_group_start();
    if (!result && count)
        result = transfer(&task, CRYSTAL_FUNC_SEND, send, (uint32_t)root, "Gather");
    for (uint32_t i = 0;
         !result && count && comm->crank == (uint32_t)root && i < comm->nranks; i++)
        result =
            transfer(&task, CRYSTAL_FUNC_RECV, (char *)recv + i * bytes, i, "Gather");
    return hostccl_group_end(result);
}

ncclResult_t hostccl_api_Scatter(const void *send, void *recv, size_t count,
                                 ncclDataType_t datatype, int root, ncclComm_t comm,
                                 ncclStream_t stream)
{
    struct hostccl_task task = {
        .comm = comm, .count = count, .dtype = datatype, .stream = stream};
    ncclResult_t result = check(&task, root, "Scatter");
    size_t bytes = count * crystal_dtype_bytes(datatype);

    hostccl_group_start();
    for (uint32_t i = 0;
         !result && count && comm->crank == (uint32_t)root && i < comm->nranks; i++)
        result = transfer(&task, CRYSTAL_FUNC_SEND, (const char *)send + i * bytes, i,
                          "Scatter");
    if (!result && count)
        result = transfer(&task, CRYSTAL_FUNC_RECV, recv, (uint32_t)root, "Scatter");
    return hostccl_group_end(result);
}
