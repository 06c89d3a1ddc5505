/* See slices.h. */
#include "config.h"

#include "replay/slices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* All of one target node, whose representatives need no other slice. */
static void append_node(struct crystal_slices *s, const struct crystal_graph *g,
                        uint32_t node, uint32_t per_node, uint8_t *covered)
{
    uint32_t at = s->first[s->count];

    s->nodes[s->count++] = node;
    s->first[s->count] = at + per_node;
    for (uint32_t i = 0; i < per_node; i++) {
        s->ranks[at + i] = node * per_node + i;
        covered[crystal_graph_rep_of(g, node * per_node + i)] = 1;
    }
}

int crystal_slices_make(const struct crystal_graph *g,
                        const struct crystal_layout *layout, struct crystal_slices *ret,
                        struct crystal_error *err)
{
    uint32_t per_node = layout->ranks_per_node, reps = crystal_graph_rep_count(g);
    uint32_t own = layout->sandbox_count / per_node; /* whole target nodes */
    uint32_t most = own + reps;                      /* slices */
    uint8_t *covered = calloc(reps + 1, 1);

    memset(ret, 0, sizeof *ret);
    ret->nodes = calloc(most + 1, sizeof *ret->nodes);
    ret->first = calloc(most + 1, sizeof *ret->first);
    ret->ranks = calloc((size_t)most * per_node + 1, sizeof *ret->ranks);
    if (!covered || !ret->nodes || !ret->first || !ret->ranks) {
        free(covered);
        crystal_slices_fini(ret);
        return crystal_error_set(err, ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < own; i++)
        append_node(ret, g, layout->sandbox[i * per_node] / per_node, per_node,
                    covered);
    ret->sandbox_count = own;
    for (uint32_t rep = 0; rep < reps; rep++)
        if (!covered[rep])
            append_node(ret, g, crystal_graph_rep_lrank(g, rep) / per_node, per_node,
                        covered);
    free(covered);
    return 0;
}

static uint32_t count_of(const uint32_t *nodes, uint32_t count, uint32_t node)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < count; i++)
        found += nodes[i] == node;
    return found;
}

void crystal_slices_deal(const struct crystal_slices *s, uint32_t node_count,
                         uint32_t *ret)
{
    uint32_t sandbox = s->first[s->sandbox_count], node = 0;

    for (uint32_t i = 0; i < s->sandbox_count; i++) {
        while (crystal_share_of(sandbox, node, node_count).end <= s->first[i])
            node++;
        ret[i] = node;
    }
    for (uint32_t i = s->sandbox_count; i < s->count; i++) {
        ret[i] = 0;
        for (node = 1; node < node_count; node++)
            if (count_of(ret, i, node) < count_of(ret, i, ret[i]))
                ret[i] = node;
    }
}

void crystal_slices_fini(struct crystal_slices *s)
{
    free(s->nodes);
    free(s->ranks);
    free(s->first);
    memset(s, 0, sizeof *s);
}
