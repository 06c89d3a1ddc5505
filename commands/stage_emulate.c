/* The emulate stage on one node: the virtual ranks keep the timeline's time while the
 * sandbox ranks run, as Slurm's tasks (they read DIR/agent.NODE.env) or, by hand, as
 * our children.
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"
#include "commands/stage_node.h"
#include "commands/task_ends.h"

#include "replay/report.h"
#include "runtime/env.h"
#include "runtime/library.h"
#include "runtime/log.h"
#include "runtime/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RUNS_MAX 100000
#define CHECK_MS 100

#define RECORDS_MS       5000 /* the other nodes end at the same time */
#define RECORDS_PAUSE_MS 10

/* Makes the next free DIR/runs/NNN; its number into *ret. */
static int make_run_dir(const struct stage *stage, uint32_t *ret,
                        struct crystal_error *err)
{
    int code = crystal_jobdir_mkdir(stage->dir, "runs", err);
    char path[PATH_MAX];

    for (uint32_t n = 1; !code && n < RUNS_MAX; n++) {
        *ret = n;
        code = stage_path(stage, path, err, "runs/%03u", n);
        if (code || mkdir(path, 0700) == 0)
            return code;
        if (errno != EEXIST)
            return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    }
    return code ? code
                : crystal_error_set(err, ENOSPC, "%s/runs is full; remove old runs",
                                    stage->job_dir);
}

/* DIR/agent.NODE.env for the tasks that Slurm starts. */
static int write_env(const struct stage *stage, uint32_t node,
                     struct crystal_error *err)
{
    struct crystal_outfile f;
    char path[PATH_MAX];
    int code = stage_path(stage, path, err, "agent.%u.env", node);

    if (!code && stage->env.failed)
        code = crystal_error_set(err, ENOMEM, "out of memory");
    if (!code)
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);
    if (code)
        return code;
    for (size_t i = 0; i < stage->env.count; i++)
        fprintf(f.stream, "%s\n", stage->env.entries[i]);
    return crystal_outfile_close(&f, 0, err);
}

/* What this node leaves of the run: sealed records and run.yaml, run.NODE.yaml of
 * others than the first. */
static int finish_run(const struct stage *stage, const char *sub,
                      struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = stage_node_seal_runs(stage, sub, stage->own, err);

    if (!code && stage->node)
        code = stage_path(stage, path, err, "%s/run.%u.yaml", sub, stage->node);
    else if (!code)
        code = stage_path(stage, path, err, "%s/run.yaml", sub);
    if (!code)
        code = crystal_node_run_yaml(stage->service, path, err);
    return code;
}

/* What the agent looks after while Slurm's tasks run. */
struct watch {
    struct stage *stage;
    struct task_ends ends;
    int is_awaited; /* what the tasks wait for was written */
};

static int check_watch(void *context, struct crystal_error *err)
{
    struct watch *watch = context;
    int code = stage_node_check(watch->stage, err);

    return code ? task_ends_explain(&watch->ends, code, err)
                : task_ends_check(&watch->ends, err);
}

static int wait_tasks(struct stage *stage, struct watch *watch,
                      struct crystal_error *err)
{
    struct crystal_error end_err = {0};
    int code;

    watch->stage = stage;
    watch->ends.node = stage->service;
    code = stage_wait_job(stage, check_watch, watch, err);
    stage->code = watch->ends.code;
    if (code)
        crystal_node_abort(stage->service, crystal_error_text(err));
    else if ((stage->code = task_ends_result(&watch->ends, &end_err)) != 0)
        crystal_log(CRYSTAL_LOG_ERROR, stage->name, "%s", end_err.text); /* not ours */
    return code;
}

/* This agent has failed; the tasks must not wait for it. */
static void outlast_tasks(struct stage *stage, struct task_ends *ends)
{
    struct crystal_launch_end end;
    int signal;

    while (!task_ends_finish(ends) &&
           crystal_launch_wait(stage->launch, CHECK_MS, &end, &signal) != -EINTR)
        ;
}

/* The program has done well: was it the captured one? */
static int check_job(const struct stage *stage, const char *sub,
                     struct crystal_error *err)
{
    for (uint32_t i = stage->own.first; i < stage->own.end; i++)
        if (!crystal_node_has_joined(stage->service, stage->layout.sandbox[i]))
            return crystal_error_set(err, ESTALE, "rank %u made no NCCL call",
                                     stage->layout.sandbox[i]);
    return stage->node ? 0 : crystal_report_fit(stage->job_dir, sub, err);
}

/* This node's ranks run as our children; other nodes' need our service to their end. */
static int run_ranks(struct stage *stage, struct crystal_error *err)
{
    const struct timespec pause = {0, CHECK_MS * 1000000L};
    int code = stage_start_ranks(stage, stage->layout.sandbox + stage->own.first,
                                 stage->own.end - stage->own.first, 0, err);

    if (!code)
        code = stage_wait_ranks(stage, stage_node_check, stage, err);
    while (!code && !crystal_node_is_done(stage->service)) {
        (void)nanosleep(&pause, NULL);
        code = stage_stopped(stage, err);
        if (code == -ETIMEDOUT)
            code = stage_node_check(stage, err);
        if (code && !stage->was_told)
            code = stage_explain(stage, code, err);
    }
    return code;
}

