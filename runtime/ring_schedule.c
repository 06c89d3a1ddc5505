/* The message schedule of NCCL 2.28.9's ring algorithm.
 *
 * What is computed, as that version does it:
 *  - AllGather and Broadcast are moved as bytes, the others as elements; all cuts fall
 *    on multiples of 16 bytes, so both can be told in elements.
 *  - A channel's part (channel_part.h) is walked in loops. With the Simple protocol a
 *    chunk is 2 MiB (4 steps of 512 KiB) for AllReduce, AllGather and ReduceScatter,
 *    512 KiB for Broadcast and Reduce; with LL and LL128 it is one step of theirs. Only
 *    the last loop of an AllReduce has smaller chunks: an n-th of what is left, rounded
 *    up to 16 bytes. Pieces beyond the end are 0 elements long, but still messages.
 *  - A chunk of the first three travels with Simple as two slices: the first half
 *    rounded up to 16 elements, at least 32 KiB; the second takes the rest.
 *
 * Limits: an operation alone in its launch (a group with several collectives divides
 * the channels among them); NCCL_BUFFSIZE at its default; no registered user buffers.
 */
#include "config.h"

#include "runtime/ring_schedule.h"

#include "runtime/channel_part.h"

#include <stdbool.h>

/* One channel's part of an operation. A unit is one element, or one byte where the
 * operation moves bytes. */
struct part {
    uint64_t count;  /* units of the whole operation (per rank for AG and RS) */
    uint64_t offset; /* units before this channel's part */
    uint64_t units;  /* of this channel; 0 = it has nothing to do */
    uint64_t chunk;  /* units per chunk, before the last loop */
    uint32_t unit_bytes;
    uint32_t units_per_elt;
    uint32_t slices; /* per chunk: 1 or 2 */
    uint64_t least;  /* units of the first slice */
    uint64_t align;  /* units in 16 bytes: a power of two */
};

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool is_ring(enum crystal_func func)
{
    return func == CRYSTAL_FUNC_ALLREDUCE || func == CRYSTAL_FUNC_ALLGATHER ||
           func == CRYSTAL_FUNC_REDUCESCATTER;
}

uint32_t crystal_ring_slices(const struct crystal_ring_op *op)
{
    return is_ring(op->func) && op->proto == CRYSTAL_PROTO_SIMPLE ? 2 : 1;
}

uint32_t crystal_ring_chunk_steps(const struct crystal_ring_op *op)
{
    return crystal_ring_slices(op) == 2 ? 4 : 1;
}

/* Bytes on the busiest link per byte of the operation's count. */
static uint64_t traffic_per_byte(const struct crystal_ring_op *op)
{
    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        return 2;
    case CRYSTAL_FUNC_ALLGATHER:
    case CRYSTAL_FUNC_REDUCESCATTER:
        return op->nranks;
    default:
        return 1;
    }
}

static struct part part_make(const struct crystal_ring_op *op)
{
    struct part part = {.unit_bytes = op->elt_bytes, .units_per_elt = 1};
    uint64_t grains;

    if (op->func == CRYSTAL_FUNC_ALLGATHER || op->func == CRYSTAL_FUNC_BROADCAST) {
        part.units_per_elt = op->elt_bytes;
        part.unit_bytes = 1;
    }
    part.count = op->count * part.units_per_elt;
    part.slices = crystal_ring_slices(op);
    part.least = CRYSTAL_RING_STEP_BYTES / part.unit_bytes * part.slices / 32;
    part.align = 16 / part.unit_bytes;
    grains = (uint64_t)crystal_form_step_bytes(op->proto) *
             crystal_ring_chunk_steps(op) / crystal_form_grain_bytes(op->proto);
    part.chunk = grains * (crystal_form_grain_bytes(op->proto) / part.unit_bytes);
    if (part.count && op->channel < op->channel_count) {
        struct crystal_channel_part own =
            crystal_channel_part(part.count, part.unit_bytes, traffic_per_byte(op),
                                 op->proto, op->channel_count, op->channel);

        part.offset = own.offset;
        part.units = own.units;
    }
    return part;
}

/* What the part depends on is the same for all messages of an operation on a channel:
 * a thread keeps the last one of each channel (of two where their numbers are 16
 * apart). */
static const struct part *part_of(const struct crystal_ring_op *op)
{
    static _Thread_local struct {
        struct crystal_ring_op op;
        struct part part;
    } kept[16];
    struct crystal_ring_op *last = &kept[op->channel % 16].op;

    if (last->func != op->func || last->count != op->count ||
        last->channel != op->channel || last->channel_count != op->channel_count ||
        last->nranks != op->nranks || last->elt_bytes != op->elt_bytes ||
        last->proto != op->proto) {
        kept[op->channel % 16].part = part_make(op);
        *last = *op;
    }
    return &kept[op->channel % 16].part;
}

