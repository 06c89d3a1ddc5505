/* What a virtual rank says in an all-gather: the slice of its template, a real rank,
 * with what tells one rank, process and host from another rewritten. The members of a
 * target node become one node again, like the template's where that has the same local
 * ranks, else a chain in rank order. See proxy_layout.h for the bytes.
 */
#include "config.h"

#include "replay/proxy_internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t node_of(const struct proxy_comm *comm, uint32_t crank)
{
    return comm->members[crank] / comm->proxy->layout->ranks_per_node;
}

/* Crank of the template of a virtual rank. */
static uint32_t template_of(const struct proxy_comm *comm, uint32_t crank)
{
    return comm->reals[comm->templates[crank]].crank;
}

static uint32_t local_of(const struct proxy_comm *comm, uint32_t crank)
{
    return comm->members[crank] % comm->proxy->layout->ranks_per_node;
}

static uint32_t lower_bound(const struct proxy_comm *comm, uint32_t lrank)
{
    uint32_t low = 0, high = comm->nranks;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (comm->members[comm->order[middle]] < lrank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Virtual members of the target node by local rank; a virtual rank on a node that has
 * real members too belongs to a node of its own kind. Returns how many. */
static uint32_t list_node(const struct proxy_comm *comm, uint32_t node, bool want_real,
                          uint32_t *by_local)
{
    uint32_t per_node = comm->proxy->layout->ranks_per_node, count = 0;

    for (uint32_t l = 0; l < per_node; l++)
        by_local[l] = PROXY_NONE;
    for (uint32_t i = lower_bound(comm, node * per_node); i < comm->nranks; i++) {
        uint32_t crank = comm->order[i];

        if (node_of(comm, crank) != node)
            break;
        if (comm->is_real[crank] == want_real) {
            by_local[local_of(comm, crank)] = crank;
            count++;
        }
    }
    return count;
}

static int compare_cranks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* The node's members, whose local ranks by_local has, can be clones member by member:
 * every template has its local rank and a node with the same local ranks. scratch has
 * room for a node. */
static bool is_alike(const struct proxy_comm *comm, const uint32_t *by_local,
                     uint32_t *scratch)
{
    uint32_t per_node = comm->proxy->layout->ranks_per_node, listed = PROXY_NONE;

    for (uint32_t l = 0; l < per_node; l++) {
        uint32_t original;

        if (by_local[l] == PROXY_NONE)
            continue;
        original = template_of(comm, by_local[l]);
        if (local_of(comm, original) != l)
            return false;
        if (node_of(comm, original) == listed)
            continue;
        listed = node_of(comm, original);
        (void)list_node(comm, listed, true, scratch);
        for (uint32_t k = 0; k < per_node; k++)
            if ((scratch[k] == PROXY_NONE) != (by_local[k] == PROXY_NONE))
                return false;
    }
    return true;
}

/* Looks at the node of a virtual rank, unless it is the one we looked at last. */
static void see_node(struct proxy_comm *comm, uint32_t node)
{
    uint32_t per_node = comm->proxy->layout->ranks_per_node;
    struct proxy_node *seen = &comm->node;

    if (seen->node == node)
        return;
    seen->node = node;
    seen->count = list_node(comm, node, false, seen->by_local);
    seen->is_alike = is_alike(comm, seen->by_local, seen->ranks);
    for (uint32_t l = 0, i = 0; l < per_node; l++)
        if (seen->by_local[l] != PROXY_NONE)
            seen->ranks[i++] = seen->by_local[l];
    qsort(seen->ranks, seen->count, sizeof *seen->ranks, compare_cranks);
}

/* From a crank of the template's node to the one at the same place of the node. */
static int32_t map_crank(const void *context, int32_t crank)
{
    const struct proxy_comm *comm = context;

    if (crank < 0 || (uint32_t)crank >= comm->nranks ||
        !comm->is_real[(uint32_t)crank] ||
        node_of(comm, (uint32_t)crank) != comm->node.template_node)
        return crank;
    return (int32_t)comm->node.by_local[local_of(comm, (uint32_t)crank)];
}

void proxy_comm_clone(struct proxy_comm *comm, const struct proxy_gather *gather,
                      uint32_t crank, uint8_t *slice)
{
    uint32_t real = comm->templates[crank];
    struct proxy_identity who = {
        .salt = comm->magic, .crank = crank, .node = node_of(comm, crank)};

    memcpy(slice, gather->slices + (size_t)real * gather->slice_bytes,
           gather->slice_bytes);
    if (gather->index >= PROXY_GATHER_KINDS)
        return;
    see_node(comm, who.node);
    comm->node.template_node = node_of(comm, template_of(comm, crank));
    who.ranks = comm->node.ranks;
    who.node_count = comm->node.count;
    while (who.node_index + 1 < who.node_count && who.ranks[who.node_index] != crank)
        who.node_index++;
    if (comm->node.is_alike) {
        who.map = map_crank;
        who.context = comm;
    }
    proxy_address(comm->proxy, PROXY_PORT_PEER, crank, who.address);
    proxy_layout_clone(comm->layout, gather->index, &who, slice);
}
