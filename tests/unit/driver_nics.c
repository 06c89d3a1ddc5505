/* Two collectives of two communicators that are under way at once share their ranks'
 * NICs: plan, predict and emulate's driver, fed by this program as the plugin of one
 * real rank, take the time that the closed form says.
 */
#include "config.h"

#include "runtime/predict_run.h"

#include "tests/unit/driver_stage.h"

#define MS      UINT64_C(1000000)
#define COUNT   (200 * MS / 12) /* floats to each of 3 others at 1 GB/s: 200 ms */
#define BEFORE  (20 * MS)
#define BETWEEN (100 * MS)
#define TIMES   3

/* Overlapping or one after the other: 20 ms, w, 100 ms, x. */
static void two(struct job *j, const char *folder, uint32_t lrank, int overlaps)
{
    job_rank(j, folder, lrank);
    job_comm(j, "w", lrank, 4);
    job_comm(j, "x", lrank, 4);
    job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 1);
    job_sync(j, 0, 10);
    for (uint64_t i = 0; i < 4; i++) {
        j->now_ns += BEFORE;
        job_coll(j, CRYSTAL_FUNC_ALLTOALL, 0, COUNT);
        if (!overlaps)
            job_sync(j, 0, 10);
        j->now_ns += BETWEEN;
        job_coll(j, CRYSTAL_FUNC_ALLTOALL, 1, COUNT);
        job_sync(j, 0, 10);
        job_sync(j, 1, 10);
        job_hint(j, i + 1);
    }
    job_rank_end(j);
}

static void beside_each_other(struct job *j, const char *folder, uint32_t lrank)
{
    two(j, folder, lrank, 1);
}

static void after_each_other(struct job *j, const char *folder, uint32_t lrank)
{
    two(j, folder, lrank, 0);
}

static void job_make(struct job *j, int overlaps)
{
    job_begin(j, 4, NULL, "0-3", "0-3");
    job_planned(j, "w\t4\t0-3\nx\t4\t0-3\n",
                overlaps ? beside_each_other : after_each_other);
    j->layout.sandbox_count = 1;
}

/* An iteration's time as plan has composed it. */
static uint64_t composed_ns(const struct job *j)
{
    struct crystal_profile *profile;
    uint64_t mean_ns;
    char path[160];

    job_path(j, path, sizeof path, "job.profile");
    profile = crystal_profile_open(path, &job_err);
    JOB_MUST(!profile);
    mean_ns = crystal_profile_iteration(profile, 1)->mean_ns;
    crystal_profile_close(profile);
    return mean_ns;
}

/* The same as predict says. */
static uint64_t predicted_ns(const struct job *j)
{
    struct crystal_prediction *pr;
    struct crystal_profile *profile;
    struct crystal_what_if what;
    struct crystal_graph *graph;
    struct crystal_predict p;
    char path[160];
    uint64_t ns;

    job_path(j, path, sizeof path, "job.graph");
    graph = crystal_graph_open(path, &job_err);
    JOB_MUST(!graph);
    job_path(j, path, sizeof path, "job.profile");
    profile = crystal_profile_open(path, &job_err);
    JOB_MUST(!profile);
    JOB_MUST(crystal_predict_init(&p, graph, profile, 1, &job_err));
    crystal_what_if_init(&what);
    what.shared_nics = 1;
    pr = crystal_predict_run(&p, &what, 0, &job_err);
    JOB_MUST(!pr);
    ns = pr->iteration_ns;
    crystal_prediction_destroy(pr);
    crystal_predict_fini(&p);
    crystal_profile_close(profile);
    crystal_graph_close(graph);
    return ns;
}

/* The rank comes to its all-to-all when the virtual ones do, and not before that is
 * now: six messages, with the seq-th of each pair. Returns when. */
static uint64_t come(struct stage *s, struct crystal_board_comm *comm, uint64_t seq)
{
    struct crystal_board_pair_cell *cells[6];
    uint64_t at_ns;

    s->comm = comm;
    for (uint32_t i = 0; i < 6; i++)
        cells[i] = message(s, i, i % 3 + 1, i < 3, seq);
    at_ns = await64(&cells[0]->virtual_arrive_ns);
    for (int i = 1; i < 6; i++)
        CHECK_EQ(await64(&cells[i]->virtual_arrive_ns), at_ns);
    while (now() < at_ns)
        (void)usleep(1000);
    for (int i = 0; i < 6; i++)
        atomic_store(&cells[i]->real_arrive_ns, at_ns);
    crystal_board_ring(s->board);
    for (int i = 0; i < 6; i++)
        atomic_store(&cells[i]->end_ns, at_ns + 1);
    crystal_board_ring(s->board);
    return at_ns;
}

static void emulate(int overlaps)
{
    static const uint8_t is_real[] = {1, 0, 0, 0};
    static const uint32_t members[] = {0, 1, 2, 3};
    struct crystal_board_comm *w, *x;
    struct crystal_board_slot *slot;
    uint64_t begin_ns = 0, iteration_ns;
    /* what the first one has done before the second comes, then both at half speed */
    const uint64_t want_ns = BEFORE + (overlaps ? 400 * MS : 500 * MS);
    struct stage s;

    memset(&s, 0, sizeof s);
    job_make(&s.job, overlaps);
    iteration_ns = composed_ns(&s.job);
    printf("# an iteration takes %.6f ms\n", (double)iteration_ns * 1e-6);
    CHECK(iteration_ns > want_ns && iteration_ns < want_ns + MS / 10);
    CHECK_EQ(predicted_ns(&s.job), iteration_ns);
    stage_board(&s, s.job.dir, is_real, 1);
    w = s.comm;
    JOB_MUST(
        crystal_board_comm_add(s.board, 78, "x", 1, 4, members, is_real, &job_err));
    x = crystal_board_comm_find(s.board, 78);
    JOB_MUST(!x);
    slot = claim(&s, 0, CRYSTAL_FUNC_BROADCAST);
    CHECK_EQ(await32(&slot->published), 1);
    finish(&s, slot, now() - 5000, now());
    for (uint64_t i = 0; i < TIMES && check_ok; i++) {
        uint64_t w_ns = come(&s, w, i), x_ns = come(&s, x, i);

        if (i > 0)
            CHECK_EQ(w_ns - begin_ns, iteration_ns);
        if (overlaps)
            CHECK_EQ(x_ns - w_ns, BETWEEN);
        begin_ns = w_ns;
    }
    crystal_driver_destroy(s.driver);
    crystal_board_destroy(s.board);
    job_end(&s.job);
}

static void overlapping_collectives_share_nics(void)
{
    emulate(1);
}

static void without_overlap_nothing_changes(void)
{
    emulate(0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(overlapping_collectives_share_nics);
    CHECK_RUN(without_overlap_nothing_changes);
    return check_end();
}
