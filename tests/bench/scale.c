/* The figures of graph and timeline at the scale of thousands of ranks: the layout of
 * Qwen3-235B-A22B on 8192 ranks, every rank with durations of its own.
 */
#include "config.h"

#include "runtime/import.h"
#include "runtime/predict.h"
#include "runtime/synth.h"
#include "runtime/verify.h"

#include "tests/folders.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MUST(call)                                                               \
    do {                                                                         \
        if (call) {                                                              \
            fprintf(stderr, "scale: %s: %s\n", #call, crystal_error_text(&err)); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static struct crystal_error err;
static char path[64];

static void remove_file(void)
{
    (void)unlink(path); /* nothing to do about it at exit */
}

static double clock_s(clockid_t which)
{
    struct timespec now;

    (void)clock_gettime(which, &now); /* cannot fail for these clocks */
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double peak_gib(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage); /* cannot fail for oneself */
    return (double)usage.ru_maxrss / (1 << 20);
}

static void synth(struct crystal_synth *s, uint32_t dp)
{
    const char *srcdir = source_folder();
    char yaml[4096];

    (void)snprintf(yaml, sizeof yaml,
                   "%s/contrib/examples/synth/qwen3-235b-a22b-8192.yaml", srcdir);
    MUST(crystal_synth_read(yaml, s, &err));
    s->dp = dp ? dp : s->dp;
    s->ep = s->ep < s->dp ? s->ep : s->dp;
    MUST(crystal_synth_write(s, path, &err));
}

static double now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

/* Processor seconds and operations of one iteration; the least of `times` runs. The
 * timeline is one thread and touches no file, so on a machine that does nothing else
 * this is the time that passes; on another one, only this can be compared. */
static double run(const struct crystal_graph *g, uint32_t times, uint64_t *ret_count)
{
    struct crystal_timeline_config config;
    struct crystal_predict p;
    double least = 1e9;

    MUST(crystal_predict_init(&p, g, NULL, 1, &err));
    config = crystal_predict_config(&p);
    config.jitter_ppm = 10000;
    config.seed = 1;
    while (times--) {
        double begin = clock_s(CLOCK_PROCESS_CPUTIME_ID), took;
        struct crystal_timeline *t = crystal_timeline_create(&config, &err);

        MUST(!t);
        MUST(crystal_timeline_start(t, 0, &err));
        MUST(crystal_timeline_advance(t, UINT64_MAX, &err));
        MUST(crystal_timeline_explain(t, &err));
        *ret_count = crystal_timeline_event_count(t);
        crystal_timeline_destroy(t);
        took = clock_s(CLOCK_PROCESS_CPUTIME_ID) - begin;
        least = took < least ? took : least;
    }
    crystal_predict_fini(&p);
    return least;
}

/* Out of the page cache, as far as the file system lets us. */
static double cold_open_ms(void)
{
    struct crystal_graph *g;
    double begin;
    int fd = open(path, O_RDONLY);

    if (fd >= 0) {
        (void)fdatasync(fd);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        (void)close(fd);
    }
    begin = now_s();
    g = crystal_graph_open(path, &err);
    MUST(!g);
    crystal_graph_close(g);
    return (now_s() - begin) * 1e3;
}

static void verify(const struct crystal_graph *g)
{
    double begin = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    struct crystal_verdict verdict;

    MUST(crystal_verify(g, &verdict, &err));
    MUST(!verdict.is_sound);
    crystal_verdict_fini(&verdict);
    printf("verify.qwen8192.seconds %.2f s\n",
           clock_s(CLOCK_PROCESS_CPUTIME_ID) - begin);
}

/* --- real arrivals --- */

#define SANDBOX     8    /* ranks: the first node */
#define UPDATES_MAX 3000 /* of the first arrivals */

struct arrival {
    uint64_t time_ns, seq;
    uint32_t comm, crank, to; /* to: NONE, or the other end of a message */
    int sends;
};

struct sandbox {
    const struct crystal_graph *g;
    const struct crystal_predict *p;
    struct arrival *arrivals;
    size_t count, capacity;
    uint32_t *nth[SANDBOX]; /* by instruction: of its communicator or pair */
};

/* What the sandbox's ranks would do, from a run in which they are predicted, too. */
static void on_end(void *context, uint32_t lrank, uint64_t iteration, uint32_t instr,
                   uint64_t arrive_ns, uint64_t end_ns)
{
    struct sandbox *b = context;
    const struct crystal_instr *in;
    struct arrival a = {.time_ns = arrive_ns, .to = UINT32_MAX};

    (void)iteration, (void)end_ns;
    if (lrank >= SANDBOX)
        return;
    in = &b->p->programs[crystal_graph_rep_of(b->g, lrank)]->instrs[instr];
    a.comm = crystal_graph_comm_of(b->g, lrank, in->local);
    a.crank = crystal_graph_crank_of(b->g, a.comm, lrank);
    a.seq = b->nth[lrank][instr];
    if (in->kind != CRYSTAL_OP_COLL) {
        a.sends = in->kind == CRYSTAL_OP_SEND;
        a.to = crystal_graph_peer_of(b->g, lrank, in->local, in->peer);
    }
    if (b->count == b->capacity) {
        b->capacity = b->capacity ? 2 * b->capacity : 4096;
        b->arrivals = realloc(b->arrivals, b->capacity * sizeof *b->arrivals);
        MUST(!b->arrivals);
    }
    b->arrivals[b->count++] = a;
}

static int by_arrival(const void *x, const void *y)
{
    const struct arrival *a = x, *b = y;

    return (a->time_ns > b->time_ns) - (a->time_ns < b->time_ns);
}

static int by_value(const void *x, const void *y)
{
    const double *a = x, *b = y;

    return (*a > *b) - (*a < *b);
}

static void count_calls(struct sandbox *b, uint32_t lrank)
{
    const struct crystal_program *p = b->p->programs[crystal_graph_rep_of(b->g, lrank)];
    uint32_t *colls = calloc(p->local_count + p->pair_count + 1, sizeof *colls);

    b->nth[lrank] = malloc((p->instr_count + 1) * sizeof *b->nth[lrank]);
    MUST(!colls || !b->nth[lrank]);
    for (uint32_t i = 0; i < p->instr_count; i++) {
        const struct crystal_instr *in = &p->instrs[i];

        if (in->kind == CRYSTAL_OP_COLL)
            b->nth[lrank][i] = colls[in->local]++;
        else if (in->kind == CRYSTAL_OP_SEND || in->kind == CRYSTAL_OP_RECV)
            b->nth[lrank][i] = colls[p->local_count + in->slot]++;
    }
    free(colls);
}

static int feed(struct crystal_timeline *t, const struct arrival *a)
{
    if (a->to == UINT32_MAX)
        return crystal_timeline_feed(t, a->comm, a->seq, a->crank, a->time_ns, &err);
    return crystal_timeline_feed_p2p(t, a->comm, a->sends ? a->crank : a->to,
                                     a->sends ? a->to : a->crank, a->seq, a->sends,
                                     a->time_ns, &err);
}

/* Feeds a node's arrivals one by one as they would come, to a timeline that has done
 * what it can up to then: how long until all that follows from one is known. What the
 * time that passes lets others do in between is the third figure. */
static void updates(const struct crystal_graph *g)
{
    uint32_t n = crystal_graph_lrank_count(g);
    struct crystal_timeline_config config;
    uint8_t *outside = calloc(n, 1);
    struct crystal_timeline *t;
    struct crystal_predict p;
    struct sandbox b = {.g = g, .p = &p};
    double *took, all;

    MUST(crystal_predict_init(&p, g, NULL, 1, &err));
    config = crystal_predict_config(&p);
    config.jitter_ppm = 10000;
    config.context = &b;
    config.on_end = on_end;
    for (uint32_t r = 0; r < SANDBOX; r++)
        count_calls(&b, r);
    MUST(!outside || !(t = crystal_timeline_create(&config, &err)));
    MUST(crystal_timeline_start(t, 0, &err));
    MUST(crystal_timeline_advance(t, UINT64_MAX, &err));
    crystal_timeline_destroy(t);
    qsort(b.arrivals, b.count, sizeof *b.arrivals, by_arrival);
    b.count = b.count < UPDATES_MAX ? b.count : UPDATES_MAX;
    memset(outside, 1, SANDBOX);
    config.is_outside = outside;
    config.on_end = NULL;
    t = crystal_timeline_create(&config, &err);
    took = malloc(b.count * sizeof *took);
    MUST(!t || !took);
    MUST(crystal_timeline_start(t, 0, &err));
    all = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < b.count; i++) {
        double begin;

        MUST(crystal_timeline_advance(t, b.arrivals[i].time_ns, &err));
        begin = clock_s(CLOCK_PROCESS_CPUTIME_ID);
        MUST(feed(t, &b.arrivals[i]));
        MUST(crystal_timeline_advance(t, b.arrivals[i].time_ns, &err));
        took[i] = (clock_s(CLOCK_PROCESS_CPUTIME_ID) - begin) * 1e6;
    }
    all = clock_s(CLOCK_PROCESS_CPUTIME_ID) - all;
    crystal_timeline_destroy(t);
    qsort(took, b.count, sizeof *took, by_value);
    printf("timeline.update_us.median %.2f us\n", took[b.count / 2]);
    printf("timeline.update_us.p99 %.2f us\n", took[b.count * 99 / 100]);
    printf("timeline.update_us.all %.2f us\n", all * 1e6 / (double)b.count);
    for (uint32_t r = 0; r < SANDBOX; r++)
        free(b.nth[r]);
    free(b.arrivals);
    free(took);
    free(outside);
    crystal_predict_fini(&p);
}

/* --- traces --- */

#define EVENTS 200000

/* A profiler's trace: a step's worth of host and device events. */
static void trace_write(const char *json)
{
    FILE *out = fopen(json, "w");

    MUST(!out);
    fprintf(out, "{\"schemaVersion\": 1, \"distributedInfo\": {\"rank\": 0},\n"
                 "\"traceEvents\": [\n");
    for (int i = 0; i < EVENTS; i++)
        fprintf(
            out,
            "%s{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": 7, \"tid\": "
            "7, \"ts\": %d.%03d, \"dur\": 12.5, \"args\": {\"External id\": %d, "
            "\"device\": 0, \"context\": 1, \"stream\": 7, \"correlation\": %d, "
            "\"grid\": [128, 1, 1], \"block\": [256, 1, 1]}}",
            i ? ",\n" : "", i % 2 ? "cuda_runtime" : "kernel",
            i % 2 ? "cudaLaunchKernel" : "void at::native::elementwise_kernel<4>()",
            10 * i, i % 1000, i, i / 2);
    fprintf(out, "\n]}\n");
    MUST(fclose(out) != 0);
}

/* Ours, graph and all, over Python's json.load alone, both in processor time. */
static void import(void)
{
    const char *const paths[] = {path};
    char command[512], graph_path[96];
    double ours, theirs = 0;
    FILE *in;

    trace_write(path);
    (void)snprintf(graph_path, sizeof graph_path, "%s.graph", path);
    ours = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    MUST(crystal_import_traces(paths, 1, NULL, NULL, graph_path, &err));
    ours = clock_s(CLOCK_PROCESS_CPUTIME_ID) - ours;
    (void)unlink(graph_path); /* a temporary file */
    (void)snprintf(command, sizeof command,
                   "python3 -c 'import json, sys, time; t = time.process_time(); "
                   "json.load(open(sys.argv[1])); print(time.process_time() - t)' %s",
                   path);
    in = popen(command, "r");
    if (!in || fscanf(in, "%lf", &theirs) != 1 || theirs <= 0)
        printf("import.vs_python 0 not_measured\n");
    else
        printf("import.vs_python %.3f times\n", ours / theirs);
    if (in)
        (void)pclose(in); /* the number is there or not */
}

static double ns_per_op(uint32_t dp, uint32_t times)
{
    struct crystal_synth s;
    struct crystal_graph *g;
    uint64_t count;
    double seconds;

    synth(&s, dp);
    g = crystal_graph_open(path, &err);
    MUST(!g);
    seconds = run(g, times, &count);
    crystal_graph_close(g);
    return seconds * 1e9 / (double)count;
}

/* Of the mapped graph, as the kernel counts it. */
static size_t resident_bytes(void)
{
    FILE *in = fopen("/proc/self/smaps", "r");
    char line[4096];
    size_t kib, sum = 0;
    int is_ours = 0;

    MUST(!in);
    while (fgets(line, sizeof line, in)) {
        if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
            is_ours = strstr(line, path) != NULL;
        else if (is_ours && sscanf(line, "Rss: %zu kB", &kib) == 1)
            sum += kib << 10;
    }
    (void)fclose(in); /* only read */
    MUST(!sum);
    return sum;
}

int main(void)
{
    struct crystal_graph_stat stat;
    struct crystal_graph *g;
    struct crystal_synth s;
    size_t heap;
    uint64_t count;
    double seconds, small, begin;

    (void)snprintf(path, sizeof path, "/tmp/crystal-bench-scale.%ld", (long)getpid());
    (void)atexit(remove_file);
    synth(&s, 0);
    printf("graph.qwen8192.open_ms %.2f ms\n", cold_open_ms());
    heap = mallinfo2().uordblks + mallinfo2().hblkhd;
    g = crystal_graph_open(path, &err);
    MUST(!g);
    heap = mallinfo2().uordblks + mallinfo2().hblkhd - heap;
    crystal_graph_stat(g, &stat);
    printf("graph.qwen8192.file_mb %.2f MB\n", (double)stat.file_bytes / 1e6);
    printf("graph.bytes_per_op.disk %.1f bytes\n",
           (double)stat.file_bytes / (double)stat.op_count);
    begin = now_s();
    /* an open graph is what its mapped file keeps in memory, and records unpacked */
    printf("graph.bytes_per_op.memory %.1f bytes\n",
           (double)(resident_bytes() + heap) / (double)stat.op_count);
    seconds = run(g, 1, &count);
    begin = now_s() - begin;
    verify(g);
    updates(g);
    crystal_graph_close(g);
    printf("timeline.qwen8192.operations %.1f million\n", (double)count / 1e6);
    printf("timeline.qwen8192.seconds %.2f s\n", seconds);
    printf("timeline.qwen8192.wall_seconds %.2f s\n", begin);
    printf("timeline.qwen8192.peak_gib %.2f GiB\n", peak_gib());
    printf("timeline.events_per_s %.0f events/s\n", 2 * (double)count / seconds);
    small = ns_per_op(8, 3);
    printf("timeline.growth %.2f times\n", ns_per_op(256, 1) / small);
    import();
    return 0;
}
