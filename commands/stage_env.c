/* The environment that ranks get in a stage; see stage.h. */
#include "config.h"

#include "commands/stage.h"

#include "runtime/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    /* rank 0 is a client of our store, too */
    stage_env_add(env, "TORCHELASTIC_USE_AGENT_STORE=True");
    stage_env_add(env, "TORCHELASTIC_RESTART_COUNT=0");
    if (!getenv("OMP_NUM_THREADS")) /* as torchrun does for several ranks per node */
        stage_env_add(env, "OMP_NUM_THREADS=1");
}

/* SLURM_* as for task of ntasks on nodes. */
static void env_slurm(struct stage_env *env, uint32_t task, uint32_t ntasks,
                      uint32_t per_node)
{
    uint32_t nodes = ntasks / per_node;

    stage_env_add(env, "SLURM_PROCID=%u", task);
    stage_env_add(env, "SLURM_LOCALID=%u", task % per_node);
    stage_env_add(env, "SLURM_NODEID=%u", task / per_node);
    stage_env_add(env, "SLURM_NTASKS=%u", ntasks);
    stage_env_add(env, "SLURM_NPROCS=%u", ntasks);
    stage_env_add(env, "SLURM_STEP_NUM_TASKS=%u", ntasks);
    stage_env_add(env, "SLURM_NNODES=%u", nodes);
    stage_env_add(env, "SLURM_JOB_NUM_NODES=%u", nodes);
    stage_env_add(env, "SLURM_STEP_NUM_NODES=%u", nodes);
    stage_env_add(env, "SLURM_NTASKS_PER_NODE=%u", per_node);
    if (nodes > 1)
        stage_env_add(env, "SLURM_TASKS_PER_NODE=%u(x%u)", per_node, nodes);
    else
        stage_env_add(env, "SLURM_TASKS_PER_NODE=%u", per_node);
}

void stage_env_rank(const struct stage *stage, const struct stage_rank *rank,
                    struct stage_env *env)
{
    uint32_t n = stage->layout.lrank_count, per_node = stage->layout.ranks_per_node;

    stage_env_add(env, "%s=%u", CRYSTAL_ENV_LRANK, rank->lrank);
    stage_env_add(env, "RANK=%u", rank->lrank);
    stage_env_add(env, "LOCAL_RANK=%u", rank->lrank % per_node);
    stage_env_add(env, "LOCAL_WORLD_SIZE=%u", per_node);
    if (stage->layout.slurm_physical)
        env_slurm(env, rank->index, rank->count, rank->count);
    else
        env_slurm(env, rank->lrank, n, per_node);
}

void stage_env_rules(const struct stage *stage, struct stage_env *env)
{
    const struct crystal_words *words = &stage_rules(stage)->env;

    for (uint32_t i = 0; i < words->count; i++)
        stage_env_add(env, "%s", words->v[i]);
}
