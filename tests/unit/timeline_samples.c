/* The timeline with measured iterations of which each rank draws: what is drawn, how
 * often, and by what.
 */
#include "config.h"

#include "runtime/timeline.h"

#include "tests/check.h"
#include "tests/job.h"

#include <errno.h>

#define ITERATIONS 4000

static uint64_t took_ns[4][ITERATIONS];

static void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns)
{
    (void)context;
    took_ns[lrank][iteration] = end_ns - begin_ns;
}

/* Two pairs of ranks that compute, reduce, wait, and compute again. The second pair is
 * like the first. A pair reduces among itself, or all do. */
static struct bench {
    struct job job;
    struct crystal_graph *graph;
    struct crystal_program *programs[2];
    uint64_t gap_ns[2][16], drawn_ns[2][3][16];
    const uint64_t *gaps[2];
    struct crystal_timeline_samples samples[2];
    struct crystal_timeline_config config;
} b;

static void begin(bool all)
{
    char path[160];

    memset(&b, 0, sizeof b);
    job_begin(&b.job, 4, "tp=2,dp=2", "0-1", "0-1");
    job_text(&b.job, "comms.tab", all ? "w\t4\t0-3\n" : "w\t2\t0-1\n");
    for (uint32_t r = 0; r < 2; r++) {
        job_rank(&b.job, "ranks", r);
        job_comm(&b.job, "w", r, all ? 4 : 2);
        for (int i = 0; i < 3; i++) {
            job_coll(&b.job, CRYSTAL_FUNC_ALLREDUCE, 0, 1);
            job_sync(&b.job, 0, 1);
            job_hint(&b.job, r + 1);
        }
        job_rank_end(&b.job);
    }
    JOB_MUST(crystal_graph_build(b.job.dir, &job_err));
    job_path(&b.job, path, sizeof path, "job.graph");
    b.graph = crystal_graph_open(path, &job_err);
    JOB_MUST(!b.graph);
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t rep = crystal_graph_rep_of(b.graph, r);

        JOB_MUST(rep != r);
        b.programs[r] = crystal_program_create(b.graph, r, &job_err);
        JOB_MUST(!b.programs[r] || b.programs[r]->instr_count > 16);
        b.gaps[r] = b.gap_ns[r];
    }
    b.config = (struct crystal_timeline_config){.graph = b.graph,
                                                .programs = b.programs,
                                                .gap_ns = b.gaps,
                                                .samples = b.samples,
                                                .iterations = ITERATIONS,
                                                .on_iteration = on_iteration};
}

static void end(void)
{
    for (uint32_t r = 0; r < 2; r++)
        crystal_program_destroy(b.programs[r]);
    crystal_graph_close(b.graph);
    job_end(&b.job);
}

/* Adds an iteration in which this much was computed before the rank's operation and
 * before its hint. */
static void sample(uint32_t rank, uint64_t coll_ns, uint64_t hint_ns)
{
    const struct crystal_program *p = b.programs[rank];
    struct crystal_timeline_samples *s = &b.samples[rank];
    uint64_t *gaps = b.drawn_ns[rank][0] + (size_t)s->count++ * p->instr_count;

    s->gap_ns = b.drawn_ns[rank][0];
    for (uint32_t i = 0; i < p->instr_count; i++)
        gaps[i] = p->instrs[i].kind == CRYSTAL_OP_COLL   ? coll_ns
                  : p->instrs[i].kind == CRYSTAL_OP_HINT ? hint_ns
                                                         : 0;
}

static void run(void)
{
    struct crystal_timeline *t = crystal_timeline_create(&b.config, &job_err);

    JOB_MUST(!t);
    JOB_MUST(crystal_timeline_start(t, 0, &job_err));
    JOB_MUST(crystal_timeline_advance(t, UINT64_MAX, &job_err));
    CHECK(crystal_timeline_is_done(t));
    crystal_timeline_destroy(t);
}

static unsigned times(uint32_t rank, uint64_t ns)
{
    unsigned count = 0;

    for (int i = 0; i < ITERATIONS; i++)
        count += took_ns[rank][i] == ns;
    return count;
}

