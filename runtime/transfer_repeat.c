/* Tree and PAT. See transfer.h for the rules.
 *
 * With all periods equal, what a connection begins with chunk i of is there by period:
 * begin(i) = max(ready(i), begin(i - 1) + period), and ready(i) is at most ready(0) + i
 * periods where that holds for the connections before. So begin(i) = begin(0) + i
 * periods for all of them, and one walk over the first chunk tells everything.
 */
#include "config.h"

#include "runtime/transfer.h"

#include "runtime/pat_schedule.h"
#include "runtime/tree_schedule.h"

#include <string.h>
#include <strings.h>

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* --- tree --- */

static struct crystal_tree_op tree_of(const struct crystal_transfer_wire *wire,
                                      uint32_t nranks, uint32_t channel)
{
    uint32_t per_node = wire->node_ranks ? wire->node_ranks : 1;
    uint32_t half = wire->channel_count / 2;

    return (struct crystal_tree_op){.nranks = nranks,
                                    .ranks_per_node = nranks % per_node ? 1 : per_node,
                                    .shape = per_node > 1 ? CRYSTAL_TREE_BALANCED
                                                          : CRYSTAL_TREE_SINGLE,
                                    .half = half ? half : 1,
                                    .channel_count = wire->channel_count,
                                    .channel = channel,
                                    .proto = wire->proto};
}

static uint32_t sends_of(const struct crystal_tree_op *tree, uint32_t crank)
{
    struct crystal_tree_place place;
    uint32_t count;

    crystal_tree_place(tree, crank, &place);
    count = place.up >= 0;
    for (int i = 0; i < CRYSTAL_TREE_ARITY && place.down[i] >= 0; i++)
        count++;
    return count;
}

/* Channels with a part of the tensor, of the first tree and of the second. */
static void tree_channels(struct crystal_tree_op tree, uint32_t ret[2])
{
    ret[0] = ret[1] = 0;
    for (tree.channel = 0; tree.channel < tree.channel_count; tree.channel++)
        ret[tree.channel / tree.half % 2] += crystal_tree_message_count(&tree) != 0;
}

static void tree_init(struct crystal_transfer_plan *plan,
                      const struct crystal_transfer_op *op)
{
    const struct crystal_transfer_wire *wire = &plan->wire;
    struct crystal_tree_op first = tree_of(wire, op->nranks, 0), second;
    struct crystal_tree_message m[2];
    uint32_t channels[2], sends = 0;
    uint64_t way_ns = wire->latency_ns + wire->overhead_ns;
    struct crystal_transfer_repeat *r = &plan->repeat;

    first.count = op->count;
    first.elt_bytes = op->elt_bytes;
    second = first;
    second.channel = first.half;
    r->count = crystal_tree_message_count(&first);
    if (!r->count)
        return;
    crystal_tree_message(&first, 0, &m[0]);
    crystal_tree_message(&first, r->count - 1, &m[1]);
    tree_channels(first, channels);
    for (uint32_t i = 0; i < op->nranks; i++) {
        uint32_t own = channels[0] * sends_of(&first, i);

        own += channels[1] ? channels[1] * sends_of(&second, i) : 0;
        sends = sends > own ? sends : own;
    }
    for (int i = 0; i < 2; i++)
        r->hop_ns[i] =
            crystal_transfer_occupy_ns(
                wire, (channels[0] + channels[1]) *
                          crystal_form_bytes(wire->proto,
                                             (uint64_t)m[i].elts * op->elt_bytes)) +
            way_ns;
    r->period_ns = crystal_transfer_occupy_ns(
        wire,
        sends * crystal_form_bytes(wire->proto, (uint64_t)m[0].elts * op->elt_bytes));
}

/* What is known of a rank: children that have not sent yet, and its place in the queue
 * of those that have all. */
#define PENDING(x) ((x)&0xffffffffU)
#define QUEUED(x)  ((x) >> 32)

/* First chunk: up[r] is when r has its children's chunks; order lists the ranks from
 * the leaves to the root. */
