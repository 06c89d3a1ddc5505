/* NCCL and crystal_stream.h passed through to another library (CRYSTAL_PASS_LIBRARY, an
 * absolute path): every call goes there unchanged, its handles are the library's own,
 * and what it was is recorded with real times. See pass_done.h for the ends.
 *
 * The path of one communication call: a clock reading, one lock under which the
 * handles' indices are found and 32 bytes copied, the library's call, an event.
 * Here: communication calls, groups, the end; see pass.h for the other files.
 */
#include "config.h"

#include "capture/nvtx.h"
#include "capture/pass.h"

#include "runtime/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_MS 2000

/* The open group of a thread: what was recorded in it. */
struct group_note {
    struct pass_lane *lane;
    uint64_t record;
};
static _Thread_local struct {
    int depth;
    uint32_t count, capacity;
    struct group_note *notes; /* owned */
} group;

/* --- communication calls --- */

/* What came of recording a call: where its end is to be noted. */
struct noted {
    struct pass_lane *lane; /* NULL: nowhere */
    uint64_t record;
    uint64_t issue_ns;
};

/* Records the call in front of the library's. */
static struct noted note_call(uint8_t func, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int peer, ncclComm_t comm,
                              ncclStream_t stream, int is_in_place)
{
    struct recorder *r = recorder_get();
    struct recorder_call call = {.func = func,
                                 .dtype = (uint8_t)datatype,
                                 .redop = (uint32_t)op < ncclNumOps ? (uint32_t)op
                                                                    : ncclNumOps,
                                 .peer = (uint32_t)peer,
                                 .count = count};
    struct noted noted = {0};
    const struct pass_comm *known_comm;
    struct pass_stream *known_stream;

    if (!count && func != CRYSTAL_FUNC_SEND && func != CRYSTAL_FUNC_RECV)
        return noted; /* NCCL drops empty collectives */
    if (is_in_place)
        call.flags = CRYSTAL_OP_FLAG_IN_PLACE;
    noted.issue_ns = recorder_now_ns(r);
    pass_rec_lock();
    known_stream = pointer_map_get(&pass.streams, pass_stream_key(stream));
    if (!known_stream) { /* once per stream */
        pass_rec_unlock();
        known_stream = pass_stream_add(stream);
        pass_rec_lock();
    }
    known_comm = pointer_map_get(&pass.comms, comm);
    if (known_comm && known_stream) {
        call.comm = known_comm->index;
        call.stream = known_stream->index;
        noted.record = recorder_call_locked(r, &call, noted.issue_ns);
        noted.lane = known_stream->lane;
    }
    pass_rec_unlock();
    if (noted.lane && !group.depth)
        pass_lane_begin(noted.lane);
    return noted;
}

static void group_note(const struct noted *noted)
{
    if (group.count == group.capacity) {
        uint32_t capacity = group.capacity ? 2 * group.capacity : 64;
        struct group_note *notes = realloc(group.notes, capacity * sizeof *notes);

        if (!notes)
            return; /* this one gets no end */
        group.notes = notes;
        group.capacity = capacity;
    }
    group.notes[group.count++] = (struct group_note){noted->lane, noted->record};
}

/* Behind the library's call. */
static ncclResult_t note_issued(const struct noted *noted, ncclResult_t result)
{
    if (!noted->lane || result != ncclSuccess)
        return result;
    if (group.depth)
        group_note(noted);
    else
        pass_lane_note(noted->lane, noted->record, noted->issue_ns, 1);
    return result;
}

/* The body of a communication call: record, forward, note where its end is seen. */
#define RECORDED(func, count, datatype, op, peer, in_place, call)                    \
    do {                                                                             \
        struct noted noted_;                                                         \
                                                                                     \
        if (!pass_is_open())                                                         \
            return ncclSystemError;                                                  \
        noted_ = note_call(func, count, datatype, op, peer, comm, stream, in_place); \
        return note_issued(&noted_, pass.nccl.call);                                 \
    } while (0)

static uintptr_t block_of(const void *base, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm)
{
    const struct pass_comm *known = pass_map_get(&pass.comms, comm);

    return (uintptr_t)base +
           (known ? known->crank * count * crystal_dtype_bytes(datatype) : 0);
}

ncclResult_t pass_Reduce(const void *send, void *recv, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root,
                         ncclComm_t comm, ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_REDUCE, count, datatype, op, root, send == recv,
             Reduce(send, recv, count, datatype, op, root, comm, stream));
}

ncclResult_t pass_Bcast(void *buffer, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_BROADCAST, count, datatype, ncclSum, root, 1,
             Bcast(buffer, count, datatype, root, comm, stream));
}

ncclResult_t pass_Broadcast(const void *send, void *recv, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_BROADCAST, count, datatype, ncclSum, root, send == recv,
             Broadcast(send, recv, count, datatype, root, comm, stream));
}

ncclResult_t pass_AllReduce(const void *send, void *recv, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_ALLREDUCE, count, datatype, op, 0, send == recv,
             AllReduce(send, recv, count, datatype, op, comm, stream));
}

ncclResult_t pass_ReduceScatter(const void *send, void *recv, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op,
                                ncclComm_t comm, ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_REDUCESCATTER, recvcount, datatype, op, 0,
             (uintptr_t)recv == block_of(send, recvcount, datatype, comm),
             ReduceScatter(send, recv, recvcount, datatype, op, comm, stream));
}

