/* The closed form against a simulation of the whole ring, rank by rank and message by
 * message in program order. */
#include "config.h"

#include "replay/virtual_time.h"

#include "tests/check.h"

static uint64_t seed = 1;

static uint64_t random_below(uint64_t limit)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407U;
    return (seed >> 33) % limit;
}

#define RANKS_MAX    17
#define MESSAGES_MAX 4096

/* What the simulation finds out: sent[r][g] when message g of rank r began to leave,
 * got[r][g] when message g reached rank r. */
static uint64_t arrive[RANKS_MAX];
static uint64_t sent[RANKS_MAX][MESSAGES_MAX], got[RANKS_MAX][MESSAGES_MAX];
static uint64_t sent_bytes[RANKS_MAX][MESSAGES_MAX];
static uint64_t now[RANKS_MAX], nic_free[RANKS_MAX];

static void send_one(const struct crystal_ring_op *op, const struct crystal_wire *wire,
                     uint32_t r, uint64_t g)
{
    struct crystal_ring_message m;
    uint64_t occupy, start = now[r] > nic_free[r] ? now[r] : nic_free[r];

    crystal_ring_message(op, r, 1, g, &m);
    sent_bytes[r][g] = (uint64_t)m.elts * op->elt_bytes;
    occupy = crystal_wire_occupy_ns(wire, sent_bytes[r][g]);
    sent[r][g] = start;
    nic_free[r] = start + occupy;
    got[(r + 1) % op->nranks][g] =
        start + occupy + wire->latency_ns + wire->overhead_ns;
}

static void receive_one(uint32_t r, uint64_t g)
{
    if (got[r][g] > now[r])
        now[r] = got[r][g];
}

/* A rank's program, one primitive after the other: first step sends, the middle ones
 * receive and send slice by slice, the last one receives. */
static void simulate_ring(const struct crystal_ring_op *op,
                          const struct crystal_wire *wire, uint64_t count)
{
    uint64_t steps = op->nranks - 1;

    if (op->func == CRYSTAL_FUNC_ALLREDUCE)
        steps *= 2;
    for (uint64_t loop = 0; loop * steps * 2 < count; loop++)
        for (uint64_t step = 0; step <= steps; step++)
            for (uint32_t r = 0; r < op->nranks; r++)
                for (uint64_t slice = 0; slice < 2; slice++) {
                    uint64_t g = (loop * steps + step) * 2 + slice;

                    if (step > 0)
                        receive_one(r, g - 2);
                    if (step < steps)
                        send_one(op, wire, r, g);
                }
}

/* From the first rank of the chain to the last. */
static void simulate_chain(const struct crystal_ring_op *op,
                           const struct crystal_wire *wire)
{
    uint32_t first =
        op->func == CRYSTAL_FUNC_BROADCAST ? op->root : (op->root + 1) % op->nranks;

    for (uint32_t i = 0; i < op->nranks; i++) {
        uint32_t r = (first + i) % op->nranks;
        uint64_t sends = crystal_ring_message_count(op, r, 1);
        uint64_t receives = crystal_ring_message_count(op, r, 0);

        for (uint64_t g = 0; g < sends || g < receives; g++) {
            if (g < receives)
                receive_one(r, g);
            if (g < sends)
                send_one(op, wire, r, g);
        }
    }
}

static uint64_t simulate(const struct crystal_ring_op *op,
                         const struct crystal_wire *wire)
{
    uint64_t count = crystal_ring_message_count(op, 0, 1);

    memset(nic_free, 0, sizeof nic_free);
    memcpy(now, arrive, sizeof now);
    if (op->func == CRYSTAL_FUNC_BROADCAST || op->func == CRYSTAL_FUNC_REDUCE)
        simulate_chain(op, wire);
    else
        simulate_ring(op, wire, count);
    return count;
}

struct place {
    uint32_t nranks, crank;
};

static uint64_t arrive_at(const void *user, uint32_t distance)
{
    const struct place *p = user;

    return arrive[(p->crank + 2 * p->nranks - 1 - distance) % p->nranks];
}

