/* capture, plan and emulate without Slurm: this process starts the coordinator as a
 * child and is the node's agent itself.
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"

#include "runtime/coord_file.h"
#include "runtime/infile.h"
#include "runtime/log.h"
#include "runtime/space.h"
#include "runtime/standins.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define COORD_READY_MS  30000
#define COORD_FINISH_MS 30000
#define COORD_PAUSE_MS  20

/* DIR/coord is there, and it is that of our coordinator, not another job's. */
static int is_ready(const char *path, pid_t pid)
{
    char value[16], own[16];

    (void)snprintf(own, sizeof own, "%d", (int)pid);
    return crystal_coord_file_value(path, "pid", value, sizeof value, NULL) == 0 &&
           strcmp(value, own) == 0;
}

/* What a coordinator that did not come up said last, as our sentence. */
static void coord_sentence(const char *job_dir, const char *log,
                           const struct crystal_launch_end *end,
                           struct crystal_error *err)
{
    static const char prefix[] = "crystal: ";
    char line[1024], last[1024] = "", how[128];
    FILE *file = crystal_infile_stream(log, NULL);

    while (file && fgets(line, sizeof line, file))
        memcpy(last, line, sizeof last);
    if (file)
        (void)fclose(file); /* read-only */
    last[strcspn(last, "\n")] = 0;
    crystal_launch_end_text(end, how, sizeof how);
    if (crystal_space_check(job_dir, err))
        return; /* its own sentence found no room */
    if (strncmp(last, prefix, sizeof prefix - 1) == 0)
        (void)crystal_error_set(err, ECHILD, "%s", last + sizeof prefix - 1);
    else
        (void)crystal_error_set(err, ECHILD, "the coordinator %s; see %s", how, log);
}

struct crystal_launch *stage_coord_start(const char *job_dir, const char *node,
                                         struct crystal_error *err)
{
    char *argv[] = {(char *)"/proc/self/exe",
                    (char *)"coord",
                    (char *)"--job",
                    (char *)(uintptr_t)job_dir,
                    (char *)"--node",
                    (char *)(uintptr_t)node,
                    NULL};
    const char *dot = node ? "." : "", *number = node ? node : "";
    char path[PATH_MAX], log[PATH_MAX];
    struct crystal_launch_rank coord = {.argv = argv,
                                        .log_path = log,
                                        .death_signal =
                                            SIGTERM}; /* it removes its files */
    struct crystal_launch *launch;

    if (!node)
        argv[4] = NULL; /* the job's own */
    if (snprintf(path, sizeof path, "%s/coord%s%s", job_dir, dot, number) >=
            (int)sizeof path ||
        snprintf(log, sizeof log, "%s/log/coord%s%s.log", job_dir, dot, number) >=
            (int)sizeof log) {
        (void)crystal_error_set(err, ENAMETOOLONG, "%s: path too long", job_dir);
        return NULL;
    }
    launch = crystal_launch_create(err);
    if (!launch || crystal_launch_start(launch, &coord, err))
        goto err;
    for (int waited_ms = 0; !is_ready(path, crystal_launch_pid(launch, 0));
         waited_ms += COORD_PAUSE_MS) {
        struct crystal_launch_end end;
        int signal, got = crystal_launch_wait(launch, COORD_PAUSE_MS, &end, &signal);

        if (got == 0 && waited_ms < COORD_READY_MS)
            continue;
        if (got == 0)
            (void)crystal_error_set(
                err, ETIMEDOUT, "the coordinator is not ready after 30 s; see %s", log);
        else if (got < 0)
            (void)crystal_error_set(err, EINTR, "stopped by signal %d", signal);
        else
            coord_sentence(job_dir, log, &end, err);
        goto err;
    }
    return launch;

err:
    crystal_launch_destroy(launch);
    return NULL;
}

int stage_coord_finish(struct crystal_launch *coord, const char *job_dir,
                       struct crystal_error *err)
{
    char coord_file[PATH_MAX], token_file[PATH_MAX];
    struct crystal_launch_end end = {0};
    struct crystal_client *client;
    int signal, code;

