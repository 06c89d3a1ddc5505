/* The emulate stage on an assistant node: it carries the real wire until no other node
 * needs it. By hand the assistants are children of the command, on this machine.
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"
#include "commands/stage_far.h"

#include "replay/assistant.h"
#include "runtime/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

#define CHECK_MS 100
#define END_MS   5000 /* by hand, between the end of the others and theirs */

static struct crystal_assistant *open_assistant(struct stage *stage,
                                                struct crystal_error *err)
{
    struct crystal_assistant *assistant = NULL;
    struct stage_far far = {0};
    uint32_t run = 0;

    if (!stage_far_meet(stage, &far, &run, err)) {
        const struct crystal_assistant_config config = {
            .links = far.links,
            .node = stage->node,
            .node_count = stage->node_count + stage->assistant_count,
            .assistant_count = stage->assistant_count,
            .nodes = far.nodes,
            .coord = stage->client};

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

int stage_assist(struct stage *stage)
{
    struct crystal_error err = {0};
    struct crystal_assistant *assistant = open_assistant(stage, &err);
    uint64_t sent_bytes, taken_bytes;
    int code;

    if (!assistant) {
        (void)stage_stopped(stage, NULL); /* if that is why, it is known */
        return stage_failed(stage, &err);
    }
    code = wait_done(stage, assistant, &err);
    crystal_assistant_counts(assistant, &sent_bytes, &taken_bytes);
    crystal_assistant_destroy(assistant);
    if (code)
        return stage_failed(stage, &err);
    crystal_log(CRYSTAL_LOG_INFO, stage->name,
                "node %u, an assistant, has sent %.1f MB and taken %.1f MB",
                stage->node, (double)sent_bytes / 1e6, (double)taken_bytes / 1e6);
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