/* The largest difference at crank behind a run, and how often there is one. */
static uint64_t compare(const struct crystal_ring_op *op,
                        const struct crystal_wire *wire, uint32_t crank, uint32_t run,
                        uint64_t *ret_differences)
{
    struct place place = {op->nranks, crank};
    uint32_t a = (crank + 2 * op->nranks - run - 1) % op->nranks;
    uint64_t count = crystal_ring_message_count(op, crank, 0), worst = 0, link_free = 0;
    struct crystal_vt_rank ranks[RANKS_MAX];
    struct crystal_vt_path path;
    struct crystal_vt vt;

    *ret_differences = 0;
    crystal_vt_path(op, crank, run, &path);
    crystal_vt_init(&vt, &path, wire, ranks);
    for (uint64_t g = 0; g < count; g++) {
        uint64_t need, edge, free_ns, at, difference;
        struct crystal_vt_sent s, e;
        struct crystal_ring_message m;

        crystal_ring_message(op, crank, 0, g, &m);
        crystal_vt_needs(&path, g, &need, &edge);
        if ((need != CRYSTAL_VT_NONE && need >= crystal_vt_sent_count(&path, count)) ||
            (edge != CRYSTAL_VT_NONE && edge >= crystal_vt_sent_count(&path, count)))
            worst = UINT64_MAX;
        if (need != CRYSTAL_VT_NONE)
            s = (struct crystal_vt_sent){sent[a][need], sent_bytes[a][need]};
        if (edge != CRYSTAL_VT_NONE)
            e = (struct crystal_vt_sent){sent[a][edge], sent_bytes[a][edge]};
        at = crystal_vt_next(&vt, (uint64_t)m.elts * op->elt_bytes, arrive_at, &place,
                             need == CRYSTAL_VT_NONE ? NULL : &s,
                             edge == CRYSTAL_VT_NONE ? NULL : &e, &free_ns);
        /* with a buffer there in time the last hop changes nothing */
        if (crystal_vt_deliver(wire, at, 0, (uint64_t)m.elts * op->elt_bytes,
                               &link_free) != at)
            worst = UINT64_MAX;
        difference = at > got[crank][g] ? at - got[crank][g] : got[crank][g] - at;
        if (difference)
            ++*ret_differences;
        if (difference > worst)
            worst = difference;
    }
    return worst;
}

static const enum crystal_func funcs[] = {
    CRYSTAL_FUNC_ALLREDUCE, CRYSTAL_FUNC_ALLGATHER, CRYSTAL_FUNC_REDUCESCATTER,
    CRYSTAL_FUNC_BROADCAST, CRYSTAL_FUNC_REDUCE};

/* Every n, function and run; random arrivals, wires and roots; counts that make all
 * messages of a slice equal: exact to the nanosecond. */
static void equals_the_simulation(void)
{
    uint64_t compared = 0, wrong = 0;

    for (uint32_t n = 2; n <= RANKS_MAX; n++)
        for (int round = 0; round < 40; round++)
            for (int f = 0; f < 5; f++) {
                struct crystal_wire wire = {.bytes_per_s = 1000000000,
                                            .latency_ns = random_below(300000),
                                            .overhead_ns = random_below(5000)};
                struct crystal_ring_op op = {.func = funcs[f],
                                             .nranks = n,
                                             .root = (uint32_t)random_below(n),
                                             .elt_bytes = 4,
                                             .channel_count = 1};
                uint64_t differences, loops = 1 + random_below(3);

                /* whole loops of full chunks, or one loop of equal blocks whose
                 * slices are equal, unequal, or one of them empty */
                op.count = loops * (2 << 20) / 4;
                if (op.func == CRYSTAL_FUNC_ALLREDUCE)
                    op.count = random_below(2) ? loops * n * (2 << 20) / 4
                                               : n * (4 + 4 * random_below(100000));
                else if (random_below(2))
                    op.count = 4 * (1 + random_below(400000));
                if (crystal_ring_message_count(&op, 0, 1) > MESSAGES_MAX)
                    continue;
                for (uint32_t r = 0; r < n; r++)
                    arrive[r] =
                        1000000000 + random_below(random_below(2) ? 20000000 : 200000);
                (void)simulate(&op, &wire);
                for (uint32_t run = 1; run < n; run++) {
                    uint32_t crank = (uint32_t)random_below(n);
                    uint64_t worst = compare(&op, &wire, crank, run, &differences);

                    compared++;
                    if (worst && wrong++ < 10)
                        printf("# n %u func %d root %u count %" PRIu64
                               " crank %u run %u: %" PRIu64 " ns off, %" PRIu64
                               " times\n",
                               n, op.func, op.root, op.count, crank, run, worst,
                               differences);
                }
            }
    printf("# %" PRIu64 " cases compared\n", compared);
    CHECK(compared > 20000);
    CHECK_EQ(wrong, 0);
}

