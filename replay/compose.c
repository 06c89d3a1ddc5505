/* Plan's traces -> job.profile. See compose.h.
 *
 * Every rank of a slice measures for the representative that stands for it. The
 * timeline then runs all ranks with the mean gaps, and with their 10th and 90th
 * percentiles for the spread.
 */
#include "config.h"

#include "replay/compose.h"

#include "replay/measure.h"
#include "replay/overhead.h"
#include "replay/slices.h"
#include "runtime/filehead.h"
#include "runtime/graph_build.h"
#include "runtime/iteration.h"
#include "runtime/layout.h"
#include "runtime/log.h"
#include "runtime/profile_file.h"
#include "runtime/timeline.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITERATIONS 8 /* composed; the first one fills pipelines and is left out */

struct compose {
    const char *job_dir;
    crystal_compose_calibrate *calibrate;
    struct crystal_layout layout;
    struct crystal_graph *graph;
    struct crystal_slices slices;
    uint32_t rep_count, lrank_count;
    struct crystal_program **programs; /* by representative */
    struct crystal_measure *measures;  /* by representative */
    struct crystal_trace *traces;      /* by index in slices.ranks */
    struct crystal_profile_image image;
    struct crystal_profile_rep *reps;
    struct crystal_profile_op *ops;
    struct crystal_profile_iteration *iterations;
    uint64_t **gaps; /* by representative, for the timeline */
    /* of the running composition */
    uint64_t *sum_ns, *count; /* by lrank */
    uint64_t *end_count;      /* by op: ends added to composed_ns */
    bool takes_ops;
};

static int no_memory(struct crystal_error *err)
{
    return crystal_error_set(err, ENOMEM, "out of memory");
}

static int path_of(const struct compose *c, char path[PATH_MAX], const char *name,
                   struct crystal_error *err)
{
    if (snprintf(path, PATH_MAX, "%s/%s", c->job_dir, name) >= PATH_MAX)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", c->job_dir);
    return 0;
}

static int open_parents(struct compose *c, struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = path_of(c, path, "layout.yaml", err);

    if (!code)
        code = crystal_layout_read(path, &c->layout, err);
    if (!code)
        code = path_of(c, path, "job.graph", err);
    if (code)
        return code;
    c->graph = crystal_graph_open(path, err);
    if (!c->graph)
        return -EINVAL;
    if (crystal_graph_fingerprint(c->graph) != c->layout.fingerprint ||
        crystal_graph_lrank_count(c->graph) != c->layout.lrank_count)
        return crystal_error_set(
            err, ESTALE,
            "%s: made for another program or layout; run 'scrystal "
            "capture' and 'scrystal graph' again",
            path);
    code = crystal_graph_check_parent(c->graph, c->job_dir, err);
    if (code)
        return code;
    c->rep_count = crystal_graph_rep_count(c->graph);
    c->lrank_count = c->layout.lrank_count;
    c->programs = calloc(c->rep_count, sizeof(*c->programs));
    c->measures = calloc(c->rep_count, sizeof *c->measures);
    c->reps = calloc(c->rep_count, sizeof *c->reps);
    c->gaps = calloc(c->rep_count, sizeof(*c->gaps));
    c->iterations = calloc(c->lrank_count, sizeof *c->iterations);
    c->sum_ns = calloc(c->lrank_count, sizeof *c->sum_ns);
    c->count = calloc(c->lrank_count, sizeof *c->count);
    code = crystal_slices_make(c->graph, &c->layout, &c->slices, err);
    if (code)
        return code;
    c->traces = calloc(c->slices.first[c->slices.count], sizeof *c->traces);
    if (!c->programs || !c->measures || !c->reps || !c->gaps || !c->iterations ||
        !c->sum_ns || !c->count || !c->traces)
        return no_memory(err);
    for (uint32_t i = 0; i < c->rep_count; i++) {
        c->programs[i] = crystal_program_create(c->graph, i, err);
        if (!c->programs[i])
            return -EINVAL;
        c->measures[i].instr_count = c->programs[i]->instr_count;
    }
    return 0;
}

/* One measured rank's trace. */
static int measure_rank(struct compose *c, uint32_t slice, uint32_t index,
                        struct crystal_overhead *o, uint64_t *parent,
                        struct crystal_error *err)
{
    uint32_t lrank = c->slices.ranks[index], mark_count, first;
    uint32_t rep = crystal_graph_rep_of(c->graph, lrank);
    struct crystal_trace *t = &c->traces[index];
    char path[PATH_MAX], name[32];
    uint64_t *marks = NULL, pair[2];
    int code;

