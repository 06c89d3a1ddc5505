/* The CUDA runtime and NCCL by dlopen. See stock.h. */
#include "config.h"

#include "tests/gpu/stock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CUDART_UNLOADING 4 /* cudaErrorCudartUnloading: the process ends */

struct stock_cuda stock_cuda;
struct stock_nccl stock_nccl;

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

/* NULL where the library is too old for it. */
static void find_any(void *handle, const char *name, void *function)
{
    void *found = dlsym(handle, name);

    memcpy(function, &found, sizeof found);
}

static atomic_ulong churned;

static void *churn_main(void *unused)
{
    void *memory = NULL;
    int code;

    (void)unused;
    while (!(code = stock_cuda.malloc(&memory, (size_t)1 << 20)) &&
           !(code = stock_cuda.free(memory)) && !(code = stock_cuda.synchronize()))
        (void)atomic_fetch_add(&churned, 1);
    if (code != CUDART_UNLOADING) {
        printf("Bail out! churn: a call failed, %d\n", code);
        (void)fflush(stdout);
        _exit(1);
    }
    return NULL;
}

static void churn_tell(void)
{
    printf("# churn: %lu times\n", atomic_load(&churned));
}

static void churn_start(void)
{
    pthread_t thread;

    if (!getenv("CHURN"))
        return;
    if (pthread_create(&thread, NULL, churn_main, NULL)) {
        printf("Bail out! no thread\n");
        exit(1);
    }
    (void)pthread_detach(thread);
    (void)atexit(churn_tell);
}

void stock_open(void)
{
    static const char *const cudart[] = {"libcudart.so.13", "libcudart.so.12", NULL};
    static const char *const libnccl[] = {"libnccl.so.2", NULL};
    void *c = open_any("CUDART", cudart), *l = open_any("NCCL", libnccl);

    find(c, "cudaSetDevice", &stock_cuda.set_device);
    find(c, "cudaMalloc", &stock_cuda.malloc);
    find(c, "cudaFree", &stock_cuda.free);
    find(c, "cudaMemcpy", &stock_cuda.memcpy);
    find(c, "cudaMemset", &stock_cuda.memset);
    find(c, "cudaStreamCreateWithFlags", &stock_cuda.stream_create);
    find(c, "cudaStreamSynchronize", &stock_cuda.stream_synchronize);
    find(c, "cudaMemGetInfo", &stock_cuda.memory);
    find(c, "cudaDeviceSynchronize", &stock_cuda.synchronize);
#define NCCL_API(type, name, proto, args) find_any(l, "nccl" #name, &stock_nccl.name);
#include "runtime/nccl_api.def"
#undef NCCL_API
    churn_start();
}

double stock_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void stock_must(ncclComm_t comm, int result, const char *what)
{
    if (!result)
        return;
    printf("Bail out! %s: %d, %s\n", what, result, stock_nccl.GetLastError(comm));
    exit(1);
}

size_t stock_memory_free(void)
{
    size_t free_bytes = 0, all = 0;

    stock_must(NULL, stock_cuda.memory(&free_bytes, &all), "cudaMemGetInfo");
    return free_bytes;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void stock_sort(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
}

void stock_id(FILE *ids, ncclUniqueId *id)
{
    char line[2 * sizeof *id + 2]; /* with its end */

    if (!fgets(line, sizeof line, ids)) {
        printf("Bail out! no more ids\n");
        exit(1);
    }
    for (size_t i = 0; i < sizeof *id; i++) {
        unsigned byte = 0;

        if (sscanf(line + 2 * i, "%2x", &byte) != 1) {
            printf("Bail out! a line of ids has 256 digits\n");
            exit(1);
        }
        id->internal[i] = (char)byte;
    }
}

void stock_id_wait(const char *path, ncclUniqueId *ret)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    double began = stock_seconds();
    FILE *file;

    while (!(file = fopen(path, "r")) && stock_seconds() < began + 20)
        (void)nanosleep(&pause, NULL);
    if (!file) {
        printf("Bail out! no id in %s\n", path);
        exit(1);
    }
    stock_id(file, ret);
    (void)fclose(file);
}

void stock_id_write(const char *path, const ncclUniqueId *id)
{
    char temporary[4096];
    FILE *file;

    (void)snprintf(temporary, sizeof temporary, "%s.new", path);
    file = fopen(temporary, "w");
    for (size_t i = 0; file && i < sizeof *id; i++)
        (void)fprintf(file, "%02x", (unsigned char)id->internal[i]);
    if (!file || fprintf(file, "\n") < 0 || fclose(file) || rename(temporary, path)) {
        printf("Bail out! cannot write %s\n", path);
        exit(1);
    }
}
