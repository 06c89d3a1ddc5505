/* reduce.bf16.share, reduce.fp32.share: the coordinator's all-reduce of 64 live ranks
 * with 16 MiB each. Bytes that it must read (all contributions) and write (one result)
 * a second of one processor, as a share of what memcpy reads and writes a second on
 * memory of the same size. Both in turn, the fastest of several rounds each, in
 * processor time, of all threads together. reduce.TYPE.wall_gbs: the same bytes a
 * second of the clock, on as many processors as there are.
 */
#include "config.h"

#include "runtime/collective.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS  64U
#define BYTES  (16U << 20)
#define ROUNDS 7

static uint64_t ns_of(clockid_t clock)
{
    struct timespec t;

    (void)clock_gettime(clock, &t); /* cannot fail */
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static struct crystal_blob *contributions[RANKS], *elsewhere; /* BYTES each */

/* Nanoseconds of copying every contribution to a place of its size. */
static uint64_t copy_ns(void)
{
    uint64_t begin = ns_of(CLOCK_PROCESS_CPUTIME_ID);

    for (uint32_t i = 0; i < RANKS; i++) {
        memcpy(elsewhere->data, contributions[i]->data, BYTES);
        __asm__ volatile("" ::: "memory"); /* it is read */
    }
    return ns_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
}

static uint64_t reduce_ns(unsigned dtype, uint64_t element, uint64_t *ret_wall_ns)
{
    struct crystal_msg_op op = {.func = CRYSTAL_FUNC_ALLREDUCE,
                                .dtype = (uint8_t)dtype,
                                .redop = ncclSum,
                                .count = BYTES / element};
    struct crystal_part parts[RANKS] = {0};
    uint32_t part_of[RANKS];
    struct crystal_collective all = {&op, RANKS, part_of, parts, RANKS};
    struct crystal_slice result;
    struct crystal_error err = {0};
    uint64_t begin, wall, ns;

    for (uint32_t i = 0; i < RANKS; i++) {
        part_of[i] = i;
        parts[i].send.at = contributions[i]->data;
        parts[i].send.bytes = BYTES;
        parts[i].times = 1;
        parts[i].lrank = i;
    }
    wall = ns_of(CLOCK_MONOTONIC);
    begin = ns_of(CLOCK_PROCESS_CPUTIME_ID);
    if (crystal_collective_result(&all, 0, &result, &err)) {
        fprintf(stderr, "bench reduce: %s\n", crystal_error_text(&err));
        exit(1);
    }
    ns = ns_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
    *ret_wall_ns = ns_of(CLOCK_MONOTONIC) - wall;
    crystal_blob_unref(result.blob);
    return ns;
}

static cpu_set_t all_processors;

/* Of this process from now on: all of them, or one. */
static void use_processors(int all)
{
    cpu_set_t set;
    int one = 0;

    while (!CPU_ISSET(one, &all_processors))
        one++;
    CPU_ZERO(&set);
    CPU_SET(one, &set);
    if (sched_setaffinity(0, sizeof set, all ? &all_processors : &set) < 0) {
        perror("bench reduce");
        exit(1);
    }
}

static void compare(const char *name, unsigned dtype, uint64_t element)
{
    uint64_t copy = UINT64_MAX, reduce = UINT64_MAX, wall = UINT64_MAX, w;
    double copied, reduced;

    use_processors(0);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t c = copy_ns(), r = reduce_ns(dtype, element, &w);

        copy = c < copy ? c : copy;
        reduce = r < reduce ? r : reduce;
    }
    use_processors(1);
    for (int i = 0; i < ROUNDS; i++) {
        (void)reduce_ns(dtype, element, &w);
        wall = w < wall ? w : wall;
    }
    copied = 2.0 * RANKS * BYTES / (double)copy;
    reduced = (RANKS + 1.0) * BYTES / (double)reduce;
    printf("reduce.%s.share %.2f of_memcpy\n", name, reduced / copied);
    printf("reduce.%s.gbs %.1f GB/s\n", name, reduced);
    printf("reduce.%s.wall_gbs %.1f GB/s\n", name,
           (RANKS + 1.0) * BYTES / (double)wall);
}

static struct crystal_blob *filled_blob(void)
{
    struct crystal_blob *blob = crystal_blob_create(BYTES);

    if (!blob) {
        fprintf(stderr, "bench reduce: out of memory\n");
        exit(1);
    }
    memset(blob->data, 0x3c, BYTES); /* its memory is there */
    return blob;
}

int main(void)
{
    if (sched_getaffinity(0, sizeof all_processors, &all_processors) < 0) {
        perror("bench reduce");
        return 1;
    }
    for (uint32_t i = 0; i < RANKS; i++)
        contributions[i] = filled_blob();
    elsewhere = filled_blob();
    compare("bf16", ncclBfloat16, 2);
    compare("fp32", ncclFloat32, 4);
    for (uint32_t i = 0; i < RANKS; i++)
        crystal_blob_unref(contributions[i]);
    crystal_blob_unref(elsewhere);
    return 0;
}
