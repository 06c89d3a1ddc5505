/* scrystal agent: one task per node of a stage's job step. The coordinator runs
 * already; the stage's work on this node is done here.
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"

#include "runtime/env.h"
#include "runtime/log.h"
#include "runtime/permit.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"stage", required_argument, NULL, 's'},
    {"marked", no_argument, NULL, 'm'},
    {"node", required_argument, NULL, 'n'},
    {"first-node", required_argument, NULL, 'f'},
    {"nodes", required_argument, NULL, 'N'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(FILE *out)
{
    fprintf(out,
            "usage: scrystal agent --job=DIR --stage=STAGE [-- PROGRAM ARG...]\n\n"
            "Does one stage's work on this node, for a coordinator that runs:\n"
            "capture and plan start the program as the node's ranks; emulate hosts\n"
            "the virtual ranks until the job ends, and with PROGRAM also starts\n"
            "the sandbox ranks. On the real wire the last nodes are assistants.\n\n"
            "  --job=DIR       the job directory\n"
            "  --stage=STAGE   capture, plan or emulate\n"
            "  --marked        the node's crystal.so has left DIR/agent.NODE.spank\n"
            "  --node=K        this node, of those of the stage, from 0 (default: the\n"
            "                  step's, as Slurm says, else 0)\n"
            "  --first-node=K  number of the step's first node, where others of the\n"
            "                  stage run in another step (default 0)\n"
            "  --nodes=M       how many there are (the same, else 1)\n");
}

static uint32_t number_of(const char *text, uint32_t otherwise)
{
    char *end;
    unsigned long number = text ? strtoul(text, &end, 10) : 0;

    return text && *text && !*end && number < UINT32_MAX ? (uint32_t)number : otherwise;
}

/* What Slurm says of the step's nodes; by hand there is one. */
static uint32_t slurm_number(const char *name, uint32_t otherwise)
{
    return number_of(getenv(name), otherwise);
}

/* What this node's own crystal.yaml lets a job do; none: everything. */
static int check_permit(struct stage *stage, struct crystal_error *err)
{
    const char *path = getenv(CRYSTAL_ENV_NODE_CONFIG);
    const struct crystal_permit_asker asker = {getenv("SLURM_JOB_ACCOUNT"),
                                               getenv("SLURM_JOB_PARTITION")};
    struct crystal_conf conf;
    int code;

    if (!path)
        return 0;
    code = crystal_conf_read(path, &conf, err);
    if (code)
        return code;
    code = crystal_permit(&conf, &asker, &stage->layout, err);
    if (!code)
        code = crystal_permit_bytes(&conf, stage->job_dir, err);
    if (!code && conf.pinned_bytes_max &&
        (!stage->layout.pinned_bytes_max ||
         conf.pinned_bytes_max < stage->layout.pinned_bytes_max))
        stage->layout.pinned_bytes_max = conf.pinned_bytes_max;
    crystal_conf_fini(&conf);
    return code;
}

/* What this node must have before the job's first stage begins, so that it is not the
 * last one that misses it. The mark shows that slurmstepd runs our hooks here: without
 * it the program's tasks would run unemulated. */
static int check_node(struct stage *stage, uint32_t node, int is_marked,
                      struct crystal_error *err)
{
    const char *name = getenv("SLURMD_NODENAME");
    char host[256] = "?", path[PATH_MAX];
    int code = stage_check_libraries(err);

    if (!code)
        code = check_permit(stage, err);

    if (name)
        (void)snprintf(host, sizeof host, "%s", name);
    else
        (void)gethostname(host, sizeof host - 1); /* only for the sentence */
    if (code) {
        crystal_error_prefix(err, "node %s", host);
        return code;
    }
    if (!is_marked)
        return 0;
    code = stage_path(stage, path, err, "agent.%u.spank", node);
    if (!code && access(path, F_OK) < 0)
        code = crystal_error_set(err, ENOENT,
                                 "node %s does not load crystal.so; install it and its "
                                 "plugstack.conf line on every node",
                                 host);
    return code;
}

static int run(enum stage_kind kind, const char *job_dir, uint32_t node,
               uint32_t node_count, int is_marked, char **program)
{
    struct crystal_error err = {0};
    struct stage stage;
    int code;

    if (stage_open(&stage, kind, job_dir, program, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, stage_name(kind), "%s", err.text);
        return CRYSTAL_EXIT_USAGE;
    }
    if (kind == STAGE_EMULATE && !program[0])
        stage.program = NULL; /* Slurm's tasks are the sandbox ranks */
    if (stage_begin(&stage, node, node_count, &err) ||
        check_node(&stage, node, is_marked, &err))
        code = stage_failed(&stage, &err);
    else if (kind == STAGE_CAPTURE)
        code = stage_capture(&stage);
    else if (kind == STAGE_PLAN)
        code = stage_plan(&stage);
    else
        code = node < stage.node_count ? stage_emulate(&stage, node)
                                       : stage_assist(&stage);
    stage_close(&stage);
    return code;
}

CRYSTAL_COMMAND(agent)
{
    uint32_t node = slurm_number("SLURM_NODEID", 0);
    uint32_t node_count = slurm_number("SLURM_STEP_NUM_NODES", 1);
    const char *job_dir = NULL, *stage = NULL;
    uint32_t first = 0;
    enum stage_kind kind;
    int option, is_marked = 0;

    optind = 1;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) >= 0) {
        switch (option) {
        case 'j':
            job_dir = optarg;
            break;
        case 's':
            stage = optarg;
            break;
        case 'm':
            is_marked = 1;
            break;
        case 'n':
            node = number_of(optarg, UINT32_MAX);
            break;
        case 'f':
            first = number_of(optarg, UINT32_MAX / 2);
            break;
        case 'N':
            node_count = number_of(optarg, 0);
            break;
        case 'h':
            help(stdout);
            return 0;
        default:
            help(stderr);
            return CRYSTAL_EXIT_USAGE;
        }
    }
    if (!job_dir || !stage || stage_kind_parse(stage, &kind)) {
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    node = node < UINT32_MAX / 2 ? first + node : node;
    if (node >= node_count) {
        crystal_log(CRYSTAL_LOG_ERROR, stage_name(kind),
                    "--node and --nodes: give a number from 0 and how many there are");
        return CRYSTAL_EXIT_USAGE;
    }
    return run(kind, job_dir, node, node_count, is_marked, argv + optind);
}
