/* The driver on a real board: this program plays the plugin of one sandbox rank and
 * reads when virtual ranks arrive, which has to be exactly what graph, profile and its
 * own arrivals say.
 */
#include "config.h"

#include "tests/unit/driver_stage.h"

#include <errno.h>

static void stage_open(struct stage *s, int with_profile)
{
    static const uint8_t is_real[] = {1, 0, 0, 0};

    memset(s, 0, sizeof *s);
    make_job(&s->job);
    stage_board(s, s->job.dir, is_real, with_profile);
}

static void stage_close(struct stage *s)
{
    crystal_driver_destroy(s->driver);
    crystal_board_destroy(s->board);
    job_end(&s->job);
}

/* The set-up operation; returns its end. */
static uint64_t set_up(struct stage *s)
{
    struct crystal_board_slot *slot = claim(s, 0, CRYSTAL_FUNC_BROADCAST);
    struct crystal_board_cell *cells = crystal_board_cells(s->board, s->comm, slot);
    uint64_t end_ns = now();

    CHECK_EQ(await32(&slot->published), 1);
    for (int k = 1; k < 4; k++)
        CHECK_EQ(atomic_load(&cells[k].arrive_ns), 1);
    CHECK_EQ(atomic_load(&cells[0].arrive_ns), 0);
    finish(s, slot, end_ns - 5000, end_ns);
    return end_ns;
}

static void virtual_ranks_keep_time(void)
{
    struct crystal_transfer_wire wire = {1000000000, 1000, 0, 1,
                                         0,          0,    0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {CRYSTAL_FUNC_ALLREDUCE, 4, 0, 32768, 4, 0};
    uint64_t host[4], arrive[4], ends[4], scratch[8];
    struct stage s;

    stage_open(&s, 1);
    for (int k = 0; k < 4; k++)
        host[k] = 0;
    host[1] = host[2] = host[3] = set_up(&s);
    CHECK_EQ(atomic_load(&crystal_board_header(s.board)->timeline),
             CRYSTAL_BOARD_SETUP);
    for (uint64_t i = 0; i < 70; i++) { /* more than was recorded, more than slots */
        struct crystal_board_slot *slot = claim(&s, 1 + i, CRYSTAL_FUNC_ALLREDUCE);
        struct crystal_board_cell *cells = crystal_board_cells(s.board, s.comm, slot);
        struct crystal_board_pair_cell *out, *in;

        CHECK_EQ(await32(&slot->published), 1);
        for (uint32_t k = 1; k < 4; k++) {
            arrive[k] = host[k] + 1000000 * (k + 1);
            CHECK_EQ(atomic_load(&cells[k].arrive_ns), arrive[k]);
        }
        arrive[0] = arrive[2] + 1234567 * (i % 3); /* sometimes the latest */
        crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
        finish(&s, slot, arrive[0], ends[0]);
        out = message(&s, 0, 1, 1, i);
        in = message(&s, 1, 3, 0, i);
        for (uint32_t k = 0; k < 4; k++)
            arrive[k] = ends[k] + 500000;
        CHECK_EQ(await64(&out->virtual_arrive_ns), arrive[1]);
        CHECK_EQ(await64(&in->virtual_arrive_ns), arrive[3]);
        atomic_store(&out->real_arrive_ns, arrive[0]);
        atomic_store(&in->real_arrive_ns, arrive[0]);
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t from = (k + 3) % 4;

            host[k] =
                (arrive[from] > arrive[k] ? arrive[from] : arrive[k]) + 400 + 1000;
        }
        atomic_store(&in->end_ns, host[0]);
        atomic_store(&out->end_ns, host[0]);
        crystal_board_ring(s.board);
        if (!check_ok)
            break;
    }
    CHECK_EQ(atomic_load(&crystal_board_header(s.board)->timeline),
             CRYSTAL_BOARD_FOLLOWS);
    CHECK_EQ(atomic_load(&crystal_board_header(s.board)->abort_flag), 0);
    stage_close(&s);
}

