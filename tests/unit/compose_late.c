/* Plan where ranks share CPUs: how late they go on behind waits is found and composed,
 * time that they waited for virtual ranks is not; so a slow sandbox rank moves an
 * emulation by as much as a closed form says.
 */
#include "config.h"

#include "runtime/timeline.h"

#include "tests/check.h"
#include "tests/composed.h"

#include <stdbool.h>

#define FLOATS    32768
#define ALONE_NS  132072 /* their all-reduce by two: 2 * 65536 + 1000 ns */
#define FIRST_NS  500000 /* computation before the all-reduce over tp */
#define SECOND_NS 300000 /* before the one over dp */
#define LATE_NS   7000
#define WAITED_NS 160000 /* 20 % of the computation */
#define ROUNDS    4
#define CALLS_MAX 8 /* of a round */

enum { TP, DP, REDUCES };

/* When ends are told: one of the first all-reduces may be told behind its iteration. */
enum told { IN_TIME, BEHIND_HINT };

/* Ranks 0 and 1 of tp=2,dp=2, whose tp row always arrives together. took_ns: of both
 * all-reduces. */
static void rank_told(struct job *j, const char *folder, uint32_t lrank,
                      const uint64_t took_ns[REDUCES], enum told told)
{
    uint64_t late = 0, late_ns = 0;

    job_rank(j, folder, lrank);
    job_comm(j, "tp", lrank, 2);
    job_comm(j, lrank ? "dp1" : "dp0", 0, 2);
    job_synchronise(j);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        job_hint(j, i);
        if (late)
            job_done(j, late, late_ns, late_ns + took_ns[TP]);
        late = 0;
        for (uint16_t k = 0; k < REDUCES; k++) {
            uint64_t record;

            j->now_ns += k == TP ? FIRST_NS : SECOND_NS;
            record = crystal_trace_count(j->trace);
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, k, FLOATS);
            if (k == TP && i == ROUNDS - 2 && told == BEHIND_HINT) {
                late = record;
                late_ns = j->now_ns;
            } else {
                job_done(j, record, j->now_ns, j->now_ns + took_ns[k]);
            }
            job_sync(j, k, took_ns[k]);
        }
    }
    job_hint(j, ROUNDS);
    job_rank_end(j);
}

static void rank(struct job *j, const char *folder, uint32_t lrank,
                 const uint64_t took_ns[REDUCES])
{
    rank_told(j, folder, lrank, took_ns, IN_TIME);
}

static void capture(struct job *j)
{
    static const uint64_t took_ns[REDUCES] = {5, 5};

    job_begin(j, 4, "tp=2,dp=2", "0-1", "0-1");
    job_text(j, "comms.tab", "tp\t2\t0-1\ndp0\t2\t0,2\ndp1\t2\t1,3\n");
    for (uint32_t r = 0; r < 2; r++)
        rank(j, "ranks", r, took_ns);
    JOB_MUST(crystal_graph_build(j->dir, &job_err));
}

/* What the net plugin of a rank saw: the calls of an iteration, again and again, of
 * which number `late` has waited; in the first iteration, which is not counted, nobody
 * keeps time. */
static void saw(const struct job *j, uint32_t lrank, const uint8_t *funcs,
                uint64_t count, uint64_t late, uint64_t waited_ns)
{
    struct crystal_run_record records[ROUNDS * CALLS_MAX];

    for (uint64_t i = 0; i < ROUNDS * count; i++) {
        bool is_late = i >= count && i % count == late;

        records[i] = (struct crystal_run_record){
            .order = i,
            .func = funcs[i % count],
            .nranks = 2,
            .waited_us = is_late ? (uint32_t)(waited_ns / 1000) : 0};
    }
    job_saw(j, lrank, records, ROUNDS * count);
}

static struct crystal_profile *composed(const struct job *j, uint32_t cpu_count)
{
    const struct crystal_compose_pass pass = {.cpu_count = cpu_count};

    return job_composed(j, &pass);
}

