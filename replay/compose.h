/* The end of plan: from what the sandbox ranks measured to the profile of all ranks. */
#ifndef CRYSTAL_COMPOSE_H
#define CRYSTAL_COMPOSE_H

#include "runtime/error.h"

/* Makes job_dir/job.profile from job_dir/plan/R.trace of the sandbox ranks, recorded
 * while their calls passed through and virtual ranks answered at once, from job.graph
 * and layout.yaml. The first iteration is left out. */
int crystal_plan_compose(const char *job_dir, struct crystal_error *err);

#endif
