/* Plan and emulate with 4 sandbox ranks of 16 over hostccl, the net plugin and virtual
 * ranks: what the stages leave, whose exit code they give, and the emulate stage as
 * Slurm runs it: an agent without a program, tasks with its environment.
 */
#include "config.h"

#include "replay/run_record.h"
#include "runtime/blockfile.h"

#include "tests/by_hand.h"

#include <sys/stat.h>

#define OPTIONS "--elements 64 --compute-us 500"

static int exists(const char *name)
{
    char path[PATH_MAX + 64];

    (void)snprintf(path, sizeof path, "%s/%s", job_dir, name);
    return access(path, R_OK) == 0;
}

static void capture_and_graph(void)
{
    make_job("--iterations=3");
    CHECK_EQ(finish(start_stage("capture", "--iterations 8 " OPTIONS)), 0);
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
}

static void plan_needs_a_graph(void)
{
    make_job("--iterations=3");
    CHECK_EQ(finish(start_stage("plan", "--iterations 8 " OPTIONS)), 70);
    CHECK_HAS(output, "job.graph");
    nothing_is_left();
}

/* Every communication of a plan has its end. */
static void plan_measures(void)
{
    capture_and_graph();
    CHECK_EQ(finish(start_stage("plan", "--iterations 8 " OPTIONS)), 0);
    CHECK_HAS(output, "crystal: plan: 4 of 16 ranks\n");
    CHECK_HAS(output, "crystal: plan: pass 2 of at most 4, in the time of the one ");
    CHECK_HAS(output, "crystal: plan: measured 4 of 16 ranks, composed ");
    all_traces_are_sealed("plan");
    nothing_is_left();
    CHECK(exists("job.profile"));
    for (unsigned r = 0; r < LIVE; r++) {
        struct crystal_trace trace = {0};
        int ops = 0, done = 0, hints = 0;

        CHECK_EQ(read_trace("plan", r, &trace), 0);
        for (uint64_t i = 0; i < trace.op_count; i++) {
            uint8_t kind = trace.ops[i].kind;

            ops += kind == CRYSTAL_OP_COLL || kind == CRYSTAL_OP_SEND ||
                   kind == CRYSTAL_OP_RECV;
            done += kind == CRYSTAL_OP_DONE;
            hints += kind == CRYSTAL_OP_HINT;
        }
        /* int, 4 + 4 of 1f1b, allgather, reducescatter, 2 allreduce, alltoall */
        CHECK_EQ(ops, 4 * (1 + 8 + 2 + 2 + 4));
        CHECK_EQ(done, ops);
        CHECK_EQ(hints, 4);
        if (trace.op_count)
            CHECK_EQ(trace.ops[trace.op_count - 1].aux, 1);
        crystal_trace_fini(&trace);
    }
}

/* A replica of 8 ranks and a sandbox of 4: the other half runs as a slice of its own.
 */
static void plan_measures_in_slices(void)
{
    make_job("--iterations=3 --parallel=tp=2,pp=4,dp=2");
    CHECK_EQ(finish(start_stage("capture", "--pp 4 --iterations 8 " OPTIONS)), 0);
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
    CHECK_EQ(finish(start_stage("plan", "--pp 4 --iterations 8 " OPTIONS)), 0);
    CHECK_HAS(output, "crystal: plan: ranks 4-7, which the sandbox does not stand for "
                      "(1 of 1)\n");
    CHECK_HAS(output, "crystal: plan: measured 8 of 16 ranks, composed ");
    nothing_is_left();
    for (unsigned r = 0; r < 8; r++) {
        struct crystal_trace trace = {0};

        CHECK_EQ(read_trace("plan", r, &trace), 0);
        CHECK(trace.head.file_bytes != 0);
        crystal_trace_fini(&trace);
    }
    CHECK_EQ(finish(start_stage("emulate", "--pp 4 --iterations 3 " OPTIONS)), 0);
    CHECK_HAS(output, "rank 3 done\n");
    CHECK_EQ(finish(start_stage(
                 "plan", "--pp 4 --iterations 8 --fail exit --fail-rank 5 " OPTIONS)),
             70);
    CHECK_HAS(output, "crystal: plan: rank 5 ended with code 7; see ");
    nothing_is_left();
}

