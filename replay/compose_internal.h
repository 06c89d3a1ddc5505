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
    uint64_t **gaps;   /* by representative, for the timeline */
    uint64_t **waited; /* by representative and instruction: for virtual ranks, mean ns
                          in plan */
    /* of the running composition */
    uint64_t *sum_ns, *count; /* by lrank */
    uint64_t *end_count;      /* by op: ends added to composed_ns */
    bool takes_ops;
    /* of a slice, while its costs are found; NULL else */
    const uint8_t *is_outside;
    uint64_t *alone_ns, *alone_count; /* by op: sum, and ends in it */
    /* of the one with drawn iterations; NULL before */
    struct crystal_timeline_samples *samples; /* by representative */
    uint64_t *drawn_ns;                       /* by lrank, then draw */
};

int cp_no_memory(struct crystal_error *err);

/* Have the ranks of a slice fewer CPUs than they are? */
bool cp_is_contended(const struct compose *c);

/* One timeline of all ranks, or where is_outside (by lrank) is not NULL only of the
 * other ones, whom those outside hold up by c->waited: with each one's mean
 * computation, behind waits longer by late_ns, or, where c->drawn_ns is not NULL, with
 * what each draws for each iteration. Leaves each rank's iteration in c->sum_ns, as a
 * mean. */
int cp_run(struct compose *c, uint64_t late_ns, const uint8_t *is_outside,
           struct crystal_error *err);

/* compose_marks.c: the iterations of a measured trace of rep, found as those of its
 * capture were; as crystal_iteration_find gives them. */
int cp_marks_find(const struct compose *c, uint32_t rep, const struct crystal_trace *t,
                  uint64_t **ret, uint32_t *ret_count, struct crystal_error *err);

/* compose_late.c: *ret_ns: what is missing behind each wait; see compose.h. */
int cp_late_find(struct compose *c, uint64_t *ret_ns, struct crystal_error *err);
/* Does instruction `instr` stand behind a wait of the host? */
bool cp_is_behind_wait(const struct crystal_program *p, uint32_t instr);

/* compose_cost.c: sets the cost of each operation in c->ops and c->programs; nothing
 * where no GPU was used. */
int cp_cost_find(struct compose *c, struct crystal_error *err);
/* An operation of the slice whose costs are found has ended. */
void cp_cost_on_end(struct compose *c, uint32_t lrank, uint32_t instr, uint64_t ns);

/* The parts of c->ops become iterations of all ranks and the composed times of
 * operations. */
int cp_compose(struct compose *c, struct crystal_error *err);
/* Mean iteration of the sandbox, composed. */
double cp_sandbox_mean(const struct compose *c);

#endif
