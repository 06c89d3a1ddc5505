/* scrystal predict: the iteration of all ranks without any of them, and what if. */
#include "config.h"

#include "commands/commands.h"
#include "commands/predict_view.h"

#include "runtime/conf.h"
#include "runtime/layout.h"
#include "runtime/log.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SWEEPS_MAX 8
#define VALUES_MAX 64

struct sweep {
    const char *option;
    char *values[VALUES_MAX]; /* of text */
    uint32_t count, at;
    char *text;
};

struct predict_args {
    const char *job_dir, *graph_path, *profile_path, *svg_path, *csv_path;
    struct crystal_what_if what;
    int is_changed; /* anything but jitter */
    struct sweep sweeps[SWEEPS_MAX];
    uint32_t sweep_count;
    char job_graph[PATH_MAX], job_profile[PATH_MAX]; /* where job_dir names them */
};

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"profile", required_argument, NULL, 'p'},
    {"draw", required_argument, NULL, 'd'},
    {"csv", required_argument, NULL, 'c'},
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
        "  --node-bandwidth=B --node-latency=T   inside nodes\n\n"
        "  --sweep=OPTION=V,V... one run for each value of an option above; may "
        "repeat\n"
        "  --csv=FILE            the sweep's table as comma-separated values\n");
}

/* --- values --- */

static int number(const char *text, double least, double most, double *ret, char **end)
{
    errno = 0;
    *ret = strtod(text, end);
    return errno || *end == text || !(*ret >= least) || !(*ret <= most) ? -EINVAL : 0;
}

static int factor(const char *text, double most, uint32_t *ret_ppm)
{
    double value;
    char *end;

    if (number(text, 0, most, &value, &end) || *end)
        return -EINVAL;
    *ret_ppm = (uint32_t)lround(value * 1e6);
    return 0;
}

static int index_of(const char *text, uint32_t *ret, char **end)
{
    unsigned long value;

    errno = 0;
    value = strtoul(text, end, 10);
    if (errno || *end == text || *text < '0' || *text > '9' || value >= UINT32_MAX)
        return -EINVAL;
    *ret = (uint32_t)value;
    return 0;
}

static int slow_rank(struct crystal_what_if *w, const char *text)
{
    uint32_t lrank, ppm;
    char *end;

    if (w->slow_count == CRYSTAL_WHAT_IF_MAX || index_of(text, &lrank, &end) ||
        *end != '=' || factor(end + 1, 1000, &ppm))
        return -EINVAL;
    w->slow[w->slow_count].lrank = lrank;
    w->slow[w->slow_count++].ppm = ppm;
    return 0;
}

static int slow_link(struct crystal_what_if *w, const char *text)
{
    struct crystal_network_link link;
    char *end;

    if (w->link_count == CRYSTAL_WHAT_IF_MAX || index_of(text, &link.node_a, &end) ||
        *end != ':' || index_of(end + 1, &link.node_b, &end) || *end != '=' ||
        factor(end + 1, 1, &link.left_ppm) || !link.left_ppm)
        return -EINVAL;
    w->links[w->link_count++] = link;
    return 0;
}

static int dead_rank(struct crystal_what_if *w, const char *text)
{
    char *end;

    if (w->dead_count == CRYSTAL_WHAT_IF_MAX ||
        index_of(text, &w->dead[w->dead_count], &end) || *end)
        return -EINVAL;
    w->dead_count++;
    return 0;
}

static int jitter(struct crystal_what_if *w, const char *text)
{
    return factor(text, 1, &w->jitter_ppm);
}

static int seed(struct crystal_what_if *w, const char *text)
{
    char *end;

    errno = 0;
    w->seed = strtoull(text, &end, 0);
    return errno || end == text || *end ? -EINVAL : 0;
}

static int scale_compute(struct crystal_what_if *w, const char *text)
{
    return factor(text, 1000, &w->compute_ppm);
}

static int bandwidth(struct crystal_what_if *w, const char *text)
{
    return crystal_bandwidth_parse(text, &w->bytes_per_s);
}

static int latency(struct crystal_what_if *w, const char *text)
{
    return crystal_duration_parse(text, &w->latency_ns);
}

static int node_bandwidth(struct crystal_what_if *w, const char *text)
{
    return crystal_bandwidth_parse(text, &w->node_bytes_per_s);
}

static int node_latency(struct crystal_what_if *w, const char *text)
{
    return crystal_duration_parse(text, &w->node_latency_ns);
}

