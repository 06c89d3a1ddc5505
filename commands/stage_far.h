/* The other nodes of emulate: where their services are, and the run's directory, which
 * the first node makes for all.
 */
#ifndef CRYSTAL_STAGE_FAR_H
#define CRYSTAL_STAGE_FAR_H

#include "commands/stage.h"

struct crystal_links;

struct stage_far {
    struct crystal_links *links;    /* NULL: this node alone; the service's once open */
    struct crystal_msg_node *nodes; /* of all, assistants, too; owned */
};

/* Meets the agents of the other nodes at the coordinator, where there are any. *run is
 * the number of the run's directory: given by node 0, found by the others. Adds to
 * stage->env by which interface the ranks are to be reached. */
int stage_far_meet(struct stage *stage, struct stage_far *far, uint32_t *run,
                   struct crystal_error *err);
void stage_far_fini(struct stage_far *far);

#endif
