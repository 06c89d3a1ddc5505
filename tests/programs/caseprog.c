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

/* --- what others contribute --- */

/* Rank r puts r + 1 into a sum, 7 into rank 1's broadcast; rank 3 sends 30 to rank 0.
 */
static void values(void)
{
    int64_t sum = rank + 1, told = rank == 1 ? 7 : -1;
    float got = 30;

    OK(AllReduce(&sum, &sum, 1, ncclInt64, ncclSum, world.comm, stream));
    OK(Broadcast(&told, &told, 1, ncclInt64, 1, world.comm, stream));
    if (rank == 3)
        OK(Send(&got, 1, ncclFloat32, 0, world.comm, stream));
    else if (rank == 0)
        OK(Recv(&got, 1, ncclFloat32, 3, world.comm, stream));
    OK(stream_synchronize(stream));
    printf("rank %d: sum %lld, told %lld, got %g\n", rank, (long long)sum,
           (long long)told, (double)got);
}

/* --- calls that do not fit: each side goes on as if all were well --- */

static float data[64];

static void all_reduce(size_t count, ncclDataType_t type)
{
    OK(AllReduce(data, data, count, type, ncclSum, world.comm, stream));
    OK(stream_synchronize(stream));
}

static void all_gather(void)
{
    float all[64];

    OK(AllGather(data, all, 4, ncclFloat32, world.comm, stream));
    OK(stream_synchronize(stream));
}

/* Rank 2 does the second before the first. */
static void order(void)
{
    if (rank == 2)
        all_gather();
    all_reduce(4, ncclFloat32);
    if (rank != 2)
        all_gather();
}

/* pytorch#97191: rank 0 reduces twice the elements. */
static void count(void)
{
    all_reduce(4, ncclFloat32);
    all_reduce(rank == 0 ? 32 : 16, ncclFloat32);
}

static void type(void)
{
    all_reduce(16, rank == 3 ? ncclBfloat16 : ncclFloat32);
}

static void root(void)
{
    OK(Broadcast(data, data, 8, ncclFloat32, rank == 1 ? 1 : 0, world.comm, stream));
    OK(stream_synchronize(stream));
}

/* Rank 3 thinks that the group is one rank larger than the others do. */
static void membership(void)
{
    struct group group = {0};

    make_group(0, 1, rank == 3 ? 4 : 3, &group);
    if (group.comm)
        (void)sum_of_ranks(group.comm);
}

/* Megatron-LM#1444: a pipeline stage without MoE layers, ranks 2 and 3, does not take
 * part in the all-reduce of the load-balancing loss. */
static void moe_stage(void)
{
    all_reduce(8, ncclFloat32); /* gradients */
    if (rank < 2)
        all_reduce(1, ncclFloat32); /* the loss of the MoE layers */
    all_reduce(2, ncclFloat32);     /* gradient norm and its flag */
}

/* nccl#1911: two ranks are one collective ahead, all calls look alike. */
static void ahead(void)
{
    for (int i = 0; i < (rank == 1 || rank == 3 ? 6 : 5); i++)
        all_reduce(16, ncclFloat32);
}

/* Megatron-LM#5100: with sequences of variable length each pipeline stage tells the
 * next one the size before the data; the third stage of four has the two in the other
 * order. */
static void variable_length(void)
{
    int64_t size[3] = {2, 8, 4};

    if (rank > 0) {
        OK(Recv(rank == 2 ? (void *)data : size, rank == 2 ? 64 : 3,
                rank == 2 ? ncclFloat32 : ncclInt64, rank - 1, world.comm, stream));
        OK(Recv(rank == 2 ? (void *)size : data, rank == 2 ? 3 : 64,
                rank == 2 ? ncclInt64 : ncclFloat32, rank - 1, world.comm, stream));
        OK(stream_synchronize(stream));
    }
    if (rank < world_size - 1) {
        OK(Send(size, 3, ncclInt64, rank + 1, world.comm, stream));
        OK(Send(data, 64, ncclFloat32, rank + 1, world.comm, stream));
        OK(stream_synchronize(stream));
    }
}

