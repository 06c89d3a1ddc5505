/* The plan stage: slices of ranks, the sandbox's nodes first, run one after the other,
 * on several nodes at the same time (commands/plan_nodes.h), against virtual ranks that
 * answer at once, with the recorder passing their calls through to
 * libcrystal-hostccl.so, on a GPU to the program's own NCCL. What comes out is how long
 * computation and transfers take by themselves, and from that the profile of all ranks.
 * Ranks that never wait for others compete more for the node than they will, so a
 * second pass measures again in the time that the first has composed, until two passes
 * agree. On a GPU only the first pass measures the device's work.
 */
#include "config.h"

#include "commands/plan_nodes.h"
#include "commands/plan_progress.h"
#include "commands/plan_slices.h"
#include "commands/stage.h"
#include "commands/stage_node.h"

#include "replay/calibrate.h"
#include "replay/compose.h"
#include "runtime/library.h"
#include "runtime/log.h"
#include "runtime/profile_file.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static int deal(struct plan *plan, struct crystal_error *err)
{
    plan->node_of = calloc(plan->slices.count, sizeof *plan->node_of);
    if (!plan->node_of)
        return crystal_error_set(err, ENOMEM, "out of memory");
    crystal_slices_deal(&plan->slices, plan->stage->node_count, plan->node_of);
    return 0;
}

static int prepare(struct plan *plan, struct crystal_error *err)
{
    struct stage *stage = plan->stage;
    char path[PATH_MAX];
    struct crystal_graph *graph;
    int code = crystal_jobdir_mkdir(stage->dir, "plan", err);

    if (!code)
        code = crystal_jobdir_mkdir(stage->dir, "log", err);
    if (!code)
        code = stage_path(stage, path, err, "job.graph");
    if (code)
        return code;
    graph = crystal_graph_open(path, err);
    if (!graph)
        return -EINVAL;
    code = crystal_graph_lrank_count(graph) == stage->layout.lrank_count
               ? crystal_slices_make(graph, &stage->layout, &plan->slices, err)
               : crystal_error_set(err, ESTALE,
                                   "%s: made for another layout; run 'scrystal "
                                   "capture' and 'scrystal graph' again",
                                   path);
    plan->graph_hash = crystal_graph_hash(graph);
    crystal_graph_close(graph);
    if (!code)
        code = stage_check_graph(stage, err);
    return code ? code : deal(plan, err);
}

static int calibrate(uint32_t sandbox_count, struct crystal_transfer_wire *wire,
                     uint32_t *ret_count, struct crystal_error *err)
{
    char nccl_library[PATH_MAX], net_plugin[PATH_MAX];
    struct crystal_calibrate_config config = {nccl_library, net_plugin, sandbox_count};
    int code = crystal_library_path("libcrystal-hostccl.so", nccl_library,
                                    sizeof nccl_library, err);

    if (config.nranks < 2)
        config.nranks = 2;
    if (config.nranks > CRYSTAL_CALIBRATE_RANKS)
        config.nranks = CRYSTAL_CALIBRATE_RANKS;
    if (!code)
        code = crystal_library_path("libnccl-net-crystal.so", net_plugin,
                                    sizeof net_plugin, err);
    return code ? code : crystal_calibrate(&config, wire, ret_count, err);
}

/* All slices once, by all nodes; leaves job.profile. The first node's. */
static int run_pass(struct plan *plan, struct crystal_error *err)
{
    struct stage *stage = plan->stage;
    uint32_t value = plan->progress.pass;
    int code = plan_progress_begin(stage, &plan->progress, err);

    if (!code)
        code = plan_nodes_meet(&plan->nodes, value, &value, err);
    if (!code)
        code = plan_slices_run(plan, err);
    if (!code)
        code = plan_nodes_meet(&plan->nodes, value, &value, err);
    if (code)
        return code;
    code = crystal_plan_compose(stage->job_dir, calibrate, &plan->pass, err);
    if (code) /* they would only be kept to fail again */
        (void)plan_progress_end(stage, NULL);
    return code;
}

/* Mean iteration of the sandbox, as composed, and how far it is off the pass before. */
static int read_mean(struct stage *stage, double *ret_ns, int32_t *ret_off_ppm,
                     struct crystal_error *err)
{
    struct crystal_profile *profile;
    char path[PATH_MAX];
    int code = stage_path(stage, path, err, "job.profile");

    if (code)
        return code;
    profile = crystal_profile_open(path, err);
    if (!profile)
        return -EIO;
    *ret_ns = 0;
    for (uint32_t i = 0; i < stage->layout.sandbox_count; i++)
        *ret_ns += (double)crystal_profile_iteration(profile, stage->layout.sandbox[i])
                       ->mean_ns;
    *ret_ns /= stage->layout.sandbox_count;
    *ret_off_ppm = crystal_profile_head(profile)->pass_off_ppm;
    crystal_profile_close(profile);
    return 0;
}

