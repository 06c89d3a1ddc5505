/* rank [COMMAND ARG...]: the smallest distributed program, for the Slurm tests.
 *
 * It does what a framework does: finds the store at MASTER_ADDR:MASTER_PORT, publishes
 * the world's members, exchanges the unique id under the key that PyTorch uses, makes a
 * communicator of WORLD_SIZE ranks with the NCCL library that CRYSTAL_NCCL_LIBRARY
 * names, runs six iterations of two all-reduces, checks the integer one's result, and
 * becomes COMMAND.
 */
#include "config.h"

#include "runtime/crystal_stream.h"
#include "runtime/env.h"

#include "tests/unit/store_client.h"

#include <dlfcn.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>

enum { ITERATIONS = 6, FLOATS = 64 * 1024 };

static const char world_key[] = "/default_pg/0//cpu//0";

static void die(const char *format, ...)
    __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...)
{
    const char *rank = getenv("RANK");
    va_list args;

    fprintf(stderr, "rank %s: ", rank ? rank : "?");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static long number(const char *name)
{
    const char *text = getenv(name);

    if (!text)
        die("%s is not set", name);
    return strtol(text, NULL, 10);
}

static void *library;

static void *function(const char *name)
{
    void *address = dlsym(library, name);

    if (!address)
        die("%s", dlerror());
    return address;
}
#define CALL(name, type, ...)                                              \
    do {                                                                   \
        ncclResult_t(*call_) type = (ncclResult_t(*) type)function(#name); \
        ncclResult_t result_ = call_(__VA_ARGS__);                         \
        if (result_ != ncclSuccess)                                        \
            die("%s: result %d", #name, (int)result_);                     \
    } while (0)

static int connect_store(void)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    int fd;

    if (!host || !port || getaddrinfo(host, port, &hints, &found))
        die("%s:%s cannot be resolved", host ? host : "?", port ? port : "?");
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) < 0)
        die("no connection to the store at %s:%s", host, port);
    freeaddrinfo(found);
    (void)store_validate(fd);
    return fd;
}

static ncclUniqueId exchange_id(int store, long lrank, long world)
{
    ncclUniqueId id;
    size_t bytes = 0;
    char members[32], *text;

    snprintf(members, sizeof members, "0-%ld", world - 1);
    store_set(store, "/crystal/group/0", members, strlen(members));
    if (lrank == 0) {
        CALL(ncclGetUniqueId, (ncclUniqueId *), &id);
        store_set(store, world_key, &id, sizeof id);
        return id;
    }
    text = store_wait_get(store, world_key, &bytes);
    if (!text || bytes != sizeof id)
        die("the store gave %zu bytes for %s", bytes, world_key);
    memcpy(&id, text, sizeof id);
    free(text);
    return id;
}

static void wait_for(ncclStream_t stream)
{
    crystal_event_t event;

    CALL(crystal_event_create, (crystal_event_t *), &event);
    CALL(crystal_event_record, (crystal_event_t, ncclStream_t), event, stream);
    CALL(crystal_event_synchronize, (crystal_event_t), event);
    CALL(crystal_event_destroy, (crystal_event_t), event);
}

static void all_reduce(void *buffer, size_t count, ncclDataType_t dtype,
                       ncclComm_t comm, ncclStream_t stream)
{
    CALL(ncclAllReduce,
         (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
          ncclStream_t),
         buffer, buffer, count, dtype, ncclSum, comm, stream);
}

static void train(ncclComm_t comm, ncclStream_t stream, long world)
{
    void (*hint)(void) = (void (*)(void))function("crystal_iteration_hint");
    float *gradients = calloc(FLOATS, sizeof *gradients);

    if (!gradients)
        die("out of memory");
    for (long iteration = 0; iteration < ITERATIONS; iteration++) {
        int64_t sum = 1; /* the same from all: replicas stand for each other */

        all_reduce(gradients, FLOATS, ncclFloat32, comm, stream);
        wait_for(stream);
        all_reduce(&sum, 1, ncclInt64, comm, stream);
        wait_for(stream);
        if (sum != world)
            die("iteration %ld: the sum of all ranks is %lld, want %ld", iteration,
                (long long)sum, world);
        hint();
    }
    free(gradients);
}

int main(int argc, char **argv)
{
    const char *path = getenv(CRYSTAL_ENV_NCCL_LIBRARY);
    long lrank = number("RANK"), world = number("WORLD_SIZE");
    int store = connect_store();
    ncclStream_t stream;
    ncclUniqueId id;
    ncclComm_t comm;

    library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library)
        die("%s: %s", CRYSTAL_ENV_NCCL_LIBRARY, path ? dlerror() : "not set");
    id = exchange_id(store, lrank, world);
    CALL(ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int), &comm, (int)world,
         id, (int)lrank);
    CALL(crystal_stream_create, (ncclStream_t *), &stream);
    train(comm, stream, world);
    CALL(crystal_stream_destroy, (ncclStream_t), stream);
    CALL(ncclCommDestroy, (ncclComm_t), comm);
    (void)close(store);
    if (argc < 2)
        return 0;
    execvp(argv[1], argv + 1);
    die("%s: cannot be run", argv[1]);
}
