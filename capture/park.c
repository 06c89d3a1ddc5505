/* NCCL and crystal_stream.h in capture: no real communication. Every communicator is
 * made by the coordinator, every operation is recorded and handed to it
 * (capture/park_queue.h); the rank is parked where the host waits.
 *
 * Here: facts, communication calls, groups, the end. Communicators are in park_comm.c
 * and park_split.c, operators in park_redop.c, streams in park_stream.c, memory in
 * park_memory.c.
 *
 * Limits of this version: one rank per process; a communicator's id comes whole in
 * ids[0] of ncclCommInitRankScalable.
 */
#include "config.h"

#include "capture/cuda_device.h"
#include "capture/nvtx.h"
#include "capture/park.h"
#include "capture/park_queue_state.h"
#include "capture/recorder.h"
#include "capture/site.h"

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
/* Steps of an optimizer that may come before the first range, beside the iterations. */
#define RANGE_PATIENCE 20

static struct park {
    pthread_mutex_t lock;
    struct crystal_client *client; /* opened with the first communicator */
} park = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The open ncclGroup of a thread. */
static _Thread_local struct {
    int depth;
    ncclResult_t result; /* of the first failed call in it */
    uint32_t count, capacity;
    struct park_op *ops; /* owned */
} group;

ncclResult_t park_fail(struct crystal_error *err, ncclResult_t result)
{
    recorder_fail(err);
    if (group.depth && !group.result)
        group.result = result;
    return result;
}

ncclResult_t park_fail_with(ncclResult_t result, const char *format, ...)
{
    struct crystal_error err = {.code = EINVAL};
    va_list args;

    va_start(args, format);
    (void)vsnprintf(err.text, sizeof err.text, format, args); /* cut is fine */
    va_end(args);
    return park_fail(&err, result);
}

/* --- the coordinator --- */

static void child_after_fork(void)
{
    park_queue_forget();
    cuda_device_forget();
    park.client = NULL;
}

int park_client_get(struct crystal_client **ret, struct crystal_error *err)
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

/* --- facts --- */

ncclResult_t park_GetVersion(int *version)
{
    if (!version)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclGetVersion: version is NULL");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t park_GetUniqueId(ncclUniqueId *id)
{
    if (!id)
        return PARK_FAIL(ncclInvalidArgument, "recorder: ncclGetUniqueId: id is NULL");
    if (getrandom(id, sizeof *id, 0) != (ssize_t)sizeof *id)
        return PARK_FAIL(ncclSystemError, "recorder: getrandom: %s", strerror(errno));
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

/* NULL without memory. */
static struct park_stream *stream_of(ncclStream_t stream)
{
    if (cuda_device_is_active()) {
        cuda_thread_issues = 1;
        return cuda_device_stream(stream);
    }
    return stream ? (struct park_stream *)stream : park_queue_stream_null();
}

static int is_captured(const struct park_stream *stream)
{
    int status = 0;

    return stream->is_device &&
           (cuda_api_get()->cudaStreamIsCapturing(stream->handle, &status) || status);
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
        return PARK_FAIL(ncclInvalidArgument, "recorder: %s: comm is NULL",
                         func_name(func));
    if (!crystal_dtype_bytes(datatype) || peer < 0 || (uint32_t)peer >= comm->nranks)
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: %s: data type %d, rank %d of %u out of range",
                         func_name(func), (int)datatype, peer, comm->nranks);
    if (park_redop_get(redop, datatype, &op.client.op))
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: %s: operator %d does not exist for data type %d",
                         func_name(func), (int)redop, (int)datatype);
    if (!count && func != CRYSTAL_FUNC_SEND && func != CRYSTAL_FUNC_RECV)
        return ncclSuccess; /* NCCL drops empty collectives, too */
    op.stream = stream_of(stream);
    if (!op.stream)
        return PARK_FAIL(ncclSystemError, "recorder: out of memory");
    if (is_captured(op.stream))
        return PARK_FAIL(ncclInvalidUsage,
                         "recorder: %s inside the capture of a CUDA graph, where no "
                         "rank can be parked; switch graphs off (Megatron-LM: "
                         "--cuda-graph-impl none)",
                         func_name(func));
    op.comm = comm;
    call.stream = park_queue_stream_index(op.stream);
    call.comm = comm->index;
    call.redop = op.client.op.redop;
    call.peer = (uint32_t)peer;
    call.count = count;
    if (recorder_call_bytes(&call, comm->nranks, comm->crank, &send_bytes, &recv_bytes))
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: %s: %zu elements overflow memory", func_name(func),
                         count);
    if ((send_bytes && !send) || (recv_bytes && !recv))
        return PARK_FAIL(ncclInvalidArgument, "recorder: %s: buffer is NULL",
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
    op.client.op.call_site = site_number(entry_call_site);
    op.client.send = send;
    op.client.recv = recv;
    (void)recorder_call(r, &call, send_bytes, &op.payload_bytes, &op.payload_offset);
    if (group.depth) {
        if (group_add(&op))
            return PARK_FAIL(ncclSystemError, "recorder: out of memory for a group");
        return ncclSuccess;
    }
    if (park_queue_issue(&op, 1, &err))
        return park_fail(&err,
                         err.code == ECANCELED ? ncclRemoteError : ncclSystemError);
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
        return PARK_FAIL(ncclInvalidUsage,
                         "recorder: ncclGroupEnd without ncclGroupStart");
    if (--group.depth)
        return ncclSuccess;
    recorder_group(recorder_get(), 0);
    if (group.result)
        return group.result; /* nothing of a failed group is sent */
    code = park_queue_issue(group.ops, group.count, &err);
    group.count = 0;
    if (code)
        return park_fail(&err, code == -ECANCELED ? ncclRemoteError : ncclSystemError);
    return ncclSuccess;
}

ncclResult_t park_GroupSimulateEnd(ncclSimInfo_t *info)
{
    (void)info;
    if (!group.depth)
        return PARK_FAIL(ncclInvalidUsage,
                         "recorder: ncclGroupSimulateEnd without ncclGroupStart");
    if (--group.depth == 0) {
        recorder_group(recorder_get(), 0);
        group.count = 0;
    }
    return PARK_FAIL(
        ncclInvalidUsage,
        "recorder: ncclGroupSimulateEnd: a capture has no times to estimate");
}

/* --- end --- */

/* Optimizers step while the range that is to be does not begin. */
static void wait_for_range(const struct recorder *r, uint64_t step_count)
{
    char sentence[CRYSTAL_ERROR_TEXT_BYTES];

    if (!r->iterations || step_count != r->iterations + RANGE_PATIENCE)
        return;
    (void)snprintf(sentence, sizeof sentence,
                   "rank %u: its optimizer has stepped %llu times, and the NVTX range "
                   "'%.64s' has not begun; name one that every step begins with in "
                   "capture.iteration_range, or leave it out",
                   r->lrank, (unsigned long long)step_count,
                   getenv(CRYSTAL_ENV_ITERATION_RANGE));
    (void)crystal_client_fail(park.client, sentence); /* no other way to say it */
}

void park_iteration_hint(enum crystal_hint hint)
{
    struct recorder *r = recorder_get();
    struct crystal_error err = {0};
    uint64_t count = recorder_hint(r, hint);
    int stop = 0;

    if (!park.client)
        return; /* an iteration without communication */
    if (hint == CRYSTAL_HINT_STEP && nvtx_is_asked()) {
        wait_for_range(r, count);
        return;
    }
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
