/* The figures of graph and timeline at the scale of thousands of ranks: the layout of
 * Qwen3-235B-A22B on 8192 ranks, every rank with durations of its own.
 */
#include "config.h"

#include "runtime/predict.h"
#include "runtime/synth.h"
#include "runtime/verify.h"

#include <fcntl.h>
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
    const char *srcdir = getenv("CRYSTAL_SRCDIR");
    char yaml[4096];

    (void)snprintf(yaml, sizeof yaml,
                   "%s/contrib/examples/synth/qwen3-235b-a22b-8192.yaml",
                   srcdir ? srcdir : ".");
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

    MUST(crystal_predict_init(&p, g, NULL, &err));
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

int main(void)
{
    struct crystal_graph_stat stat;
    struct crystal_graph *g;
    struct crystal_synth s;
    uint64_t count;
    double seconds, small, begin;

    (void)snprintf(path, sizeof path, "/tmp/crystal-bench-scale.%ld", (long)getpid());
    (void)atexit(remove_file);
    synth(&s, 0);
    printf("graph.qwen8192.open_ms %.2f ms\n", cold_open_ms());
    g = crystal_graph_open(path, &err);
    MUST(!g);
    crystal_graph_stat(g, &stat);
    printf("graph.qwen8192.file_mb %.2f MB\n", (double)stat.file_bytes / 1e6);
    printf("graph.bytes_per_op.disk %.1f bytes\n",
           (double)stat.file_bytes / (double)stat.op_count);
    begin = now_s();
    seconds = run(g, 1, &count);
    begin = now_s() - begin;
    verify(g);
    crystal_graph_close(g);
    printf("timeline.qwen8192.operations %.1f million\n", (double)count / 1e6);
    printf("timeline.qwen8192.seconds %.2f s\n", seconds);
    printf("timeline.qwen8192.wall_seconds %.2f s\n", begin);
    printf("timeline.qwen8192.peak_gib %.2f GiB\n", peak_gib());
    printf("timeline.events_per_s %.0f events/s\n", 2 * (double)count / seconds);
    small = ns_per_op(8, 3);
    printf("timeline.growth %.2f times\n", ns_per_op(256, 1) / small);
    return 0;
}
