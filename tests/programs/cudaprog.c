/* Communication as PyTorch does it on a device: streams of computation and of
 * communication that wait for each other's events, over libcrystal-nccl.so in
 * LD_PRELOAD and a CUDA runtime (CUDART: a library's path or name;
 * tests/fake/cuda_streams.c or the real one). Kernels are host functions in streams, on
 * pinned memory.
 *
 * usage: cudaprog CASE; ranks as in ncclprog.c. Prints "rank R: CASE RESULT".
 */
#include "config.h"

#include "tests/programs/nccl_program.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 5000, NOT_READY = 600 };

static struct {
    int (*malloc)(void **, size_t);
    int (*free)(void *);
    int (*host_alloc)(void **, size_t, unsigned);
    int (*copy)(void *, const void *, size_t, int);
    int (*copy_later)(void *, const void *, size_t, int, void *);
    int (*launch)(void *, void (*)(void *), void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_wait)(void *, void *, unsigned);
    int (*stream_synchronize)(void *);
    int (*stream_query)(void *);
    int (*synchronize)(void);
    int (*event_create)(void **, unsigned);
    int (*event_record)(void *, void *);
    int (*event_query)(void *);
    int (*event_synchronize)(void *);
    int (*event_destroy)(void *);
} cuda;

static struct group world;
static void *compute, *wire; /* streams; wire has communication only */

#define CUDA(call) cuda_ok(cuda.call, #call)

static void cuda_ok(int code, const char *what)
{
    if (!code)
        return;
    fprintf(stderr, "rank %d: %.40s: CUDA error %d: %s\n", rank, what, code,
            nccl.GetLastError(NULL));
    exit(1);
}

/* As a program that is linked with it finds it: what is preloaded comes first. */
static void load_cuda(void)
{
    static const struct {
        const char *name;
        void *function;
    } rows[] = {{"cudaMalloc", &cuda.malloc},
                {"cudaFree", &cuda.free},
                {"cudaHostAlloc", &cuda.host_alloc},
                {"cudaMemcpy", &cuda.copy},
                {"cudaMemcpyAsync", &cuda.copy_later},
                {"cudaLaunchHostFunc", &cuda.launch},
                {"cudaStreamCreateWithFlags", &cuda.stream_create},
                {"cudaStreamWaitEvent", &cuda.stream_wait},
                {"cudaStreamSynchronize", &cuda.stream_synchronize},
                {"cudaStreamQuery", &cuda.stream_query},
                {"cudaDeviceSynchronize", &cuda.synchronize},
                {"cudaEventCreateWithFlags", &cuda.event_create},
                {"cudaEventRecord", &cuda.event_record},
                {"cudaEventQuery", &cuda.event_query},
                {"cudaEventSynchronize", &cuda.event_synchronize},
                {"cudaEventDestroy", &cuda.event_destroy}};
    const char *path = getenv("CUDART");

    if (!path || !dlopen(path, RTLD_NOW | RTLD_GLOBAL))
        die(path ? dlerror() : "CUDART is not set");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        void *found = dlsym(RTLD_DEFAULT, rows[i].name);

        if (!found)
            die(rows[i].name);
        memcpy(rows[i].function, &found, sizeof found);
    }
}

/* The program keeps its memory and events to its end, as PyTorch does. */
static void *keep(void *what)
{
    static void *kept[64];
    static unsigned count;

    if (count == sizeof kept / sizeof kept[0])
        die("too much to keep");
    return kept[count++] = what;
}

/* Pinned memory: what is in streams reads and writes it like the device's own. */
static float *device_floats(void)
{
    void *memory;

    CUDA(host_alloc(&memory, COUNT * sizeof(float), 1));
    return keep(memory);
}

static void *event_create(void)
{
    void *event;

    CUDA(event_create(&event, 2));
    return keep(event);
}

/* --- kernels --- */

struct kernel {
    float *to;
    const float *from; /* NULL: none */
    float scale, shift;
};

static void kernel_main(void *argument)
{
    struct kernel *k = argument;

    for (int i = 0; i < COUNT; i++)
        k->to[i] = (k->from ? k->from[i] * k->scale : 0) + k->shift;
    free(k);
}

/* to = from * scale + shift, in the stream. */
static void launch(void *stream, float *to, const float *from, float scale, float shift)
{
    struct kernel *k = malloc(sizeof *k);

    if (!k)
        die("out of memory");
    *k = (struct kernel){to, from, scale, shift};
    CUDA(launch(stream, kernel_main, k));
}

/* Later work of one stream behind the present end of another, as torch's
 * Stream.wait_stream; the event is used again, as PyTorch does. */