static void tree_up(const struct crystal_tree_op *tree, const uint64_t *arrive,
                    uint64_t *up, uint64_t *order, uint64_t hop_ns)
{
    uint32_t n = tree->nranks, queued = 0;
    struct crystal_tree_place place;

    for (uint32_t i = 0; i < n; i++)
        order[i] = 0;
    for (uint32_t i = 0; i < n; i++) {
        crystal_tree_place(tree, i, &place);
        if (place.up >= 0)
            order[place.up]++;
        up[i] = arrive[i];
    }
    for (uint32_t i = 0; i < n; i++)
        if (PENDING(order[i]) == 0)
            order[queued++] |= (uint64_t)i << 32;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t r = (uint32_t)QUEUED(order[k]), parent;

        crystal_tree_place(tree, r, &place);
        if (place.up < 0)
            continue;
        parent = (uint32_t)place.up;
        up[parent] = later(up[parent], later(up[r], arrive[parent]) + hop_ns);
        order[parent]--;
        if (PENDING(order[parent]) == 0)
            order[queued++] |= (uint64_t)parent << 32;
    }
}

/* One of the trees: ends of all ranks that it brings the result later. */
static void tree_ends(const struct crystal_transfer_plan *plan,
                      const struct crystal_tree_op *tree, const uint64_t *arrive,
                      uint64_t *ends, uint64_t *scratch)
{
    const struct crystal_transfer_repeat *r = &plan->repeat;
    uint64_t *at = scratch, *order = scratch + tree->nranks;
    uint64_t behind_ns = (r->count - 1) * r->period_ns;
    const int is_one = r->count == 1;

    tree_up(tree, arrive, at, order, r->hop_ns[is_one]);
    for (uint32_t k = tree->nranks; k-- > 0;) { /* from the root down */
        uint32_t rank = (uint32_t)QUEUED(order[k]);
        struct crystal_tree_place place;

        crystal_tree_place(tree, rank, &place);
        if (place.up >= 0) {
            uint64_t begin = at[place.up]; /* its parent's; both have arrived */

            at[rank] = begin + r->hop_ns[is_one];
            begin += behind_ns + r->hop_ns[1];
            ends[rank] = later(ends[rank], begin);
        } else { /* the root; its children still have their times of up */
            for (int i = 0; i < CRYSTAL_TREE_ARITY && place.down[i] >= 0; i++)
                ends[rank] = later(ends[rank], later(at[place.down[i]], arrive[rank]) +
                                                   behind_ns + r->hop_ns[1]);
        }
    }
}

/* --- PAT --- */

/* Blocks that a rank sends in step s. */
static uint64_t blocks_of(uint32_t nranks, uint32_t step)
{
    uint64_t had = UINT64_C(1) << step;

    return had < nranks - had ? had : nranks - had;
}

static uint32_t step_count(uint32_t nranks)
{
    uint32_t steps = 0;

    while (UINT64_C(1) << steps < nranks)
        steps++;
    return steps;
}

static void pat_init(struct crystal_transfer_plan *plan,
                     const struct crystal_transfer_op *op)
{
    const struct crystal_transfer_wire *wire = &plan->wire;
    struct crystal_pat_op pat = {.func = op->func,
                                 .nranks = op->nranks,
                                 .count = op->count,
                                 .elt_bytes = op->elt_bytes,
                                 .channel_count = wire->channel_count};
    struct crystal_transfer_repeat *r = &plan->repeat;
    struct crystal_pat_cut cut, other;
    uint64_t channels = 0;

    crystal_pat_cut(&pat, &cut);
    if (!cut.bytes)
        return;
    for (pat.channel = 0; pat.channel < wire->channel_count; pat.channel++) {
        crystal_pat_cut(&pat, &other);
        channels += other.bytes != 0;
    }
    r->count = (cut.bytes + cut.chunk_bytes - 1) / cut.chunk_bytes;
    r->chunk_bytes = (r->count == 1 ? cut.bytes : cut.chunk_bytes) * channels;
    r->last_bytes = (cut.bytes - (r->count - 1) * cut.chunk_bytes) * channels;
    for (uint32_t s = 0; s < step_count(op->nranks); s++) {
        uint64_t ns =
            crystal_transfer_occupy_ns(wire, r->chunk_bytes * blocks_of(op->nranks, s));

        r->period_ns += ns;
        r->hop_ns[0] = later(r->hop_ns[0], ns + wire->latency_ns + wire->overhead_ns);
    }
}

