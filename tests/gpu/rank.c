/* One rank of stock NCCL on a GPU whose peers are all virtual, with checked results.
 *
 * usage: rank -n N -r RANK -i ID_HEX [-c COUNT] [-k ROUNDS]
 * Everything of CUDA and NCCL comes by dlopen (libcudart.so.13 or .12, libnccl.so.2, or
 * the paths in CUDART and NCCL), so that nothing of them is needed to build. Virtual
 * ranks contribute stand-ins: a sum passes the rank's own values, every gathered block
 * is its own, a message from a virtual rank or root is zeros. TAP on standard output.
 */
#include "config.h"

#include "runtime/nccl_abi.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TO_DEVICE 1
#define TO_HOST   2

static struct {
    int (*malloc)(void **, size_t);
    int (*memcpy)(void *, const void *, size_t, int);
    int (*memset)(void *, int, size_t);
    int (*stream_create)(void **, unsigned);
    int (*stream_synchronize)(void *);
    int (*synchronize)(void);
} cuda;

static struct {
#define NCCL_API(type, name, proto, args) type(*name) proto;
#include "runtime/nccl_api.def"
#undef NCCL_API
} nccl;

static ncclComm_t comm;
static void *stream;
static int n, rank, tests, failures;
static size_t count = 100000;
static float *in, *out, *host; /* n * count elements each; in and out on the device */
static const char *doing = "start";

static void *open_any(const char *env, const char *const *names)
{
    const char *path = getenv(env);
    void *handle = path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;

    for (; !handle && *names; names++)
        handle = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
    if (!handle) {
        printf("Bail out! %s\n", dlerror());
        exit(1);
    }
    return handle;
}

