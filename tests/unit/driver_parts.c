/* The driver and collectives that the library makes of messages: this program plays the
 * plugin of rank 0 of 4, whose parts in an all-to-all, gathers and scatters are
 * messages of pairs, between collectives of other kinds and messages
 * that are calls of their own. Each has the virtual ranks' time that the closed form
 * says, and so has what comes behind it.
 */
#include "config.h"

#include "tests/unit/driver_stage.h"

#define N          4
#define COUNT      100 /* floats of each message, 400 ns at 1 GB/s */
#define OTHERS_NS  800 /* what a root scatters to two others before */
#define BETWEEN_NS 500000
#define ITERATIONS 70 /* more than was recorded, more than slots */

/* The all-gathers are of no elements: the library leaves them out, and nobody waits. */
static const struct {
    enum crystal_func func;
    uint32_t root;
} steps[] = {{CRYSTAL_FUNC_ALLTOALL, 0},  {CRYSTAL_FUNC_ALLGATHER, 0},
             {CRYSTAL_FUNC_ALLREDUCE, 0}, {CRYSTAL_FUNC_ALLTOALL, 0},
             {CRYSTAL_FUNC_ALLTOALL, 0},  {CRYSTAL_FUNC_GATHER, 0},
             {CRYSTAL_FUNC_SCATTER, 1},   {CRYSTAL_FUNC_SEND, 0},
             {CRYSTAL_FUNC_GATHER, 2},    {CRYSTAL_FUNC_SCATTER, 0},
             {CRYSTAL_FUNC_ALLGATHER, 0}};
#define STEPS (sizeof steps / sizeof *steps)

static void call(struct job *j, enum crystal_func func, uint32_t root, uint64_t count)
{
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                  .func = (uint8_t)func,
                                  .dtype = ncclFloat32,
                                  .value = count,
                                  .peer = root,
                                  .stream = 1});
}

/* Rank r computes (r + 1) ms before the first step, and as long as all before others.
 */
static void parts_rank(struct job *j, const char *folder, uint32_t lrank)
{
    job_rank(j, folder, lrank);
    job_comm(j, "w", lrank, N);
    call(j, CRYSTAL_FUNC_ALLTOALL, 0, COUNT);
    call(j, CRYSTAL_FUNC_ALLGATHER, 0, 0);
    call(j, CRYSTAL_FUNC_BROADCAST, 0, 1);
    job_sync(j, 0, 10);
    for (uint64_t i = 0; i < 4; i++) {
        j->now_ns += 1000000 * lrank + 1000000 - BETWEEN_NS;
        for (size_t k = 0; k < STEPS; k++) {
            j->now_ns += BETWEEN_NS;
            if (steps[k].func == CRYSTAL_FUNC_SEND) {
                job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = 1});
                job_p2p(j, 1, 0, (lrank + 1) % N, COUNT);
                job_p2p(j, 0, 0, (lrank + N - 1) % N, COUNT);
                job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP});
            } else {
                call(j, steps[k].func, steps[k].root,
                     steps[k].func == CRYSTAL_FUNC_ALLGATHER ? 0 : COUNT);
            }
            job_sync(j, 0, 10);
        }
        job_hint(j, i + 1);
    }
    job_rank_end(j);
}

static struct stage stage;
static uint64_t pair_seq[2 * N]; /* sends to, then receives from each rank */
static uint64_t slot_seq;

static void open_stage(void)
{
    static const uint8_t is_real[] = {1, 0, 0, 0};
    struct job *j = &stage.job;

    memset(&stage, 0, sizeof stage);
    memset(pair_seq, 0, sizeof pair_seq);
    slot_seq = 0;
    job_begin(j, N, NULL, "0-3", "0-3");
    job_planned(j, "w\t4\t0-3\n", parts_rank);
    j->layout.sandbox_count = 1;
    stage_board(&stage, j->dir, is_real, 1);
}

static void close_stage(void)
{
    crystal_driver_destroy(stage.driver);
    crystal_board_destroy(stage.board);
    job_end(&stage.job);
}

/* Rank 0's messages of one call: cells by what pair_seq counts, NULL where it has none.
 */
struct messages {
    struct crystal_board_pair_cell *cells[2 * N];
};

static bool takes_part(enum crystal_func func, uint32_t root, uint32_t peer, bool sends)
{
    switch (func) {
    case CRYSTAL_FUNC_ALLTOALL:
        return true;
    case CRYSTAL_FUNC_GATHER:
        return root == 0 ? !sends : sends && peer == root;
    case CRYSTAL_FUNC_SCATTER:
        return root == 0 ? sends : !sends && peer == root;
    default:
        return sends ? peer == 1 : peer == N - 1;
    }
}

