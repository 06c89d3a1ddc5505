/* scrystal predict: the iteration of all ranks without any of them, and what if. */
#include "config.h"

#include "commands/commands.h"
#include "commands/predict_sweep.h"
#include "commands/predict_view.h"
#include "commands/predict_what.h"

#include "runtime/heap.h"
#include "runtime/layout.h"
#include "runtime/log.h"
#include "runtime/outfile.h"
#include "runtime/parallel.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct predict_args {
    const char *job_dir, *graph_path, *profile_path, *svg_path, *csv_path;
    struct crystal_what_if what;
    int is_changed; /* anything but jitter */
    int is_usage;   /* what failed is how the command was called */
    struct predict_sweeps sweeps;
    char job_graph[PATH_MAX], job_profile[PATH_MAX]; /* where job_dir names them */
};

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"profile", required_argument, NULL, 'p'},
    {"draw", required_argument, NULL, 'd'},
    {"csv", required_argument, NULL, 'c'},
    {"threads", required_argument, NULL, 't'},
    {"sweep", required_argument, NULL, 's'},
    {"help", no_argument, NULL, 'h'},
    {"jitter", required_argument, NULL, 'w'},
    {"seed", required_argument, NULL, 'w'},
    {"slow-rank", required_argument, NULL, 'w'},
    {"slow-link", required_argument, NULL, 'w'},
    {"dead-rank", required_argument, NULL, 'w'},
    {"scale-compute", required_argument, NULL, 'w'},
    {"bandwidth", required_argument, NULL, 'w'},
    {"latency", required_argument, NULL, 'w'},
    {"node-bandwidth", required_argument, NULL, 'w'},
    {"node-latency", required_argument, NULL, 'w'},
    {"algo", required_argument, NULL, 'w'},
    {"queues", required_argument, NULL, 'w'},
    {"nics", required_argument, NULL, 'w'},
    {NULL, 0, NULL, 0},
};

static void help(FILE *out)
{
    fprintf(
        out,
        "usage: scrystal predict GRAPH | --job=DIR [OPTION...]\n\n"
        "Predicts one iteration of all ranks: its time, the critical path, exposed\n"
        "communication, bubbles. Durations come from job.profile, or from the graph\n"
        "itself where it tells them (scrystal graph synth).\n\n"
        "  --job=DIR             DIR/job.graph and DIR/job.profile\n"
        "  --profile=FILE        another profile\n"
        "  --draw=FILE.svg       draw the critical path\n"
        "  --jitter=F            each computation of each rank is longer or shorter "
        "by\n"
        "                        up to this share (0.01), --seed=N tells which\n\n"
        "what if, all at once and against the same without:\n"
        "  --slow-rank=R=F       rank R computes F times as long; may repeat\n"
        "  --slow-link=A:B=F     F of the bandwidth is left between nodes A and B\n"
        "  --dead-rank=R         rank R never does anything; may repeat\n"
        "  --scale-compute=F     all computation takes F times as long\n"
        "  --bandwidth=B --latency=T             between nodes (25GB/s, 5us)\n"
        "  --node-bandwidth=B --node-latency=T   inside nodes\n"
        "  --algo=tree | pat | tree,pat          in place of rings: trees for\n"
        "                        all-reduce, PAT for all-gather and reduce-scatter of\n"
        "                        communicators with one member on each node\n"
        "  --queues=one          all streams of a rank share one hardware queue\n"
        "  --nics=shared         all that a rank sends and takes in shares its NIC,\n"
        "                        collectives, too\n\n"
        "  --sweep=OPTION=V,V... one run for each value of an option above; may "
        "repeat\n"
        "  --csv=FILE            the sweep's table as comma-separated values\n"
        "  --threads=N           at most so many (default: processors); what comes "
        "out\n"
        "                        does not depend on it, a sweep's memory does\n");
}

/* --- runs --- */

static int runs_dead(const struct crystal_prediction *pr)
{
    struct crystal_timeline_wait steps[64];
    uint32_t cycle, count = crystal_timeline_witness(pr->timeline, steps, 64, &cycle);
    uint32_t n = crystal_graph_lrank_count(pr->predict->graph);

    printf(
        "the iteration never ends: %u of %u ranks wait for ever, nothing moves after "
        "%.3f ms\n",
        pr->stuck_count, n, (double)pr->still_ns / 1e6);
    for (uint32_t i = 0; i < count; i++)
        if (i == 4 && count > 9)
            printf("  ... %u more\n", count - 8);
        else if ((i < 4 || i + 4 >= count || count < 10) &&
                 steps[i].instr != UINT32_MAX)
            printf("  rank %u waits in communicator %u, number %" PRIu64
                   ", for rank %u%s\n",
                   steps[i].lrank, steps[i].comm, steps[i].seq, steps[i].for_lrank,
                   steps[i].missing_count > 1 ? " and others" : "");
    return 0;
}

static void print_head(const struct crystal_prediction *pr)
{
    printf("iteration of %u ranks: %.3f ms (rank %u ends last), durations %s, %.1f "
           "million operations\n",
           crystal_graph_lrank_count(pr->predict->graph),
           (double)pr->iteration_ns / 1e6, pr->last_lrank,
           crystal_origin_name(pr->predict->origin), (double)pr->operation_count / 1e6);
}

