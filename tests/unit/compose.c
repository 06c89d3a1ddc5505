/* Plan's composition: gaps, transfers, the cost of software and iteration times from
 * hand-made plan traces, exactly; and parents that do not fit are refused.
 */
#include "config.h"

#include "replay/measure.h"
#include "runtime/graph_diff.h"

#include "tests/check.h"
#include "tests/composed.h"
#include "tests/folders.h"

#include <errno.h>

#define ALONE_NS 132072 /* all-reduce of 32768 floats by two: 2 * 65536 + 1000 ns */

static const struct crystal_compose_pass first_pass;

/* An all-reduce and the wait for it. */
static void reduce(struct job *j, uint16_t comm, uint64_t count, uint64_t took_ns)
{
    uint64_t record = crystal_trace_count(j->trace);

    job_coll(j, CRYSTAL_FUNC_ALLREDUCE, comm, count);
    job_done(j, record, j->now_ns, j->now_ns + took_ns);
    job_sync(j, comm, took_ns);
}

/* Ranks 0 and 1 of tp=2,dp=2. first_ns: computation before the first all-reduce, by
 * iteration; tp_ns: what that takes. */
static void rank(struct job *j, const char *folder, uint32_t lrank,
                 const uint64_t *first_ns, uint64_t second_ns, uint64_t tp_ns,
                 uint64_t count)
{
    job_rank(j, folder, lrank);
    job_comm(j, "tp", lrank, 2);
    job_comm(j, lrank ? "dp1" : "dp0", 0, 2);
    job_synchronise(j);
    for (uint64_t i = 0; i < 3; i++) {
        job_hint(j, i);
        j->now_ns += first_ns[i];
        reduce(j, 0, 32768, tp_ns);
        j->now_ns += second_ns;
        reduce(j, 1, count, 1000);
    }
    job_hint(j, 3);
    job_rank_end(j);
}

static void capture(struct job *j)
{
    const uint64_t none[] = {0, 0, 0};

    job_begin(j, 4, "tp=2,dp=2", "0-1", "0-1");
    job_text(j, "comms.tab", "tp\t2\t0-1\ndp0\t2\t0,2\ndp1\t2\t1,3\n");
    for (uint32_t r = 0; r < 2; r++)
        rank(j, "ranks", r, none, 0, 5, 32768);
    JOB_MUST(crystal_graph_build(j->dir, &job_err));
}

static const uint64_t first0[] = {99999, 1000, 8000}, first1[] = {5000, 5000, 5000};

static void plan(struct job *j)
{
    /* both ranks reach their common all-reduce together but for first_ns; it ends 1400
     * ns later than its messages need */
    rank(j, "plan", 0, first0, 4000, ALONE_NS + 1400, 32768);
    rank(j, "plan", 1, first1, 2000, ALONE_NS + 1400, 32768);
}

/* What the net plugin of a rank saw: all calls, by tree with LL, in any order. */
static void saw(const struct job *j, uint32_t lrank, uint8_t func)
{
    struct crystal_run_record records[6];

    for (uint64_t i = 0; i < 6; i++)
        records[5 - i] = (struct crystal_run_record){
            .order = i,
            .func = func,
            .nranks = 2,
            .way = CRYSTAL_OP_WAY(i % 2 ? CRYSTAL_OP_ALGO_RING : CRYSTAL_OP_ALGO_TREE,
                                  CRYSTAL_OP_PROTO_LL)};
    job_saw(j, lrank, records, 6);
}

/* The nth instruction of a kind. */
static uint32_t instr_of(const struct crystal_program *p, enum crystal_op_kind kind,
                         uint32_t nth)
{
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (p->instrs[i].kind == kind && nth-- == 0)
            return i;
    return UINT32_MAX;
}

