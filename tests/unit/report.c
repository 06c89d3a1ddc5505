/* The report: exact text and sound JSON from a hand-made job, and refusals that name
 * the stage to run again.
 */
#include "config.h"

#include "replay/report.h"
#include "runtime/graph.h"

#include "tests/check.h"
#include "tests/composed.h"
#include "tests/folders.h"

#include <errno.h>

#define COMMS "all\t4\t0-3\ntp\t2\t0-1\ndp0\t2\t0,2\ndp1\t2\t1,3\n"

/* Calls before the iterations: a broadcast, and with two an all-reduce behind it; what
 * the runs do. */
static bool begins_with_two;
static uint8_t begins[2] = {CRYSTAL_FUNC_BROADCAST, CRYSTAL_FUNC_ALLREDUCE};

/* What the all-reduce over tp takes more than the wire: 500 ns a step. */
static uint64_t tp_cost_ns = 1000;

/* An all-reduce and the wait for it. */
static void reduce(struct job *j, uint16_t comm, uint64_t took_ns)
{
    uint64_t record = crystal_trace_count(j->trace);

    job_coll(j, CRYSTAL_FUNC_ALLREDUCE, comm, 32768);
    job_done(j, record, j->now_ns, j->now_ns + took_ns);
    job_sync(j, comm, took_ns);
}

/* Ranks 0 and 1 of tp=2,dp=2: 10 ms of computation, tp, a message to the next rank of
 * all, 5 ms, dp. */
static void rank(struct job *j, const char *folder, uint32_t lrank)
{
    job_rank(j, folder, lrank);
    job_comm(j, "all", lrank, 4);
    job_comm(j, "tp", lrank, 2);
    job_comm(j, lrank ? "dp1" : "dp0", 0, 2);
    job_synchronise(j);
    job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 1);
    if (begins_with_two)
        job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 1);
    for (uint64_t i = 0; i < 3; i++) {
        job_hint(j, i);
        j->now_ns += 10000000;
        reduce(j, 1, 132072 + tp_cost_ns);
        if (lrank)
            job_p2p(j, 0, 0, 0, 256);
        else
            job_p2p(j, 1, 0, 1, 256);
        job_sync(j, 0, 3000);
        j->now_ns += 5000000;
        reduce(j, 2, 1000);
    }
    job_hint(j, 3);
    job_rank_end(j);
}

static uint32_t run_version = CRYSTAL_RUN_VERSION;

/* One rank's run: 4 iterations of the plan's 15.27 ms and some more each, then an end
 * that is none of theirs. */
static void run(const struct job *j, const char *folder, uint32_t lrank,
                uint64_t more_ns)
{
    struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct crystal_run_record r = {.dtype = ncclFloat32, .crank = lrank, .nranks = 4};
    struct crystal_block_writer *w;
    uint64_t now_ns = 7000000000;
    char path[160];

    kind.version = run_version;
    job_path(j, path, sizeof path, "%s/%u.run", folder, lrank);
    w = crystal_block_create(path, &kind, lrank, j->layout.fingerprint, &job_err);
    JOB_MUST(!w);
    r.func = begins[0];
    r.bytes = 4;
    r.api_ns = r.arrive_ns = r.end_ns = now_ns;
    crystal_block_append(w, &r);
    if (begins_with_two) {
        r.order++;
        r.func = begins[1];
        crystal_block_append(w, &r);
    }
    for (uint64_t i = 0; i < 5; i++) {
        now_ns += 10000000;
        r = (struct crystal_run_record){.order = ++r.order,
                                        .func = CRYSTAL_FUNC_ALLREDUCE,
                                        .nranks = 2,
                                        .crank = lrank,
                                        .bytes = 131072,
                                        .api_ns = now_ns,
                                        .arrive_ns = now_ns + 1000,
                                        .end_ns = now_ns + 134000 + more_ns};
        crystal_block_append(w, &r);
        r.order++;
        r.func = lrank ? CRYSTAL_FUNC_RECV : CRYSTAL_FUNC_SEND;
        r.nranks = 4;
        r.bytes = 1024;
        r.arrive_ns = r.api_ns = r.end_ns;
        r.end_ns += 3000;
        crystal_block_append(w, &r);
        now_ns = r.end_ns + 5000000;
        r.order++;
        r.func = CRYSTAL_FUNC_ALLREDUCE;
        r.nranks = 2;
        r.crank = 0;
        r.bytes = 131072;
        r.flags = CRYSTAL_RUN_VIRTUAL | CRYSTAL_RUN_STANDIN;
        r.api_ns = r.arrive_ns = now_ns;
        r.end_ns = now_ns += 133000 + (i % 2) * 100000;
        r.waited_us = (uint32_t)(i % 2) * 90;
        crystal_block_append(w, &r);
    }
    r.order++;
    r.func = CRYSTAL_FUNC_BROADCAST;
    crystal_block_append(w, &r);
    JOB_MUST(crystal_block_close(w, &job_err));
    JOB_MUST(crystal_block_seal(path, &kind, &job_err));
}

