/* See stage_node.h. */
#include "config.h"

#include "commands/stage_node.h"

#include "replay/proxy_layout.h"
#include "replay/run_record.h"
#include "runtime/blockfile.h"
#include "runtime/env.h"
#include "runtime/filehead.h"
#include "runtime/graph_build.h"
#include "runtime/infile.h"
#include "runtime/library.h"
#include "runtime/log.h"

#include <errno.h>
#include <unistd.h>

int stage_check_graph(const struct stage *stage, struct crystal_error *err)
{
    struct crystal_filehead head;
    char path[PATH_MAX];
    ssize_t got;
    int fd, code = stage_path(stage, path, err, "job.graph");

    if (code)
        return code;
    fd = crystal_infile_open(path, NULL, err);
    if (fd < 0)
        return fd;
    got = read(fd, &head, sizeof head);
    (void)close(fd); /* read-only */
    if (got != (ssize_t)sizeof head)
        return crystal_error_set(err, EINVAL,
                                 "%s: too short; run 'scrystal graph' again", path);
    return crystal_graph_check_traces(stage->job_dir, stage->layout.live,
                                      stage->layout.live_count, head.parent_hash, err);
}

int stage_node_inputs(const struct stage *stage, int timed, struct crystal_error *err)
{
    static const char *const names[] = {"job.graph", "job.profile"};
    char path[PATH_MAX];

    for (int i = 0; timed && i < 2; i++) {
        int code = stage_path(stage, path, err, "%s", names[i]);

        if (!code && access(path, R_OK) < 0)
            code = crystal_error_set(err, ENOENT,
                                     "%s is missing; run the stages before it: "
                                     "scrystal capture, graph, plan",
                                     path);
        if (code)
            return code;
    }
    return timed ? stage_check_graph(stage, err) : 0;
}

static void add_env(void *context, const char *assignment)
{
    struct stage *stage = context;

    stage_env_add(&stage->env, "%s", assignment);
}

/* What NCCL would ask of ranks that do not exist: to share memory between nodes or in
 * the network, to come to a root one after the other, to register buffers of CUDA
 * graphs with peers. */
static void env_absent(struct stage *stage)
{
    static const char *const settings[][2] = {{"NCCL_NVLS_ENABLE", "0"},
                                              {"NCCL_MNNVL_ENABLE", "0"},
                                              {"NCCL_UID_STAGGER_THRESHOLD", "1000000"},
                                              {"NCCL_GRAPH_REGISTER", "0"}};

    stage_env_defaults(&stage->env, settings, sizeof settings / sizeof settings[0]);
}

/* Of NCCL, those that the service answers. */
static void env_versions(struct stage *stage)
{
    const struct crystal_target *target = &stage->layout.target;
    const struct proxy_layout *row =
        proxy_layout_find((int)target->nccl_version, target->nccl_untested, NULL);

    if (row)
        stage_env_add(&stage->env, "%s=%d-%d", CRYSTAL_ENV_NCCL_VERSIONS,
                      row->version_min, row->version_max);
}

int stage_node_open(struct stage *stage, int timed, struct stage_far *far,
                    struct crystal_error *err)
{
    char graph[PATH_MAX], profile[PATH_MAX], plugin[PATH_MAX];
    struct crystal_node_config config = {.job_dir = stage->job_dir,
                                         .layout = &stage->layout,
                                         .timed = timed,
                                         .coord = stage->client};
    int code = stage_path(stage, graph, err, "job.graph");

    if (!code)
        code = stage_path(stage, profile, err, "job.profile");
    if (!code)
        code =
            crystal_library_path("libnccl-net-crystal.so", plugin, sizeof plugin, err);
    if (!code)
        code = stage_node_inputs(stage, timed, err);
    if (code)
        return code;
    if (access(graph, R_OK) == 0)
        config.graph_path = graph;
    if (timed)
        config.profile_path = profile;
    if (far && far->links) {
        config.links = far->links;
        config.nodes = far->nodes;
        config.node = stage->node;
        config.node_count = stage->node_count + stage->assistant_count;
        config.assistant_count = stage->assistant_count;
        far->links = NULL; /* the service's now */
    }
    stage->service = crystal_node_create(&config, err);
    if (!stage->service)
        return err->code ? -err->code : -EIO;
    crystal_launch_keep_clean(stage->launch, crystal_node_directory(stage->service));
    stage_env_add(&stage->env, "%s=%s", CRYSTAL_ENV_BOARD,
                  crystal_node_board_path(stage->service));
    env_versions(stage);
    stage_env_add(&stage->env, "NCCL_NET_PLUGIN=%s", plugin);
    stage_env_add(&stage->env, "NCCL_PROFILER_PLUGIN=%s", plugin);
    /* NCCL 2.28 unloads a plugin with its last communicator and forgets its name; a
     * program that makes its groups anew would go on with sockets */
    stage_env_add(&stage->env, "NCCL_NET_PLUGIN_REF_COUNT=1");
    /* a connection belongs to the communicator that made it */
    stage_env_add(&stage->env, "NCCL_COMM_SPLIT_SHARE_RESOURCES=0");
    stage_env_add(&stage->env, "NCCL_COMM_SHRINK_SHARE_RESOURCES=0");
    env_absent(stage);
    crystal_target_each_env(&stage->layout.target, add_env, stage);
    return 0;
}

void stage_node_close(struct stage *stage)
{
    if (!stage->service)
        return;
    crystal_node_destroy(stage->service);
    crystal_launch_keep_clean(stage->launch, NULL);
    stage->service = NULL;
}

int stage_node_check(void *context, struct crystal_error *err)
{
    const struct stage *stage = context;
    char notice[CRYSTAL_ERROR_TEXT_BYTES];
    int code = crystal_node_status(stage->service, err);

    if (!code)
        code = crystal_node_look(stage->service, notice, sizeof notice, err);
    if (code > 0)
        crystal_log(CRYSTAL_LOG_WARNING, stage->name, "%s", notice);
    return code < 0 ? code : 0;
}

int stage_node_seal_runs(const struct stage *stage, const char *sub,
                         struct crystal_share which, struct crystal_error *err)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    char path[PATH_MAX];
    int code = 0;

    for (uint32_t i = which.first; !code && i < which.end; i++) {
        code = stage_path(stage, path, err, "%s/%u.run", sub, stage->layout.sandbox[i]);
        if (!code)
            code = crystal_block_seal(path, &kind, err);
        if (code == -ENOENT || code == -ENODATA)
            code = 0; /* it communicated with nobody */
    }
    return code;
}
