/* See plan_slices.h. A slice runs as the sandbox does, with the recorder between the
 * program and its NCCL.
 */
#include "config.h"

#include "commands/plan_slices.h"

#include "commands/stage_node.h"

#include "runtime/env.h"
#include "runtime/library.h"
#include "runtime/log.h"
#include "runtime/trace.h"

#include <errno.h>
#include <stdio.h>

static int set_environment(const struct plan *self, struct crystal_error *err)
{
    struct stage *stage = self->stage;
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
    (void)stage_env_range(stage, library); /* capture has told of another tool */
    if (stage_env_device(stage, library))
        stage_env_add(&stage->env, "%s=1", CRYSTAL_ENV_PASS_DEVICE);
    /* launches take longer beside CUPTI: from the second pass on they are measured
     * without it */
    if (self->pass.has_device && self->pass.before_count)
        stage_env_add(&stage->env, "%s=off", CRYSTAL_ENV_CUPTI);
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

/* The sandbox by itself is no slice to the coordinator. */
static int is_whole(const struct plan *plan, uint32_t slice)
{
    return plan->slices.sandbox_count == 1 && slice == 0 && !plan->nodes.job;
}

static void say_slice(const struct plan *plan, uint32_t slice)
{
    const struct crystal_slices *s = &plan->slices;
    const uint32_t *ranks = s->ranks + s->first[slice];
    uint32_t last = s->first[slice + 1] - s->first[slice] - 1;
    int is_other = slice >= s->sandbox_count;
    char where[32] = "";

    if (is_whole(plan, slice))
        return;
    if (plan->nodes.job)
        (void)snprintf(where, sizeof where, ", on node %u", plan->stage->node);
    crystal_log(CRYSTAL_LOG_INFO, plan->stage->name, "ranks %u-%u%s (%u of %u)%s",
                ranks[0], ranks[last],
                is_other ? ", which the sandbox does not stand for" : " of the sandbox",
                slice + 1 - (is_other ? s->sandbox_count : 0),
                is_other ? s->count - s->sandbox_count : s->sandbox_count, where);
}

static int begin_slice(const struct plan *plan, uint32_t slice,
                       struct crystal_error *err)
{
    struct stage *stage = plan->stage;

    if (!is_whole(plan, slice))
        return crystal_client_begin_slice(stage->client, plan->slices.nodes[slice],
                                          err);
    /* in the first pass it has begun */
    return plan->pass.before_count
               ? crystal_client_begin(stage->client, stage->kind, err)
               : 0;
}

/* One slice as the sandbox; not in the first pass against virtual ranks that keep
 * job.profile's time. */
static int run_slice(struct plan *plan, uint32_t slice, struct crystal_error *err)
{
    const struct crystal_slices *slices = &plan->slices;
    struct stage *stage = plan->stage;
    uint32_t count = slices->first[slice + 1] - slices->first[slice];
    uint32_t *ranks = slices->ranks + slices->first[slice];
    struct crystal_error seal_err = {0};
    int code, sealed;

    stage->layout.sandbox = ranks;
    stage->layout.sandbox_count = count;
    say_slice(plan, slice);
    code = begin_slice(plan, slice, err);
    if (!code)
        code = set_environment(plan, err);
    if (!code)
        code = stage_node_open(stage, plan->pass.before_count > 0, NULL, err);
    if (!code)
        code = stage_start_ranks(stage, ranks, count, 1, err);
    if (!code)
        code = stage_wait_ranks(stage, plan_nodes_check, &plan->nodes, err);
    stage_node_close(stage);
    sealed = seal(stage, &seal_err);
    if (sealed && !code) { /* the first fault is what is told */
        code = sealed;
        *err = seal_err;
    }
    return code ? code
                : plan_progress_mark(stage, &plan->progress, slices->nodes[slice], err);
}

int plan_slices_run(struct plan *plan, struct crystal_error *err)
{
    struct stage *stage = plan->stage;
    uint32_t *sandbox = stage->layout.sandbox;
    uint32_t sandbox_count = stage->layout.sandbox_count, kept = 0;
    int code = 0;

    for (uint32_t i = 0; !code && i < plan->slices.count; i++)
        if (plan->node_of[i] != stage->node)
            continue;
        else if (plan_progress_has(stage, &plan->progress, plan->slices.nodes[i]))
            kept++;
        else
            code = run_slice(plan, i, err);
    stage->layout.sandbox = sandbox;
    stage->layout.sandbox_count = sandbox_count;
    if (!code && kept)
        crystal_log(CRYSTAL_LOG_INFO, stage->name,
                    "kept %u slice%s of a plan that was stopped", kept,
                    kept == 1 ? "" : "s");
    return code;
}
