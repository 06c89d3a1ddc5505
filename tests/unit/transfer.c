/* Transfers: exact closed forms, and agreement with a simulation of every single
 * message for up to 9 ranks with random arrivals.
 */
#include "config.h"

#include "runtime/transfer.h"

#include "runtime/pat_schedule.h"
#include "runtime/ring_schedule.h"
#include "runtime/tree_schedule.h"
#include "tests/check.h"

#define RANKS_MAX 9

static uint64_t random_state = 88172645463325252ULL;

static uint64_t next_random(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % limit;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Every message by itself. */
static void simulate(const struct crystal_transfer_wire *wire,
                     const struct crystal_transfer_op *op, const uint64_t *arrive,
                     uint64_t *ends)
{
    static uint64_t left[RANKS_MAX][4096]; /* message m of rank r has left its NIC */
    uint32_t n = op->nranks;
    struct crystal_ring_op ring = {op->func, n, op->root,    op->count, op->elt_bytes,
                                   1,        0, wire->proto, NULL};
    int is_chain =
        op->func == CRYSTAL_FUNC_BROADCAST || op->func == CRYSTAL_FUNC_REDUCE;
    uint32_t slices = crystal_ring_slices(&ring);
    uint32_t back = is_chain ? 0 : slices; /* message m passes on message m - back */
    uint32_t first = op->func == CRYSTAL_FUNC_REDUCE ? (op->root + 1) % n : op->root;
    uint64_t fit = slices == 2 ? 4 : 8; /* messages in staging memory */
    uint64_t per_loop =
        slices * (op->func == CRYSTAL_FUNC_ALLREDUCE ? 2 * (n - 1) : n - 1);
    uint64_t way = wire->latency_ns + wire->overhead_ns, most = 0;

    for (uint32_t r = 0; r < n; r++) {
        uint64_t count = crystal_ring_message_count(&ring, r, 1);

        most = later(most, count);
        ends[r] = arrive[r];
    }
    for (uint64_t m = 0; m < most; m++)
        for (uint32_t d = 0; d < n; d++) {
            uint32_t r = is_chain ? (first + d) % n : d, next = (r + 1) % n;
            uint32_t prev = (r + n - 1) % n;
            struct crystal_ring_message message;
            uint64_t start = later(arrive[r], arrive[next]);

            if (m >= crystal_ring_message_count(&ring, r, 1))
                continue;
            crystal_ring_message(&ring, r, 1, m, &message);
            if (m)
                start = later(start, left[r][m - 1]);
            if (!is_chain && m >= per_loop && m % per_loop < slices) /* a new loop */
                start = later(start, left[prev][m - m % per_loop - 1] + way);
            else if (is_chain ? d > 0 : m >= slices)
                start = later(start, left[prev][m - back] + way);
            left[r][m] =
                start +
                crystal_transfer_occupy_ns(
                    wire, crystal_form_bytes(wire->proto,
                                             (uint64_t)message.elts * op->elt_bytes));
            if (m + fit < crystal_ring_message_count(&ring, r, 1))
                ends[r] = later(ends[r], left[r][m]); /* others wait for its place */
            ends[next] = later(ends[next], left[r][m] + way);
        }
}

static void compare(const struct crystal_transfer_wire *wire,
                    const struct crystal_transfer_op *op, uint64_t spread_ns,
                    uint64_t tolerance_ns)
{
    uint64_t arrive[RANKS_MAX], want[RANKS_MAX], got[RANKS_MAX], scratch[2 * RANKS_MAX];
    uint64_t alone[4 * RANKS_MAX];

    for (uint32_t r = 0; r < op->nranks; r++)
        arrive[r] = 1000000 + (spread_ns ? next_random(spread_ns) : 0);
    simulate(wire, op, arrive, want);
    crystal_transfer_coll(wire, op, arrive, got, scratch);
    for (uint32_t r = 0; r < op->nranks; r++) {
        uint64_t off = got[r] > want[r] ? got[r] - want[r] : want[r] - got[r];

        if (off > tolerance_ns)
            printf("# func %d n %u count %llu latency %llu spread %llu: rank %u\n",
                   (int)op->func, op->nranks, (unsigned long long)op->count,
                   (unsigned long long)wire->latency_ns, (unsigned long long)spread_ns,
                   r);
        if (off > tolerance_ns)
            CHECK_EQ(got[r], want[r]);
    }
    if (!spread_ns)
        for (uint32_t r = 0; r < op->nranks; r++)
            CHECK(got[r] - arrive[r] == crystal_transfer_alone_ns(wire, op, r, alone));
}

static const enum crystal_func ring_funcs[] = {
    CRYSTAL_FUNC_ALLREDUCE, CRYSTAL_FUNC_ALLGATHER, CRYSTAL_FUNC_REDUCESCATTER,
    CRYSTAL_FUNC_BROADCAST, CRYSTAL_FUNC_REDUCE};

/* Chunks of one size: the closed form is exact. */
static void agrees_with_messages(void)
{
    static const uint64_t latencies[] = {0, 1000, 50000, 4000000};
    static const uint64_t spreads[] = {0, 100000, 20000000, 400000000};

    for (uint32_t n = 2; n <= RANKS_MAX; n++)
        for (size_t f = 0; f < 5; f++)
            for (size_t l = 0; l < 4; l++)
                for (size_t s = 0; s < 4; s++)
                    for (int loops = 1; loops <= 3; loops++) {
                        struct crystal_transfer_wire wire = {
                            1000000000, latencies[l],        700, 1, 0, 0,
                            0,          CRYSTAL_PROTO_SIMPLE};
                        /* whole chunks of 2 MiB or 512 KiB, in floats */
                        uint64_t chunk = f < 3 ? 1 << 19 : 1 << 17;
                        struct crystal_transfer_op op = {ring_funcs[f],
                                                         n,
                                                         (uint32_t)next_random(n),
                                                         chunk * (uint64_t)loops *
                                                             (f == 0 ? n : 1),
                                                         4,
                                                         0};

                        compare(&wire, &op, spreads[s], 0);
                    }
}

/* So are they with the other protocols, whose flags take room on the wire. What is
 * known of an operation comes before what the wire says of all. */
static void agrees_with_protocols(void)
{
    static const struct {
        enum crystal_proto proto;
        enum crystal_op_proto known;
    } protos[] = {{CRYSTAL_PROTO_LL, CRYSTAL_OP_PROTO_LL},
                  {CRYSTAL_PROTO_LL128, CRYSTAL_OP_PROTO_LL128}};
    uint64_t arrive[RANKS_MAX] = {0}, ends[2][RANKS_MAX], scratch[2 * RANKS_MAX];

    for (uint32_t n = 2; n <= RANKS_MAX; n++)
        for (size_t f = 0; f < 5; f++)
            for (int p = 0; p < 2; p++) {
                struct crystal_transfer_wire wire = {
                    1000000000, 5000,           0, 1, 0, CRYSTAL_TRANSFER_TREE,
                    0,          protos[p].proto};
                uint64_t chunk = crystal_form_step_bytes(wire.proto) / 4;
                struct crystal_transfer_op op = {
                    ring_funcs[f],
                    n,
                    0,
                    chunk * 3 * (f == 0 ? n : 1),
                    4,
                    CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_RING, CRYSTAL_OP_PROTO_UNKNOWN)};

                compare(&wire, &op, 300000, 0);
                crystal_transfer_coll(&wire, &op, arrive, ends[0], scratch);
                wire.proto = CRYSTAL_PROTO_SIMPLE;
                op.way = CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_RING, protos[p].known);
                crystal_transfer_coll(&wire, &op, arrive, ends[1], scratch);
                CHECK(memcmp(ends[0], ends[1], n * sizeof ends[0][0]) == 0);
            }
}

