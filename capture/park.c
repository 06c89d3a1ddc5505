/* NCCL and crystal_stream.h in capture: no real communication. Every communicator is
 * made by the coordinator, every operation is recorded and handed to it
 * (capture/park_queue.h); the rank is parked where the host waits.
 *
 * Limits of this version: one rank per process; split and shrink are refused; a
 * communicator's id comes whole in ids[0] of ncclCommInitRankScalable.
 */
#include "config.h"

#include "capture/entry.h"
#include "capture/park_queue.h"
#include "capture/recorder.h"

#include "runtime/env.h"
#include "runtime/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define PREMUL_MAX    256
#define GROUP_OPS_MAX (1U << 20)
#define DRAIN_MS      5000

struct crystal_event {
    uint32_t index;
    struct park_mark mark;
    struct recorder_poll poll;
};

/* A factor of ncclRedOpCreatePreMulSum. */
struct premul {
    int in_use;
    ncclDataType_t datatype;
    uint64_t bits;
};

static struct park {
    pthread_mutex_t lock;          /* client, premul */
    struct crystal_client *client; /* opened with the first communicator */
    struct premul premul[PREMUL_MAX];
} park = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The open ncclGroup of a thread. */
static _Thread_local struct {
    int depth;
    ncclResult_t result; /* of the first failed call in it */
    uint32_t count, capacity;
    struct park_op *ops; /* owned */
} group;

static ncclResult_t fail(struct crystal_error *err, ncclResult_t result)
{
    recorder_fail(err);
    if (group.depth && !group.result)
        group.result = result;
    return result;
}

#define FAIL(result, ...) park_failed(result, __VA_ARGS__)