static const char run_yaml[] =
    "version: 1\nmode: timed\ntimeline: finished\n"
    "wire:\n  kind: modelled\n  transport: host memory, no network\n"
    "  bytes_per_s: 1000000000\n  latency_ns: 1000\n  message_overhead_ns: 500\n"
    "counters:\n  standin_ops: 10\n  standin_bytes: 1310720\n  late_count: 3\n"
    "  late_max_ns: 456789\n  payload_late_count: 2\nfailure: \"\"\n";

static void make(struct job *j)
{
    char path[160];

    job_begin(j, 4, "tp=2,dp=2", "0-1", "0-1");
    job_planned(j, COMMS, rank);
    job_path(j, path, sizeof path, "runs");
    JOB_MUST(mkdir(path, 0700));
    for (int n = 1; n <= 2; n++) {
        char name[32];

        job_path(j, path, sizeof path, "runs/%03d", n);
        JOB_MUST(mkdir(path, 0700));
        for (uint32_t r = 0; r < 2; r++) {
            (void)snprintf(name, sizeof name, "runs/%03d", n);
            run(j, name, r, 100000 * (r + 1) * (unsigned)(3 - n));
        }
        (void)snprintf(name, sizeof name, "runs/%03d/run.yaml", n);
        job_text(j, name, run_yaml);
    }
    /* a run that has not ended does not count */
    job_path(j, path, sizeof path, "runs/003");
    JOB_MUST(mkdir(path, 0700));
}

static char *slurp(const char *path)
{
    static char bytes[1 << 16];
    FILE *in = fopen(path, "rb");
    size_t count;

    JOB_MUST(!in);
    count = fread(bytes, 1, sizeof bytes - 1, in);
    (void)fclose(in);
    bytes[count] = 0;
    return bytes;
}

static void golden(const struct job *j, const char *name, const char *data)
{
    const char *srcdir = source_folder();
    char path[160], golden_path[4096], *got, *want;

    (void)snprintf(golden_path, sizeof golden_path, "%s/tests/data/%s", srcdir, data);
    job_path(j, path, sizeof path, "%s", name);
    got = strdup(slurp(path));
    JOB_MUST(!got);
    if (getenv("CRYSTAL_TEST_UPDATE")) {
        FILE *out = fopen(golden_path, "w");

        JOB_MUST(!out || fputs(got, out) < 0 || fclose(out) != 0);
    }
    want = slurp(golden_path);
    if (strcmp(got, want) != 0)
        printf("# %s is\n%s", name, got);
    CHECK(strcmp(got, want) == 0);
    free(got);
}

static void writes_what_it_should(void)
{
    struct job j;

    make(&j);
    JOB_MUST(crystal_report_write(j.dir, &job_err));
    golden(&j, "report.txt", "report-plain.txt");
    golden(&j, "report.json", "report-plain.json");
    golden(&j, "report.html", "report-plain.html");
    golden(&j, "trace.json", "report-plain.trace.json");
    job_end(&j);
}

static int fits(uint8_t first, uint8_t second)
{
    struct job j;
    int code;

    begins_with_two = true;
    begins[0] = first;
    begins[1] = second;
    make(&j);
    code = crystal_report_fit(j.dir, "runs/002", &job_err);
    job_end(&j);
    begins_with_two = false;
    begins[0] = CRYSTAL_FUNC_BROADCAST;
    return code;
}

/* The first calls of pairs come from threads: what is before the iterations may come in
 * another order, but nothing else may. */
/* Runs of version 1 do not tell algorithms; else they are the same. */
static void reads_older_runs(void)
{
    run_version = 1;
    writes_what_it_should();
    run_version = CRYSTAL_RUN_VERSION;
}

static void first_calls_have_no_order(void)
{
    CHECK_EQ(fits(CRYSTAL_FUNC_BROADCAST, CRYSTAL_FUNC_ALLREDUCE), 0);
    CHECK_EQ(fits(CRYSTAL_FUNC_ALLREDUCE, CRYSTAL_FUNC_BROADCAST), 0);
    CHECK_EQ(fits(CRYSTAL_FUNC_BROADCAST, CRYSTAL_FUNC_BROADCAST), -ESTALE);
    CHECK_HAS(job_err.text, "rank 0: call 2 of 18 is another one than was captured");
    CHECK_EQ(fits(CRYSTAL_FUNC_REDUCE, CRYSTAL_FUNC_BROADCAST), -ESTALE);
    CHECK_HAS(job_err.text, "rank 0: call 1 of 18 is another one than was captured");
}

