/* An emulated step as a sequence of job steps.
 *
 * Each helper step is a child srun of this process that dies with it (PDEATHSIG), so
 * that nothing outlives the user's srun, whatever ends it. Files that a step waits for
 * are in the job directory, which every node of the job sees.
 */
#include "config.h"

#include "spank/steps.h"

#include "runtime/claim.h"
#include "runtime/space.h"
#include "spank/ask.h"
#include "spank/helpers.h"
#include "spank/process.h"
#include "spank/step_line.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_STAGE = CRYSTAL_STEPS_FAILED };
enum {
    START_TIMEOUT_MS = 60000,
    FAILED_TIMEOUT_MS = 2000 /* other nodes' agents, once one has failed */
};

static int say(const char *place, const struct crystal_error *err, int code)
{
    dprintf(2, "crystal: %s: %s\n", place, crystal_error_text(err));
    return code;
}

static void path_in(const struct crystal_steps *s, char *out, const char *name)
{
    snprintf(out, PATH_MAX, "%s/%s", s->request->job_dir, name);
}

/* --- the steps themselves --- */

static int start_helper(const struct crystal_steps *s, struct crystal_argv *line,
                        const char *log, pid_t *ret_pid, struct crystal_error *err)
{
    char self[PATH_MAX];
    struct crystal_process_spec spec = {
        .path = crystal_process_self(self, sizeof self),
        .argv = line,
        .prepare = crystal_step_prepare,
        .context = (void *)(uintptr_t)s, /* const for crystal_step_prepare */
        .background = true,
        .log = log,
    };
    int rc = crystal_process_start(&spec, ret_pid, err);

    crystal_argv_fini(line);
    return rc;
}

/* Prints what a helper step that did not come up has written for the user; false =
 * nothing. srun's own lines stay in the file. */
static bool show_log(const char *path)
{
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[1024];
    bool any = false;

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "crystal: ", 9) == 0) {
            dprintf(2, "%s", line);
            any = true;
        }
    if (file)
        fclose(file);
    return any;
}

/* Waits until path is there, with our claim where one is given, as long as the helper
 * runs and no signal comes. log is where the helper writes, NULL = to us. 0, or the
 * exit code to end with. */
