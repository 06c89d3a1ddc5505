/* All stages of a program whose steps repeat within themselves: what repeats is half a
 * step, its NVTX range says where a step begins.
 */
#include "config.h"

#include "runtime/graph.h"
#include "runtime/profile.h"

#include "tests/by_hand.h"

/* A stage of "rangeprog OPTIONS"; its exit code. */
static int stage(const char *settings, const char *name, const char *options)
{
    return finish(start("exec env %s %s %s --job %s -- %s %s", settings, scrystal, name,
                        job_dir, program, options));
}

static int graph(void)
{
    return finish(start("exec %s graph --job %s", scrystal, job_dir));
}

/* A job of 3 iterations; range NULL: the layout names none. */
static void make(const char *range)
{
    char options[PATH_MAX + 64] = "--iterations=3";

    if (range) {
        CHECK_EQ(finish(start("printf '{capture: {iteration_range: %s}}' >%s.yaml",
                              range, job_dir)),
                 0);
        (void)snprintf(options, sizeof options, "--iterations=3 --config=%s.yaml",
                       job_dir);
    }
    make_job(options);
}

/* The graph's iterations, and the all-reduces of the last one of each rank. */
static void graph_has(uint32_t iteration_count, uint64_t call_count)
{
    struct crystal_error err = {0};
    struct crystal_graph *g;
    char path[PATH_MAX + 16];

    (void)snprintf(path, sizeof path, "%s/job.graph", job_dir);
    g = crystal_graph_open(path, &err);
    CHECK_STR(err.text, "");
    for (uint32_t rep = 0; g && rep < LIVE; rep++) {
        uint32_t mark_count;
        uint64_t op_count, calls = 0;
        const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);
        const struct crystal_op *ops = crystal_graph_ops(g, rep, &op_count);

        CHECK_EQ(mark_count, iteration_count + 1);
        if (mark_count < 2)
            continue;
        for (uint64_t i = marks[mark_count - 2]; i < marks[mark_count - 1]; i++)
            calls += ops[i].kind == CRYSTAL_OP_COLL;
        CHECK_EQ(calls, call_count);
    }
    crystal_graph_close(g);
}

/* Each live rank's hints are these, of one kind, numbered from `first`. */
static void hints_are(const char *sub, enum crystal_hint hint, unsigned count,
                      uint64_t first)
{
    for (unsigned r = 0; r < LIVE; r++) {
        struct crystal_trace trace = {0};
        unsigned got = 0;

        CHECK_EQ(read_trace(sub, r, &trace), 0);
        for (uint64_t i = 0; i < trace.op_count; i++) {
            if (trace.ops[i].kind != CRYSTAL_OP_HINT)
                continue;
            CHECK_EQ(trace.ops[i].aux, hint);
            CHECK_EQ(trace.ops[i].value, first + got);
            got++;
        }
        CHECK_EQ(got, count);
        crystal_trace_fini(&trace);
    }
}

/* Stopped after the warm-up and three more halves. */
static void without_a_range_half_a_step_is_one(void)
{
    make(NULL);
    CHECK_EQ(stage("", "capture", "9"), 0);
    hints_are("ranks", CRYSTAL_HINT_STEP, 4, 1);
    CHECK_EQ(graph(), 0);
    graph_has(4, 1);
}

/* Stopped where the fifth step begins. */
static void with_it_a_step_is_one(void)
{
    char path[PATH_MAX + 16];
    struct crystal_error err = {0};
    struct crystal_profile *profile;

    make("step");
    CHECK_EQ(stage("", "capture", "9"), 0);
    hints_are("ranks", CRYSTAL_HINT_RANGE, 5, 0);
    CHECK_EQ(graph(), 0);
    graph_has(4, 2);
    CHECK_EQ(stage("", "plan", "9"), 0);
    hints_are("plan", CRYSTAL_HINT_RANGE, 5, 0);
    (void)snprintf(path, sizeof path, "%s/job.profile", job_dir);
    profile = crystal_profile_open(path, &err);
    CHECK_STR(err.text, "");
    if (profile)
        CHECK_EQ(crystal_profile_head(profile)->iteration_count, 3);
    crystal_profile_close(profile);
    CHECK_EQ(stage("", "emulate", "4"), 0);
    for (unsigned r = 0; r < LIVE; r++) {
        char line[32];

        (void)snprintf(line, sizeof line, "rank %u done\n", r);
        CHECK_HAS(output, line);
    }
    nothing_is_left();
}