static void emulate_needs_a_profile(void)
{
    make_job("--iterations=3");
    CHECK_EQ(finish(start_stage("emulate", "--iterations 2 " OPTIONS)), 70);
    CHECK_HAS(output,
              "job.graph is missing; run the stages before it: scrystal capture, "
              "graph, plan\n");
    CHECK(!exists("runs/001"));
    capture_and_graph();
    CHECK_EQ(finish(start_stage("emulate", "--iterations 2 " OPTIONS)), 70);
    CHECK_HAS(output, "job.profile is missing");
    CHECK_EQ(finish(start_stage("plan", "--iterations 8 " OPTIONS)), 0);
}

static void runs_are_sealed(const char *sub)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;

    for (unsigned r = 0; r < LIVE; r++) {
        struct crystal_error err = {0};
        struct crystal_filehead head = {0};
        void *records = NULL;
        uint64_t count = 0;
        char path[PATH_MAX + 64];

        (void)snprintf(path, sizeof path, "%s/%s/%u.run", job_dir, sub, r);
        CHECK_EQ(crystal_block_read(path, &kind, &head, &records, &count, &err), 0);
        CHECK(head.file_bytes != 0);
        CHECK_EQ(count, 3 * 17); /* as in plan_measures, 3 iterations */
        free(records);
    }
}

static const char stand_ins[] =
    "crystal: emulate: values of virtual ranks are stand-ins, so times hold and losses "
    "do not; --live=all --payload=all for real ones\n";

static void emulate_runs_the_program(void)
{
    char path[PATH_MAX + 64];

    CHECK_EQ(finish(start_stage("emulate", "--iterations 3 " OPTIONS)), 0);
    for (unsigned r = 0; r < LIVE; r++) {
        char line[32];

        (void)snprintf(line, sizeof line, "rank %u done\n", r);
        CHECK_HAS(output, line); /* its output is the user's */
    }
    CHECK_HAS(output, stand_ins);
    nothing_is_left();
    runs_are_sealed("runs/001");
    (void)snprintf(path, sizeof path, "grep -q '^mode: timed$' %s/runs/001/run.yaml",
                   job_dir);
    CHECK_EQ(system(path), 0);
    CHECK(!exists("coord") && !exists("token"));
}

/* Files of two captures, and a capture that has gone. */
static void emulate_of_mixed_files(void)
{
    char sentence[PATH_MAX + 256];

    CHECK_EQ(finish(start("mv %s/job.graph %s/graph && mv %s/job.profile %s/profile",
                          job_dir, job_dir, job_dir, job_dir)),
             0);
    CHECK_EQ(finish(start_stage("capture", "--iterations 8 --elements 80")), 0);
    CHECK_EQ(finish(start("mv %s/graph %s/job.graph && mv %s/profile %s/job.profile",
                          job_dir, job_dir, job_dir, job_dir)),
             0);
    (void)snprintf(sentence, sizeof sentence,
                   "%s/job.graph: made from other traces than those in ranks/; run "
                   "'scrystal graph' and 'scrystal plan' again\n",
                   job_dir);
    CHECK_EQ(finish(start_stage("emulate", "--iterations 3 " OPTIONS)), 70);
    CHECK_HAS(output, sentence);
    CHECK_EQ(finish(start_stage("plan", "--iterations 8 " OPTIONS)), 70);
    CHECK_HAS(output, sentence);
    CHECK_EQ(finish(start("rm %s/ranks/2.trace", job_dir)), 0);
    (void)snprintf(sentence, sizeof sentence,
                   "%s/ranks/2.trace is missing; run 'scrystal capture' and what comes "
                   "behind it again\n",
                   job_dir);
    CHECK_EQ(finish(start_stage("emulate", "--iterations 3 " OPTIONS)), 70);
    CHECK_HAS(output, sentence);
    CHECK_EQ(finish(start_stage("plan", "--iterations 8 " OPTIONS)), 70);
    CHECK_HAS(output, sentence);
    nothing_is_left();
}