static const struct {
    const char *name;
    int (*set)(struct crystal_what_if *w, const char *text);
    int is_change;
} whats[] = {
    {"jitter", jitter, 0},
    {"seed", seed, 0},
    {"slow-rank", slow_rank, 1},
    {"slow-link", slow_link, 1},
    {"dead-rank", dead_rank, 1},
    {"scale-compute", scale_compute, 1},
    {"bandwidth", bandwidth, 1},
    {"latency", latency, 1},
    {"node-bandwidth", node_bandwidth, 1},
    {"node-latency", node_latency, 1},
};

static int what_set(struct crystal_what_if *w, const char *name, const char *text,
                    int *ret_is_change, struct crystal_error *err)
{
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++) {
        if (strcmp(whats[i].name, name) != 0)
            continue;
        if (whats[i].set(w, text))
            return crystal_error_set(
                err, EINVAL, "--%s: bad value '%s'; see scrystal predict --help", name,
                text);
        *ret_is_change |= whats[i].is_change;
        return 0;
    }
    return crystal_error_set(err, EINVAL, "--sweep: there is no option '%s'", name);
}

static int sweep_add(struct predict_args *a, const char *text,
                     struct crystal_error *err)
{
    struct sweep *s = &a->sweeps[a->sweep_count];
    struct crystal_what_if trial;
    char *at;
    int is_change;

    if (a->sweep_count == SWEEPS_MAX || !strchr(text, '='))
        return crystal_error_set(err, EINVAL,
                                 "--sweep=%s: at most %d of OPTION=VALUE,VALUE...",
                                 text, SWEEPS_MAX);
    s->text = strdup(text);
    if (!s->text)
        return crystal_error_set(err, ENOMEM, "out of memory");
    a->sweep_count++;
    s->option = s->text;
    at = strchr(s->text, '=');
    *at++ = 0;
    for (char *rest = at, *value; (value = strsep(&rest, ","));) {
        if (s->count == VALUES_MAX)
            return crystal_error_set(err, EINVAL, "--sweep=%s: more than %d values",
                                     text, VALUES_MAX);
        crystal_what_if_init(&trial);
        if (what_set(&trial, s->option, value, &is_change, err))
            return -EINVAL;
        s->values[s->count++] = value;
    }
    return 0;
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
        else if (steps[i].instr != UINT32_MAX &&
                 (i < 4 || i + 4 >= count || count < 10))
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

static int draw(const struct predict_args *a, const struct crystal_prediction *pr,
                const struct crystal_path *path, const struct crystal_predict_totals *t,
                struct crystal_error *err)
{
    FILE *out = fopen(a->svg_path, "we");

    if (!out)
        return crystal_error_set(err, errno, "%s: %s", a->svg_path, strerror(errno));
    crystal_predict_draw_svg(out, pr, path, t);
    if ((ferror(out) | fclose(out)) != 0)
        return crystal_error_set(err, EIO, "%s: cannot be written", a->svg_path);
    printf("\n%s: the drawing\n", a->svg_path);
    return 0;
}

static int show(const struct predict_args *a, const struct crystal_prediction *pr,
                struct crystal_error *err)
{
    struct crystal_predict_totals totals = {NULL, NULL};
    struct crystal_path path = {NULL, 0};
    int code = crystal_predict_totals_init(&totals, pr, err);

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
static int base_ns(const struct crystal_predict *p, const struct crystal_what_if *what,
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

static double percent_more(uint64_t ns, uint64_t than_ns)
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
        code = base_ns(p, &a->what, &base, err);
    if (code)
        return code;
    pr = crystal_predict_run(p, &a->what, 1, err);
    if (!pr)
        return -EINVAL;
    if (pr->stuck_count) {
        code = runs_dead(pr);
    } else {
        print_head(pr);
        if (a->is_changed)
            printf("  without what is changed: %.3f ms, so %+.2f %%\n",
                   (double)base / 1e6, percent_more(pr->iteration_ns, base));
        code = show(a, pr, err);
    }
    crystal_prediction_destroy(pr);
    return code;
}

/* --- sweeps --- */

static int sweep_run(struct predict_args *a, const struct crystal_predict *p,
                     uint64_t base, FILE *csv, struct crystal_error *err)
{
    struct crystal_what_if what = a->what;
    struct crystal_prediction *pr;
    int is_change;

    for (uint32_t i = 0; i < a->sweep_count; i++)
        if (what_set(&what, a->sweeps[i].option, a->sweeps[i].values[a->sweeps[i].at],
                     &is_change, err))
            return -EINVAL;
    pr = crystal_predict_run(p, &what, 0, err);
    if (!pr)
        return -EINVAL;
    for (uint32_t i = 0; i < a->sweep_count; i++) {
        printf("%-16s ", a->sweeps[i].values[a->sweeps[i].at]);
        if (csv)
            fprintf(csv, "%s,", a->sweeps[i].values[a->sweeps[i].at]);
    }
    if (pr->stuck_count) {
        printf("%14s\n", "never");
        if (csv)
            fprintf(csv, ",\n");
    } else {
        printf("%14.3f %+9.2f\n", (double)pr->iteration_ns / 1e6,
               percent_more(pr->iteration_ns, base));
        if (csv)
            fprintf(csv, "%" PRIu64 ",%.4f\n", pr->iteration_ns,
                    percent_more(pr->iteration_ns, base));
    }
    crystal_prediction_destroy(pr);
    return 0;
}

/* The next combination; 0 behind the last one. */
static int sweep_next(struct predict_args *a)
{
    for (uint32_t i = a->sweep_count; i-- > 0;) {
        if (++a->sweeps[i].at < a->sweeps[i].count)
            return 1;
        a->sweeps[i].at = 0;
    }
    return 0;
}

static int run_sweep(struct predict_args *a, const struct crystal_predict *p,
                     struct crystal_error *err)
{
    FILE *csv = a->csv_path ? fopen(a->csv_path, "we") : NULL;
    uint64_t base;
    int code;

