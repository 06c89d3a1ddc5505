/* Times all-reduces of stock NCCL on a GPU whose peers are all virtual; nothing is
 * checked here (rank.c does).
 *
 * usage: time -n N -r RANK -i FILE [-t SECONDS] BYTES...
 * FILE has the unique id (256 digits). For each size, in place and of floats, an
 * all-reduce is repeated for about SECONDS (default 0.2; at least 3 times, at most 200)
 * after one that is not counted. Prints
 *   setup SECONDS             ncclCommInitRank
 *   allreduce BYTES US LEAST  median and least from the call to the stream's end
 *   memory MIB                of the device since before ncclCommInitRank
 */
#include "config.h"

#include "tests/gpu/stock.h"

#include <stdlib.h>
#include <unistd.h>

#define LIMIT_S   25
#define MOST_RUNS 200

static ncclComm_t comm;
static void *stream, *buffer;

static double all_reduce_us(size_t bytes)
{
    double began = stock_seconds();

    alarm(LIMIT_S);
    stock_must(comm,
               (int)stock_nccl.AllReduce(buffer, buffer, bytes / sizeof(float),
                                         ncclFloat32, ncclSum, comm, stream),
               "ncclAllReduce");
    stock_must(comm, stock_cuda.stream_synchronize(stream), "cudaStreamSynchronize");
    return (stock_seconds() - began) * 1e6;
}

static void time_size(size_t bytes, double limit_s)
{
    double us[MOST_RUNS], began;
    int runs = 0;

    (void)all_reduce_us(bytes);
    began = stock_seconds();
    while (runs < 3 || (runs < MOST_RUNS && stock_seconds() < began + limit_s))
        us[runs++] = all_reduce_us(bytes);
    stock_sort(us, (size_t)runs);
    printf("allreduce %zu %.2f %.2f\n", bytes, us[runs / 2], us[0]);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    int option, n = 0, rank = 0;
    double limit_s = 0.2, began;
    size_t most = 0, before;
    ncclUniqueId id;
    FILE *ids = NULL;

    while ((option = getopt(argc, argv, "n:r:i:t:")) != -1)
        switch (option) {
        case 'n':
            n = atoi(optarg);
            break;
        case 'r':
            rank = atoi(optarg);
            break;
        case 'i':
            ids = fopen(optarg, "r");
            break;
        case 't':
            limit_s = atof(optarg);
            break;
        default:
            return 2;
        }
    if (n < 2 || rank < 0 || rank >= n || !ids || optind == argc)
        return 2;
    for (int i = optind; i < argc; i++)
        if (strtoull(argv[i], NULL, 10) > most)
            most = strtoull(argv[i], NULL, 10);
    alarm(LIMIT_S);
    stock_open();
    stock_must(comm, stock_cuda.stream_create(&stream, 1), "cudaStreamCreate");
    stock_must(comm, stock_cuda.malloc(&buffer, most), "cudaMalloc");
    stock_must(comm, stock_cuda.memset(buffer, 0, most), "cudaMemset");
    stock_must(comm, stock_cuda.synchronize(), "cudaDeviceSynchronize");
    stock_id(ids, &id);
    (void)fclose(ids);
    before = stock_memory_free();
    began = stock_seconds();
    stock_must(comm, (int)stock_nccl.CommInitRank(&comm, n, id, rank),
               "ncclCommInitRank");
    printf("setup %.3f\n", stock_seconds() - began);
    for (int i = optind; i < argc; i++)
        time_size(strtoull(argv[i], NULL, 10), limit_s);
    printf("memory %.1f\n", (double)(before - stock_memory_free()) / (1 << 20));
    alarm(LIMIT_S);
    stock_must(comm, (int)stock_nccl.CommDestroy(comm), "ncclCommDestroy");
    return 0;
}
