/* See step_line.h. */
#include "config.h"

#include "spank/step_line.h"

#include "runtime/claim.h"

#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* --- environment of a helper step --- */

/* What a job or its user has said about the program's step, by srun(1) "INPUT
 * ENVIRONMENT VARIABLES" and "OUTPUT ENVIRONMENT VARIABLES"; a name that ends with * is
 * the beginning of several. Everything else stays: the cluster (SLURM_CONF, SLURM_JWT,
 * SLURM_CLUSTERS, ...), and what sbatch or salloc have exported of other plugins. */
static const char *const step_variables[] = {
    "SLURM_ARRAY_*",
    "SLURM_CPU_BIND*",
    "SLURM_CPUS_*",
    "SLURM_CPU_FREQ_REQ",
    "SLURM_CRYSTAL_*",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_GPU*",
    "SLURM_GRES*",
    "SLURM_GTIDS",
    "SLURM_HET_*",
    "SLURM_HINT",
    "SLURM_HOSTFILE",
    "SLURM_JOB_*",
    "SLURM_JOBID*",
    "SLURM_KILL_BAD_EXIT",
    "SLURM_LABELIO",
    "SLURM_LAUNCH_NODE_*",
    "SLURM_LOCALID",
    "SLURM_MEM_*",
    "SLURM_MPI_TYPE",
    "SLURM_NNODES*",
    "SLURM_NODE*",
    "SLURM_NPROCS*",
    "SLURM_NTASKS*",
    "SLURM_OPEN_MODE",
    "SLURM_OVERCOMMIT",
    "SLURM_OVERLAP",
    "SLURM_PACK_*",
    "SLURM_PRIO_PROCESS",
    "SLURM_PROCID",
    "SLURM_PTY_*",
    "SLURM_REMOTE_CWD",
    "SLURM_SRUN_*",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STEP_*",
    "SLURM_STEPID",
    "SLURM_SUBMIT_*",
    "SLURM_TASK*",
    "SLURM_THREADS*",
    "SLURM_TIMELIMIT",
    "SLURM_TOPOLOGY_*",
    "SLURM_TRES_*",
    "SLURM_UMASK",
    "SLURM_UNBUFFEREDIO",
    "SLURM_WAIT",
    "SLURM_WORKING_DIR",
    "SLURM_WHOLE",
    "SRUN_*",
    "SLURM_SPANK__SLURM_SPANK_OPTION_crystal_*",
    "_SLURM_SPANK_OPTION_*",
};

/* setting is NAME=VALUE. */
static bool is_scrubbed(const char *setting)
{
    size_t bytes = strcspn(setting, "=");

    for (size_t i = 0; i < sizeof step_variables / sizeof step_variables[0]; i++) {
        size_t known = strcspn(step_variables[i], "*");

        if (strncmp(setting, step_variables[i], known) == 0 &&
            (step_variables[i][known] || bytes == known))
            return true;
    }
    return false;
}

/* setting is NAME=VALUE, told of one component of a heterogeneous job, or of those. */
static bool is_of_component(const char *setting)
{
    static const char *const parts[] = {"_HET_GROUP_", "_PACK_GROUP_", "SLURM_HET_SIZE",
                                        "SLURM_PACK_SIZE"};
    size_t bytes = strcspn(setting, "=");

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *at = strstr(setting, parts[i]);

        if (strncmp(setting, "SLURM_", 6) == 0 && at && (size_t)(at - setting) < bytes)
            return true;
    }
    return false;
}

/* Unsets what is to go. */
static void leave_out(bool (*is_out)(const char *setting))
{
    for (char **e = environ; *e;) {
        char name[256];
        size_t bytes = strcspn(*e, "=");

        if (!is_out(*e) || bytes >= sizeof name) {
            e++;
            continue;
        }
        memcpy(name, *e, bytes);
        name[bytes] = '\0';
        if (unsetenv(name) < 0)
            e++;
        else
            e = environ; /* the list has moved */
    }
}

void crystal_step_leave_out_components(void)
{
    leave_out(is_of_component);
}

void crystal_step_prepare(void *context)
{
    const struct crystal_steps *steps = context;
    char *job_id = strdup(steps->job_id);

    leave_out(is_scrubbed);
    /* Neither fails but for an empty name or memory. The progress lines are ours. */
    if (job_id)
        (void)setenv("SLURM_JOB_ID", job_id, 1);
    (void)setenv("CRYSTAL_LOG", steps->request->log ? steps->request->log : "warning",
                 0);
}

