/* Open MPI's half of tests/bench/mpi; compiled by that script with mpicc. */
#include "tests/bench/pair.h"

#include <mpi.h>

static void send_bytes(char *data, size_t bytes)
{
    MPI_Send(data, (int)bytes, MPI_CHAR, 1 - pair_rank, 0, MPI_COMM_WORLD);
}

static void receive_bytes(char *data, size_t bytes)
{
    MPI_Recv(data, (int)bytes, MPI_CHAR, 1 - pair_rank, 0, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &pair_rank);
    pair_play(send_bytes, receive_bytes);
    MPI_Finalize();
    return 0;
}