static void follow(void *stream, void *other)
{
    static void *event;

    if (!event)
        event = event_create();
    CUDA(event_record(event, other));
    CUDA(stream_wait(stream, event, 0));
}

static float value_of(const float *memory)
{
    float values[COUNT];

    CUDA(copy(values, memory, sizeof values, 4));
    for (int i = 1; i < COUNT; i++)
        if (values[i] != values[0])
            die("values differ");
    return values[0];
}

/* --- cases --- */

/* An all-reduce beside computation, waited for by the computing stream: rank r puts r +
 * 1; then one in the computing stream itself. */
static void overlapped(void)
{
    float *x = device_floats(), *y = device_floats();
    float sum = (float)world_size * (float)(world_size + 1) / 2;

    for (int i = 0; i < 20; i++) {
        launch(compute, x, NULL, 0, (float)(rank + 1));
        follow(wire, compute);
        OK(AllReduce(x, x, COUNT, ncclFloat32, ncclSum, world.comm, wire));
        launch(compute, y, NULL, 0, 7);
        follow(compute, wire);
        launch(compute, y, x, 2, 1);
        OK(AllReduce(y, y, COUNT, ncclFloat32, ncclMax, world.comm, compute));
        launch(compute, y, y, 1, 1);
        CUDA(stream_synchronize(compute));
        if (value_of(y) != 2 * sum + 2)
            die("a wrong sum");
    }
    printf("rank %d: overlapped %g\n", rank, (double)value_of(y));
}

/* Everybody's receive is posted before anybody's send, on a stream of its own, and the
 * next one behind it; what was received is sent on. After N steps everybody has its own
 * number again, plus N. */
static void early_receive(void)
{
    int left = (rank + world_size - 1) % world_size, right = (rank + 1) % world_size;
    float *mine = device_floats(), *got[2];
    void *sending, *ends[2];

    CUDA(stream_create(&sending, 1));
    launch(compute, mine, NULL, 0, (float)rank);
    for (int i = 0; i < 2; i++) {
        got[i] = device_floats();
        ends[i] = event_create();
    }
    for (int i = 0; i <= world_size; i++) {
        if (i < world_size) { /* the receive of this step */
            follow(wire, compute);
            OK(Recv(got[i % 2], COUNT, ncclFloat32, left, world.comm, wire));
            CUDA(event_record(ends[i % 2], wire));
        }
        if (i > 0) { /* what the step before has brought */
            CUDA(stream_wait(compute, ends[(i - 1) % 2], 0));
            launch(compute, mine, got[(i - 1) % 2], 1, 1);
        }
        if (i < world_size) {
            follow(sending, compute);
            OK(Send(mine, COUNT, ncclFloat32, right, world.comm, sending));
            follow(compute, sending);
        }
    }
    CUDA(synchronize());
    CUDA(stream_synchronize(compute));
    printf("rank %d: early %g\n", rank, (double)value_of(mine));
}

/* A group of sends and receives, whose end only a polling thread and a polling host
 * see; an event that is recorded behind it and destroyed at once. */
static atomic_int watched;

static void *watchdog_main(void *event)
{
    while (cuda.event_query(event) == NOT_READY)
        sleep_us(500);
    atomic_store(&watched, 1);
    return NULL;
}

static void polled(void)
{
    int left = (rank + world_size - 1) % world_size, right = (rank + 1) % world_size;
    float *mine = device_floats(), *got = device_floats();
    void *end = event_create(), *unused = event_create();
    pthread_t watchdog;

    launch(compute, mine, NULL, 0, (float)(rank + 1));
    follow(wire, compute);
    OK(GroupStart());
    OK(Recv(got, COUNT, ncclFloat32, left, world.comm, wire));
    OK(Send(mine, COUNT, ncclFloat32, right, world.comm, wire));
    OK(GroupEnd());
    CUDA(event_record(unused, wire));
    CUDA(event_destroy(unused));
    CUDA(event_record(end, wire));
    if (pthread_create(&watchdog, NULL, watchdog_main, end))
        die("no thread");
    while (cuda.event_query(end) == NOT_READY)
        sleep_us(100);
    CUDA(event_synchronize(end));
    (void)pthread_join(watchdog, NULL);
    CUDA(stream_synchronize(wire));
    printf("rank %d: polled %g %d\n", rank, (double)value_of(got),
           atomic_load(&watched));
}

