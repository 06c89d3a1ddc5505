/* Lists of members that a child of a communicator may have. See split_lists.h. */
#include "config.h"

#include "replay/split_lists.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int split_told_add(struct split_told *told, uint32_t count, const uint32_t *members)
{
    struct split_list *grown;
    uint32_t *copy;

    for (uint32_t i = 0; i < told->count; i++)
        if (told->lists[i].count == count &&
            memcmp(told->lists[i].members, members, sizeof *members * count) == 0)
            return 0;
    grown = realloc(told->lists, (told->count + (size_t)1) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    told->lists = grown;
    copy = malloc(sizeof *copy * (size_t)(count ? count : 1));
    if (!copy)
        return -ENOMEM;
    memcpy(copy, members, sizeof *copy * count);
    told->lists[told->count++] = (struct split_list){count, copy};
    return 0;
}

void split_told_fini(struct split_told *told)
{
    for (uint32_t i = 0; i < told->count; i++)
        free(told->lists[i].members);
    free(told->lists);
    *told = (struct split_told){0};
}

uint32_t *split_crank_of(const struct split_parent *parent)
{
    const uint32_t lranks = parent->layout->lrank_count;
    uint32_t *crank_of = malloc(sizeof *crank_of * lranks);

    for (uint32_t i = 0; crank_of && i < lranks; i++)
        crank_of[i] = SPLIT_NONE;
    for (uint32_t i = 0; crank_of && i < parent->nranks; i++)
        crank_of[parent->members[i]] = i;
    return crank_of;
}

void split_candidates_fini(struct split_candidates *candidates)
{
    for (uint32_t i = 0; i < candidates->count; i++)
        free(candidates->items[i].cranks);
    free(candidates->items);
    *candidates = (struct split_candidates){0};
}

/* Takes over item's cranks, also on failure. A list that is there already gets what it
 * did not have. */
static int add(struct split_candidates *all, const struct split_candidate *item)
{
    struct split_candidate *grown;

    for (uint32_t i = 0; i < all->count; i++) {
        struct split_candidate *same = &all->items[i];

        if (same->count != item->count ||
            memcmp(same->cranks, item->cranks, sizeof *item->cranks * item->count) != 0)
            continue;
        if (!same->name)
            same->name = item->name;
        if (same->number == SPLIT_NONE)
            same->number = item->number;
        same->is_listed |= item->is_listed;
        free(item->cranks);
        return 0;
    }
    grown = realloc(all->items, (all->count + (size_t)1) * sizeof *grown);
    if (!grown) {
        free(item->cranks);
        return -ENOMEM;
    }
    all->items = grown;
    all->items[all->count++] = *item;
    return 0;
}

/* A list of logical ranks, where it has the crank and no strangers. */
static int add_lranks(const uint32_t *crank_of, uint32_t lrank_count, uint32_t crank,
                      const char *name, uint32_t count, const uint32_t *members,
                      struct split_candidates *all)
{
    struct split_candidate item = {
        .count = count, .name = name, .number = SPLIT_NONE, .is_listed = 1};
    bool has_crank = false;

    for (uint32_t i = 0; i < count; i++) {
        if (members[i] >= lrank_count || crank_of[members[i]] == SPLIT_NONE)
            return 0;
        has_crank |= crank_of[members[i]] == crank;
    }
    if (!has_crank)
        return 0;
    item.cranks = malloc(sizeof *item.cranks * count);
    if (!item.cranks)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        item.cranks[i] = crank_of[members[i]];
    return add(all, &item);
}

/* --- the grid --- */

struct axes {
    uint32_t count;
    uint32_t size[CRYSTAL_GRID_MAX + 1], stride[CRYSTAL_GRID_MAX + 1];
};

/* The dimensions, an ep inside dp as one of its own with what is left of dp behind. */
static struct axes axes_of(const struct crystal_grid *grid)
{
    struct axes axes = {0};
    uint32_t stride = 1;

    for (uint32_t i = 0; i < grid->count; i++) {
        uint32_t size = grid->dim[i].size;

        if (grid->ep_inside > 1 && strcmp(grid->dim[i].name, "dp") == 0) {
            axes.size[axes.count] = grid->ep_inside;
            axes.stride[axes.count++] = stride;
            stride *= grid->ep_inside;
            size /= grid->ep_inside;
        }
        axes.size[axes.count] = size;
        axes.stride[axes.count++] = stride;
        stride *= size;
    }
    return axes;
}

/* What a rank has in common with all of its group, whose dimensions `inside` has. */
static uint64_t group_key(const struct axes *axes, uint32_t inside, uint32_t lrank)
{
    uint64_t key = 0;

    for (uint32_t i = 0; i < axes->count; i++)
        if (!(inside >> i & 1))
            key +=
                (uint64_t)(lrank / axes->stride[i] % axes->size[i]) * axes->stride[i];
    return key;
}

/* How many groups of this kind have their first member in front of `first`. */
static int number_of(const struct split_parent *parent, const struct axes *axes,
                     uint32_t inside, uint32_t first, uint32_t *ret)
{
    uint8_t *is_seen = calloc(parent->layout->lrank_count, 1);
    uint32_t number = 0;

    if (!is_seen)
        return -ENOMEM;
    for (uint32_t i = 0; i < first; i++) {
        uint64_t key = group_key(axes, inside, parent->members[i]);

        number += !is_seen[key];
        is_seen[key] = 1;
    }
    free(is_seen);
    *ret = number;
    return 0;
}

static int add_grid(const struct split_parent *parent, const struct axes *axes,
                    uint32_t inside, uint32_t crank, struct split_candidates *all)
{
    const uint64_t key = group_key(axes, inside, parent->members[crank]);
    struct split_candidate item = {.cranks =
                                       malloc(sizeof *item.cranks * parent->nranks)};

    if (!item.cranks)
        return -ENOMEM;
    for (uint32_t i = 0; i < parent->nranks; i++)
        if (group_key(axes, inside, parent->members[i]) == key)
            item.cranks[item.count++] = i;
    if (number_of(parent, axes, inside, item.cranks[0], &item.number)) {
        free(item.cranks);
        return -ENOMEM;
    }
    return add(all, &item);
}

int split_candidates_find(const struct split_parent *parent, const uint32_t *crank_of,
                          uint32_t crank, struct split_candidates *ret)
{
    const uint32_t lranks = parent->layout->lrank_count;
    const struct axes axes = axes_of(&parent->layout->grid);
    const uint32_t graph_count =
        parent->graph ? crystal_graph_comm_count(parent->graph) : 0;
    int code = 0;

    *ret = (struct split_candidates){0};
    for (uint32_t i = 0; i < graph_count && !code; i++) {
        struct crystal_graph_comm comm;

        crystal_graph_comm(parent->graph, i, &comm);
        code = add_lranks(crank_of, lranks, crank, comm.name, comm.nranks, comm.members,
                          ret);
    }
    for (uint32_t i = 0; parent->told && i < parent->told->count && !code; i++)
        code = add_lranks(crank_of, lranks, crank, NULL, parent->told->lists[i].count,
                          parent->told->lists[i].members, ret);
    /* every set of dimensions; that of all, or of none where there is no grid, is the
     * parent itself */
    for (uint32_t inside = 1; inside < 1U << axes.count && !code; inside++)
        code = add_grid(parent, &axes, inside, crank, ret);
    if (!axes.count && !code)
        code = add_grid(parent, &axes, 0, crank, ret);
    if (code)
        split_candidates_fini(ret);
    return code;
}
