/* See slices.h. */
#include "config.h"

#include "replay/slices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void append(struct crystal_slices *s, uint32_t node, const uint32_t *ranks,
                   uint32_t first_rank, uint32_t count)
{
    uint32_t at = s->first[s->count];

    s->nodes[s->count++] = node;
    for (uint32_t i = 0; i < count; i++)
        s->ranks[at + i] = ranks ? ranks[i] : first_rank + i;
    s->first[s->count] = at + count;
}

int crystal_slices_make(const struct crystal_graph *g,
                        const struct crystal_layout *layout, struct crystal_slices *ret,
                        struct crystal_error *err)
{
    uint32_t per_node = layout->ranks_per_node, reps = crystal_graph_rep_count(g);
    uint32_t most = 1 + reps; /* slices */
    size_t rank_count = layout->sandbox_count + (size_t)reps * per_node;
    uint8_t *covered = calloc(reps + 1, 1);

    memset(ret, 0, sizeof *ret);
    ret->nodes = calloc(most, sizeof *ret->nodes);
    ret->first = calloc(most + 1, sizeof *ret->first);
    ret->ranks = calloc(rank_count + 1, sizeof *ret->ranks);
    if (!covered || !ret->nodes || !ret->first || !ret->ranks) {
        free(covered);
        crystal_slices_fini(ret);
        return crystal_error_set(err, ENOMEM, "out of memory");
    }
    append(ret, 0, layout->sandbox, 0, layout->sandbox_count);
    for (uint32_t i = 0; i < layout->sandbox_count; i++)
        covered[crystal_graph_rep_of(g, layout->sandbox[i])] = 1;
    for (uint32_t rep = 0; rep < reps; rep++) {
        uint32_t node = crystal_graph_rep_lrank(g, rep) / per_node;

        if (covered[rep])
            continue;
        append(ret, node, NULL, node * per_node, per_node);
        for (uint32_t i = 0; i < per_node; i++)
            covered[crystal_graph_rep_of(g, node * per_node + i)] = 1;
    }
    free(covered);
    return 0;
}

void crystal_slices_fini(struct crystal_slices *s)
{
    free(s->nodes);
    free(s->ranks);
    free(s->first);
    memset(s, 0, sizeof *s);
}
