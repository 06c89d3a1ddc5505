/* What a client tells of its topology, and what it checks of everybody's: the rings,
 * and their order on the board. For the tests of the proxy.
 */
#ifndef CRYSTAL_TESTS_PROXY_TOPOLOGY_H
#define CRYSTAL_TESTS_PROXY_TOPOLOGY_H

#include "tests/unit/proxy_place.h"

#define RING_CHANNELS 2 /* that a search found; the rings of odd ones go backwards */

/* The real members of a node in the ring order that a channel has there. */
static inline uint32_t chain(const struct world *w, uint32_t node, uint32_t channel,
                             uint32_t *ret)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w->n; i++)
        if (node_of(w, i) == node && is_real(w, i))
            ret[count++] = i;
    if (channel % 2)
        for (uint32_t i = 0; i < count / 2; i++) {
            uint32_t t = ret[i];

            ret[i] = ret[count - 1 - i];
            ret[count - 1 - i] = t;
        }
    return count;
}

static inline void own_topology(struct client *c, uint8_t *slice)
{
    uint32_t ranks[REAL_MAX], me = (uint32_t)c->rank.crank;
    const int32_t channels = RING_CHANNELS;

    for (uint32_t ch = 0; ch < BOOT_CHANNELS; ch++) {
        uint32_t count = chain(c->world, node_of(c->world, me), ch, ranks), at = 0;
        int32_t v[8];

        while (ranks[at] != me)
            at++;
        v[0] = (int32_t)ranks[0];
        v[1] = (int32_t)ranks[count - 1];
        v[2] = at ? (int32_t)ranks[at - 1] : -1;
        v[3] = at + 1 < count ? (int32_t)ranks[at + 1] : -1;
        v[4] = v[5] = v[0];
        v[6] = (int32_t)ranks[count > 1];
        v[7] = -1;
        for (uint32_t a = 0; a < 8; a++)
            memcpy(slice + 228 + 4 * (a * BOOT_CHANNELS + ch), &v[a], 4);
    }
    memset(slice, 0x11, 224);
    memcpy(slice + 224, &c->world->cross_nic, 4);
    memcpy(slice + 4, &channels, 4);
    memcpy(slice + 36, &channels, 4);
}

/* What NCCL does with it: nodes in the order in which their first ranks come, the end
 * of one node leads to the beginning of the next, and the ring must close over all. */
static inline int check_rings(struct client *c, const uint8_t *all)
{
    uint32_t n = c->world->n;
    int32_t *firsts = malloc(4 * (size_t)n);
    uint32_t node_count, code = 0;

#define FIELD(rank, array, ch)                    \
    i32(all + (size_t)(rank)*BOOT_TOPOLOGY_BYTES, \
        228 + 4 * ((array)*BOOT_CHANNELS + (ch)))
    for (uint32_t ch = 0; ch < 2 && !code; ch++) {
        uint32_t seen = 0, node = 0;
        int32_t at;

        node_count = 0;
        for (uint32_t i = 0; i < n; i++) {
            int32_t first = FIELD(i, 0, ch);
            uint32_t k = node_count && firsts[node_count - 1] == first ? 0 : node_count;

            if (first < 0 || (uint32_t)first >= n) {
                code = 1;
                break;
            }
            for (uint32_t j = 0; k && j < node_count; j++)
                if (firsts[j] == first)
                    k = 0;
            if (k || !node_count)
                firsts[node_count++] = first;
        }
        at = firsts[0];
        while (!code && seen < n) {
            int32_t next = FIELD(at, 3, ch);

            seen++;
            if (next < 0) { /* the end of this node */
                if (FIELD(at, 1, ch) != at)
                    code = 2;
                node++;
                next = firsts[node % node_count];
            }
            if (next < 0 || (uint32_t)next >= n || (seen < n && next == firsts[0]))
                code = 3;
            else
                at = next;
        }
        if (!code && (at != firsts[0] || node != node_count))
            code = 4;
    }
#undef FIELD
    free(firsts);
    return code ? WRONG(c, "ring does not close (%u)", code) : 0;
}

