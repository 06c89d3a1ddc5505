/* NCCL and crystal_stream.h passed through to another library (CRYSTAL_PASS_LIBRARY, an
 * absolute path): every call goes there unchanged, its handles are the library's own,
 * and what it was is recorded with real times. See pass_done.h for the ends.
 *
 * The path of one communication call: a clock reading, one lock under which the
 * handles' indices are found and 32 bytes copied, the library's call, an event.
 */
#include "config.h"

#include "capture/entry.h"
#include "capture/pass_done.h"
#include "capture/pointer_map.h"
#include "capture/recorder.h"

#include "runtime/env.h"
#include "runtime/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_MS 2000

/* What we know of the library's handles. */
struct pass_comm {
    uint16_t index;
    uint32_t nranks;
    uint32_t crank;
};

struct pass_stream {
    uint16_t index;
    struct pass_lane *lane;   /* NULL: no ends are recorded */
    struct pass_stream *next; /* of all, for the end */
};

struct pass_event {
    uint32_t index;
    int is_recorded;
    struct recorder_poll poll;
};

static struct pass {
    pthread_once_t once;
    int is_open; /* the library is there with all its functions */
    struct {
#define NCCL_API(type, name, proto, args) type(*name) proto;
#include "runtime/nccl_api.def"
#undef NCCL_API
    } nccl;
    struct {
#define STREAM_API(type, name, proto, args) type(*name) proto;
#include "capture/stream_api.def"
#undef STREAM_API
    } host;
    struct pass_done_library done;
    /* under the recorder's lock */
    struct pointer_map comms, streams, events;
    struct pass_stream *all_streams;
} pass = {.once = PTHREAD_ONCE_INIT};

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

/* --- the library --- */

static void *find(void *handle, const char *name, const char **ret_missing)
{
    void *function = dlsym(handle, name);

    if (!function && !*ret_missing)
        *ret_missing = name;
    return function;
}

