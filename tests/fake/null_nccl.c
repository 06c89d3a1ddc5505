/* An NCCL on host memory that moves nothing: every call succeeds at once, and work ends
 * NULL_NCCL_DELAY_US after it was issued, or with NULL_NCCL_CUDA takes so long in the
 * stream of CUDA's runtime that it is given. Built with NULL_NCCL_WITHOUT_TIMES it
 * lacks crystal_event_time. For tests and benchmarks of what stands above an NCCL
 * library.
 */
#include "config.h"

#include "runtime/crystal_stream.h"
#include "runtime/nccl_abi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

struct ncclComm {
    int nranks, rank;
};

struct crystal_event {
    int is_recorded;
    uint64_t end_ns; /* of the work before its mark; 0: it takes no time */
};

static uint64_t work_end_ns; /* one stream is as good as another here */

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static uint64_t delay_ns(void)
{
    static int64_t delay = -1;

    if (delay < 0)
        delay = getenv("NULL_NCCL_DELAY_US") ? atol(getenv("NULL_NCCL_DELAY_US")) * 1000
                                             : 0;
    return (uint64_t)delay;
}

static void sleep_delay(void *unused)
{
    const struct timespec delay = {0, (long)delay_ns()};

    (void)unused;
    (void)nanosleep(&delay, NULL);
}

static int group_depth;
static ncclStream_t group_stream; /* of its work, which begins with its end */
static int group_has_work;

static ncclResult_t work(ncclStream_t stream)
{
    int (*launch)(void *, void (*)(void *), void *);
    void *function =
        getenv("NULL_NCCL_CUDA") ? dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc") : NULL;

    memcpy(&launch, &function, sizeof launch);
    if (launch && group_depth) {
        group_stream = stream;
        group_has_work = 1;
        return ncclSuccess;
    }
    if (launch)
        return launch(stream, sleep_delay, NULL) ? ncclSystemError : ncclSuccess;
    if (delay_ns()) {
        uint64_t now = now_ns();

        work_end_ns = (work_end_ns > now ? work_end_ns : now) + delay_ns();
    }
    return ncclSuccess;
}

static ncclResult_t group_end(void)
{
    if (--group_depth || !group_has_work)
        return ncclSuccess;
    group_has_work = 0;
    return work(group_stream);
}

/* Everything that has nothing to say for itself. */
#define RETURNS(name, proto, value)       \
    EXPORT ncclResult_t nccl##name proto; \
    EXPORT ncclResult_t nccl##name proto  \
    {                                     \
        return value;                     \
    }
#define QUIET(name, proto) RETURNS(name, proto, ncclSuccess)
#define WORKS(name, proto) RETURNS(name, proto, work(stream))

#pragma GCC diagnostic ignored "-Wunused-parameter"

QUIET(MemFree, (void *ptr))
QUIET(CommInitAll, (ncclComm_t * comms, int ndev, const int *devlist))
QUIET(CommFinalize, (ncclComm_t comm))
QUIET(CommRevoke, (ncclComm_t comm, int flags))
QUIET(CommShrink, (ncclComm_t comm, int *exclude, int count, ncclComm_t *child,
                   ncclConfig_t *config, int flags))
QUIET(CommSplit,
      (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config))
QUIET(CommCuDevice, (const ncclComm_t comm, int *device))
QUIET(CommRegister, (const ncclComm_t comm, void *buffer, size_t size, void **handle))
QUIET(CommDeregister, (const ncclComm_t comm, void *handle))
QUIET(CommWindowRegister,
      (ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *window, int flags))
QUIET(CommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))
QUIET(RedOpCreatePreMulSum, (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype,
                             ncclScalarResidence_t residence, ncclComm_t comm))
QUIET(RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))
WORKS(Reduce, (const void *send, void *recv, size_t count, ncclDataType_t datatype,
               ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream))
WORKS(Broadcast, (const void *send, void *recv, size_t count, ncclDataType_t datatype,
                  int root, ncclComm_t comm, ncclStream_t stream))
/* by name, so that it goes to whoever stands before this library, as in NCCL */
RETURNS(Bcast,
        (void *buffer, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
         ncclStream_t stream),
        ncclBroadcast(buffer, buffer, count, datatype, root, comm, stream))
WORKS(AllReduce, (const void *send, void *recv, size_t count, ncclDataType_t datatype,
                  ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream))
WORKS(ReduceScatter,
      (const void *send, void *recv, size_t count, ncclDataType_t datatype,
       ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream))
WORKS(AllGather, (const void *send, void *recv, size_t count, ncclDataType_t datatype,
                  ncclComm_t comm, ncclStream_t stream))
WORKS(AlltoAll, (const void *send, void *recv, size_t count, ncclDataType_t datatype,
                 ncclComm_t comm, ncclStream_t stream))
WORKS(Gather, (const void *send, void *recv, size_t count, ncclDataType_t datatype,
               int root, ncclComm_t comm, ncclStream_t stream))