    (void)snprintf(coord_file, sizeof coord_file, "%s/coord", job_dir); /* as above */
    (void)snprintf(token_file, sizeof token_file, "%s/token", job_dir);
    client =
        crystal_client_open(coord_file, token_file, CRYSTAL_ROLE_CONTROL, 0, NULL, err);
    if (!client)
        return -err->code;
    code = crystal_client_finish(client, err);
    crystal_client_close(client);
    if (code)
        return code;
    if (crystal_launch_wait(coord, COORD_FINISH_MS, &end, &signal) != 1)
        return crystal_error_set(err, ETIMEDOUT,
                                 "the coordinator does not end, stopping it");
    return 0;
}

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(enum stage_kind kind, FILE *out)
{
    static const char *const what[] = {
        [STAGE_CAPTURE] =
            "Runs the live ranks of the job in DIR and records what they do\n"
            "in DIR/ranks; their output goes to DIR/log.\n",
        [STAGE_PLAN] =
            "Runs the sandbox ranks against virtual ranks that answer at once\n"
            "and composes the measured durations into DIR/job.profile.\n",
        [STAGE_EMULATE] = "Runs the sandbox ranks against virtual ranks that keep the\n"
                          "timeline's time, and writes DIR/report.txt.\n"};

    fprintf(out,
            "usage: scrystal %s --job=DIR [-- PROGRAM ARG...]\n\n%s"
            "Without PROGRAM, the one that scrystal layout was given.\n\n"
            "  --job=DIR   the job directory\n",
            stage_name(kind), what[kind]);
}

/* The coordinator writes the report at the end of a job that has emulated. */
static void say_report(const char *job_dir, time_t started)
{
    char path[PATH_MAX], text[256];
    struct stat st;

    if (snprintf(path, sizeof path, "%s/report.txt", job_dir) < (int)sizeof path &&
        stat(path, &st) == 0 && st.st_mtime >= started) {
        crystal_log(CRYSTAL_LOG_INFO, stage_name(STAGE_EMULATE), "report: %s", path);
        if (crystal_standins_text(job_dir, "", text, sizeof text))
            crystal_log(CRYSTAL_LOG_INFO, stage_name(STAGE_EMULATE), "%s", text);
    }
}

static int run_stage(struct stage *stage, struct crystal_launch **ret_assistants)
{
    const uint32_t assistants =
        stage->kind == STAGE_EMULATE ? stage->layout.assistant_count : 0;
    struct crystal_error err = {0};

    if (stage_begin(stage, 0, 1 + assistants, &err))
        return stage_failed(stage, &err);
    if (assistants && !(*ret_assistants = stage_assistants_start(stage->job_dir, 1,
                                                                 assistants, &err)))
        return stage_failed(stage, &err);
    crystal_log(CRYSTAL_LOG_INFO, stage->name, "%u of %u ranks",
                stage->kind == STAGE_CAPTURE ? stage->layout.live_count
                                             : stage->layout.sandbox_count,
                stage->layout.lrank_count);
    return stage->kind == STAGE_CAPTURE ? stage_capture(stage)
           : stage->kind == STAGE_PLAN  ? stage_plan(stage)
                                        : stage_emulate(stage, 0);
}

/* To its end, so that there is something to report. */
static int has_run(int code)
{
    return !code || code == CRYSTAL_EXIT_OTHER;
}

static int run(enum stage_kind kind, const char *job_dir, char **program)
{
    struct crystal_launch *coord, *assistants = NULL;
    struct crystal_error err = {0};
    time_t started = time(NULL);
    struct stage stage;
    int code;

    if (stage_check_libraries(&err) ||
        stage_open(&stage, kind, job_dir, program, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, stage_name(kind), "%s", err.text);
        return CRYSTAL_EXIT_USAGE;
    }
    coord = crystal_jobdir_mkdir(stage.dir, "log", &err)
                ? NULL
                : stage_coord_start(stage.job_dir, NULL, &err);
    if (coord) {
        code = run_stage(&stage, &assistants);
    } else {
        crystal_log(CRYSTAL_LOG_ERROR, stage.name, "%s", err.text);
        code = CRYSTAL_EXIT_STAGE;
    }
    stage_close(&stage);
    stage_assistants_end(assistants);
    if (coord && has_run(code) && stage_coord_finish(coord, job_dir, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, stage_name(kind), "%s", err.text);
        code = CRYSTAL_EXIT_STAGE;
    }
    crystal_launch_destroy(coord);
    if (kind == STAGE_EMULATE && has_run(code))
        say_report(job_dir, started);
    return code;
}

int stage_by_hand(enum stage_kind kind, int argc, char **argv)
{
    const char *job_dir = NULL;
    int option;

    optind = 1;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) >= 0) {
        switch (option) {
        case 'j':
            job_dir = optarg;
            break;
        case 'h':
            help(kind, stdout);
            return 0;
        default:
            help(kind, stderr);
            return CRYSTAL_EXIT_USAGE;
        }
    }
    if (!job_dir) {
        help(kind, stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    return run(kind, job_dir, argv + optind);
}
