/* Which wire a communicator uses. See network.h. */
#include "config.h"

#include "runtime/network.h"

#include <stdbool.h>

int crystal_network_is_on(const struct crystal_network_link *link, uint32_t node_a,
                          uint32_t node_b)
{
    return (link->node_a == node_a && link->node_b == node_b) ||
           (link->node_a == node_b && link->node_b == node_a);
}

static uint32_t left_ppm(const struct crystal_network *net, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < net->link_count; i++)
        if (crystal_network_is_on(&net->links[i], a, b))
            return net->links[i].left_ppm;
    return 1000000;
}

/* Members on each node, where they are equally many and follow each other; else 1. */
static uint32_t node_ranks(const struct crystal_network *net, const uint32_t *members,
                           uint32_t nranks)
{
    uint32_t per_node = net->ranks_per_node, count = 0;

    while (per_node && count < nranks &&
           members[count] / per_node == members[0] / per_node)
        count++;
    if (!count || nranks % count)
        return 1;
    for (uint32_t i = 0; i < nranks; i++)
        if (members[i] / per_node != members[i - i % count] / per_node ||
            (i && i % count == 0 && members[i] / per_node == members[i - 1] / per_node))
            return 1;
    return count;
}

static bool shares_node(const struct crystal_network *net, const uint32_t *members,
                        uint32_t nranks)
{
    for (uint32_t i = 0; net->ranks_per_node && i < nranks; i++)
        if (nranks > 1 && members[i] / net->ranks_per_node ==
                              members[i + 1 < nranks ? i + 1 : 0] / net->ranks_per_node)
            return true;
    return false;
}

struct crystal_transfer_wire crystal_network_wire(const struct crystal_network *net,
                                                  const uint32_t *members,
                                                  uint32_t nranks)
{
    struct crystal_transfer_wire wire = net->wire;
    uint32_t slowest = 1000000, per_node = net->ranks_per_node;
    bool is_inside = per_node != 0;

    for (uint32_t i = 0; per_node && i < nranks; i++) {
        uint32_t node = members[i] / per_node;
        uint32_t next = members[i + 1 < nranks ? i + 1 : 0] / per_node;

        is_inside = is_inside && node == members[0] / per_node;
        if (net->link_count) {
            uint32_t left = left_ppm(net, node, next);

            slowest = left < slowest ? left : slowest;
        }
    }
    if (is_inside)
        wire = net->node_wire;
    wire.node_ranks = per_node ? node_ranks(net, members, nranks) : 0;
    if (net->algos) {
        wire.algos = net->algos;
        if (shares_node(net, members, nranks))
            wire.algos &= ~(uint32_t)CRYSTAL_TRANSFER_PAT;
    }
    if (slowest < 1000000 && wire.bytes_per_s) {
        wire.bytes_per_s = (uint64_t)((double)wire.bytes_per_s * slowest / 1e6);
        wire.bytes_per_s += !wire.bytes_per_s;
    }
    return wire;
}
