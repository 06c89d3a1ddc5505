/* A training program whose computation is sleep: the communication of gpt.py on the
 * NCCL API, cheap enough for the CPU that all ranks of a small job can run for real on
 * one machine, as the truth that an emulated run is compared with.
 *
 * usage: timed_train --layout dp|1f1b|alltoall|calls [--iterations N] [--compute-us U]
 *                    [--elements E] [--microbatches M] [--pp P] [--ep P]
 *                    [--slow RANK=FACTOR[,...]]
 *
 * Layouts (E elements of float32 each):
 *   dp        data parallel over the world: U of forward, then four buckets of
 * backward, U / 2 each, whose all-reduce of E/4 flies while the next one is computed
 *   1f1b      P stages, numbered fastest; stage p takes U (1 + p % 3 / 6) for the
 * forward pass of a microbatch and twice that for the backward one; activations of E
 *             elements; then the gradient, E elements in two buckets, over the replicas
 *   alltoall  experts in groups of P ranks, world / P apart; two layers; from rank a to
 * b go E/P (1 + (3 a + 5 b + layer) % 4 / 2) elements, b computes as long as what it
 * got asks for, and all goes back; then an all-reduce of the world, one element, waited
 * for
 *   calls     the calls that the library makes of sends and receives, E elements from
 * or to each rank, each waited for: an all-to-all of the world behind U, twice, with an
 * all-reduce between; a gather and a scatter with the first rank as root, then with the
 * last one, each behind U / 2
 *
 * Prints per iteration "rank R iteration I ms T", and at the end "rank R behind I: T
 * ms, computes C ms, CPU U ms, queues Q ms" of the time after the first I iterations:
 * the real time, the sleeps in it, what it cost this process, and how long its threads,
 * summed up, were ready to run and other processes had the CPUs.
 */
#include "config.h"

#include "tests/programs/nccl_program.h"

#include <dirent.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define BUCKETS 4
#define LAYERS  2
#define WARM_UP 2 /* iterations that the last line leaves out */

static struct options {
    const char *layout, *slow;
    int iterations, compute_us, elements, microbatches, pp, ep;
} options = {.layout = "dp",
             .slow = "",
             .iterations = 50,
             .compute_us = 20000,
             .elements = 65536,
             .microbatches = 8,
             .pp = 1,
             .ep = 1};

static struct group world, replicas, pipeline, experts;
static ncclStream_t main_stream, comm_stream;
static double factor = 1; /* of computation */

static double computed_us;

static void compute(double us)
{
    computed_us += us * factor;
    sleep_us(us * factor);
}

/* A buffer of at least so many elements, alike in every iteration as with a caching
 * allocator. */
static float *buffer(int slot, int count)
{
    static struct {
        float *memory;
        int count;
    } slots[16];

    if (slots[slot].count < count) {
        free(slots[slot].memory);
        slots[slot].memory = floats(count);
        slots[slot].count = count;
    }
    return slots[slot].memory;
}

static void all_reduce(int slot, int count, const struct group *group, ncclStream_t on)
{
    float *values = buffer(slot, count);

    OK(AllReduce(values, values, (size_t)count, ncclFloat32, ncclSum, group->comm, on));
}

/* --- data parallel --- */

static void iterate_dp(void)
{
    compute(options.compute_us);
    for (int b = 0; b < BUCKETS; b++) {
        compute(options.compute_us / 2.0);
        all_reduce(b, options.elements / BUCKETS, &world, comm_stream);
    }
    OK(stream_synchronize(comm_stream));
}

/* --- pipeline --- */

enum { TO_AFTER = 1, FROM_AFTER = 2, TO_BEFORE = 4, FROM_BEFORE = 8 };

/* What batch_isend_irecv does: all at once, then waits. Ends of the pipeline have no
 * neighbour on one side. */
static void exchange(int what)
{
    int at = pipeline.crank, e = options.elements;

    if (at == 0)
        what &= ~(TO_BEFORE | FROM_BEFORE);
    if (at == pipeline.size - 1)
        what &= ~(TO_AFTER | FROM_AFTER);
    if (!what)
        return;
    OK(GroupStart());
    for (int bit = 0; bit < 4; bit++) {
        int peer = bit < 2 ? at + 1 : at - 1;
        float *values = buffer(4 + bit, e);

        if (!(what & 1 << bit))
            continue;
        if (bit % 2 == 0)
            OK(Send(values, (size_t)e, ncclFloat32, peer, pipeline.comm, main_stream));
        else
            OK(Recv(values, (size_t)e, ncclFloat32, peer, pipeline.comm, main_stream));
    }
    OK(GroupEnd());
    OK(stream_synchronize(main_stream));
}