static ncclResult_t park_failed(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static ncclResult_t park_failed(ncclResult_t result, const char *format, ...)
{
    struct crystal_error err = {.code = EINVAL};
    va_list args;

    va_start(args, format);
    (void)vsnprintf(err.text, sizeof err.text, format, args); /* cut is fine */
    va_end(args);
    return fail(&err, result);
}

/* --- memory --- */

#define MEM_HEAD_BYTES 64 /* in front of ncclMemAlloc's memory: its size */

ncclResult_t park_MemAlloc(void **ptr, size_t size)
{
    char *base = NULL;

    if (!ptr)
        return FAIL(ncclInvalidArgument, "recorder: ncclMemAlloc: ptr is NULL");
    if (size > SIZE_MAX - MEM_HEAD_BYTES ||
        posix_memalign((void **)&base, MEM_HEAD_BYTES, size + MEM_HEAD_BYTES) != 0)
        return FAIL(ncclSystemError, "recorder: out of memory for %zu bytes", size);
    memcpy(base, &size, sizeof size);
    recorder_alloc(recorder_get(), size, 0);
    *ptr = base + MEM_HEAD_BYTES;
    return ncclSuccess;
}

ncclResult_t park_MemFree(void *ptr)
{
    char *base = ptr;
    size_t size;

    if (!ptr)
        return ncclSuccess;
    base -= MEM_HEAD_BYTES;
    memcpy(&size, base, sizeof size);
    recorder_alloc(recorder_get(), size, 1);
    free(base);
    return ncclSuccess;
}

/* --- facts --- */

ncclResult_t park_GetVersion(int *version)
{
    if (!version)
        return FAIL(ncclInvalidArgument, "recorder: ncclGetVersion: version is NULL");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t park_GetUniqueId(ncclUniqueId *id)
{
    if (!id)
        return FAIL(ncclInvalidArgument, "recorder: ncclGetUniqueId: id is NULL");
    if (getrandom(id, sizeof *id, 0) != (ssize_t)sizeof *id)
        return FAIL(ncclSystemError, "recorder: getrandom: %s", strerror(errno));
    return ncclSuccess;
}

const char *park_GetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",         "unhandled CUDA error", "system error", "internal error",
        "invalid argument", "invalid usage",        "remote error", "in progress"};

    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *park_GetLastError(ncclComm_t comm)
{
    (void)comm; /* the sentence is the process's */
    return recorder_last_error();
}

/* --- communicators --- */

static void child_after_fork(void)
{
    park_queue_forget();
    park.client = NULL;
}

/* The connection to the coordinator, opened on first use. */
static int client_get(struct crystal_client **ret, struct crystal_error *err)
{
    struct recorder *r = recorder_get();
    const char *coord = getenv(CRYSTAL_ENV_COORD_FILE);
    const char *token = getenv(CRYSTAL_ENV_TOKEN_FILE);
    int code = 0;

    if (r->broken[0])
        return crystal_error_set(err, EINVAL, "%s", r->broken);
    if (!coord || !token)
        return crystal_error_set(err, EINVAL,
                                 "recorder: %s is not set; start the program with "
                                 "scrystal capture",
                                 coord ? CRYSTAL_ENV_TOKEN_FILE
                                       : CRYSTAL_ENV_COORD_FILE);
    (void)pthread_mutex_lock(&park.lock);
    if (!park.client) {
        park.client =
            crystal_client_open(coord, token, CRYSTAL_ROLE_RANK, r->lrank, NULL, err);
        if (park.client) {
            park_queue_open(park.client, r->payload);
            (void)pthread_atfork(NULL, NULL, child_after_fork); /* best effort */
        } else {
            code = -err->code;
        }
    }
    *ret = park.client;
    (void)pthread_mutex_unlock(&park.lock);
    return code;
}

static ncclResult_t comm_init(ncclComm_t *ret_comm, int nranks, const ncclUniqueId *id,
                              int crank)
{
    struct crystal_msg_comm_init init;
    struct crystal_error err = {0};
    struct crystal_client *client;
    struct ncclComm *comm;
    char name[CRYSTAL_COMM_NAME_BYTES];
    int code;

    if (!ret_comm || !id)
        return FAIL(ncclInvalidArgument, "recorder: ncclCommInitRank: NULL argument");
    if (nranks < 1 || crank < 0 || crank >= nranks)
        return FAIL(ncclInvalidArgument,
                    "recorder: ncclCommInitRank: rank %d of %d; it lies in 0..%d",
                    crank, nranks, nranks - 1);
    memcpy(init.id, id, sizeof init.id);
    init.nranks = (uint32_t)nranks;
    init.crank = (uint32_t)crank;
    comm = park_queue_comm_create(&err);
    if (!comm)
        return fail(&err, ncclSystemError);
    comm->nranks = init.nranks;
    comm->crank = init.crank;
    code = client_get(&client, &err);
    if (!code)
        code = crystal_client_comm_init(client, &init, &comm->number, name, sizeof name,
                                        &err);
    if (!code)
        code = recorder_comm(recorder_get(), name, comm->nranks, comm->crank,
                             &comm->index, &err);
    if (code) {
        park_queue_comm_release(comm);
        return fail(&err, code == -ECANCELED ? ncclRemoteError : ncclSystemError);
    }
    *ret_comm = comm;
    return ncclSuccess;
}

ncclResult_t park_CommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return comm_init(comm, nranks, &id, rank);
}

ncclResult_t park_CommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id,
                                     int rank, ncclConfig_t *config)
{
    (void)config; /* blocking or not, the communicator is ready on return */
    return comm_init(comm, nranks, &id, rank);
}

ncclResult_t park_CommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nid,
                                       ncclUniqueId *ids, ncclConfig_t *config)
{
    (void)config;
    if (nid < 1 || !ids)
        return FAIL(ncclInvalidArgument,
                    "recorder: ncclCommInitRankScalable: no unique id");
    return comm_init(comm, nranks, &ids[0], rank);
}

ncclResult_t park_CommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
    (void)comms;
    (void)devlist;
    return FAIL(ncclInvalidUsage,
                "recorder: ncclCommInitAll with %d devices: a logical rank is one "
                "process; use ncclCommInitRank",
                ndev);
}

