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
#include "spank/batch_script.h"
#include "spank/nodes.h"
#include "spank/process.h"
#include "spank/salloc_line.h"
#include "spank/srun_line.h"
#include "spank/steps.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define REEXEC_ENV "CRYSTAL_REEXEC"
enum { EXIT_USAGE = 2 };

/* One command line and all that is found out about it. */
struct command {
    const struct crystal_local *local;
    struct crystal_argv self;
    int program;      /* index of the program, or of the batch script, in self */
    int script_count; /* words in front of line that stand in the batch script */
    struct crystal_srun_line line;
    char *scrystal;
    const char *job_id; /* NULL = no allocation yet */
    struct crystal_ask_job job;
    struct crystal_request request;
};

static int say(const struct crystal_error *err)
{
    dprintf(2, "crystal: %s\n", crystal_error_text(err));
    return EXIT_USAGE;
}

static void command_fini(struct command *c)
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

static bool is_sbatch(const struct command *c)
{
    return strcmp(base_name(c->self.v[0]), "sbatch") == 0;
}

/* sbatch --wrap: there is no script. */
static bool has_wrap(const struct command *c)
{
    for (int i = 1; i < c->program; i++)
        if (strncmp(c->self.v[i], "--wrap", 6) == 0)
            return true;
    return false;
}

/* The options of the batch script, which the command line's own override, in front. */
static int read_line(struct command *c)
{
    struct crystal_argv all = {0};
    int rc;

    if (!is_sbatch(c))
        return crystal_srun_line_parse(&c->self, c->program, &c->line);
    crystal_argv_add(&all, "sbatch");
    if (!has_wrap(c))
        crystal_batch_script_options(
            c->program < c->self.count ? c->self.v[c->program] : NULL, &all);
    c->script_count = all.count - 1;
    crystal_argv_add_range(&all, &c->self, 1, c->program);
    rc = all.failed ? -ENOMEM : crystal_srun_line_parse(&all, all.count, &c->line);
    crystal_argv_fini(&all);
    return rc;
}

/* getopt has stopped at the program: optind is the host program's own. */
static int command_read(struct command *c, const struct crystal_local *local)
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
        return say(&err);
    }
    return 0;
}

static int command_check(struct command *c)
{
    struct crystal_error err = {0};

    for (int i = c->program; i < c->self.count; i++)
        if (strcmp(c->self.v[i], ":") == 0)
            crystal_error_set(&err, EINVAL,
                              "heterogeneous jobs (':') are not emulated");
    if (getenv("SLURM_HET_SIZE"))
        crystal_error_set(&err, EINVAL,
                          "heterogeneous jobs are not emulated; use a job of one part");
    if (err.code == 0)
        crystal_srun_line_check(&c->line, &err);
    if (err.code == 0)
        c->scrystal = crystal_ask_scrystal_path(c->local->scrystal, &err);
    return err.code ? say(&err) : 0;
}

/* As Slurm names the job: option, then environment, then program. */
static const char *job_name(const struct command *c)
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
static bool is_task_per_node(const struct command *c)
{
    static const char *const names[] = {"ntasks-per-node", "tasks-per-node"};

    for (size_t i = 0; i < 2; i++) {
        const char *value = crystal_srun_line_get(&c->line, names[i]);

        if (value && strcmp(value, "1") == 0)
            return true;
    }
    return false;
}

static int command_ask(struct command *c, bool for_step, bool write)
{
    struct crystal_ask_layout ask = {
        .options = c->local->options,
        .config = c->local->config,
        .scrystal = c->scrystal,
        .job_name = job_name(c),
        .self = &c->self,
        .program = c->program,
        .task_per_node = is_task_per_node(c),
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

/* Where more options can be put: before the program and the "--" in front of it. */
static int options_end(const struct command *c)
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
        return EXIT_USAGE;
    }
    crystal_process_reset_signals();
    execv(path, argv->v);
    dprintf(2, "crystal: %s: %s\n", path, strerror(errno));
    return EXIT_USAGE;
}

/* This process is the second run of a command that we changed. */
static bool is_reexec(void)
{
    const char *pid = getenv(REEXEC_ENV);
    bool same = pid && strtol(pid, NULL, 10) == (long)getpid();

    if (same)
        (void)unsetenv(REEXEC_ENV); /* fails for a bad name only */
    return same;
}

/* Appends the allocation's shape, says what it overrides. 0 or the exit code. */
static int add_allocation(struct command *c, struct crystal_argv *out)
{
    struct crystal_allocation allocation = {
        .request = &c->request, .line = &c->line, .partition = &c->job.partition};
    struct crystal_argv notices = {0};
    struct crystal_error err = {0};
    int rc = crystal_allocation_check(&allocation, &err);

    if (rc == 0)
        rc = crystal_allocation_add(&allocation, out, &notices, &err);
    for (int i = 0; rc == 0 && i < notices.count; i++)
        dprintf(2, "crystal: %s\n", notices.v[i]);
    crystal_argv_fini(&notices);
    return rc ? say(&err) : 0;
}

static void say_notices(const struct command *c)
{
    for (int i = 0; i < c->request.notices.count; i++)
        dprintf(2, "crystal: %s\n", c->request.notices.v[i]);
}

