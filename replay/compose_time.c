/* Composing: the timeline with what was measured. See compose.h. */
#include "config.h"

#include "replay/compose_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Composed; the first one fills pipelines and is left out. */
#define ITERATIONS 8
#define DRAWS      20 /* iterations of which each rank's are drawn */

/* Parts that compose less than was measured are stretched; see compose.h. */
#define STRETCH_TRIALS 4
#define STRETCH_NEAR   0.002 /* near enough */
#define STRETCH_MOST   10

double cp_contended_ns(const struct compose *c)
{
    double most_ns = 0;

    for (uint32_t s = 0; c->pass->cpu_count && s < c->slices.count; s++) {
        uint32_t count = c->slices.first[s + 1] - c->slices.first[s];

        if (count > c->pass->cpu_count && c->slice_ns[s] / count > most_ns)
            most_ns = c->slice_ns[s] / count;
    }
    return most_ns;
}

static void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns)
{
    struct compose *c = context;

    if (iteration == 0)
        return;
    if (c->drawn_ns)
        c->drawn_ns[(size_t)lrank * DRAWS + iteration - 1] = end_ns - begin_ns;
    c->sum_ns[lrank] += end_ns - begin_ns;
    c->count[lrank]++;
}

static void on_end(void *context, uint32_t lrank, uint64_t iteration, uint32_t instr,
                   uint64_t arrive_ns, uint64_t end_ns)
{
    struct compose *c = context;
    uint32_t rep = crystal_graph_rep_of(c->graph, lrank);
    uint64_t at = c->reps[rep].op_first + instr;

    if (iteration == 0 || !c->takes_ops || c->reps[rep].lrank != lrank)
        return;
    c->ops[at].composed_ns += end_ns - arrive_ns;
    c->end_count[at]++;
}

/* One timeline of all ranks, with each one's mean computation or, where c->drawn_ns is
 * not NULL, with what each draws for each iteration. */
static int run(struct compose *c, struct crystal_error *err)
{
    struct crystal_transfer_wire wire = {c->layout.wire_bytes_per_s,
                                         c->layout.wire_latency_ns,
                                         c->image.head.overhead_ns,
                                         1,
                                         c->image.head.op_overhead_ns,
                                         0,
                                         0,
                                         CRYSTAL_PROTO_SIMPLE};
    struct crystal_timeline_config config = {.graph = c->graph,
                                             .programs = c->programs,
                                             .gap_ns = (const uint64_t *const *)c->gaps,
                                             .wire = wire,
                                             .nics = CRYSTAL_NICS_OF_ALL,
                                             .iterations = ITERATIONS,
                                             .samples = c->drawn_ns ? c->samples : NULL,
                                             .draws_together = cp_contended_ns(c) > 0,
                                             .scale_ppm =
                                                 c->drawn_ns ? c->scale_ppm : NULL,
                                             .context = c,
                                             .on_iteration = on_iteration,
                                             .on_end = on_end};
    struct crystal_timeline *timeline;
    int code;

    for (uint32_t i = 0; i < c->rep_count; i++)
        for (uint32_t k = 0; k < c->programs[i]->instr_count; k++)
            c->gaps[i][k] = c->ops[c->reps[i].op_first + k].gap_ns;
    memset(c->sum_ns, 0, c->lrank_count * sizeof *c->sum_ns);
    memset(c->count, 0, c->lrank_count * sizeof *c->count);
    if (c->drawn_ns)
        config.iterations = 1 + DRAWS;
    config.wire.algos = crystal_transfer_algos(getenv("NCCL_ALGO")) &
                        CRYSTAL_TRANSFER_TREE; /* as hostccl */
    config.wire.proto = crystal_transfer_proto(getenv("NCCL_PROTO"));
    timeline = crystal_timeline_create(&config, err);
    if (!timeline)
        return -EINVAL;
    code = crystal_timeline_start(timeline, 1, err);
    if (!code)
        code = crystal_timeline_advance(timeline, UINT64_MAX, err);
    if (!code)
        code = crystal_timeline_explain(timeline, err);
    crystal_timeline_destroy(timeline);
    return code;
}

static int run_mean(struct compose *c, bool takes_ops, struct crystal_error *err)
{
    int code;

    c->takes_ops = takes_ops;
    code = run(c, err);
    c->takes_ops = false;
    for (uint32_t r = 0; !code && r < c->lrank_count; r++)
        c->iterations[r].mean_ns = c->sum_ns[r] / c->count[r];
    return code;
}

