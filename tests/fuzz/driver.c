/* A small mutating driver for the fuzz targets: LLVMFuzzerTestOneInput without
 * libFuzzer.
 *
 * usage: TARGET [-t SECONDS] [-s SEED] [FILE...]
 * Runs each FILE (seed) as it is, then random mutations of the seeds until the time is
 * over (default 3 s). Build with sanitizers; a crash is the finding. Deterministic for
 * a given seed and count; the seed is printed so that a finding can be repeated.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INPUT_BYTES_MAX 65536
#define SEED_MAX        64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;

static uint64_t next_random(void) /* xorshift64 */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t mutate(uint8_t *data, size_t size)
{
    static const uint64_t edges[] = {0,          1,          0x7f,       0x80,
                                     0xff,       0xffff,     0x7fffffff, 0x80000000,
                                     0xffffffff, UINT64_MAX, 1ULL << 40, 64};
    unsigned changes = 1 + (unsigned)(next_random() % 8);

    while (changes--) {
        size_t at = size ? next_random() % size : 0;

        switch (next_random() % 6) {
        case 0: /* one bit */
            if (size)
                data[at] ^= (uint8_t)(1U << (next_random() % 8));
            break;
        case 1: /* one byte */
            if (size)
                data[at] = (uint8_t)next_random();
            break;
        case 2: { /* an integer at the edge of something */
            uint64_t edge = edges[next_random() % (sizeof edges / sizeof edges[0])];
            size_t width = 1ULL << (next_random() % 4);

            if (size >= width && at <= size - width)
                memcpy(data + at, &edge, width);
            break;
        }
        case 3: /* cut */
            size = at;
            break;
        case 4: /* append */
            while (size < INPUT_BYTES_MAX && next_random() % 16)
                data[size++] = (uint8_t)next_random();
            break;
        default: /* double a piece */
            if (size > 1) {
                size_t bytes = 1 + next_random() % (size - at);

                if (size + bytes <= INPUT_BYTES_MAX) {
                    memmove(data + at + bytes, data + at, size - at);
                    size += bytes;
                }
            }
        }
    }
    return size;
}

struct seed {
    uint8_t *data;
    size_t size;
};

static struct seed read_seed(const char *path)
{
    struct seed seed = {calloc(1, INPUT_BYTES_MAX), 0};
    FILE *file = fopen(path, "rb");

    if (!file || !seed.data) {
        perror(path);
        exit(1);
    }
    seed.size = fread(seed.data, 1, INPUT_BYTES_MAX, file);
    fclose(file);
    return seed;
}

int main(int argc, char **argv)
{
    struct seed seeds[SEED_MAX] = {{NULL, 0}};
    size_t seed_count = 0;
    double seconds = 3;
    uint64_t runs = 0;
    uint8_t *input = malloc(INPUT_BYTES_MAX);
    struct timespec start, now;
    int option;

    state = (uint64_t)time(NULL) * 2654435761U + 1;
    while ((option = getopt(argc, argv, "t:s:")) != -1)
        if (option == 't')
            seconds = strtod(optarg, NULL);
        else if (option == 's')
            state = strtoull(optarg, NULL, 0) | 1;
        else
            return 2;
    fprintf(stderr, "%s: seed %llu\n", argv[0], (unsigned long long)state);
    for (int i = optind; i < argc && seed_count < SEED_MAX; i++)
        seeds[seed_count++] = read_seed(argv[i]);
    if (!seed_count)
        seeds[seed_count++] = (struct seed){calloc(1, INPUT_BYTES_MAX), 0};
    for (size_t i = 0; i < seed_count; i++)
        (void)LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].size);
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        const struct seed *seed = &seeds[next_random() % seed_count];
        uint8_t *exact;
        size_t size;

        memcpy(input, seed->data, INPUT_BYTES_MAX);
        size = mutate(input, seed->size);
        exact = malloc(size ? size : 1); /* so that a sanitizer sees every overrun */
        if (!exact)
            return 1;
        memcpy(exact, input, size);
        (void)LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        runs++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) +
                 (double)(now.tv_nsec - start.tv_nsec) * 1e-9 <
             seconds);
    for (size_t i = 0; i < seed_count; i++)
        free(seeds[i].data);
    free(input);
    printf("%s: %llu runs\n", argv[0], (unsigned long long)runs);
    return 0;
}