/* --- command lines --- */

/* Agents and program must meet on the same nodes. */
static void add_nodelist(const char *nodes, struct crystal_argv *out)
{
    if (nodes)
        crystal_argv_add(out, "--nodelist=%s", nodes);
}

/* The component of a heterogeneous job that a step is in: without, srun finds none. */
static void add_component(const struct crystal_steps *s, unsigned component,
                          struct crystal_argv *out)
{
    if (s->is_apart)
        crystal_argv_add(out, "--het-group=%u", component);
}

/* srun [what the user's step shares] [what makes it our step]; the command comes behind
 * it. cpus: of each node, 0 = as Slurm gives them. */
static void step_line(const struct crystal_steps *s, const char *step, uint32_t nodes,
                      uint32_t cpus, bool with_gpus, struct crystal_argv *out)
{
    const struct crystal_request *r = s->request;

    crystal_argv_add(out, "%s", s->self->v[0]);
    crystal_srun_line_add_stage(s->line, out);
    crystal_argv_add(out, "--crystal-stage=%s", step);
    crystal_argv_add(out, "--crystal-job-dir=%s", r->job_dir);
    crystal_argv_add(out, "--job-name=crystal-%s", step);
    crystal_argv_add(out, "--overlap");
    crystal_argv_add(out, "--input=none");
    crystal_argv_add(out, "--kill-on-bad-exit=0"); /* agents tell each other */
    crystal_argv_add(out, "--mpi=none");
    if (cpus)
        crystal_argv_add(out, "--cpus-per-task=%u", cpus);
    crystal_argv_add(out, "--nodes=%u", nodes);
    crystal_argv_add(out, "--ntasks=%u", nodes);
    crystal_argv_add(out, "--ntasks-per-node=1");
    if (!with_gpus)
        crystal_argv_add(out, "--gres=none");
    else if (s->with_gres)
        crystal_argv_add(out, "--gres=%s", r->gres_per_node);
}

static void add_program(const struct crystal_steps *s, struct crystal_argv *out)
{
    crystal_argv_add(out, "--");
    crystal_argv_add_range(out, s->self, s->program, s->self->count);
}

static void add_agent(const struct crystal_steps *s, const char *stage,
                      struct crystal_argv *out)
{
    crystal_argv_add(out, "%s", s->scrystal);
    crystal_argv_add(out, "agent");
    crystal_argv_add(out, "--job");
    crystal_argv_add(out, "%s", s->request->job_dir);
    crystal_argv_add(out, "--stage");
    crystal_argv_add(out, "%s", stage);
}

/* The stage has more nodes than the step, which begins with its number first. */
static void add_place(const struct crystal_request *r, uint32_t first,
                      struct crystal_argv *out)
{
    if (!r->assistant_count)
        return;
    crystal_argv_add(out, "--first-node=%u", first);
    crystal_argv_add(out, "--nodes=%u", r->node_count + r->assistant_count);
}

void crystal_step_agent(const struct crystal_steps *s, const char *step,
                        const char *stage, bool with_program, struct crystal_argv *out)
{
    step_line(s, step, s->request->node_count, s->cpus_per_node, with_program, out);
    add_component(s, 0, out);
    add_nodelist(s->nodes, out);
    add_agent(s, stage, out);
    crystal_argv_add(out, "--marked");
    if (strcmp(stage, CRYSTAL_STEP_PROGRAM) == 0)
        add_place(s->request, 0, out);
    if (with_program)
        add_program(s, out);
}

void crystal_step_assistants(const struct crystal_steps *s, struct crystal_argv *out)
{
    step_line(s, CRYSTAL_STEP_ASSIST, s->request->assistant_count, s->assistant_cpus,
              false, out);
    add_component(s, 1, out);
    add_nodelist(s->assistants, out);
    add_agent(s, CRYSTAL_STEP_PROGRAM, out);
    add_place(s->request, s->request->node_count, out);
}

void crystal_step_scrystal(const char *scrystal, const char *command,
                           const char *job_dir, struct crystal_argv *out)
{
    crystal_argv_add(out, "%s", scrystal);
    crystal_argv_add(out, "%s", command);
    crystal_argv_add(out, "--job");
    crystal_argv_add(out, "%s", job_dir);
}

