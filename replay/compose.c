/* Plan's traces -> job.profile. See compose.h.
 *
 * Every rank of a slice measures for the representative that stands for it. The
 * timeline then runs all ranks with the mean gaps, and for the spread with gaps of
 * measured iterations that each rank draws.
 */
#include "config.h"

#include "replay/compose_internal.h"

#include "replay/overhead.h"
#include "replay/ways.h"
#include "runtime/filehead.h"
#include "runtime/graph_build.h"
#include "runtime/trace_work.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cp_no_memory(struct crystal_error *err)
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
    c->waited = calloc(c->rep_count, sizeof(*c->waited));
    c->iterations = calloc(c->lrank_count, sizeof *c->iterations);
    c->sum_ns = calloc(c->lrank_count, sizeof *c->sum_ns);
    c->count = calloc(c->lrank_count, sizeof *c->count);
    code = crystal_slices_make(c->graph, &c->layout, &c->slices, err);
    if (code)
        return code;
    c->traces = calloc(c->slices.first[c->slices.count], sizeof *c->traces);
    c->slice_ns = calloc(c->slices.count, sizeof *c->slice_ns);
    if (!c->slice_ns || !c->programs || !c->measures || !c->reps || !c->gaps ||
        !c->waited || !c->iterations || !c->sum_ns || !c->count || !c->traces)
        return cp_no_memory(err);
    for (uint32_t i = 0; i < c->rep_count; i++) {
        c->programs[i] = crystal_program_create(c->graph, i, err);
        if (!c->programs[i])
            return -EINVAL;
        c->measures[i].instr_count = c->programs[i]->instr_count;
        c->gaps[i] = calloc(c->programs[i]->instr_count + 1, sizeof *c->gaps[i]);
        c->waited[i] = calloc(c->programs[i]->instr_count + 1, sizeof *c->waited[i]);
        if (!c->gaps[i] || !c->waited[i])
            return cp_no_memory(err);
    }
    return 0;
}

/* When the program went on from a mark: DONE records, which other threads append, may
 * stand there and tell of before. */
static uint64_t mark_ns(const struct crystal_trace *t, uint64_t mark)
{
    uint64_t i = mark;

    while (i < t->op_count && !crystal_program_is_instr(&t->ops[i]) &&
           t->ops[i].kind != CRYSTAL_OP_END)
        i++;
    while (i == t->op_count || t->ops[i].kind == CRYSTAL_OP_DONE)
        i--; /* a trace begins with another record */
    return t->ops[i].t_ns;
}

/* Mean time from one iteration's beginning to the next one's. The last mark is an end,
 * counted where there is no other. */
static double iteration_ns(const struct crystal_trace *t, const uint64_t *marks,
                           uint32_t mark_count)
{
    uint32_t count = mark_count > 2 ? mark_count - 2 : 1;
    uint64_t begin_ns = mark_ns(t, marks[0]), end_ns = mark_ns(t, marks[count]);

    return end_ns > begin_ns ? (double)(end_ns - begin_ns) / count : 0;
}

/* What the rank's net plugin saw of its calls. */
static int ways_add(struct compose *c, uint32_t lrank, const struct crystal_trace *t,
                    const uint64_t *marks, uint32_t mark_count, uint32_t first,
                    struct crystal_error *err)
{
    uint32_t rep = crystal_graph_rep_of(c->graph, lrank);
    char path[PATH_MAX], name[32];
    int code;

    (void)snprintf(name, sizeof name, "plan/%u.run", lrank);
    code = path_of(c, path, name, err);
    return code ? code
                : crystal_ways_add(path, c->graph, t, marks, mark_count, first,
                                   c->programs[rep], c->waited[rep], err);
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
    code = crystal_trace_place_work(t, err);
    if (code) {
        crystal_error_prefix(err, "%s", path);
        return code;
    }
    code = cp_marks_find(c, rep, t, &marks, &mark_count, err);
    if (code) {
        crystal_error_prefix(err, "%s", path);
        return code;
    }
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
        code = ways_add(c, lrank, t, marks, mark_count, first, err);
    if (!code)
        code = crystal_overhead_add(o, c->graph, slice, lrank, t->ops, t->op_count,
                                    marks[first], err);
    if (code)
        crystal_error_prefix(err, "rank %u", lrank);
    else
        c->slice_ns[slice] += iteration_ns(t, marks + first, mark_count - first);
    if (!code && mark_count - 1 - first > c->image.head.iteration_count)
        c->image.head.iteration_count = mark_count - 1 - first;
    free(marks);
    pair[0] = *parent;
    pair[1] = crystal_hash(t->ops, t->op_count * sizeof *t->ops);
    *parent = crystal_hash(pair, sizeof pair);
    return code;
}

/* What a message costs, by the collectives of slices whose ranks have a CPU each, else
 * by a few processes that have. */
static int find_cost(struct compose *c, struct crystal_overhead *o,
                     struct crystal_transfer_wire *wire, struct crystal_error *err)
{
    struct crystal_profile_head *h = &c->image.head;
    uint32_t rank_count = c->layout.sandbox_count, cpu_count = c->pass->cpu_count;
    int code = 0;

    if (c->pass->has_device) {
        h->overhead_origin = CRYSTAL_ORIGIN_MEASURED;
        return 0; /* compose_cost.c */
    }
    if (!cp_is_contended(c))
        code = crystal_overhead_find(o, wire, &h->overhead_sample_count, err);
    h->overhead_origin =
        h->overhead_sample_count ? CRYSTAL_ORIGIN_MEASURED : CRYSTAL_ORIGIN_MODELLED;
    if (code || h->overhead_sample_count || c->lrank_count < 2 || !c->calibrate)
        return code;
    if (cpu_count && cpu_count < rank_count)
        rank_count = cpu_count;
    return c->calibrate(rank_count, wire, &h->overhead_sample_count, err);
}

