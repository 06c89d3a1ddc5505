/* Questions to other programs. */
#include "config.h"

#include "spank/ask.h"

#include "runtime/claim.h"
#include "spank/cluster.h"
#include "spank/process.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2 };

void crystal_ask_slurm_path(const char *name, char *out, size_t out_bytes)
{
    char self[PATH_MAX], *slash;
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);

    self[bytes > 0 ? bytes : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash)
        snprintf(out, out_bytes, "%.*s/%s", (int)(slash - self), self, name);
    if (!slash || access(out, X_OK) < 0)
        snprintf(out, out_bytes, "%s", name);
}

void crystal_ask_slurm_begin(const char *name, const char *cluster,
                             struct crystal_argv *argv)
{
    crystal_argv_add(argv, "%s", name);
    if (cluster)
        crystal_argv_add(argv, "--clusters=%s", cluster);
}

/* PREFIX/lib/crystal/crystal.so -> PREFIX/bin/scrystal, also with lib/ARCH between. */
static char *beside_plugin(void)
{
    static const char *const ways[] = {"/../../bin/scrystal", "/../../../bin/scrystal"};
    Dl_info info;
    const char *slash;
    char path[PATH_MAX];

    if (!dladdr((void *)(uintptr_t)&crystal_ask_scrystal_path, &info) ||
        !info.dli_fname || !(slash = strrchr(info.dli_fname, '/')))
        return NULL;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        snprintf(path, sizeof path, "%.*s%s", (int)(slash - info.dli_fname),
                 info.dli_fname, ways[i]);
        if (access(path, X_OK) == 0)
            return realpath(path, NULL);
    }
    return NULL;
}

static char *in_search_path(void)
{
    const char *dirs = getenv("PATH");
    char path[PATH_MAX];

    while (dirs && *dirs) {
        size_t bytes = strcspn(dirs, ":");

        snprintf(path, sizeof path, "%.*s/scrystal", (int)bytes, dirs);
        if (access(path, X_OK) == 0)
            return realpath(path, NULL);
        dirs += bytes + (dirs[bytes] == ':');
    }
    return NULL;
}

char *crystal_ask_scrystal_path(const char *given, struct crystal_error *err)
{
    char *path;

    if (given) {
        path = access(given, X_OK) == 0 ? realpath(given, NULL) : NULL;
        if (!path)
            crystal_error_set(err, errno, "scrystal=%s in plugstack.conf: %s", given,
                              strerror(errno));
        return path;
    }
    path = beside_plugin();
    if (!path)
        path = in_search_path();
    if (!path)
        crystal_error_set(err, ENOENT,
                          "the command scrystal is neither beside crystal.so nor in "
                          "PATH; install it or add scrystal=PATH to plugstack.conf");
    return path;
}

char *crystal_ask_slurm(const char *name, const char *cluster, const char *const *words)
{
    struct crystal_argv argv = {0};
    char path[PATH_MAX], *text = NULL, *own = cluster ? NULL : crystal_cluster_of_job();
    struct crystal_process_spec spec = {.path = path, .argv = &argv};
    int code;

    crystal_ask_slurm_path(name, path, sizeof path);
    crystal_ask_slurm_begin(name, cluster ? cluster : own, &argv);
    free(own);
    for (; *words; words++)
        crystal_argv_add(&argv, "%s", *words);
    code = crystal_process_read(&spec, &text, NULL);
    crystal_argv_fini(&argv);
    if (code == 0)
        return text;
    if (code > 0)
        free(text);
    return NULL;
}

char *crystal_ask_hostnames(const char *list)
{
    const char *const words[] = {"show", "hostnames", list, NULL};
    char *text = crystal_ask_slurm("scontrol", NULL, words);

    if (!text || !*text || *text == '\n') {
        free(text);
        return NULL;
    }
    for (char *c = text; *c; c++)
        if (*c == '\n')
            *c = c[1] ? ',' : '\0';
    return text;
}

/* "7|main|gres:gpu:8|n[1-2]|comment": partition, gres, nodes and comment of a job, cut
 * up in place; its partition. NULL = it is malformed. */
static const char *read_job(char *rest, struct crystal_ask_job *ret)
{
    const char *partition = strsep(&rest, "|"), *gres = strsep(&rest, "|"),
               *nodes = strsep(&rest, "|");

    if (!partition || !gres || !nodes || !rest)
        return NULL;
    ret->comment = strcmp(rest, "(null)") == 0 ? NULL : strdup(rest);
    ret->has_gres = strncmp(gres, "gres", 4) == 0;
    if (*nodes)
        ret->nodes = crystal_ask_hostnames(nodes);
    return partition;
}

/* A line for each component, "7+0" and "7+1", in any order. Caller frees the job's
 * partition; NULL = not known. */
