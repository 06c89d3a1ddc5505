/* What srun, sbatch and salloc do with our options.
 *
 * The shape of an allocation or a step is changed by running the same command again
 * with our options behind the user's, where the last one wins: exec keeps the process,
 * and CRYSTAL_REEXEC names it so that it is done once. An srun without an allocation
 * becomes a salloc that runs the same srun.
 */
#include "config.h"

#include "spank/local.h"

#include "spank/allocation.h"
#include "spank/argv.h"
#include "spank/ask.h"
#include "spank/cluster.h"
#include "spank/command.h"
#include "spank/emulated.h"
#include "spank/pending.h"
#include "spank/process.h"
#include "spank/salloc_line.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REEXEC_ENV "CRYSTAL_REEXEC"

/* Where more options can be put: before the program and the "--" in front of it. */
static int options_end(const struct crystal_command *c)
{
    int end = c->program;

    return end > 1 && strcmp(c->self.v[end - 1], "--") == 0 ? end - 1 : end;
}

/* Does not return where it works. */
static int become(const char *path, const struct crystal_argv *argv)
{
    char pid[16];

    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (!crystal_argv_is_ok(argv) || setenv(REEXEC_ENV, pid, 1) < 0) {
        dprintf(2, "crystal: out of memory\n");
        return CRYSTAL_COMMAND_EXIT_USAGE;
    }
    crystal_process_reset_signals();
    execv(path, argv->v);
    dprintf(2, "crystal: %s: %s\n", path, strerror(errno));
    return CRYSTAL_COMMAND_EXIT_USAGE;
}

/* This process is the second run of a command that we changed. */
static bool is_reexec(void)
{
    static bool was; /* Slurm may ask for each component of a job */
    const char *pid = getenv(REEXEC_ENV);
    bool same = pid && strtol(pid, NULL, 10) == (long)getpid();

    if (same)
        (void)unsetenv(REEXEC_ENV); /* fails for a bad name only */
    was |= same;
    return was;
}

static struct crystal_allocation allocation_of(const struct crystal_command *c)
{
    return (struct crystal_allocation){
        .request = &c->request, .line = &c->line, .partition = &c->job.partition};
}

/* Appends the allocation's shape, says what it overrides. is_quiet: it is a salloc of
 * our own. 0 or the exit code. */
static int add_allocation(struct crystal_command *c, bool is_quiet,
                          struct crystal_argv *out)
{
    struct crystal_allocation allocation = allocation_of(c);
    struct crystal_partition assistants = {0};
    struct crystal_argv notices = {0};
    struct crystal_error err = {0};
    int rc;

    if (c->request.is_apart)
        crystal_partition_ask(c->request.assistant_partition
                                  ? c->request.assistant_partition
                                  : c->job.partition.name,
                              crystal_srun_line_get(&c->line, "clusters"), &assistants);
    allocation.assistants = &assistants;
    rc = crystal_allocation_check(&allocation, &err);
    if (rc == 0)
        rc = crystal_allocation_add(&allocation, out, &notices, &err);
    for (int i = 0; rc == 0 && i < notices.count; i++)
        dprintf(2, "crystal: %s\n", notices.v[i]);
    crystal_argv_fini(&notices);
    if (rc == 0)
        crystal_allocation_add_component(&allocation, is_quiet, out);
    crystal_partition_fini(&assistants);
    return rc ? crystal_command_say(&err) : 0;
}

/* Appends the shape of the step within it, or srun would warn about the user's -N. What
 * --ntasks-per-node=1 has meant is covered by it, so that is said, too. */
static int add_step(struct crystal_command *c, struct crystal_argv *out)
{
    struct crystal_allocation allocation = allocation_of(c);
    struct crystal_argv said = {0};
    struct crystal_error err = {0};
    int rc;

    crystal_allocation_add_shape(&c->request, out);
    if (c->request.slurm_env)
        crystal_argv_add(out, "--crystal-slurm-env=%s", c->request.slurm_env);
    rc = crystal_allocation_add_nodelist(&allocation, out, &said, &err);
    crystal_argv_fini(&said);
    return rc ? crystal_command_say(&err) : 0;
}

