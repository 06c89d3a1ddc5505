/* Drives the net plugin's tables the way NCCL's proxy does: handles through a pipe,
 * profiler events around each message, test() between waits. For test programs with
 * several processes; every check of a child is its exit code.
 */
#ifndef CRYSTAL_TESTS_NET_HARNESS_H
#define CRYSTAL_TESTS_NET_HARNESS_H

#include "replay/net_handle.h"
#include "replay/net_wait.h"
#include "replay/wire.h"
#include "runtime/nccl_net_abi.h"
#include "runtime/nccl_profiler_abi.h"

#include "tests/check.h"

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern const ncclNet_v11_t ncclNetPlugin_v11;
extern const ncclProfiler_v5_t ncclProfiler_v5;

#define NET  (&ncclNetPlugin_v11)
#define PROF (&ncclProfiler_v5)

/* What NCCL hands to isend and irecv as phandle. */
struct step_handle {
    void *profiler;
    void *step;
};

static ncclResult_t harness_profile(void **event, int type, void *parent, int64_t id,
                                    void *data)
{
    const struct step_handle *h = parent;
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileNetPlugin};

    if (type != 0)
        return ncclSuccess;
    d.parentObj = h->step;
    d.netPlugin.id = id;
    d.netPlugin.data = data;
    return PROF->startEvent(h->profiler, event, &d);
}

/* How buffers are registered: NULL host memory; else as on a GPU, which is tests/fake's
 * where CRYSTAL_BUFFERS=gpu. */
static void *harness_memory;

/* Threads never sleep, as NCCL's proxy. */
static bool harness_spins;

static inline void harness_wait(uint64_t most_ns)
{
    if (harness_spins)
        (void)sched_yield();
    else
        (void)crystal_net_wait(most_ns);
}

/* One rank's contexts of one communicator. */
struct rank {
    uint64_t comm_id;
    void *net;
    void *profiler;
    int nranks, crank;
};

static inline bool rank_init(struct rank *r, uint64_t comm_id, int nranks, int crank)
{
    ncclNetCommConfig_v11_t config = {0};
    int mask;

    r->comm_id = comm_id;
    r->nranks = nranks;
    r->crank = crank;
    if (NET->init(&r->net, comm_id, &config, NULL, harness_profile) != ncclSuccess ||
        PROF->init(&r->profiler, comm_id, &mask, "", 1, nranks, crank, NULL) !=
            ncclSuccess)
        return false;
    return !getenv("CRYSTAL_BUFFERS") ||
           NET->regMr(NULL, &harness_memory, sizeof harness_memory, NCCL_PTR_CUDA,
                      &harness_memory) == ncclSuccess;
}

static inline void rank_fini(struct rank *r)
{
    (void)NET->finalize(r->net);
    (void)PROF->finalize(r->profiler);
}

/* --- events --- */

static inline void *event_start(struct rank *r, ncclProfilerEventDescr_v5_t *d)
{
    void *event = NULL;

    d->rank = r->crank;
    (void)PROF->startEvent(r->profiler, &event, d);
    return event;
}

/* The protocol and algorithm of collectives, as NCCL calls them. */
static const char *harness_proto = "SIMPLE";
static const char *harness_algo = "RING";

static inline void *coll_start(struct rank *r, const char *func, const char *dtype,
                               size_t count, int root, int channels)
{
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileColl};

    d.coll.func = func;
    d.coll.datatype = dtype;
    d.coll.count = count;
    d.coll.root = root;
    d.coll.nChannels = (uint8_t)channels;
    d.coll.algo = harness_algo;
    d.coll.proto = harness_proto;
    return event_start(r, &d);
}

static inline void *p2p_start_on(struct rank *r, const char *func, const char *dtype,
                                 size_t count, int peer, int channels)
{
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileP2p};

    d.p2p.func = func;
    d.p2p.datatype = dtype;
    d.p2p.count = count;
    d.p2p.peer = peer;
    d.p2p.nChannels = (uint8_t)channels;
    return event_start(r, &d);
}

static inline void *p2p_start(struct rank *r, const char *func, const char *dtype,
                              size_t count, int peer)
{
    return p2p_start_on(r, func, dtype, count, peer, 1);
}

