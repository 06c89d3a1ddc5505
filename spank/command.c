/* See command.h. */
#include "config.h"

#include "spank/command.h"

#include "spank/batch_script.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int crystal_command_say(const struct crystal_error *err)
{
    dprintf(2, "crystal: %s\n", crystal_error_text(err));
    return CRYSTAL_COMMAND_EXIT_USAGE;
}

void crystal_command_fini(struct crystal_command *c)
{
    crystal_request_fini(&c->request);
    crystal_ask_job_fini(&c->job);
    free(c->scrystal);
    crystal_srun_line_fini(&c->line);
    crystal_argv_fini(&c->self);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

bool crystal_command_is_sbatch(const struct crystal_command *c)
{
    return strcmp(base_name(c->self.v[0]), "sbatch") == 0;
}

/* sbatch --wrap: there is no script. */
bool crystal_command_has_wrap(const struct crystal_command *c)
{
    for (int i = 1; i < c->program; i++)
        if (strncmp(c->self.v[i], "--wrap", 6) == 0)
            return true;
    return false;
}

/* The options of the batch script, which the command line's own override, in front. */
static int read_line(struct crystal_command *c)
{
    struct crystal_argv all = {0};
    int rc;

    if (!crystal_command_is_sbatch(c))
        return crystal_srun_line_parse(&c->self, c->program, &c->line);
    crystal_argv_add(&all, "sbatch");
    if (!crystal_command_has_wrap(c))
        crystal_batch_script_options(
            c->program < c->self.count ? c->self.v[c->program] : NULL, &all);
    crystal_argv_add_range(&all, &c->self, 1, c->program);
    rc = all.failed ? -ENOMEM : crystal_srun_line_parse(&all, all.count, &c->line);
    crystal_argv_fini(&all);
    return rc;
}

/* getopt has stopped at the program: optind is the host program's own. */
int crystal_command_read(struct crystal_command *c, const struct crystal_local *local)
{
    struct crystal_error err = {0};
    int rc;

    memset(c, 0, sizeof *c);
    c->local = local;
    rc = crystal_argv_read(&c->self, "/proc/self/cmdline");
    c->program = optind > 0 && optind <= c->self.count ? optind : c->self.count;
    if (rc == 0)
        rc = read_line(c);
    if (rc < 0) {
        crystal_error_set(&err, -rc, "command line: %s", strerror(-rc));
        return crystal_command_say(&err);
    }
    return 0;
}

/* "#SBATCH hetjob" (packjob, of old) parts a script's options. */
static bool has_parts(const struct crystal_command *c)
{
    for (int i = 0; i < c->line.count; i++)
        if (strcmp(c->line.words[i].text, "hetjob") == 0 ||
            strcmp(c->line.words[i].text, "packjob") == 0)
            return true;
    return false;
}

int crystal_command_check(struct crystal_command *c)
{
    struct crystal_error err = {0};

    for (int i = c->program; i < c->self.count; i++)
        if (strcmp(c->self.v[i], ":") == 0)
            crystal_error_set(&err, EINVAL,
                              "heterogeneous jobs (':') are not emulated");
    if (has_parts(c))
        crystal_error_set(&err, EINVAL,
                          "heterogeneous jobs are not emulated; use a job of one part");
    if (err.code == 0)
        crystal_srun_line_check(&c->line, &err);
    if (err.code == 0)
        c->scrystal = crystal_ask_scrystal_path(c->local->scrystal, &err);
    return err.code ? crystal_command_say(&err) : 0;
}

/* As Slurm names the job: option, then environment, then program. */
const char *crystal_command_job_name(const struct crystal_command *c)
{
    const char *name = crystal_srun_line_get(&c->line, "job-name");

    if (!name)
        name = getenv("SLURM_JOB_NAME");
    if (name)
        return name;
    return c->program < c->self.count ? base_name(c->self.v[c->program]) : "crystal";
}

/* What request.partition of crystal.yaml says; NULL = nothing. Borrowed. */
static const char *requested_partition(const struct crystal_request *r)
{
    for (int i = 0; i < r->allocation.count; i++)
        if (strncmp(r->allocation.v[i], "--partition=", 12) == 0)
            return r->allocation.v[i] + 12;
    return NULL;
}

/* One task a node: the user's own launcher starts the ranks there. */
bool crystal_command_is_task_per_node(const struct crystal_command *c)
{
    static const char *const names[] = {"ntasks-per-node", "tasks-per-node"};

    for (size_t i = 0; i < 2; i++) {
        const char *value = crystal_srun_line_get(&c->line, names[i]);

        if (value && strcmp(value, "1") == 0)
            return true;
    }
    return false;
}

int crystal_command_ask(struct crystal_command *c, bool for_step, bool write)
{
    struct crystal_ask_layout ask = {
        .options = c->local->options,
        .config = c->local->config,
        .scrystal = c->scrystal,
        .job_name = crystal_command_job_name(c),
        .self = &c->self,
        .program = c->program,
        .task_per_node = crystal_command_is_task_per_node(c),
        .for_step = for_step,
        .write = write,
    };

    struct crystal_partition *partition = &c->job.partition;
    const char *own;
    int code;

    crystal_ask_job(c->job_id, &c->line, &c->job);
    ask.partition = partition;
    ask.partition_is_chosen = c->job_id ||
                              crystal_srun_line_get(&c->line, "partition") ||
                              crystal_partition_from_environment();
    ask.account = crystal_srun_line_get(&c->line, "account");
    if (!ask.account)
        ask.account = getenv("SLURM_JOB_ACCOUNT");
    code = crystal_ask_layout(&ask, &c->request);
    own = requested_partition(&c->request);
    if (code || ask.partition_is_chosen || !own ||
        (partition->name && strcmp(own, partition->name) == 0))
        return code;
    /* crystal.yaml names the partition: what has that? */
    crystal_partition_fini(partition);
    crystal_partition_ask(own, crystal_srun_line_get(&c->line, "clusters"), partition);
    crystal_request_fini(&c->request);
    return crystal_ask_layout(&ask, &c->request);
}

void crystal_command_say_notices(const struct crystal_command *c)
{
    for (int i = 0; i < c->request.notices.count; i++)
        dprintf(2, "crystal: %s\n", c->request.notices.v[i]);
}