static int rewrite_allocator(struct crystal_command *c)
{
    struct crystal_argv argv = {0};
    char self[PATH_MAX];
    int code = crystal_command_check(c), end = options_end(c);

    if (code == 0)
        code = crystal_command_ask(c, false, false);
    if (code)
        return code;
    /* sbatch has read a script from standard input; it must be read again. */
    if (crystal_command_is_sbatch(c) && c->program == c->self.count &&
        !crystal_command_has_wrap(c) && lseek(0, 0, SEEK_SET) < 0) {
        dprintf(2, "crystal: sbatch cannot read its script twice from a pipe; use "
                   "'sbatch FILE' or 'sbatch < FILE'\n");
        return CRYSTAL_COMMAND_EXIT_USAGE;
    }
    crystal_command_say_notices(c);
    crystal_argv_add_range(&argv, &c->self, 0, end);
    code = add_allocation(c, false, &argv);
    crystal_argv_add_range(&argv, &c->self, end, c->self.count);
    /* the steps do not see what the user has said about tasks */
    if (crystal_command_is_task_per_node(c) &&
        setenv("SLURM_CRYSTAL_SLURM_ENV", "node", 0) < 0)
        argv.failed = true;
    if (code == 0)
        code = become(crystal_process_self(self, sizeof self), &argv);
    crystal_argv_fini(&argv);
    return code;
}

int crystal_local_allocator(const struct crystal_local *local)
{
    struct crystal_command c;
    int code;

    if (is_reexec() || !local->options->value[CRYSTAL_OPTION_LOGICAL_RANKS])
        return CRYSTAL_LOCAL_GO_ON;
    code = crystal_command_read(&c, local);
    if (code == 0)
        code = rewrite_allocator(&c);
    crystal_command_fini(&c);
    return code;
}

static int rewrite_to_salloc(struct crystal_command *c)
{
    struct crystal_argv argv = {0};
    char salloc[PATH_MAX], srun[PATH_MAX], pid[16];
    int code = crystal_command_ask(c, true, false), end = options_end(c);
    const struct crystal_pending pending = {
        .job_name = crystal_command_job_name(c),
        .cluster = crystal_srun_line_get(&c->line, "clusters"),
        .node_count = c->request.node_count + c->request.assistant_count};

    if (code)
        return code;
    crystal_ask_slurm_path("salloc", salloc, sizeof salloc);
    crystal_ask_slurm_path("srun", srun, sizeof srun);
    crystal_argv_add(&argv, "salloc");
    if (!c->request.is_apart)
        crystal_argv_add(&argv, "--quiet");
    crystal_argv_add(&argv, "--job-name=%s", crystal_command_job_name(c));
    crystal_salloc_line_add(&c->line, &argv);
    code = add_allocation(c, true, &argv);
    crystal_argv_add(&argv, "%s", srun);
    crystal_argv_add_range(&argv, &c->self, 1, end);
    if (code == 0)
        code = add_step(c, &argv);
    crystal_argv_add_range(&argv, &c->self, end, c->self.count);
    crystal_salloc_line_environment();
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (setenv(CRYSTAL_SALLOC_ENV, pid, 1) < 0)
        argv.failed = true;
    if (code == 0) {
        crystal_pending_tell(&pending);
        code = become(salloc, &argv);
    }
    crystal_argv_fini(&argv);
    return code;
}

int crystal_local_srun(const struct crystal_local *local)
{
    struct crystal_error err = {0};
    struct crystal_command c;
    int code = crystal_command_read(&c, local);

    if (code || !crystal_srun_line_has_crystal(&c.line)) {
        crystal_command_fini(&c);
        return code ? code : CRYSTAL_LOCAL_GO_ON;
    }
    c.job_id = getenv("SLURM_JOB_ID");
    if (c.job_id && crystal_cluster_check(crystal_srun_line_get(&c.line, "clusters"),
                                          c.job_id, &err))
        code = crystal_command_say(&err);
    if (!c.job_id)
        c.job_id = crystal_srun_line_get(&c.line, "jobid");
    if (code == 0)
        code = crystal_command_check(&c);
    if (code == 0 && c.job_id) {
        crystal_cluster_tell_again();
        code = crystal_emulated_run(&c);
    } else if (code == 0) {
        code = rewrite_to_salloc(&c);
    }
    crystal_command_fini(&c);
    crystal_local_release_orphan(local->salloc, local->cluster);
    return code;
}

void crystal_local_release_orphan(pid_t salloc, const char *cluster)
{
    struct crystal_argv argv = {0};
    char path[PATH_MAX];
    struct crystal_process_spec spec = {.path = path, .argv = &argv};
    const char *job_id = getenv("SLURM_JOB_ID");
    pid_t pid;
    int code;

    if (!salloc || !job_id || salloc == getppid())
        return;
    dprintf(2, "crystal: salloc is gone, cancelling job %s\n", job_id);
    crystal_ask_slurm_path("scancel", path, sizeof path);
    crystal_ask_slurm_begin("scancel", cluster, &argv);
    crystal_argv_add(&argv, "%s", job_id);
    if (crystal_process_start(&spec, &pid, NULL) == 0 &&
        !crystal_process_wait(pid, 10000, &code))
        crystal_process_end(pid);
    crystal_argv_fini(&argv);
}