/* An operation that is none of the iteration's: the program goes to its end. */
static void the_end_meets_everybody(void)
{
    struct crystal_board_slot *slot;
    struct crystal_board_cell *cells;
    struct stage s;

    stage_open(&s, 1);
    (void)set_up(&s);
    slot = claim(&s, 1, CRYSTAL_FUNC_BROADCAST);
    cells = crystal_board_cells(s.board, s.comm, slot);
    CHECK_EQ(await32(&slot->published), 1);
    CHECK_EQ(atomic_load(&cells[3].arrive_ns), 1);
    CHECK_EQ(atomic_load(&crystal_board_header(s.board)->timeline),
             CRYSTAL_BOARD_FINISHED);
    finish(&s, slot, now(), now());
    stage_close(&s);
}

/* --- behind the last iteration --- */

#define LAST 4 /* iterations that were recorded */

static bool is_stopped; /* in the iteration behind them; else the program ended */

static void sums_rank(struct job *j, const char *folder, uint32_t lrank)
{
    job_rank(j, folder, lrank);
    job_comm(j, "w", lrank, 4);
    for (uint64_t i = 0; i < LAST; i++) {
        j->now_ns += 1000000;
        job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 32768);
        job_sync(j, 0, 10);
        job_hint(j, i + 1);
    }
    job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 1);
    job_sync(j, 0, 10);
    job_rank_end_as(j, is_stopped);
}

static void shift(struct job *j, uint32_t lrank, uint64_t count)
{
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = 1});
    job_p2p(j, 1, 0, (lrank + 1) % 4, count);
    job_p2p(j, 0, 0, (lrank + 3) % 4, count);
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP});
    job_sync(j, 0, 10);
}

static void shifts_rank(struct job *j, const char *folder, uint32_t lrank)
{
    job_rank(j, folder, lrank);
    job_comm(j, "w", lrank, 4);
    for (uint64_t i = 0; i < LAST; i++) {
        j->now_ns += 1000000;
        shift(j, lrank, 100);
        job_hint(j, i + 1);
    }
    shift(j, lrank, 1);
    job_rank_end_as(j, is_stopped);
}

static void last_open(struct stage *s,
                      void (*record)(struct job *, const char *, uint32_t))
{
    static const uint8_t is_real[] = {1, 0, 0, 0};

    memset(s, 0, sizeof *s);
    job_begin(&s->job, 4, NULL, "0-3", "0-3");
    job_planned(&s->job, "w\t4\t0-3\n", record);
    s->job.layout.sandbox_count = 1;
    stage_board(s, s->job.dir, is_real, 1);
}

/* All iterations that were recorded, and then a sum of count. Virtual ranks come to it
 * as to their next iteration where it is one, else they have come long ago. */
static void sums_end(uint64_t count, bool is_next)
{
    static const struct crystal_transfer_wire wire = {
        1000000000, 1000, 0, 1, 0, 0, 0, CRYSTAL_PROTO_SIMPLE};
    static const struct crystal_transfer_op op = {
        CRYSTAL_FUNC_ALLREDUCE, 4, 0, 32768, 4, 0};
    uint64_t come[4], ends[4] = {0}, scratch[8];
    struct stage s;

    last_open(&s, sums_rank);
    for (uint64_t i = 0; i <= LAST; i++) {
        struct crystal_board_slot *slot =
            claim_count(&s, i, CRYSTAL_FUNC_ALLREDUCE, i < LAST ? 32768 : count);
        struct crystal_board_cell *cells = crystal_board_cells(s.board, s.comm, slot);

        CHECK_EQ(await32(&slot->published), 1);
        if (i)
            CHECK_EQ(atomic_load(&cells[2].arrive_ns),
                     i < LAST || is_next ? ends[2] + 1000000 : 1);
        for (uint32_t k = 0; k < 4; k++) /* all at the same time */
            come[k] = atomic_load(&cells[2].arrive_ns);
        crystal_transfer_coll(&wire, &op, come, ends, scratch);
        finish(&s, slot, come[0], ends[0]);
    }
    CHECK_EQ(atomic_load(&crystal_board_header(s.board)->timeline),
             is_next ? CRYSTAL_BOARD_FOLLOWS : CRYSTAL_BOARD_FINISHED);
    stage_close(&s);
}

