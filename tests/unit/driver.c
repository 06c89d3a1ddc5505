/* The driver on a real board: this program plays the plugin of one sandbox rank and
 * reads when virtual ranks arrive, which has to be exactly what graph, profile and its
 * own arrivals say.
 */
#include "config.h"

#include "replay/compose.h"
#include "replay/driver.h"
#include "runtime/profile_file.h"
#include "runtime/transfer.h"

#include "tests/check.h"
#include "tests/job.h"

#include <errno.h>
#include <time.h>

static const struct crystal_compose_before first_pass;

static uint64_t now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

/* Polls until *word is not 0, at most 5 s. */
static uint64_t await64(_Atomic uint64_t *word)
{
    for (int i = 0; i < 50000 && !atomic_load(word); i++)
        (void)usleep(100);
    return atomic_load(word);
}

static uint32_t await32(_Atomic uint32_t *word)
{
    for (int i = 0; i < 50000 && !atomic_load(word); i++)
        (void)usleep(100);
    return atomic_load(word);
}

/* Rank 0 of 4 is real; all compute 1000 * (rank + 1) us, reduce, and send to the next
 * rank in a ring of messages. */
static void rank(struct job *j, const char *folder, uint32_t lrank)
{
    job_rank(j, folder, lrank);
    job_comm(j, "w", lrank, 4);
    job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 1);
    job_sync(j, 0, 10);
    for (uint64_t i = 0; i < 4; i++) {
        j->now_ns += 1000000 * (lrank + 1);
        job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 32768);
        job_sync(j, 0, 10);
        j->now_ns += 500000;
        job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = 1});
        job_p2p(j, 1, 0, (lrank + 1) % 4, 100);
        job_p2p(j, 0, 0, (lrank + 3) % 4, 100);
        job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP});
        job_sync(j, 0, 10);
        job_hint(j, i + 1);
    }
    job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 3); /* the end */
    job_sync(j, 0, 10);
    job_rank_end(j);
}

static void make_job(struct job *j)
{
    job_begin(j, 4, NULL, "0-3", "0-3");
    job_text(j, "comms.tab", "w\t4\t0-3\n");
    for (uint32_t r = 0; r < 4; r++) {
        rank(j, "ranks", r);
        rank(j, "plan", r);
    }
    JOB_MUST(crystal_graph_build(j->dir, &job_err));
    JOB_MUST(crystal_plan_compose(j->dir, NULL, &first_pass,
                                  &job_err)); /* all four measured */
    j->layout.sandbox_count = 1;
}

struct stage {
    struct job job;
    struct crystal_board *board;
    struct crystal_board_comm *comm;
    struct crystal_driver *driver;
};

static struct crystal_driver *create(struct stage *s, const char *graph,
                                     const char *profile, struct crystal_error *err)
{
    const struct crystal_driver_config config = {.board = s->board,
                                                 .layout = &s->job.layout,
                                                 .graph_path = graph,
                                                 .profile_path = profile};

    return crystal_driver_create(&config, err);
}

static void stage_open(struct stage *s, int with_profile)
{
    static const uint32_t members[] = {0, 1, 2, 3};
    static const uint8_t is_real[] = {1, 0, 0, 0};
    struct crystal_board_config config = {0};
    char graph[160], profile[160];

    make_job(&s->job);
    config = (struct crystal_board_config){.directory = s->job.dir,
                                           .lrank_count = 4,
                                           .mode = CRYSTAL_BOARD_TIMED,
                                           .wire_bytes_per_s = 1000000000,
                                           .wire_latency_ns = 1000,
                                           .comm_capacity = 8};
    s->board = crystal_board_create(&config, &job_err);
    JOB_MUST(!s->board);
    job_path(&s->job, graph, sizeof graph, "job.graph");
    job_path(&s->job, profile, sizeof profile, "job.profile");
    s->driver = create(s, graph, with_profile ? profile : NULL, &job_err);
    JOB_MUST(!s->driver);
    JOB_MUST(
        crystal_board_comm_add(s->board, 77, "w", 0, 4, members, is_real, &job_err));
    s->comm = crystal_board_comm_find(s->board, 77);
    JOB_MUST(!s->comm);
}

static void stage_close(struct stage *s)
{
    crystal_driver_destroy(s->driver);
    crystal_board_destroy(s->board);
    job_end(&s->job);
}

/* Rank 0 comes to collective seq. */
static struct crystal_board_slot *claim(struct stage *s, uint64_t seq,
                                        enum crystal_func func)
{
    struct crystal_board_slot *slot = crystal_board_slot(s->board, s->comm, seq);

    for (int i = 0; i < 50000 && atomic_load(&slot->seq_plus1); i++)
        (void)usleep(100); /* until the driver has freed it */
    CHECK_EQ(atomic_load(&slot->seq_plus1), 0);
    slot->func = func;
    slot->dtype = ncclFloat32;
    atomic_store(&slot->seq_plus1, seq + 1);
    atomic_store(&slot->described, 1);
    crystal_board_ring(s->board);
    return slot;
}

static void finish(struct stage *s, struct crystal_board_slot *slot, uint64_t arrive_ns,
                   uint64_t end_ns)
{
    struct crystal_board_cell *cells = crystal_board_cells(s->board, s->comm, slot);

    atomic_store(&cells[0].arrive_ns, arrive_ns);
    crystal_board_ring(s->board);
    atomic_store(&cells[0].end_ns, end_ns);
    (void)atomic_fetch_add(&slot->ended_count, 1);
    crystal_board_ring(s->board);
    for (int i = 0; i < 50000 && atomic_load(&slot->seq_plus1); i++)
        (void)usleep(100);
    CHECK_EQ(atomic_load(&slot->seq_plus1), 0);
    CHECK_EQ(atomic_load(&cells[1].arrive_ns), 0);
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

/* Rank 0's message to (sends) or from a virtual crank; returns its arrival. */
static struct crystal_board_pair_cell *message(struct stage *s, uint32_t index,
                                               uint32_t peer, int sends, uint64_t seq)
{
    struct crystal_board_pair *pair = &crystal_board_pairs(s->board, s->comm)[index];
    struct crystal_board_pair_cell *cell = &pair->cells[seq % CRYSTAL_BOARD_SLOTS];

    if (!atomic_load(&pair->state)) {
        pair->real_crank = 0;
        pair->virtual_crank = peer;
        pair->real_sends = (uint32_t)sends;
        atomic_store(&pair->state, CRYSTAL_BOARD_READY);
        atomic_fetch_add(&s->comm->pair_count, 1);
    }
    for (int i = 0; i < 50000 && atomic_load(&cell->seq_plus1); i++)
        (void)usleep(100);
    cell->bytes = 400;
    atomic_store(&cell->seq_plus1, seq + 1);
    crystal_board_ring(s->board);
    return cell;
}

static void virtual_ranks_keep_time(void)
{
    struct crystal_transfer_wire wire = {1000000000, 1000, 0, 1, 0, 0, 0};
    struct crystal_transfer_op op = {CRYSTAL_FUNC_ALLREDUCE, 4, 0, 32768, 4};
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
    CHECK_RUN(without_a_profile_all_have_arrived);
    CHECK_RUN(answers_fast);
    CHECK_RUN(refuses_other_parents);
    return check_end();
}
