/* Ping-pong between two processes, whatever carries it. */
#ifndef CRYSTAL_TESTS_PAIR_H
#define CRYSTAL_TESTS_PAIR_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int pair_rank; /* 0 or 1 */

static inline uint64_t pair_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail */
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

/* The shortest way of `rounds` times `turns` turns, in ns. */
static inline double pair_way_ns(char *data, size_t bytes, int rounds, int turns,
                                 void (*send)(char *data, size_t bytes),
                                 void (*receive)(char *data, size_t bytes))
{
    double best = 1e30;

    for (int round = 0; round < rounds; round++) {
        uint64_t begin = pair_now_ns();
        double ns;

        for (int turn = 0; turn < turns; turn++) {
            if (pair_rank == 0)
                send(data, bytes);
            receive(data, bytes);
            if (pair_rank == 1)
                send(data, bytes);
        }
        ns = (double)(pair_now_ns() - begin) / turns / 2;
        best = ns < best ? ns : best;
    }
    return best;
}

/* Rank 0 prints "bandwidth NS" (64 MiB) and "latency NS" (8 bytes). */
static inline void pair_play(void (*send)(char *data, size_t bytes),
                             void (*receive)(char *data, size_t bytes))
{
    const size_t bytes = (size_t)64 << 20;
    char *data = malloc(bytes);
    double way;

    if (!data)
        exit(1);
    memset(data, 1, bytes);
    way = pair_way_ns(data, bytes, 6, 1, send, receive);
    if (pair_rank == 0)
        printf("bandwidth %.0f\n", way);
    way = pair_way_ns(data, 8, 100, 20, send, receive);
    if (pair_rank == 0)
        printf("latency %.0f\n", way);
    free(data);
}

#endif
