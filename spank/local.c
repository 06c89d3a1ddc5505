/* What srun, sbatch and salloc do with our options.
 *
 * The shape of an allocation or a step is changed by running the same command again
 * with our options behind the user's, where the last one wins: exec keeps the process,
 * and CRYSTAL_REEXEC names it so that it is done once. An srun without an allocation
 * becomes a salloc that runs the same srun.
 */
#include "config.h"

#include "spank/local.h"

#include "spank/argv.h"
#include "spank/ask.h"
#include "spank/process.h"
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

extern char **environ;

/* One command line and all that is found out about it. */
struct command {
    const struct crystal_local *local;
    struct crystal_argv self;
    int program; /* index of the program, or of the batch script, in self */
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
        rc = crystal_srun_line_parse(&c->self, c->program, &c->line);
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
    if (err.code == 0)
        crystal_srun_line_check(&c->line, &err);
    if (err.code == 0)
        c->scrystal = crystal_ask_scrystal_path(c->local->scrystal, &err);
    return err.code ? say(&err) : 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
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

static int command_ask(struct command *c, bool for_step, bool write)
{
    struct crystal_ask_layout ask = {
        .options = c->local->options,
        .config = c->local->config,
        .scrystal = c->scrystal,
        .job_name = job_name(c),
        .self = &c->self,
        .program = c->program,
        .for_step = for_step,
        .write = write,
    };

    crystal_ask_job(c->job_id, &c->line, &c->job);
    ask.gpus_per_node = c->job.gpus_per_node;
    return crystal_ask_layout(&ask, &c->request);
}

/* Where more options can be put: before the program and the "--" in front of it. */
static int options_end(const struct command *c)
{
    int end = c->program;

    return end > 1 && strcmp(c->self.v[end - 1], "--") == 0 ? end - 1 : end;
}

static void add_shape(const struct crystal_request *r, struct crystal_argv *out)
{
    crystal_argv_add(out, "--nodes=%u", r->node_count);
    crystal_argv_add(out, "--ntasks=%u", r->task_count);
    crystal_argv_add(out, "--ntasks-per-node=%u", r->tasks_per_node);
    if (r->gres_per_node[0])
        crystal_argv_add(out, "--gres=%s", r->gres_per_node);
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
    if (strcmp(base_name(c->self.v[0]), "sbatch") == 0 && c->program == c->self.count &&
        !crystal_srun_line_get(&c->line, "wrap") && lseek(0, 0, SEEK_SET) < 0) {
        dprintf(2, "crystal: sbatch cannot read its script twice from a pipe; use "
                   "'sbatch FILE' or 'sbatch < FILE'\n");
        return EXIT_USAGE;
    }
    for (int i = 0; i < c->request.notices.count; i++)
        dprintf(2, "crystal: %s\n", c->request.notices.v[i]);
    crystal_argv_add_range(&argv, &c->self, 0, end);
    add_shape(&c->request, &argv);
    crystal_argv_add_range(&argv, &c->self, end, c->self.count);
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

/* srun's variables for an allocation become salloc's, and those of salloc, which srun
 * would not have read, go. */
static void translate_environment(void)
{
    static const char *const names[] = {
        "ACCOUNT",      "ACCTG_FREQ",   "BURST_BUFFER", "CLUSTERS",    "CONSTRAINT",
        "CORE_SPEC",    "CPUS_PER_GPU", "DEBUG",        "DELAY_BOOT",  "EXCLUSIVE",
        "GRES_FLAGS",   "HINT",         "IMMEDIATE",    "MEM_PER_CPU", "MEM_PER_GPU",
        "MEM_PER_NODE", "NETWORK",      "NO_KILL",      "PARTITION",   "POWER",
        "PROFILE",      "QOS",          "REQ_SWITCH",   "RESERVATION", "THREAD_SPEC",
        "TIMELIMIT",    "WAIT4SWITCH",  "WCKEY",
    };
    char from[64], to[64];

    for (char **e = environ; *e;) {
        size_t bytes = strcspn(*e, "=");

        if (strncmp(*e, "SALLOC_", 7) != 0 || bytes >= sizeof from) {
            e++;
            continue;
        }
        memcpy(from, *e, bytes);
        from[bytes] = '\0';
        e = unsetenv(from) == 0 ? environ : e + 1;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(from, sizeof from, "SLURM_%s", names[i]);
        snprintf(to, sizeof to, "SALLOC_%s", names[i]);
        if (getenv(from))
            (void)setenv(to, getenv(from), 1); /* without it salloc's default counts */
    }
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
    crystal_srun_line_add_allocation(&c->line, &argv);
    add_shape(&c->request, &argv);
    crystal_argv_add(&argv, "%s", srun);
    crystal_argv_add_range(&argv, &c->self, 1, end);
    add_shape(&c->request, &argv); /* or srun would warn about the user's -N */
    crystal_argv_add_range(&argv, &c->self, end, c->self.count);
    translate_environment();
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (setenv(CRYSTAL_SALLOC_ENV, pid, 1) < 0)
        argv.failed = true;
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

static int emulate(struct command *c)
{
    const char *node_count = getenv("SLURM_JOB_NUM_NODES");
    const struct crystal_request *r = &c->request;
    int code = command_ask(c, true, true); /* fills c->job and *r */
    struct crystal_steps steps = {
        .scrystal = c->scrystal,
        .self = &c->self,
        .program = c->program,
        .line = &c->line,
        .request = r,
        .job_id = c->job_id,
        .first_node = c->job.first_node,
        .nodes = c->job.nodes,
        .salloc = c->local->salloc,
    };

    if (code)
        return code;
    if (node_count && strtoul(node_count, NULL, 10) < r->node_count) {
        dprintf(2,
                "crystal: the job has %s node(s), the sandbox needs %u; give sbatch or "
                "salloc the same --crystal- options\n",
                node_count, r->node_count);
        return EXIT_USAGE;
    }
    for (int i = 0; i < r->notices.count; i++)
        dprintf(2, "crystal: %s\n", r->notices.v[i]);
    steps.cpus_per_node = least_cpus(getenv("SLURM_JOB_CPUS_PER_NODE"));
    steps.with_gres = c->job.has_gres && r->gres_per_node[0];
    if (c->local->salloc == getppid())
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* stays over exec */
    return crystal_steps_run(&steps);
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
