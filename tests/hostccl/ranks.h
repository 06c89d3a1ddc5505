/* Ranks for tests and benchmarks of hostccl: processes that meet in a communicator over
 * the built libnccl-net-crystal.so.
 */
#ifndef CRYSTAL_TESTS_RANKS_H
#define CRYSTAL_TESTS_RANKS_H

#include "runtime/crystal_stream.h"
#include "runtime/nccl_abi.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NCCL_API(type, name, proto, args) type nccl##name proto;
#include "runtime/nccl_api.def"

#include "tests/folders.h"
#undef NCCL_API

#define RANKS_IDS 8
#define RANKS_MAX 64

struct ranks_shared {
    ncclUniqueId ids[RANKS_IDS];
    atomic_int has_id[RANKS_IDS];
    atomic_int counter;
    int values[1024]; /* the test's own */
};
static struct ranks_shared *ranks_shared;
static int ranks_failed; /* checks failed in this process */

#define RANK_CHECK(condition)                                                       \
    do {                                                                            \
        if (!(condition)) {                                                         \
            printf("# %s:%d: pid %d: %s (%s)\n", __FILE__, __LINE__, (int)getpid(), \
                   #condition, ncclGetLastError(NULL));                             \
            fflush(stdout);                                                         \
            ranks_failed++;                                                         \
        }                                                                           \
    } while (0)

static inline void ranks_environment(void)
{
    const char *build = build_folder();
    char path[4096];

    (void)snprintf(path, sizeof path, "%s/.libs/libnccl-net-crystal.so", build);
    (void)setenv("NCCL_NET_PLUGIN", path, 0);
}

/* Runs fn(rank, n) in n processes; returns how many failed. */
static inline int ranks_run(int n, void (*fn)(int rank, int n))
{
    static pid_t pids[RANKS_MAX];
    int failed = 0;

    ranks_environment();
    ranks_shared = mmap(NULL, sizeof *ranks_shared, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (n > RANKS_MAX || ranks_shared == MAP_FAILED)
        return n;
    fflush(stdout);
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            alarm(280); /* a busy machine's */
            fn(i, n);
            fflush(stdout);
            exit(ranks_failed ? 1 : 0); /* through the exit handlers */
        }
    }
    for (int i = 0; i < n; i++) {
        int status = 0;

        if (pids[i] < 0 || waitpid(pids[i], &status, 0) < 0 || status != 0) {
            printf("# rank %d of %d ended with status 0x%x\n", i, n, status);
            failed++;
        }
    }
    (void)munmap(ranks_shared, sizeof *ranks_shared);
    return failed;
}

/* The which-th id of this run; made by the caller with is_maker. */
static inline ncclUniqueId ranks_id(int which, int is_maker)
{
    struct timespec pause = {.tv_nsec = 1000000};

    if (is_maker) {
        RANK_CHECK(ncclGetUniqueId(&ranks_shared->ids[which]) == ncclSuccess);
        atomic_store(&ranks_shared->has_id[which], 1);
    }
    while (!atomic_load(&ranks_shared->has_id[which]))
        nanosleep(&pause, NULL);
    return ranks_shared->ids[which];
}

static inline ncclComm_t ranks_comm(int which, int rank, int n)
{
    ncclComm_t comm = NULL;
    ncclUniqueId id = ranks_id(which, rank == 0);

    RANK_CHECK(ncclCommInitRank(&comm, n, id, rank) == ncclSuccess);
    if (!comm)
        exit(1);
    return comm;
}

static inline void ranks_pause_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (nanosleep(&t, &t)) /* interrupted */
        ;
}

/* One rank tells, once in a run; the others wait for that. */
static inline void ranks_tell(void)
{
    atomic_store(&ranks_shared->counter, 1);
}

static inline void ranks_wait_told(void)
{
    while (!atomic_load(&ranks_shared->counter))
        ranks_pause_ms(1);
}

/* The sum of all ranks' values, on this stream. */
static inline int ranks_sum(ncclComm_t comm, int value, ncclStream_t stream)
{
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, stream) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(stream) == ncclSuccess);
    return value;
}

static inline uint64_t ranks_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

#endif