/* The channel whose entries of a rank the ring of ch uses: NCCL numbers the nodes as
 * their first ranks come, and in odd ones the channels of a pair change places where
 * the NICs cross. */
static inline uint32_t channel_at(const struct world *w, const uint8_t *all,
                                  uint32_t rank, uint32_t ch)
{
    const int32_t entry = i32(all + (size_t)rank * BOOT_TOPOLOGY_BYTES, 228);
    uint32_t nodes = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        int32_t own = i32(all + (size_t)i * BOOT_TOPOLOGY_BYTES, 228);
        uint32_t k = 0;

        while (k < i && i32(all + (size_t)k * BOOT_TOPOLOGY_BYTES, 228) != own)
            k++;
        if (k == i && own == entry)
            break;
        nodes += k == i;
    }
    return w->cross_nic == 2 && nodes % 2 ? ch ^ 1 : ch;
}

/* The board has the rings that NCCL makes of these messages. */
static inline int check_board(struct client *c, const uint8_t *all)
{
    struct crystal_board *board = c->world->place->board;
    const struct crystal_board_comm *entry =
        crystal_board_comm_find(board, crystal_nccl_hash(c->world->id, 128));
    const struct world *w = c->world;
    const uint32_t n = w->n;
    int wait = 0;

    if (!entry)
        return WRONG(c, "not on the board");
    while (atomic_load(&entry->rings) == CRYSTAL_BOARD_RINGS_AWAITED && wait++ < 60000)
        usleep(1000);
    if (atomic_load(&entry->rings) == CRYSTAL_BOARD_RINGS_AWAITED)
        return WRONG(c, "the board has no rings");
    for (uint32_t ch = 0; ch < 2 * RING_CHANNELS; ch++) {
        const uint32_t *ranks = atomic_load(&entry->rings) == CRYSTAL_BOARD_RINGS_LISTED
                                    ? crystal_board_ring_ranks(board, entry, ch)
                                    : NULL;

        for (uint32_t i = 0; i < n; i++) {
            const uint32_t here = ranks ? ranks[i] : i;
            const uint32_t there = ranks ? ranks[(i + 1) % n] : (i + 1) % n;
            const uint8_t *slice = all + (size_t)here * BOOT_TOPOLOGY_BYTES;
            const uint32_t at = w->cross_nic
                                    ? channel_at(w, all, here, ch % RING_CHANNELS)
                                    : ch % RING_CHANNELS;
            const uint32_t behind = w->cross_nic
                                        ? channel_at(w, all, there, ch % RING_CHANNELS)
                                        : ch % RING_CHANNELS;
            int32_t next = i32(slice, 228 + 4 * (3 * BOOT_CHANNELS + at));
            int32_t entry_there =
                i32(all + (size_t)there * BOOT_TOPOLOGY_BYTES, 228 + 4 * behind);

            if ((i == 0 && here) ||
                (next >= 0 ? (uint32_t)next != there : (uint32_t)entry_there != there))
                return WRONG(c, "place %u of the board's ring %u is %u, behind it %u",
                             i, ch, here, there);
        }
    }
    return 0;
}

static inline int gather_topology(struct client *c)
{
    uint32_t n = c->world->n;
    uint8_t *all = calloc(n, BOOT_TOPOLOGY_BYTES);
    int code;

    own_topology(c, all + (size_t)c->rank.crank * BOOT_TOPOLOGY_BYTES);
    code = boot_gather(&c->rank, all, BOOT_TOPOLOGY_BYTES);
    if (!code)
        code = check_rings(c, all);
    if (!code)
        code = check_board(c, all);
    if (!code && all[(size_t)(n - 1) * BOOT_TOPOLOGY_BYTES] != 0x11)
        code = WRONG(c, "graphs are not cloned");
    free(all);
    return code;
}

#endif
