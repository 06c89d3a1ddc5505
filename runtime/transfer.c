/* The longest paths of collectives. With h the time of a message's first slice from
 * rank to rank, c the time of a chunk (two slices) on the NIC and S chunk steps in a
 * loop, a path from rank j's first message to rank i's last one takes L steps along the
 * ring, L congruent to i - j modulo n, and S - L steps in which a rank sends on:
 *
 *   L * h + (S - L) * c + last slice
 *
 * So where h > c the greatest L <= S counts, else the smallest L >= 1. Loops follow
 * each other as hostccl's and NCCL's ring does them: a rank begins one when it has all
 * of the one before. An operation ends for its caller when the last message is there
 * and its own ones are in staging memory.
 */
#include "config.h"

#include "runtime/transfer.h"

#include "runtime/ring_schedule.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define STAGED_SLICES 4U /* of staging memory's 8 steps slices take two */
#define STAGED_CHUNKS CRYSTAL_TRANSFER_STAGED_CHUNKS

__extension__ typedef unsigned __int128 wide;

uint64_t crystal_transfer_occupy_ns(const struct crystal_transfer_wire *wire,
                                    uint64_t bytes)
{
    wide ns;

    if (!wire->bytes_per_s)
        return 0;
    ns = ((wide)bytes * 1000000000U + wire->bytes_per_s - 1) / wire->bytes_per_s;
    return ns > UINT64_MAX / 4 ? UINT64_MAX / 4 : (uint64_t)ns;
}

/* Of struct crystal_transfer_cost, one loop of a ring operation: steps: S, chunk steps;
 * hop_ns: h, first slice, NIC and way; chunk_ns: c, both slices on the NIC; last_ns:
 * the second slice on the NIC, 0: there is only one; held_ns: NIC time of what does not
 * fit in staging memory. Of struct crystal_transfer_plan: loops of one cost and, where
 * it differs, a last one; loops counts the last one, 0: no messages at all. */

static bool is_sliced(enum crystal_func func)
{
    return func == CRYSTAL_FUNC_ALLREDUCE || func == CRYSTAL_FUNC_ALLGATHER ||
           func == CRYSTAL_FUNC_REDUCESCATTER;
}

static void cost_of(const struct crystal_transfer_wire *wire,
                    const struct crystal_ring_op *ring, uint32_t sender, uint64_t loop,
                    uint64_t steps, uint64_t channels,
                    struct crystal_transfer_cost *cost)
{
    uint64_t slices = crystal_ring_slices(ring), slice_ns[2] = {0, 0};
    uint64_t messages = steps * slices;
    uint64_t fit = slices == 2 ? STAGED_SLICES : STAGED_CHUNKS;

    for (uint64_t i = 0; i < slices; i++) {
        struct crystal_ring_message m;

        crystal_ring_message(ring, sender, 1, loop * messages + i, &m);
        slice_ns[i] = crystal_transfer_occupy_ns(
            wire, channels * crystal_form_bytes(ring->proto,
                                                (uint64_t)m.elts * ring->elt_bytes));
    }
    cost->steps = steps;
    cost->hop_ns = slice_ns[0] + wire->latency_ns + wire->overhead_ns;
    cost->chunk_ns = slice_ns[0] + slice_ns[1];
    cost->last_ns = slice_ns[1];
    cost->held_ns = messages > fit ? (messages - fit) / slices * cost->chunk_ns : 0;
}

static void plan_of(const struct crystal_transfer_wire *wire,
                    const struct crystal_transfer_op *op,
                    struct crystal_transfer_plan *plan)
{
    struct crystal_ring_op ring = {.func = op->func,
                                   .nranks = op->nranks,
                                   .root = op->root,
                                   .count = op->count,
                                   .elt_bytes = op->elt_bytes,
                                   .channel_count = wire->channel_count,
                                   .proto = wire->proto};
    uint64_t slices = crystal_ring_slices(&ring), steps = 1, channels = 0, messages;
    uint32_t sender = 1; /* of the block that is never smaller than another */

    if (op->func == CRYSTAL_FUNC_ALLREDUCE)
        steps = 2ULL * (op->nranks - 1);
    else if (is_sliced(op->func))
        steps = op->nranks - 1;
    else
        sender =
            op->func == CRYSTAL_FUNC_BROADCAST ? op->root : (op->root + 1) % op->nranks;
    messages = crystal_ring_message_count(&ring, sender, 1);
    /* all channels share the NIC; the first one's messages stand for all of them */
    for (; ring.channel < wire->channel_count; ring.channel++)
        channels += crystal_ring_message_count(&ring, sender, 1) != 0;
    ring.channel = 0;
    plan->loops = messages / slices / steps;
    if (!plan->loops)
        return;
    cost_of(wire, &ring, sender, 0, steps, channels, &plan->each);
    cost_of(wire, &ring, sender, plan->loops - 1, steps, channels, &plan->last);
}