static int measure_all(struct compose *c, struct crystal_error *err)
{
    struct crystal_profile_head *h = &c->image.head;
    struct crystal_overhead *o = crystal_overhead_create();
    struct crystal_transfer_wire wire = {
        c->layout.wire_bytes_per_s, c->layout.wire_latency_ns, 0, 1, 0, 0, 0,
        CRYSTAL_PROTO_SIMPLE};
    uint64_t parent = crystal_graph_hash(c->graph);
    int code = o ? 0 : cp_no_memory(err);

    for (uint32_t s = 0; s < c->slices.count; s++)
        for (uint32_t i = c->slices.first[s]; !code && i < c->slices.first[s + 1]; i++)
            code = measure_rank(c, s, i, o, &parent, err);
    if (!code)
        code = find_cost(c, o, &wire, err);
    crystal_overhead_destroy(o);
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
        return cp_no_memory(err);
    }
    for (uint32_t i = 0; i < c->rep_count; i++) {
        const struct crystal_measure *m = &c->measures[i];

        for (uint32_t k = 0; k < m->instr_count; k++) {
            struct crystal_profile_op *op = &c->ops[c->reps[i].op_first + k];

            if (c->programs[i]->instrs[k].kind == CRYSTAL_OP_COLL)
                op->way = c->programs[i]->instrs[k].flags & CRYSTAL_OP_WAY_MASK;
            for (uint32_t s = 0; s < m->sample_count; s++)
                column[s] = m->gap_ns[(size_t)s * m->instr_count + k];
            (void)crystal_measure_spread(column, m->sample_count, &op->gap_ns,
                                         &op->gap_p10_ns, &op->gap_p90_ns);
            for (uint32_t s = 0; s < m->sample_count; s++)
                column[s] = m->transfer_ns[(size_t)s * m->instr_count + k];
            (void)crystal_measure_spread(column, m->sample_count, &op->transfer_ns,
                                         &op->transfer_p10_ns, &op->transfer_p90_ns);
            crystal_program_last(&c->programs[i]->instrs[k], op->transfer_ns);
            if (m->sample_count)
                c->waited[i][k] /= m->sample_count;
        }
    }
    free(column);
    return 0;
}

/* Work of the device that this pass has not measured lasts as long as in the one
 * before.
 */
static int kernels_keep(struct compose *c, const char *path, struct crystal_error *err)
{
    struct crystal_profile *before;
    int code;

    if (!c->pass->has_device || !c->pass->before_count)
        return 0;
    before = crystal_profile_open(path, err);
    if (!before)
        return -EIO;
    code = crystal_profile_check(before, c->graph, c->programs, err);
    for (uint32_t i = 0; !code && i < c->rep_count; i++)
        for (uint32_t k = 0; k < c->programs[i]->instr_count; k++) {
            const struct crystal_profile_op *was = &crystal_profile_ops(before, i)[k];
            struct crystal_profile_op *op = &c->ops[c->reps[i].op_first + k];

            if (c->programs[i]->instrs[k].kind != CRYSTAL_OP_KERNEL || op->transfer_ns)
                continue;
            op->transfer_ns = was->transfer_ns;
            op->transfer_p10_ns = was->transfer_p10_ns;
            op->transfer_p90_ns = was->transfer_p90_ns;
            crystal_program_last(&c->programs[i]->instrs[k], op->transfer_ns);
        }
    crystal_profile_close(before);
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
        if (c->waited)
            free(c->waited[i]);
    }
    for (uint32_t i = 0; c->traces && i < c->slices.first[c->slices.count]; i++)
        crystal_trace_fini(&c->traces[i]);
    crystal_slices_fini(&c->slices);
    free(c->programs);
    free(c->measures);
    free(c->gaps);
    free(c->waited);
    free(c->traces);
    free(c->slice_ns);
    free(c->reps);
    free(c->ops);
    free(c->iterations);
    free(c->sum_ns);
    free(c->count);
    free(c->end_count);
    free(c->samples);
    free(c->drawn_ns);
    crystal_graph_close(c->graph);
    crystal_layout_fini(&c->layout);
}

static void compare_passes(struct compose *c)
{
    double off;

    if (!c->pass->before_count || c->pass->before_mean_ns <= 0)
        return;
    off = 1e6 * (cp_sandbox_mean(c) / c->pass->before_mean_ns - 1);
    c->image.head.pass_count = c->pass->before_count + 1;
    c->image.head.pass_off_ppm = off < INT32_MAX ? (int32_t)off : INT32_MAX;
}

int crystal_plan_compose(const char *job_dir, crystal_compose_calibrate *calibrate,
                         const struct crystal_compose_pass *pass,
                         struct crystal_error *err)
{
    struct compose c;
    char path[PATH_MAX];
    int code;

    memset(&c, 0, sizeof c);
    c.job_dir = job_dir;
    c.pass = pass;
    c.calibrate = calibrate;
    code = path_of(&c, path, "job.profile", err);
    if (!code)
        code = open_parents(&c, err);
    if (!code)
        code = measure_all(&c, err);
    if (!code)
        code = summarise(&c, err);
    if (!code)
        code = kernels_keep(&c, path, err);
    if (!code)
        code = cp_compose(&c, err);
    if (!code) {
        compare_passes(&c);
        c.image.reps = c.reps;
        c.image.ops = c.ops;
        c.image.iterations = c.iterations;
        code = crystal_profile_write(path, &c.image, err);
    }
    compose_fini(&c);
    return code;
}