/* Chunk steps per loop at a rank that takes part at all. */
static uint64_t steps_of(const struct crystal_ring_op *op)
{
    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        return 2ULL * (op->nranks - 1);
    case CRYSTAL_FUNC_ALLGATHER:
    case CRYSTAL_FUNC_REDUCESCATTER:
        return op->nranks - 1;
    default:
        return 1;
    }
}

/* A chain has two ends: data flow from the root of a broadcast once round to the rank
 * before it, and from the rank behind the root of a reduction to the root. */
static bool takes_part(const struct crystal_ring_op *op, uint32_t place, int is_send)
{
    uint32_t n = op->nranks, next = (place + 1) % n, prev = (place + n - 1) % n;

    if (op->func == CRYSTAL_FUNC_BROADCAST)
        return op->root != (is_send ? next : place);
    if (op->func == CRYSTAL_FUNC_REDUCE)
        return op->root != (is_send ? place : prev);
    return is_ring(op->func);
}

uint64_t crystal_ring_message_count(const struct crystal_ring_op *op, uint32_t place,
                                    int is_send)
{
    const struct part *part;
    uint64_t loop_units;

    if (op->nranks < 2 || place >= op->nranks || !takes_part(op, place, is_send))
        return 0;
    part = part_of(op);
    loop_units = part->chunk * (op->func == CRYSTAL_FUNC_ALLREDUCE ? op->nranks : 1);
    return div_up(part->units, loop_units) * steps_of(op) * part->slices;
}

/* The piece of a chunk of `units` that slice number `slice` carries. */
static void cut_slice(const struct part *part, uint64_t units, uint32_t slice,
                      uint64_t *ret_offset, uint64_t *ret_units)
{
    const unsigned shift = 3 + part->slices; /* of 16 units a slice */
    uint64_t first = (units + (1U << shift) - 1) >> shift << 4;

    if (first < part->least)
        first = part->least;
    if (first > units)
        first = units;
    *ret_offset = slice ? first : 0;
    *ret_units = slice ? min_u64(first, units - first) : first;
}

/* The crank whose block is that of this place. */
static uint64_t crank_at(const struct crystal_ring_op *op, uint64_t place)
{
    return op->ring ? op->ring[place] : place;
}

/* value % n for a value below 4 n: quicker than a division. */
static uint64_t around(uint64_t value, uint64_t n)
{
    while (value >= n)
        value -= n;
    return value;
}

void crystal_ring_message(const struct crystal_ring_op *op, uint32_t place, int is_send,
                          uint64_t index, struct crystal_ring_message *ret)
{
    const struct part *part = part_of(op);
    uint64_t steps = steps_of(op), n = op->nranks;
    const unsigned half = part->slices - 1;
    uint64_t slice = index & half, step = (index >> half) % steps;
    uint64_t loop = (index >> half) / steps, chunk = part->chunk, block, left;
    uint64_t in_loop = 0, base = 0, units, cut, cut_units;
    /* A receiver gets what the one before it sends. */
    uint64_t sender = is_send ? place : around(place + n - 1, n);
    uint64_t done = loop * chunk * (op->func == CRYSTAL_FUNC_ALLREDUCE ? n : 1);

    left = part->units - done;
    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        if (left < chunk * n) {
            chunk = (div_up(left, n) + part->align - 1) & ~(part->align - 1);
        }
        block = around(sender + 2 * n - 1 - step, n);
        in_loop = block * chunk;
        break;
    case CRYSTAL_FUNC_ALLGATHER:
        block = crank_at(op, around(sender + n - step, n));
        base = block * part->count;
        break;
    case CRYSTAL_FUNC_REDUCESCATTER:
        block = crank_at(op, around(sender + n - 1 - step, n));
        base = block * part->count;
        break;
    default:
        block = loop;
    }
    if (in_loop > left)
        in_loop = left;
    units = min_u64(chunk, left - in_loop);
    cut_slice(part, units, (uint32_t)slice, &cut, &cut_units);
    ret->offset_elts = base + part->offset + done + in_loop + cut;
    if (part->units_per_elt > 1) {
        ret->offset_elts /= part->units_per_elt;
        cut_units /= part->units_per_elt;
    }
    ret->elts = (uint32_t)cut_units;
    ret->step = (uint32_t)step;
    ret->slice = (uint32_t)slice;
    ret->loop = (uint32_t)loop;
    ret->block = (uint32_t)block;
}
