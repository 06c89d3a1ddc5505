/* Composing: the timeline with what was measured. See compose.h. */
#include "config.h"

#include "replay/compose_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Composed; the first one fills pipelines and is left out. */
#define ITERATIONS 8
#define DRAWS      20 /* iterations of which each rank's are drawn */

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

    if (c->is_outside && iteration > 0)
        cp_cost_on_end(c, lrank, instr, end_ns - arrive_ns);
    if (iteration == 0 || !c->takes_ops || c->reps[rep].lrank != lrank)
        return;
    c->ops[at].composed_ns += end_ns - arrive_ns;
    c->end_count[at]++;
}

int cp_run(struct compose *c, uint64_t late_ns, const uint8_t *is_outside,
           struct crystal_error *err)
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
                                             .draws_together = cp_is_contended(c),
                                             .is_outside = is_outside,
                                             .context = c,
                                             .on_iteration = on_iteration,
                                             .on_end = on_end};
    struct crystal_timeline *timeline;
    int code;

    for (uint32_t i = 0; i < c->rep_count; i++)
        for (uint32_t k = 0; k < c->programs[i]->instr_count; k++)
            c->gaps[i][k] = c->ops[c->reps[i].op_first + k].gap_ns +
                            (cp_is_behind_wait(c->programs[i], k) ? late_ns : 0);
    memset(c->sum_ns, 0, c->lrank_count * sizeof *c->sum_ns);
    memset(c->count, 0, c->lrank_count * sizeof *c->count);
    if (c->drawn_ns)
        config.iterations = 1 + DRAWS;
    if (is_outside)
        config.outside_after_ns = (const uint64_t *const *)c->waited;
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
    for (uint32_t r = 0; !code && r < c->lrank_count; r++)
        if (c->count[r])
            c->sum_ns[r] /= c->count[r];
    return code;
}

static int run_mean(struct compose *c, struct crystal_error *err)
{
    int code;

    c->takes_ops = true;
    code = cp_run(c, 0, NULL, err);
    c->takes_ops = false;
    for (uint32_t r = 0; !code && r < c->lrank_count; r++)
        c->iterations[r].mean_ns = c->sum_ns[r];
    return code;
}

/* How much iterations differ: percentiles over those that are composed of what was
 * measured in single ones. Where ranks share CPUs, one that computes longer keeps
 * others from it, which replicas on CPUs of their own do not feel: all draw the same
 * iteration. */
static int run_drawn(struct compose *c, struct crystal_error *err)
{
    uint64_t mean_ns;
    int code;

    c->samples = calloc(c->rep_count, sizeof *c->samples);
    c->drawn_ns = calloc((size_t)c->lrank_count * DRAWS, sizeof *c->drawn_ns);
    if (!c->samples || !c->drawn_ns)
        return cp_no_memory(err);
    for (uint32_t i = 0; i < c->rep_count; i++)
        c->samples[i] = (struct crystal_timeline_samples){c->measures[i].sample_count,
                                                          c->measures[i].gap_ns};
    code = cp_run(c, 0, NULL, err);
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

/* From now on lateness is a part of the gaps. */
static void late_keep(struct compose *c, uint64_t late_ns)
{
    double sum_ns = 0, added_ns = 0;

    for (uint32_t i = 0; i < c->rep_count; i++)
        for (uint32_t k = 0; k < c->programs[i]->instr_count; k++) {
            struct crystal_profile_op *op = &c->ops[c->reps[i].op_first + k];
            struct crystal_measure *m = &c->measures[i];

            sum_ns += (double)op->gap_ns;
            if (!cp_is_behind_wait(c->programs[i], k))
                continue;
            op->gap_ns += late_ns;
            op->gap_p10_ns += late_ns;
            op->gap_p90_ns += late_ns;
            for (uint32_t s = 0; s < m->sample_count; s++)
                m->gap_ns[(size_t)s * m->instr_count + k] += late_ns;
            added_ns += (double)late_ns;
        }
    if (sum_ns > 0 && added_ns / sum_ns < UINT32_MAX / 1e6)
        c->image.head.stretch_ppm = (uint32_t)(1e6 * added_ns / sum_ns + 0.5);
}

int cp_compose(struct compose *c, struct crystal_error *err)
{
    uint64_t late_ns = 0;
    int code = cp_cost_find(c, err);

    if (!code)
        code = cp_late_find(c, &late_ns, err);
    if (!code) {
        late_keep(c, late_ns);
        code = run_mean(c, err);
    }
    if (!code)
        code = run_drawn(c, err);
    for (uint64_t i = 0; !code && i < c->image.head.op_count; i++)
        if (c->end_count[i])
            c->ops[i].composed_ns /= c->end_count[i];
    return code;
}