/* The program's own end: all its steps count. */
static void all_steps_of_a_short_program_are_iterations(void)
{
    make("step");
    CHECK_EQ(stage("", "capture", "3"), 0);
    CHECK_EQ(graph(), 0);
    graph_has(3, 2);
}

static void ranges_that_do_not_fit_are_told(void)
{
    make("step");
    CHECK_EQ(stage("", "capture", "9 silent"), 0);
    CHECK_EQ(graph(), 70);
    CHECK_HAS(output,
              "no rank has begun the NVTX range 'step'; capture.iteration_range "
              "has to be a range that every step of every rank begins with: "
              "correct it or leave it out, then run layout, capture and graph "
              "again\n");
    CHECK_EQ(stage("", "capture", "3 some"), 0);
    CHECK_EQ(graph(), 70);
    CHECK_HAS(output, "rank 0 has begun the NVTX range 'step', rank 1 never");
    CHECK_EQ(stage("", "capture", "9 some"), 70);
    CHECK_HAS(output, "rank 1 waits in allreduce 8 of ");
    CHECK_HAS(output, "; all ranks have to begin the NVTX range 'step' "
                      "(capture.iteration_range) as often");
    CHECK_EQ(stage("", "capture", "40 silent"), 70);
    CHECK_HAS(output, ": its optimizer has stepped 23 times, and the NVTX range 'step' "
                      "has not begun; name one that every step begins with in "
                      "capture.iteration_range, or leave it out\n");
    CHECK_EQ(stage("", "capture", "9 validation"), 0);
    CHECK_EQ(graph(), 70);
    CHECK_HAS(output,
              "NVTX range 'step' of rank 0: iterations 3 and 4 of the range part "
              "at their call 3, which the latter has not");
}

/* What a profiler, say, has put there stays there. */
static void another_tool_is_left_alone(void)
{
    static const char tool[] = "NVTX_INJECTION64_PATH=/nowhere/libtool.so";

    make("step");
    CHECK_EQ(stage(tool, "capture", "9"), 0);
    CHECK_HAS(output, "crystal: capture: NVTX_INJECTION64_PATH is "
                      "'/nowhere/libtool.so', another tool, so that the range 'step' "
                      "(capture.iteration_range) cannot be seen, using what repeats\n");
    CHECK_EQ(graph(), 0);
    CHECK_HAS(output,
              "crystal: graph: rank 0 had another tool behind NVTX "
              "(NVTX_INJECTION64_PATH), so that its ranges are not known, using "
              "what repeats in all ranks\n");
    graph_has(4, 1);
    CHECK_EQ(stage("", "plan", "9"), 70);
    CHECK_HAS(output,
              "the NVTX range of capture.iteration_range was seen in plan only; "
              "run capture and graph again under the layout and "
              "NVTX_INJECTION64_PATH of plan\n");
    CHECK_EQ(stage(tool, "plan", "9"), 0);
    nothing_is_left();
}

/* As nsys does, which puts its own into its program's environment. */
static void a_wrapper_has_another_tool(void)
{
    make("step}, stage: {capture: {wrapper: env NVTX_INJECTION64_PATH=/nowhere}");
    CHECK_EQ(stage("", "capture", "9"), 0);
    CHECK_EQ(finish(start("exec cat %s/log/capture.3.log", job_dir)), 0);
    CHECK_HAS(output, "crystal: recorder: NVTX_INJECTION64_PATH is '/nowhere' in this "
                      "process, so that the range 'step' (capture.iteration_range) "
                      "cannot be seen, using what repeats\n");
    CHECK_EQ(graph(), 0);
    CHECK_HAS(output, "crystal: graph: rank 0 had another tool behind NVTX ");
    graph_has(4, 1);
}

int main(void)
{
    char parent[] = "/tmp/crystal-range.XXXXXX";

    check_begin();
    if (by_hand_begin(parent))
        return 1;
    (void)snprintf(program, sizeof program, "%s/tests/programs/rangeprog",
                   build_folder());
    CHECK_RUN(without_a_range_half_a_step_is_one);
    CHECK_RUN(with_it_a_step_is_one);
    CHECK_RUN(all_steps_of_a_short_program_are_iterations);
    CHECK_RUN(ranges_that_do_not_fit_are_told);
    CHECK_RUN(another_tool_is_left_alone);
    CHECK_RUN(a_wrapper_has_another_tool);
    by_hand_end(parent);
    return check_end();
}