static uint64_t all_gaps(const struct crystal_profile *p, uint32_t rep)
{
    uint64_t sum_ns = 0;

    for (uint32_t i = 0; i < crystal_profile_rep(p, rep)->instr_count; i++)
        sum_ns += crystal_profile_ops(p, rep)[i].gap_ns;
    return sum_ns;
}

static void check_composed(const struct crystal_profile *p, uint64_t late_ns)
{
    const uint64_t gaps_ns = FIRST_NS + SECOND_NS;

    for (uint32_t r = 0; r < 4; r++)
        CHECK_EQ(crystal_profile_iteration(p, r)->mean_ns,
                 gaps_ns + 2 * (ALONE_NS + late_ns));
    for (uint32_t r = 0; r < 2; r++)
        CHECK_EQ(all_gaps(p, r), gaps_ns + 2 * late_ns);
    CHECK_EQ(crystal_profile_head(p)->stretch_ppm, 2 * late_ns * 1000000 / gaps_ns);
    CHECK_EQ(crystal_profile_head(p)->overhead_ns, 0);
    CHECK_EQ(crystal_profile_head(p)->overhead_origin, CRYSTAL_ORIGIN_MODELLED);
}

/* Two ranks on one CPU: what their iterations take longer than the parts is behind
 * their waits, in equal parts. */
static void finds_how_late_ranks_go_on(void)
{
    static const uint64_t took_ns[REDUCES] = {ALONE_NS + 3000, ALONE_NS + 11000};
    struct crystal_profile *p;
    struct job j;

    capture(&j);
    for (uint32_t r = 0; r < 2; r++)
        rank(&j, "plan", r, took_ns);
    p = composed(&j, 1);
    check_composed(p, LATE_NS); /* 3000 and 11000 */
    crystal_profile_close(p);

    /* with a CPU each, it is what their messages cost: 1500 ns each of two steps */
    p = composed(&j, 2);
    CHECK_EQ(crystal_profile_head(p)->stretch_ppm, 0);
    CHECK_EQ(crystal_profile_head(p)->overhead_ns, 1500);
    CHECK_EQ(crystal_profile_head(p)->overhead_origin, CRYSTAL_ORIGIN_MEASURED);
    CHECK_EQ(all_gaps(p, 0), FIRST_NS + SECOND_NS);
    crystal_profile_close(p);
    job_end(&j);
}

/* What another thread tells of an operation stands where the next iteration begins. */
static void an_end_may_be_told_late(void)
{
    static const uint64_t took_ns[REDUCES] = {ALONE_NS + 3000, ALONE_NS + 11000};
    struct crystal_profile *p;
    struct job j;

    capture(&j);
    rank_told(&j, "plan", 0, took_ns, IN_TIME);
    rank_told(&j, "plan", 1, took_ns, BEHIND_HINT);
    p = composed(&j, 1);
    check_composed(p, LATE_NS);
    crystal_profile_close(p);
    job_end(&j);
}

/* A pass whose virtual ranks came late: rank 0 waited for them, rank 1 longer, and then
 * rank 0 for rank 1. */
static void plan_waited(struct job *j)
{
    static const uint8_t funcs[REDUCES] = {CRYSTAL_FUNC_ALLREDUCE,
                                           CRYSTAL_FUNC_ALLREDUCE};
    static const uint64_t took_ns[2][REDUCES] = {
        {ALONE_NS + LATE_NS + WAITED_NS / 4, ALONE_NS + LATE_NS + WAITED_NS * 3 / 4},
        {ALONE_NS + LATE_NS, ALONE_NS + LATE_NS + WAITED_NS}};

    capture(j);
    for (uint32_t r = 0; r < 2; r++) {
        rank(j, "plan", r, took_ns[r]);
        saw(j, r, funcs, REDUCES, DP, r ? WAITED_NS : WAITED_NS * 3 / 4);
    }
}

