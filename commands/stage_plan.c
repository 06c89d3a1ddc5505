/* The plan stage: slices of ranks, the sandbox's nodes first, run one after the other
 * against virtual ranks that answer at once, with the recorder passing their calls
 * through to libcrystal-hostccl.so. What comes out is how long computation and
 * transfers take by themselves, and from that the profile of all ranks. Ranks that
 * never wait for others compete more for the node than they will, so a second pass
 * measures again in the time that the first has composed, until two passes agree.
 */
#include "config.h"

#include "commands/stage.h"
#include "commands/stage_node.h"

#include "replay/calibrate.h"
#include "replay/compose.h"
#include "replay/slices.h"
#include "runtime/env.h"
#include "runtime/library.h"
#include "runtime/log.h"
#include "runtime/profile_file.h"
#include "runtime/trace.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

static int prepare(struct stage *stage, struct crystal_slices *slices,
                   struct crystal_error *err)
{
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
               ? crystal_slices_make(graph, &stage->layout, slices, err)
               : crystal_error_set(err, ESTALE,
                                   "%s: made for another layout; run 'scrystal "
                                   "capture' and 'scrystal graph' again",
                                   path);
    crystal_graph_close(graph);
    return code ? code : stage_check_graph(stage, err);
}

static int set_environment(struct stage *stage, struct crystal_error *err)
{
    char library[PATH_MAX], plan[PATH_MAX];
    int code;

    stage_env_fini(&stage->env);
    stage_env_common(stage);
    stage_env_pinned(stage, stage->own.end - stage->own.first);
    code = stage_path(stage, plan, err, "plan");
    if (!code)
        code = crystal_library_path("libcrystal-nccl.so", library, sizeof library, err);
    if (code)
        return code;
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_NCCL_LIBRARY, library);
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_TRACE_DIR, plan);
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_RUN_DIR, plan);
    stage_env_add(&stage->env, "%s=%u", CRYSTAL_ENV_ITERATIONS,
                  stage->layout.iterations);
    stage_env_add(&stage->env, "%s=%#llx", CRYSTAL_ENV_FINGERPRINT,
                  (unsigned long long)stage->layout.fingerprint);
    code = crystal_library_path("libcrystal-hostccl.so", library, sizeof library, err);
    if (!code)
        stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_PASS_LIBRARY, library);
    return code;
}