/* What position k counts, measured from rank 0's place. Times of a broken graph may be
 * as great as they like: they wrap around. */
static int64_t level(const uint64_t *arrive, int64_t count, int64_t k, int64_t slope)
{
    return (int64_t)(arrive[k < 0 ? k + count : k] - (uint64_t)k * (uint64_t)slope);
}

/* ends[i] = the greatest of ends[i] and, over d = low .. high, arrive[i - d mod n] +
 * (d + turns * n) * slope + constant. A window that slides over the ring; queue holds
 * the positions that may still become the greatest. */
static void window(const uint64_t *arrive, uint32_t n, int64_t low, int64_t high,
                   int64_t turns, int64_t slope, int64_t constant, uint64_t *ends,
                   uint64_t *queue)
{
    int64_t count = (int64_t)n;
    uint32_t head = 0, size = 0; /* the queue is a ring of n places */

    if (low > high)
        return;
    /* position k stands for rank k mod n; its value counts from rank 0's place */
    for (int64_t k = -high; k < count - low; k++) {
        int64_t i = k + low; /* the rank for which k is the newest */
        int64_t value = level(arrive, count, k, slope);
        uint32_t at;

        if (size && (int64_t)queue[head] < i - high) {
            head = head + 1 == n ? 0 : head + 1;
            size--;
        }
        for (; size; size--) {
            int64_t other;

            at = head + size - 1;
            other = (int64_t)queue[at < n ? at : at - n];
            if (level(arrive, count, other, slope) > value)
                break;
        }
        at = head + size++;
        queue[at < n ? at : at - n] = (uint64_t)k;
        if (i >= 0) {
            int64_t best = (int64_t)queue[head];
            int64_t end = (int64_t)((uint64_t)level(arrive, count, best, slope) +
                                    (uint64_t)(i + turns * count) * (uint64_t)slope +
                                    (uint64_t)constant);

            if (end > 0 && (uint64_t)end > ends[i])
                ends[i] = (uint64_t)end;
        }
    }
}

/* One loop: when each rank has its last message, in ends. */
static void ring_loop(const struct crystal_transfer_cost *cost, uint32_t n,
                      const uint64_t *ready, uint64_t *ends, uint64_t *queue)
{
    int64_t slope = (int64_t)(cost->hop_ns - cost->chunk_ns);
    int64_t steps = (int64_t)cost->steps, count = (int64_t)n;
    int64_t constant = (int64_t)(cost->steps * cost->chunk_ns + cost->last_ns);

    if (slope > 0) {
        int64_t turns = steps / count, rest = steps % count;

        window(ready, n, turns ? 0 : 1, rest, turns, slope, constant, ends, queue);
        if (turns)
            window(ready, n, rest + 1, count - 1, turns - 1, slope, constant, ends,
                   queue);
    } else {
        window(ready, n, 1, steps < count - 1 ? steps : count - 1, 0, slope, constant,
               ends, queue);
        if (steps >= count)
            window(ready, n, 0, 0, 1, slope, constant, ends, queue);
    }
}

/* The next loop begins with the ends of this one. Where every rank is by the same time
 * later than a loop before, so it will be in each of the `left` equal loops to come:
 * those are skipped. Returns how many. */
static uint64_t go_on(uint32_t n, uint64_t *ready, uint64_t *ends, uint64_t left)
{
    uint64_t shift = ends[0] - ready[0];
    bool is_even = left > 0;

    for (uint32_t i = 0; i < n; i++) {
        is_even = is_even && ends[i] - ready[i] == shift;
        ready[i] = ends[i];
    }
    if (!is_even)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        ready[i] = ends[i] += left * shift;
    return left;
}

/* A rank begins a loop when it has the last message of the one before and its own have
 * left; its first message needs the next rank to have posted buffers. */
