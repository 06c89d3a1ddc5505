/* See calibrate.h. Parent and children share one anonymous page range; a child writes
 * its own rows of it and exits. */
#include "config.h"

#include "replay/calibrate.h"

#include "replay/overhead.h"
#include "runtime/clock.h"
#include "runtime/crystal_stream.h"
#include "runtime/env.h"
#include "runtime/loop.h"
#include "runtime/op.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_MOST  40
#define ROUNDS_LEAST 7
#define ROUNDS_COLD  2                   /* not counted */
#define GROUPS       2                   /* of 2 and of nranks */
#define BUDGET_NS    UINT64_C(700000000) /* of the wire's own time, all rounds */
#define LIMIT_MS     30000

struct shared {
    _Atomic int has_ids;
    ncclUniqueId ids[GROUPS];
    struct {
        uint64_t begin_ns, end_ns;
    } at[CRYSTAL_CALIBRATE_RANKS][GROUPS][ROUNDS_MOST];
    char fault[CRYSTAL_CALIBRATE_RANKS][160];
};

struct api {
    ncclResult_t (*get_unique_id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t, ncclStream_t);
    ncclResult_t (*destroy)(ncclComm_t);
    const char *(*last_error)(ncclComm_t);
    ncclResult_t (*stream_create)(ncclStream_t *);
    ncclResult_t (*stream_synchronize)(ncclStream_t);
};

struct child {
    const struct crystal_calibrate_config *config;
    struct shared *shared;
    struct api api;
    uint32_t rank, rounds;
};

static void nap(uint64_t ns)
{
    struct timespec pause = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

    (void)nanosleep(&pause, NULL);
}

/* --- a child --- */

static _Noreturn void give_up(struct child *c, const char *what, const char *why)
{
    (void)snprintf(c->shared->fault[c->rank], sizeof c->shared->fault[0], "%s: %s",
                   what, why);
    _exit(1);
}

static void load(struct child *c)
{
    void *handle = dlopen(c->config->nccl_library, RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
        {"ncclGetUniqueId", (void **)&c->api.get_unique_id},
        {"ncclCommInitRank", (void **)&c->api.init},
        {"ncclAllReduce", (void **)&c->api.all_reduce},
        {"ncclCommDestroy", (void **)&c->api.destroy},
        {"ncclGetLastError", (void **)&c->api.last_error},
        {"crystal_stream_create", (void **)&c->api.stream_create},
        {"crystal_stream_synchronize", (void **)&c->api.stream_synchronize},
    };

    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].to = handle ? dlsym(handle, symbols[i].name) : NULL;
        if (!*symbols[i].to)
            give_up(c, c->config->nccl_library, dlerror());
    }
}

static void must(struct child *c, ncclResult_t result, const char *what)
{
    if (result != ncclSuccess)
        give_up(c, what, c->api.last_error(NULL));
}

static void set_environment(const struct child *c,
                            const struct crystal_transfer_wire *wire)
{
    char text[64];

    (void)unsetenv(CRYSTAL_ENV_BOARD);
    (void)unsetenv(CRYSTAL_ENV_RUN_DIR);
    (void)unsetenv("NCCL_PROFILER_PLUGIN");
    (void)setenv("NCCL_NET_PLUGIN", c->config->net_plugin, 1);
    (void)snprintf(text, sizeof text, "%" PRIu32, c->rank);
    (void)setenv(CRYSTAL_ENV_LRANK, text, 1);
    (void)setenv("LOCAL_RANK", text, 1);
    (void)snprintf(text, sizeof text, "%" PRIu64 ",%" PRIu64, wire->bytes_per_s,
                   wire->latency_ns);
    (void)setenv(CRYSTAL_ENV_WIRE, text, 1);
}

static void run_group(struct child *c, uint32_t group, uint32_t nranks)
{
    ncclStream_t stream;
    ncclComm_t comm;
    float value = 0;

    must(c, c->api.stream_create(&stream), "crystal_stream_create");
    must(c, c->api.init(&comm, (int)nranks, c->shared->ids[group], (int)c->rank),
         "ncclCommInitRank");
    for (uint32_t i = 0; i < c->rounds; i++) {
        nap(1000000); /* as cold as behind computation */
        c->shared->at[c->rank][group][i].begin_ns = crystal_now_ns();
        must(c,
             c->api.all_reduce(&value, &value, 1, ncclFloat32, ncclSum, comm, stream),
             "ncclAllReduce");
        must(c, c->api.stream_synchronize(stream), "crystal_stream_synchronize");
        c->shared->at[c->rank][group][i].end_ns = crystal_now_ns();
    }
    must(c, c->api.destroy(comm), "ncclCommDestroy");
}