/* A tree alone takes as long as it does where all arrive at once. */
static void trees_alone(void)
{
    struct crystal_transfer_wire wire = {1000000000, 5000, 0, 1,
                                         0,          0,    0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {
        CRYSTAL_FUNC_ALLREDUCE,
        RANKS_MAX,
        0,
        100000,
        4,
        CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_TREE, CRYSTAL_OP_PROTO_SIMPLE)};
    uint64_t arrive[RANKS_MAX] = {0}, ends[RANKS_MAX], scratch[4 * RANKS_MAX];
    uint64_t ring_ns;

    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        CHECK_EQ(crystal_transfer_alone_ns(&wire, &op, r, scratch), ends[r]);
    op.way = 0;
    ring_ns = crystal_transfer_alone_ns(&wire, &op, 0, scratch);
    CHECK(ends[0] != ring_ns);
}

static void agrees_for_small_tensors(void)
{
    /* 64 KiB blocks: one loop, two equal slices of 32 KiB */
    for (uint32_t n = 2; n <= RANKS_MAX; n++)
        for (size_t f = 0; f < 3; f++)
            for (uint64_t spread = 0; spread < 100000000; spread = 10 * spread + 1000) {
                struct crystal_transfer_wire wire = {
                    125000000, 20000, 0, 1, 0, 0, 0, CRYSTAL_PROTO_SIMPLE};
                struct crystal_transfer_op op = {
                    ring_funcs[f], n, 0, 16384 * (f == 0 ? n : 1), 4, 0};

                compare(&wire, &op, spread, 0);
            }
}

