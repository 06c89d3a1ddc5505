/* A training program in miniature over the NCCL API on host memory: what it calls is
 * what a program with tensor, pipeline and data parallelism calls, its computation is
 * sleep, and its numbers are small integers in floats, so that every result is exact.
 *
 * usage: ncclprog [--iterations N] [--compute-us U] [--elements E] [--tp T] [--pp P]
 *                 [--pattern NAME,...] [--microbatches M] [--id-dir DIR]
 *                 [--fail-rank R --fail exit|segv|kill|early|silent|mismatch|stop|sleep
 * [--fail-at I]]
 *
 * It loads CRYSTAL_NCCL_LIBRARY and takes RANK and WORLD_SIZE from the environment.
 * Unique ids go through the store at MASTER_ADDR and MASTER_PORT, under PyTorch's keys,
 * or through files in DIR, or (one rank) nowhere. Ranks are numbered tp fastest, then
 * pp, then dp. Groups: "0" the world, then one number for each tp and each dp group,
 * then two for each pair of neighbours in the pipeline (what goes down, what comes
 * back), in that order on every rank, as torch.distributed.new_group counts them. NCCL
 * runs the operations of one communicator one after the other, so a receive posted
 * ahead needs one of its own.
 *
 * Patterns, in this order in each iteration (default: all):
 *   int        all-reduce of 4 int64 over the world, waited for by event
 *   1f1b       pipeline over pp with receives posted ahead
 *   allgather  of the tp group, with the next operation's input depending on it
 *   allreduce  of the dp group in two buckets, without a wait between
 *   held       as allgather, but tp position 0 computes before it waits, and must not
 *              keep position 1 waiting meanwhile (only where it is named)
 *   alltoall   of the tp group as an ncclGroup of sends and receives
 *
 * What a rank contributes depends on its tp and pp position and the iteration, not on
 * dp. Prints per iteration "rank R iteration I sum S time_us T"; S is the same in every
 * run with the same options in which all ranks take part.
 */
#include "config.h"

#include "tests/programs/nccl_program.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MICROBATCHES_MAX 64

static struct options {
    int iterations, compute_us, elements, tp, pp, microbatches, fail_rank, fail_at;
    const char *pattern, *id_dir, *fail;
} options = {.iterations = 4,
             .compute_us = 1000,
             .elements = 1024,
             .tp = 1,
             .pp = 1,
             .microbatches = 4,
             .fail_rank = -1,
             .fail_at = 1,
             .pattern = "int,1f1b,allgather,allreduce,alltoall",
             .fail = ""};

static int dp, tp_at, pp_at, dp_at;
static struct group world, tp_group, dp_group;
/* to and from the stage before and the one behind */
static struct group before_down, before_up, behind_down, behind_up;
static ncclStream_t stream, recv_forward, recv_backward, send_forward, send_backward;

static void make_groups(void)
{
    int tp = options.tp, pp = options.pp;

    make_group(0, 1, world_size, &world);
    for (int d = 0; d < dp; d++)
        for (int p = 0; p < pp; p++)
            make_group(d * pp * tp + p * tp, 1, tp, &tp_group);
    for (int p = 0; p < pp; p++)
        for (int t = 0; t < tp; t++)
            make_group(p * tp + t, pp * tp, dp, &dp_group);
    for (int d = 0; d < dp; d++)
        for (int t = 0; t < tp; t++)
            for (int p = 0; p < pp - 1; p++) {
                int first = d * pp * tp + p * tp + t;

                make_group(first, tp, 2, rank == first ? &behind_down : &before_down);
                make_group(first, tp, 2, rank == first ? &behind_up : &before_up);
            }
}

/* --- one iteration --- */

static int has_pattern(const char *name)
{
    const char *at = strstr(options.pattern, name);

    return at != NULL;
}

static void compute(void)
{
    sleep_us(options.compute_us);
}

static float value_of(int iteration, int i)
{
    return (float)((tp_at + 3 * pp_at + 5 * iteration + i) % 17);
}

static double sum_of(const float *values, int count)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

static double run_int(int iteration)
{
    int64_t values[4] = {1, iteration, tp_at, pp_at};
    crystal_event_t event;
    double sum = 0;

    OK(event_create(&event));
    OK(AllReduce(values, values, 4, ncclInt64, ncclSum, world.comm, stream));
    OK(event_record(event, stream));
    OK(event_synchronize(event));
    OK(event_destroy(event));
    for (int i = 0; i < 4; i++)
        sum += (double)values[i];
    return sum;
}

/* All receives of both directions are posted before the first send; every microbatch's
 * activation goes down, its gradient comes back. */
