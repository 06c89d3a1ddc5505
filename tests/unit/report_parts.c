/* A job whose program calls scatter, all-to-all and gather, which were captured as
 * calls and whose run records are sends and receives: plan and report take them
 * together.
 */
#include "config.h"

#include "replay/report.h"

#include "tests/check.h"
#include "tests/composed.h"

#include <errno.h>

#define N          3
#define ROOT       1
#define ITERATIONS 4
#define WAY        CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_TREE, CRYSTAL_OP_PROTO_LL)

static const struct crystal_compose_pass first_pass;

/* A scatter, then in each of three iterations 1 ms, an all-to-all of 1 KiB, an
 * all-reduce of 4 bytes, an all-gather of nothing and a gather of 2 KiB. */
static void rank(struct job *j, const char *folder, uint32_t lrank)
{
    static const struct {
        enum crystal_func func;
        uint64_t count;
    } calls[] = {{CRYSTAL_FUNC_ALLTOALL, 256},
                 {CRYSTAL_FUNC_ALLREDUCE, 1},
                 {CRYSTAL_FUNC_ALLGATHER, 0},
                 {CRYSTAL_FUNC_GATHER, 512}};

    job_rank(j, folder, lrank);
    job_comm(j, "ep", lrank, N);
    job_synchronise(j);
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                  .func = CRYSTAL_FUNC_SCATTER,
                                  .dtype = ncclFloat32,
                                  .value = 4,
                                  .peer = ROOT,
                                  .stream = 1});
    for (uint64_t i = 0; i < 3; i++) {
        job_hint(j, i);
        j->now_ns += 1000000;
        for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
            uint64_t record = crystal_trace_count(j->trace);

            job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                          .func = (uint8_t)calls[k].func,
                                          .dtype = ncclFloat32,
                                          .value = calls[k].count,
                                          .peer = k == 3 ? ROOT : 0,
                                          .stream = 1});
            job_done(j, record, j->now_ns, j->now_ns + 20000);
            job_sync(j, 0, 20000);
        }
    }
    job_hint(j, 3);
    job_rank_end(j);
}

struct saw {
    struct crystal_run_record records[64 * (1 + ITERATIONS)];
    size_t count;
    uint64_t now_ns;
};

/* Begins 1 us behind its call and ends took_ns behind that. */
static void add(struct saw *s, uint8_t func, uint32_t lrank, uint64_t bytes,
                uint64_t took_ns)
{
    struct crystal_run_record *r = &s->records[s->count];

    *r = (struct crystal_run_record){.order = s->count++,
                                     .func = func,
                                     .nranks = N,
                                     .crank = lrank,
                                     .bytes = bytes,
                                     .api_ns = s->now_ns,
                                     .arrive_ns = s->now_ns + 1000,
                                     .end_ns = s->now_ns + 1000 + took_ns};
    if (func == CRYSTAL_FUNC_ALLREDUCE)
        r->way = WAY;
}

/* As NCCL calls: the message from and to crank k takes 10 (k + 1) us. */
static void run(struct saw *s, uint32_t lrank)
{
    memset(s, 0, sizeof *s);
    s->now_ns = 5000000000;
    for (uint32_t k = 0; lrank == ROOT && k < N; k++)
        add(s, CRYSTAL_FUNC_SEND, lrank, 16, 10000);
    add(s, CRYSTAL_FUNC_RECV, lrank, 16, 10000);
    for (int i = 0; i < ITERATIONS; i++) {
        s->now_ns += 1000000;
        for (uint32_t k = 0; k < N; k++) {
            add(s, CRYSTAL_FUNC_SEND, lrank, 1024, 10000 * (k + 1));
            add(s, CRYSTAL_FUNC_RECV, lrank, 1024, 10000 * (k + 1));
            s->records[s->count - 1].waited_us = 2 * k;
        }
        add(s, CRYSTAL_FUNC_ALLREDUCE, lrank, 4, 7000);
        add(s, CRYSTAL_FUNC_SEND, lrank, 2048, 15000);
        for (uint32_t k = 0; lrank == ROOT && k < N; k++)
            add(s, CRYSTAL_FUNC_RECV, lrank, 2048, 10000 * (k + 1));
    }
}

static void make(struct job *j)
{
    char path[160];

    job_begin(j, N, NULL, "0-2", "0-2");
    job_planned(j, "ep\t3\t0-2\n", rank);
    job_path(j, path, sizeof path, "runs");
    JOB_MUST(mkdir(path, 0700));
    job_path(j, path, sizeof path, "runs/001");
    JOB_MUST(mkdir(path, 0700));
    job_text(
        j, "runs/001/run.yaml",
        "version: 1\nmode: timed\ntimeline: finished\nwire:\n  bytes_per_s: "
        "1000000000\n  latency_ns: 1000\n  message_overhead_ns: 0\nfailure: \"\"\n");
}

/* The runs of all, cut records of rank 0 left out at its end, and one of its records
 * changed to func, which is not NONE. */
