/* Questions to other programs. */
#include "config.h"

#include "spank/ask.h"

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

/* What a Slurm command prints; caller frees, NULL = it failed. */
static char *ask_slurm(const char *name, const char *const *words)
{
    struct crystal_argv argv = {0};
    char path[PATH_MAX], *text = NULL;
    struct crystal_process_spec spec = {.path = path, .argv = &argv};
    int code;

    crystal_ask_slurm_path(name, path, sizeof path);
    crystal_argv_add(&argv, "%s", name);
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

/* "gpu:8", "gpu:h100:8(S:0-1)", several joined by commas: all GPUs of a node. */
static uint32_t count_gpus(const char *gres)
{
    uint32_t total = 0;

    while (*gres) {
        size_t bytes = strcspn(gres, ",("), colon = bytes;

        while (colon > 0 && gres[colon - 1] != ':')
            colon--;
        if (strncmp(gres, "gpu:", 4) == 0 && colon > 0) {
            unsigned long count = strtoul(gres + colon, NULL, 10);

            if (count <= 4096)
                total += (uint32_t)count;
        }
        gres += bytes;
        if (*gres == '(')
            gres += strcspn(gres, ")");
        gres += strcspn(gres, ",");
        gres += *gres == ',';
    }
    return total;
}

/* The GPUs of partition's nodes; of the default one ("main*") where it is NULL. */
static uint32_t partition_gpus(const char *partition)
{
    static const char *const words[] = {"--noheader", "--format=%P|%G", NULL};
    char *text = ask_slurm("sinfo", words), *rest = text, *line;
    uint32_t most = 0;

    while ((line = strsep(&rest, "\n"))) {
        char *gres = strchr(line, '|');
        size_t bytes;
        bool is_default;

        if (!gres)
            continue;
        *gres++ = '\0';
        bytes = strlen(line);
        is_default = bytes > 0 && line[bytes - 1] == '*';
        if (is_default)
            line[bytes - 1] = '\0';
        if (partition ? strcmp(line, partition) == 0 : is_default) {
            uint32_t gpus = count_gpus(gres);

            most = gpus > most ? gpus : most;
        }
    }
    free(text);
    return most;
}

static const char *partition_from_environment(void)
{
    static const char *const names[] = {"SLURM_PARTITION", "SBATCH_PARTITION",
                                        "SALLOC_PARTITION"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]))
            return getenv(names[i]);
    return NULL;
}

/* "n[1-2]" -> "n1" and "n1,n2" */
static void ask_nodes(const char *list, struct crystal_ask_job *ret)
{
    const char *const words[] = {"show", "hostnames", list, NULL};
    char *text = ask_slurm("scontrol", words);

    if (!text || !*text || *text == '\n') {
        free(text);
        return;
    }
    ret->first_node = strndup(text, strcspn(text, "\n"));
    for (char *c = text; *c; c++)
        if (*c == '\n')
            *c = c[1] ? ',' : '\0';
    ret->nodes = text;
}

/* "main|gres:gpu:8|n[1-2]": partition, gres and nodes of a job, cut up in place. */
static char *ask_squeue(const char *job_id, struct crystal_ask_job *ret)
{
    const char *const words[] = {"--noheader", "--format=%P|%b|%N", "--jobs", job_id,
                                 NULL};
    char *text = ask_slurm("squeue", words), *rest = text;
    const char *partition = strsep(&rest, "|"), *gres = strsep(&rest, "|");

    if (!partition || !gres || !rest) {
        free(text);
        return NULL;
    }
    rest[strcspn(rest, "\n")] = '\0';
    ret->has_gres = strncmp(gres, "gres", 4) == 0;
    if (*rest)
        ask_nodes(rest, ret);
    return text;
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
        partition = partition_from_environment();
    ret->gpus_per_node = partition_gpus(partition);
    free(text);
}

void crystal_ask_job_fini(struct crystal_ask_job *job)
{
    free(job->first_node);
    free(job->nodes);
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
    crystal_argv_add(out, "%s", ask->scrystal);
    crystal_argv_add(out, "layout");
    crystal_argv_add(out, "--request");
    if (ask->write)
        crystal_argv_add(out, "--write");
    for (int i = 0; i < CRYSTAL_OPTION_STAGE; i++)
        add_option(ask, (enum crystal_option)i, out);
    if (!ask->for_step)
        crystal_argv_add(out, "--allocation");
    if (ask->gpus_per_node)
        crystal_argv_add(out, "--gpus-per-node=%u", ask->gpus_per_node);
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