void crystal_step_program(const struct crystal_steps *s, struct crystal_argv *out)
{
    const struct crystal_request *r = s->request;
    int end = s->program;

    if (end > 1 && strcmp(s->self->v[end - 1], "--") == 0)
        end--;
    crystal_argv_add_range(out, s->self, 0, end);
    crystal_argv_add(out, "--nodes=%u", r->node_count);
    crystal_argv_add(out, "--ntasks=%u", r->task_count);
    crystal_argv_add(out, "--ntasks-per-node=%u", r->tasks_per_node);
    crystal_argv_add(out, "--distribution=block");
    add_component(s, 0, out);
    add_nodelist(s->nodes, out);
    if (s->with_gres)
        crystal_argv_add(out, "--gres=%s", r->gres_per_node);
    if (s->cpus_per_node && s->cpus_per_node < r->tasks_per_node)
        crystal_argv_add(out, "--overcommit");
    crystal_argv_add(out, "--crystal-stage=%s", CRYSTAL_STEP_PROGRAM);
    crystal_argv_add(out, "--crystal-job-dir=%s", r->job_dir);
    crystal_argv_add(out, "--crystal-logical-ranks=%u", r->logical_rank_count);
    crystal_argv_add(out, "--crystal-ranks-per-node=%u", r->ranks_per_node);
    crystal_argv_add(out, "--crystal-sandbox=%s", r->sandbox);
    crystal_argv_add(out, "--crystal-slurm-env=%s",
                     r->slurm_env ? r->slurm_env : "logical");
    if (s->in_container && !crystal_srun_line_get(s->line, "job-name"))
        crystal_argv_add(out, "--job-name=%s", r->job_name);
    crystal_argv_add_range(out, s->self, end, s->program); /* "--" */
    if (s->in_container) {
        crystal_argv_add(out, "%s", s->scrystal);
        crystal_argv_add(out, "rank");
    }
    crystal_argv_add_range(out, &r->wrapper, 0, r->wrapper.count);
    crystal_argv_add_range(out, s->self, s->program, s->self->count);
    crystal_argv_add_range(out, &r->arguments, 0, r->arguments.count);
}

/* Where the store is to listen: the port that crystal.yaml or, for a program that puts
 * it into its own environment again, the user's MASTER_PORT names. 0 = any. */
static uint32_t store_port(const struct crystal_request *r)
{
    const char *text = getenv("MASTER_PORT");
    char *end;
    unsigned long port;

    if (r->store_port || !text)
        return r->store_port;
    port = strtoul(text, &end, 10);
    return *text && !*end && port <= 65535 ? (uint32_t)port : 0;
}

/* This host's name, where it is one that others may know; srun tells the coordinator
 * to finish from here. */
static bool own_name(char *out, size_t out_bytes)
{
    struct addrinfo *found = NULL;
    bool known =
        gethostname(out, out_bytes) == 0 && getaddrinfo(out, NULL, NULL, &found) == 0;

    if (known)
        freeaddrinfo(found);
    return known;
}

void crystal_step_coordinator(const struct crystal_steps *s, struct crystal_argv *out)
{
    char host[256], claim[CRYSTAL_CLAIM_BYTES];
    int first = s->nodes ? (int)strcspn(s->nodes, ",") : 0;
    const bool is_named = own_name(host, sizeof host);

    step_line(s, CRYSTAL_STEP_COORD, 1, 0, false, out);
    add_component(s, 0, out);
    if (first)
        crystal_argv_add(out, "--nodelist=%.*s", first, s->nodes);
    crystal_argv_add(out, "%s", s->scrystal);
    crystal_argv_add(out, "coord");
    crystal_argv_add(out, "--job=%s", s->request->job_dir);
    crystal_claim_own(claim);
    crystal_argv_add(out, "--claim=%s", claim);
    if (first)
        crystal_argv_add(out, "--host=%.*s", first, s->nodes);
    if (s->job_nodes)
        crystal_argv_add(out, "--allow=%s%s%s%s%s", s->job_nodes,
                         s->more_nodes ? "," : "", s->more_nodes ? s->more_nodes : "",
                         is_named ? "," : "", is_named ? host : "");
    if (store_port(s->request))
        crystal_argv_add(out, "--store-port=%u", store_port(s->request));
}
