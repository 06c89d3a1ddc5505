/* See emulated.h. */
#include "config.h"

#include "spank/emulated.h"

#include "spank/ask.h"
#include "spank/nodes.h"
#include "spank/steps.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

/* The smallest number of CPUs that a node of the job gives: "16(x2),4"; 0 = unknown. */
static uint32_t least_cpus(const char *text)
{
    uint32_t least = 0;

    while (text && *text) {
        unsigned long cpus = strtoul(text, NULL, 10);

        if (cpus > 0 && (!least || cpus < least))
            least = (uint32_t)cpus;
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return least;
}

/* "crystal n=64 sandbox=0-7 dir=/home/me/crystal.x" behind the job's comment, once. */
static void add_comment(const struct crystal_command *c)
{
    const struct crystal_request *r = &c->request;
    const char *words[] = {"update", NULL, NULL, NULL}, *old = c->job.comment;
    char *own = NULL, *job = NULL, *comment = NULL;

    if (asprintf(&own, "crystal n=%u sandbox=%s dir=%s", r->logical_rank_count,
                 r->sandbox, r->job_dir) < 0)
        own = NULL;
    if (own && (!old || !strstr(old, own)) &&
        asprintf(&job, "JobId=%s", c->job_id) >= 0 &&
        asprintf(&comment, "Comment=%s%s%s", old ? old : "", old ? "; " : "", own) >=
            0) {
        words[1] = job;
        words[2] = comment;
        free(crystal_ask_slurm("scontrol", NULL,
                               words)); /* in vain: the job runs without */
        free(comment);
        free(job);
    }
    free(own);
}

/* Assistants that the stages need. */
static uint32_t assistants_needed(const struct crystal_request *r)
{
    return r->stages & CRYSTAL_STAGE_BIT_EMULATE ? r->assistant_count : 0;
}

/* Nodes that they need of the job, or of its first component. */
static uint32_t nodes_needed(const struct crystal_request *r)
{
    return r->node_count + (r->is_apart ? 0 : assistants_needed(r));
}

/* What Slurm says of a component of a heterogeneous job, or of a job that is none. */
static const char *component_says(const char *name, unsigned component)
{
    const char *text = component ? NULL : getenv(name);
    char full[96];

    snprintf(full, sizeof full, "%s_HET_GROUP_%u", name, component);
    return text ? text : getenv(full);
}

/* The job's components are those that we make. 0 or the exit code. */
static int check_components(const struct crystal_command *c)
{
    const char *count = getenv("SLURM_HET_SIZE");
    const struct crystal_request *r = &c->request;

    if (!r->is_apart && count)
        dprintf(2, "crystal: heterogeneous jobs are not emulated; use a job of one "
                   "part\n");
    else if (r->is_apart && count && strcmp(count, "2") != 0)
        dprintf(2,
                "crystal: the job has %s components, one for the sandbox and one for "
                "assistants are emulated; give sbatch or salloc only these\n",
                count);
    else if (assistants_needed(r) && r->is_apart && !count)
        dprintf(2, "crystal: the job has no component for assistants "
                   "(assistants.place: het); give sbatch or salloc the same --crystal- "
                   "options\n");
    else
        return 0;
    return CRYSTAL_COMMAND_EXIT_USAGE;
}

/* Where the steps run, assistants behind the others; NULL with a sentence where the job
 * has not enough nodes. */
static char *choose_nodes(const struct crystal_command *c)
{
    struct crystal_error err = {0};
    char *nodes = NULL;

    if (crystal_nodes_choose(&c->line, c->job.nodes, nodes_needed(&c->request), &nodes,
                             &err) < 0)
        (void)crystal_command_say(&err);
    return nodes;
}

/* Cuts "n1,n2,n3" behind the first count of them. What comes behind; NULL = nothing. */
static char *cut_nodes(char *nodes, uint32_t count)
{
    while (nodes && count--) {
        nodes = strchr(nodes, ',');
        if (nodes)
            *nodes++ = count ? ',' : '\0';
    }
    return nodes;
}

/* Options that the job was given for all of its tasks and that every srun in it reads,
 * too, which would not fit the sandbox's shape. */
static void leave_out_variables(void)
{
    static const char *const names[] = {"SLURM_GPUS", "SLURM_GPUS_PER_TASK",
                                        "SLURM_GPUS_PER_SOCKET", "SLURM_NTASKS_PER_GPU",
                                        "SLURM_NTASKS_PER_TRES"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);

        if (!value)
            continue;
        dprintf(2, "crystal: %s=%s counts the GPUs of all tasks, ignoring\n", names[i],
                value);
        (void)unsetenv(names[i]); /* fails for a bad name only */
    }
}