static void iterate_1f1b(void)
{
    int count = options.microbatches, at = pipeline.crank;
    int filling = pipeline.size - 1 - at < count ? pipeline.size - 1 - at : count;
    double us = options.compute_us * (1 + at % 3 / 6.0);

    for (int i = 0; i < filling; i++) {
        exchange(FROM_BEFORE);
        compute(us);
        exchange(TO_AFTER);
    }
    if (filling < count)
        exchange(FROM_BEFORE);
    for (int i = filling; i < count; i++) {
        compute(us);
        exchange(TO_AFTER | FROM_AFTER);
        compute(2 * us);
        exchange(i + 1 < count ? TO_BEFORE | FROM_BEFORE : TO_BEFORE);
    }
    for (int i = 0; i < filling; i++) {
        exchange(FROM_AFTER);
        compute(2 * us);
        exchange(TO_BEFORE);
    }
    all_reduce(0, options.elements / 2, &replicas, comm_stream);
    all_reduce(1, options.elements / 2, &replicas, comm_stream);
    OK(stream_synchronize(comm_stream));
}

/* --- experts --- */

static int elements_between(int from, int to, int layer)
{
    return options.elements / experts.size * (2 + (3 * from + 5 * to + layer) % 4) / 2;
}

/* Tokens to their experts, or back. Returns how many elements came. */
static int redistribute(int layer, int is_back)
{
    int own = experts.crank, sent = 0, got = 0;

    OK(GroupStart());
    for (int peer = 0; peer < experts.size; peer++) {
        int out = elements_between(is_back ? peer : own, is_back ? own : peer, layer);
        int in = elements_between(is_back ? own : peer, is_back ? peer : own, layer);

        OK(Send(buffer(0, 3 * options.elements) + sent, (size_t)out, ncclFloat32, peer,
                experts.comm, main_stream));
        OK(Recv(buffer(1, 3 * options.elements) + got, (size_t)in, ncclFloat32, peer,
                experts.comm, main_stream));
        sent += out;
        got += in;
    }
    OK(GroupEnd());
    OK(stream_synchronize(main_stream));
    return got;
}

static void iterate_alltoall(void)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        int got;

        compute(options.compute_us);
        got = redistribute(layer, 0);
        compute(options.compute_us * ((double)got / options.elements));
        (void)redistribute(layer, 1);
    }
    all_reduce(2, 1, &world, main_stream);
    OK(stream_synchronize(main_stream));
}

/* --- calls --- */

static void gather_and_scatter(int root)
{
    size_t count = (size_t)options.elements;
    int most = options.elements * world_size;

    compute(options.compute_us / 2.0);
    OK(Gather(buffer(0, most), buffer(1, most), count, ncclFloat32, root, world.comm,
              main_stream));
    OK(stream_synchronize(main_stream));
    compute(options.compute_us / 2.0);
    OK(Scatter(buffer(0, most), buffer(1, most), count, ncclFloat32, root, world.comm,
               main_stream));
    OK(stream_synchronize(main_stream));
}

static void iterate_calls(void)
{
    int most = options.elements * world_size;

    for (int i = 0; i < 2; i++) {
        compute(options.compute_us);
        OK(AlltoAll(buffer(0, most), buffer(1, most), (size_t)options.elements,
                    ncclFloat32, world.comm, main_stream));
        if (!i)
            all_reduce(2, options.elements, &world, main_stream);
        OK(stream_synchronize(main_stream));
    }
    gather_and_scatter(0);
    gather_and_scatter(world_size - 1);
}

/* --- what it cost --- */

static struct use {
    double us, computed_us, cpu_us, queued_us;
} warm;

/* What the kernel says of one thread: ns on a CPU, ns in a run queue, slices. */
static double thread_queued_us(const char *tid)
{
    char path[64];
    unsigned long long ran_ns, queued_ns = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", tid);
    file = fopen(path, "r");
    if (!file)
        return 0; /* a thread that has just ended */
    if (fscanf(file, "%llu %llu", &ran_ns, &queued_ns) != 2)
        die("the kernel does not say how long a thread waited for a CPU");
    (void)fclose(file);
    return (double)queued_ns / 1000;
}

static double queued_us(void)
{
    DIR *threads = opendir("/proc/self/task");
    double sum = 0;

    if (!threads)
        die("no /proc/self/task");
    for (struct dirent *e; (e = readdir(threads));)
        if (e->d_name[0] != '.')
            sum += thread_queued_us(e->d_name);
    (void)closedir(threads);
    return sum;
}