static void begin(struct messages *m, enum crystal_func func, uint32_t root)
{
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < 2 * N; i++) {
        uint32_t peer = i % N;

        if (!peer || !takes_part(func, root, peer, i < N))
            continue;
        m->cells[i] =
            message(&stage, i < N ? peer - 1 : peer + 2, peer, i < N, pair_seq[i]++);
    }
}

/* The rank has come; of what it sends the message to rank 2 leaves first. */
static void arrive(const struct messages *m, uint64_t arrive_ns)
{
    static const uint32_t order[] = {2, 1, 3, N + 2, N + 1, N + 3};

    for (uint32_t i = 0; i < sizeof order / sizeof *order; i++)
        if (m->cells[order[i]]) {
            atomic_store(&m->cells[order[i]]->real_arrive_ns, arrive_ns);
            crystal_board_ring(stage.board);
            arrive_ns += 400;
        }
}

static void end(const struct messages *m, uint64_t end_ns)
{
    for (uint32_t i = 0; i < 2 * N; i++)
        if (m->cells[i])
            atomic_store(&m->cells[i]->end_ns, end_ns);
    crystal_board_ring(stage.board);
}

/* What all messages of the call are told, from when virtual ranks come to it. */
static void check_told(const struct messages *m, enum crystal_func func, uint32_t root,
                       const uint64_t *come)
{
    uint64_t latest = 0;

    for (uint32_t k = 1; k < N; k++)
        latest = come[k] > latest ? come[k] : latest;
    for (uint32_t i = 0; i < 2 * N; i++) {
        uint64_t want = come[i % N];

        if (!m->cells[i])
            continue;
        if (func == CRYSTAL_FUNC_ALLTOALL)
            want = latest;
        if (func == CRYSTAL_FUNC_SCATTER)
            want = (root ? come[root] : latest) + OTHERS_NS;
        CHECK_EQ(await64(&m->cells[i]->virtual_arrive_ns), want);
    }
}

/* The time that ranks spend in one step, whose arrivals come holds; rank 0 has its
 * choice. Afterwards come holds the ends. */
static void step(enum crystal_func func, uint32_t root, uint64_t *come,
                 uint64_t late_ns)
{
    const struct crystal_transfer_wire wire = {1000000000,          1000, 0, 1, 0, 0, 0,
                                               CRYSTAL_PROTO_SIMPLE};
    const struct crystal_transfer_op op = {func, N, root, COUNT, 4, 0};
    uint64_t ends[N], scratch[2 * N];
    struct messages m;

    if (func == CRYSTAL_FUNC_ALLGATHER)
        return;
    if (func == CRYSTAL_FUNC_ALLREDUCE) {
        struct crystal_board_slot *slot = claim(&stage, slot_seq++, func);
        struct crystal_board_cell *cells =
            crystal_board_cells(stage.board, stage.comm, slot);

        CHECK_EQ(await32(&slot->published), 1);
        for (uint32_t k = 1; k < N; k++)
            CHECK_EQ(atomic_load(&cells[k].arrive_ns), come[k]);
        come[0] = come[2] + late_ns;
        crystal_transfer_coll(&wire, &op, come, ends, scratch);
        finish(&stage, slot, come[0], ends[0]);
        memcpy(come, ends, sizeof ends);
        return;
    }
    begin(&m, func, root);
    check_told(&m, func, root, come);
    come[0] = come[2] + late_ns;
    arrive(&m, come[0]);
    if (func == CRYSTAL_FUNC_SEND)
        for (uint32_t k = 0; k < N; k++) {
            uint64_t from = come[(k + N - 1) % N];

            ends[k] = (from > come[k] ? from : come[k]) + 400 + 1000;
        }
    else
        crystal_transfer_coll(&wire, &op, come, ends, scratch);
    end(&m, ends[0]);
    memcpy(come, ends, sizeof ends);
}

/* What comes before the iterations meets everybody. */
static uint64_t set_up(void)
{
    struct crystal_board_slot *slot;
    struct messages m;
    uint64_t end_ns;

    begin(&m, CRYSTAL_FUNC_ALLTOALL, 0);
    for (uint32_t i = 0; i < 2 * N; i++)
        if (m.cells[i])
            CHECK_EQ(await64(&m.cells[i]->virtual_arrive_ns), 1);
    arrive(&m, now() - 20000);
    end(&m, now() - 10000);
    slot = claim(&stage, slot_seq++, CRYSTAL_FUNC_BROADCAST);
    CHECK_EQ(await32(&slot->published), 1);
    end_ns = now();
    finish(&stage, slot, end_ns - 5000, end_ns);
    return end_ns;
}