/* The step has options of other plugins, on the line or exported by sbatch or salloc,
 * or Slurm's own for containers. */
static bool has_foreign(const struct crystal_command *c)
{
    static const char exported[] = "SLURM_SPANK__SLURM_SPANK_OPTION_";
    static const char ours[] = "SLURM_SPANK__SLURM_SPANK_OPTION_crystal_";

    for (char **e = environ; *e; e++)
        if (strncmp(*e, exported, sizeof exported - 1) == 0 &&
            strncmp(*e, ours, sizeof ours - 1) != 0)
            return true;
    for (int i = 0; i < c->line.count; i++)
        if (crystal_srun_word_is_foreign(&c->line.words[i]) &&
            c->line.words[i].text[0] == '-')
            return true;
    return crystal_srun_line_get(&c->line, "container") != NULL;
}

/* GPUs that the job has as a number of all its nodes: Slurm lets no step on fewer of
 * them have its share. */
static int check_gpu_total(const struct crystal_command *c)
{
    const char *total = getenv("SLURM_GPUS"), *nodes = getenv("SLURM_JOB_NUM_NODES");

    if (!total || !nodes || strtoul(nodes, NULL, 10) <= c->request.node_count)
        return 0;
    dprintf(2,
            "crystal: the job has --gpus=%s of %s nodes, the sandbox is on %u of them; "
            "ask for the job's GPUs by --gpus-per-node or --gres\n",
            total, nodes, c->request.node_count);
    return CRYSTAL_COMMAND_EXIT_USAGE;
}

int crystal_emulated_run(struct crystal_command *c)
{
    const char *node_count = component_says("SLURM_JOB_NUM_NODES", 0);
    const struct crystal_request *r = &c->request;
    struct crystal_steps steps = {
        .scrystal = c->scrystal,
        .self = &c->self,
        .program = c->program,
        .line = &c->line,
        .request = r,
        .job_id = c->job_id,
        .salloc = c->local->salloc,
    };
    char *nodes = NULL;
    int code = crystal_command_ask(c, true, true); /* fills c->job and *r */

    if (!code)
        code = check_components(c);
    if (code)
        return code;
    if (node_count && strtoul(node_count, NULL, 10) < nodes_needed(r)) {
        dprintf(
            2,
            "crystal: the job has %s node(s), the sandbox needs %u%s; give sbatch or "
            "salloc the same --crystal- options\n",
            node_count, nodes_needed(r),
            r->assistant_count && !r->is_apart ? " with its assistants" : "");
        return CRYSTAL_COMMAND_EXIT_USAGE;
    }
    if (assistants_needed(r) && !(r->is_apart ? c->job.more_nodes : c->job.nodes)) {
        dprintf(2, "crystal: the job's nodes are not known, so none can be assistants; "
                   "see scontrol show job\n");
        return CRYSTAL_COMMAND_EXIT_USAGE;
    }
    if (c->job.nodes && !(nodes = choose_nodes(c)))
        return CRYSTAL_COMMAND_EXIT_USAGE;
    steps.job_nodes = c->job.nodes;
    steps.more_nodes = c->job.more_nodes;
    steps.nodes = nodes;
    steps.assistants = cut_nodes(nodes, r->node_count);
    steps.is_apart = r->is_apart && getenv("SLURM_HET_SIZE");
    if (steps.is_apart) {
        steps.assistants = c->job.more_nodes;
        (void)cut_nodes(c->job.more_nodes, r->assistant_count);
    }
    crystal_command_say_notices(c);
    code = check_gpu_total(c);
    if (code) {
        free(nodes);
        return code;
    }
    leave_out_variables();
    add_comment(c);
    steps.cpus_per_node = least_cpus(component_says("SLURM_JOB_CPUS_PER_NODE", 0));
    steps.assistant_cpus =
        steps.is_apart ? least_cpus(component_says("SLURM_JOB_CPUS_PER_NODE", 1))
                       : steps.cpus_per_node;
    steps.in_container = has_foreign(c);
    steps.with_gres = c->job.has_gres && r->gres_per_node[0];
    if (c->local->salloc == getppid())
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* stays over exec */
    code = crystal_steps_run(&steps);
    free(nodes);
    return code;
}