/* Megatron-LM#1877: an all-to-all of which one rank receives nothing; it leaves the
 * whole exchange out. */
static void empty_output(void)
{
    float in[64];

    if (rank != 2) {
        OK(GroupStart());
        for (int peer = 0; peer < world_size; peer++) {
            if (peer != 2)
                OK(Send(data, 4, ncclFloat32, peer, world.comm, stream));
            OK(Recv(in + 4 * peer, 4, ncclFloat32, peer, world.comm, stream));
        }
        OK(GroupEnd());
        OK(stream_synchronize(stream));
    }
    all_reduce(4, ncclFloat32);
}

/* --- waits that never end --- */

/* Everybody receives from the one before, then sends. */
static void cycle(void)
{
    OK(Recv(data, 4, ncclFloat32, (rank + world_size - 1) % world_size, world.comm,
            stream));
    OK(stream_synchronize(stream));
    OK(Send(data, 4, ncclFloat32, (rank + 1) % world_size, world.comm, stream));
    OK(stream_synchronize(stream));
}

/* A send that nobody receives, and a program that ends well in spite of it. */
static void unreceived(void)
{
    if (rank == 0)
        OK(Send(data, 4, ncclFloat32, 1, world.comm, stream));
    OK(stream_synchronize(stream));
    all_reduce(4, ncclFloat32);
    if (rank == 1) /* the wrong one */
        OK(Recv(data, 4, ncclFloat32, 2, world.comm, stream));
    OK(stream_synchronize(stream));
}

static void early(void)
{
    all_reduce(4, ncclFloat32);
    if (rank == 1)
        exit(0);
    all_reduce(4, ncclFloat32);
}

static void hang(void)
{
    all_reduce(4, ncclFloat32);
    if (rank == 1)
        sleep_us(600e6);
    all_reduce(4, ncclFloat32);
}

/* Rank 1 works for three seconds, at first with its processor: this ends well. */
static void slow(void)
{
    all_reduce(4, ncclFloat32);
    if (rank == 1) {
        for (uint64_t end = now_us() + 1500000; now_us() < end;)
            ;
        sleep_us(1.5e6);
    }
    all_reduce(4, ncclFloat32);
}

/* Rank 2 waits for a key that rank 1 never sets. */
static void key(void)
{
    if (rank == 2)
        wait_for_key("/ready/1");
    all_reduce(4, ncclFloat32);
}

/* Rank 0 polls for a message that nobody sends. */
static void poll(void)
{
    crystal_event_t event;

    if (rank == 0) {
        OK(event_create(&event));
        OK(Recv(data, 4, ncclFloat32, 3, world.comm, stream));
        OK(event_record(event, stream));
        while (nccl.event_query(event) == ncclInProgress)
            sleep_us(1000);
    }
    all_reduce(4, ncclFloat32);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"split", split},
    {"values", values},
    {"order", order},
    {"count", count},
    {"type", type},
    {"root", root},
    {"membership", membership},
    {"moe-stage", moe_stage},
    {"ahead", ahead},
    {"variable-length", variable_length},
    {"empty-output", empty_output},
    {"cycle", cycle},
    {"unreceived", unreceived},
    {"early", early},
    {"hang", hang},
    {"slow", slow},
    {"key", key},
    {"poll", poll},
};

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "never") == 0 && getenv("RANK") &&
        strcmp(getenv("RANK"), "1") == 0)
        return 0; /* without a single call */
    program_begin(NULL);
    make_group(0, 1, world_size, &world);
    OK(stream_create(&stream));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            OK(CommDestroy(world.comm));
            return 0;
        }
    if (argc > 1 && strcmp(argv[1], "never") == 0) {
        all_reduce(4, ncclFloat32);
        return 0;
    }
    fprintf(stderr, "usage: caseprog CASE\n");
    return 2;
}