/* That ranks may use which this process starts; 0 where it is not known. */
static uint32_t cpu_count(void)
{
    cpu_set_t cpus;

    return sched_getaffinity(0, sizeof cpus, &cpus) ? 0 : (uint32_t)CPU_COUNT(&cpus);
}

/* The next pass is run in the time of the last one. */
static void next_pass(struct plan *plan, double mean_ns)
{
    plan->pass.before_count++;
    plan->pass.before_mean_ns = mean_ns;
    plan->progress.pass = plan->pass.before_count + 1;
    plan->progress.before_ns = mean_ns;
}

static void say_unsettled(const struct plan *plan, int32_t off_ppm)
{
    const uint32_t ranks = plan->stage->own.end - plan->stage->own.first;
    char why[80] = "this machine is busy, or its ranks are uneven";

    if (plan->pass.cpu_count && ranks > plan->pass.cpu_count)
        (void)snprintf(why, sizeof why, "here %u ranks share %u CPU%s", ranks,
                       plan->pass.cpu_count, plan->pass.cpu_count == 1 ? "" : "s");
    crystal_log(CRYSTAL_LOG_WARNING, plan->stage->name,
                "the last two of %u passes differ by %+.1f %%, more than "
                "plan.tolerance: %s",
                plan->stage->layout.plan_passes, off_ppm / 1e4, why);
}

static int run_passes(struct plan *plan, struct crystal_error *err)
{
    struct stage *stage = plan->stage;
    uint32_t most = stage->layout.plan_passes;
    int is_real = stage->layout.sandbox_count == stage->layout.lrank_count;

    for (;;) {
        double mean_ns = 0;
        int32_t off_ppm = 0;
        int code;

        if (plan->pass.before_count)
            crystal_log(CRYSTAL_LOG_INFO, stage->name,
                        "pass %u of at most %u, in the time of the one before: %.2f ms "
                        "an iteration",
                        plan->progress.pass, most, plan->pass.before_mean_ns / 1e6);
        code = run_pass(plan, err);
        if (code || is_real) /* nobody answers at once */
            return code;
        code = read_mean(stage, &mean_ns, &off_ppm, err);
        if (code || (plan->pass.before_count &&
                     (uint32_t)abs(off_ppm) <= stage->layout.plan_tolerance_ppm))
            return code;
        if (plan->progress.pass >= most) {
            if (most > 1)
                say_unsettled(plan, off_ppm);
            return 0;
        }
        next_pass(plan, mean_ns);
    }
}

/* The first node says which pass begins, composes what all have measured, and says when
 * it is enough. */
static int lead(struct plan *plan, struct crystal_error *err)
{
    uint32_t value = 0;
    int code = plan_progress_open(plan->stage, plan->graph_hash, &plan->progress, err);

    plan->pass.cpu_count = cpu_count();
    plan->pass.before_count = code ? 0 : plan->progress.pass - 1;
    plan->pass.before_mean_ns = plan->progress.before_ns;
    if (!code)
        code = run_passes(plan, err);
    if (!code)
        code = plan_progress_end(plan->stage, err);
    return code ? code : plan_nodes_meet(&plan->nodes, 0, &value, err);
}

static int follow(struct plan *plan, struct crystal_error *err)
{
    for (;;) {
        uint32_t pass = 0;
        int code = plan_nodes_meet(&plan->nodes, 0, &pass, err);

        if (code || !pass)
            return code;
        plan->pass.before_count = pass - 1;
        if (!plan->node_of) /* what can be wrong with it the first node has said */
            code = prepare(plan, err);
        if (!code)
            code =
                plan_progress_open(plan->stage, plan->graph_hash, &plan->progress, err);
        if (!code && plan->progress.pass != pass)
            code = crystal_error_set(err, ESTALE,
                                     "node %u does not see what node 0 writes; is the "
                                     "job directory shared by all nodes?",
                                     plan->stage->node);
        if (!code)
            code = plan_slices_run(plan, err);
        if (!code)
            code = plan_nodes_meet(&plan->nodes, 0, &pass, err);
        if (code)
            return code;
    }
}

int stage_plan(struct stage *stage)
{
    struct plan plan = {.stage = stage, .pass.has_device = stage_has_device()};
    struct crystal_error err = {0};
    uint32_t measured;
    int code = stage->node ? 0 : prepare(&plan, &err);

    if (!code) {
        code = plan_nodes_init(&plan.nodes, stage, &err);
        if (!code)
            code = stage->node ? follow(&plan, &err) : lead(&plan, &err);
        plan_nodes_fini(&plan.nodes);
    }
    measured = plan.slices.count ? plan.slices.first[plan.slices.count] : 0;
    crystal_slices_fini(&plan.slices);
    free(plan.node_of);
    if (code)
        return stage_failed(stage, &err);
    if (!stage->node)
        crystal_log(CRYSTAL_LOG_INFO, stage->name,
                    "measured %u of %u ranks, composed %s/job.profile", measured,
                    stage->layout.lrank_count, stage->job_dir);
    return 0;
}
