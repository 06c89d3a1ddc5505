/* Which ranks plan runs: the sandbox, then the target nodes of the representatives that
 * no sandbox rank stands for, one after the other. Each of these rows of ranks is a
 * slice, and runs like a sandbox. */
#ifndef CRYSTAL_SLICES_H
#define CRYSTAL_SLICES_H

#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/layout.h"

#include <stdint.h>

struct crystal_slices {
    uint32_t count;  /* slice 0 is the sandbox; at least 1 */
    uint32_t *nodes; /* [count]; target node of slices 1 ..; nodes[0] is unused */
    uint32_t *ranks; /* all ranks, slice by slice; owned, as nodes */
    uint32_t *first; /* [count + 1]; where each slice begins in ranks; owned */
};

int crystal_slices_make(const struct crystal_graph *g,
                        const struct crystal_layout *layout, struct crystal_slices *ret,
                        struct crystal_error *err);
void crystal_slices_fini(struct crystal_slices *s);

#endif