ncclResult_t park_CommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                            ncclConfig_t *config)
{
    (void)comm;
    (void)key;
    (void)child;
    (void)config;
    crystal_log(CRYSTAL_LOG_WARNING, "recorder",
                "ncclCommSplit (color %d) is not supported yet, ignoring it", color);
    return FAIL(ncclInvalidUsage,
                "recorder: ncclCommSplit (color %d) is not supported "
                "yet; make the group with a unique id of its own",
                color);
}

ncclResult_t park_CommShrink(ncclComm_t comm, int *exclude, int exclude_count,
                             ncclComm_t *child, ncclConfig_t *config, int flags)
{
    (void)comm;
    (void)exclude;
    (void)child;
    (void)config;
    (void)flags;
    crystal_log(CRYSTAL_LOG_WARNING, "recorder",
                "ncclCommShrink (without %d ranks) is not supported yet, ignoring it",
                exclude_count);
    return FAIL(ncclInvalidUsage,
                "recorder: ncclCommShrink is not supported yet; make the group with a "
                "unique id of its own");
}

ncclResult_t park_CommFinalize(ncclComm_t comm)
{
    return comm ? ncclSuccess
                : FAIL(ncclInvalidArgument, "recorder: ncclCommFinalize: comm is NULL");
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
    return FAIL(ncclInvalidUsage,
                "recorder: ncclCommRevoke cannot be captured; abort the communicator");
}

ncclResult_t park_CommGetAsyncError(ncclComm_t comm, ncclResult_t *async_error)
{
    if (!comm || !async_error)
        return FAIL(ncclInvalidArgument, "recorder: ncclCommGetAsyncError: NULL");
    *async_error =
        (ncclResult_t)atomic_load_explicit(&comm->error, memory_order_relaxed);
    return ncclSuccess;
}

ncclResult_t park_CommCount(const ncclComm_t comm, int *count)
{
    if (!comm || !count)
        return FAIL(ncclInvalidArgument, "recorder: ncclCommCount: NULL argument");
    *count = (int)comm->nranks;
    return ncclSuccess;
}

ncclResult_t park_CommCuDevice(const ncclComm_t comm, int *device)
{
    if (!comm || !device)
        return FAIL(ncclInvalidArgument, "recorder: ncclCommCuDevice: NULL argument");
    *device = 0; /* host memory */
    return ncclSuccess;
}

ncclResult_t park_CommUserRank(const ncclComm_t comm, int *rank)
{
    if (!comm || !rank)
        return FAIL(ncclInvalidArgument, "recorder: ncclCommUserRank: NULL argument");
    *rank = (int)comm->crank;
    return ncclSuccess;
}

ncclResult_t park_CommRegister(const ncclComm_t comm, void *buffer, size_t size,
                               void **handle)
{
    (void)size;
    if (!comm || !handle)
        return FAIL(ncclInvalidArgument, "recorder: ncclCommRegister: NULL argument");
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
        return FAIL(ncclInvalidArgument, "recorder: ncclCommWindowRegister: NULL");
    *window = NULL; /* as NCCL answers where windows bring nothing */
    return ncclSuccess;
}

ncclResult_t park_CommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    (void)comm;
    (void)window;
    return ncclSuccess;
}

/* --- reduction operators --- */

ncclResult_t park_RedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
                                       ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm)
{
    size_t bytes = crystal_dtype_bytes(datatype);
    unsigned i = 0;

    (void)residence; /* device memory is host memory here */
    if (!op || !scalar || !comm || !bytes)
        return FAIL(ncclInvalidArgument,
                    "recorder: ncclRedOpCreatePreMulSum: bad argument");
    (void)pthread_mutex_lock(&park.lock);
    while (i < PREMUL_MAX && park.premul[i].in_use)
        i++;
    if (i < PREMUL_MAX) {
        park.premul[i] = (struct premul){.in_use = 1, .datatype = datatype};
        memcpy(&park.premul[i].bits, scalar, bytes);
    }
    (void)pthread_mutex_unlock(&park.lock);
    if (i == PREMUL_MAX)
        return FAIL(ncclInternalError,
                    "recorder: more than %d pre-multiplied sums at once; destroy those "
                    "no longer needed",
                    PREMUL_MAX);
    *op = (ncclRedOp_t)(ncclNumOps + (int)i);
    return ncclSuccess;
}

