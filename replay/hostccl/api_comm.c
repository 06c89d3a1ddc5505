/* The NCCL API: communicators, memory, groups, what host memory has not. */
#include "config.h"

#include "replay/hostccl/api.h"
#include "replay/hostccl/comm.h"
#include "replay/hostccl/engine.h"
#include "replay/hostccl/fork.h"
#include "replay/hostccl/group.h"
#include "replay/hostccl/result.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_ALIGN 4096
#define NRANKS_MAX   (1 << 24)
#define SHRINK_ABORT 1 /* NCCL_SHRINK_ABORT */

static ncclResult_t unsupported(const char *name, const char *why)
{
    crystal_log(CRYSTAL_LOG_WARNING, "hostccl", "%s: %s, ignoring the call", name, why);
    return hostccl_fail(ncclInvalidUsage, "hostccl: %s: %s", name, why);
}

static ncclResult_t bad_comm(const char *name)
{
    struct crystal_error err = {0};

    if (hostccl_fork_check(&err))
        return hostccl_fail_error(&err);
    return hostccl_fail(ncclInvalidArgument, "hostccl: %s: no communicator of ours",
                        name);
}

ncclResult_t hostccl_api_MemAlloc(void **ptr, size_t size)
{
    int code;

    if (!ptr)
        return hostccl_fail(ncclInvalidArgument, "hostccl: no place for a pointer");
    code = posix_memalign(ptr, MEMORY_ALIGN, size ? size : 1);
    return code ? hostccl_fail(ncclSystemError, "hostccl: %zu bytes: %s", size,
                               strerror(code))
                : ncclSuccess;
}

ncclResult_t hostccl_api_MemFree(void *ptr)
{
    free(ptr);
    return ncclSuccess;
}

ncclResult_t hostccl_api_GetVersion(int *version)
{
    if (!version)
        return hostccl_fail(ncclInvalidArgument, "hostccl: no place for the version");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t hostccl_api_GetUniqueId(ncclUniqueId *id)
{
    struct crystal_error err = {0};

    if (!id)
        return hostccl_fail(ncclInvalidArgument, "hostccl: no place for the id");
    return hostccl_bootstrap_id(id, &err) ? hostccl_fail_error(&err) : ncclSuccess;
}

/* Says no while comm is being made. */
static ncclResult_t need_ready(const struct ncclComm *comm, const char *name)
{
    return atomic_load(&comm->async_result) == ncclInProgress
               ? hostccl_fail(ncclInvalidUsage,
                              "hostccl: %s: the communicator is not ready; ask "
                              "ncclCommGetAsyncError until it is",
                              name)
               : ncclSuccess;
}

static ncclResult_t check_init(ncclComm_t *comm, int nranks, int rank,
                               const ncclConfig_t *config)
{
    struct crystal_error err = {0};

    if (hostccl_fork_check(&err))
        return hostccl_fail_error(&err);
    if (!comm)
        return hostccl_fail(ncclInvalidArgument,
                            "hostccl: no place for a communicator");
    if (nranks < 1 || nranks > NRANKS_MAX || rank < 0 || rank >= nranks)
        return hostccl_fail(ncclInvalidArgument, "hostccl: rank %d of %d ranks", rank,
                            nranks);
    if (config && config->magic != NCCL_CONFIG_MAGIC)
        return hostccl_fail(ncclInvalidArgument,
                            "hostccl: ncclConfig_t was not initialised");
    return ncclSuccess;
}

static ncclResult_t init(ncclComm_t *comm, int nranks, int rank,
                         const ncclUniqueId *ids, int id_count, ncclConfig_t *config)
{
    ncclResult_t result = check_init(comm, nranks, rank, config);
    struct hostccl_job *job;

    if (!result && (id_count < 1 || id_count > nranks))
        result = hostccl_fail(ncclInvalidArgument, "hostccl: %d ids for %d ranks",
                              id_count, nranks);
    if (result)
        return result;
    job = calloc(1, sizeof *job);
    if (job)
        job->ids = malloc((size_t)id_count * sizeof *ids);
    if (!job || !job->ids) {
        free(job);
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    }
    memcpy(job->ids, ids, (size_t)id_count * sizeof *ids);
    job->ret_comm = comm;
    job->nranks = (uint32_t)nranks;
    job->crank = (uint32_t)rank;
    job->id_count = (uint32_t)id_count;
    job->config = config;
    hostccl_group_start();
    return hostccl_group_end(hostccl_group_add_job(job));
}

ncclResult_t hostccl_api_CommInitRankConfig(ncclComm_t *comm, int nranks,
                                            ncclUniqueId id, int rank,
                                            ncclConfig_t *config)
{
    return init(comm, nranks, rank, &id, 1, config);
}

ncclResult_t hostccl_api_CommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id,
                                      int rank)
{
    return init(comm, nranks, rank, &id, 1, NULL);
}

