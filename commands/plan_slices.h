/* The plan stage as it runs, and the slices that one node measures in a pass. */
#ifndef CRYSTAL_PLAN_SLICES_H
#define CRYSTAL_PLAN_SLICES_H

#include "commands/plan_nodes.h"
#include "commands/plan_progress.h"
#include "commands/stage.h"

#include "replay/compose.h"
#include "replay/slices.h"

struct plan {
    struct stage *stage;
    struct crystal_slices slices;
    uint32_t *node_of;   /* [slices.count]: which node measures it; owned */
    uint64_t graph_hash; /* of job.graph */
    struct plan_nodes nodes;
    struct plan_progress progress;
    struct crystal_compose_pass pass;
};

/* This node's slices, one after the other; those that a plan which was stopped has left
 * are kept, and that is said. */
int plan_slices_run(struct plan *plan, struct crystal_error *err);

#endif