ncclResult_t park_RedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    int i = (int)op - ncclNumOps, found = 0;

    (void)comm;
    if (i >= 0 && i < PREMUL_MAX) {
        (void)pthread_mutex_lock(&park.lock);
        found = park.premul[i].in_use;
        park.premul[i].in_use = 0;
        (void)pthread_mutex_unlock(&park.lock);
    }
    return found ? ncclSuccess
                 : FAIL(ncclInvalidArgument,
                        "recorder: ncclRedOpDestroy: %d was not created", (int)op);
}

/* Operator and factor of a message from a ncclRedOp_t. */
static int redop_get(ncclRedOp_t op, ncclDataType_t datatype,
                     struct crystal_msg_op *message)
{
    int i = (int)op - ncclNumOps, found = 1;

    if (op >= ncclSum && op < ncclNumOps) {
        message->redop = (uint8_t)op;
        return 0;
    }
    if (i < 0 || i >= PREMUL_MAX)
        return -EINVAL;
    (void)pthread_mutex_lock(&park.lock);
    found = park.premul[i].in_use && park.premul[i].datatype == datatype;
    message->scalar = park.premul[i].bits;
    (void)pthread_mutex_unlock(&park.lock);
    message->redop = ncclNumOps;
    return found ? 0 : -EINVAL;
}

/* --- communication calls --- */

static const char *func_name(uint8_t func)
{
    static const char *const names[CRYSTAL_FUNC_COUNT] = {"?",
                                                          "ncclBroadcast",
                                                          "ncclReduce",
                                                          "ncclAllGather",
                                                          "ncclReduceScatter",
                                                          "ncclAllReduce",
                                                          "ncclSend",
                                                          "ncclRecv",
                                                          "ncclAlltoAll",
                                                          "ncclGather",
                                                          "ncclScatter"};

    return func < CRYSTAL_FUNC_COUNT ? names[func] : names[0];
}

static int group_add(const struct park_op *op)
{
    if (group.count == group.capacity) {
        uint32_t capacity = group.capacity ? 2 * group.capacity : 16;
        struct park_op *ops;

        if (capacity > GROUP_OPS_MAX)
            return -ENOMEM;
        ops = realloc(group.ops, capacity * sizeof *ops);
        if (!ops)
            return -ENOMEM;
        group.ops = ops;
        group.capacity = capacity;
    }
    group.ops[group.count++] = *op;
    return 0;
}

/* Whether send and recv of the whole call are one buffer. */
static int is_in_place(uint8_t func, const void *send, const void *recv,
                       uint64_t count_bytes, uint32_t crank)
{
    switch (func) {
    case CRYSTAL_FUNC_SEND:
    case CRYSTAL_FUNC_RECV:
        return 0;
    case CRYSTAL_FUNC_ALLGATHER:
    case CRYSTAL_FUNC_GATHER:
        return (uintptr_t)send == (uintptr_t)recv + crank * count_bytes;
    case CRYSTAL_FUNC_REDUCESCATTER:
    case CRYSTAL_FUNC_SCATTER:
        return (uintptr_t)recv == (uintptr_t)send + crank * count_bytes;
    default:
        return send == recv;
    }
}

static ncclResult_t enqueue(uint8_t func, const void *send, void *recv, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t redop, int peer,
                            struct ncclComm *comm, ncclStream_t stream)
{
    struct recorder *r = recorder_get();
    struct recorder_call call = {.func = func, .dtype = (uint8_t)datatype};
    struct park_op op;
    struct crystal_error err = {0};
    uint64_t send_bytes, recv_bytes;