ncclResult_t hostccl_api_CommInitRankScalable(ncclComm_t *comm, int nranks, int rank,
                                              int nid, ncclUniqueId *ids,
                                              ncclConfig_t *config)
{
    if (!ids)
        return hostccl_fail(ncclInvalidArgument, "hostccl: no ids");
    return init(comm, nranks, rank, ids, nid, config);
}

ncclResult_t hostccl_api_CommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
    ncclUniqueId id;
    ncclResult_t result;

    (void)devlist; /* host memory has no devices */
    if (!comms || ndev < 1)
        return hostccl_fail(ncclInvalidArgument, "hostccl: %d communicators", ndev);
    result = hostccl_api_GetUniqueId(&id);
    if (result)
        return result;
    hostccl_group_start();
    for (int i = 0; i < ndev && !result; i++)
        result = init(&comms[i], ndev, i, &id, 1, NULL);
    return hostccl_group_end(result);
}

ncclResult_t hostccl_api_CommFinalize(ncclComm_t comm)
{
    if (hostccl_fork_is_child())
        return ncclSuccess; /* it is the other process's */
    if (!hostccl_comm_is_valid(comm))
        return bad_comm("ncclCommFinalize");
    hostccl_comm_join(comm);
    hostccl_engine_flush(comm);
    return (ncclResult_t)atomic_load(&comm->async_result);
}

ncclResult_t hostccl_api_CommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    if (hostccl_fork_is_child())
        return ncclSuccess; /* it is the other process's */
    if (!hostccl_comm_is_valid(comm))
        return bad_comm("ncclCommDestroy");
    hostccl_comm_join(comm);
    hostccl_engine_close(comm, false);
    if (!atomic_load(&comm->async_result))
        hostccl_connect_settle(comm);
    hostccl_comm_destroy(comm);
    return ncclSuccess;
}

ncclResult_t hostccl_api_CommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    if (hostccl_fork_is_child())
        return ncclSuccess; /* it is the other process's */
    if (!hostccl_comm_is_valid(comm))
        return bad_comm("ncclCommAbort");
    atomic_store(&comm->abort, true);
    hostccl_comm_join(comm);
    hostccl_engine_close(comm, true);
    hostccl_comm_destroy(comm);
    return ncclSuccess;
}

ncclResult_t hostccl_api_CommRevoke(ncclComm_t comm, int flags)
{
    (void)comm;
    (void)flags;
    return unsupported("ncclCommRevoke", "not on host memory; use ncclCommAbort");
}

ncclResult_t hostccl_api_CommSplit(ncclComm_t comm, int color, int key,
                                   ncclComm_t *child, ncclConfig_t *config)
{
    struct hostccl_job *job;

    if (!hostccl_comm_is_valid(comm))
        return bad_comm("ncclCommSplit");
    if (need_ready(comm, "ncclCommSplit"))
        return ncclInvalidUsage;
    if (!child || color < NCCL_SPLIT_NOCOLOR)
        return hostccl_fail(ncclInvalidArgument, "hostccl: ncclCommSplit: color %d",
                            color);
    job = calloc(1, sizeof *job);
    if (!job)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    job->ret_comm = child;
    job->parent = comm;
    job->color = color;
    job->key = key;
    job->config = config;
    hostccl_group_start();
    return hostccl_group_end(hostccl_group_add_job(job));
}

/* Which ranks the list names; NULL with *ret_result where it may not. */
static bool *excluded_of(const struct ncclComm *comm, const int *exclude, int count,
                         ncclResult_t *ret_result)
{
    bool *is_excluded = calloc(comm->nranks, sizeof *is_excluded);

    *ret_result = ncclSuccess;
    if (!is_excluded) {
        *ret_result = hostccl_fail(ncclSystemError, "hostccl: out of memory");
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        if (exclude[i] < 0 || (uint32_t)exclude[i] >= comm->nranks ||
            (uint32_t)exclude[i] == comm->crank) {
            *ret_result = hostccl_fail(ncclInvalidArgument,
                                       "hostccl: ncclCommShrink: rank %u excludes rank "
                                       "%d of %u",
                                       comm->crank, exclude[i], comm->nranks);
            free(is_excluded);
            return NULL;
        }
        is_excluded[exclude[i]] = true;
    }
    return is_excluded;
}

/* What is under way ends with an error; the bootstrap stays. */
static void cut(ncclComm_t comm)
{
    struct crystal_error err = {0};

    (void)crystal_error_set(&err, ECANCELED,
                            "hostccl: the communicator was cut by ncclCommShrink");
    (void)hostccl_comm_fail(comm, &err);
    hostccl_engine_notify();
    hostccl_engine_flush(comm);
}