/* What is changed, on one line; caller frees. NULL: out of memory. */
static char *what_line(const struct predict_args *a,
                       const struct crystal_prediction *pr)
{
    static const char begin[] = "  what if: ";
    char *text = NULL, *to, *from;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    if (!out)
        return NULL;
    predict_what_print(out, pr->predict, &a->what);
    if (fclose(out)) {
        free(text);
        return NULL;
    }
    for (to = from = text; *from;) {
        if (strncmp(from, begin, sizeof begin - 1) == 0)
            from += sizeof begin - 1;
        if (*from == '\n' && !from[1])
            break;
        *to++ = *from == '\n' ? ';' : *from;
        if (*from++ == '\n')
            *to++ = ' ';
    }
    *to = 0;
    return text;
}

static int draw(const struct predict_args *a, const struct crystal_prediction *pr,
                const struct crystal_path *path, const struct crystal_predict_totals *t,
                struct crystal_error *err)
{
    char *what = what_line(a, pr);
    struct crystal_outfile f;
    int code;

    if (!what)
        return crystal_error_set(err, ENOMEM, "out of memory");
    code = crystal_outfile_open(&f, a->svg_path, CRYSTAL_OUTFILE_SHOWN, err);
    if (!code) {
        crystal_predict_draw_svg(f.stream, pr, path, t, what);
        code = crystal_outfile_close(&f, 0, err);
    }
    if (!code)
        printf("\n%s: the drawing\n", a->svg_path);
    free(what);
    return code;
}

static int show(const struct predict_args *a, const struct crystal_prediction *pr,
                struct crystal_error *err)
{
    struct crystal_predict_totals totals = {NULL, NULL};
    struct crystal_path path = {NULL, 0};
    int code = crystal_predict_totals_init(&totals, pr, a->sweeps.threads, err);

    if (!code)
        code = crystal_prediction_path(pr, &path, err);
    if (!code) {
        crystal_predict_print_totals(stdout, pr, &totals);
        crystal_predict_print_path(stdout, pr, &path);
        crystal_predict_draw_text(stdout, pr, &path);
        if (a->svg_path)
            code = draw(a, pr, &path, &totals, err);
    }
    crystal_path_fini(&path);
    crystal_predict_totals_fini(&totals);
    return code;
}

/* The same without what is changed: time in ns, 0 where it never ends. */
int predict_base_ns(const struct crystal_predict *p, const struct crystal_what_if *what,
                    uint64_t *ret_ns, struct crystal_error *err)
{
    struct crystal_what_if base;
    struct crystal_prediction *pr;

    crystal_what_if_init(&base);
    base.jitter_ppm = what->jitter_ppm;
    base.seed = what->seed;
    pr = crystal_predict_run(p, &base, 0, err);
    if (!pr)
        return -EINVAL;
    *ret_ns = pr->stuck_count ? 0 : pr->iteration_ns;
    crystal_prediction_destroy(pr);
    return 0;
}

double predict_percent_more(uint64_t ns, uint64_t than_ns)
{
    return than_ns ? 100.0 * ((double)ns - (double)than_ns) / (double)than_ns : 0;
}

static int run_one(const struct predict_args *a, const struct crystal_predict *p,
                   struct crystal_error *err)
{
    struct crystal_prediction *pr;
    uint64_t base = 0;
    int code = 0;

    if (a->is_changed)
        code = predict_base_ns(p, &a->what, &base, err);
    if (code)
        return code;
    pr = crystal_predict_run(p, &a->what, 1, err);
    if (!pr)
        return -EINVAL;
    if (pr->stuck_count) {
        code = runs_dead(pr);
        predict_what_print(stdout, p, &a->what);
    } else {
        print_head(pr);
        predict_what_print(stdout, p, &a->what);
        if (a->is_changed)
            printf("  without what is changed: %.3f ms, so %+.2f %%\n",
                   (double)base / 1e6, predict_percent_more(pr->iteration_ns, base));
        code = show(a, pr, err);
    }
    crystal_prediction_destroy(pr);
    return code;
}

/* --- files --- */

/* A job directory may have been laid out anew since its graph was made. */
static int is_of_another_layout(struct predict_args *a, const struct crystal_graph *g,
                                struct crystal_error *err)
{
    struct crystal_layout layout;
    char path[PATH_MAX];
    uint64_t fingerprint;

    if (snprintf(path, sizeof path, "%s/layout.yaml", a->job_dir) >= (int)sizeof path)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", a->job_dir);
    if (crystal_layout_read(path, &layout, err))
        return -EINVAL;
    fingerprint = layout.fingerprint;
    a->what.ranks_per_node = layout.ranks_per_node;
    crystal_layout_fini(&layout);
    if (crystal_graph_fingerprint(g) == fingerprint)
        return 0;
    return crystal_error_set(err, ESTALE,
                             "%s: made for another program or layout; run 'scrystal "
                             "capture' and 'scrystal graph' again",
                             a->graph_path);
}