static _Noreturn void run_child(struct child *c,
                                const struct crystal_transfer_wire *wire)
{
    set_environment(c, wire);
    load(c);
    if (c->rank == 0) {
        for (uint32_t i = 0; i < GROUPS; i++)
            must(c, c->api.get_unique_id(&c->shared->ids[i]), "ncclGetUniqueId");
        atomic_store(&c->shared->has_ids, 1);
    }
    while (!atomic_load(&c->shared->has_ids))
        nap(1000000);
    if (c->rank < 2)
        run_group(c, 0, 2);
    if (c->config->nranks > 2)
        run_group(c, 1, c->config->nranks);
    _exit(0);
}

/* --- the parent --- */

static int start(const struct crystal_calibrate_config *config,
                 const struct crystal_transfer_wire *wire, struct shared *shared,
                 uint32_t rounds, pid_t *pids, struct crystal_error *err)
{
    pid_t parent = getpid();

    for (uint32_t i = 0; i < config->nranks; i++) {
        struct child child = {config, shared, {0}, i, rounds};

        pids[i] = fork();
        if (pids[i] < 0)
            return crystal_error_set(err, errno, "cannot start a process: %s",
                                     strerror(errno));
        if (pids[i] > 0)
            continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        run_child(&child, wire);
    }
    return 0;
}

/* Waits for all; ends all others as soon as one fails, or when time is up. */
static int finish(uint32_t nranks, pid_t *pids, int code)
{
    for (int ms = 0;; ms += 5) {
        uint32_t running = 0;

        for (uint32_t i = 0; i < nranks; i++) {
            int status = 0;

            if (pids[i] <= 0)
                continue;
            if (waitpid(pids[i], &status, WNOHANG) == 0) {
                running++;
                continue;
            }
            pids[i] = 0;
            if (status && !code)
                code = -EIO;
        }
        if (!running)
            return code;
        if (ms >= LIMIT_MS && !code)
            code = -ETIMEDOUT;
        for (uint32_t i = 0; code && i < nranks; i++)
            if (pids[i] > 0)
                (void)kill(pids[i], SIGKILL);
        nap(5000000);
    }
}

static int put_all(const struct shared *shared, uint32_t nranks, uint32_t rounds,
                   struct crystal_overhead *o, struct crystal_error *err)
{
    static const struct crystal_op op = {
        .func = CRYSTAL_FUNC_ALLREDUCE, .dtype = ncclFloat32, .value = 1};
    int code = 0;

    for (uint32_t g = 0; g < (nranks > 2 ? GROUPS : 1); g++) {
        uint32_t size = g == 0 ? 2 : nranks;

        for (uint32_t i = ROUNDS_COLD; i < rounds; i++)
            for (uint32_t r = 0; !code && r < size; r++) {
                struct crystal_overhead_part part = {
                    .comm = g,
                    .crank = r,
                    .nranks = size,
                    .seq = i,
                    .begin_ns = shared->at[r][g][i].begin_ns,
                    .end_ns = shared->at[r][g][i].end_ns,
                    .op = &op};

                code = crystal_overhead_put(o, &part, err);
            }
    }
    return code;
}

static uint32_t rounds_of(const struct crystal_transfer_wire *wire, uint32_t nranks)
{
    uint64_t hop_ns = wire->latency_ns + crystal_transfer_occupy_ns(wire, 4) + 1;
    uint64_t rounds = BUDGET_NS / (2 * (uint64_t)nranks * hop_ns);

    return rounds < ROUNDS_LEAST  ? ROUNDS_LEAST
           : rounds > ROUNDS_MOST ? ROUNDS_MOST
                                  : (uint32_t)rounds;
}

static int fault_of(const struct shared *shared, uint32_t nranks, int code,
                    struct crystal_error *err)
{
    for (uint32_t i = 0; i < nranks; i++)
        if (shared->fault[i][0])
            return crystal_error_set(err, EIO, "%.*s", (int)sizeof shared->fault[0] - 1,
                                     shared->fault[i]);
    return crystal_error_set(err, -code, "%s",
                             code == -ETIMEDOUT ? "its processes hang"
                                                : "one of its processes died");
}

int crystal_calibrate(const struct crystal_calibrate_config *config,
                      struct crystal_transfer_wire *wire, uint32_t *ret_count,
                      struct crystal_error *err)
{
    uint32_t nranks = config->nranks, rounds = rounds_of(wire, nranks);
    struct crystal_overhead *o = crystal_overhead_create();
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[CRYSTAL_CALIBRATE_RANKS] = {0};
    int code;

    if (!o || shared == MAP_FAILED) {
        code = crystal_error_set(err, ENOMEM, "out of memory");
    } else {
        code = start(config, wire, shared, rounds, pids, err);
        if (code) {
            (void)finish(nranks, pids, code);
        } else {
            code = finish(nranks, pids, 0);
            if (code)
                code = fault_of(shared, nranks, code, err);
        }
        if (!code)
            code = put_all(shared, nranks, rounds, o, err);
        if (!code)
            code = crystal_overhead_find(o, wire, ret_count, err);
    }
    if (code)
        crystal_error_prefix(err, "measuring the cost of a message");
    if (shared != MAP_FAILED)
        (void)munmap(shared, sizeof *shared);
    crystal_overhead_destroy(o);
    return code;
}
