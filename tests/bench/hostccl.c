/* What hostccl costs: communicator set-up as one rank of 8192, the others played by the
 * bootstrap proxy; and the throughput of an all-reduce over 4 local ranks.
 */
#include "config.h"

#include "tests/hostccl/server.h"

#define N     8192
#define CRANK 4097
#define RANKS 4
#define ELTS  (8U << 20)
#define TIMES 5

static ncclUniqueId world;

static void set_up(int rank, int n)
{
    ncclComm_t comm = NULL;
    uint64_t begin = ranks_now_ns();

    (void)rank;
    (void)n;
    RANK_CHECK(ncclCommInitRank(&comm, N, world, CRANK) == ncclSuccess);
    if (!comm)
        return;
    printf("setup.8192_s %.3f s\n", (double)(ranks_now_ns() - begin) / 1e9);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void all_reduce(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    float *data = calloc(ELTS, sizeof *data);
    uint64_t begin = 0;

    for (int i = 0; i <= TIMES; i++) {
        if (i == 1)
            begin = ranks_now_ns(); /* the first one warms up */
        RANK_CHECK(ncclAllReduce(data, data, ELTS, ncclFloat32, ncclSum, comm, NULL) ==
                   ncclSuccess);
        RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    }
    if (rank == 0)
        printf("hostccl.allreduce_gbs %.2f GB/s\n",
               (double)ELTS * sizeof *data * TIMES / (double)(ranks_now_ns() - begin));
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
    free(data);
}

int main(void)
{
    struct server server;
    int failed;

    (void)setenv("CRYSTAL_BUILDDIR", ".", 0);
    (void)setenv(CRYSTAL_ENV_LRANK, "4097", 1);
    if (server_start(&server, N, 1, "4097"))
        return 1;
    world = server.world;
    failed = ranks_run(1, set_up);
    failed += server_stop(&server) != 0;
    (void)unsetenv(CRYSTAL_ENV_LRANK);
    failed += ranks_run(RANKS, all_reduce);
    return failed != 0;
}