/* Odd sizes leave a last chunk that is smaller: within one chunk of the truth. */
static void is_close_for_odd_sizes(void)
{
    for (int i = 0; i < 3000; i++) {
        uint32_t n = 2 + (uint32_t)next_random(RANKS_MAX - 1);
        struct crystal_transfer_wire wire = {
            1000000000, next_random(200000), 0, 1, 0, 0, 0, CRYSTAL_PROTO_SIMPLE};
        struct crystal_transfer_op op = {
            ring_funcs[next_random(5)], n, (uint32_t)next_random(n),
            1 + next_random(3000000),   4, 0};
        uint64_t chunk_ns = crystal_transfer_occupy_ns(&wire, 2 << 20);

        compare(&wire, &op, 1 + next_random(30000000),
                3 * chunk_ns + (uint64_t)n * wire.latency_ns);
    }
}

static void exact_forms(void)
{
    struct crystal_transfer_wire wire = {1000000000, 1000, 0, 1,
                                         0,          0,    0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {CRYSTAL_FUNC_ALLREDUCE, 2, 0, 32768, 4, 0};
    uint64_t arrive[4] = {0, 0, 0, 0}, ends[4], scratch[8];

    /* two blocks of 64 KiB, two slices each: 2 steps of 65536 ns on the NIC, then the
     * way; the NIC is the bottleneck */
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 2 * 65536 + 1000);
    CHECK_EQ(ends[1], 2 * 65536 + 1000);
    /* a latency that counts: 2 steps of slice + latency, then the last slice */
    wire.latency_ns = 100000;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 2 * (32768 + 100000) + 32768);
    /* without a cost an operation ends when the last one arrives */
    wire.bytes_per_s = 0;
    wire.latency_ns = 0;
    op.nranks = 4;
    arrive[2] = 777;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    for (int r = 0; r < 4; r++)
        CHECK_EQ(ends[r], 777);
    op.nranks = 1;
    arrive[0] = 5;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 5);
    CHECK_EQ(crystal_transfer_alone_ns(&wire, &op, 0, scratch), 0);
}

static void a_late_rank_delays_those_behind_it(void)
{
    struct crystal_transfer_wire wire = {0, 10, 0, 1, 0, 0, 0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {CRYSTAL_FUNC_BROADCAST, 4, 1, 100, 4, 0};
    uint64_t arrive[4] = {0, 0, 0, 500}, ends[4], scratch[8];

    /* order 1, 2, 3, 0 */
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[1], 0);
    CHECK_EQ(ends[2], 10);
    CHECK_EQ(ends[3], 510);
    CHECK_EQ(ends[0], 520);
    /* 9 chunks do not fit in staging memory: rank 2 gets rid of its first one when 3 is
     * there */
    op.count = 9 * 131072;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[2], 500);
}

