/* recorder.ns_per_call: what recording one NCCL call costs the calling thread, as the
 * time of a call through libcrystal-nccl.so to a library that does nothing, less the
 * time of calling that library directly. The median of several rounds, and their
 * quartiles; each has bursts of calls with a wait and a pause behind them, as a
 * training program makes them: every operation's end is recorded, too, and what of that
 * falls to the calling thread counts.
 */
#include "config.h"

#include "runtime/crystal_stream.h"
#include "runtime/env.h"

#include "tests/folders.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS   51
#define CALLS    1000
#define BURST    50
#define PAUSE_NS 1000000

struct library {
    ncclResult_t (*comm_init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t, ncclStream_t);
    ncclResult_t (*stream_create)(ncclStream_t *);
    ncclResult_t (*stream_synchronize)(ncclStream_t);
    ncclComm_t comm;
    ncclStream_t stream;
};

static void *find(void *handle, const char *name)
{
    void *function = dlsym(handle, name);

    if (!function) {
        fprintf(stderr, "bench: %s\n", dlerror());
        exit(1);
    }
    return function;
}

static void open_library(const char *path, struct library *ret)
{
    ncclUniqueId id = {{1}};
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!handle) {
        fprintf(stderr, "bench: %s\n", dlerror());
        exit(1);
    }
    *(void **)&ret->comm_init = find(handle, "ncclCommInitRank");
    *(void **)&ret->all_reduce = find(handle, "ncclAllReduce");
    *(void **)&ret->stream_create = find(handle, "crystal_stream_create");
    *(void **)&ret->stream_synchronize = find(handle, "crystal_stream_synchronize");
    if (ret->comm_init(&ret->comm, 1, id, 0) != ncclSuccess ||
        ret->stream_create(&ret->stream) != ncclSuccess) {
        fprintf(stderr, "bench: %s: no communicator\n", path);
        exit(1);
    }
}

static double now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Time of the calls alone, per call. */
static double round_ns(const struct library *l)
{
    static const struct timespec pause = {0, PAUSE_NS};
    static float value;
    double sum_ns = 0;

    for (int i = 0; i < CALLS / BURST; i++) {
        double from_ns = now_ns();

        for (int k = 0; k < BURST; k++)
            if (l->all_reduce(&value, &value, 1, ncclFloat32, ncclSum, l->comm,
                              l->stream) != ncclSuccess)
                exit(1);
        sum_ns += now_ns() - from_ns;
        if (l->stream_synchronize(l->stream) != ncclSuccess)
            exit(1);
        (void)nanosleep(&pause, NULL);
    }
    return sum_ns / CALLS;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(void)
{
    const char *build = build_folder();
    char directory[] = "/tmp/crystal-bench.XXXXXX", path[4096], null_path[4096];
    struct library direct, recorded;
    double rounds[ROUNDS];

    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(null_path, sizeof null_path, "%s/tests/fake/.libs/null_nccl.so",
                   build);
    if (null_path[0] != '/' && !realpath("tests/fake/.libs/null_nccl.so", null_path)) {
        perror("tests/fake/.libs/null_nccl.so");
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/.libs/libcrystal-nccl.so", build);
    (void)setenv(CRYSTAL_ENV_PASS_LIBRARY, null_path, 1);
    (void)setenv(CRYSTAL_ENV_TRACE_DIR, directory, 1);
    (void)setenv(CRYSTAL_ENV_LRANK, "0", 1);
    open_library(null_path, &direct);
    open_library(path, &recorded);
    for (int i = 0; i < ROUNDS; i++) {
        double direct_ns = round_ns(&direct);

        rounds[i] = round_ns(&recorded) - direct_ns;
    }
    qsort(rounds, ROUNDS, sizeof rounds[0], ascending);
    printf("recorder.ns_per_call %.0f ns\n", rounds[ROUNDS / 2]);
    printf("recorder.ns_per_call_q1 %.0f ns\n", rounds[ROUNDS / 4]);
    printf("recorder.ns_per_call_q3 %.0f ns\n", rounds[3 * ROUNDS / 4]);
    (void)snprintf(path, sizeof path, "%s/0.trace", directory);
    (void)unlink(path);
    (void)rmdir(directory);
    return 0;
}