static void pat_ends(const struct crystal_transfer_plan *plan, const uint64_t *arrive,
                     uint64_t *ends, uint64_t *scratch)
{
    const struct crystal_transfer_repeat *r = &plan->repeat;
    const struct crystal_transfer_wire *wire = &plan->wire;
    uint64_t *has = scratch, *next = scratch + plan->nranks;
    uint64_t behind_ns = (r->count - 1) * r->period_ns;
    uint32_t n = plan->nranks, steps = step_count(n);

    memcpy(has, arrive, n * sizeof *has);
    for (uint32_t k = 0; k < steps; k++) {
        uint32_t s = plan->func == CRYSTAL_FUNC_ALLGATHER ? k : steps - 1 - k;
        uint64_t way_ns = wire->latency_ns + wire->overhead_ns;
        uint64_t each_ns =
            crystal_transfer_occupy_ns(wire, r->chunk_bytes * blocks_of(n, s)) + way_ns;
        uint64_t last_ns =
            crystal_transfer_occupy_ns(wire, r->last_bytes * blocks_of(n, s)) + way_ns;

        for (uint32_t i = 0; i < n; i++) {
            uint32_t from = (uint32_t)((i + (UINT64_C(1) << s)) % n);
            uint64_t begin = later(has[from], arrive[i]);

            next[i] = later(has[i], begin + each_ns);
            ends[i] = later(ends[i], begin + behind_ns + last_ns);
        }
        memcpy(has, next, n * sizeof *has);
    }
}

/* --- both --- */

uint32_t crystal_transfer_algos(const char *list)
{
    uint32_t algos = 0;

    while (list && *list) {
        size_t bytes = strcspn(list, ",");

        if (bytes == 4 && strncasecmp(list, "tree", 4) == 0)
            algos |= CRYSTAL_TRANSFER_TREE;
        if (bytes == 3 && strncasecmp(list, "pat", 3) == 0)
            algos |= CRYSTAL_TRANSFER_PAT;
        list += bytes + (list[bytes] == ',');
    }
    return algos;
}

enum crystal_proto crystal_transfer_proto(const char *list)
{
    if (list && strcasecmp(list, "LL") == 0)
        return CRYSTAL_PROTO_LL;
    return list && strcasecmp(list, "LL128") == 0 ? CRYSTAL_PROTO_LL128
                                                  : CRYSTAL_PROTO_SIMPLE;
}

void crystal_transfer_repeat_init(struct crystal_transfer_plan *plan,
                                  const struct crystal_transfer_op *op)
{
    uint32_t algos = plan->wire.algos;

    if (op->func == CRYSTAL_FUNC_ALLREDUCE && algos & CRYSTAL_TRANSFER_TREE)
        tree_init(plan, op);
    else if ((op->func == CRYSTAL_FUNC_ALLGATHER ||
              op->func == CRYSTAL_FUNC_REDUCESCATTER) &&
             algos & CRYSTAL_TRANSFER_PAT)
        pat_init(plan, op);
}

void crystal_transfer_repeat_ends(const struct crystal_transfer_plan *plan,
                                  const uint64_t *arrive, uint64_t *ends,
                                  uint64_t *scratch)
{
    struct crystal_tree_op tree;

    memcpy(ends, arrive, plan->nranks * sizeof *ends);
    if (plan->func != CRYSTAL_FUNC_ALLREDUCE) {
        pat_ends(plan, arrive, ends, scratch);
        return;
    }
    tree = tree_of(&plan->wire, plan->nranks, 0);
    tree_ends(plan, &tree, arrive, ends, scratch);
    if (plan->wire.channel_count < 2)
        return;
    tree.channel = tree.half;
    tree_ends(plan, &tree, arrive, ends, scratch);
}