static double run_1f1b(int iteration)
{
    int e = options.elements, m = options.microbatches, last = options.pp - 1;
    float *in = floats(m * e), *out = floats(m * e), *grad_in = floats(m * e);
    static crystal_event_t arrived[2][MICROBATCHES_MAX];
    double sum;

    for (int i = 0; i < m; i++) {
        if (!arrived[0][i])
            OK(event_create(&arrived[0][i]));
        if (!arrived[1][i])
            OK(event_create(&arrived[1][i]));
        if (pp_at > 0) {
            OK(Recv(in + i * e, (size_t)e, ncclFloat32, 0, before_down.comm,
                    recv_forward));
            OK(event_record(arrived[0][i], recv_forward));
        }
        if (pp_at < last) {
            OK(Recv(grad_in + i * e, (size_t)e, ncclFloat32, 1, behind_up.comm,
                    recv_backward));
            OK(event_record(arrived[1][i], recv_backward));
        }
    }
    for (int i = 0; i < m; i++) {
        if (pp_at > 0)
            OK(event_synchronize(arrived[0][i]));
        compute();
        for (int k = 0; k < e; k++)
            out[i * e + k] = in[i * e + k] + value_of(iteration, i + k);
        if (pp_at < last)
            OK(Send(out + i * e, (size_t)e, ncclFloat32, 1, behind_down.comm,
                    send_forward));
    }
    for (int i = 0; i < m; i++) {
        if (pp_at < last)
            OK(event_synchronize(arrived[1][i]));
        compute();
        for (int k = 0; k < e; k++)
            out[i * e + k] += grad_in[i * e + k];
        if (pp_at < last)
            OK(stream_synchronize(send_forward)); /* out is overwritten from here */
        if (pp_at > 0)
            OK(Send(out + i * e, (size_t)e, ncclFloat32, 0, before_up.comm,
                    send_backward));
    }
    OK(stream_synchronize(send_backward));
    sum = sum_of(out, m * e);
    free(in);
    free(out);
    free(grad_in);
    return sum;
}

/* What is gathered is at once reduced again: the second input is the first output. */
static double run_allgather(int iteration)
{
    int e = options.elements, n = tp_group.size;
    float *own = floats(e), *all = floats(n * e);
    double sum;

    for (int i = 0; i < e; i++)
        own[i] = value_of(iteration, i);
    OK(AllGather(own, all, (size_t)e, ncclFloat32, tp_group.comm, stream));
    OK(ReduceScatter(all, own, (size_t)e, ncclFloat32, ncclSum, tp_group.comm, stream));
    OK(stream_synchronize(stream));
    sum = sum_of(all, n * e) + sum_of(own, e);
    free(own);
    free(all);
    return sum;
}

static double run_held(int iteration)
{
    int e = options.elements, n = tp_group.size;
    float *own = floats(e), *all = floats(n * e);
    double sum;

    for (int i = 0; i < e; i++)
        own[i] = value_of(iteration, i);
    OK(AllGather(own, all, (size_t)e, ncclFloat32, tp_group.comm, stream));
    OK(ReduceScatter(all, own, (size_t)e, ncclFloat32, ncclSum, tp_group.comm, stream));
    if (tp_at == 0)
        compute();
    OK(stream_synchronize(stream));
    sum = sum_of(all, n * e) + sum_of(own, e);
    free(own);
    free(all);
    return sum;
}

