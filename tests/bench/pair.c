/* hostccl's half of tests/bench/mpi: two processes play ping-pong with 64 MiB and with
 * 8 bytes, unpaced, through sends and receives. Prints the shortest time of one way in
 * ns.
 */
#include "config.h"

#include "tests/bench/pair.h"
#include "tests/hostccl/ranks.h"

static ncclComm_t comm;

static void send_bytes(char *data, size_t bytes)
{
    RANK_CHECK(ncclSend(data, bytes, ncclInt8, 1 - pair_rank, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
}

static void receive_bytes(char *data, size_t bytes)
{
    RANK_CHECK(ncclRecv(data, bytes, ncclInt8, 1 - pair_rank, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
}

static void play(int rank, int n)
{
    comm = ranks_comm(0, rank, n);
    pair_rank = rank;
    pair_play(send_bytes, receive_bytes);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

int main(void)
{
    return ranks_run(2, play);
}
