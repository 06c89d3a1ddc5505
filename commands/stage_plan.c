/* The plan stage: the sandbox ranks run against virtual ranks that answer at once, with
 * the recorder passing their calls through to libcrystal-hostccl.so. What comes out is
 * how long computation and transfers take by themselves, and from that the profile of
 * all ranks.
 */
#include "config.h"

#include "commands/stage.h"
#include "commands/stage_node.h"

#include "replay/calibrate.h"
#include "replay/compose.h"
#include "runtime/env.h"
#include "runtime/library.h"
#include "runtime/log.h"
#include "runtime/trace.h"

#include <errno.h>

static int prepare(struct stage *stage, struct crystal_error *err)
{
    char library[PATH_MAX], plan[PATH_MAX];
    int code = crystal_jobdir_mkdir(stage->dir, "plan", err);

    if (!code)
        code = crystal_jobdir_mkdir(stage->dir, "log", err);
    if (!code)
        code = stage_sweep(stage, "plan", ".trace", err);
    if (!code)
        code = stage_sweep(stage, "plan", ".run", err);
    if (!code)
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
        if (code == -ENOENT)
            code = crystal_error_set(err, ENOENT,
                                     "rank %u recorded nothing, it made no NCCL call; "
                                     "see %s/log/plan.%u.log",
                                     lrank, stage->job_dir, lrank);
    }
    return code ? code : stage_node_seal_runs(stage, "plan", err);
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

int stage_plan(struct stage *stage)
{
    const struct crystal_layout *layout = &stage->layout;
    struct crystal_error err = {0}, seal_err = {0};
    struct crystal_node *node = NULL;
    int code, sealed;

    stage_env_common(stage);
    code = prepare(stage, &err);
    if (!code)
        code = stage_node_open(stage, 0, &node, &err);
    if (!code)
        code =
            stage_start_ranks(stage, layout->sandbox, layout->sandbox_count, 1, &err);
    if (!code)
        code = stage_wait_ranks(stage, stage_node_check, node, &err);
    crystal_node_destroy(node);
    sealed = seal(stage, &seal_err);
    if (sealed && !code) { /* the first fault is what is told */
        code = sealed;
        err = seal_err;
    }
    if (!code)
        code = crystal_plan_compose(stage->job_dir, calibrate, &err);
    if (code)
        return stage_failed(stage, &err);
    crystal_log(CRYSTAL_LOG_INFO, stage->name,
                "measured %u of %u ranks, composed %s/job.profile",
                layout->sandbox_count, layout->lrank_count, stage->job_dir);
    return 0;
}