static void pass_open(void)
{
    const char *path = getenv(CRYSTAL_ENV_PASS_LIBRARY), *missing = NULL;
    struct crystal_error err = {0};
    void *handle, *function;

    if (recorder_get()->broken[0]) { /* a plan that records nothing is none */
        (void)crystal_error_set(&err, EINVAL, "%s", recorder_get()->broken);
        goto err;
    }
    if (!path || path[0] != '/') {
        (void)crystal_error_set(&err, EINVAL,
                                "recorder: %s='%s' is no absolute path of a library",
                                CRYSTAL_ENV_PASS_LIBRARY, path ? path : "");
        goto err;
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        (void)crystal_error_set(&err, ENOENT, "recorder: %s", dlerror());
        goto err;
    }
    /* dlsym's result is data to C; POSIX wants it converted like this */
#define NCCL_API(type, name, proto, args)            \
    function = find(handle, "nccl" #name, &missing); \
    memcpy(&pass.nccl.name, &function, sizeof function);
#include "runtime/nccl_api.def"
#undef NCCL_API
#define STREAM_API(type, name, proto, args)              \
    function = find(handle, "crystal_" #name, &missing); \
    memcpy(&pass.host.name, &function, sizeof function);
#include "capture/stream_api.def"
#undef STREAM_API
    if (missing) {
        (void)crystal_error_set(&err, ENOSYS, "recorder: %s lacks %s", path, missing);
        goto err;
    }
    pass.done.event_create = pass.host.event_create;
    pass.done.event_record = pass.host.event_record;
    pass.done.event_synchronize = pass.host.event_synchronize;
    pass.done.event_destroy = pass.host.event_destroy;
    pass.is_open = 1;
    return;

err:
    recorder_fail(&err);
    crystal_log(CRYSTAL_LOG_ERROR, "pass", "%s", err.text);
}

static int is_open(void)
{
    (void)pthread_once(&pass.once, pass_open); /* valid arguments */
    return pass.is_open;
}

/* --- what we know of handles --- */

static void rec_lock(void)
{
    (void)pthread_mutex_lock(&recorder_get()->lock); /* a plain mutex */
}

static void rec_unlock(void)
{
    (void)pthread_mutex_unlock(&recorder_get()->lock);
}

static void *map_get(struct pointer_map *map, const void *key)
{
    void *value;

    rec_lock();
    value = pointer_map_get(map, key);
    rec_unlock();
    return value;
}

/* Takes ownership of value; a handle that cannot be kept is simply unknown. */
static void map_put(struct pointer_map *map, const void *key, void *value)
{
    int code;

    rec_lock();
    code = pointer_map_put(map, key, value);
    rec_unlock();
    if (code)
        free(value);
}

static void map_drop(struct pointer_map *map, const void *key)
{
    void *value;

    rec_lock();
    value = pointer_map_take(map, key);
    rec_unlock();
    free(value);
}

/* Streams keep their entries: their lanes run on. The null stream's key is ours. */
static const void *stream_key(ncclStream_t stream)
{
    static const char null_key;

    return stream ? stream : &null_key;
}

static struct pass_stream *stream_add(ncclStream_t stream)
{
    struct pass_stream *s = calloc(1, sizeof *s);
    struct crystal_error err = {0};
    int code;

    if (!s)
        return NULL;
    if (stream)
        s->index = recorder_stream_next(recorder_get());
    s->lane = pass_lane_create(&pass.done, stream, &err);
    if (!s->lane)
        crystal_log(CRYSTAL_LOG_WARNING, "pass",
                    "%s, recording stream %u without the ends of its operations",
                    err.text, s->index);
    rec_lock();
    code = pointer_map_put(&pass.streams, stream_key(stream), s);
    s->next = pass.all_streams;
    pass.all_streams = s;
    rec_unlock();
    return code ? NULL : s;
}

static struct pass_stream *stream_get(ncclStream_t stream)
{
    struct pass_stream *s = map_get(&pass.streams, stream_key(stream));

    return s ? s : stream_add(stream);
}

static uint16_t stream_index(ncclStream_t stream)
{
    struct pass_stream *s = stream_get(stream);

    return s ? s->index : UINT16_MAX;
}

/* --- communicators --- */

static ncclResult_t comm_made(ncclResult_t result, ncclComm_t *comm, int nranks,
                              int crank, const char *name)
{
    struct pass_comm *known;
    struct crystal_error err = {0};

    if (result != ncclSuccess && result != ncclInProgress)
        return result;
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
    map_put(&pass.comms, *comm, known);
    return result;
}

static void comm_gone(ncclComm_t comm)
{
    struct pass_comm *known = map_get(&pass.comms, comm);

    if (!known)
        return;
    recorder_comm_free(recorder_get(), known->index);
    map_drop(&pass.comms, comm);
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
    if (!is_open())
        return ncclSystemError;
    return comm_made(pass.nccl.CommInitRankConfig(comm, nranks, id, rank, config), comm,
                     nranks, rank, config_name(config));
}

ncclResult_t pass_CommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    if (!is_open())
        return ncclSystemError;
    return comm_made(pass.nccl.CommInitRank(comm, nranks, id, rank), comm, nranks, rank,
                     NULL);
}

ncclResult_t pass_CommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nid,
                                       ncclUniqueId *ids, ncclConfig_t *config)
{
    if (!is_open())
        return ncclSystemError;
    return comm_made(
        pass.nccl.CommInitRankScalable(comm, nranks, rank, nid, ids, config), comm,
        nranks, rank, config_name(config));
}

ncclResult_t pass_CommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
    ncclResult_t result;

    if (!is_open())
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
    const struct pass_comm *parent = map_get(&pass.comms, comm);
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
    if (!is_open())
        return ncclSystemError;
    return child_made(pass.nccl.CommSplit(comm, color, key, child, config), comm, child,
                      "split", color);
}

ncclResult_t pass_CommShrink(ncclComm_t comm, int *exclude, int exclude_count,
                             ncclComm_t *child, ncclConfig_t *config, int flags)
{
    if (!is_open())
        return ncclSystemError;
    return child_made(
        pass.nccl.CommShrink(comm, exclude, exclude_count, child, config, flags), comm,
        child, "shrink", exclude_count);
}

ncclResult_t pass_CommDestroy(ncclComm_t comm)
{
    if (!is_open())
        return ncclSystemError;
    comm_gone(comm); /* first: the library may give the address to a new one */
    return pass.nccl.CommDestroy(comm);
}

