/* Communicators passed through, and the calls that nothing is recorded of. */
#include "config.h"

#include "capture/pass.h"
#include "capture/pass_cuda.h"

#include "runtime/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ncclResult_t comm_made(ncclResult_t result, ncclComm_t *comm, int nranks,
                              int crank, const char *name)
{
    struct pass_comm *known;
    struct crystal_error err = {0};

    if (result != ncclSuccess && result != ncclInProgress)
        return result;
    pass_cuda_activate();
    known = calloc(1, sizeof *known);
    if (!known)
        return result;
    known->nranks = (uint32_t)nranks;
    known->crank = (uint32_t)crank;
    if (recorder_comm(recorder_get(), name ? name : "", known->nranks, known->crank,
                      &known->index, &err)) {
        crystal_log(CRYSTAL_LOG_WARNING, "pass", "%s, recording nothing of this one",
                    err.text);
        free(known);
        return result;
    }
    pass_map_put(&pass.comms, *comm, known);
    return result;
}

static void comm_gone(ncclComm_t comm)
{
    struct pass_comm *known = pass_map_get(&pass.comms, comm);

    if (!known)
        return;
    recorder_comm_free(recorder_get(), known->index);
    pass_map_drop(&pass.comms, comm);
}

static const char *config_name(const ncclConfig_t *config)
{
    return config && config->magic == NCCL_CONFIG_MAGIC &&
                   config->size >= offsetof(ncclConfig_t, commName) + sizeof(char *)
               ? config->commName
               : NULL;
}

ncclResult_t pass_CommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id,
                                     int rank, ncclConfig_t *config)
{
    if (!pass_is_open())
        return ncclSystemError;
    return comm_made(pass.nccl.CommInitRankConfig(comm, nranks, id, rank, config), comm,
                     nranks, rank, config_name(config));
}

ncclResult_t pass_CommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    if (!pass_is_open())
        return ncclSystemError;
    return comm_made(pass.nccl.CommInitRank(comm, nranks, id, rank), comm, nranks, rank,
                     NULL);
}

ncclResult_t pass_CommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nid,
                                       ncclUniqueId *ids, ncclConfig_t *config)
{
    if (!pass_is_open())
        return ncclSystemError;
    return comm_made(
        pass.nccl.CommInitRankScalable(comm, nranks, rank, nid, ids, config), comm,
        nranks, rank, config_name(config));
}

ncclResult_t pass_CommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    result = pass.nccl.CommInitAll(comms, ndev, devlist);
    for (int i = 0; i < ndev && result == ncclSuccess; i++)
        result = comm_made(result, &comms[i], ndev, i, NULL);
    return result;
}

/* A child's name: its parent's index, what made it. */
static ncclResult_t child_made(ncclResult_t result, ncclComm_t comm, ncclComm_t *child,
                               const char *how, int color)
{
    const struct pass_comm *parent = pass_map_get(&pass.comms, comm);
    char name[64];
    int nranks, crank;

    if (result != ncclSuccess || !*child || !parent ||
        pass.nccl.CommCount(*child, &nranks) != ncclSuccess ||
        pass.nccl.CommUserRank(*child, &crank) != ncclSuccess)
        return result;
    (void)snprintf(name, sizeof name, "%u/%s:%d", parent->index, how, color);
    return comm_made(result, child, nranks, crank, name);
}

ncclResult_t pass_CommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                            ncclConfig_t *config)
{
    if (!pass_is_open())
        return ncclSystemError;
    return child_made(pass.nccl.CommSplit(comm, color, key, child, config), comm, child,
                      "split", color);
}

ncclResult_t pass_CommShrink(ncclComm_t comm, int *exclude, int exclude_count,
                             ncclComm_t *child, ncclConfig_t *config, int flags)
{
    if (!pass_is_open())
        return ncclSystemError;
    return child_made(
        pass.nccl.CommShrink(comm, exclude, exclude_count, child, config, flags), comm,
        child, "shrink", exclude_count);
}

ncclResult_t pass_CommDestroy(ncclComm_t comm)
{
    if (!pass_is_open())
        return ncclSystemError;
    comm_gone(comm); /* first: the library may give the address to a new one */
    return pass.nccl.CommDestroy(comm);
}

ncclResult_t pass_CommAbort(ncclComm_t comm)
{
    if (!pass_is_open())
        return ncclSystemError;
    comm_gone(comm);
    return pass.nccl.CommAbort(comm);
}

/* --- calls that nothing is recorded of --- */

#define FORWARD(name, proto, args)                                     \
    ncclResult_t pass_##name proto                                     \
    {                                                                  \
        return pass_is_open() ? pass.nccl.name args : ncclSystemError; \
    }
FORWARD(GetVersion, (int *version), (version))
FORWARD(GetUniqueId, (ncclUniqueId * id), (id))
FORWARD(CommFinalize, (ncclComm_t comm), (comm))
FORWARD(CommRevoke, (ncclComm_t comm, int flags), (comm, flags))
FORWARD(CommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), (comm, error))
FORWARD(CommCount, (const ncclComm_t comm, int *count), (comm, count))
FORWARD(CommCuDevice, (const ncclComm_t comm, int *device), (comm, device))
FORWARD(CommUserRank, (const ncclComm_t comm, int *rank), (comm, rank))
FORWARD(CommRegister, (const ncclComm_t comm, void *buffer, size_t size, void **handle),
        (comm, buffer, size, handle))
FORWARD(CommDeregister, (const ncclComm_t comm, void *handle), (comm, handle))
FORWARD(CommWindowRegister,
        (ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *window, int flags),
        (comm, buffer, size, window, flags))
FORWARD(CommWindowDeregister, (ncclComm_t comm, ncclWindow_t window), (comm, window))
FORWARD(RedOpCreatePreMulSum,
        (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype,
         ncclScalarResidence_t residence, ncclComm_t comm),
        (op, scalar, datatype, residence, comm))
FORWARD(RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm))

const char *pass_GetErrorString(ncclResult_t result)
{
    return pass_is_open() ? pass.nccl.GetErrorString(result)
                          : park_GetErrorString(result);
}

const char *pass_GetLastError(ncclComm_t comm)
{
    return pass_is_open() ? pass.nccl.GetLastError(comm) : recorder_last_error();
}

ncclResult_t pass_MemAlloc(void **ptr, size_t size)
{
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    result = pass.nccl.MemAlloc(ptr, size);
    if (result == ncclSuccess)
        recorder_alloc(recorder_get(), size, 0);
    return result;
}

ncclResult_t pass_MemFree(void *ptr)
{
    return pass_is_open() ? pass.nccl.MemFree(ptr) : ncclSystemError;
}