/* The same of messages of count floats to rank 1 and from rank 3. */
static void shifts_end(uint64_t count, bool is_next)
{
    struct stage s;
    uint64_t end_ns = 0;

    last_open(&s, shifts_rank);
    for (uint64_t i = 0; i <= LAST; i++) {
        uint64_t bytes = 4 * (i < LAST ? 100 : count), come_ns;
        struct crystal_board_pair_cell *out = message_bytes(&s, 0, 1, 1, i, bytes);
        struct crystal_board_pair_cell *in = message_bytes(&s, 1, 3, 0, i, bytes);

        come_ns = await64(&out->virtual_arrive_ns);
        CHECK_EQ(await64(&in->virtual_arrive_ns), come_ns);
        if (i)
            CHECK_EQ(come_ns, i < LAST || is_next ? end_ns + 1000000 : 1);
        end_ns = come_ns + 400 + 1000;
        atomic_store(&out->real_arrive_ns, come_ns);
        atomic_store(&in->real_arrive_ns, come_ns);
        atomic_store(&in->end_ns, end_ns);
        atomic_store(&out->end_ns, end_ns);
        crystal_board_ring(s.board);
    }
    CHECK_EQ(atomic_load(&crystal_board_header(s.board)->timeline),
             is_next ? CRYSTAL_BOARD_FOLLOWS : CRYSTAL_BOARD_FINISHED);
    stage_close(&s);
}

static void a_last_phase_is_no_iteration(void)
{
    is_stopped = false;
    sums_end(1, false);
    shifts_end(1, false);
    sums_end(32768, true);
    shifts_end(100, true);
    sums_end(7, true); /* was not recorded: sizes may differ by iteration */
    shifts_end(7, true);
}

/* Of an iteration that was begun when the recording was stopped sizes may differ, too.
 */
static void an_iteration_that_was_begun_is_one(void)
{
    is_stopped = true;
    sums_end(1, true);
    shifts_end(1, true);
}

static void without_a_profile_all_have_arrived(void)
{
    struct crystal_board_slot *slot;
    struct stage s;

    stage_open(&s, 0);
    (void)set_up(&s);
    slot = claim(&s, 1, CRYSTAL_FUNC_ALLREDUCE);
    CHECK_EQ(await32(&slot->published), 1);
    CHECK_EQ(await64(&crystal_board_cells(s.board, s.comm, slot)[2].arrive_ns), 1);
    CHECK_EQ(await64(&message(&s, 0, 1, 1, 0)->virtual_arrive_ns), 1);
    stage_close(&s);
}

static void answers_fast(void)
{
    struct stage s;
    uint64_t begin, worst = 0;

    stage_open(&s, 0);
    for (uint64_t seq = 0; seq < 100; seq++) {
        struct crystal_board_slot *slot;

        (void)usleep(1000); /* the driver sleeps */
        begin = now();
        slot = claim(&s, seq, CRYSTAL_FUNC_ALLREDUCE);
        while (!atomic_load(&slot->published))
            (void)usleep(10);
        if (now() - begin > worst)
            worst = now() - begin;
        finish(&s, slot, now(), now());
    }
    printf("# slowest of 100 answers: %llu us\n", (unsigned long long)worst / 1000);
    CHECK(worst < 1000000000); /* a loaded machine is no fault */
    stage_close(&s);
}

static void refuses_other_parents(void)
{
    struct crystal_error err = {0};
    struct stage s;
    char graph[160], profile[160];

    stage_open(&s, 1);
    job_path(&s.job, graph, sizeof graph, "job.graph");
    job_path(&s.job, profile, sizeof profile, "job.profile");
    rank(&s.job, "ranks", 2);
    JOB_MUST(crystal_graph_build(s.job.dir, &job_err));
    CHECK(!create(&s, graph, profile, &err));
    CHECK_HAS(err.text,
              "job.profile was made for another job.graph; run 'scrystal plan' "
              "again");
    s.job.layout.fingerprint++;
    CHECK(!create(&s, graph, profile, &err));
    CHECK_HAS(err.text, "made for another program or layout");
    (void)unlink(profile);
    s.job.layout.fingerprint--;
    CHECK(!create(&s, graph, profile, &err));
    CHECK_HAS(err.text, "job.profile: not there yet; run 'scrystal plan' first");
    stage_close(&s);
}

int main(void)
{
    check_begin();
    CHECK_RUN(virtual_ranks_keep_time);
    CHECK_RUN(the_end_meets_everybody);
    CHECK_RUN(a_last_phase_is_no_iteration);
    CHECK_RUN(an_iteration_that_was_begun_is_one);
    CHECK_RUN(without_a_profile_all_have_arrived);
    CHECK_RUN(answers_fast);
    CHECK_RUN(refuses_other_parents);
    return check_end();
}