WORKS(Scatter, (const void *send, void *recv, size_t count, ncclDataType_t datatype,
                int root, ncclComm_t comm, ncclStream_t stream))
WORKS(Send, (const void *send, size_t count, ncclDataType_t datatype, int peer,
             ncclComm_t comm, ncclStream_t stream))
WORKS(Recv, (void *recv, size_t count, ncclDataType_t datatype, int peer,
             ncclComm_t comm, ncclStream_t stream))
RETURNS(GroupStart, (void), (group_depth++, ncclSuccess))
RETURNS(GroupEnd, (void), group_end())
QUIET(GroupSimulateEnd, (ncclSimInfo_t * info))

#define SAYS(type, name, proto, body) \
    EXPORT type name proto;           \
    EXPORT type name proto            \
    {                                 \
        body                          \
    }

static ncclResult_t comm_create(ncclComm_t *comm, int nranks, int rank)
{
    *comm = calloc(1, sizeof **comm);
    if (!*comm)
        return ncclSystemError;
    (*comm)->nranks = nranks;
    (*comm)->rank = rank;
    return ncclSuccess;
}

SAYS(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size), *ptr = malloc(size);
     return *ptr ? ncclSuccess : ncclSystemError;)
SAYS(ncclResult_t, ncclGetVersion, (int *version), *version = NCCL_VERSION_CODE;
     return ncclSuccess;)
SAYS(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), memset(id, 7, sizeof *id);
     return ncclSuccess;)
SAYS(ncclResult_t, ncclCommInitRankConfig,
     (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config),
     return comm_create(comm, nranks, rank);)
SAYS(ncclResult_t, ncclCommInitRank,
     (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank),
     return comm_create(comm, nranks, rank);)
SAYS(ncclResult_t, ncclCommInitRankScalable,
     (ncclComm_t * comm, int nranks, int rank, int nid, ncclUniqueId *ids,
      ncclConfig_t *config),
     return comm_create(comm, nranks, rank);)
SAYS(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), free(comm); return ncclSuccess;)
SAYS(ncclResult_t, ncclCommAbort, (ncclComm_t comm), free(comm); return ncclSuccess;)
SAYS(const char *, ncclGetErrorString, (ncclResult_t result), return "null error";)
SAYS(const char *, ncclGetLastError, (ncclComm_t comm), return "null last error";)
SAYS(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *result),
     *result = ncclSuccess;
     return ncclSuccess;)
SAYS(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count),
     *count = comm->nranks;
     return ncclSuccess;)
SAYS(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank),
     *rank = comm->rank;
     return ncclSuccess;)

SAYS(ncclResult_t, crystal_stream_create, (ncclStream_t * stream), *stream = malloc(1);
     return ncclSuccess;)
SAYS(ncclResult_t, crystal_stream_destroy, (ncclStream_t stream), free(stream);
     return ncclSuccess;)
SAYS(ncclResult_t, crystal_event_create, (crystal_event_t * event),
     *event = calloc(1, sizeof **event);
     return ncclSuccess;)
SAYS(ncclResult_t, crystal_event_destroy, (crystal_event_t event), free(event);
     return ncclSuccess;)
SAYS(ncclResult_t, crystal_event_record, (crystal_event_t event, ncclStream_t stream),
     event->is_recorded = 1;
     event->end_ns = work_end_ns; return ncclSuccess;)

static ncclResult_t wait_until(uint64_t end_ns)
{
    struct timespec until = {(time_t)(end_ns / 1000000000ULL),
                             (long)(end_ns % 1000000000ULL)};

    if (end_ns)
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    return ncclSuccess;
}

SAYS(ncclResult_t, crystal_event_synchronize, (crystal_event_t event),
     return wait_until(event->end_ns);)
SAYS(ncclResult_t, crystal_event_query, (crystal_event_t event),
     return event->end_ns && now_ns() < event->end_ns ? ncclInProgress : ncclSuccess;)

#ifndef NULL_NCCL_WITHOUT_TIMES
/* Work that takes no time has ended before it is issued. */
static ncclResult_t time_of(crystal_event_t event, uint64_t *ret_ns)
{
    if (!event->is_recorded)
        return ncclInvalidUsage;
    if (event->end_ns && now_ns() < event->end_ns)
        return ncclInProgress;
    *ret_ns = event->end_ns;
    return ncclSuccess;
}

SAYS(ncclResult_t, crystal_event_time, (crystal_event_t event, uint64_t *ret_ns),
     return time_of(event, ret_ns);)
#endif

SAYS(ncclResult_t, crystal_stream_synchronize, (ncclStream_t stream),
     return wait_until(work_end_ns);)
SAYS(ncclResult_t, crystal_stream_query, (ncclStream_t stream),
     return now_ns() < work_end_ns ? ncclInProgress : ncclSuccess;)
SAYS(ncclResult_t, crystal_stream_wait_event,
     (ncclStream_t stream, crystal_event_t event), return ncclSuccess;)