static struct use use_now(void)
{
    struct rusage r = {0};

    (void)getrusage(RUSAGE_SELF, &r); /* cannot fail */
    return (struct use){(double)now_us(), computed_us,
                        (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 +
                            (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec),
                        queued_us()};
}

static void print_use(void)
{
    struct use now = use_now();

    printf(
        "rank %d behind %d: %.3f ms, computes %.3f ms, CPU %.3f ms, queues %.3f ms\n",
        rank, WARM_UP, (now.us - warm.us) / 1000,
        (now.computed_us - warm.computed_us) / 1000, (now.cpu_us - warm.cpu_us) / 1000,
        (now.queued_us - warm.queued_us) / 1000);
    (void)fflush(stdout);
}

/* --- start --- */

static void make_groups(void)
{
    int pp = options.pp, ep = options.ep;

    make_group(0, 1, world_size, &world);
    for (int first = 0; pp > 1 && first < world_size; first += pp)
        make_group(first, 1, pp, &pipeline);
    for (int p = 0; pp > 1 && p < pp; p++)
        make_group(p, pp, world_size / pp, &replicas);
    for (int first = 0; ep > 1 && first < world_size / ep; first++)
        make_group(first, world_size / ep, ep, &experts);
}

static double factor_of(int which)
{
    const char *at = options.slow;

    while (*at) {
        char *end;
        long slow_rank = strtol(at, &end, 10);

        if (*end != '=')
            die("--slow takes RANK=FACTOR, separated by commas");
        at = end + 1;
        if (slow_rank == which)
            return strtod(at, NULL);
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return 1;
}

static void parse(int argc, char **argv)
{
    static const struct option list[] = {{"layout", 1, NULL, 'l'},
                                         {"iterations", 1, NULL, 'i'},
                                         {"compute-us", 1, NULL, 'c'},
                                         {"elements", 1, NULL, 'e'},
                                         {"pp", 1, NULL, 'p'},
                                         {"ep", 1, NULL, 'x'},
                                         {"slow", 1, NULL, 's'},
                                         {"microbatches", 1, NULL, 'm'},
                                         {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "", list, NULL)) >= 0) {
        int *const numbers[128] = {
            ['i'] = &options.iterations, ['c'] = &options.compute_us,
            ['e'] = &options.elements,   ['p'] = &options.pp,
            ['x'] = &options.ep,         ['m'] = &options.microbatches};

        if (option == 'l')
            options.layout = optarg;
        else if (option == 's')
            options.slow = optarg;
        else if (option > 0 && option < 128 && numbers[option])
            *numbers[option] = atoi(optarg);
        else
            exit(2);
    }
}

int main(int argc, char **argv)
{
    void (*iterate)(void) = NULL;

    if (getenv("TIMED_TRAIN_SLOW"))
        options.slow = getenv("TIMED_TRAIN_SLOW");
    parse(argc, argv);
    program_begin(NULL);
    if (options.pp < 1 || options.ep < 1 || world_size % (options.pp * options.ep))
        die("world size is no multiple of --pp times --ep");
    if (strcmp(options.layout, "dp") == 0)
        iterate = iterate_dp;
    else if (strcmp(options.layout, "1f1b") == 0 && options.pp > 1)
        iterate = iterate_1f1b;
    else if (strcmp(options.layout, "alltoall") == 0 && options.ep > 1)
        iterate = iterate_alltoall;
    else if (strcmp(options.layout, "calls") == 0)
        iterate = iterate_calls;
    else
        die("--layout is dp, 1f1b (with --pp), alltoall (with --ep) or calls");
    factor = factor_of(rank);
    make_groups();
    OK(stream_create(&main_stream));
    OK(stream_create(&comm_stream));
    for (int i = 0; i < options.iterations; i++) {
        uint64_t from_us = now_us();

        if (i == WARM_UP)
            warm = use_now();
        iterate();
        printf("rank %d iteration %d ms %.3f\n", rank, i,
               (double)(now_us() - from_us) / 1000);
        (void)fflush(stdout);
        nccl.hint();
    }
    if (options.iterations > WARM_UP)
        print_use();
    if (experts.comm)
        OK(CommDestroy(experts.comm));
    if (replicas.comm)
        OK(CommDestroy(replicas.comm));
    if (pipeline.comm)
        OK(CommDestroy(pipeline.comm));
    OK(CommDestroy(world.comm));
    return 0;
}