/* Environment and files, then the program runs, here or as Slurm's tasks. */
static int run_program(struct stage *stage, struct watch *watch, const char *sub,
                       struct crystal_error *err)
{
    char library[PATH_MAX], run[PATH_MAX];
    int code =
        crystal_library_path("libcrystal-hostccl.so", library, sizeof library, err);

    if (!code)
        code = stage_path(stage, run, err, "%s", sub);
    if (code)
        return code;
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_NCCL_LIBRARY, library);
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_RUN_DIR, run);
    if (!stage->program)
        stage_env_rules(stage, &stage->env); /* the tasks read them with the rest */
    code = write_env(stage, stage->node, err);
    if (code)
        return code;
    watch->is_awaited = !stage->program;
    return stage->program ? run_ranks(stage, err) : wait_tasks(stage, watch, err);
}

/* Of a run that has been: 0 or the exit code, and the sentence. The first node looks at
 * what all have left. */
static int judge_run(struct stage *stage, const char *sub)
{
    const struct timespec pause = {0, RECORDS_PAUSE_MS * 1000000L};
    struct crystal_error err = {0};
    int code;

    for (int waited_ms = 0; !crystal_node_has_records(stage->service) && !stage->node &&
                            waited_ms < RECORDS_MS;
         waited_ms += RECORDS_PAUSE_MS)
        (void)nanosleep(&pause, NULL);
    code = check_job(stage, sub, &err);
    if (code == -ESTALE)
        crystal_log(CRYSTAL_LOG_ERROR, stage->name,
                    "%s; this is not the captured job, run 'scrystal capture', 'graph' "
                    "and 'plan' again for it",
                    crystal_error_text(&err));
    else if (code)
        crystal_log(CRYSTAL_LOG_ERROR, stage->name, "%s", crystal_error_text(&err));
    return code == -ESTALE ? CRYSTAL_EXIT_OTHER : code ? CRYSTAL_EXIT_STAGE : 0;
}

/* The run's directory, relative to DIR into sub, and the node's service, together with
 * those of the other nodes. */
static int open_run(struct stage *stage, int has_virtual, char *sub, size_t sub_bytes,
                    struct crystal_error *err)
{
    struct stage_far far = {0};
    char run[PATH_MAX] = "";
    uint32_t number = 0;
    int code = stage->node ? 0 : stage_node_inputs(stage, has_virtual, err);

    stage_env_common(stage);
    stage_env_pinned(stage, stage->own.end - stage->own.first);
    if (!code && !stage->node)
        code = make_run_dir(stage, &number, err);
    if (!code)
        code = stage_far_meet(stage, &far, &number, err);
    (void)snprintf(sub, sub_bytes, "runs/%03u", number);
    if (!code)
        code = stage_node_open(stage, has_virtual, &far, err);
    stage_far_fini(&far);
    if (code && number && !stage_path(stage, run, NULL, "%s", sub))
        (void)rmdir(run); /* empty: nothing has run */
    return code;
}

static int emulate(struct stage *stage, struct watch *watch)
{
    struct crystal_error err = {0}, end_err = {0};
    char sub[32];
    /* Where every rank is real nobody has to keep a timeline's time. */
    int has_virtual = stage->layout.sandbox_count < stage->layout.lrank_count;
    int code, ended, exit_code;

    if (open_run(stage, has_virtual, sub, sizeof sub, &err)) {
        (void)stage_stopped(stage, NULL); /* if that is why, it is known */
        return stage_failed(stage, &err);
    }
    code = run_program(stage, watch, sub, &err);
    ended = finish_run(stage, sub, &end_err);
    if (ended && !code) { /* the first fault is what is told */
        code = ended;
        err = end_err;
    }
    exit_code = code                          ? stage_failed(stage, &err)
                : has_virtual && !stage->code ? judge_run(stage, sub)
                                              : 0;
    stage_node_close(stage);
    return exit_code;
}

int stage_emulate(struct stage *stage, uint32_t node_number)
{
    struct watch watch = {.ends.job_dir = stage->job_dir,
                          .ends.node_count = stage->node_count,
                          .ends.all_task_count = stage->layout.sandbox_count,
                          .ends.own_node = node_number,
                          .ends.task_count = stage->own.end - stage->own.first};
    struct crystal_error err = {0};
    char path[PATH_MAX];
    int code;

    if (stage->program) {
        code = emulate(stage, &watch);
        return stage->code ? stage->code : code; /* the program's own */
    }
    watch.ends.list = calloc(watch.ends.task_count + 1, sizeof *watch.ends.list);
    if (!watch.ends.list)
        (void)crystal_error_set(&err, ENOMEM, "out of memory");
    if (!watch.ends.list ||
        stage_path(stage, path, &err, "agent.%u.code", node_number) ||
        task_ends_code_begin(path, &err)) {
        free(watch.ends.list);
        return stage_failed(stage, &err);
    }
    code = emulate(stage, &watch);
    watch.ends.node = NULL; /* it is closed */
    task_ends_code_end(path, stage->code ? stage->code : code, stage->code != 0);
    if (code && code != CRYSTAL_EXIT_OTHER && !stage->stop_signal && watch.is_awaited)
        outlast_tasks(stage, &watch.ends);
    free(watch.ends.list);
    return stage->code ? 0 : code; /* srun has that code from the file */
}