ncclResult_t hostccl_api_CommShrink(ncclComm_t comm, int *exclude, int exclude_count,
                                    ncclComm_t *child, ncclConfig_t *config, int flags)
{
    struct hostccl_job *job;
    ncclResult_t result;
    bool *is_excluded;

    if (!hostccl_comm_is_valid(comm))
        return bad_comm("ncclCommShrink");
    if (need_ready(comm, "ncclCommShrink"))
        return ncclInvalidUsage;
    if (!child || !exclude || exclude_count < 1 || flags & ~SHRINK_ABORT)
        return hostccl_fail(ncclInvalidArgument,
                            "hostccl: ncclCommShrink: %d ranks to exclude, flags %d",
                            exclude_count, flags);
    is_excluded = excluded_of(comm, exclude, exclude_count, &result);
    if (!is_excluded)
        return result;
    job = calloc(1, sizeof *job);
    if (!job) {
        free(is_excluded);
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    }
    if (flags & SHRINK_ABORT)
        cut(comm);
    job->ret_comm = child;
    job->parent = comm;
    job->is_excluded = is_excluded;
    job->config = config;
    hostccl_group_start();
    return hostccl_group_end(hostccl_group_add_job(job));
}

const char *hostccl_api_GetErrorString(ncclResult_t result)
{
    return hostccl_result_text(result);
}

const char *hostccl_api_GetLastError(ncclComm_t comm)
{
    (void)comm; /* NCCL keeps one for the process as well */
    return hostccl_last_error();
}

ncclResult_t hostccl_api_CommGetAsyncError(ncclComm_t comm, ncclResult_t *async_error)
{
    if (!hostccl_comm_is_valid(comm) || !async_error)
        return bad_comm("ncclCommGetAsyncError");
    *async_error = (ncclResult_t)atomic_load(&comm->async_result);
    return ncclSuccess;
}

ncclResult_t hostccl_api_CommCount(const ncclComm_t comm, int *count)
{
    if (!hostccl_comm_is_valid(comm) || !count)
        return bad_comm("ncclCommCount");
    if (need_ready(comm, "ncclCommCount"))
        return ncclInvalidUsage;
    *count = (int)comm->nranks;
    return ncclSuccess;
}

ncclResult_t hostccl_api_CommCuDevice(const ncclComm_t comm, int *device)
{
    if (!hostccl_comm_is_valid(comm) || !device)
        return bad_comm("ncclCommCuDevice");
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t hostccl_api_CommUserRank(const ncclComm_t comm, int *rank)
{
    if (!hostccl_comm_is_valid(comm) || !rank)
        return bad_comm("ncclCommUserRank");
    if (need_ready(comm, "ncclCommUserRank"))
        return ncclInvalidUsage;
    *rank = (int)comm->crank;
    return ncclSuccess;
}

ncclResult_t hostccl_api_CommRegister(const ncclComm_t comm, void *buffer, size_t size,
                                      void **handle)
{
    (void)buffer; /* everything goes through staging memory: nothing to gain */
    (void)size;
    if (!hostccl_comm_is_valid(comm) || !handle)
        return bad_comm("ncclCommRegister");
    *handle = NULL;
    return ncclSuccess;
}

ncclResult_t hostccl_api_CommDeregister(const ncclComm_t comm, void *handle)
{
    (void)handle;
    return hostccl_comm_is_valid(comm) ? ncclSuccess : bad_comm("ncclCommDeregister");
}

ncclResult_t hostccl_api_CommWindowRegister(ncclComm_t comm, void *buffer, size_t size,
                                            ncclWindow_t *window, int flags)
{
    (void)comm;
    (void)buffer;
    (void)size;
    (void)window;
    (void)flags;
    return unsupported("ncclCommWindowRegister", "there is no symmetric memory here");
}

ncclResult_t hostccl_api_CommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    (void)comm;
    (void)window;
    return unsupported("ncclCommWindowDeregister", "there is no symmetric memory here");
}

ncclResult_t hostccl_api_GroupStart(void)
{
    hostccl_group_start();
    return ncclSuccess;
}

ncclResult_t hostccl_api_GroupEnd(void)
{
    if (!hostccl_group_is_open())
        return hostccl_fail(ncclInvalidUsage,
                            "hostccl: ncclGroupEnd without ncclGroupStart");
    return hostccl_group_end(ncclSuccess);
}

ncclResult_t hostccl_api_GroupSimulateEnd(ncclSimInfo_t *info)
{
    (void)info;
    return unsupported("ncclGroupSimulateEnd", "times are not estimated here");
}