static int fits(const struct job *j, size_t cut, size_t at, uint8_t func)
{
    struct saw s;

    for (uint32_t r = 0; r < N; r++) {
        run(&s, r);
        if (func && !r)
            s.records[at].func = func;
        job_saw_in(j, "runs/001", r, s.records, s.count - (r ? 0 : cut));
    }
    return crystal_report_fit(j->dir, "runs/001", &job_err);
}

static void slurp(const struct job *j, const char *name, char *text, size_t text_bytes)
{
    char path[160];
    size_t count;
    FILE *in;

    job_path(j, path, sizeof path, "%s", name);
    in = fopen(path, "rb");
    JOB_MUST(!in);
    count = fread(text, 1, text_bytes - 1, in);
    text[count] = 0;
    (void)fclose(in);
}

/* Of four iterations the last has no end and the first is left out: 2 of each of the
 * three ranks. All-to-all takes as long as the message with crank 2, 30 us, and waits
 * for 4. A gather takes its root 30 us, the others 15: 20 in the mean. */
static void reports_calls(void)
{
    static char text[1 << 16];
    struct job j;

    make(&j);
    CHECK_EQ(fits(&j, 0, 0, CRYSTAL_FUNC_NONE), 0);
    JOB_MUST(crystal_report_write(j.dir, &job_err));
    slurp(&j, "report.json", text, sizeof text);
    CHECK_HAS(text, "\"iterations_measured\": 2,");
    CHECK_HAS(text, "\"function\": \"alltoall\", \"bytes\": 1024, "
                    "\"calls_per_iteration\": 1.000, \"time\": {\"origin\": "
                    "\"measured\", \"count\": 6, \"mean_ns\": 30000, ");
    CHECK_HAS(text, "\"waiting_for_virtual\": {\"origin\": \"measured\", \"mean_ns\": "
                    "4000}");
    CHECK_HAS(text, "\"function\": \"allreduce\", \"bytes\": 4, "
                    "\"calls_per_iteration\": 1.000, \"time\": {\"origin\": "
                    "\"measured\", \"count\": 6, \"mean_ns\": 7000, ");
    CHECK_HAS(text, "\"function\": \"gather\", \"bytes\": 2048, "
                    "\"calls_per_iteration\": 1.000, \"time\": {\"origin\": "
                    "\"measured\", \"count\": 6, \"mean_ns\": 20000, ");
    /* rank 0: a receive, then 3 calls in each of 4 iterations */
    CHECK_HAS(text, "\"operations\": 13}");
    CHECK(!strstr(text, "\"function\": \"send\""));
    CHECK(!strstr(text, "\"function\": \"recv\""));
    job_end(&j);
}

static void says_what_is_other(void)
{
    struct job j;

    make(&j);
    /* the run may end in the middle of a call */
    for (size_t cut = 1; cut < 8; cut++)
        CHECK_EQ(fits(&j, cut, 0, CRYSTAL_FUNC_NONE), 0);
    CHECK_EQ(fits(&j, 0, 0, CRYSTAL_FUNC_SEND), -ESTALE);
    CHECK_HAS(job_err.text, "rank 0: call 1 of ");
    CHECK_EQ(fits(&j, 0, 3, CRYSTAL_FUNC_RECV), -ESTALE); /* of the all-to-all */
    CHECK_HAS(job_err.text, "rank 0: call 2 of ");
    CHECK_EQ(fits(&j, 0, 8, CRYSTAL_FUNC_RECV), -ESTALE); /* of the gather */
    CHECK_HAS(job_err.text, "rank 0: call 4 of ");
    job_end(&j);
}

/* Plan hears how the all-reduce was done, beside the others' parts. */
static void plan_keeps_ways(void)
{
    struct crystal_graph *g;
    struct crystal_program *program;
    char path[160];
    struct saw s;
    struct job j;

    make(&j);
    job_path(&j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    program = crystal_program_create(g, 0, &job_err);
    JOB_MUST(!program);
    for (int is_other = 0; is_other < 2; is_other++) {
        struct crystal_profile *p;

        run(&s, 0);
        for (size_t i = 0; is_other && i < s.count; i++)
            if (s.records[i].bytes == 1024)
                s.records[i].func = CRYSTAL_FUNC_SEND;
        job_saw(&j, 0, s.records, s.count);
        p = job_composed(&j, &first_pass);
        for (uint32_t i = 0; i < program->instr_count; i++)
            CHECK_EQ(crystal_profile_ops(p, 0)[i].way,
                     program->instrs[i].func == CRYSTAL_FUNC_ALLREDUCE && !is_other
                         ? WAY
                         : 0);
        crystal_profile_close(p);
    }
    crystal_program_destroy(program);
    crystal_graph_close(g);
    job_end(&j);
}

int main(void)
{
    check_begin();
    CHECK_RUN(reports_calls);
    CHECK_RUN(says_what_is_other);
    CHECK_RUN(plan_keeps_ways);
    return check_end();
}
