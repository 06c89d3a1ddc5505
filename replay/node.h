/* What a sandbox node hosts while sandbox ranks run (plan, emulate): the board, the
 * bootstrap proxy that answers for virtual ranks, and the timeline's node part. Run by
 * `scrystal agent` and, without Slurm, by `scrystal plan|emulate` themselves.
 */
#ifndef CRYSTAL_NODE_H
#define CRYSTAL_NODE_H

#include "runtime/coord_client.h"
#include "runtime/error.h"
#include "runtime/layout.h"

struct crystal_node;

struct crystal_node_config {
    const char *job_dir;
    const struct crystal_layout *layout; /* borrowed until destroy */
    int timed;                           /* 0 plan: virtual ranks answer at once */
    const char *graph_path;              /* NULL: none (immediate only) */
    const char *profile_path;            /* NULL unless timed */
    struct crystal_client *coord;        /* role AGENT; ids come through it */
};

/* Creates a private directory below /dev/shm with the board, starts the threads. NULL
 * on failure. */
struct crystal_node *crystal_node_create(const struct crystal_node_config *config,
                                         struct crystal_error *err);
/* Path of the board for CRYSTAL_BOARD; borrowed. */
const char *crystal_node_board_path(const struct crystal_node *node);
/* The first failure of proxy, timeline or plugins since create; 0 if none. */
int crystal_node_status(struct crystal_node *node, struct crystal_error *err);
/* Stops the threads and removes the directory. NULL is fine. */
void crystal_node_destroy(struct crystal_node *node);

#endif