static int run(struct predict_args *a, const struct crystal_predict *p,
               struct crystal_error *err)
{
    int code = crystal_what_if_check(&a->what, p, err);

    if (!code)
        code = predict_sweep_check(&a->sweeps, p, &a->what, err);
    a->is_usage = code != 0;
    if (!code)
        code = a->sweeps.sweep_count
                   ? predict_sweep_run(&a->sweeps, p, &a->what, a->csv_path, err)
                   : run_one(a, p, err);
    if (code && err->code == ERANGE && (a->is_changed || a->sweeps.sweep_count))
        a->is_usage = 1; /* by what it was given */
    return code;
}

static int predict(struct predict_args *a, struct crystal_error *err)
{
    struct crystal_profile *profile = NULL;
    struct crystal_graph *g;
    struct crystal_predict p;
    int code;

    if (a->job_dir) {
        if (snprintf(a->job_graph, sizeof a->job_graph, "%s/job.graph", a->job_dir) >=
                (int)sizeof a->job_graph ||
            snprintf(a->job_profile, sizeof a->job_profile, "%s/job.profile",
                     a->job_dir) >= (int)sizeof a->job_profile)
            return crystal_error_set(err, ENAMETOOLONG, "%s: path too long",
                                     a->job_dir);
        a->graph_path = a->job_graph;
        if (!a->profile_path)
            a->profile_path = a->job_profile;
    }
    g = crystal_graph_open(a->graph_path, err);
    if (!g)
        return -EINVAL;
    if (a->job_dir && is_of_another_layout(a, g, err)) {
        crystal_graph_close(g);
        return -ESTALE;
    }
    if (a->profile_path && !(profile = crystal_profile_open(a->profile_path, err))) {
        crystal_graph_close(g);
        return -EINVAL;
    }
    code = crystal_predict_init(&p, g, profile, a->sweeps.threads, err);
    if (!code)
        code = run(a, &p, err);
    crystal_predict_fini(&p);
    crystal_profile_close(profile);
    crystal_graph_close(g);
    return code;
}

static int threads_read(struct predict_args *a, const char *text,
                        struct crystal_error *err)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    if (*text < '1' || *text > '9' || *end || value > PREDICT_THREADS_MAX)
        return crystal_error_set(err, EINVAL,
                                 "--threads: '%.32s' is no whole number from 1 to %u",
                                 text, PREDICT_THREADS_MAX);
    a->sweeps.threads = (uint32_t)value;
    return 0;
}

static int args_read(struct predict_args *a, int argc, char **argv, int *ret_help,
                     struct crystal_error *err)
{
    int option, index, code = 0;

    optind = 1;
    while (!code && (option = getopt_long(argc, argv, "", long_options, &index)) >= 0) {
        switch (option) {
        case 'j':
            a->job_dir = optarg;
            break;
        case 'p':
            a->profile_path = optarg;
            break;
        case 'd':
            a->svg_path = optarg;
            break;
        case 'c':
            a->csv_path = optarg;
            break;
        case 't':
            code = threads_read(a, optarg, err);
            break;
        case 's':
            code = predict_sweep_add(&a->sweeps, optarg, err);
            break;
        case 'w':
            code = predict_what_set(&a->what, long_options[index].name, optarg,
                                    &a->is_changed, err);
            break;
        default:
            *ret_help = option == 'h' ? 1 : -1;
            return 0;
        }
    }
    if (!code && !a->job_dir && optind < argc)
        a->graph_path = argv[optind++];
    if (!code && a->csv_path && !a->sweeps.sweep_count)
        code = crystal_error_set(err, EINVAL,
                                 "--csv=%s: is the table of a sweep; give --sweep, too",
                                 a->csv_path);
    if (!code && a->svg_path && a->sweeps.sweep_count)
        code = crystal_error_set(err, EINVAL,
                                 "--draw=%s: a sweep draws nothing; leave out one of "
                                 "--draw and --sweep",
                                 a->svg_path);
    if (!code && ((!a->job_dir && !a->graph_path) || optind < argc))
        *ret_help = -1;
    return code;
}

CRYSTAL_COMMAND(predict)
{
    struct crystal_error err = {0};
    struct predict_args a = {0};
    int wants_help = 0, code, exit_code = 0;

    crystal_heap_prepare();
    crystal_what_if_init(&a.what);
    a.sweeps.threads = crystal_parallel_processors();
    code = args_read(&a, argc, argv, &wants_help, &err);
    if (wants_help)
        help(wants_help > 0 ? stdout : stderr);
    if (code || wants_help < 0)
        exit_code = CRYSTAL_EXIT_USAGE;
    else if (!wants_help && (code = predict(&a, &err)))
        exit_code = a.is_usage ? CRYSTAL_EXIT_USAGE : CRYSTAL_EXIT_STAGE;
    if (code)
        crystal_log(CRYSTAL_LOG_ERROR, "predict", "%s", crystal_error_text(&err));
    predict_sweep_fini(&a.sweeps);
    if (fflush(stdout) != 0 || ferror(stdout))
        exit_code = CRYSTAL_EXIT_STAGE;
    return exit_code;
}