    (void)snprintf(name, sizeof name, "plan/%u.trace", lrank);
    code = path_of(c, path, name, err);
    if (!code)
        code = crystal_trace_read(path, t, err);
    if (code)
        return code;
    if (t->head.lrank != lrank || t->head.fingerprint != c->layout.fingerprint)
        return crystal_error_set(err, ESTALE,
                                 "%s: of another rank, program or layout; run "
                                 "'scrystal plan' again",
                                 path);
    if (crystal_iteration_find(t->ops, t->op_count, &marks, &mark_count))
        return no_memory(err);
    if (mark_count < 2)
        code = crystal_error_set(err, ENODATA,
                                 "%s: no repeating iterations; run 'scrystal plan' "
                                 "again with more of them",
                                 path);
    first = mark_count > 2 ? 1 : 0;
    if (!code)
        code = crystal_measure_add(&c->measures[rep], c->programs[rep], t->ops,
                                   t->op_count, marks, mark_count, first, err);
    if (!code)
        code = crystal_overhead_add(o, c->graph, slice, lrank, t->ops, t->op_count,
                                    marks[first], err);
    if (code)
        crystal_error_prefix(err, "rank %u", lrank);
    if (!code && mark_count - 1 - first > c->image.head.iteration_count)
        c->image.head.iteration_count = mark_count - 1 - first;
    free(marks);
    pair[0] = *parent;
    pair[1] = crystal_hash(t->ops, t->op_count * sizeof *t->ops);
    *parent = crystal_hash(pair, sizeof pair);
    return code;
}

static int measure_all(struct compose *c, struct crystal_error *err)
{
    struct crystal_profile_head *h = &c->image.head;
    struct crystal_overhead *o = crystal_overhead_create();
    struct crystal_transfer_wire wire = {
        c->layout.wire_bytes_per_s, c->layout.wire_latency_ns, 0, 1, 0, 0, 0,
        CRYSTAL_PROTO_SIMPLE};
    uint64_t parent = crystal_graph_hash(c->graph);
    int code = o ? 0 : no_memory(err);

    for (uint32_t s = 0; s < c->slices.count; s++)
        for (uint32_t i = c->slices.first[s]; !code && i < c->slices.first[s + 1]; i++)
            code = measure_rank(c, s, i, o, &parent, err);
    if (!code)
        code = crystal_overhead_find(o, &wire, &h->overhead_sample_count, err);
    crystal_overhead_destroy(o);
    h->overhead_origin =
        h->overhead_sample_count ? CRYSTAL_ORIGIN_MEASURED : CRYSTAL_ORIGIN_MODELLED;
    if (!code && !h->overhead_sample_count && c->lrank_count > 1 && c->calibrate)
        code = c->calibrate(c->layout.sandbox_count, &wire, &h->overhead_sample_count,
                            err);
    h->overhead_ns = wire.overhead_ns;
    h->op_overhead_ns = wire.op_overhead_ns;
    h->lrank_count = c->lrank_count;
    h->rep_count = c->rep_count;
    h->graph_hash = crystal_graph_hash(c->graph);
    h->wire_bytes_per_s = wire.bytes_per_s;
    h->wire_latency_ns = wire.latency_ns;
    h->measured_count = c->slices.first[c->slices.count];
    c->image.parent_hash = parent;
    c->image.fingerprint = c->layout.fingerprint;
    return code;
}

static int summarise(struct compose *c, struct crystal_error *err)
{
    uint64_t *column = NULL, used = 0;
    uint32_t most = 1;

    for (uint32_t i = 0; i < c->rep_count; i++) {
        c->reps[i].origin = CRYSTAL_ORIGIN_MEASURED;
        c->reps[i].lrank = crystal_graph_rep_lrank(c->graph, i);
        c->reps[i].instr_count = c->programs[i]->instr_count;
        c->reps[i].op_first = used;
        c->reps[i].sample_count = c->measures[i].sample_count;
        used += c->programs[i]->instr_count;
        if (c->measures[i].sample_count > most)
            most = c->measures[i].sample_count;
    }
    c->image.head.op_count = used;
    c->ops = calloc(used + 1, sizeof *c->ops);
    c->end_count = calloc(used + 1, sizeof *c->end_count);
    column = malloc(most * sizeof *column);
    if (!c->ops || !c->end_count || !column) {
        free(column);
        return no_memory(err);
    }
    for (uint32_t i = 0; i < c->rep_count; i++) {
        const struct crystal_measure *m = &c->measures[i];

        for (uint32_t k = 0; k < m->instr_count; k++) {
            struct crystal_profile_op *op = &c->ops[c->reps[i].op_first + k];

            for (uint32_t s = 0; s < m->sample_count; s++)
                column[s] = m->gap_ns[(size_t)s * m->instr_count + k];
            (void)crystal_measure_spread(column, m->sample_count, &op->gap_ns,
                                         &op->gap_p10_ns, &op->gap_p90_ns);
            for (uint32_t s = 0; s < m->sample_count; s++)
                column[s] = m->transfer_ns[(size_t)s * m->instr_count + k];
            (void)crystal_measure_spread(column, m->sample_count, &op->transfer_ns,
                                         &op->transfer_p10_ns, &op->transfer_p90_ns);
        }
    }
    free(column);
    return 0;
}