static void point_to_point(void)
{
    struct crystal_transfer_wire wire = {1000000000, 5000, 300, 1,
                                         0,          0,    0,   CRYSTAL_PROTO_SIMPLE};

    CHECK_EQ(crystal_transfer_send_ns(&wire, 4000), 0);
    CHECK_EQ(crystal_transfer_recv_ns(&wire, 4000), 4000 + 5300);
    CHECK_EQ(crystal_transfer_send_ns(&wire, (4 << 20) + 777), 777);
    CHECK_EQ(crystal_transfer_recv_ns(&wire, 0), 5300);
    CHECK_EQ(crystal_transfer_occupy_ns(&wire, 1), 1);
    wire.bytes_per_s = 3;
    CHECK_EQ(crystal_transfer_occupy_ns(&wire, 1), 333333334);
    wire.bytes_per_s = 0;
    CHECK_EQ(crystal_transfer_occupy_ns(&wire, 1), 0);
}

static void stars(void)
{
    struct crystal_transfer_wire wire = {1000000000, 50, 0, 1,
                                         0,          0,  0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {CRYSTAL_FUNC_ALLTOALL, 3, 0, 250, 4, 0};
    uint64_t arrive[3] = {10, 20, 30}, ends[3], scratch[6];

    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    for (int r = 0; r < 3; r++)
        CHECK_EQ(ends[r], 30 + 2000 + 50);
    op.func = CRYSTAL_FUNC_GATHER;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 20 + 2000 + 50); /* its NIC takes in one after the other */
    CHECK_EQ(ends[1], 20 + 1000);
    arrive[1] = 30 + 1000;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 30 + 2000 + 50);
    arrive[1] += 5;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 30 + 2005 + 50);
    arrive[1] = 20;
    op.func = CRYSTAL_FUNC_SCATTER;
    op.root = 2;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[2], 30 + 2000);
    CHECK_EQ(ends[0], 30 + 2000 + 50);
}

/* --- tree and PAT: every chunk of every connection by itself --- */

#define MANY   48
#define CHUNKS 12

static uint64_t hop(const struct crystal_transfer_wire *wire, uint64_t bytes)
{
    return crystal_transfer_occupy_ns(wire, bytes) + wire->latency_ns +
           wire->overhead_ns;
}

struct tree_run {
    const struct crystal_transfer_wire *wire;
    struct crystal_tree_op tree;
    const uint64_t *arrive;
    uint64_t up[MANY], down[MANY]; /* begin of the chunk before, by child */
    uint64_t has[MANY];
    uint64_t period, hop;
    int is_first;
};

/* When rank has its subtree's chunk. */
static uint64_t climb(struct tree_run *t, uint32_t rank)
{
    struct crystal_tree_place place;
    uint64_t ready = t->arrive[rank];

    crystal_tree_place(&t->tree, rank, &place);
    for (int i = 0; i < CRYSTAL_TREE_ARITY && place.down[i] >= 0; i++) {
        uint32_t child = (uint32_t)place.down[i];
        uint64_t begin = later(climb(t, child), t->arrive[rank]);

        if (!t->is_first)
            begin = later(begin, t->up[child] + t->period);
        t->up[child] = begin;
        ready = later(ready, begin + t->hop);
    }
    return ready;
}

static void descend(struct tree_run *t, uint32_t rank, uint64_t has)
{
    struct crystal_tree_place place;

    t->has[rank] = has;
    crystal_tree_place(&t->tree, rank, &place);
    for (int i = 0; i < CRYSTAL_TREE_ARITY && place.down[i] >= 0; i++) {
        uint32_t child = (uint32_t)place.down[i];
        uint64_t begin = later(has, t->arrive[child]);

        if (!t->is_first)
            begin = later(begin, t->down[child] + t->period);
        t->down[child] = begin;
        descend(t, child, begin + t->hop);
    }
}

static uint32_t tree_sends(const struct crystal_tree_op *tree, uint32_t rank)
{
    struct crystal_tree_place place;
    uint32_t count;

    crystal_tree_place(tree, rank, &place);
    count = place.up >= 0;
    for (int i = 0; i < CRYSTAL_TREE_ARITY; i++)
        count += place.down[i] >= 0;
    return count;
}