    if (a->csv_path && !csv)
        return crystal_error_set(err, errno, "%s: %s", a->csv_path, strerror(errno));
    code = base_ns(p, &a->what, &base, err);
    for (uint32_t i = 0; !code && i < a->sweep_count; i++) {
        printf("%-16s ", a->sweeps[i].option);
        if (csv)
            fprintf(csv, "%s,", a->sweeps[i].option);
    }
    if (!code)
        printf("%14s %9s\n", "iteration ms", "%");
    if (!code && csv)
        fprintf(csv, "iteration_ns,percent\n");
    if (!code)
        do
            code = sweep_run(a, p, base, csv, err);
        while (!code && sweep_next(a));
    if (csv && (ferror(csv) | fclose(csv)) != 0 && !code)
        code = crystal_error_set(err, EIO, "%s: cannot be written", a->csv_path);
    return code;
}

/* --- files --- */

/* A job directory may have been laid out anew since its graph was made. */
static int is_of_another_layout(const struct predict_args *a,
                                const struct crystal_graph *g,
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
    crystal_layout_fini(&layout);
    if (crystal_graph_fingerprint(g) == fingerprint)
        return 0;
    return crystal_error_set(err, ESTALE,
                             "%s: made for another program or layout; run 'scrystal "
                             "capture' and 'scrystal graph' again",
                             a->graph_path);
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
    code = crystal_predict_init(&p, g, profile, err);
    if (!code)
        code = a->sweep_count ? run_sweep(a, &p, err) : run_one(a, &p, err);
    crystal_predict_fini(&p);
    crystal_profile_close(profile);
    crystal_graph_close(g);
    return code;
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
        case 's':
            code = sweep_add(a, optarg, err);
            break;
        case 'w':
            code = what_set(&a->what, long_options[index].name, optarg, &a->is_changed,
                            err);
            break;
        default:
            *ret_help = option == 'h' ? 1 : -1;
            return 0;
        }
    }
    if (!code && !a->job_dir && optind < argc)
        a->graph_path = argv[optind++];
    if (!code && ((!a->job_dir && !a->graph_path) || optind < argc))
        *ret_help = -1;
    return code;
}

CRYSTAL_COMMAND(predict)
{
    struct crystal_error err = {0};
    struct predict_args a = {0};
    int wants_help = 0, code, exit_code = 0;

    crystal_what_if_init(&a.what);
    code = args_read(&a, argc, argv, &wants_help, &err);
    if (wants_help)
        help(wants_help > 0 ? stdout : stderr);
    if (code || wants_help < 0)
        exit_code = CRYSTAL_EXIT_USAGE;
    else if (!wants_help && (code = predict(&a, &err)))
        exit_code = CRYSTAL_EXIT_STAGE;
    if (code)
        crystal_log(CRYSTAL_LOG_ERROR, "predict", "%s", crystal_error_text(&err));
    for (uint32_t i = 0; i < a.sweep_count; i++)
        free(a.sweeps[i].text);
    if (fflush(stdout) != 0 || ferror(stdout))
        exit_code = CRYSTAL_EXIT_STAGE;
    return exit_code;
}
