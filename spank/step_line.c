/* See step_line.h. */
#include "config.h"

#include "spank/step_line.h"

#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* --- environment of a helper step --- */

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* The job's shape and our own options go; the cluster and other plugins' options that
 * sbatch or salloc have exported stay. */
static bool is_scrubbed(const char *setting)
{
    if (starts_with(setting, "SLURM_CONF="))
        return false;
    if (starts_with(setting, "SLURM_SPANK__SLURM_SPANK_OPTION_"))
        return starts_with(setting, "SLURM_SPANK__SLURM_SPANK_OPTION_crystal_");
    return starts_with(setting, "SLURM_") || starts_with(setting, "SRUN_") ||
           starts_with(setting, "_SLURM_SPANK_OPTION_");
}

static void scrub(void)
{
    for (char **e = environ; *e;) {
        char name[256];
        size_t bytes = strcspn(*e, "=");

        if (!is_scrubbed(*e) || bytes >= sizeof name) {
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

void crystal_step_prepare(void *context)
{
    const struct crystal_steps *steps = context;
    char *job_id = strdup(steps->job_id);

    scrub();
    /* Neither fails but for an empty name or memory. The progress lines are ours. */
    if (job_id)
        (void)setenv("SLURM_JOB_ID", job_id, 1);
    (void)setenv("CRYSTAL_LOG", "warning", 0);
}

/* --- command lines --- */

/* Agents and program must meet on the same nodes: the first ones of the job, unless the
 * user has chosen. */
static void add_nodelist(const struct crystal_steps *s, struct crystal_argv *out)
{
    uint32_t wanted = s->request->node_count;
    const char *end = s->nodes;

    if (!s->nodes || crystal_srun_line_get(s->line, "nodelist") ||
        crystal_srun_line_get(s->line, "nodefile") ||
        crystal_srun_line_get(s->line, "exclude"))
        return;
    for (; *end; end++)
        if (*end == ',' && --wanted == 0)
            break;
    crystal_argv_add(out, "--nodelist=%.*s", (int)(end - s->nodes), s->nodes);
}

/* srun [what the user's step shares] [what makes it our step]; the command comes behind
 * it */
static void step_line(const struct crystal_steps *s, const char *step, uint32_t nodes,
                      bool all_cpus, bool with_gpus, struct crystal_argv *out)
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
    if (all_cpus && s->cpus_per_node)
        crystal_argv_add(out, "--cpus-per-task=%u", s->cpus_per_node);
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

void crystal_step_agent(const struct crystal_steps *s, const char *step,
                        const char *stage, bool with_program, struct crystal_argv *out)
{
    step_line(s, step, s->request->node_count, true, with_program, out);
    add_nodelist(s, out);
    crystal_argv_add(out, "%s", s->scrystal);
    crystal_argv_add(out, "agent");
    crystal_argv_add(out, "--job");
    crystal_argv_add(out, "%s", s->request->job_dir);
    crystal_argv_add(out, "--stage");
    crystal_argv_add(out, "%s", stage);
    crystal_argv_add(out, "--marked");
    if (with_program)
        add_program(s, out);
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
    add_nodelist(s, out);
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
    crystal_argv_add_range(out, s->self, end, s->program); /* "--" */
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
    char host[256];

    step_line(s, CRYSTAL_STEP_COORD, 1, false, false, out);
    if (s->first_node)
        crystal_argv_add(out, "--nodelist=%s", s->first_node);
    crystal_argv_add(out, "%s", s->scrystal);
    crystal_argv_add(out, "coord");
    crystal_argv_add(out, "--job=%s", s->request->job_dir);
    if (s->first_node)
        crystal_argv_add(out, "--host=%s", s->first_node);
    if (s->nodes && own_name(host, sizeof host))
        crystal_argv_add(out, "--allow=%s,%s", s->nodes, host);
    else if (s->nodes)
        crystal_argv_add(out, "--allow=%s", s->nodes);
    if (store_port(s->request))
        crystal_argv_add(out, "--store-port=%u", store_port(s->request));
}
