/* How far a plan has come, so that one that was stopped goes on where it was: slices
 * that were measured are not measured again.
 *
 * DIR/plan/progress, lines key=value: version (1), id (of this plan), graph and layout
 * (hashes of what it is made from), pass (the one that runs, from 1), before_ns (mean
 * iteration that the pass before composed). DIR/plan/T.done, one line "ID PASS": the
 * slice of target node T is there. Both are text, written by rename and read by all
 * nodes; a plan that has ended leaves neither.
 */
#ifndef CRYSTAL_PLAN_PROGRESS_H
#define CRYSTAL_PLAN_PROGRESS_H

#include "commands/stage.h"

#include <stdint.h>

struct plan_progress {
    uint64_t id; /* random; no other plan's marks are taken for this one's */
    uint64_t graph_hash, layout_hash;
    uint32_t pass;    /* from 1 */
    double before_ns; /* 0 in the first pass */
};

/* What DIR/plan/progress says; where it is not there, or of another graph or layout, a
 * plan that begins: pass 1 with a new id. */
int plan_progress_open(const struct stage *stage, uint64_t graph_hash,
                       struct plan_progress *ret, struct crystal_error *err);
/* The pass of p begins: sweeps what the one before has left, unless it is the one that
 * DIR has, and says so in DIR. */
int plan_progress_begin(const struct stage *stage, const struct plan_progress *p,
                        struct crystal_error *err);
/* The slice of a target node has been measured; is it? */
int plan_progress_mark(const struct stage *stage, const struct plan_progress *p,
                       uint32_t target_node, struct crystal_error *err);
int plan_progress_has(const struct stage *stage, const struct plan_progress *p,
                      uint32_t target_node);
/* Forgets it: the plan has ended well, or what was measured is of no use. */
int plan_progress_end(const struct stage *stage, struct crystal_error *err);

#endif
