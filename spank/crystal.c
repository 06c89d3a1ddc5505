/* crystal.so: the SPANK plugin. The hooks only; each does its work in another file.
 *
 *   srun, sbatch, salloc   init: options; init_post_opt: local.c; local_user_init:
 *                          agent_watch.c; exit: steps.c
 *   slurmstepd             init: options; task_init: task.c, as the user; task_exit:
 *                          task.c
 *
 * A command that names none of our options, and a task of such a step, passes through
 * two comparisons. plugstack.conf: optional crystal.so [config=FILE] [scrystal=PATH].
 * "optional" ignores what a hook returns, so that a command or task of ours that cannot
 * go on ends here itself.
 */
#include "config.h"

#include "runtime/clock.h"
#include "runtime/env.h"
#include "spank/agent_watch.h"
#include "spank/cluster.h"
#include "spank/exit_code.h"
#include "spank/local.h"
#include "spank/options.h"
#include "spank/steps.h"
#include "spank/task.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Slurm finds hooks and plugin_* by name; everything else stays hidden. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(crystal, 1);
#pragma GCC visibility pop

/* Lives as long as the process; a hook runs in one thread. */
static struct {
    struct crystal_options options;
    char *config, *scrystal; /* from plugstack.conf; owned */
    char *cluster;           /* of the job, see ask.h; owned */
    struct crystal_steps_pids pids;
    time_t start_time;
    uint64_t hooks_ns; /* time spent in our hooks */
} ctx;

/* CRYSTAL_SPANK_TIME asks what our hooks cost (see tests/bench/spank). */
static void tell_time(bool wanted, const char *where)
{
    if (wanted)
        slurm_spank_log("crystal: hooks in %s: %llu ns", where,
                        (unsigned long long)ctx.hooks_ns);
}

static int take_option(int option, const char *value, int remote)
{
    (void)remote;
    if (option < 0 || option >= CRYSTAL_OPTION_COUNT)
        return -1;
    return crystal_options_set(&ctx.options, (enum crystal_option)option, value);
}

/* The internal option shows in no help: it exists only where our own srun names it. */
static bool is_internal_step(void)
{
    struct crystal_argv argv = {0};
    bool found = false;

    if (crystal_argv_read(&argv, "/proc/self/cmdline") == 0)
        for (int i = 1; i < argv.count && !found; i++)
            found = strncmp(argv.v[i], "--crystal-stage=", 16) == 0;
    crystal_argv_fini(&argv);
    return found;
}

static int register_options(spank_t spank, bool with_internal)
{
    for (int i = 0; i < CRYSTAL_OPTION_COUNT; i++) {
        const struct crystal_option_info *info = &crystal_option_table[i];
        bool internal = i == CRYSTAL_OPTION_STAGE;
        char help[256];
        struct spank_option option = {
            .name = (char *)info->name,
            .arginfo = internal ? "NAME" : (char *)info->metavar,
            .usage = internal ? "internal" : help,
            .has_arg = 1,
            .val = i,
            .cb = take_option,
        };

        if (internal && !with_internal)
            continue;
        snprintf(help, sizeof help, "[crystal] %s", info->help ? info->help : "");
        if (spank_option_register(spank, &option) != ESPANK_SUCCESS) {
            slurm_error("crystal: --%s cannot be registered; another plugin has it",
                        info->name);
            return -1;
        }
    }
    return 0;
}

static int read_plugstack(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        char **to = strncmp(argv[i], "config=", 7) == 0     ? &ctx.config
                    : strncmp(argv[i], "scrystal=", 9) == 0 ? &ctx.scrystal
                                                            : NULL;

        if (!to) {
            slurm_error("crystal: plugstack.conf: '%s' is neither config=FILE nor "
                        "scrystal=PATH, ignoring",
                        argv[i]);
            continue;
        }
        free(*to);
        *to = strdup(strchr(argv[i], '=') + 1);
        if (!*to)
            return -1;
    }
    return 0;
}

/* The program's srun, the second life of the user's, learns what the first has started;
 * its tasks are not to see that. */
static void take_pids(void)
{
    const char *salloc = getenv(CRYSTAL_SALLOC_ENV);

    ctx.pids = crystal_steps_pids_parse(getenv(CRYSTAL_STEPS_ENV));
    if (salloc)
        ctx.pids.salloc = (int)strtol(salloc, NULL, 10);
    ctx.cluster = crystal_cluster_of_job();
    (void)unsetenv(CRYSTAL_STEPS_ENV); /* both fail for a bad name only */
    (void)unsetenv(CRYSTAL_SALLOC_ENV);
    ctx.start_time = time(NULL);
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    spank_context_t context = spank_context();
    uint64_t start_ns = crystal_now_ns();
    int rc = 0;

    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
        return 0;
    if (context != S_CTX_REMOTE)
        rc = read_plugstack(argc, argv);
    if (context == S_CTX_LOCAL)
        take_pids();
    if (rc == 0)
        rc =
            register_options(spank, context == S_CTX_REMOTE ||
                                        (context == S_CTX_LOCAL && is_internal_step()));
    ctx.hooks_ns += crystal_now_ns() - start_ns;
    return rc;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    spank_context_t context = spank_context();
    struct crystal_local local = {
        .options = &ctx.options,
        .config = ctx.config,
        .scrystal = ctx.scrystal,
        .salloc = ctx.pids.salloc,
        .cluster = ctx.cluster,
    };
    uint64_t start_ns = crystal_now_ns();
    int code = CRYSTAL_LOCAL_GO_ON;

    (void)spank;
    (void)argc;
    (void)argv;
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
        return 0;
    if (!ctx.options.value[CRYSTAL_OPTION_STAGE]) {
        if (crystal_options_default(&ctx.options) < 0)
            return -1;
        code = context == S_CTX_LOCAL ? crystal_local_srun(&local)
                                      : crystal_local_allocator(&local);
    }
    if (code != CRYSTAL_LOCAL_GO_ON)
        exit(code);
    ctx.hooks_ns += crystal_now_ns() - start_ns;
    return 0;
}