/* The program does well, but virtual ranks had nothing to do with it. */
static void emulate_of_another_program(void)
{
    static const char other[] = "this is not the captured job, run 'scrystal capture', "
                                "'graph' and 'plan' again for it\n";

    CHECK_EQ(finish(start("exec %s emulate --job %s -- true", scrystal, job_dir)), 5);
    CHECK_HAS(output, "crystal: emulate: rank 0 made no NCCL call; ");
    CHECK_HAS(output, other);
    CHECK_HAS(output, "crystal: emulate: report: ");
    CHECK(!strstr(output, stand_ins));
    nothing_is_left();
    /* another grid of the same size */
    CHECK_EQ(finish(start(
                 "exec %s emulate --job %s -- %s --tp 4 --pp 1 --iterations 3 " OPTIONS,
                 scrystal, job_dir, program)),
             5);
    CHECK_HAS(output, "rank 3 done\n");
    CHECK_HAS(output, "crystal: emulate: rank 0: call 2 of 39 is another one than was "
                      "captured; ");
    CHECK_HAS(output, other);
    /* the captured one, cut short in its first iteration */
    CHECK_EQ(finish(start_stage("emulate", "--iterations 1 --pattern int " OPTIONS)),
             0);
    nothing_is_left();
}

static void wait_for_file(const char *name)
{
    for (int i = 0; i < 6000 && !exists(name); i++)
        pause_ms(20);
    CHECK(exists(name));
}

/* Tasks of the program's step get DIR/agent.0.env and their own numbers. */
static void emulate_as_slurm_runs_it(void)
{
    struct stat st = {0};
    char path[PATH_MAX + 64];
    pid_t pid;

    (void)snprintf(path, sizeof path, "%s/agent.0.env", job_dir);
    (void)unlink(path);
    pid = start("%s coord --job %s & coord=$!\n"
                "while [ ! -e %s/coord ]; do sleep 0.02; done\n"
                "%s agent --job %s --stage emulate & agent=$!\n"
                "while [ ! -e %s ]; do sleep 0.02; done\n"
                "for r in 0 1 2 3; do (\n"
                "  while IFS= read -r line; do export \"$line\"; done <%s\n"
                "  RANK=$r CRYSTAL_LRANK=$r exec %s --tp 2 --pp 2 --iterations 3 %s\n"
                ") & tasks=\"$tasks $!\"; done\n"
                "for t in $tasks; do wait $t; codes=\"$codes $?\"; done\n"
                "echo task codes$codes\n"
                "%s coord --job %s --finish; echo finish code $?\n"
                "wait $agent; echo agent code $?; wait $coord; echo coord code $?\n",
                scrystal, job_dir, job_dir, scrystal, job_dir, path, path, program,
                OPTIONS, scrystal, job_dir);
    wait_for_file("agent.0.env");
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK_EQ(finish(pid), 0);
    CHECK_HAS(output, "task codes 0 0 0 0\n");
    CHECK_HAS(output, "finish code 0\n");
    CHECK_HAS(output, "agent code 0\n");
    CHECK_HAS(output, "coord code 0\n");
    nothing_is_left();
    runs_are_sealed("runs/002");
    CHECK(exists("runs/002/run.yaml"));
}

int main(void)
{
    char parent[] = "/tmp/crystal-stages.XXXXXX";

    check_begin();
    if (by_hand_begin(parent))
        return 1;
    CHECK_RUN(plan_needs_a_graph);
    CHECK_RUN(plan_measures);
    CHECK_RUN(plan_measures_in_slices);
    CHECK_RUN(emulate_needs_a_profile);
    CHECK_RUN(emulate_runs_the_program);
    CHECK_RUN(emulate_as_slurm_runs_it);
    CHECK_RUN(emulate_of_another_program);
    CHECK_RUN(emulate_of_mixed_files);
    by_hand_end(parent);
    return check_end();
}
