/* Steps of two alike halves, an all-reduce of all ranks each, that say by an NVTX range
 * where a step begins, over the NCCL API on host memory.
 *
 * usage: rangeprog STEPS [silent|some|validation]
 *   silent      the range never begins; some: not in rank 1
 *   validation  behind every third step an all-gather, which is no part of its range
 * Environment as in ncclprog.c. Each half ends with an iteration hint, as an
 * optimizer's step does.
 */
#include "config.h"

#include "tests/nvtx_client.h"
#include "tests/programs/nccl_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS 64

static struct group world;
static ncclStream_t stream;

static void half(void)
{
    static float values[ELEMENTS];

    sleep_us(200);
    values[0] = 1;
    OK(AllReduce(values, values, ELEMENTS, ncclFloat32, ncclSum, world.comm, stream));
    OK(stream_synchronize(stream));
    nccl.hint();
}

static void validate(void)
{
    static float own[ELEMENTS];
    float *all = floats(ELEMENTS * world_size);

    OK(AllGather(own, all, ELEMENTS, ncclFloat32, world.comm, stream));
    OK(stream_synchronize(stream));
    free(all);
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 0;
    const char *kind = argc > 2 ? argv[2] : "";

    program_begin(NULL);
    make_group(0, 1, world_size, &world);
    OK(stream_create(&stream));
    (void)nvtx_load();
    for (int step = 0; step < steps; step++) {
        if (strcmp(kind, "silent") != 0 && (strcmp(kind, "some") != 0 || rank != 1))
            (void)nvtx_push("step");
        half();
        half();
        if (strcmp(kind, "validation") == 0 && step % 3 == 2)
            validate();
    }
    OK(CommDestroy(world.comm));
    printf("rank %d done\n", rank);
    return 0;
}
