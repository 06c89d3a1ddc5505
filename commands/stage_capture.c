/* The capture stage: the live ranks of this node run with libcrystal-nccl.so as NCCL;
 * what they leave in ranks/ is sealed.
 */
#include "config.h"

#include "commands/stage.h"
#include "commands/stage_spill.h"

#include "runtime/env.h"
#include "runtime/library.h"
#include "runtime/log.h"
#include "runtime/payload.h"
#include "runtime/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int remove_file(const char *path, struct crystal_error *err)
{
    if (unlink(path) < 0 && errno != ENOENT && errno != ENOTDIR)
        return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    return 0;
}

/* Where the payload of a rank is. */
static int payload_path(const struct stage *stage, uint32_t lrank, char path[PATH_MAX],
                        struct crystal_error *err)
{
    char ranks[PATH_MAX];
    int code = stage_path(stage, ranks, err, "ranks");

    return code ? code : crystal_payload_path(ranks, lrank, path, PATH_MAX, err);
}

/* Another node's ranks may have begun to write theirs. */
static int remove_old(const struct stage *stage, uint32_t lrank,
                      struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = payload_path(stage, lrank, path, err);

    if (!code)
        code = remove_file(path, err);
    if (!code)
        code = stage_path(stage, path, err, "ranks/%u.trace", lrank);
    return code ? code : remove_file(path, err);
}

/* PyTorch's watchdogs, which end a rank that waits for long, are ours to be: a rank is
 * parked for as long as others run. */
static void env_watchdogs(struct stage *stage)
{
    static const char *const watchdogs[][2] = {{"TORCH_NCCL_ENABLE_MONITORING", "0"},
                                               {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
                                               {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"}};

    stage_env_defaults(&stage->env, watchdogs, sizeof watchdogs / sizeof watchdogs[0]);
}

static int prepare(struct stage *stage, const struct crystal_share *own,
                   struct crystal_error *err)
{
    char library[PATH_MAX], ranks[PATH_MAX];
    const char *tool;
    int code = crystal_jobdir_mkdir(stage->dir, "ranks", err);

    if (!code)
        code = crystal_jobdir_mkdir(stage->dir, "log", err);
    for (uint32_t i = own->first; !code && i < own->end; i++)
        code = remove_old(stage, stage->layout.live[i], err);
    if (!code)
        code = stage_spill_open(stage, err);
    if (!code)
        code = stage_path(stage, ranks, err, "ranks");
    if (!code)
        code = crystal_library_path("libcrystal-nccl.so", library, sizeof library, err);
    if (code)
        return code;
    stage_env_common(stage);
    stage_env_pinned(stage, stage->layout.live_mode == CRYSTAL_LIVE_LIST
                                ? 1
                                : own->end - own->first);
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_NCCL_LIBRARY, library);
    tool = stage_env_range(stage, library);
    if (tool)
        crystal_log(CRYSTAL_LOG_WARNING, stage->name,
                    "NVTX_INJECTION64_PATH is '%s', another tool, so that the range "
                    "'%s' (capture.iteration_range) cannot be seen, using what repeats",
                    tool, stage->layout.iteration_range);
    if (stage_env_device(stage, library)) {
        env_watchdogs(stage);
        stage_env_add(&stage->env, "NCCL_NET_PLUGIN=%s", library);
        stage_env_add(&stage->env, "NCCL_NET=%s", CRYSTAL_BYPASS_NET);
    }
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_TRACE_DIR, ranks);
    stage_env_add(&stage->env, "%s=%u", CRYSTAL_ENV_ITERATIONS,
                  stage->layout.iterations);
    stage_env_add(&stage->env, "%s=%#llx", CRYSTAL_ENV_FINGERPRINT,
                  (unsigned long long)stage->layout.fingerprint);
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_PAYLOAD,
                  stage->layout.payload_all ? "all" : "control");
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_LIVE,
                  stage->layout.live_mode == CRYSTAL_LIVE_ALL ? "all" : "replica");
    return 0;
}

/* Seals what a rank left, its trace last: with that it counts as captured. -ENOENT: it
 * left nothing. */
static int seal_rank(const struct stage *stage, uint32_t lrank,
                     struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = payload_path(stage, lrank, path, err);

    if (!code)
        code = crystal_payload_seal(path, err);
    if (!code)
        code = stage_path(stage, path, err, "ranks/%u.trace", lrank);
    if (!code)
        code = crystal_trace_seal(path, err);
    if (code == -ENOENT && stage_log_path(stage, lrank, path, err) == 0)
        return crystal_error_set(
            err, ENOENT,
            "rank %u recorded nothing, it made no NCCL call; is contrib/pytorch "
            "installed where the program runs? see %s",
            lrank, path);
    return code;
}

/* Runs some of the live ranks at once, and seals what they left. What a run that failed
 * has left stays as it is: sealed, it would count as a capture. */
static int run_ranks(struct stage *stage, const uint32_t *lranks, uint32_t count,
                     struct crystal_error *err)
{
    int code = stage_start_ranks(stage, lranks, count, 1, err);

    if (!code)
        code = stage_wait_ranks(stage, NULL, NULL, err);
    for (uint32_t i = 0; !code && i < count; i++)
        code = seal_rank(stage, lranks[i], err);
    return code;
}

/* Each rank by itself; the ones before it contribute what they have recorded. */
static int run_list(struct stage *stage, struct crystal_error *err)
{
    const struct crystal_layout *layout = &stage->layout;
    int code = 0;

    for (uint32_t i = 0; !code && i < layout->live_count; i++) {
        crystal_log(CRYSTAL_LOG_INFO, stage->name, "rank %u by itself (%u of %u)",
                    layout->live[i], i + 1, layout->live_count);
        code = crystal_client_begin_rank(stage->client, layout->live[i], err);
        if (!code)
            code = run_ranks(stage, &layout->live[i], 1, err);
    }
    return code;
}

int stage_capture(struct stage *stage)
{
    const struct crystal_layout *layout = &stage->layout;
    struct crystal_error err = {0};
    struct crystal_share own =
        crystal_share_of(layout->live_count, stage->node, stage->node_count);
    int code = prepare(stage, &own, &err);

    if (!code && layout->live_mode == CRYSTAL_LIVE_LIST)
        code = run_list(stage, &err);
    else if (!code)
        code = run_ranks(stage, layout->live + own.first, own.end - own.first, &err);
    if (code)
        return stage_failed(stage, &err);
    crystal_log(CRYSTAL_LOG_INFO, stage->name, "recorded %u of %u ranks in %s/ranks",
                own.end - own.first, layout->lrank_count, stage->job_dir);
    return 0;
}