/* Any count: short by no more than what the last chunks differ from the others. */
static void stays_close_for_any_count(void)
{
    uint64_t worst_ppm = 0;

    for (uint32_t n = 2; n <= RANKS_MAX; n++)
        for (int round = 0; round < 40; round++)
            for (int f = 0; f < 5; f++) {
                struct crystal_wire wire = {1000000000, random_below(100000), 0};
                struct crystal_ring_op op = {.func = funcs[f],
                                             .nranks = n,
                                             .root = (uint32_t)random_below(n),
                                             .elt_bytes = 4,
                                             .count = 1 + random_below(3000000),
                                             .channel_count = 1};
                uint64_t count, differences;

                if (crystal_ring_message_count(&op, 0, 1) > MESSAGES_MAX)
                    continue;
                for (uint32_t r = 0; r < n; r++)
                    arrive[r] = 1000000000 + random_below(1000000);
                (void)simulate(&op, &wire);
                for (uint32_t run = 1; run < n; run++) {
                    uint32_t crank = (uint32_t)random_below(n);
                    uint64_t worst = compare(&op, &wire, crank, run, &differences);
                    uint64_t whole, ppm;

                    count = crystal_ring_message_count(&op, crank, 0);
                    if (!count)
                        continue;
                    whole = got[crank][count - 1] - 1000000000;
                    ppm = worst * 1000000 / whole;
                    if (ppm > worst_ppm)
                        worst_ppm = ppm;
                }
            }
    printf("# at most %" PRIu64 " ppm of the operation off\n", worst_ppm);
    CHECK(worst_ppm < 20000);
}

static void late_buffers(void)
{
    struct crystal_wire wire = {1000000000, 5000, 1000};
    uint64_t link_free = 0;

    /* hop of 1000 bytes: 1000 + 5000 + 1000 */
    CHECK_EQ(crystal_vt_hop_ns(&wire, 1000), 7000);
    CHECK_EQ(crystal_vt_deliver(&wire, 100000, 50000, 1000, &link_free), 100000);
    CHECK_EQ(link_free, 94000);
    /* there long before, but nobody had posted */
    CHECK_EQ(crystal_vt_deliver(&wire, 100000, 200000, 1000, &link_free), 207000);
    /* the next one follows on the link */
    CHECK_EQ(crystal_vt_deliver(&wire, 100000, 200000, 1000, &link_free), 208000);
}

static void by_hand(void)
{
    /* n = 4, rank 0 real: v[0] = 3, v[1] = 2, v[2] = 1; one slice has bytes, the other
     * none. Arrivals 10, 20 and 30 us; s = 1 us, h = 6 us. */
    struct crystal_wire wire = {1000000000, 5000, 0};
    struct crystal_ring_op op = {CRYSTAL_FUNC_ALLREDUCE, 4,   0, 1000, 4, 1, 0,
                                 CRYSTAL_PROTO_SIMPLE,   NULL};
    static const uint64_t at[4] = {1, 30000, 20000, 10000};
    struct place place = {4, 0};
    struct crystal_vt_rank ranks[3];
    struct crystal_vt_path path;
    struct crystal_vt vt;
    struct crystal_vt_sent first = {40000, 1000};
    uint64_t free_ns, need, edge;

    memcpy(arrive, at, sizeof at);
    crystal_vt_path(&op, 0, 3, &path);
    CHECK_EQ(path.steps, 6);
    crystal_vt_init(&vt, &path, &wire, ranks);
    CHECK_EQ(crystal_vt_next(&vt, 1000, arrive_at, &place, NULL, NULL, &free_ns),
             10000 + 6000);
    CHECK_EQ(free_ns, 0);
    CHECK_EQ(crystal_vt_next(&vt, 0, arrive_at, &place, NULL, NULL, &free_ns), 16000);
    CHECK_EQ(crystal_vt_next(&vt, 1000, arrive_at, &place, NULL, NULL, &free_ns),
             20000 + 12000);
    CHECK_EQ(free_ns, 17000);
    CHECK_EQ(crystal_vt_next(&vt, 0, arrive_at, &place, NULL, NULL, &free_ns), 32000);
    CHECK_EQ(crystal_vt_next(&vt, 1000, arrive_at, &place, NULL, NULL, &free_ns),
             30000 + 18000);
    CHECK_EQ(crystal_vt_next(&vt, 0, arrive_at, &place, NULL, NULL, &free_ns), 48000);
    crystal_vt_needs(&path, 6, &need, &edge);
    CHECK_EQ(need, 0);
    CHECK(edge == CRYSTAL_VT_NONE);
    CHECK_EQ(crystal_vt_next(&vt, 1000, arrive_at, &place, &first, NULL, &free_ns),
             40000 + 24000);
    crystal_vt_needs(&path, 12, &need, &edge); /* the first of the second loop */
    CHECK_EQ(need, 6);
    CHECK_EQ(edge, 7);
}

int main(void)
{
    check_begin();
    CHECK_RUN(by_hand);
    CHECK_RUN(late_buffers);
    CHECK_RUN(equals_the_simulation);
    CHECK_RUN(stays_close_for_any_count);
    return check_end();
}
