/* The emulate stage on an assistant node: it carries the real wire until no other node
 * needs it. By hand the assistants are children of the command, on this machine.
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"
#include "commands/stage_far.h"

#include "replay/assist_server.h"
#include "replay/assistant.h"
#include "runtime/graph.h"
#include "runtime/log.h"
#include "runtime/outfile.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK_MS 100
#define END_MS   5000 /* by hand, between the end of the others and theirs */

/* What virtual ranks contribute. *ret stays NULL where nothing was captured. */
static int open_graph(const struct stage *stage, struct crystal_graph **ret,
                      struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = stage_path(stage, path, err, "job.graph");

    if (code || access(path, F_OK))
        return code;
    *ret = crystal_graph_open(path, err);
    return *ret ? 0 : -err->code;
}

/* *ret_run: number of the run's directory. */
static struct crystal_assistant *open_assistant(struct stage *stage,
                                                const struct crystal_graph *graph,
                                                uint32_t *ret_run,
                                                struct crystal_error *err)
{
    struct crystal_assistant *assistant = NULL;
    struct stage_far far = {0};

    if (!stage_far_meet(stage, &far, ret_run, err)) {
        const struct crystal_assistant_config config = {
            .links = far.links,
            .node = stage->node,
            .node_count = stage->node_count + stage->assistant_count,
            .assistant_count = stage->assistant_count,
            .nodes = far.nodes,
            .coord = stage->client,
            .graph = graph};

        far.links = NULL; /* the assistant's now */
        assistant = crystal_assistant_create(&config, err);
    }
    stage_far_fini(&far);
    return assistant;
}

/* Until all others are through or the coordinator ends the stage. */
static int wait_done(struct stage *stage, struct crystal_assistant *assistant,
                     struct crystal_error *err)
{
    while (!crystal_assistant_is_done(assistant)) {
        int code = stage_pause(stage, CHECK_MS, err);

        if (!code)
            code = stage_stopped(stage, err);
        if (code != -ETIMEDOUT)
            return code;
        code = crystal_assistant_status(assistant, err);
        if (code) /* whoever knows more speaks */
            return stage_stopped(stage, err) == -ECANCELED ? -ECANCELED : code;
    }
    return 0;
}

/* runs/NNN/assistant.NODE.yaml, for the report. */
static int write_counts(const struct stage *stage, uint32_t run,
                        const struct crystal_assist_counts *counts,
                        struct crystal_error *err)
{
    struct crystal_outfile f;
    char path[PATH_MAX];
    int code =
        stage_path(stage, path, err, "runs/%03u/assistant.%u.yaml", run, stage->node);

    if (!code)
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);
    if (code)
        return code;
    fprintf(f.stream,
            "# What an assistant has moved; written by scrystal agent.\n"
            "version: 1\nsent_bytes: %" PRIu64 "\ntaken_bytes: %" PRIu64
            "\ngiven_bytes: %" PRIu64 " # of those sent, made by the sandbox\n",
            counts->sent_bytes, counts->taken_bytes, counts->given_bytes);
    return crystal_outfile_close(&f, 0, err);
}

/* 0, or negative errno with err set. */
static int assist(struct stage *stage, const struct crystal_graph *graph,
                  struct crystal_assist_counts *ret, struct crystal_error *err)
{
    uint32_t run = 0;
    struct crystal_assistant *assistant = open_assistant(stage, graph, &run, err);
    int code;

    if (!assistant) {
        (void)stage_stopped(stage, NULL); /* if that is why, it is known */
        return -err->code;
    }
    code = wait_done(stage, assistant, err);
    crystal_assistant_counts(assistant, ret);
    crystal_assistant_destroy(assistant);
    return code ? code : write_counts(stage, run, ret, err);
}

int stage_assist(struct stage *stage)
{
    struct crystal_error err = {0};
    struct crystal_assist_counts counts = {0};
    struct crystal_graph *graph = NULL;
    int code = open_graph(stage, &graph, &err);

    if (!code)
        code = assist(stage, graph, &counts, &err);
    crystal_graph_close(graph);
    if (code)
        return stage_failed(stage, &err);
    crystal_log(CRYSTAL_LOG_INFO, stage->name,
                "node %u, an assistant, has sent %.1f MB and taken %.1f MB",
                stage->node, (double)counts.sent_bytes / 1e6,
                (double)counts.taken_bytes / 1e6);
    return 0;
}

/* --- by hand --- */

struct crystal_launch *stage_assistants_start(const char *job_dir, uint32_t node_count,
                                              uint32_t count, struct crystal_error *err)
{
    struct crystal_launch *launch = crystal_launch_create(err);
    char number[16], all[16];
    char *argv[] = {(char *)"/proc/self/exe",
                    (char *)"agent",
                    (char *)"--job",
                    (char *)(uintptr_t)job_dir,
                    (char *)"--stage=emulate",
                    (char *)"--node",
                    number,
                    (char *)"--nodes",
                    all,
                    NULL};

    (void)snprintf(all, sizeof all, "%u", node_count + count);
    for (uint32_t i = 0; launch && i < count; i++) {
        const struct crystal_launch_rank rank = {
            .lrank = i, .argv = argv, .death_signal = SIGTERM};

        (void)snprintf(number, sizeof number, "%u", node_count + i);
        if (crystal_launch_start(launch, &rank, err)) {
            crystal_launch_destroy(launch);
            return NULL;
        }
    }
    return launch;
}

void stage_assistants_end(struct crystal_launch *launch)
{
    struct crystal_launch_end end;
    int signal;

    for (int waited_ms = 0;
         launch && crystal_launch_running(launch) && waited_ms < END_MS;
         waited_ms += CHECK_MS)
        if (crystal_launch_wait(launch, CHECK_MS, &end, &signal) < 0)
            break;
    crystal_launch_destroy(launch);
}