ncclResult_t pass_CommAbort(ncclComm_t comm)
{
    if (!is_open())
        return ncclSystemError;
    comm_gone(comm);
    return pass.nccl.CommAbort(comm);
}

/* --- calls that nothing is recorded of --- */

#define FORWARD(name, proto, args)                                \
    ncclResult_t pass_##name proto                                \
    {                                                             \
        return is_open() ? pass.nccl.name args : ncclSystemError; \
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
    return is_open() ? pass.nccl.GetErrorString(result) : park_GetErrorString(result);
}

const char *pass_GetLastError(ncclComm_t comm)
{
    return is_open() ? pass.nccl.GetLastError(comm) : recorder_last_error();
}

ncclResult_t pass_MemAlloc(void **ptr, size_t size)
{
    ncclResult_t result;

    if (!is_open())
        return ncclSystemError;
    result = pass.nccl.MemAlloc(ptr, size);
    if (result == ncclSuccess)
        recorder_alloc(recorder_get(), size, 0);
    return result;
}

ncclResult_t pass_MemFree(void *ptr)
{
    return is_open() ? pass.nccl.MemFree(ptr) : ncclSystemError;
}

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
    rec_lock();
    known_stream = pointer_map_get(&pass.streams, stream_key(stream));
    if (!known_stream) { /* once per stream */
        rec_unlock();
        known_stream = stream_add(stream);
        rec_lock();
    }
    known_comm = pointer_map_get(&pass.comms, comm);
    if (known_comm && known_stream) {
        call.comm = known_comm->index;
        call.stream = known_stream->index;
        noted.record = recorder_call_locked(r, &call, noted.issue_ns);
        noted.lane = known_stream->lane;
    }
    rec_unlock();
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
        if (!is_open())                                                              \
            return ncclSystemError;                                                  \
        noted_ = note_call(func, count, datatype, op, peer, comm, stream, in_place); \
        return note_issued(&noted_, pass.nccl.call);                                 \
    } while (0)

static uintptr_t block_of(const void *base, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm)
{
    const struct pass_comm *known = map_get(&pass.comms, comm);

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

    if (!is_open())
        return ncclSystemError;
    if (group.depth == 0)
        recorder_group(recorder_get(), 1);
    result = pass.nccl.GroupStart();
    if (result == ncclSuccess && group.depth++ == 0)
        group.count = 0;
    return result;
}

/* All of the group began with its end; the last of each stream carries the event. */
static void group_issued(uint64_t issue_ns)
{
    for (uint32_t i = 0; i < group.count; i++) {
        uint32_t k = i + 1;

        while (k < group.count && group.notes[k].lane != group.notes[i].lane)
            k++;
        pass_lane_note(group.notes[i].lane, group.notes[i].record, issue_ns,
                       k == group.count);
    }
    group.count = 0;
}

ncclResult_t pass_GroupEnd(void)
{
    struct recorder *r = recorder_get();
    uint64_t issue_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!is_open())
        return ncclSystemError;
    if (group.depth == 1)
        recorder_group(r, 0);
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
    if (!is_open())
        return ncclSystemError;
    if (group.depth == 1)
        recorder_group(recorder_get(), 0);
    if (group.depth && --group.depth == 0)
        group.count = 0;
    return pass.nccl.GroupSimulateEnd(info);
}

/* --- streams and events --- */

ncclResult_t pass_stream_create(ncclStream_t *ret_stream)
{
    return is_open() ? pass.host.stream_create(ret_stream) : ncclSystemError;
}

ncclResult_t pass_stream_destroy(ncclStream_t stream)
{
    if (!is_open())
        return ncclSystemError;
    rec_lock(); /* the entry stays with its lane, the address may come again */
    (void)pointer_map_take(&pass.streams, stream_key(stream));
    rec_unlock();
    return pass.host.stream_destroy(stream);
}

ncclResult_t pass_stream_synchronize(ncclStream_t stream)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!is_open())
        return ncclSystemError;
    result = pass.host.stream_synchronize(stream);
    recorder_waited(r, CRYSTAL_OP_SYNC, 0, stream_index(stream), from_ns);
    return result;
}