    memset(&op, 0, sizeof op);
    if (!comm)
        return FAIL(ncclInvalidArgument, "recorder: %s: comm is NULL", func_name(func));
    if (!crystal_dtype_bytes(datatype) || peer < 0 || (uint32_t)peer >= comm->nranks)
        return FAIL(ncclInvalidArgument,
                    "recorder: %s: data type %d, rank %d of %u out of range",
                    func_name(func), (int)datatype, peer, comm->nranks);
    if (redop_get(redop, datatype, &op.client.op))
        return FAIL(ncclInvalidArgument,
                    "recorder: %s: operator %d does not exist for data type %d",
                    func_name(func), (int)redop, (int)datatype);
    if (!count && func != CRYSTAL_FUNC_SEND && func != CRYSTAL_FUNC_RECV)
        return ncclSuccess; /* NCCL drops empty collectives, too */
    op.stream = stream ? (struct park_stream *)stream : park_queue_stream_null();
    op.comm = comm;
    call.stream = park_queue_stream_index(op.stream);
    call.comm = comm->index;
    call.redop = op.client.op.redop;
    call.peer = (uint32_t)peer;
    call.count = count;
    if (recorder_call_bytes(&call, comm->nranks, comm->crank, &send_bytes, &recv_bytes))
        return FAIL(ncclInvalidArgument, "recorder: %s: %zu elements overflow memory",
                    func_name(func), count);
    if ((send_bytes && !send) || (recv_bytes && !recv))
        return FAIL(ncclInvalidArgument, "recorder: %s: buffer is NULL",
                    func_name(func));
    if (is_in_place(func, send, recv, count * crystal_dtype_bytes(datatype),
                    comm->crank))
        call.flags = CRYSTAL_OP_FLAG_IN_PLACE;
    if (func == CRYSTAL_FUNC_BROADCAST && call.flags && call.peer == comm->crank)
        recv_bytes = 0; /* the root has it already */
    if (func == CRYSTAL_FUNC_BROADCAST && call.peer != comm->crank && r->is_replica) {
        send = recv; /* the root may be a rank that this one stands for */
        send_bytes = recv_bytes;
    }
    op.client.op.comm = comm->number;
    op.client.op.func = func;
    op.client.op.dtype = (uint8_t)datatype;
    op.client.op.peer = (uint32_t)peer;
    op.client.op.count = count;
    op.client.op.send_bytes = send_bytes;
    op.client.op.recv_bytes = recv_bytes;
    op.client.op.call_site = entry_call_site;
    op.client.send = send;
    op.client.recv = recv;
    (void)recorder_call(r, &call, send_bytes, &op.payload_bytes, &op.payload_offset);
    if (group.depth) {
        if (group_add(&op))
            return FAIL(ncclSystemError, "recorder: out of memory for a group");
        return ncclSuccess;
    }
    if (park_queue_issue(&op, 1, &err))
        return fail(&err, err.code == ECANCELED ? ncclRemoteError : ncclSystemError);
    return ncclSuccess;
}

ncclResult_t park_Reduce(const void *send, void *recv, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root,
                         ncclComm_t comm, ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_REDUCE, send, recv, count, datatype, op, root, comm,
                   stream);
}

ncclResult_t park_Bcast(void *buffer, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_BROADCAST, buffer, buffer, count, datatype, ncclSum,
                   root, comm, stream);
}

ncclResult_t park_Broadcast(const void *send, void *recv, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_BROADCAST, send, recv, count, datatype, ncclSum, root,
                   comm, stream);
}

ncclResult_t park_AllReduce(const void *send, void *recv, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_ALLREDUCE, send, recv, count, datatype, op, 0, comm,
                   stream);
}

ncclResult_t park_ReduceScatter(const void *send, void *recv, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op,
                                ncclComm_t comm, ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_REDUCESCATTER, send, recv, recvcount, datatype, op, 0,
                   comm, stream);
}

ncclResult_t park_AllGather(const void *send, void *recv, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm,
                            ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_ALLGATHER, send, recv, sendcount, datatype, ncclSum, 0,
                   comm, stream);
}