static void waiting_for_virtual_ranks_is_not_theirs(void)
{
    struct crystal_profile *p;
    struct job j;

    plan_waited(&j);
    p = composed(&j, 1);
    check_composed(p, LATE_NS);
    crystal_profile_close(p);
    job_end(&j);
}

/* --- messages --- */

#define REPLICAS 4
#define PEERS    (REPLICAS - 1)
#define BYTES_NS 4000 /* of a message of 1000 floats */

/* Ranks 0 and 1 of tp=2,dp=4, who send to all of their dp row and receive from them. */
static void scatterer(struct job *j, const char *folder, uint32_t lrank,
                      uint64_t took_ns)
{
    job_rank(j, folder, lrank);
    job_comm(j, lrank ? "dp1" : "dp0", 0, REPLICAS);
    job_synchronise(j);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        job_hint(j, i);
        j->now_ns += FIRST_NS;
        job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = 1});
        for (int is_send = 1; is_send >= 0; is_send--)
            for (uint32_t k = 1; k <= PEERS; k++)
                job_p2p(j, is_send, 0, k, BYTES_NS / 4);
        job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP});
        job_sync(j, 0, took_ns);
    }
    job_hint(j, ROUNDS);
    job_rank_end(j);
}

/* All messages of a group come late, and follow each other on the link: the first one
 * has waited. */
static void waiting_of_a_group_counts_once(void)
{
    const uint64_t alone_ns = PEERS * BYTES_NS + 1000;
    uint8_t funcs[2 * PEERS];
    struct crystal_profile *p;
    struct job j;

    for (uint32_t k = 0; k < 2 * PEERS; k++)
        funcs[k] = k < PEERS ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV;
    job_begin(&j, 2 * REPLICAS, "tp=2,dp=4", "0-1", "0-1");
    job_text(&j, "comms.tab", "dp0\t4\t0,2,4,6\ndp1\t4\t1,3,5,7\n");
    for (uint32_t r = 0; r < 2; r++)
        scatterer(&j, "ranks", r, 5);
    JOB_MUST(crystal_graph_build(j.dir, &job_err));
    for (uint32_t r = 0; r < 2; r++) {
        scatterer(&j, "plan", r, alone_ns + LATE_NS + WAITED_NS);
        saw(&j, r, funcs, 2 * PEERS, PEERS, WAITED_NS);
    }
    p = composed(&j, 1);
    for (uint32_t r = 0; r < 2 * REPLICAS; r++)
        CHECK_EQ(crystal_profile_iteration(p, r)->mean_ns,
                 FIRST_NS + alone_ns + LATE_NS);
    crystal_profile_close(p);
    job_end(&j);
}

/* --- the profile in emulate --- */

#define ITERATIONS 6

struct emulation {
    struct crystal_timeline *timeline;
    struct crystal_graph *graph;
    uint64_t told_ns[2][ITERATIONS]; /* arrivals of the virtual rank of each dp pair */
};

static void on_coll(void *context, uint32_t comm, uint64_t seq, const uint64_t *arrive)
{
    struct emulation *e = context;
    struct crystal_graph_comm c;

    crystal_graph_comm(e->graph, comm, &c);
    if (c.members[1] == c.members[0] + 2 && seq < ITERATIONS)
        e->told_ns[c.members[0]][seq] = arrive[1];
}

