/* The end of plan: from what the sandbox ranks measured to the profile of all ranks. */
#ifndef CRYSTAL_COMPOSE_H
#define CRYSTAL_COMPOSE_H

#include "runtime/error.h"
#include "runtime/transfer.h"

/* Makes job_dir/job.profile from job_dir/plan/R.trace of the sandbox ranks, recorded
 * while their calls passed through and virtual ranks answered at once, from job.graph
 * and layout.yaml. The first iteration is left out. Where no collective has all its
 * members in the sandbox, calibrate (unless NULL) is asked for the software cost of a
 * message, as crystal_calibrate finds it. */
typedef int crystal_compose_calibrate(uint32_t sandbox_count,
                                      struct crystal_transfer_wire *wire,
                                      uint32_t *ret_count, struct crystal_error *err);
/* What the pass before has composed; {0} for the first one. */
struct crystal_compose_before {
    uint32_t pass_count;
    double mean_ns; /* iteration of the sandbox */
};
int crystal_plan_compose(const char *job_dir, crystal_compose_calibrate *calibrate,
                         const struct crystal_compose_before *before,
                         struct crystal_error *err);

#endif
