/* Times collectives of stock NCCL over sizes, as one rank of N of which others may be
 * real processes like this one; nothing is checked here (rank.c does).
 *
 * usage: sizes -n N -r RANK [-d DEVICE] -i FILE [-s] [-c CALL,...] [-k RUNS] BYTES...
 *
 * FILE has the unique id (256 digits); with -s rank 0 makes it and the others wait for
 * it, 20 s. CALLs: allreduce, allgather, reducescatter, broadcast (root 0), alltoall,
 * shift (to the next rank, from the previous); default all. For each call and size
 * (bytes of the larger of its two buffers, floats, out of place) there is one run that
 * is not counted and a number of runs that only depends on the size and RUNS (default
 * 20, less for large sizes), so that every rank makes the same calls. Prints:
 *
 *   setup SECONDS                  of ncclCommInitRank
 *   CALL BYTES MEDIAN LEAST MOST   microseconds from the call to the stream's end
 *   memory MIB                     of the device since before ncclCommInitRank
 */
#include "config.h"

#include "tests/gpu/stock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_S   25
#define RUNS_MOST 200

enum call { ALLREDUCE, ALLGATHER, REDUCESCATTER, BROADCAST, ALLTOALL, SHIFT, CALLS };

static const char *const call_names[CALLS] = {"allreduce", "allgather", "reducescatter",
                                              "broadcast", "alltoall",  "shift"};

static ncclComm_t comm;
static ncclUniqueId id;
static void *stream;
static char *in, *out; /* on the device */
static int n, rank, runs_small = 20;

static void exchange(size_t share)
{
    stock_must(comm, (int)stock_nccl.GroupStart(), "ncclGroupStart");
    for (int r = 0; r < n; r++) {
        size_t at = (size_t)r * share * sizeof(float);

        stock_must(comm,
                   (int)stock_nccl.Send(in + at, share, ncclFloat32, r, comm, stream),
                   "ncclSend");
        stock_must(comm,
                   (int)stock_nccl.Recv(out + at, share, ncclFloat32, r, comm, stream),
                   "ncclRecv");
    }
    stock_must(comm, (int)stock_nccl.GroupEnd(), "ncclGroupEnd");
}

static void shift(size_t count)
{
    stock_must(comm, (int)stock_nccl.GroupStart(), "ncclGroupStart");
    stock_must(
        comm,
        (int)stock_nccl.Send(in, count, ncclFloat32, (rank + 1) % n, comm, stream),
        "ncclSend");
    stock_must(
        comm,
        (int)stock_nccl.Recv(out, count, ncclFloat32, (rank + n - 1) % n, comm, stream),
        "ncclRecv");
    stock_must(comm, (int)stock_nccl.GroupEnd(), "ncclGroupEnd");
}

static void issue(enum call call, size_t bytes)
{
    size_t count = bytes / sizeof(float), share = count / (size_t)n;

    switch (call) {
    case ALLREDUCE:
        stock_must(comm,
                   (int)stock_nccl.AllReduce(in, out, count, ncclFloat32, ncclSum, comm,
                                             stream),
                   "ncclAllReduce");
        break;
    case ALLGATHER:
        stock_must(comm,
                   (int)stock_nccl.AllGather(in, out, share, ncclFloat32, comm, stream),
                   "ncclAllGather");
        break;
    case REDUCESCATTER:
        stock_must(comm,
                   (int)stock_nccl.ReduceScatter(in, out, share, ncclFloat32, ncclSum,
                                                 comm, stream),
                   "ncclReduceScatter");
        break;
    case BROADCAST:
        stock_must(
            comm,
            (int)stock_nccl.Broadcast(in, out, count, ncclFloat32, 0, comm, stream),
            "ncclBroadcast");
        break;
    case ALLTOALL:
        exchange(share);
        break;
    default:
        shift(count);
    }
}

static double run_us(enum call call, size_t bytes)
{
    double began = stock_seconds();

    (void)alarm(LIMIT_S);
    issue(call, bytes);
    stock_must(comm, stock_cuda.stream_synchronize(stream), "cudaStreamSynchronize");
    return (stock_seconds() - began) * 1e6;
}

static void time_size(enum call call, size_t bytes)
{
    double us[RUNS_MOST] = {0};
    int runs = bytes <= 1 << 20    ? runs_small
               : bytes <= 64 << 20 ? (runs_small + 1) / 2
                                   : (runs_small + 3) / 4;

    (void)run_us(call, bytes);
    for (int i = 0; i < runs; i++)
        us[i] = run_us(call, bytes);
    stock_sort(us, (size_t)runs);
    printf("%s %zu %.2f %.2f %.2f\n", call_names[call], bytes, us[runs / 2], us[0],
           us[runs - 1]);
    (void)fflush(stdout);
}

static int is_asked(const char *calls, enum call call)
{
    size_t length = strlen(call_names[call]);
    const char *at = calls;

    while (at && *at) {
        if (strncmp(at, call_names[call], length) == 0 &&
            (!at[length] || at[length] == ','))
            return 1;
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return !calls;
}

static void run(const char *calls, char **sizes, int count)
{
    size_t before, most = 0;
    double began;

    for (int i = 0; i < count; i++)
        if (strtoull(sizes[i], NULL, 10) > most)
            most = strtoull(sizes[i], NULL, 10);
    stock_must(comm, stock_cuda.stream_create(&stream, 1), "cudaStreamCreate");
    stock_must(comm, stock_cuda.malloc((void **)&in, most), "cudaMalloc");
    stock_must(comm, stock_cuda.malloc((void **)&out, most), "cudaMalloc");
    stock_must(comm, stock_cuda.memset(in, 0, most), "cudaMemset");
    stock_must(comm, stock_cuda.synchronize(), "cudaDeviceSynchronize");
    before = stock_memory_free();
    began = stock_seconds();
    stock_must(comm, (int)stock_nccl.CommInitRank(&comm, n, id, rank),
               "ncclCommInitRank");
    printf("setup %.3f\n", stock_seconds() - began);
    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < count && is_asked(calls, (enum call)call); i++)
            time_size((enum call)call, strtoull(sizes[i], NULL, 10));
    printf("memory %.1f\n", ((double)before - (double)stock_memory_free()) / (1 << 20));
    (void)alarm(LIMIT_S);
    stock_must(comm, (int)stock_nccl.CommDestroy(comm), "ncclCommDestroy");
}

int main(int argc, char **argv)
{
    const char *calls = NULL, *path = NULL;
    int option, device = 0, is_shared = 0;

    while ((option = getopt(argc, argv, "n:r:d:i:sc:k:")) != -1)
        switch (option) {
        case 'n':
            n = atoi(optarg);
            break;
        case 'r':
            rank = atoi(optarg);
            break;
        case 'd':
            device = atoi(optarg);
            break;
        case 'i':
            path = optarg;
            break;
        case 's':
            is_shared = 1;
            break;
        case 'c':
            calls = optarg;
            break;
        case 'k':
            runs_small = atoi(optarg);
            break;
        default:
            return 2;
        }
    if (n < 2 || rank < 0 || rank >= n || !path || optind == argc || runs_small < 1 ||
        runs_small > RUNS_MOST)
        return 2;
    (void)alarm(LIMIT_S);
    stock_open();
    stock_must(comm, stock_cuda.set_device(device), "cudaSetDevice");
    if (is_shared && rank == 0) {
        stock_must(comm, (int)stock_nccl.GetUniqueId(&id), "ncclGetUniqueId");
        stock_id_write(path, &id);
    }
    stock_id_wait(path, &id);
    run(calls, argv + optind, argc - optind);
    return 0;
}
