/* The environment that ranks get in a stage; see stage.h. */
#include "config.h"

#include "commands/stage.h"

#include "runtime/env.h"
#include "runtime/slurm_view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void stage_env_add(struct stage_env *env, const char *format, ...)
{
    char **bigger = realloc(env->entries, (env->count + 2) * sizeof *bigger);
    va_list args;
    char *entry = NULL;
    int length;

    va_start(args, format);
    length = vasprintf(&entry, format, args);
    va_end(args);
    if (bigger)
        env->entries = bigger;
    if (!bigger || length < 0) {
        env->failed = 1;
        if (length >= 0)
            free(entry);
        return;
    }
    env->entries[env->count++] = entry;
    env->entries[env->count] = NULL;
}

void stage_env_defaults(struct stage_env *env, const char *const (*settings)[2],
                        size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!getenv(settings[i][0]))
            stage_env_add(env, "%s=%s", settings[i][0], settings[i][1]);
}

void stage_env_fini(struct stage_env *env)
{
    for (size_t i = 0; i < env->count; i++)
        free(env->entries[i]);
    free(env->entries);
    memset(env, 0, sizeof *env);
}

void stage_env_common(struct stage *stage)
{
    struct stage_env *env = &stage->env;

    stage_env_add(env, "%s=%s", CRYSTAL_ENV_STAGE, stage->name);
    stage_env_add(env, "%s=%s", CRYSTAL_ENV_JOB_DIR, stage->job_dir);
    stage_env_add(env, "%s=%u", CRYSTAL_ENV_LOGICAL_RANKS, stage->layout.lrank_count);
    stage_env_add(env, "%s=%s", CRYSTAL_ENV_COORD_FILE, stage->coord_file);
    stage_env_add(env, "%s=%s", CRYSTAL_ENV_TOKEN_FILE, stage->token_file);
    stage_env_add(env, "WORLD_SIZE=%u", stage->layout.lrank_count);
    stage_env_add(env, "MASTER_ADDR=%s", stage->master_addr);
    stage_env_add(env, "MASTER_PORT=%s", stage->master_port);
    stage_env_add(env, "%s=%s:%s", CRYSTAL_ENV_STORE, stage->master_addr,
                  stage->master_port);
    stage_env_add(env, "%s=%u", CRYSTAL_ENV_RANKS_PER_NODE,
                  stage->layout.ranks_per_node);
    /* rank 0 is a client of our store, too */
    stage_env_add(env, "TORCHELASTIC_USE_AGENT_STORE=True");
    stage_env_add(env, "TORCHELASTIC_RESTART_COUNT=0");
    if (!getenv("OMP_NUM_THREADS")) /* as torchrun does for several ranks per node */
        stage_env_add(env, "OMP_NUM_THREADS=1");
}

void stage_env_pinned(struct stage *stage, uint32_t rank_count)
{
    uint64_t most = stage->layout.pinned_bytes_max;

    if (most && rank_count)
        stage_env_add(&stage->env, "%s=%" PRIu64, CRYSTAL_ENV_PINNED,
                      most / rank_count ? most / rank_count : 1);
}

int stage_has_device(void)
{
    return access("/dev/nvidiactl", F_OK) == 0;
}

int stage_env_device(struct stage *stage, const char *library)
{
    const char *preload = getenv("LD_PRELOAD");

    if (!stage_has_device())
        return 0;
    stage_env_add(&stage->env, "LD_PRELOAD=%s%s%s", library,
                  preload && *preload ? ":" : "", preload ? preload : "");
    return 1;
}

const char *stage_env_range(struct stage *stage, const char *library)
{
    static const char *const unbuffered[][2] = {{"PYTHONUNBUFFERED", "1"}};
    const char *tool = getenv("NVTX_INJECTION64_PATH");

    if (!stage->layout.iteration_range)
        return NULL;
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_ITERATION_RANGE,
                  stage->layout.iteration_range);
    /* the process may end where a range begins: what was printed is not to be lost */
    stage_env_defaults(&stage->env, unbuffered, 1);
    if (tool && *tool)
        return tool;
    stage_env_add(&stage->env, "NVTX_INJECTION64_PATH=%s", library);
    return NULL;
}

static void put(void *context, const char *setting)
{
    stage_env_add(context, "%s", setting);
}

void stage_env_rank(const struct stage *stage, const struct stage_rank *rank,
                    struct stage_env *env)
{
    uint32_t n = stage->layout.lrank_count, per_node = stage->layout.ranks_per_node;
    enum crystal_slurm_view view = stage->layout.slurm_view;
    struct crystal_slurm_task slurm = {rank->index, rank->count, rank->count};

    stage_env_add(env, "%s=%u", CRYSTAL_ENV_LRANK, rank->lrank);
    stage_env_add(env, "RANK=%u", rank->lrank);
    stage_env_add(env, "LOCAL_RANK=%u", rank->lrank % per_node);
    stage_env_add(env, "LOCAL_WORLD_SIZE=%u", per_node);
    if (view != CRYSTAL_SLURM_PHYSICAL)
        slurm = crystal_slurm_task_of(view, rank->lrank, n, per_node);
    crystal_slurm_task_each(&slurm, put, env);
}

void stage_env_rules(const struct stage *stage, struct stage_env *env)
{
    const struct crystal_words *words = &stage_rules(stage)->env;

    for (uint32_t i = 0; i < words->count; i++)
        stage_env_add(env, "%s", words->v[i]);
}
