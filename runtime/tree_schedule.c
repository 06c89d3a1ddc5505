/* NCCL 2.28.9's double binary tree (its ncclGetDtree and the joining of nodes in
 * connectTrees) and the message schedule of its tree all-reduce: chunks of one step of
 * a connection's buffer, with LL128 smaller where there are few of them for the tree's
 * depth.
 *
 * In the binary tree over 0 .. n-1 the root is 0. Otherwise a number's lowest set bit
 * says its level: children are half a bit below and above (above: the nearest that is
 * there), the parent is the one with that bit moved up, or, where that is out of range,
 * cleared.
 */
#include "config.h"

#include "runtime/tree_schedule.h"

#include "runtime/channel_part.h"

#include <stdbool.h>

/* Neighbours in the tree over nodes; -1: none. */
struct spot {
    int32_t up, down[2];
    bool is_second; /* child of its parent */
};

static struct spot spot_of(uint32_t n, uint32_t x)
{
    struct spot spot = {-1, {-1, -1}, false};
    uint32_t bit = 1, up, half;

    while (bit < n && !(x & bit))
        bit <<= 1;
    half = bit >> 1;
    if (x == 0) {
        spot.down[1] = n > 1 ? (int32_t)half : -1;
        return spot;
    }
    up = (x ^ bit) | (bit << 1);
    if (up >= n)
        up = x ^ bit;
    spot.up = (int32_t)up;
    spot.is_second = x > up;
    if (!half)
        return spot;
    spot.down[0] = (int32_t)(x - half);
    while (half && x + half >= n)
        half >>= 1;
    spot.down[1] = half ? (int32_t)(x + half) : -1;
    return spot;
}

/* The second tree is the first seen through a mirror, or turned by one. */
static uint32_t to_second(uint32_t n, uint32_t x)
{
    return n % 2 ? (x + n - 1) % n : n - 1 - x;
}

static int32_t from_second(uint32_t n, int32_t x)
{
    if (x < 0)
        return -1;
    return n % 2 ? (int32_t)(((uint32_t)x + 1) % n) : (int32_t)n - 1 - x;
}

static struct spot spot_in(const struct crystal_tree_op *op, uint32_t node)
{
    uint32_t n = op->nranks / op->ranks_per_node;
    struct spot spot;

    if (op->channel / op->half % 2 == 0)
        return spot_of(n, node);
    spot = spot_of(n, to_second(n, node));
    spot.up = from_second(n, spot.up);
    for (int i = 0; i < 2; i++)
        spot.down[i] = from_second(n, spot.down[i]);
    return spot;
}

/* Which rank of a chain has the connection to the parent (-1) or the i-th child. */
static uint32_t local_of(const struct crystal_tree_op *op, int i)
{
    bool is_alone = op->ranks_per_node == 1 || op->shape == CRYSTAL_TREE_SINGLE;

    if (is_alone || i < 0)
        return 0;
    return i == 0 || op->shape == CRYSTAL_TREE_SPLIT ? 1 : 0;
}

void crystal_tree_place(const struct crystal_tree_op *op, uint32_t crank,
                        struct crystal_tree_place *ret)
{
    uint32_t l = op->ranks_per_node, node = crank / l, local = crank % l, count = 0;
    struct spot spot = spot_in(op, node);

    ret->up = local ? (int32_t)crank - 1 : -1;
    for (int i = 0; i < CRYSTAL_TREE_ARITY; i++)
        ret->down[i] = -1;
    if (local + 1 < l)
        ret->down[count++] = (int32_t)crank + 1;
    if (local == 0 && spot.up >= 0)
        ret->up = spot.up * (int32_t)l + (int32_t)local_of(op, spot.is_second);
    for (int i = 0; i < 2; i++)
        if (local == local_of(op, i) && spot.down[i] >= 0)
            ret->down[count++] = spot.down[i] * (int32_t)l;
}

int crystal_tree_is_below(const struct crystal_tree_op *op, uint32_t crank,
                          uint32_t top)
{
    struct crystal_tree_place place;

    while (crank != top) {
        crystal_tree_place(op, crank, &place);
        if (place.up < 0)
            return 0;
        crank = (uint32_t)place.up;
    }
    return 1;
}

static uint32_t log2_floor(uint32_t value)
{
    uint32_t log = 0;

    while (value >>= 1)
        log++;
    return log;
}

/* units: elements of the channel's part */
static uint64_t chunk_elts(const struct crystal_tree_op *op, uint64_t units)
{
    const float per_node = (float)op->ranks_per_node;
    const float depth =
        1.0F + (float)log2_floor(op->nranks / op->ranks_per_node) + 0.1F * per_node;
    uint64_t bytes = units * op->elt_bytes, chunk = crystal_form_step_bytes(op->proto);
    uint32_t grain = crystal_form_grain_bytes(op->proto);

    if (op->proto == CRYSTAL_PROTO_LL128) { /* whole chunks are compared */
        uint64_t chunks = bytes / chunk;

        for (; (float)chunks < depth * 64 / per_node && chunk > 131072;
             chunks = bytes / chunk)
            chunk /= 2;
        for (; (float)chunks < depth * 16 / per_node && chunk > 32768;
             chunks = bytes / chunk)
            chunk /= 2;
    }
    return chunk / grain * (grain / op->elt_bytes);
}

static struct crystal_channel_part part_of(const struct crystal_tree_op *op)
{
    struct crystal_channel_part none = {0};

    if (op->channel >= op->channel_count)
        return none;
    /* an all-reduce brings each byte up and down */
    return crystal_channel_part(op->count, op->elt_bytes, 2, op->proto,
                                op->channel_count, op->channel);
}

uint64_t crystal_tree_message_count(const struct crystal_tree_op *op)
{
    uint64_t units = part_of(op).units, chunk = chunk_elts(op, units);

    return op->nranks < 2 ? 0 : units / chunk + (units % chunk != 0);
}

void crystal_tree_message(const struct crystal_tree_op *op, uint64_t index,
                          struct crystal_tree_message *ret)
{
    struct crystal_channel_part part = part_of(op);
    uint64_t chunk = chunk_elts(op, part.units), done = index * chunk;
    uint64_t left = part.units - done;

    ret->offset_elts = part.offset + done;
    ret->elts = (uint32_t)(left < chunk ? left : chunk);
}