ncclResult_t park_AlltoAll(const void *send, void *recv, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm,
                           ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_ALLTOALL, send, recv, count, datatype, ncclSum, 0, comm,
                   stream);
}

ncclResult_t park_Gather(const void *send, void *recv, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm,
                         ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_GATHER, send, recv, count, datatype, ncclSum, root,
                   comm, stream);
}

ncclResult_t park_Scatter(const void *send, void *recv, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm,
                          ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_SCATTER, send, recv, count, datatype, ncclSum, root,
                   comm, stream);
}

ncclResult_t park_Send(const void *send, size_t count, ncclDataType_t datatype,
                       int peer, ncclComm_t comm, ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_SEND, send, NULL, count, datatype, ncclSum, peer, comm,
                   stream);
}

ncclResult_t park_Recv(void *recv, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, ncclStream_t stream)
{
    return enqueue(CRYSTAL_FUNC_RECV, NULL, recv, count, datatype, ncclSum, peer, comm,
                   stream);
}

ncclResult_t park_GroupStart(void)
{
    if (group.depth++ == 0) {
        group.result = ncclSuccess;
        group.count = 0;
        recorder_group(recorder_get(), 1);
    }
    return ncclSuccess;
}

ncclResult_t park_GroupEnd(void)
{
    struct crystal_error err = {0};
    int code;

    if (!group.depth)
        return FAIL(ncclInvalidUsage, "recorder: ncclGroupEnd without ncclGroupStart");
    if (--group.depth)
        return ncclSuccess;
    recorder_group(recorder_get(), 0);
    if (group.result)
        return group.result; /* nothing of a failed group is sent */
    code = park_queue_issue(group.ops, group.count, &err);
    group.count = 0;
    if (code)
        return fail(&err, code == -ECANCELED ? ncclRemoteError : ncclSystemError);
    return ncclSuccess;
}

ncclResult_t park_GroupSimulateEnd(ncclSimInfo_t *info)
{
    (void)info;
    if (!group.depth)
        return FAIL(ncclInvalidUsage,
                    "recorder: ncclGroupSimulateEnd without ncclGroupStart");
    if (--group.depth == 0) {
        recorder_group(recorder_get(), 0);
        group.count = 0;
    }
    return FAIL(ncclInvalidUsage,
                "recorder: ncclGroupSimulateEnd: a capture has no times to estimate");
}

/* --- streams and events --- */

static struct park_stream *stream_of(ncclStream_t stream)
{
    return stream ? (struct park_stream *)stream : park_queue_stream_null();
}

ncclResult_t park_stream_create(ncclStream_t *ret_stream)
{
    struct crystal_error err = {0};
    struct park_stream *s;

    if (!ret_stream)
        return FAIL(ncclInvalidArgument, "recorder: crystal_stream_create: NULL");
    s = park_queue_stream_create(&err);
    if (!s)
        return fail(&err, ncclSystemError);
    *ret_stream = s;
    return ncclSuccess;
}

ncclResult_t park_stream_destroy(ncclStream_t stream)
{
    if (stream)
        park_queue_stream_release(stream);
    return ncclSuccess;
}

ncclResult_t park_stream_synchronize(ncclStream_t stream)
{
    struct park_stream *s = stream_of(stream);
    struct recorder *r = recorder_get();
    struct park_mark end = {0};
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    park_queue_mark_set(&end, s);
    result = (ncclResult_t)park_queue_mark_wait(&end);
    park_queue_mark_clear(&end);
    recorder_waited(r, CRYSTAL_OP_SYNC, 0, park_queue_stream_index(s), from_ns);
    return result;
}

ncclResult_t park_stream_query(ncclStream_t stream)
{
    struct park_stream *s = stream_of(stream);
    struct recorder *r = recorder_get();
    struct park_mark end = {0};
    uint64_t from_ns = recorder_now_ns(r);
    int result = ncclInProgress;

    park_queue_mark_set(&end, s);
    if (park_queue_mark_query(&end, &result))
        recorder_waited(r, CRYSTAL_OP_SYNC, 0, park_queue_stream_index(s), from_ns);
    park_queue_mark_clear(&end);
    return (ncclResult_t)result;
}