static void tree_by_messages(const struct crystal_transfer_wire *wire,
                             const struct crystal_transfer_op *op,
                             const uint64_t *arrive, uint64_t *ends)
{
    uint32_t channels = wire->channel_count, busiest = 0;
    struct tree_run t = {.wire = wire, .arrive = arrive};
    struct crystal_tree_message m;

    t.tree = (struct crystal_tree_op){
        .nranks = op->nranks,
        .ranks_per_node = wire->node_ranks,
        .shape = wire->node_ranks > 1 ? CRYSTAL_TREE_BALANCED : CRYSTAL_TREE_SINGLE,
        .half = channels > 1 ? channels / 2 : 1,
        .count = op->count,
        .elt_bytes = op->elt_bytes,
        .channel_count = channels,
        .proto = CRYSTAL_PROTO_SIMPLE};
    crystal_tree_message(&t.tree, 0, &m);
    for (uint32_t r = 0; r < op->nranks; r++) {
        uint32_t sends = 0;

        for (t.tree.channel = 0; t.tree.channel < channels; t.tree.channel++)
            sends += tree_sends(&t.tree, r);
        busiest = sends > busiest ? sends : busiest;
        ends[r] = arrive[r];
    }
    t.period =
        crystal_transfer_occupy_ns(wire, (uint64_t)m.elts * op->elt_bytes * busiest);
    for (t.tree.channel = 0; t.tree.channel < channels; t.tree.channel++) {
        uint64_t count = crystal_tree_message_count(&t.tree);
        uint32_t root = 0;
        struct crystal_tree_place place;

        for (; crystal_tree_place(&t.tree, root, &place), place.up >= 0; root++)
            ;
        for (uint64_t i = 0; i < count; i++) {
            t.is_first = i == 0;
            crystal_tree_message(&t.tree, i, &m);
            t.hop = hop(wire, (uint64_t)m.elts * op->elt_bytes * channels);
            descend(&t, root, climb(&t, root));
        }
        for (uint32_t r = 0; r < op->nranks; r++)
            ends[r] = later(ends[r], t.has[r]);
    }
}

static void pat_by_messages(const struct crystal_transfer_wire *wire,
                            const struct crystal_transfer_op *op,
                            const uint64_t *arrive, uint64_t *ends)
{
    static uint64_t begun[8][MANY];
    struct crystal_pat_op pat = {.func = op->func,
                                 .nranks = op->nranks,
                                 .count = op->count,
                                 .elt_bytes = op->elt_bytes,
                                 .channel_count = wire->channel_count};
    uint32_t n = op->nranks, steps = 0;
    struct crystal_pat_cut cut;
    uint64_t period = 0, left;

    crystal_pat_cut(&pat, &cut);
    memcpy(ends, arrive, n * sizeof *ends);
    for (; 1U << steps < n; steps++) {
        uint64_t bytes = cut.bytes < cut.chunk_bytes ? cut.bytes : cut.chunk_bytes;
        uint32_t blocks =
            1U << steps < n - (1U << steps) ? 1U << steps : n - (1U << steps);

        period +=
            crystal_transfer_occupy_ns(wire, bytes * blocks * wire->channel_count);
    }
    left = cut.bytes;
    for (int first = 1; left; first = 0) {
        uint64_t bytes = left < cut.chunk_bytes ? left : cut.chunk_bytes;
        uint64_t has[MANY], got[MANY];

        memcpy(has, arrive, n * sizeof *has);
        for (uint32_t k = 0; k < steps; k++) {
            uint32_t s = op->func == CRYSTAL_FUNC_ALLGATHER ? k : steps - 1 - k;
            uint32_t blocks = 1U << s < n - (1U << s) ? 1U << s : n - (1U << s);

            for (uint32_t to = 0; to < n; to++) {
                uint32_t from = (to + (1U << s)) % n;
                uint64_t begin = later(has[from], arrive[to]);

                if (!first)
                    begin = later(begin, begun[s][to] + period);
                begun[s][to] = begin;
                got[to] = later(
                    has[to], begin + hop(wire, bytes * blocks * wire->channel_count));
            }
            memcpy(has, got, n * sizeof *has);
        }
        for (uint32_t r = 0; r < n; r++)
            ends[r] = later(ends[r], has[r]);
        left -= bytes;
    }
}