static void ring(const struct crystal_transfer_plan *plan, uint32_t n,
                 const uint64_t *arrive, uint64_t *ends, uint64_t *scratch)
{
    uint64_t *ready = scratch, *queue = scratch + n;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t next = arrive[i + 1 < n ? i + 1 : 0];

        ready[i] = arrive[i] > next ? arrive[i] : next;
        ends[i] = arrive[i];
    }
    for (uint64_t loop = 1; loop <= plan->loops; loop++) {
        const struct crystal_transfer_cost *cost =
            loop < plan->loops ? &plan->each : &plan->last;

        ring_loop(cost, n, ready, ends, queue);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t sent =
                ready[i] +
                (loop < plan->loops ? cost->steps * cost->chunk_ns : cost->held_ns);

            if ((loop < plan->loops || cost->held_ns) && sent > ends[i])
                ends[i] = sent;
        }
        if (loop < plan->loops)
            loop += go_on(n, ready, ends, plan->loops - 1 - loop);
    }
}

/* Broadcast and reduction: a chain that begins with `first` and has n ranks. Every rank
 * passes all messages on; the last one may be held up by any rank before it, and by the
 * next rank, which has to be there before it is sent anything. */
static void chain(const struct crystal_transfer_plan *plan, uint32_t n, uint32_t first,
                  const uint64_t *arrive, uint64_t *ends)
{
    uint64_t nic_ns = (plan->loops - 1) * plan->each.chunk_ns + plan->last.chunk_ns;
    uint64_t fit_ns = STAGED_CHUNKS * plan->each.chunk_ns;
    uint64_t front = 0; /* when the last message could leave the rank before */

    for (uint32_t d = 0; d < n; d++) {
        uint32_t i = (first + d) % n, next = (i + 1) % n;
        uint64_t end = arrive[i];

        if (d) {
            front += plan->last.hop_ns;
            if (front > end)
                end = front;
        }
        if (d + 1 < n) {
            uint64_t ready = arrive[i] > arrive[next] ? arrive[i] : arrive[next];
            uint64_t sent = ready + nic_ns;

            if (d && front + plan->last.chunk_ns > sent)
                sent = front + plan->last.chunk_ns;
            if (plan->loops > STAGED_CHUNKS && sent - fit_ns > end)
                end = sent - fit_ns;
            front = sent - plan->last.chunk_ns;
        }
        ends[i] = end;
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The root of a gather takes in one message after the other, as they come. */
static uint64_t gathered(const struct crystal_transfer_plan *plan,
                         const uint64_t *arrive, uint64_t *ready)
{
    uint64_t root = arrive[plan->root], end = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->nranks; i++)
        if (i != plan->root)
            ready[count++] = arrive[i] > root ? arrive[i] : root;
    qsort(ready, count, sizeof *ready, compare);
    for (uint32_t i = 0; i < count; i++)
        end = (ready[i] > end ? ready[i] : end) + plan->bytes_ns;
    return end + plan->way_ns;
}

/* All to all, gather and scatter as NCCL makes them of point-to-point messages: the
 * busiest NIC sends, or takes in, n - 1 of them. */
static void star(const struct crystal_transfer_plan *plan, const uint64_t *arrive,
                 uint64_t *ends, uint64_t *scratch)
{
    uint64_t bytes_ns = plan->bytes_ns, way_ns = plan->way_ns, latest = 0;
    uint32_t n = plan->nranks;

    for (uint32_t i = 0; i < n; i++)
        if (arrive[i] > latest)
            latest = arrive[i];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t root = arrive[plan->root];
        uint64_t both = arrive[i] > root ? arrive[i] : root;

        if (plan->func == CRYSTAL_FUNC_ALLTOALL)
            ends[i] = latest + (n - 1) * bytes_ns + way_ns;
        else if (plan->func == CRYSTAL_FUNC_GATHER)
            ends[i] =
                i == plan->root ? gathered(plan, arrive, scratch) : both + bytes_ns;
        else
            ends[i] = i == plan->root ? latest + (n - 1) * bytes_ns
                                      : both + (n - 1) * bytes_ns + way_ns;
    }
}

static bool is_star(enum crystal_func func)
{
    return !is_sliced(func) && func != CRYSTAL_FUNC_BROADCAST &&
           func != CRYSTAL_FUNC_REDUCE;
}