static uint32_t item(spank_t spank, enum spank_item which)
{
    uint32_t value;

    return spank_get_item(spank, which, &value) == ESPANK_SUCCESS ? value : UINT32_MAX;
}

static int task_setenv(void *context, const char *name, const char *value)
{
    return spank_setenv(context, name, value, 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* The agent asks this node's own crystal.yaml whether the job may run here. */
static void name_config(spank_t spank, int argc, char **argv)
{
    const char *path = NULL;

    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "config=", 7) == 0)
            path = argv[i] + 7;
    if (path)
        (void)spank_setenv(spank, CRYSTAL_ENV_NODE_CONFIG, path, 1);
    else
        (void)spank_unsetenv(spank, CRYSTAL_ENV_NODE_CONFIG); /* there may be none */
}

/* In srun, before the tasks start. */
int slurm_spank_local_user_init(spank_t spank, int argc, char **argv)
{
    const char *stage = ctx.options.value[CRYSTAL_OPTION_STAGE];

    (void)spank;
    (void)argc;
    (void)argv;
    if (stage && strcmp(stage, CRYSTAL_STEP_PROGRAM) == 0)
        crystal_agent_watch_begin(ctx.pids.agent);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    const char *stage = ctx.options.value[CRYSTAL_OPTION_STAGE];
    struct crystal_error err = {0};
    uint64_t start_ns = crystal_now_ns();
    char wanted[8];
    int rc = 0;

    if (stage && strcmp(stage, CRYSTAL_STEP_ASSIST) == 0) {
        name_config(spank, argc, argv); /* no task of ours comes there */
    } else if (stage && (strcmp(stage, CRYSTAL_STEP_AGENT) == 0 ||
                         strcmp(stage, CRYSTAL_STEP_CAPTURE) == 0 ||
                         strcmp(stage, CRYSTAL_STEP_PLAN) == 0)) {
        name_config(spank, argc, argv);
        rc = crystal_task_mark_agent(&ctx.options, item(spank, S_JOB_NODEID), &err);
    } else if (stage && strcmp(stage, CRYSTAL_STEP_PROGRAM) == 0) {
        uint32_t node = item(spank, S_JOB_NODEID);
        int task;

        if (spank_get_item(spank, S_TASK_GLOBAL_ID, &task) != ESPANK_SUCCESS)
            task = -1;
        rc = crystal_task_enter(&ctx.options, node, (uint32_t)task, task_setenv, spank,
                                &err);
    }
    ctx.hooks_ns += crystal_now_ns() - start_ns;
    if (rc == 0) {
        tell_time(spank_getenv(spank, "CRYSTAL_SPANK_TIME", wanted, sizeof wanted) ==
                      ESPANK_SUCCESS,
                  "slurmstepd");
        return 0;
    }
    /* This is the task's own process, and it must not run unemulated. */
    slurm_spank_log("crystal: %s", crystal_error_text(&err));
    _exit(CRYSTAL_TASK_EXIT);
}

int slurm_spank_task_exit(spank_t spank, int argc, char **argv)
{
    const char *stage = ctx.options.value[CRYSTAL_OPTION_STAGE];
    struct crystal_task_end end;
    int task;

    (void)argc;
    (void)argv;
    if (!stage ||
        (strcmp(stage, CRYSTAL_STEP_PROGRAM) != 0 &&
         strcmp(stage, CRYSTAL_STEP_AGENT) != 0) ||
        spank_get_item(spank, S_TASK_EXIT_STATUS, &end.status) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_TASK_GLOBAL_ID, &task) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_UID, &end.uid) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_GID, &end.gid) != ESPANK_SUCCESS)
        return 0;
    end.node = item(spank, S_JOB_NODEID);
    end.step = item(spank, S_JOB_STEPID);
    end.task = (uint32_t)task;
    if (strcmp(stage, CRYSTAL_STEP_PROGRAM) == 0)
        crystal_task_leave(&ctx.options, &end);
    else
        crystal_task_clear_agent(&ctx.options, &end);
    return 0;
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
    const char *stage = ctx.options.value[CRYSTAL_OPTION_STAGE];
    const char *job_dir = ctx.options.value[CRYSTAL_OPTION_JOB_DIR];
    bool always = false;
    int code = 0;

    (void)spank;
    (void)argc;
    (void)argv;
    if (spank_context() == S_CTX_LOCAL) {
        crystal_agent_watch_end();
        if (stage && strcmp(stage, CRYSTAL_STEP_PROGRAM) == 0 && job_dir)
            code = crystal_steps_finish(ctx.scrystal, job_dir, &ctx.pids,
                                        ctx.start_time, &always);
        if (code)
            crystal_exit_code_instead(code, always);
        crystal_local_release_orphan(ctx.pids.salloc, ctx.cluster);
        tell_time(getenv("CRYSTAL_SPANK_TIME") != NULL, "srun");
    }
    crystal_options_fini(&ctx.options);
    free(ctx.config);
    free(ctx.scrystal);
    free(ctx.cluster);
    memset(&ctx, 0, sizeof ctx);
    return 0;
}