static void all_have_the_closed_forms_times(void)
{
    uint64_t come[N], begin_ns;

    open_stage();
    begin_ns = set_up();
    for (uint32_t k = 0; k < N; k++)
        come[k] = begin_ns;
    for (uint64_t i = 0; i < ITERATIONS && check_ok; i++) {
        for (uint32_t k = 0; k < N; k++)
            come[k] += 1000000 * k + 1000000 - BETWEEN_NS;
        for (size_t s = 0; s < STEPS; s++) {
            for (uint32_t k = 0; k < N; k++)
                come[k] += BETWEEN_NS;
            step(steps[s].func, steps[s].root, come, 1234567 * ((i + s) % 3));
        }
    }
    CHECK_EQ(atomic_load(&crystal_board_header(stage.board)->timeline),
             CRYSTAL_BOARD_FOLLOWS);
    CHECK_EQ(atomic_load(&crystal_board_header(stage.board)->abort_flag), 0);
    close_stage();
}

/* Ranks 0 and 1 are real, and rank 0 gathers: the part of rank 1 is no message with a
 * virtual rank, and is noted. */
static void gathers_rank(struct job *j, const char *folder, uint32_t lrank)
{
    job_rank(j, folder, lrank);
    job_comm(j, "w", lrank, N);
    call(j, CRYSTAL_FUNC_GATHER, 0, COUNT);
    job_sync(j, 0, 10);
    for (uint64_t i = 0; i < 4; i++) {
        j->now_ns += 1000000 * (lrank + 1);
        call(j, CRYSTAL_FUNC_GATHER, 0, COUNT);
        job_sync(j, 0, 10);
        job_hint(j, i + 1);
    }
    job_rank_end(j);
}

static void open_gathers(void)
{
    static const uint8_t is_real[] = {1, 1, 0, 0};
    static const uint32_t sandbox[] = {0, 1};
    struct job *j = &stage.job;

    memset(&stage, 0, sizeof stage);
    job_begin(j, N, NULL, "0-3", "0-3");
    job_planned(j, "w\t4\t0-3\n", gathers_rank);
    memcpy(j->layout.sandbox, sandbox, sizeof sandbox);
    j->layout.sandbox_count = 2;
    stage_board(&stage, j->dir, is_real, 1);
}

/* Receives from ranks 2 and 3, and the note of rank 1. */
static void gather_begin(struct messages *m, uint64_t seq)
{
    memset(m, 0, sizeof *m);
    stage.crank = 0;
    m->cells[N + 2] = message(&stage, 0, 2, 0, seq);
    m->cells[N + 3] = message(&stage, 1, 3, 0, seq);
    stage.crank = 1;
    m->cells[0] = message(&stage, 2, 0, 1, seq);
}

static void gather_end(struct messages *m, uint64_t root_ns, uint64_t end_ns,
                       uint64_t noted_ns)
{
    for (uint32_t i = N + 2; i <= N + 3; i++)
        atomic_store(&m->cells[i]->real_arrive_ns, root_ns);
    atomic_store(&m->cells[0]->real_arrive_ns, noted_ns);
    atomic_store(&m->cells[0]->end_ns, noted_ns); /* the driver's from here on */
    m->cells[0] = NULL;
    crystal_board_ring(stage.board);
    end(m, end_ns);
}

static void a_rank_with_a_real_root_is_noted(void)
{
    const struct crystal_transfer_wire wire = {1000000000,          1000, 0, 1, 0, 0, 0,
                                               CRYSTAL_PROTO_SIMPLE};
    const struct crystal_transfer_op op = {CRYSTAL_FUNC_GATHER, N, 0, COUNT, 4, 0};
    uint64_t come[N], ends[N], scratch[2 * N], set_up_ns;
    struct messages m;

    open_gathers();
    gather_begin(&m, 0);
    for (uint32_t k = 2; k < N; k++)
        CHECK_EQ(await64(&m.cells[N + k]->virtual_arrive_ns), 1);
    set_up_ns = now();
    gather_end(&m, set_up_ns, set_up_ns, set_up_ns);
    for (uint32_t k = 0; k < N; k++)
        ends[k] = set_up_ns;
    for (uint64_t i = 1; i <= ITERATIONS && check_ok; i++) {
        gather_begin(&m, i);
        for (uint32_t k = 0; k < N; k++)
            come[k] = ends[k] + 1000000 * (k + 1);
        for (uint32_t k = 2; k < N; k++)
            CHECK_EQ(await64(&m.cells[N + k]->virtual_arrive_ns), come[k]);
        come[0] = come[2] + 1234567 * (i % 3);
        come[1] = come[3] + 777777 * (i % 2); /* sometimes the latest */
        crystal_transfer_coll(&wire, &op, come, ends, scratch);
        gather_end(&m, come[0], ends[0], come[1]);
    }
    CHECK_EQ(atomic_load(&crystal_board_header(stage.board)->timeline),
             CRYSTAL_BOARD_FOLLOWS);
    close_stage();
}

int main(void)
{
    check_begin();
    CHECK_RUN(all_have_the_closed_forms_times);
    CHECK_RUN(a_rank_with_a_real_root_is_noted);
    return check_end();
}