static inline void *proxy_start(struct rank *r, void *parent, int channel, int peer,
                                int messages, int is_send)
{
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileProxyOp};

    d.parentObj = parent;
    d.proxyOp.pid = getpid();
    d.proxyOp.channelId = (uint8_t)channel;
    d.proxyOp.peer = peer;
    d.proxyOp.nSteps = messages;
    d.proxyOp.isSend = is_send;
    return event_start(r, &d);
}

static inline struct step_handle step_start(struct rank *r, void *proxy, int step)
{
    ncclProfilerEventDescr_v5_t d = {.type = ncclProfileProxyStep};

    d.parentObj = proxy;
    d.proxyStep.step = step;
    return (struct step_handle){r->profiler, event_start(r, &d)};
}

/* --- connections --- */

/* Connects the two ends over a socket pair that joins the processes. NULL on failure.
 */
static inline void *harness_connect(struct rank *r, int to_peer)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    void *end = NULL, *device = NULL;

    if (read(to_peer, handle, sizeof handle) != (ssize_t)sizeof handle)
        return NULL;
    while (!end) {
        if (NET->connect(r->net, 0, handle, &end, &device) != ncclSuccess)
            return NULL;
        if (!end)
            harness_wait(10000000);
    }
    return end;
}

static inline void *harness_accept_from(void *listener)
{
    void *end = NULL, *device = NULL;

    while (!end) {
        if (NET->accept(listener, &end, &device) != ncclSuccess)
            return NULL;
        if (!end)
            harness_wait(10000000);
    }
    return end;
}

static inline void *harness_accept(struct rank *r, int to_peer)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    void *listener, *end;

    if (NET->listen(r->net, 0, handle, &listener) != ncclSuccess ||
        write(to_peer, handle, sizeof handle) != (ssize_t)sizeof handle)
        return NULL;
    end = harness_accept_from(listener);
    (void)NET->closeListen(listener);
    return end;
}

/* --- transfers --- */

static inline void *post_send(void *end, void *data, size_t bytes,
                              struct step_handle *h)
{
    void *request = NULL;

    while (!request) {
        if (NET->isend(end, data, bytes, 0, harness_memory, h, &request) != ncclSuccess)
            return NULL;
        if (!request)
            harness_wait(10000000);
    }
    return request;
}

static inline void *post_recv(void *end, void *data, size_t bytes,
                              struct step_handle *h)
{
    void *request = NULL, *phandle = h, *mhandle = harness_memory;
    int tag = 0;

    while (!request) {
        if (NET->irecv(end, 1, &data, &bytes, &tag, &mhandle, h ? &phandle : NULL,
                       &request) != ncclSuccess)
            return NULL;
        if (!request)
            harness_wait(10000000);
    }
    return request;
}

/* Result of the first failing test, else success. */
static inline ncclResult_t finish(void *request, int *ret_bytes)
{
    int done = 0;

    for (;;) {
        ncclResult_t result = NET->test(request, &done, ret_bytes);

        if (result != ncclSuccess || done)
            return result;
        harness_wait(1000000000);
    }
}

/* --- processes --- */

/* Children leave with what they inherited and what a failing operation left behind:
 * that is no leak. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

typedef void (*process_fn)(int to_peer);

/* Runs both functions in processes of their own, joined by a socket pair; fails the
 * running test where one of them fails. */
static inline void run_two(process_fn first, process_fn second)
{
    process_fn mains[2] = {first, second};
    pid_t pids[2];
    int pair[2], status;

    fflush(stdout);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            check_begin_child();
            (void)close(pair[1 - i]);
            mains[i](pair[i]);
            fflush(stdout);
            exit(check_ok ? 0 : 1);
        }
    }
    (void)close(pair[0]);
    (void)close(pair[1]);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        if (status)
            printf("# process %d ended with status %#x\n", i, (unsigned)status);
        CHECK_EQ(status, 0);
    }
}

static inline void run_one(process_fn main_fn)
{
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        check_begin_child();
        main_fn(-1);
        fflush(stdout);
        exit(check_ok ? 0 : 1);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

#endif
