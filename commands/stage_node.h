/* The node's service in plan and emulate: board, virtual ranks, and the libraries and
 * plugins by which sandbox ranks reach them.
 */
#ifndef CRYSTAL_STAGE_NODE_H
#define CRYSTAL_STAGE_NODE_H

#include "commands/stage.h"

#include "replay/node.h"

/* Is job.graph made from the traces that lie in ranks/? The sentence says which stage
 * to run again. */
int stage_check_graph(const struct stage *stage, struct crystal_error *err);
/* Starts stage->service and adds to stage->env what its ranks need: board, plugins.
 * timed: virtual ranks keep the profile's time; else they answer at once. */
int stage_node_open(struct stage *stage, int timed, struct crystal_error *err);
/* Ends it, if there is one. */
void stage_node_close(struct stage *stage);
/* A stage_check_fn over the stage: has its service failed, does a rank keep others
 * waiting (that is told)? */
int stage_node_check(void *stage, struct crystal_error *err);
/* Seals DIR/sub/LRANK.run of the sandbox ranks, those that are there. */
int stage_node_seal_runs(const struct stage *stage, const char *sub,
                         struct crystal_error *err);

#endif
