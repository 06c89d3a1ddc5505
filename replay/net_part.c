/* Which part of a transfer each of its channels has; see crystal_operation_part.
 *
 * Facts of NCCL 2.28.9. Part i is on channel (base + i) modulo the number of channels
 * for transfers, a power of two (src/include/device.h, ncclP2pChannelForPart). base is
 * the bit-reversed place, among all distances between groups of ranks, of that to the
 * peer (src/include/channel.h, ncclP2pChannelBaseForRound; src/init.cc,
 * ncclP2pSchedule): distances come in the order of (x * x + x) / 2 modulo the next
 * power of two, without those that are too large; a group is the largest power of two
 * up to 8 that divides the ranks of a node.
 *
 * How many channels there are for transfers NCCL does not tell. Where those of this
 * transfer leave a gap, base is behind it. Where they are 0 and what follows it, they
 * are all that there are, or base is 0: and then the rule gives 0 for them, too.
 */
#include "config.h"

#include "replay/net.h"

#include <errno.h>

#define GROUP_MAX 8U

static uint32_t node_of(const struct crystal_board_header *head,
                        const struct crystal_board_comm *entry, const uint32_t *members,
                        uint32_t crank)
{
    return entry->alone ? crank : members[crank] / head->ranks_per_node;
}

/* Ranks of a group; 0 where nodes are no blocks of one size in rank order. */
static uint32_t group_size(struct crystal_board *board,
                           const struct crystal_board_comm *entry)
{
    const struct crystal_board_header *head = crystal_board_header(board);
    const uint32_t *members = crystal_board_members(board, entry);
    uint32_t per_node = 1, group = GROUP_MAX;

    if (!head->ranks_per_node)
        return 0;
    while (per_node < entry->nranks &&
           node_of(head, entry, members, per_node) == node_of(head, entry, members, 0))
        per_node++;
    for (uint32_t i = 1; i < entry->nranks; i++)
        if ((i % per_node == 0) ==
            (node_of(head, entry, members, i) == node_of(head, entry, members, i - 1)))
            return 0;
    if (entry->nranks % per_node)
        return 0;
    while (per_node % group)
        group /= 2;
    return group;
}

/* The place of this distance among all. */
static uint32_t place_of(uint32_t distance, uint32_t groups)
{
    uint32_t size = 1, at = 0, place = 0;

    while (size < groups)
        size *= 2;
    for (uint32_t round = 0; at != distance; at = (at + round) & (size - 1)) {
        place += at < groups;
        round++;
    }
    return place;
}

/* The first part's channel where the transfer takes all of count channels, a power of
 * two. */
static int first_of_all(const struct crystal_operation *op, uint32_t count)
{
    const struct crystal_board_comm *entry = atomic_load(&op->comm->board);
    const uint32_t group = entry ? group_size(op->comm->module->board, entry) : 0;
    uint32_t own, peer, groups, place, base = 0;

    if (!group)
        return -ENOTSUP;
    groups = entry->nranks / group;
    own = op->comm->crank / group;
    peer = op->peer / group;
    place = place_of(op->func == CRYSTAL_FUNC_SEND ? (peer + groups - own) % groups
                                                   : (own + groups - peer) % groups,
                     groups);
    for (uint32_t bit = 1; bit < count; bit *= 2)
        base = base * 2 + (place / bit & 1);
    return (int)base;
}

int crystal_operation_part(const struct crystal_operation *op, uint32_t channel)
{
    const uint64_t set = atomic_load(&op->channels);
    const uint32_t count = op->channel_count;
    uint32_t top, base;
    int first;

    if (count <= 1)
        return 0;
    if ((uint32_t)__builtin_popcountll(set) < count)
        return -EAGAIN;
    top = 63 - (uint32_t)__builtin_clzll(set);
    if (set & 1 && top + 1 == count) { /* 0 .. count - 1 */
        if (count & (count - 1) || atomic_load(&op->comm->ops.p2p_channels) >> count)
            return (int)channel;
        first = first_of_all(op, count);
        return first < 0 ? first
                         : (int)((channel + count - (uint32_t)first) & (count - 1));
    }
    base = (uint32_t)__builtin_ctzll(set);
    if (set & 1) /* goes on at 0: the gap ends below its upper part */
        for (base = top; set >> (base - 1) & 1; base--)
            ;
    if (channel >= base)
        return (int)(channel - base);
    return (int)(top + 1 - base + channel);
}