static int seal(const struct stage *stage, struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = 0;

    for (uint32_t i = 0; !code && i < stage->layout.sandbox_count; i++) {
        uint32_t lrank = stage->layout.sandbox[i];

        code = stage_path(stage, path, err, "plan/%u.trace", lrank);
        if (!code)
            code = crystal_trace_seal(path, err);
        if (code == -ENOENT && stage_log_path(stage, lrank, path, err) == 0)
            code = crystal_error_set(err, ENOENT,
                                     "rank %u recorded nothing, it made no NCCL call; "
                                     "see %s",
                                     lrank, path);
    }
    return code ? code
                : stage_node_seal_runs(
                      stage, "plan",
                      (struct crystal_share){0, stage->layout.sandbox_count}, err);
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

/* One slice as the sandbox; not in the first pass against virtual ranks that keep
 * job.profile's time. */
static int run_slice(struct stage *stage, const struct crystal_slices *slices,
                     uint32_t slice, const struct crystal_compose_pass *pass,
                     struct crystal_error *err)
{
    int timed = pass->before_count > 0;
    uint32_t count = slices->first[slice + 1] - slices->first[slice];
    uint32_t *ranks = slices->ranks + slices->first[slice];
    int is_whole = slices->sandbox_count == 1 && slice == 0; /* slice and sandbox */
    struct crystal_error seal_err = {0};
    int code, sealed;

    stage->layout.sandbox = ranks;
    stage->layout.sandbox_count = count;
    if (slice >= slices->sandbox_count)
        crystal_log(CRYSTAL_LOG_INFO, stage->name,
                    "ranks %u-%u, which the sandbox does not stand for (%u of %u)",
                    ranks[0], ranks[count - 1], slice + 1 - slices->sandbox_count,
                    slices->count - slices->sandbox_count);
    else if (!is_whole)
        crystal_log(CRYSTAL_LOG_INFO, stage->name,
                    "ranks %u-%u of the sandbox (%u of %u)", ranks[0], ranks[count - 1],
                    slice + 1, slices->sandbox_count);
    if (!is_whole)
        code = crystal_client_begin_slice(stage->client, slices->nodes[slice], err);
    else if (timed) /* not the first pass */
        code = crystal_client_begin(stage->client, stage->kind, err);
    else
        code = 0; /* has begun */
    if (!code)
        code = set_environment(stage, err);
    if (!code)
        code = stage_node_open(stage, timed, NULL, err);
    if (!code)
        code = stage_start_ranks(stage, ranks, count, 1, err);
    if (!code)
        code = stage_wait_ranks(stage, stage_node_check, stage, err);
    stage_node_close(stage);
    sealed = seal(stage, &seal_err);
    if (sealed && !code) { /* the first fault is what is told */
        code = sealed;
        *err = seal_err;
    }
    return code;
}

/* All slices once; leaves job.profile. */
static int run_pass(struct stage *stage, const struct crystal_slices *slices,
                    const struct crystal_compose_pass *pass, struct crystal_error *err)
{
    uint32_t *sandbox = stage->layout.sandbox;
    uint32_t sandbox_count = stage->layout.sandbox_count;
    int code = stage_sweep(stage, "plan", ".trace", err);

    if (!code)
        code = stage_sweep(stage, "plan", ".run", err);
    for (uint32_t i = 0; !code && i < slices->count; i++)
        code = run_slice(stage, slices, i, pass, err);
    stage->layout.sandbox = sandbox;
    stage->layout.sandbox_count = sandbox_count;
    return code ? code : crystal_plan_compose(stage->job_dir, calibrate, pass, err);
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

static int run_passes(struct stage *stage, const struct crystal_slices *slices,
                      struct crystal_error *err)
{
    uint32_t most = stage->layout.plan_passes;
    struct crystal_compose_pass pass = {.cpu_count = cpu_count()};
    int32_t off_ppm = 0;
    int code = run_pass(stage, slices, &pass, err);

    if (stage->layout.sandbox_count == stage->layout.lrank_count)
        return code; /* nobody answers at once */
    for (uint32_t turn = 2; !code && turn <= most; turn++) {
        pass.before_count = turn - 1;
        code = read_mean(stage, &pass.before_mean_ns, &off_ppm, err);
        if (code)
            break;
        crystal_log(CRYSTAL_LOG_INFO, stage->name,
                    "pass %u of at most %u, in the time of the one before: %.2f ms an "
                    "iteration",
                    turn, most, pass.before_mean_ns / 1e6);
        code = run_pass(stage, slices, &pass, err);
        if (!code)
            code = read_mean(stage, &pass.before_mean_ns, &off_ppm, err);
        if (!code && (uint32_t)abs(off_ppm) <= stage->layout.plan_tolerance_ppm)
            return 0;
    }
    if (!code && most > 1)
        crystal_log(CRYSTAL_LOG_WARNING, stage->name,
                    "the last two of %u passes differ by %+.1f %%, more than "
                    "plan.tolerance: this machine is busy, or its ranks are uneven",
                    most, off_ppm / 1e4);
    return code;
}

int stage_plan(struct stage *stage)
{
    struct crystal_slices slices = {0};
    struct crystal_error err = {0};
    uint32_t measured;
    int code = prepare(stage, &slices, &err);

    if (!code)
        code = run_passes(stage, &slices, &err);
    measured = slices.count ? slices.first[slices.count] : 0;
    crystal_slices_fini(&slices);
    if (code)
        return stage_failed(stage, &err);
    crystal_log(CRYSTAL_LOG_INFO, stage->name,
                "measured %u of %u ranks, composed %s/job.profile", measured,
                stage->layout.lrank_count, stage->job_dir);
    return 0;
}