/* Any number of ranks, nodes, channels and chunks, the last one short. */
static void repeated_patterns_agree(void)
{
    static const enum crystal_func funcs[] = {
        CRYSTAL_FUNC_ALLREDUCE, CRYSTAL_FUNC_ALLGATHER, CRYSTAL_FUNC_REDUCESCATTER};
    uint64_t arrive[MANY], want[MANY], got[MANY], scratch[2 * MANY];

    for (int i = 0; i < 6000; i++) {
        struct crystal_transfer_wire wire = {1000000000,
                                             next_random(3) ? next_random(3000000) : 0,
                                             next_random(1000),
                                             1,
                                             0,
                                             CRYSTAL_TRANSFER_TREE |
                                                 CRYSTAL_TRANSFER_PAT,
                                             1,
                                             CRYSTAL_PROTO_SIMPLE};
        struct crystal_transfer_op op = {.func = funcs[i % 3],
                                         .nranks = 2 + (uint32_t)next_random(MANY - 1),
                                         .elt_bytes = 4};
        uint64_t spread = next_random(2) ? 1 + next_random(40000000) : 1;

        wire.channel_count = 1U << next_random(3);
        for (uint32_t k = 1 + (uint32_t)next_random(8); k > 1; k--)
            if (op.nranks % k == 0)
                wire.node_ranks = wire.node_ranks == 1 ? k : wire.node_ranks;
        /* the same part for each channel, of so many chunks */
        op.count = (next_random(CHUNKS) * 131072 + 4096 * (1 + next_random(32))) *
                   wire.channel_count;
        if (op.func != CRYSTAL_FUNC_ALLREDUCE)
            wire.channel_count = 1;
        for (uint32_t r = 0; r < op.nranks; r++)
            arrive[r] = 1000000 + next_random(spread);
        if (op.func == CRYSTAL_FUNC_ALLREDUCE)
            tree_by_messages(&wire, &op, arrive, want);
        else
            pat_by_messages(&wire, &op, arrive, want);
        crystal_transfer_coll(&wire, &op, arrive, got, scratch);
        for (uint32_t r = 0; r < op.nranks; r++)
            CHECK_EQ(got[r], want[r]);
        if (!check_ok) {
            printf("# job %d: func %d, %u ranks, %u a node, %u channels, %llu\n", i,
                   (int)op.func, op.nranks, wire.node_ranks, wire.channel_count,
                   (unsigned long long)op.count);
            return;
        }
    }
}

/* Four ranks that arrive together: two levels up and two down, three sends of the
 * busiest rank for a chunk; two steps with one and two blocks. */
static void patterns_in_closed_form(void)
{
    struct crystal_transfer_wire wire = {
        1000000000, 5000,
        0,          1,
        0,          CRYSTAL_TRANSFER_TREE | CRYSTAL_TRANSFER_PAT,
        1,          CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {
        .func = CRYSTAL_FUNC_ALLREDUCE, .nranks = 4, .count = 1024, .elt_bytes = 1};
    uint64_t arrive[4] = {0}, ends[4], scratch[8];

    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 2 * (1024 + 5000)); /* the root: 0 - 2 - {1, 3} */
    CHECK_EQ(ends[2], 3 * (1024 + 5000));
    CHECK_EQ(ends[1], 4 * (1024 + 5000));
    CHECK_EQ(ends[3], 4 * (1024 + 5000));
    op.func = CRYSTAL_FUNC_ALLGATHER;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    for (uint32_t r = 0; r < 4; r++)
        CHECK_EQ(ends[r], 3 * 1024 + 2 * 5000);
    wire.algos = 0;
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    CHECK_EQ(ends[0], 3 * 1024 + 3 * 5000); /* a ring has three steps */
}

int main(void)
{
    check_begin();
    CHECK_RUN(exact_forms);
    CHECK_RUN(a_late_rank_delays_those_behind_it);
    CHECK_RUN(agrees_with_messages);
    CHECK_RUN(agrees_with_protocols);
    CHECK_RUN(trees_alone);
    CHECK_RUN(agrees_for_small_tensors);
    CHECK_RUN(is_close_for_odd_sizes);
    CHECK_RUN(point_to_point);
    CHECK_RUN(stars);
    CHECK_RUN(patterns_in_closed_form);
    CHECK_RUN(repeated_patterns_agree);
    return check_end();
}
