/* Which ranks plan runs: the sandbox's target nodes, then those of the representatives
 * that no sandbox rank stands for. The ranks of each are a slice, which runs like a
 * sandbox of that node alone; the nodes of the allocation share the slices, each runs
 * its own one after the other. */
#ifndef CRYSTAL_SLICES_H
#define CRYSTAL_SLICES_H

#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/layout.h"

#include <stdint.h>

struct crystal_slices {
    uint32_t count;         /* at least 1 */
    uint32_t sandbox_count; /* the first ones: the sandbox */
    uint32_t *nodes;        /* [count]; target node of each slice; owned */
    uint32_t *ranks;        /* all ranks, slice by slice; owned */
    uint32_t *first;        /* [count + 1]; where each slice begins in ranks; owned */
};

int crystal_slices_make(const struct crystal_graph *g,
                        const struct crystal_layout *layout, struct crystal_slices *ret,
                        struct crystal_error *err);
/* The node that measures each slice, of node_count that share them: one of the sandbox
 * that which runs its first rank in emulate, any other that which has fewest by then,
 * the lowest of these. ret has s->count. */
void crystal_slices_deal(const struct crystal_slices *s, uint32_t node_count,
                         uint32_t *ret);
void crystal_slices_fini(struct crystal_slices *s);

#endif
