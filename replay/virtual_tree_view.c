/* The two trees of a communicator as seen from one rank: on which side everybody
 * stands, how deep, and which real ranks are behind virtual ones. See
 * virtual_tree_internal.h.
 */
#include "config.h"

#include "replay/virtual_tree_internal.h"

#include "replay/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Nodes are numbered in the order in which their first rank stands. */
static int number_nodes(struct crystal_trees *t, const uint32_t *members,
                        uint32_t per_node, uint32_t lrank_count)
{
    uint32_t *known = calloc(lrank_count / per_node + 1, sizeof *known);

    if (!known)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->comm->nranks; i++) {
        uint32_t *number = &known[members[i] / per_node];

        if (!*number)
            *number = ++t->nodes;
        t->node_of[i] = *number - 1;
    }
    t->node = t->node_of[t->comm->crank];
    free(known);
    return 0;
}

/* The tree of nodes is a tree of ranks that are alone on theirs. */
static struct crystal_tree_op op_of_nodes(const struct crystal_trees *t, unsigned tree)
{
    return (struct crystal_tree_op){.nranks = t->nodes,
                                    .ranks_per_node = 1,
                                    .shape = CRYSTAL_TREE_SINGLE,
                                    .half = 1,
                                    .elt_bytes = 1,
                                    .channel_count = 2,
                                    .channel = tree};
}

static uint32_t node_or_none(int32_t node)
{
    return node < 0 ? TREE_NODE_NONE : (uint32_t)node;
}

static uint32_t up_of(const struct crystal_tree_op *op, uint32_t node)
{
    struct crystal_tree_place place;

    crystal_tree_place(op, node, &place);
    return node_or_none(place.up);
}

static void sides_find(const struct crystal_trees *t, const struct crystal_tree_op *op,
                       struct tree_view *v)
{
    for (uint32_t node = 0; node < t->nodes; node++) {
        uint32_t at = node, below = TREE_NODE_NONE, up;

        /* up to the root; who stands below here comes by */
        while ((up = up_of(op, at)) != TREE_NODE_NONE) {
            if (up == t->node && below == TREE_NODE_NONE)
                below = at;
            at = up;
            v->depth[node]++;
        }
        v->side[node] = (uint8_t)(node == t->node           ? TREE_OWN
                                  : below == TREE_NODE_NONE ? TREE_PARENT
                                  : below == v->down[0]     ? TREE_CHILD0
                                                            : TREE_CHILD1);
    }
}

/* The first real node above, this one counts as real; NONE where there is none. */
static uint32_t real_above(const struct crystal_trees *t,
                           const struct crystal_tree_op *op, uint32_t node)
{
    do
        node = up_of(op, node);
    while (node != TREE_NODE_NONE && !t->is_real[node]);
    return node;
}

static void near_add(struct tree_near *near, uint32_t crank)
{
    near->cranks[near->count++] = crank;
}

/* Every node has one rank, whose number is the node's. */
static void near_find(const struct crystal_trees *t, const struct crystal_tree_op *op,
                      struct tree_view *v)
{
    const uint32_t ancestor = real_above(t, op, t->node);

    v->has_ancestor = ancestor != TREE_NODE_NONE;
    if (v->has_ancestor)
        near_add(&v->near[TREE_PARENT], ancestor);
    for (uint32_t node = 0; node < t->nodes; node++) {
        const enum tree_side side = (enum tree_side)v->side[node];
        const uint32_t above = real_above(t, op, node);

        if (side == TREE_OWN)
            continue;
        if (side == TREE_PARENT)
            v->is_covered[node] =
                v->has_ancestor || t->is_real[node] || above != TREE_NODE_NONE;
        else
            v->is_covered[node] = t->is_real[node] || above != t->node;
        if (t->is_real[node] &&
            (side == TREE_PARENT ? !v->has_ancestor && above == TREE_NODE_NONE
                                 : above == t->node))
            near_add(&v->near[side], node);
    }
}

static int view_init(struct crystal_trees *t, unsigned tree)
{
    const struct crystal_tree_op op = op_of_nodes(t, tree);
    struct tree_view *v = &t->views[tree];
    struct crystal_tree_place place;

    v->side = calloc(t->nodes, 1);
    v->depth = calloc(t->nodes, 1);
    v->is_covered = calloc(t->nodes, 1);
    if (!v->side || !v->depth || !v->is_covered)
        return -ENOMEM;
    for (int side = 0; side < TREE_OWN; side++) {
        v->near[side].cranks = calloc(t->nodes, sizeof *v->near[side].cranks);
        if (!v->near[side].cranks)
            return -ENOMEM;
    }
    crystal_tree_place(&op, t->node, &place);
    v->up = node_or_none(place.up);
    v->down[0] = node_or_none(place.down[0]);
    v->down[1] = node_or_none(place.down[1]);
    sides_find(t, &op, v);
    if (t->nodes == t->comm->nranks)
        near_find(t, &op, v);
    return 0;
}

int crystal_tree_views_init(struct crystal_trees *t, const uint32_t *members,
                            uint32_t per_node, uint32_t lrank_count)
{
    t->node_of = calloc(t->comm->nranks, sizeof *t->node_of);
    if (!t->node_of || number_nodes(t, members, per_node, lrank_count) ||
        view_init(t, 0) || view_init(t, 1))
        return -ENOMEM;
    return 0;
}

void crystal_tree_views_fini(struct crystal_trees *t)
{
    for (unsigned i = 0; i < 2; i++) {
        struct tree_view *v = &t->views[i];

        free(v->side);
        free(v->depth);
        free(v->is_covered);
        for (int side = 0; side < TREE_OWN; side++)
            free(v->near[side].cranks);
    }
    free(t->node_of);
}
