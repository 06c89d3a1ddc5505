#include "config.h"

#include "tests/programs/nccl_program.h"

#include "runtime/env.h"

#include "tests/unit/store_client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct nccl_api nccl;
int rank, world_size;

static const char *id_dir;
static int store_fd = -1;

void die(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    exit(1);
}

void ok(ncclResult_t result, const char *what)
{
    if (result == ncclSuccess)
        return;
    fprintf(stderr, "rank %d: %.40s: %s: %s\n", rank, what, nccl.GetErrorString(result),
            nccl.GetLastError(NULL));
    exit(1);
}

static void *find(void *handle, const char *name)
{
    void *function = dlsym(handle, name);

    if (!function)
        die(dlerror());
    return function;
}

static void load(void)
{
    const char *path = getenv(CRYSTAL_ENV_NCCL_LIBRARY);
    void *handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

    if (!handle)
        die(path ? dlerror() : CRYSTAL_ENV_NCCL_LIBRARY " is not set");
#define NCCL_API(type, name, proto, args) \
    *(void **)&nccl.name = find(handle, "nccl" #name);
#include "runtime/nccl_api.def"
#undef NCCL_API
    *(void **)&nccl.stream_create = find(handle, "crystal_stream_create");
    *(void **)&nccl.stream_synchronize = find(handle, "crystal_stream_synchronize");
    *(void **)&nccl.stream_wait_event = find(handle, "crystal_stream_wait_event");
    *(void **)&nccl.event_create = find(handle, "crystal_event_create");
    *(void **)&nccl.event_destroy = find(handle, "crystal_event_destroy");
    *(void **)&nccl.event_record = find(handle, "crystal_event_record");
    *(void **)&nccl.event_synchronize = find(handle, "crystal_event_synchronize");
    *(void **)&nccl.event_query = find(handle, "crystal_event_query");
    *(void **)&nccl.hint = find(handle, "crystal_iteration_hint");
}

/* --- groups --- */

static void id_through_store(int name, const char *members, int crank, ncclUniqueId *id)
{
    char key[64], *text;
    size_t bytes = 0;

    (void)snprintf(key, sizeof key, "/crystal/group/%d", name);
    store_set(store_fd, key, members, strlen(members));
    (void)snprintf(key, sizeof key, "/default_pg/%d//cpu//0", name);
    if (crank == 0) {
        OK(GetUniqueId(id));
        store_set(store_fd, key, id, sizeof *id);
        return;
    }
    text = store_wait_get(store_fd, key, &bytes);
    if (!text || bytes != sizeof *id)
        die("no unique id in the store");
    memcpy(id, text, sizeof *id);
    free(text);
}

static void id_through_files(int name, int crank, ncclUniqueId *id)
{
    const struct timespec pause = {0, 10000000};
    char path[512], temporary[600];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/id.%d", id_dir, name);
    if (crank == 0) {
        OK(GetUniqueId(id));
        (void)snprintf(temporary, sizeof temporary, "%s.tmp", path);
        file = fopen(temporary, "w");
        if (!file || fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) != 0 ||
            rename(temporary, path) != 0)
            die("cannot write an id file");
        return;
    }
    for (int i = 0; i < 3000; i++) {
        file = fopen(path, "r");
        if (file && fread(id, sizeof *id, 1, file) == 1) {
            (void)fclose(file);
            return;
        }
        (void)nanosleep(&pause, NULL);
    }
    die("no id file after 30 s");
}

void make_group(int first, int stride, int size, struct group *ret)
{
    static int next_name;
    int name = next_name++;
    char members[4096];
    ncclUniqueId id;
    size_t used = 0;

    if (rank < first || (rank - first) % stride || (rank - first) / stride >= size)
        return; /* counted, but not ours */
    ret->size = size;
    ret->crank = (rank - first) / stride;
    for (int i = 0; i < size && used < sizeof members - 16; i++)
        used += (size_t)snprintf(members + used, sizeof members - used, "%s%d",
                                 i ? "," : "", first + i * stride);
    if (stride == 1 && size > 1)
        (void)snprintf(members, sizeof members, "%d-%d", first, first + size - 1);
    if (store_fd >= 0)
        id_through_store(name, members, ret->crank, &id);
    else if (id_dir)
        id_through_files(name, ret->crank, &id);
    else
        OK(GetUniqueId(&id));
    OK(CommInitRank(&ret->comm, size, id, ret->crank));
}

/* Says which process this is, as PyTorch's clients do. */
static void ping(void)
{
    uint8_t request[5] = {CRYSTAL_STORE_PING};
    uint32_t pid = (uint32_t)getpid();

    memcpy(request + 1, &pid, sizeof pid);
    if (send_whole(store_fd, request, sizeof request) < 0 ||
        receive_whole(store_fd, &pid, sizeof pid) < 0)
        die("the store does not answer");
}

void wait_for_key(const char *key)
{
    store_keys(store_fd, CRYSTAL_STORE_WAIT, &key, 1);
    if (reply_byte(store_fd) < 0)
        die("the store has gone");
}

float *floats(int count)
{
    float *memory = calloc((size_t)count, sizeof *memory);

    if (!memory)
        die("out of memory");
    return memory;
}

static int number(const char *name, int fallback)
{
    const char *text = getenv(name);

    return text ? atoi(text) : fallback;
}

uint64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000U + (uint64_t)now.tv_nsec / 1000U;
}

void sleep_us(double us)
{
    struct timespec pause = {(time_t)(us / 1e6),
                             (long)((uint64_t)(us * 1e3) % 1000000000)};

    if (us > 0)
        (void)nanosleep(&pause, NULL);
}

void program_begin(const char *ids)
{
    const char *port = getenv("MASTER_PORT");

    id_dir = ids;
    rank = number("RANK", 0);
    world_size = number("WORLD_SIZE", 1);
    load();
    if (port && !id_dir) {
        store_fd = store_connect_host(getenv("MASTER_ADDR"), (uint16_t)atoi(port));
        if (store_fd < 0)
            die("cannot reach the store at MASTER_ADDR and MASTER_PORT");
        ping();
    }
}