static char *ask_squeue(const char *job_id, struct crystal_ask_job *ret)
{
    const char *const words[] = {"--noheader", "--format=%i|%P|%b|%N|%k", "--jobs",
                                 job_id, NULL};
    char *text = crystal_ask_slurm("squeue", NULL, words), *rest = text, *line;
    char *partition = NULL;

    while ((line = strsep(&rest, "\n"))) {
        char *fields = line, *id = strsep(&fields, "|");
        const char *component = strchr(id, '+'), *found;
        struct crystal_ask_job job = {0};

        if (!fields || !(found = read_job(fields, &job)))
            continue;
        if (component && strcmp(component, "+1") == 0 && !ret->more_nodes) {
            ret->more_nodes = job.nodes;
            job.nodes = NULL;
        } else if ((!component || strcmp(component, "+0") == 0) && !partition) {
            partition = strdup(found);
            ret->has_gres = job.has_gres;
            ret->comment = job.comment;
            ret->nodes = job.nodes;
            job.comment = job.nodes = NULL;
        }
        free(job.comment);
        free(job.nodes);
    }
    free(text);
    return partition;
}

void crystal_ask_job(const char *job_id, const struct crystal_srun_line *line,
                     struct crystal_ask_job *ret)
{
    const char *partition = crystal_srun_line_get(line, "partition");
    char *text = NULL;

    memset(ret, 0, sizeof *ret);
    if (job_id)
        partition = text = ask_squeue(job_id, ret);
    else if (!partition)
        partition = crystal_partition_from_environment();
    crystal_partition_ask(partition, crystal_srun_line_get(line, "clusters"),
                          &ret->partition);
    free(text);
}

void crystal_ask_job_fini(struct crystal_ask_job *job)
{
    free(job->nodes);
    free(job->more_nodes);
    free(job->comment);
    crystal_partition_fini(&job->partition);
    memset(job, 0, sizeof *job);
}

/* Adds --name=value where the option was given; "crystal-" is not said to scrystal. */
static void add_option(const struct crystal_ask_layout *ask, enum crystal_option option,
                       struct crystal_argv *out)
{
    if (ask->options->value[option])
        crystal_argv_add(out, "--%s=%s",
                         crystal_option_table[option].name + strlen("crystal-"),
                         ask->options->value[option]);
}

static void layout_line(const struct crystal_ask_layout *ask, struct crystal_argv *out)
{
    char claim[CRYSTAL_CLAIM_BYTES];

    crystal_argv_add(out, "%s", ask->scrystal);
    crystal_argv_add(out, "layout");
    crystal_argv_add(out, "--request");
    if (ask->write) {
        crystal_claim_own(claim);
        crystal_argv_add(out, "--write");
        crystal_argv_add(out, "--claim=%s", claim);
    }
    for (int i = 0; i < CRYSTAL_OPTION_STAGE; i++)
        add_option(ask, (enum crystal_option)i, out);
    if (!ask->for_step)
        crystal_argv_add(out, "--allocation");
    if (ask->partition->gpus_per_node)
        crystal_argv_add(out, "--gpus-per-node=%u", ask->partition->gpus_per_node);
    if (ask->partition->name)
        crystal_argv_add(out, "--%s=%s",
                         ask->partition_is_chosen ? "partition" : "default-partition",
                         ask->partition->name);
    if (ask->task_per_node && !ask->options->value[CRYSTAL_OPTION_SLURM_ENV])
        crystal_argv_add(out, "--slurm-env=node");
    if (ask->account)
        crystal_argv_add(out, "--account=%s", ask->account);
    crystal_argv_add(out, "--job-name=%s", ask->job_name);
    if (ask->config)
        crystal_argv_add(out, "--config=%s", ask->config);
    crystal_argv_add(out, "--");
    if (ask->for_step)
        crystal_argv_add_range(out, ask->self, ask->program, ask->self->count);
}

int crystal_ask_layout(const struct crystal_ask_layout *ask,
                       struct crystal_request *ret)
{
    struct crystal_error err = {0};
    struct crystal_argv argv = {0};
    struct crystal_process_spec spec = {.path = ask->scrystal, .argv = &argv};
    char *text = NULL;
    int code;

    layout_line(ask, &argv);
    code = crystal_process_read(&spec, &text, &err);
    crystal_argv_fini(&argv);
    if (code > 0) { /* it has said why */
        free(text);
        return EXIT_USAGE;
    }
    if (code == 0)
        code = crystal_request_parse(text, ret, &err);
    free(text);
    if (code == 0)
        return 0;
    dprintf(2, "crystal: %s\n", crystal_error_text(&err));
    return EXIT_USAGE;
}