/* Parts of two measured iterations are never mixed: each is 4000 ns as a whole. */
static void an_iteration_is_drawn_as_a_whole(void)
{
    begin(false);
    sample(0, 1000, 3000);
    sample(0, 3000, 1000);
    run();
    CHECK_EQ(times(0, 4000), ITERATIONS);
    end();
}

/* Evenly: a third each, within 5 standard deviations of a binomial (30 each). */
static void each_is_drawn_as_often(void)
{
    begin(false);
    sample(0, 1000, 0);
    sample(0, 2000, 0);
    sample(0, 5000000000, 0); /* more than the engine's code holds */
    run();
    CHECK_EQ(times(0, 1000) + times(0, 2000) + times(0, 5000000000), ITERATIONS);
    CHECK(times(0, 1000) > 1333 - 150 && times(0, 1000) < 1333 + 150);
    CHECK(times(0, 2000) > 1333 - 150 && times(0, 2000) < 1333 + 150);
    end();
}

/* What two ranks measured in one iteration stays together: it was 4000 ns each time,
 * not 3000 and not 5000. */
static void ranks_of_a_pair_draw_together(void)
{
    begin(false);
    sample(0, 4000, 0);
    sample(0, 2000, 0);
    sample(1, 3000, 0);
    sample(1, 4000, 0);
    run();
    for (uint32_t r = 0; r < 4; r++)
        CHECK_EQ(times(r, 4000), ITERATIONS);
    end();
}

/* Pairs draw by themselves: both are fast in a quarter of the iterations only, where
 * the mean of each would say 2000 ns. */
static void pairs_draw_by_themselves(void)
{
    begin(true);
    for (uint32_t r = 0; r < 2; r++) {
        sample(r, 1000, 0);
        sample(r, 3000, 0);
    }
    run();
    CHECK_EQ(times(0, 1000) + times(0, 3000), ITERATIONS);
    CHECK(times(0, 1000) > 1000 - 140 && times(0, 1000) < 1000 + 140);
    CHECK_EQ(memcmp(took_ns[0], took_ns[3], sizeof took_ns[0]), 0);
    b.config.draws_together = 1; /* then in half of them */
    run();
    CHECK(times(0, 1000) > 2000 - 160 && times(0, 1000) < 2000 + 160);
    end();
}

static void the_seed_decides(void)
{
    static uint64_t before[ITERATIONS];

    begin(false);
    sample(0, 1000, 0);
    sample(0, 3000, 0);
    run();
    memcpy(before, took_ns[0], sizeof before);
    run();
    CHECK_EQ(memcmp(before, took_ns[0], sizeof before), 0);
    b.config.seed = 1;
    run();
    CHECK(memcmp(before, took_ns[0], sizeof before) != 0);
    end();
}

/* A slow rank's draws are longer, too, and one without samples has its gaps. */
static void with_other_settings(void)
{
    begin(false);
    sample(0, 1000, 0);
    b.gap_ns[1][0] = 100;
    b.config.slow_ppm_of_one = 200000;
    run();
    CHECK_EQ(times(0, 1200), ITERATIONS);
    b.samples[0].count = 0;
    run();
    CHECK_EQ(times(0, 100), ITERATIONS);
    end();
}

static void no_draw_is_too_long(void)
{
    struct crystal_error err = {0};

    begin(false);
    sample(0, 1000, 0);
    sample(0, CRYSTAL_TIMELINE_LONGEST_NS, 1000);
    CHECK(!crystal_timeline_create(&b.config, &err));
    CHECK_EQ(err.code, ERANGE);
    end();
}

int main(void)
{
    check_begin();
    CHECK_RUN(an_iteration_is_drawn_as_a_whole);
    CHECK_RUN(each_is_drawn_as_often);
    CHECK_RUN(ranks_of_a_pair_draw_together);
    CHECK_RUN(pairs_draw_by_themselves);
    CHECK_RUN(the_seed_decides);
    CHECK_RUN(with_other_settings);
    CHECK_RUN(no_draw_is_too_long);
    return check_end();
}