static void measures_and_composes(void)
{
    const struct crystal_profile_op *ops;
    const struct crystal_profile_head *head;
    struct crystal_program *programs[2];
    struct crystal_graph *g;
    struct crystal_profile *p;
    char path[160];
    struct job j;
    uint32_t tp, dp;

    capture(&j);
    plan(&j);
    p = job_composed(&j, &first_pass);
    job_path(&j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    for (uint32_t r = 0; r < 2; r++)
        programs[r] = crystal_program_create(g, r, &job_err);
    JOB_MUST(!programs[0] || !programs[1]);
    CHECK_EQ(crystal_profile_check(p, g, programs, NULL), 0);
    head = crystal_profile_head(p);
    CHECK_EQ(head->rep_count, 2);
    CHECK_EQ(head->lrank_count, 4);
    CHECK_EQ(head->iteration_count, 2);
    CHECK_EQ(head->measured_count, 2);
    CHECK_EQ(head->overhead_origin, CRYSTAL_ORIGIN_MEASURED);
    CHECK_EQ(head->overhead_sample_count, 2);
    /* the later rank's end counts: 1400 ns in two steps */
    CHECK_EQ(head->overhead_ns, 700);
    CHECK_EQ(crystal_profile_wire(p).bytes_per_s, 1000000000);
    CHECK_EQ(crystal_profile_rep(p, 0)->sample_count, 2);
    CHECK_EQ(crystal_profile_rep(p, 0)->origin, CRYSTAL_ORIGIN_MEASURED);
    tp = instr_of(programs[0], CRYSTAL_OP_COLL, 0);
    dp = instr_of(programs[0], CRYSTAL_OP_COLL, 1);
    ops = crystal_profile_ops(p, 0);
    CHECK_EQ(ops[tp].gap_ns, 4500);
    CHECK_EQ(ops[tp].gap_p10_ns, 1000);
    CHECK_EQ(ops[tp].gap_p90_ns, 8000);
    CHECK_EQ(ops[tp].transfer_ns, ALONE_NS + 1400);
    CHECK_EQ(ops[dp].gap_ns, 4000);
    CHECK_EQ(ops[dp].transfer_ns, 1000);
    CHECK_EQ(ops[dp].composed_ns, ALONE_NS + 700);
    CHECK_EQ(crystal_profile_ops(p, 1)[tp].gap_ns, 5000);
    /* rank 0 begins 2000 ns after rank 1, so 4500 + 2000 against 5000 decide the first
     * all-reduce; rank 1 then needs 2000 more, and both transfers */
    for (uint32_t r = 0; r < 4; r++) {
        const struct crystal_profile_iteration *it = crystal_profile_iteration(p, r);

        CHECK_EQ(it->mean_ns, 8500 + 2 * (ALONE_NS + 700));
        CHECK_EQ(it->p10_ns, 7000 + 2 * (ALONE_NS + 700));
        CHECK_EQ(it->p90_ns, 12000 + 2 * (ALONE_NS + 700));
    }
    for (uint32_t r = 0; r < 2; r++)
        crystal_program_destroy(programs[r]);
    crystal_graph_close(g);
    crystal_profile_close(p);
    job_end(&j);
}

/* A wait more or less is no other program; its computation is kept. */
static void waits_may_differ(void)
{
    struct crystal_profile *p;
    const struct crystal_profile_op *ops;
    struct job j;
    uint64_t sum = 0;

    capture(&j);
    rank(&j, "plan", 1, first1, 2000, ALONE_NS, 32768);
    job_rank(&j, "plan", 0);
    job_comm(&j, "tp", 0, 2);
    job_comm(&j, "dp0", 0, 2);
    for (uint64_t i = 0; i < 3; i++) {
        job_hint(&j, i);
        j.now_ns += 100;
        job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 32768);
        j.now_ns += 20;
        job_sync(&j, 0, 777);
        j.now_ns += 3;
        job_sync(&j, 0, 777);
        j.now_ns += 30;
        job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 1, 32768);
        j.now_ns += 5;
    }
    job_hint(&j, 3);
    job_rank_end(&j);
    p = job_composed(&j, &first_pass);
    ops = crystal_profile_ops(p, 0);
    for (uint32_t i = 0; i < crystal_profile_rep(p, 0)->instr_count; i++)
        sum += ops[i].gap_ns;
    CHECK_EQ(sum, 100 + 20 + 3 + 30 + 5);
    crystal_profile_close(p);
    job_end(&j);
}

/* A rank whose GPU computes in front of each iteration's first all-reduce, on its
 * stream; the recorder learns of it later. */
