/* In which order NCCL's rings go through the members of a communicator.
 *
 * In the all-gather of topologies every rank tells, by channel, at which rank of its
 * node a ring comes in and which rank of the node is its next. Ranks with the same
 * entry on channel 0 are a node; nodes are numbered as their first ranks appear, and a
 * ring goes from the last of a node to the entry of the next one. Where a node's NICs
 * differ from channel to channel (crossNic 2), channels of odd nodes change places in
 * pairs. That is what each NCCL makes of the messages by itself (2.28.9:
 * src/graph/connect.cc, ncclTopoPostset; src/init.cc); here it is made of the same
 * messages, those of virtual ranks included.
 */
#include "config.h"

#include "replay/proxy_internal.h"

#include <stdlib.h>
#include <string.h>

#define CROSS_NIC_PAIRS 2

struct rings {
    struct proxy_comm *comm;
    uint32_t n, channels, nodes;
    int32_t *receive, *next; /* [channels][n], owned */
    uint8_t *swaps;          /* by crank: channels change places in pairs; owned */
    uint32_t *firsts;        /* first crank by node [n], owned */
    uint32_t *ranks;         /* result [channels][n], owned */
};

static bool has_all(const struct proxy_comm *comm, const struct proxy_gather *gather)
{
    for (uint32_t i = 0; i < comm->real_count; i++)
        if (!gather->has[i])
            return false;
    return true;
}

/* Every member is alone on its target node. */
static bool is_sparse(const struct proxy_comm *comm)
{
    const uint32_t per_node = comm->proxy->layout->ranks_per_node;

    for (uint32_t i = 1; i < comm->nranks; i++)
        if (comm->members[comm->order[i]] / per_node ==
            comm->members[comm->order[i - 1]] / per_node)
            return false;
    return true;
}

/* What a rank tells. */
static void read_slice(struct rings *r, uint32_t crank, const uint8_t *slice)
{
    const struct proxy_layout *layout = r->comm->layout;
    const uint32_t array_bytes = 4 * layout->channel_count;

    r->swaps[crank] =
        proxy_get_i32(slice, layout->topology_cross_nic) == CROSS_NIC_PAIRS &&
        r->channels % 2 == 0;
    for (uint32_t c = 0; c < r->channels; c++) {
        uint32_t at = layout->topology_ranks + 4 * c;

        r->receive[(size_t)c * r->n + crank] =
            proxy_get_i32(slice, at + PROXY_TOPOLOGY_RECEIVE * array_bytes);
        r->next[(size_t)c * r->n + crank] =
            proxy_get_i32(slice, at + PROXY_TOPOLOGY_NEXT * array_bytes);
    }
}

static void read_all(struct rings *r, const struct proxy_gather *gather)
{
    static const uint32_t room = PROXY_SLICE_MAX;
    uint8_t slice[PROXY_SLICE_MAX];

    for (uint32_t i = 0; i < r->n; i++) {
        if (r->comm->is_real[i])
            memcpy(slice,
                   gather->slices + (size_t)r->comm->templates[i] * gather->slice_bytes,
                   gather->slice_bytes < room ? gather->slice_bytes : room);
        else
            proxy_comm_clone(r->comm, gather, i, slice);
        read_slice(r, i, slice);
    }
}

/* Numbers the nodes; a rank's entry on channel 0 names its node. */
static bool find_nodes(struct rings *r)
{
    uint8_t *is_known = calloc(r->n, 1);

    for (uint32_t i = 0; is_known && i < r->n; i++) {
        uint32_t entry = (uint32_t)r->receive[i];

        if (entry < r->n && !is_known[entry]) {
            is_known[entry] = 1;
            r->firsts[r->nodes++] = i;
        }
    }
    free(is_known);
    return is_known != NULL;
}

/* One channel's ring, from crank 0 on. False where what the ranks tell is no ring. */
static bool find_ring(const struct rings *r, uint32_t channel, uint32_t *scratch,
                      uint32_t *ret)
{
    uint32_t count = 0, zero = r->n; /* where crank 0 stands */

    for (uint32_t node = 0; node < r->nodes; node++) {
        const uint32_t first = r->firsts[node];
        const uint32_t c = node % 2 && r->swaps[first] ? channel ^ 1 : channel;
        int32_t at = r->receive[(size_t)c * r->n + first];

        for (; at >= 0; at = r->next[(size_t)c * r->n + (uint32_t)at]) {
            if ((uint32_t)at >= r->n || count == r->n)
                return false;
            if (at == 0)
                zero = count;
            scratch[count++] = (uint32_t)at;
        }
    }
    if (count != r->n || zero == r->n)
        return false;
    for (uint32_t i = 0; i < count; i++)
        ret[i] = scratch[(zero + i) % count];
    return true;
}

/* Rings that are alike are told once, none of them where they are in rank order. */
static uint32_t count_rings(const struct rings *r)
{
    uint32_t same = 1, ordered = 0;

    while (same < r->channels && memcmp(r->ranks, r->ranks + (size_t)same * r->n,
                                        sizeof *r->ranks * r->n) == 0)
        same++;
    while (ordered < r->n && r->ranks[ordered] == ordered)
        ordered++;
    if (same < r->channels)
        return r->channels;
    return ordered == r->n ? 0 : 1;
}

static void publish(struct rings *r, uint32_t *scratch)
{
    struct crystal_error err = {0};

    for (uint32_t c = 0; c < r->channels; c++)
        if (!find_ring(r, c, scratch, r->ranks + (size_t)c * r->n)) {
            proxy_comm_fail(
                r->comm,
                "what its real ranks tell of channel %u is no ring; let all "
                "ranks see the same GPUs and NICs",
                c);
            return;
        }
    if (proxy_relay_rings(r->comm, count_rings(r), r->ranks, r->nodes == r->n, &err))
        proxy_comm_fail(r->comm, "%s", err.text);
}

static void rings_find(struct rings *r, const struct proxy_gather *gather)
{
    const size_t count = (size_t)r->channels * r->n;
    uint32_t *scratch = malloc(sizeof *scratch * r->n);

    r->receive = malloc(sizeof *r->receive * count);
    r->next = malloc(sizeof *r->next * count);
    r->swaps = malloc(r->n);
    r->firsts = malloc(sizeof *r->firsts * r->n);
    r->ranks = malloc(sizeof *r->ranks * count);
    if (scratch && r->receive && r->next && r->swaps && r->firsts && r->ranks) {
        read_all(r, gather);
        if (find_nodes(r))
            publish(r, scratch);
        else
            proxy_comm_fail(r->comm, "out of memory");
    } else {
        proxy_comm_fail(r->comm, "out of memory");
    }
    free(scratch);
    free(r->receive);
    free(r->next);
    free(r->swaps);
    free(r->firsts);
    free(r->ranks);
}

void proxy_rings_learn(struct proxy_comm *comm, const struct proxy_gather *gather)
{
    struct rings r = {
        .comm = comm, .n = comm->nranks, .channels = comm->graph_channels};
    struct crystal_error err = {0};

    if (!has_all(comm, gather))
        return;
    if (comm->graph_channels && !is_sparse(comm))
        rings_find(&r, gather);
    else if (proxy_relay_rings(comm, 0, NULL, is_sparse(comm), &err))
        proxy_comm_fail(comm, "%s", err.text);
}
