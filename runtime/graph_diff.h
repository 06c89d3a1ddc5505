/* What distinguishes two graphs, what a rank map claims, and what ranks allocate:
 * tables over job.graph for people. Results go to out as lines of text.
 */
#ifndef CRYSTAL_GRAPH_DIFF_H
#define CRYSTAL_GRAPH_DIFF_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdint.h>
#include <stdio.h>

/* Compares ranks, communicators and the calls of each rank; ranks of the same lists are
 * compared once. Kernels are compared where neither graph is a capture, whose kernels
 * were measured. Returns 0 where they do the same, 1 where they do not; -errno. */
int crystal_graph_diff(FILE *out, const struct crystal_graph *a,
                       const struct crystal_graph *b, struct crystal_error *err);

/* Does every rank fit its representative: is it, in each of its communicators, where
 * the representative is in its own, as far as p2p peers and roots need that, and has
 * every communicator all its members? Returns 0, or 1 and names the first rank that
 * does not fit; -errno. */
int crystal_graph_expand_check(FILE *out, const struct crystal_graph *g,
                               struct crystal_error *err);

/* Memory of a representative through its records. */
struct crystal_graph_memory {
    uint64_t start_bytes; /* allocated before the iterations */
    uint64_t peak_bytes, end_bytes;
    uint64_t peak_record; /* behind which it is reached */
    uint64_t allocation_count;
};
/* Returns 1 where it allocates anything, else 0. out (may be NULL) gets the timeline:
 * record, time, bytes. */
int crystal_graph_memory(FILE *out, const struct crystal_graph *g, uint32_t rep,
                         struct crystal_graph_memory *ret);

#endif