/* --- composing --- */

static void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns)
{
    struct compose *c = context;

    if (iteration == 0)
        return;
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

enum which { MEAN, P10, P90 };

static int run(struct compose *c, enum which which, struct crystal_error *err)
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
                                             .context = c,
                                             .on_iteration = on_iteration,
                                             .on_end = on_end};
    struct crystal_timeline *timeline;
    int code;

    for (uint32_t i = 0; i < c->rep_count; i++)
        for (uint32_t k = 0; k < c->programs[i]->instr_count; k++) {
            const struct crystal_profile_op *op = &c->ops[c->reps[i].op_first + k];

            c->gaps[i][k] = which == MEAN  ? op->gap_ns
                            : which == P10 ? op->gap_p10_ns
                                           : op->gap_p90_ns;
        }
    memset(c->sum_ns, 0, c->lrank_count * sizeof *c->sum_ns);
    memset(c->count, 0, c->lrank_count * sizeof *c->count);
    c->takes_ops = which == MEAN;
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
    for (uint32_t r = 0; !code && r < c->lrank_count; r++) {
        uint64_t ns = c->sum_ns[r] / c->count[r];

        if (which == MEAN)
            c->iterations[r].mean_ns = ns;
        else if (which == P10)
            c->iterations[r].p10_ns = ns;
        else
            c->iterations[r].p90_ns = ns;
    }
    return code;
}

static int compose_all(struct compose *c, struct crystal_error *err)
{
    int code = 0;

    for (uint32_t i = 0; i < c->rep_count; i++) {
        c->gaps[i] = calloc(c->programs[i]->instr_count + 1, sizeof *c->gaps[i]);
        if (!c->gaps[i])
            return no_memory(err);
    }
    code = run(c, MEAN, err);
    if (!code)
        code = run(c, P10, err);
    if (!code)
        code = run(c, P90, err);
    for (uint64_t i = 0; !code && i < c->image.head.op_count; i++)
        if (c->end_count[i])
            c->ops[i].composed_ns /= c->end_count[i];
    return code;
}

static void compose_fini(struct compose *c)
{
    for (uint32_t i = 0; i < c->rep_count; i++) {
        if (c->programs)
            crystal_program_destroy(c->programs[i]);
        if (c->measures)
            crystal_measure_fini(&c->measures[i]);
        if (c->gaps)
            free(c->gaps[i]);
    }
    for (uint32_t i = 0; c->traces && i < c->slices.first[c->slices.count]; i++)
        crystal_trace_fini(&c->traces[i]);
    crystal_slices_fini(&c->slices);
    free(c->programs);
    free(c->measures);
    free(c->gaps);
    free(c->traces);
    free(c->reps);
    free(c->ops);
    free(c->iterations);
    free(c->sum_ns);
    free(c->count);
    free(c->end_count);
    crystal_graph_close(c->graph);
    crystal_layout_fini(&c->layout);
}

static void compare_passes(struct compose *c, const struct crystal_compose_before *b)
{
    double mean_ns = 0, off;

    for (uint32_t i = 0; i < c->layout.sandbox_count; i++)
        mean_ns += (double)c->iterations[c->layout.sandbox[i]].mean_ns;
    mean_ns /= c->layout.sandbox_count;
    if (!b->pass_count || b->mean_ns <= 0)
        return;
    off = 1e6 * (mean_ns / b->mean_ns - 1);
    c->image.head.pass_count = b->pass_count + 1;
    c->image.head.pass_off_ppm = off < INT32_MAX ? (int32_t)off : INT32_MAX;
}

int crystal_plan_compose(const char *job_dir, crystal_compose_calibrate *calibrate,
                         const struct crystal_compose_before *before,
                         struct crystal_error *err)
{
    struct compose c;
    char path[PATH_MAX];
    int code;

    memset(&c, 0, sizeof c);
    c.job_dir = job_dir;
    c.calibrate = calibrate;
    code = path_of(&c, path, "job.profile", err);
    if (!code)
        code = open_parents(&c, err);
    if (!code)
        code = measure_all(&c, err);
    if (!code)
        code = summarise(&c, err);
    if (!code)
        code = compose_all(&c, err);
    if (!code) {
        compare_passes(&c, before);
        c.image.reps = c.reps;
        c.image.ops = c.ops;
        c.image.iterations = c.iterations;
        code = crystal_profile_write(path, &c.image, err);
    }
    compose_fini(&c);
    return code;
}
