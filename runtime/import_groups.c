/* Tables of process groups. See import_trace.h. */
#include "config.h"

#include "runtime/import_trace.h"

#include <stdlib.h>
#include <string.h>

void import_groups_fini(struct import_groups *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (g->rows[i].is_owner)
            free((void *)(uintptr_t)g->rows[i].members);
    free(g->rows);
}

uint32_t import_group_find(const struct import_groups *g, uint64_t name, uint64_t list)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (g->rows[i].name == name && g->rows[i].list == list)
            return i;
    return IMPORT_NONE;
}

static uint32_t same(const struct import_groups *g, const struct import_group *group)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (g->rows[i].name == group->name && g->rows[i].count == group->count &&
            memcmp(g->rows[i].members, group->members,
                   group->count * sizeof *group->members) == 0)
            return i;
    return IMPORT_NONE;
}

/* One row more; NULL where there is no memory. */
static struct import_group *row_add(struct import_groups *g)
{
    if (g->count == g->capacity) {
        uint32_t capacity = g->capacity ? 2 * g->capacity : 16;
        struct import_group *rows = realloc(g->rows, capacity * sizeof *rows);

        if (!rows)
            return NULL;
        g->rows = rows;
        g->capacity = capacity;
    }
    return &g->rows[g->count++];
}

uint32_t import_group_add(struct import_groups *g, const struct import_group *group)
{
    uint32_t index = same(g, group);
    struct import_group *row = index == IMPORT_NONE ? row_add(g) : NULL;

    if (!row) {
        if (group->is_owner)
            free((void *)(uintptr_t)group->members);
        return index;
    }
    *row = *group;
    row->local = IMPORT_NONE;
    return g->count - 1;
}
