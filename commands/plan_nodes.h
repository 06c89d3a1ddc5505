/* Plan on several nodes: each measures its slices at the same time as the others, under
 * a coordinator of its own (`scrystal coord --node`, whose store knows that slice
 * alone); the job's coordinator is where the nodes meet between passes, and where the
 * one that fails is told to all.
 */
#ifndef CRYSTAL_PLAN_NODES_H
#define CRYSTAL_PLAN_NODES_H

#include "commands/stage.h"

struct plan_nodes {
    struct stage *stage;          /* borrowed until fini */
    struct crystal_launch *coord; /* NULL: there is one node, whose coordinator is the
                                     job's */
    struct crystal_client *job;   /* stage->client as it was: the job's coordinator */
    char coord_file[PATH_MAX], token_file[PATH_MAX]; /* of the job's */
    int is_stopped; /* the job's coordinator has ended the stage */
};

/* Starts the node's coordinator and makes it that of the stage. With one node nothing
 * is to be done. fini follows in any case. */
int plan_nodes_init(struct plan_nodes *nodes, struct stage *stage,
                    struct crystal_error *err);
/* Ends it; the stage then has the job's coordinator again, and what it was told by that
 * alone. */
void plan_nodes_fini(struct plan_nodes *nodes);

/* Waits until all nodes have come here. value: of node 0 what it tells the others, else
 * ignored; *ret_value: what it has told. With one node returns at once. */
int plan_nodes_meet(struct plan_nodes *nodes, uint32_t value, uint32_t *ret_value,
                    struct crystal_error *err);
/* A stage_check_fn over struct plan_nodes: stage_node_check, and whether another node
 * has failed. */
int plan_nodes_check(void *nodes, struct crystal_error *err);

#endif
