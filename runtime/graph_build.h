/* Making job.graph from what capture left in a job directory. */
#ifndef CRYSTAL_GRAPH_BUILD_H
#define CRYSTAL_GRAPH_BUILD_H

#include "runtime/error.h"
#include "runtime/graph.h"

/* Checks that job.graph was made from the traces that now lie in job_dir/ranks; -ESTALE
 * with the stage to run again where not. */
int crystal_graph_check_parent(const struct crystal_graph *g, const char *job_dir,
                               struct crystal_error *err);
/* The same by the parent's identity in the graph's header: the traces are those of the
 * live ranks. */
int crystal_graph_check_traces(const char *job_dir, const uint32_t *lranks,
                               uint32_t count, uint64_t parent,
                               struct crystal_error *err);

/* Builds job.graph from ranks/ *.trace, ranks/ *.payload, comms.tab and layout.yaml of
 * a job directory. */
int crystal_graph_build(const char *job_dir, struct crystal_error *err);

#endif