/* How much iterations differ: percentiles over those that are composed of what was
 * measured in single ones, stretched as the means are. Where ranks share CPUs, one that
 * computes longer keeps others from it, which replicas on CPUs of their own do not
 * feel: all draw the same iteration. */
static int run_drawn(struct compose *c, struct crystal_error *err)
{
    uint64_t mean_ns;
    int code;

    c->samples = calloc(c->rep_count, sizeof *c->samples);
    c->scale_ppm = malloc(c->lrank_count * sizeof *c->scale_ppm);
    c->drawn_ns = calloc((size_t)c->lrank_count * DRAWS, sizeof *c->drawn_ns);
    if (!c->samples || !c->scale_ppm || !c->drawn_ns)
        return cp_no_memory(err);
    for (uint32_t i = 0; i < c->rep_count; i++)
        c->samples[i] = (struct crystal_timeline_samples){c->measures[i].sample_count,
                                                          c->measures[i].gap_ns};
    for (uint32_t r = 0; r < c->lrank_count; r++)
        c->scale_ppm[r] = 1000000 + c->image.head.stretch_ppm;
    code = run(c, err);
    for (uint32_t r = 0; !code && r < c->lrank_count; r++)
        (void)crystal_measure_spread(c->drawn_ns + (size_t)r * DRAWS, DRAWS, &mean_ns,
                                     &c->iterations[r].p10_ns,
                                     &c->iterations[r].p90_ns);
    return code;
}

double cp_sandbox_mean(const struct compose *c)
{
    double mean_ns = 0;

    for (uint32_t i = 0; i < c->layout.sandbox_count; i++)
        mean_ns += (double)c->iterations[c->layout.sandbox[i]].mean_ns;
    return mean_ns / c->layout.sandbox_count;
}

static void stretch_ops(struct compose *c, double by)
{
    for (uint64_t i = 0; i < c->image.head.op_count; i++) {
        struct crystal_profile_op *op = &c->ops[i];

        op->gap_ns = (uint64_t)((double)op->gap_ns * by + 0.5);
        op->gap_p10_ns = (uint64_t)((double)op->gap_p10_ns * by + 0.5);
        op->gap_p90_ns = (uint64_t)((double)op->gap_p90_ns * by + 0.5);
    }
}

/* Composed time grows with computation nearly in a straight line: the secant of the
 * last two trials. */
static int stretch(struct compose *c, struct crystal_error *err)
{
    const double real_ns = cp_contended_ns(c);
    double near = c->layout.plan_tolerance_ppm / 1e6; /* parts that do are left alone */
    double by = 1, next = 1, last_by = 1, last_ns = 0, mean_ns;
    int code = 0;

    for (int trial = 0; real_ns > 0 && trial < STRETCH_TRIALS; trial++) {
        stretch_ops(c, next / by);
        by = next;
        code = run_mean(c, false, err);
        if (code)
            break;
        mean_ns = cp_sandbox_mean(c);
        if (mean_ns >= real_ns * (1 - near) &&
            (trial == 0 || mean_ns <= real_ns * (1 + near)))
            break;
        near = STRETCH_NEAR;
        next = trial ? by + (real_ns - mean_ns) * (by - last_by) / (mean_ns - last_ns)
                     : real_ns / mean_ns;
        last_by = by;
        last_ns = mean_ns;
        if (!(next > 1 && next < STRETCH_MOST))
            break; /* it does not depend on computation */
    }
    c->image.head.stretch_ppm = (uint32_t)((by - 1) * 1e6 + 0.5);
    return code;
}

int cp_compose(struct compose *c, struct crystal_error *err)
{
    int code = 0;

    for (uint32_t i = 0; i < c->rep_count; i++) {
        c->gaps[i] = calloc(c->programs[i]->instr_count + 1, sizeof *c->gaps[i]);
        if (!c->gaps[i])
            return cp_no_memory(err);
    }
    code = stretch(c, err);
    if (!code)
        code = run_mean(c, true, err);
    if (!code)
        code = run_drawn(c, err);
    for (uint64_t i = 0; !code && i < c->image.head.op_count; i++)
        if (c->end_count[i])
            c->ops[i].composed_ns /= c->end_count[i];
    return code;
}