static void worker(struct job *j, const char *folder, uint32_t lrank,
                   const uint64_t *work_ns)
{
    job_rank(j, folder, lrank);
    job_comm(j, "tp", lrank, 2);
    job_comm(j, lrank ? "dp1" : "dp0", 0, 2);
    job_synchronise(j);
    for (uint64_t i = 0; i < 3; i++) {
        uint32_t record = (uint32_t)crystal_trace_count(j->trace);

        job_hint(j, i);
        reduce(j, 0, 32768, ALONE_NS + 1400);
        j->now_ns += 4000;
        reduce(j, 1, 32768, 1000);
        for (uint64_t half = 0; work_ns && half < 2; half++)
            job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_WORK,
                                          .stream = 1,
                                          .aux = 1,
                                          .peer = record,
                                          .value = work_ns[i] / 2});
    }
    job_hint(j, 3);
    job_rank_end(j);
}

/* The device's work is in the graph as it was captured, in the profile as plan has
 * measured it, and in the composed iterations. */
static void work_of_the_device(void)
{
    const uint64_t captured[] = {9000, 9000, 500}, planned[] = {9000, 700, 900};
    struct crystal_program *program;
    struct crystal_profile *p;
    struct crystal_graph *g;
    uint32_t kernel;
    char path[160];
    struct job j;

    job_begin(&j, 4, "tp=2,dp=2", "0-1", "0-1");
    job_text(&j, "comms.tab", "tp\t2\t0-1\ndp0\t2\t0,2\ndp1\t2\t1,3\n");
    for (uint32_t r = 0; r < 2; r++)
        worker(&j, "ranks", r, captured);
    JOB_MUST(crystal_graph_build(j.dir, &job_err));
    for (uint32_t r = 0; r < 2; r++)
        worker(&j, "plan", r, planned);
    p = job_composed(&j, &first_pass);
    job_path(&j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    program = crystal_program_create(g, 0, &job_err);
    JOB_MUST(!program);
    kernel = instr_of(program, CRYSTAL_OP_KERNEL, 0);
    CHECK_EQ(instr_of(program, CRYSTAL_OP_KERNEL, 1), UINT32_MAX);
    CHECK_EQ(program->instrs[kernel].count, 500);
    CHECK_EQ(program->instrs[kernel + 1].kind, CRYSTAL_OP_COLL);
    CHECK_EQ(program->instrs[kernel + 1].stream, program->instrs[kernel].stream);
    CHECK_EQ(crystal_profile_ops(p, 0)[kernel].transfer_ns, 800);
    CHECK_EQ(crystal_profile_ops(p, 0)[kernel].gap_ns, 0);
    for (uint32_t r = 0; r < 4; r++)
        CHECK_EQ(crystal_profile_iteration(p, r)->mean_ns,
                 800 + 4000 + 2 * (ALONE_NS + 700));
    crystal_profile_tell(p, (struct crystal_program *[]){program, program});
    CHECK_EQ(program->instrs[kernel].count, 800);
    crystal_profile_close(p);

    /* a second pass that measures none has that of the first; 1400 ns are software's */
    for (uint32_t r = 0; r < 2; r++)
        worker(&j, "plan", r, NULL);
    p = job_composed(&j, &(struct crystal_compose_pass){
                             .before_count = 1, .before_mean_ns = 1, .has_device = 1});
    CHECK_EQ(crystal_profile_ops(p, 0)[kernel].transfer_ns, 800);
    CHECK_EQ(crystal_profile_ops(p, 0)[kernel].transfer_p90_ns, 900);
    for (uint32_t r = 0; r < 4; r++)
        CHECK_EQ(crystal_profile_iteration(p, r)->mean_ns,
                 800 + 4000 + 2 * ALONE_NS + 1400);
    crystal_program_destroy(program);
    crystal_graph_close(g);
    crystal_profile_close(p);
    job_end(&j);
}

/* Two captures never measure the same; they are told apart by their calls alone. */
static void measured_work_is_no_difference(void)
{
    const uint64_t captured[2][3] = {{9000, 9000, 500}, {7000, 0, 8000}};
    struct crystal_graph *g[2];
    char path[160], text[128] = "";
    struct job j;
    FILE *out = tmpfile();

    JOB_MUST(!out);
    for (uint32_t k = 0; k < 2; k++) {
        job_begin(&j, 4, "tp=2,dp=2", "0-1", "0-1");
        job_text(&j, "comms.tab", "tp\t2\t0-1\ndp0\t2\t0,2\ndp1\t2\t1,3\n");
        for (uint32_t r = 0; r < 2; r++)
            worker(&j, "ranks", r, captured[k]);
        JOB_MUST(crystal_graph_build(j.dir, &job_err));
        job_path(&j, path, sizeof path, "job.graph");
        g[k] = crystal_graph_open(path, &job_err);
        JOB_MUST(!g[k]);
        job_end(&j);
    }
    CHECK_EQ(crystal_graph_diff(out, g[0], g[1], &job_err), 0);
    rewind(out);
    CHECK(fgets(text, sizeof text, out) != NULL);
    CHECK_STR(text, "4 ranks do the same in both\n");
    (void)fclose(out);
    crystal_graph_close(g[0]);
    crystal_graph_close(g[1]);
}

/* What the sandbox has no part in, another slice measures. */
static void measures_in_slices(void)
{
    const uint64_t captured[] = {70, 60, 60}, second[] = {70, 40, 40};
    struct crystal_profile *p;
    struct job j;
    char path[160];

    capture(&j);
    for (uint32_t r = 0; r < 2; r++)
        rank(&j, "ranks", r, captured, 11, 5, 32768);
    JOB_MUST(crystal_graph_build(j.dir, &job_err));
    j.layout.sandbox_count = j.layout.ranks_per_node = 1;
    job_path(&j, path, sizeof path, "layout.yaml");
    JOB_MUST(crystal_layout_write(path, &j.layout, &job_err));
    rank(&j, "plan", 0, first0, 4000, ALONE_NS, 32768);
    rank(&j, "plan", 1, second, 11, 5, 32768);
    p = job_composed(&j, &first_pass);
    CHECK_EQ(crystal_profile_rep(p, 0)->origin, CRYSTAL_ORIGIN_MEASURED);
    CHECK_EQ(crystal_profile_rep(p, 1)->origin, CRYSTAL_ORIGIN_MEASURED);
    CHECK_EQ(crystal_profile_head(p)->measured_count, 2);
    /* no collective lies within one slice */
    CHECK_EQ(crystal_profile_head(p)->overhead_origin, CRYSTAL_ORIGIN_MODELLED);
    CHECK_EQ(crystal_profile_head(p)->overhead_ns, 0);
    CHECK_EQ(crystal_profile_ops(p, 1)[0].gap_ns, 40);
    crystal_profile_close(p);
    job_end(&j);
}

/* Collectives of different length tell the cost of messages from that of operations. */
static void tells_messages_from_operations(void)
{
    struct crystal_profile *p;
    struct job j;

    job_begin(&j, 4, NULL, "0-3", "0-3");
    job_text(&j, "comms.tab", "all\t4\t0-3\na\t2\t0-1\nb\t2\t2-3\n");
    for (int plan = 0; plan < 2; plan++)
        for (uint32_t r = 0; r < 4; r++) {
            job_rank(&j, plan ? "plan" : "ranks", r);
            job_comm(&j, "all", r, 4);
            job_comm(&j, r < 2 ? "a" : "b", r % 2, 2);
            job_synchronise(&j);
            for (uint64_t i = 0; i < 3; i++) {
                /* 6 steps of 32768 + 1000 ns, and 2 steps as above; 300 ns a step and
                 * 5000 ns an operation more */
                reduce(&j, 0, 32768, 6 * 33768 + 6 * 300 + 5000);
                reduce(&j, 1, 32768, ALONE_NS + 2 * 300 + 5000);
                job_hint(&j, i);
            }
            job_rank_end(&j);
            if (!plan && r == 3)
                JOB_MUST(crystal_graph_build(j.dir, &job_err));
        }
    p = job_composed(&j, &first_pass);
    CHECK_EQ(crystal_profile_head(p)->overhead_ns, 300);
    CHECK_EQ(crystal_profile_head(p)->op_overhead_ns, 5000);
    CHECK_EQ(crystal_profile_head(p)->overhead_sample_count, 2 + 4);
    /* the ring of two is bound by the NIC, so only its last message's cost shows */
    CHECK_EQ(crystal_profile_iteration(p, 2)->mean_ns,
             6 * 33768 + 6 * 300 + 5000 + ALONE_NS + 300 + 5000);
    crystal_profile_close(p);
    job_end(&j);
}

static void refuse(const struct job *j, const char *part)
{
    struct crystal_error err = {0};

    CHECK(crystal_plan_compose(j->dir, NULL, &first_pass, &err) < 0);
    CHECK_HAS(err.text, part);
}

static void refuses_what_does_not_fit(void)
{
    struct crystal_error err = {0};
    struct crystal_program *programs[2];
    struct crystal_graph *g;
    struct crystal_profile *p;
    struct job j;
    char path[160];

    capture(&j);
    refuse(&j, "plan/0.trace");
    plan(&j);
    p = job_composed(&j, &first_pass);

    /* another program */
    job_rank(&j, "plan", 0);
    job_comm(&j, "tp", 0, 2);
    job_comm(&j, "dp0", 0, 2);
    for (uint64_t i = 0; i < 3; i++) {
        job_coll(&j, CRYSTAL_FUNC_BROADCAST, 0, 32768);
        job_hint(&j, i);
    }
    job_rank_end(&j);
    refuse(&j,
           "rank 0: the program did not call what it called during capture (record ");
    CHECK_EQ(crystal_plan_compose(j.dir, NULL, &first_pass, NULL), -ESTALE);

    /* nothing that repeats */
    job_rank(&j, "plan", 0);
    job_rank_end(&j);
    refuse(&j, "no repeating iterations; run 'scrystal plan' again with more of them");

    /* another fingerprint in the trace */
    j.layout.fingerprint++;
    plan(&j);
    j.layout.fingerprint--;
    refuse(&j, "plan/0.trace: of another rank, program or layout; run 'scrystal plan' "
               "again");

    /* a newer capture */
    plan(&j);
    rank(&j, "ranks", 1, first1, 0, 7, 32768);
    refuse(&j, "job.graph: made from other traces than those in ranks/; run 'scrystal "
               "graph' and 'scrystal plan' again");
    JOB_MUST(crystal_graph_build(j.dir, &job_err));
    job_path(&j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    for (uint32_t r = 0; r < 2; r++)
        programs[r] = crystal_program_create(g, r, &job_err);
    CHECK_EQ(crystal_profile_check(p, g, programs, &err), -ESTALE);
    CHECK_STR(err.text,
              "job.profile was made for another job.graph; run 'scrystal plan' "
              "again");
    for (uint32_t r = 0; r < 2; r++)
        crystal_program_destroy(programs[r]);
    crystal_graph_close(g);
    crystal_profile_close(p);

    /* another layout */
    j.layout.fingerprint++;
    job_path(&j, path, sizeof path, "layout.yaml");
    JOB_MUST(crystal_layout_write(path, &j.layout, &job_err));
    refuse(&j,
           "job.graph: made for another program or layout; run 'scrystal capture' and "
           "'scrystal graph' again");
    job_end(&j);
}

static void refuses_every_cut(void)
{
    static unsigned char bytes[1 << 16];
    char path[160];
    struct job j;
    size_t count;
    FILE *file;

    capture(&j);
    plan(&j);
    crystal_profile_close(job_composed(&j, &first_pass));
    job_path(&j, path, sizeof path, "job.profile");
    file = fopen(path, "rb");
    JOB_MUST(!file);
    count = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    for (size_t cut = 0; cut < count; cut++) {
        file = fopen(path, "wb");
        JOB_MUST(!file || fwrite(bytes, 1, cut, file) != cut || fclose(file) != 0);
        CHECK(!crystal_profile_open(path, NULL));
    }
    job_end(&j);
}

/* The bytes of all versions are frozen: the golden files are still read.
 * CRYSTAL_TEST_UPDATE=1 writes the newest one anew. */
static void golden(void)
{
    const char *srcdir = source_folder();
    struct crystal_profile *p;
    char path[4096];

    for (int version = 1; version <= CRYSTAL_PROFILE_VERSION; version++) {
        (void)snprintf(path, sizeof path, "%s/tests/data/profile-v%d", srcdir, version);
        if (version == CRYSTAL_PROFILE_VERSION && getenv("CRYSTAL_TEST_UPDATE")) {
            char command[4400];
            struct job j;

            capture(&j);
            plan(&j);
            crystal_profile_close(job_composed(&j, &first_pass));
            (void)snprintf(command, sizeof command, "cp '%s/job.profile' '%s'", j.dir,
                           path);
            JOB_MUST(system(command) != 0);
            job_end(&j);
        }
        p = crystal_profile_open(path, &job_err);
        JOB_MUST(!p);
        CHECK_EQ(crystal_profile_head(p)->overhead_ns, 700);
        CHECK_EQ(crystal_profile_rep(p, 1)->lrank, 1);
        CHECK_EQ(crystal_profile_iteration(p, 3)->p90_ns, 12000 + 2 * (ALONE_NS + 700));
        CHECK_EQ(crystal_profile_ops(p, 0)[0].way, 0);
        crystal_profile_close(p);
    }
}

/* The profile tells how collectives were done, and they are composed so: LL takes twice
 * the bytes. Records of other calls tell nothing. */
static void keeps_ways(void)
{
    struct crystal_program *program;
    struct crystal_profile *p;
    struct crystal_graph *g;
    uint64_t composed_ns[2];
    char path[160];
    struct job j;
    uint32_t tp, dp;

    capture(&j);
    plan(&j);
    job_path(&j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    program = crystal_program_create(g, 0, &job_err);
    JOB_MUST(!program);
    tp = instr_of(program, CRYSTAL_OP_COLL, 0);
    dp = instr_of(program, CRYSTAL_OP_COLL, 1);
    for (int fits = 0; fits < 2; fits++) {
        saw(&j, 0, fits ? CRYSTAL_FUNC_ALLREDUCE : CRYSTAL_FUNC_BROADCAST);
        p = job_composed(&j, &first_pass);
        CHECK_EQ(crystal_profile_ops(p, 0)[tp].way,
                 fits ? CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_TREE, CRYSTAL_OP_PROTO_LL) : 0);
        CHECK_EQ(crystal_profile_ops(p, 0)[dp].way,
                 fits ? CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_RING, CRYSTAL_OP_PROTO_LL) : 0);
        composed_ns[fits] = crystal_profile_ops(p, 0)[dp].composed_ns;
        if (fits) {
            crystal_profile_tell(p,
                                 (struct crystal_program *const[]){program, program});
            CHECK_EQ(program->instrs[tp].flags & CRYSTAL_OP_WAY_MASK,
                     CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_TREE, CRYSTAL_OP_PROTO_LL));
        }
        crystal_profile_close(p);
    }
    CHECK(composed_ns[1] > composed_ns[0] * 3 / 2);
    crystal_program_destroy(program);
    crystal_graph_close(g);
    job_end(&j);
}

static void spreads(void)
{
    uint64_t values[] = {10, UINT64_MAX, 3, 1, 2, 4, 5, 6, 7, 8, 9}, mean, p10, p90;

    CHECK_EQ(crystal_measure_spread(values, 11, &mean, &p10, &p90), 10);
    CHECK_EQ(mean, 6); /* 5.5 rounded */
    CHECK_EQ(p10, 1);
    CHECK_EQ(p90, 10);
    CHECK_EQ(crystal_measure_spread(values, 0, &mean, &p10, &p90), 0);
    CHECK_EQ(mean, 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(spreads);
    CHECK_RUN(measures_and_composes);
    CHECK_RUN(waits_may_differ);
    CHECK_RUN(work_of_the_device);
    CHECK_RUN(measured_work_is_no_difference);
    CHECK_RUN(tells_messages_from_operations);
    CHECK_RUN(measures_in_slices);
    CHECK_RUN(refuses_what_does_not_fit);
    CHECK_RUN(refuses_every_cut);
    CHECK_RUN(keeps_ways);
    CHECK_RUN(golden);
    return check_end();
}