static void find(void *handle, const char *name, void *function)
{
    void *found = dlsym(handle, name);

    if (!found) {
        printf("Bail out! no %s\n", name);
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

static void open_libraries(void)
{
    static const char *const cudart[] = {"libcudart.so.13", "libcudart.so.12", NULL};
    static const char *const libnccl[] = {"libnccl.so.2", NULL};
    void *c = open_any("CUDART", cudart), *l = open_any("NCCL", libnccl);

    find(c, "cudaMalloc", &cuda.malloc);
    find(c, "cudaMemcpy", &cuda.memcpy);
    find(c, "cudaMemset", &cuda.memset);
    find(c, "cudaStreamCreateWithFlags", &cuda.stream_create);
    find(c, "cudaStreamSynchronize", &cuda.stream_synchronize);
    find(c, "cudaDeviceSynchronize", &cuda.synchronize);
#define NCCL_API(type, name, proto, args) find(l, "nccl" #name, &nccl.name);
#include "runtime/nccl_api.def"
#undef NCCL_API
}

static void must(int result, const char *what)
{
    if (result) {
        printf("Bail out! %s in %s: %d, %s\n", what, doing, result,
               comm ? nccl.GetLastError(comm) : "");
        exit(1);
    }
}

static void on_alarm(int number)
{
    (void)number;
    printf("Bail out! no end of %s\n", doing);
    fflush(stdout);
    _exit(1);
}

static float value(size_t i)
{
    return (float)(i % 97 + 2);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs one operation from fresh buffers and compares out with want(i). */
static void check(const char *name, size_t in_count, size_t out_count,
                  ncclResult_t (*issue)(void), float (*want)(size_t))
{
    size_t bad = 0, first = 0;
    double began;

    doing = name;
    for (size_t i = 0; i < in_count; i++)
        host[i] = value(i);
    must(cuda.memcpy(in, host, in_count * 4, TO_DEVICE), "cudaMemcpy");
    must(cuda.memset(out, 0xff, out_count * 4), "cudaMemset");
    must(cuda.synchronize(), "cudaDeviceSynchronize");
    began = seconds();
    must((int)issue(), "NCCL");
    must(cuda.stream_synchronize(stream), "cudaStreamSynchronize");
    began = seconds() - began;
    must(cuda.memcpy(host, out, out_count * 4, TO_HOST), "cudaMemcpy");
    for (size_t i = 0; i < out_count; i++)
        if (host[i] != want(i) && bad++ == 0)
            first = i;
    tests++;
    failures += bad > 0;
    printf("%s %d - %s n=%d count=%zu in %.0f us\n", bad ? "not ok" : "ok", tests, name,
           n, count, began * 1e6);
    if (bad)
        printf("# %zu wrong, element %zu is %g, want %g\n", bad, first,
               (double)host[first], (double)want(first));
    fflush(stdout);
}

static ncclResult_t all_reduce(void)
{
    return nccl.AllReduce(in, out, count, ncclFloat32, ncclSum, comm, stream);
}

static ncclResult_t average(void)
{
    return nccl.AllReduce(in, out, count, ncclFloat32, ncclAvg, comm, stream);
}

static ncclResult_t maximum(void)
{
    return nccl.AllReduce(in, out, count, ncclFloat32, ncclMax, comm, stream);
}

static ncclResult_t all_gather(void)
{
    return nccl.AllGather(in, out, count, ncclFloat32, comm, stream);
}

static ncclResult_t reduce_scatter(void)
{
    return nccl.ReduceScatter(in, out, count, ncclFloat32, ncclSum, comm, stream);
}

static ncclResult_t broadcast_virtual(void)
{
    return nccl.Broadcast(in, out, count, ncclFloat32, (rank + 1) % n, comm, stream);
}

static ncclResult_t broadcast_real(void)
{
    return nccl.Broadcast(in, out, count, ncclFloat32, rank, comm, stream);
}

static ncclResult_t neighbours(void)
{
    nccl.GroupStart();
    nccl.Send(in, count, ncclFloat32, (rank + 1) % n, comm, stream);
    nccl.Recv(out, count, ncclFloat32, (rank + n - 1) % n, comm, stream);
    return nccl.GroupEnd();
}

static float same(size_t i)
{
    return value(i);
}

static float nth(size_t i)
{
    return value(i) / (float)n;
}

static float block(size_t i)
{
    return value(i % count);
}

static float share(size_t i)
{
    return value((size_t)rank * count + i);
}

static float zero(size_t i)
{
    (void)i;
    return 0;
}

int main(int argc, char **argv)
{
    ncclUniqueId id = {{0}};
    const char *hex = "";
    int option, rounds = 1, version = 0;
    double began;

    while ((option = getopt(argc, argv, "n:r:i:c:k:")) != -1)
        switch (option) {
        case 'n':
            n = atoi(optarg);
            break;
        case 'r':
            rank = atoi(optarg);
            break;
        case 'i':
            hex = optarg;
            break;
        case 'c':
            count = strtoull(optarg, NULL, 0);
            break;
        case 'k':
            rounds = atoi(optarg);
            break;
        default:
            return 2;
        }
    if (n < 2 || rank < 0 || rank >= n || strlen(hex) != 2 * sizeof id)
        return 2;
    for (size_t i = 0; i < sizeof id; i++) {
        unsigned byte = 0;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return 2;
        id.internal[i] = (char)byte;
    }
    signal(SIGALRM, on_alarm);
    alarm(50);
    open_libraries();
    must(cuda.stream_create(&stream, 1), "cudaStreamCreate");
    must(nccl.GetVersion(&version), "ncclGetVersion");
    doing = "ncclCommInitRank";
    began = seconds();
    must(nccl.CommInitRank(&comm, n, id, rank), "ncclCommInitRank");
    printf("# NCCL %d: set-up of %d ranks in %.3f s\n", version, n, seconds() - began);
    must(cuda.malloc((void **)&in, (size_t)n * count * 4), "cudaMalloc");
    must(cuda.malloc((void **)&out, (size_t)n * count * 4), "cudaMalloc");
    host = malloc((size_t)n * count * 4);
    if (!host)
        return 1;
    for (int k = 0; k < rounds; k++) {
        check("all-reduce sum", count, count, all_reduce, same);
        check("all-reduce max", count, count, maximum, same);
        check("all-reduce avg", count, count, average, nth);
        check("all-gather", count, (size_t)n * count, all_gather, block);
        check("reduce-scatter", (size_t)n * count, count, reduce_scatter, share);
        check("broadcast from a real root", count, count, broadcast_real, same);
        check("broadcast from a virtual root", count, count, broadcast_virtual, zero);
        check("send and receive", count, count, neighbours, zero);
    }
    must((int)nccl.CommDestroy(comm), "ncclCommDestroy");
    printf("1..%d\n", tests);
    return failures ? 1 : 0;
}
