/* One case of correct or faulty communication over the NCCL API on host memory.
 *
 * usage: caseprog CASE; ranks as in ncclprog.c. What a case does stands at its
 * function; the faulty ones are never to end by themselves.
 */
#include "config.h"

#include "tests/programs/nccl_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct group world;
static ncclStream_t stream;

static float sum_of_ranks(ncclComm_t comm)
{
    float value = (float)rank;

    OK(AllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, stream));
    OK(stream_synchronize(stream));
    return value;
}

/* --- children of communicators --- */

/* Odd and even ranks, the last first; then without the last of each; rank 0 of the
 * second split takes no part. Prints what each sums. */
static void split(void)
{
    ncclComm_t half, shrunk, rest;
    int size, crank, last = 0;

    OK(CommSplit(world.comm, rank % 2, -rank, &half, NULL));
    OK(CommCount(half, &size));
    OK(CommUserRank(half, &crank));
    printf("rank %d: %d of %d, sum %.0f\n", rank, crank, size,
           (double)sum_of_ranks(half));
    if (crank != last) {
        OK(CommShrink(half, &last, 1, &shrunk, NULL, 0));
        OK(CommCount(shrunk, &size));
        OK(CommUserRank(shrunk, &crank));
        printf("rank %d: shrunk %d of %d, sum %.0f\n", rank, crank, size,
               (double)sum_of_ranks(shrunk));
        OK(CommDestroy(shrunk));
    }
    OK(CommSplit(world.comm, rank ? 5 : NCCL_SPLIT_NOCOLOR, 0, &rest, NULL));
    if (rank)
        printf("rank %d: rest %.0f\n", rank, (double)sum_of_ranks(rest));
    else
        printf("rank 0: no rest: %d\n", rest == NULL);
    if (rest)
        OK(CommDestroy(rest));
    OK(CommDestroy(half));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"split", split},
};

int main(int argc, char **argv)
{
    program_begin(NULL);
    make_group(0, 1, world_size, &world);
    OK(stream_create(&stream));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            OK(CommDestroy(world.comm));
            return 0;
        }
    fprintf(stderr, "usage: caseprog CASE\n");
    return 2;
}