ncclResult_t pass_AllGather(const void *send, void *recv, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm,
                            ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_ALLGATHER, sendcount, datatype, ncclSum, 0,
             (uintptr_t)send == block_of(recv, sendcount, datatype, comm),
             AllGather(send, recv, sendcount, datatype, comm, stream));
}

ncclResult_t pass_AlltoAll(const void *send, void *recv, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm,
                           ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_ALLTOALL, count, datatype, ncclSum, 0, send == recv,
             AlltoAll(send, recv, count, datatype, comm, stream));
}

ncclResult_t pass_Gather(const void *send, void *recv, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm,
                         ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_GATHER, count, datatype, ncclSum, root,
             (uintptr_t)send == block_of(recv, count, datatype, comm),
             Gather(send, recv, count, datatype, root, comm, stream));
}

ncclResult_t pass_Scatter(const void *send, void *recv, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm,
                          ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_SCATTER, count, datatype, ncclSum, root,
             (uintptr_t)recv == block_of(send, count, datatype, comm),
             Scatter(send, recv, count, datatype, root, comm, stream));
}

ncclResult_t pass_Send(const void *send, size_t count, ncclDataType_t datatype,
                       int peer, ncclComm_t comm, ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_SEND, count, datatype, ncclSum, peer, 0,
             Send(send, count, datatype, peer, comm, stream));
}

ncclResult_t pass_Recv(void *recv, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, ncclStream_t stream)
{
    RECORDED(CRYSTAL_FUNC_RECV, count, datatype, ncclSum, peer, 0,
             Recv(recv, count, datatype, peer, comm, stream));
}

/* --- groups --- */

ncclResult_t pass_GroupStart(void)
{
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    if (group.depth == 0)
        recorder_group(recorder_get(), 1);
    result = pass.nccl.GroupStart();
    if (result == ncclSuccess && group.depth++ == 0)
        group.count = 0;
    return result;
}

/* Is note i of the group the last one of its stream? */
static int is_last(uint32_t i)
{
    uint32_t k = i + 1;

    while (k < group.count && group.notes[k].lane != group.notes[i].lane)
        k++;
    return k == group.count;
}

static void group_begins(void)
{
    for (uint32_t i = 0; i < group.count; i++)
        if (is_last(i)) /* once for each stream */
            pass_lane_begin(group.notes[i].lane);
}

/* All of the group began with its end; the last of each stream carries the event. */
static void group_issued(uint64_t issue_ns)
{
    for (uint32_t i = 0; i < group.count; i++)
        pass_lane_note(group.notes[i].lane, group.notes[i].record, issue_ns,
                       is_last(i));
    group.count = 0;
}

ncclResult_t pass_GroupEnd(void)
{
    struct recorder *r = recorder_get();
    uint64_t issue_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!pass_is_open())
        return ncclSystemError;
    if (group.depth == 1) {
        recorder_group(r, 0);
        group_begins();
    }
    result = pass.nccl.GroupEnd();
    if (group.depth && --group.depth == 0) {
        if (result == ncclSuccess)
            group_issued(issue_ns);
        group.count = 0;
    }
    return result;
}

ncclResult_t pass_GroupSimulateEnd(ncclSimInfo_t *info)
{
    if (!pass_is_open())
        return ncclSystemError;
    if (group.depth == 1)
        recorder_group(recorder_get(), 0);
    if (group.depth && --group.depth == 0)
        group.count = 0;
    return pass.nccl.GroupSimulateEnd(info);
}

/* --- end --- */

void pass_drain(void)
{
    uint64_t dropped = 0;

    for (struct pass_stream *s = pass_streams(); s; s = s->next)
        if (s->lane)
            dropped += pass_lane_drain(s->lane, DRAIN_MS);
    if (dropped)
        crystal_log(CRYSTAL_LOG_WARNING, "pass",
                    "more than 900 operations of a stream were under way at once, "
                    "recording %llu without their ends",
                    (unsigned long long)dropped);
}

/* What the program waited for has arrived here, but what it sent on may still be under
 * way: a rank that ends now would leave its peers without it. */
static void flush_comms(void)
{
    ncclComm_t *comms;
    size_t count = 0;

    pass_rec_lock();
    comms = calloc(pass.comms.count + 1, sizeof(ncclComm_t));
    for (size_t i = 0; comms && i < pass.comms.capacity; i++)
        if (pass.comms.rows[i].key)
            comms[count++] = (ncclComm_t)(uintptr_t)pass.comms.rows[i].key;
    pass_rec_unlock();
    for (size_t i = 0; i < count; i++)
        (void)pass.nccl.CommFinalize(comms[i]); /* a broken one has nothing to flush */
    free(comms);
}

void pass_iteration_hint(enum crystal_hint hint)
{
    struct recorder *r = recorder_get();
    uint64_t count;

    for (struct pass_stream *s = pass_streams(); s; s = s->next)
        if (s->lane)
            pass_lane_hurry(s->lane); /* the hint's flush takes what is known */
    count = recorder_hint(r, hint);
    if (!r->iterations || count <= r->iterations ||
        (hint == CRYSTAL_HINT_STEP && nvtx_is_asked()))
        return;
    flush_comms();
    pass_drain();
    recorder_finish(r, 1);
    (void)fflush(NULL); /* nobody to tell */
    _exit(0);
}

void pass_finish(int stopped)
{
    pass_drain();
    recorder_finish(recorder_get(), stopped);
}