static double run_allreduce(int iteration)
{
    int e = options.elements;
    float *buckets[2] = {floats(e), floats(e)};
    static crystal_event_t done;
    double sum;

    if (!done)
        OK(event_create(&done));
    for (int b = 0; b < 2; b++) {
        compute();
        for (int i = 0; i < e; i++)
            buckets[b][i] = value_of(iteration, b + i);
        OK(AllReduce(buckets[b], buckets[b], (size_t)e, ncclFloat32, ncclSum,
                     dp_group.comm, stream));
    }
    OK(event_record(done, stream));
    for (;;) {
        const struct timespec pause = {0, 100000};
        ncclResult_t result = nccl.event_query(done);

        if (result != ncclInProgress) {
            ok(result, "event_query");
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    sum = sum_of(buckets[0], e) + sum_of(buckets[1], e);
    free(buckets[0]);
    free(buckets[1]);
    return sum;
}

static double run_alltoall(int iteration)
{
    int e = options.elements, n = tp_group.size;
    float *out = floats(n * e), *in = floats(n * e);
    double sum;

    for (int i = 0; i < n * e; i++)
        out[i] = value_of(iteration, i);
    OK(GroupStart());
    for (int peer = 0; peer < n; peer++) {
        OK(Send(out + peer * e, (size_t)e, ncclFloat32, peer, tp_group.comm, stream));
        OK(Recv(in + peer * e, (size_t)e, ncclFloat32, peer, tp_group.comm, stream));
    }
    OK(GroupEnd());
    OK(stream_synchronize(stream));
    sum = sum_of(in, n * e);
    free(out);
    free(in);
    return sum;
}

static void fail_here(void)
{
    float value = 0;

    if (strcmp(options.fail, "exit") == 0) {
        fprintf(stderr, "rank %d gives up\n", rank);
        exit(7);
    } else if (strcmp(options.fail, "segv") == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
        (void)raise(SIGSEGV);
    } else if (strcmp(options.fail, "kill") == 0) {
        (void)kill(getpid(), SIGKILL);
    } else if (strcmp(options.fail, "early") == 0) {
        exit(0);
    } else if (strcmp(options.fail, "silent") == 0) {
        _exit(0);
    } else if (strcmp(options.fail, "stop") == 0) {
        (void)raise(SIGSTOP);
    } else if (strcmp(options.fail, "sleep") == 0) {
        sleep_us(8e6);
    } else if (strcmp(options.fail, "mismatch") == 0) {
        OK(AllReduce(&value, &value, 1, ncclFloat32, ncclSum, world.comm, stream));
        OK(stream_synchronize(stream));
    }
}

static double iterate(int iteration)
{
    double sum = 0;

    if (rank == options.fail_rank && iteration == options.fail_at)
        fail_here();
    if (has_pattern("int"))
        sum += run_int(iteration);
    if (has_pattern("1f1b") && options.pp > 1)
        sum += run_1f1b(iteration);
    if (has_pattern("allgather"))
        sum += run_allgather(iteration);
    if (has_pattern("held"))
        sum += run_held(iteration);
    if (has_pattern("allreduce"))
        sum += run_allreduce(iteration);
    if (has_pattern("alltoall"))
        sum += run_alltoall(iteration);
    return sum;
}

/* --- start --- */

static void parse(int argc, char **argv)
{
    static const struct option list[] = {
        {"iterations", 1, NULL, 'i'},   {"compute-us", 1, NULL, 'c'},
        {"elements", 1, NULL, 'e'},     {"tp", 1, NULL, 't'},
        {"pp", 1, NULL, 'p'},           {"pattern", 1, NULL, 'P'},
        {"microbatches", 1, NULL, 'm'}, {"id-dir", 1, NULL, 'd'},
        {"fail-rank", 1, NULL, 'r'},    {"fail", 1, NULL, 'f'},
        {"fail-at", 1, NULL, 'a'},      {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "", list, NULL)) >= 0) {
        int *const numbers[128] = {
            ['i'] = &options.iterations, ['c'] = &options.compute_us,
            ['e'] = &options.elements,   ['t'] = &options.tp,
            ['p'] = &options.pp,         ['m'] = &options.microbatches,
            ['r'] = &options.fail_rank,  ['a'] = &options.fail_at};
        const char **const texts[128] = {
            ['P'] = &options.pattern, ['d'] = &options.id_dir, ['f'] = &options.fail};

        if (option < 0 || option > 127 || (!numbers[option] && !texts[option]))
            exit(2);
        if (numbers[option])
            *numbers[option] = atoi(optarg);
        else
            *texts[option] = optarg;
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    program_begin(options.id_dir);
    if (options.tp < 1 || options.pp < 1 || world_size % (options.tp * options.pp) ||
        options.microbatches > MICROBATCHES_MAX)
        die("world size is no multiple of tp x pp");
    dp = world_size / (options.tp * options.pp);
    tp_at = rank % options.tp;
    pp_at = rank / options.tp % options.pp;
    dp_at = rank / options.tp / options.pp;
    make_groups();
    OK(stream_create(&stream));
    OK(stream_create(&recv_forward));
    OK(stream_create(&recv_backward));
    OK(stream_create(&send_forward));
    OK(stream_create(&send_backward));
    for (int i = 0; i < options.iterations; i++) {
        uint64_t from_us = now_us();
        double sum = iterate(i);

        printf("rank %d iteration %d sum %.0f time_us %llu\n", rank, i, sum,
               (unsigned long long)(now_us() - from_us));
        fflush(stdout);
        nccl.hint();
    }
    OK(CommDestroy(before_up.comm));
    OK(CommDestroy(before_down.comm));
    OK(CommDestroy(behind_up.comm));
    OK(CommDestroy(behind_down.comm));
    OK(CommDestroy(dp_group.comm));
    OK(CommDestroy(tp_group.comm));
    OK(CommDestroy(world.comm));
    printf("rank %d done\n", rank);
    return 0;
}