/* Work behind a receive in its own stream, and one that nobody ever waits for. */
static void behind(void)
{
    int left = (rank + world_size - 1) % world_size, right = (rank + 1) % world_size;
    float *mine = device_floats(), *got = device_floats();

    launch(compute, mine, NULL, 0, (float)(rank + 1));
    follow(wire, compute);
    OK(Send(mine, COUNT, ncclFloat32, right, world.comm, wire));
    follow(wire, compute);
    OK(Recv(got, COUNT, ncclFloat32, left, world.comm, wire));
    launch(wire, got, got, 10, 0);
    CUDA(copy_later(mine, got, COUNT * sizeof *got, 4, wire));
    while (cuda.stream_query(wire) == NOT_READY)
        sleep_us(100);
    printf("rank %d: behind %g\n", rank, (double)value_of(mine));
}

/* An event behind a receive, for which another stream with a receive under way waits
 * before the event is recorded anew elsewhere: what is in that stream then still comes
 * behind the first receive. */
static void reused(void)
{
    int left = (rank + world_size - 1) % world_size, right = (rank + 1) % world_size;
    float *mine = device_floats(), *first = device_floats(), *second = device_floats();
    void *other, *end = event_create();

    CUDA(stream_create(&other, 1));
    launch(compute, mine, NULL, 0, (float)(rank + 1));
    follow(other, compute);
    OK(Recv(second, COUNT, ncclFloat32, left, world.comm, other));
    follow(wire, compute);
    OK(Recv(first, COUNT, ncclFloat32, left, world.comm, wire));
    CUDA(event_record(end, wire));
    CUDA(stream_wait(other, end, 0));
    CUDA(event_record(end, compute));
    for (int i = 0; i < 2; i++)
        OK(Send(mine, COUNT, ncclFloat32, right, world.comm, compute));
    launch(other, second, first, 10, 0);
    CUDA(stream_synchronize(other));
    printf("rank %d: reused %g\n", rank, (double)value_of(second));
}

/* 3,000 and 2,000 bytes before the first communicator, of which the first go later, and
 * 500 from NCCL. */
static void *early_memory[2];

static void allocated(void)
{
    void *memory;

    OK(MemAlloc(&memory, 500));
    CUDA(free(early_memory[0]));
    OK(MemFree(memory));
    printf("rank %d: allocated\n", rank);
}

static void compute_5ms(void *unused)
{
    (void)unused;
    sleep_us(5000);
}

/* One after the other, three times: computation, an all-reduce, two messages. */
static void timed(void)
{
    float *x = device_floats();

    for (int i = 0; i < 3; i++) {
        CUDA(launch(compute, compute_5ms, NULL));
        follow(wire, compute);
        OK(AllReduce(x, x, COUNT, ncclFloat32, ncclSum, world.comm, wire));
        OK(GroupStart());
        OK(Send(x, COUNT, ncclFloat32, rank, world.comm, wire));
        OK(Recv(x, COUNT, ncclFloat32, rank, world.comm, wire));
        OK(GroupEnd());
        OK(Bcast(x, COUNT, ncclFloat32, 0, world.comm, wire));
        follow(compute, wire);
        CUDA(stream_synchronize(compute));
    }
    printf("rank %d: timed\n", rank);
}

/* Rank 1 sums twice as many as the others. */
static void mismatch(void)
{
    float *x = device_floats();

    launch(compute, x, NULL, 0, 1);
    OK(AllReduce(x, x, rank == 1 ? COUNT : COUNT / 2, ncclFloat32, ncclSum, world.comm,
                 compute));
    CUDA(stream_synchronize(compute));
}

/* Every rank waits for a message that nobody sends. */
static void cycle(void)
{
    float *x = device_floats();

    follow(wire, compute);
    OK(Recv(x, COUNT, ncclFloat32, (rank + 1) % world_size, world.comm, wire));
    follow(compute, wire);
}

/* What lets kernels communicate by themselves; CASE is the function's name. */
static void refused(const char *name)
{
    int (*function)(void *, void *, void *) = NULL;
    void *found = dlsym(RTLD_DEFAULT, name);

    if (!found)
        die(name);
    memcpy(&function, &found, sizeof found);
    fprintf(stderr, "rank %d: %s %d\n", rank, name, function(NULL, NULL, NULL));
    exit(1);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"overlapped", overlapped}, {"early", early_receive}, {"polled", polled},
        {"behind", behind},         {"reused", reused},       {"allocated", allocated},
        {"timed", timed},           {"mismatch", mismatch},   {"cycle", cycle}};

    load_cuda();
    program_begin(NULL);
    CUDA(malloc(&early_memory[0], 3000));
    CUDA(malloc(&early_memory[1], 2000));
    CUDA(stream_create(&compute, 1));
    CUDA(stream_create(&wire, 1));
    make_group(0, 1, world_size, &world);
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            OK(CommDestroy(world.comm));
            return 0;
        }
    if (argc == 2 && argv[1][0] == 'n') /* nccl..., nvshmem... */
        refused(argv[1]);
    die("no such case");
}