static int wait_for_file(const struct crystal_steps *s, const char *path,
                         const char *claim, pid_t *helper, const char *step,
                         const char *log)
{
    static const struct timespec pause = {0, 20 * 1000 * 1000};
    uint64_t deadline_ms = crystal_process_now_ms() + START_TIMEOUT_MS;
    bool is_own;

    for (;;) {
        struct crystal_error err = {0};
        int code, number;

        if (claim ? crystal_claim_has(path, claim) : access(path, F_OK) == 0)
            return 0;
        if (crystal_process_wait(*helper, 0, &code)) {
            *helper = 0;
            if (crystal_space_check(s->request->job_dir, &err) < 0)
                (void)say(step, &err, 0); /* its own sentence found no room */
            else if (!show_log(log) && (log || code != EXIT_STAGE)) /* it said why */
                dprintf(2, "crystal: %s: ended with exit code %d before it was ready\n",
                        step, code);
            return code ? code : EXIT_STAGE;
        }
        number = crystal_process_pending_signal();
        if (number)
            return 128 + number;
        if (!claim && /* behind the coordinator: agents */
            (code = crystal_helpers_codes(s->request->job_dir, &is_own)) != 0) {
            int unused;

            if (crystal_process_wait(*helper, FAILED_TIMEOUT_MS, &unused))
                *helper = 0;
            return code; /* whose agent failed has said why */
        }
        if (crystal_process_now_ms() >= deadline_ms) {
            dprintf(2,
                    "crystal: %s: not ready after %d s; see squeue -s and log/ in the "
                    "job directory\n",
                    step, START_TIMEOUT_MS / 1000);
            return EXIT_STAGE;
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* Its log gets the name that everybody knows once the job directory is ours. */
static int start_coordinator(const struct crystal_steps *s,
                             struct crystal_helpers *helpers)
{
    struct crystal_error err = {0};
    struct crystal_argv line = {0};
    char path[PATH_MAX], log[PATH_MAX], claim[CRYSTAL_CLAIM_BYTES], name[160];
    int code;

    path_in(s, path, "log");
    if (mkdir(path, 0700) < 0 && errno != EEXIST) {
        crystal_error_set(&err, errno, "%s: %s", path, strerror(errno));
        return say("coordinator", &err, EXIT_STAGE);
    }
    crystal_claim_own(claim); /* the coordinator of another job may be there */
    snprintf(name, sizeof name, "log/coord.%s.log", claim);
    path_in(s, log, name);
    path_in(s, path, "coord");
    crystal_step_coordinator(s, &line);
    if (start_helper(s, &line, log, &helpers->coord, &err) < 0)
        return say("coordinator", &err, EXIT_STAGE);
    code = wait_for_file(s, path, claim, &helpers->coord, "coordinator", log);
    path_in(s, path, "log/coord.log");
    if (code)
        (void)unlink(log); /* what it says has been shown */
    else
        (void)rename(log, path); /* else it keeps its long name */
    return code;
}

/* One stage in the foreground. spec->argv is freed. */
static int run_stage(const struct crystal_process_spec *spec, const char *name,
                     const char *title, pid_t coord)
{
    struct crystal_error err = {0};
    bool coord_ended;
    int rc;

    rc = crystal_process_stage(spec, title, coord, &coord_ended, &err);
    if (rc < 0)
        return say(name, &err, EXIT_STAGE);
    if (coord_ended)
        dprintf(2, "crystal: %s: the coordinator has ended\n", name);
    if (rc > 0)
        dprintf(2,
                "crystal: the %s stage failed (exit code %d); the program was not "
                "started\n",
                name, rc);
    return rc;
}

static int run_agent_stage(const struct crystal_steps *s, const char *stage,
                           uint32_t ranks, pid_t coord)
{
    struct crystal_argv line = {0};
    char self[PATH_MAX];
    struct crystal_process_spec spec = {.path = crystal_process_self(self, sizeof self),
                                        .argv = &line,
                                        .prepare = crystal_step_prepare,
                                        .context = (void *)(uintptr_t)s};
    char title[128];
    int rc, used;

    used = snprintf(title, sizeof title, "%s: %u of %u ranks", stage, ranks,
                    s->request->logical_rank_count);
    if (s->request->iterations)
        snprintf(title + used, sizeof title - (size_t)used, ", %u iterations",
                 s->request->iterations);
    crystal_step_agent(s, stage, stage, true, &line);
    rc = run_stage(&spec, stage, title, coord);
    crystal_argv_fini(&line);
    return rc;
}

/* From file to file, so here and not as a job step. */
static int run_graph(const struct crystal_steps *s, pid_t coord)
{
    struct crystal_argv line = {0};
    struct crystal_process_spec spec = {.path = s->scrystal, .argv = &line};
    char title[128];
    int rc;

    snprintf(title, sizeof title, "graph: %u ranks for %u", s->request->live_count,
             s->request->logical_rank_count);
    crystal_step_scrystal(s->scrystal, "graph", s->request->job_dir, &line);
    rc = run_stage(&spec, "graph", title, coord);
    crystal_argv_fini(&line);
    return rc;
}

/* What agents and their tasks left in an earlier run; usually there is nothing. */
static void remove_marks(const struct crystal_steps *s)
{
    static const char *const what[] = {"env", "spank", "ends", "code"};
    char name[32], path[PATH_MAX];

    for (uint32_t node = 0; node < s->request->node_count; node++)
        for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
            snprintf(name, sizeof name, "agent.%u.%s", node, what[i]);
            path_in(s, path, name);
            (void)unlink(path);
        }
}

/* Agents meet at the coordinator, so nobody waits for these here. */
static int start_assistants(const struct crystal_steps *s,
                            struct crystal_helpers *helpers)
{
    struct crystal_error err = {0};
    struct crystal_argv line = {0};

    if (!s->request->assistant_count)
        return 0;
    crystal_step_assistants(s, &line);
    return start_helper(s, &line, NULL, &helpers->assist, &err) < 0
               ? say("assistants", &err, EXIT_STAGE)
               : 0;
}

/* Starts one agent per sandbox node and waits for what they tell the tasks. */
static int start_agents(const struct crystal_steps *s, struct crystal_helpers *helpers)
{
    struct crystal_error err = {0};
    struct crystal_argv line = {0};
    char name[32], path[PATH_MAX];
    int code = 0;

    crystal_step_agent(s, CRYSTAL_STEP_AGENT, CRYSTAL_STEP_PROGRAM, false, &line);
    if (start_helper(s, &line, NULL, &helpers->agent, &err) < 0)
        return say("agent", &err, EXIT_STAGE);
    for (uint32_t node = 0; code == 0 && node < s->request->node_count; node++) {
        snprintf(name, sizeof name, "agent.%u.env", node);
        path_in(s, path, name);
        code = wait_for_file(s, path, NULL, &helpers->agent, "agent", NULL);
    }
    return code;
}

/* Returns only where exec failed. */
static int become_program(const struct crystal_steps *s,
                          const struct crystal_helpers *helpers)
{
    struct crystal_argv line = {0};
    char pids[64], self[PATH_MAX];

    snprintf(pids, sizeof pids, "%d,%d,%d,%d", (int)helpers->coord, (int)helpers->agent,
             (int)helpers->assist, (int)s->salloc);
    crystal_step_program(s, &line);
    if (!crystal_argv_is_ok(&line) || setenv(CRYSTAL_STEPS_ENV, pids, 1) < 0) {
        dprintf(2, "crystal: out of memory\n");
        return EXIT_STAGE;
    }
    dprintf(2, "crystal: emulate: %u of %u ranks\n", s->request->task_count,
            s->request->logical_rank_count);
    crystal_step_leave_out_components();
    crystal_process_reset_signals();
    execv(crystal_process_self(self, sizeof self), line.v);
    dprintf(2, "crystal: srun: %s\n", strerror(errno));
    crystal_argv_fini(&line);
    return EXIT_STAGE;
}

static int run_stages(const struct crystal_steps *s, struct crystal_helpers *helpers)
{
    const struct crystal_request *r = s->request;
    int code;

    code = start_coordinator(s, helpers);
    if (code == 0) /* the job directory is ours */
        remove_marks(s);
    if (code == 0 && r->stages & CRYSTAL_STAGE_BIT_CAPTURE)
        code = run_agent_stage(s, CRYSTAL_STEP_CAPTURE, r->live_count, helpers->coord);
    if (code == 0 && r->stages & CRYSTAL_STAGE_BIT_PLAN)
        code = run_graph(s, helpers->coord);
    if (code == 0 && r->stages & CRYSTAL_STAGE_BIT_PLAN)
        code = run_agent_stage(s, CRYSTAL_STEP_PLAN, r->task_count, helpers->coord);
    if (code == 0 && r->stages & CRYSTAL_STAGE_BIT_EMULATE)
        code = start_assistants(s, helpers);
    if (code == 0 && r->stages & CRYSTAL_STAGE_BIT_EMULATE)
        code = start_agents(s, helpers);
    return code;
}

int crystal_steps_run(const struct crystal_steps *steps)
{
    struct crystal_error err = {0};
    struct crystal_helpers helpers = {0};
    int code;

    if (crystal_process_watch_signals(&err) < 0)
        return say("srun", &err, EXIT_STAGE);
    code = run_stages(steps, &helpers);
    if (code == 0 && (code = crystal_process_pending_signal()) != 0)
        code += 128;
    if (code == 0 && steps->request->stages & CRYSTAL_STAGE_BIT_EMULATE)
        code = become_program(steps, &helpers);
    if (code && helpers.agent) {
        crystal_process_end(helpers.agent); /* no task comes that it could wait for */
        helpers.agent = 0;
    }
    (void)crystal_helpers_finish(steps->scrystal, steps->request->job_dir,
                                 &helpers); /* code is known */
    return code;
}
