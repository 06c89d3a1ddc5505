/* What compose.c and compose_time.c share: one composition. */
#ifndef CRYSTAL_COMPOSE_INTERNAL_H
#define CRYSTAL_COMPOSE_INTERNAL_H

#include "replay/compose.h"

#include "replay/measure.h"
#include "replay/slices.h"
#include "runtime/layout.h"
#include "runtime/profile_file.h"
#include "runtime/timeline.h"

#include <stdbool.h>

struct compose {
    const char *job_dir;
    crystal_compose_calibrate *calibrate;
    struct crystal_layout layout;
    struct crystal_graph *graph;
    struct crystal_slices slices;
    const struct crystal_compose_pass *pass;
    double *slice_ns; /* iteration as measured, sum over its ranks */
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
    /* of the one with drawn iterations; NULL before */
    struct crystal_timeline_samples *samples; /* by representative */
    uint32_t *scale_ppm;                      /* by lrank */
    uint64_t *drawn_ns;                       /* by lrank, then draw */
};

int cp_no_memory(struct crystal_error *err);

/* How long an iteration really took: in the slowest slice of those whose ranks share
 * CPUs. 0: there is none. */
double cp_contended_ns(const struct compose *c);

/* The parts of c->ops become iterations of all ranks and the composed times of
 * operations; see compose.h for what is stretched before. */
int cp_compose(struct compose *c, struct crystal_error *err);
/* Mean iteration of the sandbox, composed. */
double cp_sandbox_mean(const struct compose *c);

#endif