/* What is known of how an operation was done comes before what the wire says of all. */
static void way_take(struct crystal_transfer_wire *wire, uint8_t way)
{
    switch (CRYSTAL_OP_ALGO(way)) {
    case CRYSTAL_OP_ALGO_RING:
        wire->algos = 0;
        break;
    case CRYSTAL_OP_ALGO_TREE:
        wire->algos = CRYSTAL_TRANSFER_TREE;
        break;
    case CRYSTAL_OP_ALGO_PAT:
        wire->algos = CRYSTAL_TRANSFER_PAT;
        break;
    default:
        break;
    }
    switch (CRYSTAL_OP_PROTO(way)) {
    case CRYSTAL_OP_PROTO_SIMPLE:
        wire->proto = CRYSTAL_PROTO_SIMPLE;
        break;
    case CRYSTAL_OP_PROTO_LL:
        wire->proto = CRYSTAL_PROTO_LL;
        break;
    case CRYSTAL_OP_PROTO_LL128:
        wire->proto = CRYSTAL_PROTO_LL128;
        break;
    default:
        break;
    }
}

void crystal_transfer_plan_init(struct crystal_transfer_plan *plan,
                                const struct crystal_transfer_wire *wire,
                                const struct crystal_transfer_op *op)
{
    memset(plan, 0, sizeof *plan);
    plan->func = op->func;
    plan->nranks = op->nranks;
    plan->root = op->root;
    plan->op_overhead_ns = op->nranks == 1 ? 0 : wire->op_overhead_ns;
    plan->wire = *wire;
    way_take(&plan->wire, op->way);
    wire = &plan->wire;
    if (op->nranks == 1)
        return;
    if (wire->algos)
        crystal_transfer_repeat_init(plan, op);
    if (plan->repeat.count)
        return;
    if (is_star(op->func)) {
        plan->bytes_ns = crystal_transfer_occupy_ns(wire, op->count * op->elt_bytes);
        plan->way_ns = wire->latency_ns + wire->overhead_ns;
    } else {
        plan_of(wire, op, plan);
    }
}

void crystal_transfer_plan_ends(const struct crystal_transfer_plan *plan,
                                const uint64_t *arrive, uint64_t *ends,
                                uint64_t *scratch)
{
    uint32_t n = plan->nranks;

    if (plan->repeat.count)
        crystal_transfer_repeat_ends(plan, arrive, ends, scratch);
    else if (n > 1 && is_star(plan->func))
        star(plan, arrive, ends, scratch);
    else if (!plan->loops) /* nothing to move */
        memcpy(ends, arrive, n * sizeof *ends);
    else if (is_sliced(plan->func))
        ring(plan, n, arrive, ends, scratch);
    else
        chain(plan, n,
              plan->func == CRYSTAL_FUNC_REDUCE ? (plan->root + 1) % n : plan->root,
              arrive, ends);
    for (uint32_t i = 0; i < n && plan->op_overhead_ns; i++)
        ends[i] += plan->op_overhead_ns;
}

static double most_of(const struct crystal_transfer_cost *cost)
{
    uint64_t step = cost->hop_ns > cost->chunk_ns ? cost->hop_ns : cost->chunk_ns;

    return (double)cost->steps * (double)step + (double)cost->last_ns +
           (double)cost->held_ns;
}

double crystal_transfer_plan_most_ns(const struct crystal_transfer_plan *plan)
{
    double most = (double)plan->nranks * (double)plan->bytes_ns + (double)plan->way_ns;

    most += (double)plan->repeat.count * (double)plan->repeat.period_ns;
    if (plan->repeat.count) /* no path is longer than twice through all ranks */
        most += 2.0 * plan->nranks * (double)(plan->repeat.hop_ns[0]);
    if (plan->loops)
        most += (double)(plan->loops - 1) * most_of(&plan->each) +
                most_of(&plan->last) + (double)plan->nranks * (double)plan->last.hop_ns;
    return most + (double)plan->op_overhead_ns;
}

uint64_t crystal_transfer_plan_nic_ns(const struct crystal_transfer_plan *plan)
{
    if (plan->repeat.count)
        return plan->repeat.count * plan->repeat.period_ns;
    if (plan->nranks == 1 || (!is_star(plan->func) && !plan->loops))
        return 0;
    if (is_star(plan->func))
        return (plan->nranks - 1) * plan->bytes_ns;
    if (is_sliced(plan->func))
        return (plan->loops - 1) * plan->each.steps * plan->each.chunk_ns +
               plan->last.steps * plan->last.chunk_ns;
    return (plan->loops - 1) * plan->each.chunk_ns + plan->last.chunk_ns;
}

void crystal_transfer_coll(const struct crystal_transfer_wire *wire,
                           const struct crystal_transfer_op *op, const uint64_t *arrive,
                           uint64_t *ends, uint64_t *scratch)
{
    struct crystal_transfer_plan plan;

    crystal_transfer_plan_init(&plan, wire, op);
    crystal_transfer_plan_ends(&plan, arrive, ends, scratch);
}
