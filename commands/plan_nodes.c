/* See plan_nodes.h. */
#include "config.h"

#include "commands/plan_nodes.h"

#include "commands/stage_node.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MEET_MS 20 /* between two looks */

/* The node's coordinator is up: the stage's client, and where ranks find it. */
static int use_own(struct plan_nodes *nodes, const char *number,
                   struct crystal_error *err)
{
    struct stage *stage = nodes->stage;
    struct crystal_client *client = NULL;
    int code = stage_path(stage, stage->coord_file, err, "coord.%s", number);

    if (!code)
        code = stage_path(stage, stage->token_file, err, "token.%s", number);
    if (!code) {
        client = crystal_client_open(stage->coord_file, stage->token_file,
                                     CRYSTAL_ROLE_AGENT, stage->node, NULL, err);
        code = client ? 0 : -EIO;
    }
    if (!code)
        code = stage_find_store(stage, err);
    if (code) {
        crystal_client_close(client);
        return code;
    }
    nodes->job = stage->client;
    stage->client = client;
    return 0;
}

int plan_nodes_init(struct plan_nodes *nodes, struct stage *stage,
                    struct crystal_error *err)
{
    char number[16];
    int code;

    memset(nodes, 0, sizeof *nodes);
    nodes->stage = stage;
    memcpy(nodes->coord_file, stage->coord_file, sizeof nodes->coord_file);
    memcpy(nodes->token_file, stage->token_file, sizeof nodes->token_file);
    if (stage->node_count < 2)
        return 0;
    (void)snprintf(number, sizeof number, "%u", stage->node);
    code = crystal_jobdir_mkdir(stage->dir, "log", err);
    if (code)
        return code;
    nodes->coord = stage_coord_start(stage->job_dir, number, err);
    return nodes->coord ? use_own(nodes, number, err) : -ECHILD;
}

void plan_nodes_fini(struct plan_nodes *nodes)
{
    struct stage *stage = nodes->stage;

    memcpy(stage->coord_file, nodes->coord_file, sizeof stage->coord_file);
    memcpy(stage->token_file, nodes->token_file, sizeof stage->token_file);
    if (nodes->job) {
        crystal_client_close(stage->client);
        stage->client = nodes->job;
        nodes->job = NULL;
        stage->has_told = 0; /* that was said to the other */
        if (!nodes->is_stopped)
            stage->was_told = stage->coord_found = 0;
    }
    crystal_launch_destroy(nodes->coord);
    nodes->coord = NULL;
}

/* As stage_stopped, of the job's coordinator. */
static int job_stopped(struct plan_nodes *nodes, struct crystal_error *err)
{
    struct stage *stage = nodes->stage;
    struct crystal_client *own = stage->client;
    int code;

    stage->client = nodes->job;
    code = stage_stopped(stage, err);
    stage->client = own;
    nodes->is_stopped |= code == -ECANCELED;
    if (code == 0)
        code = crystal_error_set(err, ECANCELED, "the job is over before its plan");
    return code;
}

int plan_nodes_meet(struct plan_nodes *nodes, uint32_t value, uint32_t *ret_value,
                    struct crystal_error *err)
{
    struct stage *stage = nodes->stage;
    const struct crystal_msg_meet own = {.node = stage->node,
                                         .node_count = stage->node_count,
                                         .value = stage->node ? 0 : value};
    uint32_t ticket;
    int code;

    *ret_value = value;
    if (!nodes->job)
        return 0;
    code = crystal_client_meet(nodes->job, &own, &ticket, err);
    while (!code && crystal_client_poll(nodes->job, ticket) == 0)
        code = stage_pause(stage, MEET_MS, err);
    if (!code)
        code = crystal_client_met(nodes->job, ticket, ret_value, err);
    if (code && !stage->stop_signal)
        code = job_stopped(nodes, err);
    return code;
}

int plan_nodes_check(void *context, struct crystal_error *err)
{
    struct plan_nodes *nodes = context;
    int code = stage_node_check(nodes->stage, err);

    if (code || !nodes->job)
        return code;
    code = job_stopped(nodes, err);
    return code == -ETIMEDOUT ? 0 : code;
}