ncclResult_t park_stream_wait_event(ncclStream_t stream, crystal_event_t event)
{
    struct park_stream *s = stream_of(stream);
    struct crystal_error err = {0};

    if (!event)
        return FAIL(ncclInvalidArgument,
                    "recorder: crystal_stream_wait_event: event is NULL");
    if (!event->mark.stream)
        return ncclSuccess;
    recorder_event(recorder_get(), CRYSTAL_OP_SWAIT, event->index,
                   park_queue_stream_index(s));
    if (park_queue_stream_wait(s, &event->mark, &err))
        return fail(&err, ncclSystemError);
    return ncclSuccess;
}

ncclResult_t park_event_create(crystal_event_t *ret_event)
{
    struct crystal_event *event = calloc(1, sizeof *event);

    if (!ret_event || !event) {
        free(event);
        return FAIL(ncclSystemError, "recorder: crystal_event_create: no memory");
    }
    event->index = recorder_event_next(recorder_get());
    *ret_event = event;
    return ncclSuccess;
}

ncclResult_t park_event_destroy(crystal_event_t event)
{
    if (!event)
        return ncclSuccess;
    park_queue_mark_clear(&event->mark);
    free(event);
    return ncclSuccess;
}

ncclResult_t park_event_record(crystal_event_t event, ncclStream_t stream)
{
    struct park_stream *s = stream_of(stream);

    if (!event)
        return FAIL(ncclInvalidArgument,
                    "recorder: crystal_event_record: event is NULL");
    park_queue_mark_set(&event->mark, s);
    memset(&event->poll, 0, sizeof event->poll);
    recorder_event(recorder_get(), CRYSTAL_OP_RECORD, event->index,
                   park_queue_stream_index(s));
    return ncclSuccess;
}

ncclResult_t park_event_synchronize(crystal_event_t event)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!event)
        return FAIL(ncclInvalidArgument,
                    "recorder: crystal_event_synchronize: event is NULL");
    if (!event->mark.stream)
        return ncclSuccess;
    result = (ncclResult_t)park_queue_mark_wait(&event->mark);
    event->poll.waited = 1;
    recorder_waited(r, CRYSTAL_OP_WAIT, event->index, 0, from_ns);
    return result;
}

ncclResult_t park_event_query(crystal_event_t event)
{
    int result = ncclSuccess, ended;

    if (!event)
        return FAIL(ncclInvalidArgument,
                    "recorder: crystal_event_query: event is NULL");
    if (!event->mark.stream)
        return ncclSuccess;
    ended = park_queue_mark_query(&event->mark, &result);
    recorder_polled(recorder_get(), &event->poll, ended, CRYSTAL_OP_WAIT, event->index,
                    0);
    return ended ? (ncclResult_t)result : ncclInProgress;
}

/* --- end --- */

void park_iteration_hint(void)
{
    struct recorder *r = recorder_get();
    struct crystal_error err = {0};
    uint64_t count = recorder_hint(r);
    int stop = 0;

    if (!park.client)
        return; /* an iteration without communication */
    if (crystal_client_hint(park.client, count, &stop, &err)) {
        recorder_fail(&err); /* the next operation fails with the same sentence */
        return;
    }
    if (!stop)
        return;
    /* Others may still need what this rank has sent. The connection is left open: other
     * threads of the program may be using it. */
    park_queue_drain(DRAIN_MS);
    recorder_finish(r, 1);
    (void)fflush(NULL); /* nobody to tell */
    _exit(0);
}

void park_finish(int stopped)
{
    park_queue_drain(DRAIN_MS);
    recorder_finish(recorder_get(), stopped);
    crystal_client_close(park_queue_close());
    park.client = NULL;
}
