/* The timeline against a simulator (tests/simulator.h): thousands of random small jobs,
 * every arrival and every end to the nanosecond, deadlocks included.
 */
#include "config.h"

#include "tests/check.h"
#include "tests/simulator.h"

#define JOBS 2000

static struct simulator sim;
static uint64_t got_arrive[RANKS][ITERATIONS][OPS], got_end[RANKS][ITERATIONS][OPS];
static uint64_t got_host[RANKS];

static void on_end(void *context, uint32_t lrank, uint64_t iteration, uint32_t instr,
                   uint64_t arrive_ns, uint64_t end_ns)
{
    (void)context;
    got_arrive[lrank][iteration][instr] = arrive_ns;
    got_end[lrank][iteration][instr] = end_ns;
}

static void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns)
{
    (void)context, (void)begin_ns;
    if (iteration == ITERATIONS - 1)
        got_host[lrank] = end_ns;
}

static bool run_timeline(const struct crystal_graph *g)
{
    struct crystal_timeline_config config = {
        .graph = g,
        .programs = sim.programs,
        .gap_ns = (const uint64_t *const *)sim.gaps,
        .wire = sim.wire,
        .iterations = ITERATIONS,
        .nics = sim.are_all      ? CRYSTAL_NICS_OF_ALL
                : sim.are_shared ? CRYSTAL_NICS_OF_MESSAGES
                                 : CRYSTAL_NICS_OF_GROUPS,
        .on_end = on_end,
        .on_iteration = on_iteration};
    struct crystal_timeline *t = crystal_timeline_create(&config, &err);

    if (!t)
        return false; /* counts differ: spoilt */
    memset(got_arrive, 0xff, sizeof got_arrive);
    memset(got_end, 0xff, sizeof got_end);
    memset(got_host, 0xff, sizeof got_host);
    MUST(crystal_timeline_start(t, 0, &err));
    MUST(crystal_timeline_advance(t, UINT64_MAX, &err));
    crystal_timeline_destroy(t);
    return true;
}

/* What is under way at the end has an arrival in the simulator only. */
static uint32_t difference(const struct job *j)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < j->n; r++) {
        count += got_host[r] != sim.host_end[r];
        for (uint32_t it = 0; it < ITERATIONS; it++)
            for (uint32_t i = 0; i < OPS; i++)
                count += got_end[r][it][i] != sim.end[r][it][i] ||
                         (sim.end[r][it][i] != UNKNOWN &&
                          got_arrive[r][it][i] != sim.arrive[r][it][i]);
    }
    return count;
}

static void agrees_with_the_simulator(void)
{
    static struct job job;
    uint32_t stuck = 0, compared = 0;

    sim.job = &job;
    for (uint32_t i = 0; i < JOBS; i++) {
        uint64_t seed = state;
        struct crystal_graph *g;

        job_make(&job);
        g = job_write(&job);
        sim.are_all = below(3) == 0;
        sim.are_shared = sim.are_all || below(2) == 0;
        sim.wire = (struct crystal_transfer_wire){below(4) ? 1000000000 : 0,
                                                  below(3) ? 1000 : 0,
                                                  below(2) * 77,
                                                  1,
                                                  below(2) * 5,
                                                  0,
                                                  0,
                                                  CRYSTAL_PROTO_SIMPLE};
        for (uint32_t r = 0; r < job.n; r++) {
            sim.programs[r] = crystal_program_create(g, r, &err);
            MUST(!sim.programs[r]);
            sim.gaps[r] = calloc(OPS, sizeof *sim.gaps[r]);
            MUST(!sim.gaps[r]);
            for (uint32_t k = 0; k < OPS; k++)
                sim.gaps[r][k] = below(2) ? below(3000) : 0;
        }
        if (run_timeline(g)) {
            simulate(&sim);
            compared++;
            for (uint32_t r = 0; r < job.n; r++)
                if (sim.host_end[r] == UNKNOWN) {
                    stuck++;
                    break;
                }
            if (difference(&job)) {
                printf("# job %u of seed %llu: %u differences\n", i,
                       (unsigned long long)seed, difference(&job));
                CHECK(!"the timeline and the simulator differ");
                i = JOBS;
            }
        }
        for (uint32_t r = 0; r < job.n; r++) {
            crystal_program_destroy(sim.programs[r]);
            free(sim.gaps[r]);
        }
        crystal_graph_close(g);
    }
    printf("# %u jobs compared, %u of them with ranks that wait for ever\n", compared,
           stuck);
    CHECK(compared > JOBS / 2);
    CHECK(stuck >= 5);
}

int main(void)
{
    (void)snprintf(path, sizeof path, "/tmp/crystal-random.%ld", (long)getpid());
    check_begin();
    CHECK_RUN(agrees_with_the_simulator);
    (void)unlink(path); /* a temporary file */
    return check_end();
}
