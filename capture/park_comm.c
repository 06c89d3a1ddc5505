/* Communicators in capture: each is made by the coordinator, also the children of
 * others. See park_split.c for those. */
#include "config.h"

#include "capture/cuda_device.h"
#include "capture/park.h"
#include "capture/recorder.h"

#include <errno.h>
#include <string.h>

ncclResult_t park_comm_init(ncclComm_t *ret_comm, int nranks, const ncclUniqueId *id,
                            int crank)
{
    struct crystal_msg_comm_init init;
    struct crystal_error err = {0};
    struct crystal_client *client;
    struct ncclComm *comm;
    int code;

    if (!ret_comm || !id)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommInitRank: NULL argument");
    if (nranks < 1 || crank < 0 || crank >= nranks)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommInitRank: rank %d of %d; it lies in 0..%d",
                         crank, nranks, nranks - 1);
    memcpy(init.id, id, sizeof init.id);
    init.nranks = (uint32_t)nranks;
    init.crank = (uint32_t)crank;
    if (cuda_device_activate(&err))
        return park_fail(&err, ncclInvalidUsage);
    comm = park_queue_comm_create(&err);
    if (!comm)
        return park_fail(&err, ncclSystemError);
    if (cuda_device_is_active())
        (void)cuda_api_get()->cudaGetDevice(&comm->gpu); /* else the first one */
    comm->nranks = init.nranks;
    comm->crank = init.crank;
    code = park_client_get(&client, &err);
    if (!code)
        code = crystal_client_comm_init(client, &init, &comm->number, comm->name,
                                        sizeof comm->name, &err);
    if (!code)
        code = recorder_comm(recorder_get(), comm->name, comm->nranks, comm->crank,
                             &comm->index, &err);
    if (code) {
        park_queue_comm_release(comm);
        return park_fail(&err, code == -ECANCELED ? ncclRemoteError : ncclSystemError);
    }
    *ret_comm = comm;
    return ncclSuccess;
}

ncclResult_t park_CommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return park_comm_init(comm, nranks, &id, rank);
}

ncclResult_t park_CommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id,
                                     int rank, ncclConfig_t *config)
{
    (void)config; /* blocking or not, the communicator is ready on return */
    return park_comm_init(comm, nranks, &id, rank);
}

ncclResult_t park_CommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nid,
                                       ncclUniqueId *ids, ncclConfig_t *config)
{
    (void)config;
    if (nid < 1 || !ids)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommInitRankScalable: no unique id");
    return park_comm_init(comm, nranks, &ids[0], rank);
}

ncclResult_t park_CommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
    (void)comms;
    (void)devlist;
    return PARK_FAIL(ncclInvalidUsage,
                     "recorder: ncclCommInitAll with %d devices: a logical rank is one "
                     "process; use ncclCommInitRank",
                     ndev);
}

ncclResult_t park_CommFinalize(ncclComm_t comm)
{
    return comm ? ncclSuccess
                : PARK_FAIL(ncclInvalidArgument,
                            "recorder: ncclCommFinalize: comm is NULL");
}

ncclResult_t park_CommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    recorder_comm_free(recorder_get(), comm->index);
    park_queue_comm_release(comm); /* what is under way keeps it */
    return ncclSuccess;
}

ncclResult_t park_CommAbort(ncclComm_t comm)
{
    return park_CommDestroy(comm);
}

ncclResult_t park_CommRevoke(ncclComm_t comm, int flags)
{
    (void)comm;
    (void)flags;
    return PARK_FAIL(
        ncclInvalidUsage,
        "recorder: ncclCommRevoke cannot be captured; abort the communicator");
}

ncclResult_t park_CommGetAsyncError(ncclComm_t comm, ncclResult_t *async_error)
{
    if (!comm || !async_error)
        return PARK_FAIL(ncclInvalidArgument, "recorder: ncclCommGetAsyncError: NULL");
    *async_error =
        (ncclResult_t)atomic_load_explicit(&comm->error, memory_order_relaxed);
    return ncclSuccess;
}

ncclResult_t park_CommCount(const ncclComm_t comm, int *count)
{
    if (!comm || !count)
        return PARK_FAIL(ncclInvalidArgument, "recorder: ncclCommCount: NULL argument");
    *count = (int)comm->nranks;
    return ncclSuccess;
}

ncclResult_t park_CommCuDevice(const ncclComm_t comm, int *device)
{
    if (!comm || !device)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommCuDevice: NULL argument");
    *device = comm->gpu;
    return ncclSuccess;
}

ncclResult_t park_CommUserRank(const ncclComm_t comm, int *rank)
{
    if (!comm || !rank)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommUserRank: NULL argument");
    *rank = (int)comm->crank;
    return ncclSuccess;
}

ncclResult_t park_CommRegister(const ncclComm_t comm, void *buffer, size_t size,
                               void **handle)
{
    (void)size;
    if (!comm || !handle)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommRegister: NULL argument");
    *handle = buffer; /* nothing to prepare for host memory */
    return ncclSuccess;
}

ncclResult_t park_CommDeregister(const ncclComm_t comm, void *handle)
{
    (void)comm;
    (void)handle;
    return ncclSuccess;
}

ncclResult_t park_CommWindowRegister(ncclComm_t comm, void *buffer, size_t size,
                                     ncclWindow_t *window, int flags)
{
    (void)buffer;
    (void)size;
    (void)flags;
    if (!comm || !window)
        return PARK_FAIL(ncclInvalidArgument, "recorder: ncclCommWindowRegister: NULL");
    *window = NULL; /* as NCCL answers where windows bring nothing */
    return ncclSuccess;
}

ncclResult_t park_CommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    (void)comm;
    (void)window;
    return ncclSuccess;
}