/* On a GPU operations have costs of their own: 1 ms in the all-reduce over tp, on top
 * of 132072 ns, and nothing in the others, which took less than the wire says. They are
 * transfer, no waiting. */
static void tells_software_by_operation(void)
{
    static const struct crystal_compose_pass on_gpu = {.has_device = 1};
    struct job j;
    char path[160];

    tp_cost_ns = 1000000;
    make(&j);
    JOB_MUST(crystal_plan_compose(j.dir, NULL, &on_gpu, &job_err));
    JOB_MUST(crystal_report_write(j.dir, &job_err));
    job_path(&j, path, sizeof path, "report.txt");
    CHECK_HAS(
        slurp(path),
        "software measured for each operation, 1.00 ms in an iteration of rank 0.");
    CHECK(!strstr(slurp(path), " us a message"));
    job_end(&j);
    tp_cost_ns = 1000;
}

static void text_fits_a_terminal(void)
{
    struct job j;
    char path[160];
    size_t column = 0;

    make(&j);
    JOB_MUST(crystal_report_write(j.dir, &job_err));
    job_path(&j, path, sizeof path, "report.txt");
    for (const char *c = slurp(path); *c; c++) {
        column = *c == '\n' ? 0 : column + 1;
        CHECK(column <= 80);
    }
    job_end(&j);
}

static void tells_of_a_failed_run(void)
{
    struct job j;
    char path[160];

    make(&j);
    job_text(&j, "runs/003/run.yaml",
             "timeline: stuck\nfailure: \"rank 3 was killed by signal 9\"\n");
    JOB_MUST(crystal_report_write(j.dir, &job_err));
    job_path(&j, path, sizeof path, "report.txt");
    CHECK(strncmp(slurp(path),
                  "test: 4 ranks on 2: the run failed: rank 3 was killed by "
                  "signal 9\n",
                  65) == 0);
    CHECK_HAS(slurp(path), "- Rank 1 left no record of this run.\n");
    CHECK_HAS(slurp(path), "- Sandbox ranks waited for virtual ranks that never came");
    job_end(&j);
}

static void refuse(const struct job *j, int code, const char *part)
{
    struct crystal_error err = {0};

    CHECK_EQ(crystal_report_write(j->dir, &err), code);
    CHECK_HAS(err.text, part);
}

/* run.yaml cut anywhere is refused: what it lacks would count as nothing. */
static void refuses_a_cut_run(void)
{
    struct job j;
    char part[sizeof run_yaml];

    make(&j);
    for (size_t bytes = 0; bytes < sizeof run_yaml - sizeof "failure: \"\"\n";
         bytes++) {
        memcpy(part, run_yaml, bytes);
        part[bytes] = 0;
        job_text(&j, "runs/002/run.yaml", part);
        refuse(&j, -EINVAL, "runs/002/run.yaml:");
    }
    job_text(&j, "runs/002/run.yaml", "");
    refuse(
        &j, -EINVAL,
        "runs/002/run.yaml: cut off; run 'scrystal emulate' again, or remove this run");
    job_end(&j);
}

static void refuses_other_parents(void)
{
    struct job j;
    char path[160];

    make(&j);
    j.layout.fingerprint++;
    run(&j, "runs/002", 1, 0);
    j.layout.fingerprint--;
    refuse(&j, -ESTALE,
           "runs/002/1.run: of another rank, program or layout; run 'scrystal emulate' "
           "again");
    run(&j, "runs/002", 1, 0);
    rank(&j, "ranks", 1);
    JOB_MUST(crystal_graph_build(j.dir, &job_err));
    refuse(&j, -ESTALE,
           "job.profile was made for another job.graph; run 'scrystal plan' again");
    job_path(&j, path, sizeof path, "job.profile");
    (void)unlink(path);
    refuse(&j, -EINVAL, "job.profile: not there yet; run 'scrystal plan' first");
    job_path(&j, path, sizeof path, "job.graph");
    (void)unlink(path);
    refuse(&j, -EINVAL, "job.graph: not there yet; run 'scrystal graph' first");
    job_end(&j);

    job_begin(&j, 4, "tp=2,dp=2", "0-1", "0-1");
    job_planned(&j, COMMS, rank);
    refuse(&j, -ENOENT, "runs: no finished run; run 'scrystal emulate' first");
    job_end(&j);
}

int main(void)
{
    check_begin();
    CHECK_RUN(writes_what_it_should);
    CHECK_RUN(reads_older_runs);
    CHECK_RUN(first_calls_have_no_order);
    CHECK_RUN(tells_software_by_operation);
    CHECK_RUN(text_fits_a_terminal);
    CHECK_RUN(tells_of_a_failed_run);
    CHECK_RUN(refuses_a_cut_run);
    CHECK_RUN(refuses_other_parents);
    return check_end();
}