static int rewrite_allocator(struct command *c)
{
    struct crystal_argv argv = {0};
    char self[PATH_MAX];
    int code = command_check(c), end = options_end(c);

    if (code == 0)
        code = command_ask(c, false, false);
    if (code)
        return code;
    /* sbatch has read a script from standard input; it must be read again. */
    if (is_sbatch(c) && c->program == c->self.count && !has_wrap(c) &&
        lseek(0, 0, SEEK_SET) < 0) {
        dprintf(2, "crystal: sbatch cannot read its script twice from a pipe; use "
                   "'sbatch FILE' or 'sbatch < FILE'\n");
        return EXIT_USAGE;
    }
    say_notices(c);
    crystal_argv_add_range(&argv, &c->self, 0, end);
    code = add_allocation(c, &argv);
    crystal_argv_add_range(&argv, &c->self, end, c->self.count);
    /* the steps do not see what the user has said about tasks */
    if (is_task_per_node(c) && setenv("SLURM_CRYSTAL_SLURM_ENV", "node", 0) < 0)
        argv.failed = true;
    if (code == 0)
        code = become(crystal_process_self(self, sizeof self), &argv);
    crystal_argv_fini(&argv);
    return code;
}

int crystal_local_allocator(const struct crystal_local *local)
{
    struct command c;
    int code;

    if (is_reexec() || !local->options->value[CRYSTAL_OPTION_LOGICAL_RANKS])
        return CRYSTAL_LOCAL_GO_ON;
    code = command_read(&c, local);
    if (code == 0)
        code = rewrite_allocator(&c);
    command_fini(&c);
    return code;
}

static int rewrite_to_salloc(struct command *c)
{
    struct crystal_argv argv = {0};
    char salloc[PATH_MAX], srun[PATH_MAX], pid[16];
    int code = command_ask(c, true, false), end = options_end(c);

    if (code)
        return code;
    crystal_ask_slurm_path("salloc", salloc, sizeof salloc);
    crystal_ask_slurm_path("srun", srun, sizeof srun);
    crystal_argv_add(&argv, "salloc");
    crystal_argv_add(&argv, "--quiet");
    crystal_argv_add(&argv, "--job-name=%s", job_name(c));
    crystal_salloc_line_add(&c->line, &argv);
    code = add_allocation(c, &argv);
    crystal_argv_add(&argv, "%s", srun);
    crystal_argv_add_range(&argv, &c->self, 1, end);
    /* or srun would warn about the user's -N */
    crystal_allocation_add_shape(&c->request, &argv);
    /* what --ntasks-per-node=1 has meant is covered by that */
    if (c->request.slurm_env)
        crystal_argv_add(&argv, "--crystal-slurm-env=%s", c->request.slurm_env);
    crystal_argv_add_range(&argv, &c->self, end, c->self.count);
    crystal_salloc_line_environment();
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (setenv(CRYSTAL_SALLOC_ENV, pid, 1) < 0)
        argv.failed = true;
    if (code == 0)
        code = become(salloc, &argv);
    crystal_argv_fini(&argv);
    return code;
}

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
static void add_comment(const struct command *c)
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
        free(crystal_ask_slurm("scontrol", words)); /* in vain: the job runs without */
        free(comment);
        free(job);
    }
    free(own);
}

/* Where the steps run; NULL with a sentence where the job has not enough nodes. */
static char *choose_nodes(const struct command *c)
{
    struct crystal_error err = {0};
    char *nodes = NULL;

    if (crystal_nodes_choose(&c->line, c->job.nodes, c->request.node_count, &nodes,
                             &err) < 0)
        (void)say(&err);
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

static int emulate(struct command *c)
{
    const char *node_count = getenv("SLURM_JOB_NUM_NODES");
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
    int code = command_ask(c, true, true); /* fills c->job and *r */

    if (code)
        return code;
    if (node_count && strtoul(node_count, NULL, 10) < r->node_count) {
        dprintf(2,
                "crystal: the job has %s node(s), the sandbox needs %u; give sbatch or "
                "salloc the same --crystal- options\n",
                node_count, r->node_count);
        return EXIT_USAGE;
    }
    if (c->job.nodes && !(nodes = choose_nodes(c)))
        return EXIT_USAGE;
    steps.job_nodes = c->job.nodes;
    steps.nodes = nodes;
    say_notices(c);
    leave_out_variables();
    add_comment(c);
    steps.cpus_per_node = least_cpus(getenv("SLURM_JOB_CPUS_PER_NODE"));
    steps.with_gres = c->job.has_gres && r->gres_per_node[0];
    if (c->local->salloc == getppid())
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* stays over exec */
    code = crystal_steps_run(&steps);
    free(nodes);
    return code;
}

int crystal_local_srun(const struct crystal_local *local)
{
    struct command c;
    int code = command_read(&c, local);

    if (code || !crystal_srun_line_has_crystal(&c.line)) {
        command_fini(&c);
        return code ? code : CRYSTAL_LOCAL_GO_ON;
    }
    c.job_id = getenv("SLURM_JOB_ID");
    if (!c.job_id)
        c.job_id = crystal_srun_line_get(&c.line, "jobid");
    code = command_check(&c);
    if (code == 0 && c.job_id)
        code = emulate(&c);
    else if (code == 0)
        code = rewrite_to_salloc(&c);
    command_fini(&c);
    crystal_local_release_orphan(local->salloc);
    return code;
}

void crystal_local_release_orphan(pid_t salloc)
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
    crystal_argv_add(&argv, "scancel");
    crystal_argv_add(&argv, "%s", job_id);
    if (crystal_process_start(&spec, &pid, NULL) == 0 &&
        !crystal_process_wait(pid, 10000, &code))
        crystal_process_end(pid);
    crystal_argv_fini(&argv);
}
