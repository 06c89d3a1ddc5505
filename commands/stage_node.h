/* The node's service in plan and emulate: board, virtual ranks, and the libraries and
 * plugins by which sandbox ranks reach them.
 */
#ifndef CRYSTAL_STAGE_NODE_H
#define CRYSTAL_STAGE_NODE_H

#include "commands/stage.h"
#include "commands/stage_far.h"

#include "replay/node.h"

/* Is job.graph made from the traces that lie in ranks/? The sentence says which stage
 * to run again. */
int stage_check_graph(const struct stage *stage, struct crystal_error *err);
/* Whether what the service reads is there, and of one making. */
int stage_node_inputs(const struct stage *stage, int timed, struct crystal_error *err);
/* Starts stage->service and adds to stage->env what its ranks need: board, plugins.
 * timed: virtual ranks keep the profile's time; else they answer at once. far: the
 * other nodes, whose links it takes; NULL: there are none. */
int stage_node_open(struct stage *stage, int timed, struct stage_far *far,
                    struct crystal_error *err);
/* Ends it, if there is one. */
void stage_node_close(struct stage *stage);
/* A stage_check_fn over the stage: has its service failed, does a rank keep others
 * waiting (that is told)? */
int stage_node_check(void *stage, struct crystal_error *err);
/* Seals DIR/sub/LRANK.run of these sandbox ranks, those that are there. */
int stage_node_seal_runs(const struct stage *stage, const char *sub,
                         struct crystal_share which, struct crystal_error *err);

#endif