static uint32_t comm_of(const struct crystal_graph *g, uint32_t lrank, uint32_t other)
{
    struct crystal_graph_comm c;
    uint32_t i = 0;

    do
        crystal_graph_comm(g, i, &c);
    while ((c.members[0] != lrank || c.members[1] != other) && ++i);
    return i;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The sandbox's way through its iterations, from what virtual ranks are told to do:
 * computation of rank 1 takes slow times as long. Returns a later iteration. */
static uint64_t emulated_ns(struct emulation *e, double slow)
{
    uint64_t at_ns[2] = {1000000, 1000000}, begin_ns = 0;

    JOB_MUST(crystal_timeline_start(e->timeline, 1000000, &job_err));
    JOB_MUST(crystal_timeline_advance(e->timeline, UINT64_MAX - 1, &job_err));
    for (uint64_t i = 0; i < ITERATIONS; i++) {
        if (i == ITERATIONS - 1)
            begin_ns = later(at_ns[0], at_ns[1]);
        at_ns[0] =
            later(at_ns[0] + FIRST_NS, at_ns[1] + (uint64_t)(FIRST_NS * slow + 0.5)) +
            ALONE_NS + LATE_NS;
        at_ns[1] = at_ns[0];
        for (uint32_t r = 0; r < 2; r++) {
            at_ns[r] += (uint64_t)(SECOND_NS * (r ? slow : 1) + 0.5);
            JOB_MUST(crystal_timeline_feed(e->timeline, comm_of(e->graph, r, r + 2), i,
                                           0, at_ns[r], &job_err));
            JOB_MUST(crystal_timeline_advance(e->timeline, UINT64_MAX - 1, &job_err));
            JOB_MUST(e->told_ns[r][i] == 0);
            at_ns[r] = later(at_ns[r], e->told_ns[r][i]) + ALONE_NS + LATE_NS;
        }
    }
    return later(at_ns[0], at_ns[1]) - begin_ns;
}

static uint64_t emulate(const struct job *j, const struct crystal_profile *p,
                        double slow)
{
    static const uint8_t is_outside[] = {1, 1, 0, 0};
    struct crystal_program *programs[2];
    uint64_t *gaps[2], iteration_ns;
    struct emulation e = {0};
    struct crystal_timeline_config config = {.programs = programs,
                                             .gap_ns = (const uint64_t *const *)gaps,
                                             .wire = crystal_profile_wire(p),
                                             .is_outside = is_outside,
                                             .nics = CRYSTAL_NICS_OF_MESSAGES,
                                             .context = &e,
                                             .on_coll = on_coll};
    char path[160];

    job_path(j, path, sizeof path, "job.graph");
    config.graph = e.graph = crystal_graph_open(path, &job_err);
    JOB_MUST(!e.graph);
    for (uint32_t r = 0; r < 2; r++) {
        programs[r] = crystal_program_create(e.graph, r, &job_err);
        JOB_MUST(!programs[r]);
        gaps[r] = calloc(programs[r]->instr_count, sizeof *gaps[r]);
        JOB_MUST(!gaps[r]);
        for (uint32_t i = 0; i < programs[r]->instr_count; i++)
            gaps[r][i] = crystal_profile_ops(p, r)[i].gap_ns;
    }
    e.timeline = crystal_timeline_create(&config, &job_err);
    JOB_MUST(!e.timeline);
    iteration_ns = emulated_ns(&e, slow);
    crystal_timeline_destroy(e.timeline);
    for (uint32_t r = 0; r < 2; r++) {
        crystal_program_destroy(programs[r]);
        free(gaps[r]);
    }
    crystal_graph_close(e.graph);
    return iteration_ns;
}

static void a_slow_sandbox_rank_is_seen(void)
{
    const uint64_t even_ns = FIRST_NS + SECOND_NS + 2 * (ALONE_NS + LATE_NS);
    struct crystal_profile *p;
    struct job j;

    plan_waited(&j);
    p = composed(&j, 1);
    CHECK_EQ(emulate(&j, p, 1), even_ns);
    CHECK_EQ(emulate(&j, p, 1.05), even_ns + (FIRST_NS + SECOND_NS) / 20);
    CHECK_EQ(emulate(&j, p, 1.2), even_ns + (FIRST_NS + SECOND_NS) / 5);
    crystal_profile_close(p);
    job_end(&j);
}

int main(void)
{
    check_begin();
    CHECK_RUN(finds_how_late_ranks_go_on);
    CHECK_RUN(an_end_may_be_told_late);
    CHECK_RUN(waiting_for_virtual_ranks_is_not_theirs);
    CHECK_RUN(waiting_of_a_group_counts_once);
    CHECK_RUN(a_slow_sandbox_rank_is_seen);
    return check_end();
}
