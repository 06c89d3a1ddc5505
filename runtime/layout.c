/* What a layout means: representatives, membership, its end. See layout.h. */
#include "config.h"

#include "runtime/layout.h"

#include <stdlib.h>
#include <string.h>

void crystal_layout_fini(struct crystal_layout *layout)
{
    if (!layout)
        return;
    free(layout->sandbox);
    free(layout->live);
    free(layout->spill_dir);
    free(layout->iteration_range);
    for (char **arg = layout->program; arg && *arg; arg++)
        free(*arg);
    free(layout->program);
    crystal_stage_rules_fini(layout->stage);
    crystal_inject_rules_fini(&layout->inject);
    crystal_target_fini(&layout->target);
    memset(layout, 0, sizeof *layout);
}

const char *crystal_live_name(enum crystal_live mode)
{
    return mode == CRYSTAL_LIVE_ALL    ? "all"
           : mode == CRYSTAL_LIVE_LIST ? "list"
                                       : "replica";
}

/* Its index, count where it is not there. */
static uint32_t find(const uint32_t *ranks, uint32_t count, uint32_t rank)
{
    uint32_t low = 0, high = count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (ranks[middle] == rank)
            return middle;
        if (ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return count;
}

static int contains(const uint32_t *ranks, uint32_t count, uint32_t rank)
{
    return find(ranks, count, rank) < count;
}

struct crystal_share crystal_share_of(uint32_t count, uint32_t node,
                                      uint32_t node_count)
{
    return (struct crystal_share){
        (uint32_t)((uint64_t)count * node / node_count),
        (uint32_t)((uint64_t)count * (node + 1) / node_count)};
}

uint32_t crystal_layout_node_of(const struct crystal_layout *layout,
                                uint32_t node_count, uint32_t lrank)
{
    uint32_t i = find(layout->sandbox, layout->sandbox_count, lrank);

    if (i == layout->sandbox_count)
        return UINT32_MAX;
    return (uint32_t)((((uint64_t)i + 1) * node_count - 1) / layout->sandbox_count);
}

uint32_t crystal_layout_owner(const struct crystal_layout *layout, uint32_t node_count,
                              const uint32_t *members, uint32_t count,
                              uint32_t *ret_real)
{
    uint32_t owner = UINT32_MAX;

    *ret_real = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t node = crystal_layout_node_of(layout, node_count, members[i]);

        *ret_real += node != UINT32_MAX;
        if (node < owner)
            owner = node;
    }
    return owner;
}

int crystal_layout_is_sandbox(const struct crystal_layout *layout, uint32_t lrank)
{
    return contains(layout->sandbox, layout->sandbox_count, lrank);
}

uint32_t crystal_layout_representative(const struct crystal_layout *layout,
                                       uint32_t lrank)
{
    const struct crystal_grid *grid = &layout->grid;
    uint64_t stride = 1; /* at most N * ep, see layout_file.c */

    if (contains(layout->live, layout->live_count, lrank))
        return lrank;
    for (uint32_t i = 0; i < grid->count; i++) {
        uint32_t size = grid->dim[i].size;

        if (strcmp(grid->dim[i].name, "dp") == 0) {
            uint32_t d = (uint32_t)(lrank / stride % size);
            uint32_t ep = grid->ep_inside ? grid->ep_inside : 1;

            return lrank - (d - d % ep) * (uint32_t)stride;
        }
        if (strcmp(grid->dim[i].name, "ep") != 0 || grid->ep_inside <= 1)
            stride *= size;
    }
    return lrank;
}