ncclResult_t pass_stream_query(ncclStream_t stream)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    ncclResult_t result;

    if (!is_open())
        return ncclSystemError;
    result = pass.host.stream_query(stream);
    if (result != ncclInProgress)
        recorder_waited(r, CRYSTAL_OP_SYNC, 0, stream_index(stream), from_ns);
    return result;
}

ncclResult_t pass_stream_wait_event(ncclStream_t stream, crystal_event_t event)
{
    const struct pass_event *known;

    if (!is_open())
        return ncclSystemError;
    known = map_get(&pass.events, event);
    if (known && known->is_recorded)
        recorder_event(recorder_get(), CRYSTAL_OP_SWAIT, known->index,
                       stream_index(stream));
    return pass.host.stream_wait_event(stream, event);
}

ncclResult_t pass_event_create(crystal_event_t *ret_event)
{
    struct pass_event *known;
    ncclResult_t result;

    if (!is_open())
        return ncclSystemError;
    result = pass.host.event_create(ret_event);
    known = result == ncclSuccess ? calloc(1, sizeof *known) : NULL;
    if (known) {
        known->index = recorder_event_next(recorder_get());
        map_put(&pass.events, *ret_event, known);
    }
    return result;
}

ncclResult_t pass_event_destroy(crystal_event_t event)
{
    if (!is_open())
        return ncclSystemError;
    if (event)
        map_drop(&pass.events, event);
    return pass.host.event_destroy(event);
}

ncclResult_t pass_event_record(crystal_event_t event, ncclStream_t stream)
{
    struct pass_event *known;

    if (!is_open())
        return ncclSystemError;
    known = map_get(&pass.events, event);
    if (known) {
        known->is_recorded = 1;
        memset(&known->poll, 0, sizeof known->poll);
        recorder_event(recorder_get(), CRYSTAL_OP_RECORD, known->index,
                       stream_index(stream));
    }
    return pass.host.event_record(event, stream);
}

ncclResult_t pass_event_synchronize(crystal_event_t event)
{
    struct recorder *r = recorder_get();
    uint64_t from_ns = recorder_now_ns(r);
    struct pass_event *known;
    ncclResult_t result;

    if (!is_open())
        return ncclSystemError;
    result = pass.host.event_synchronize(event);
    known = map_get(&pass.events, event);
    if (known && known->is_recorded) {
        known->poll.waited = 1;
        recorder_waited(r, CRYSTAL_OP_WAIT, known->index, 0, from_ns);
    }
    return result;
}

ncclResult_t pass_event_query(crystal_event_t event)
{
    struct pass_event *known;
    ncclResult_t result;

    if (!is_open())
        return ncclSystemError;
    result = pass.host.event_query(event);
    known = map_get(&pass.events, event);
    if (known && known->is_recorded)
        recorder_polled(recorder_get(), &known->poll, result != ncclInProgress,
                        CRYSTAL_OP_WAIT, known->index, 0);
    return result;
}

/* --- end --- */

static void drain(void)
{
    struct pass_stream *s;
    uint64_t dropped = 0;

    rec_lock();
    s = pass.all_streams;
    rec_unlock();
    for (; s; s = s->next)
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

    rec_lock();
    comms = calloc(pass.comms.count + 1, sizeof(ncclComm_t));
    for (size_t i = 0; comms && i < pass.comms.capacity; i++)
        if (pass.comms.rows[i].key)
            comms[count++] = (ncclComm_t)(uintptr_t)pass.comms.rows[i].key;
    rec_unlock();
    for (size_t i = 0; i < count; i++)
        (void)pass.nccl.CommFinalize(comms[i]); /* a broken one has nothing to flush */
    free(comms);
}

void pass_iteration_hint(void)
{
    struct recorder *r = recorder_get();
    uint64_t count = recorder_hint(r);

    if (!r->iterations || count <= r->iterations)
        return;
    flush_comms();
    drain();
    recorder_finish(r, 1);
    (void)fflush(NULL); /* nobody to tell */
    _exit(0);
}

void pass_finish(int stopped)
{
    drain();
    recorder_finish(recorder_get(), stopped);
}
