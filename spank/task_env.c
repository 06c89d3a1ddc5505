/* The environment of one task of the program's step. */
#include "config.h"

#include "spank/task_env.h"

#include "runtime/env.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static FILE *open_when_there(const char *path, uint32_t timeout_ms)
{
    static const struct timespec pause = {0, 20 * 1000 * 1000};

    for (uint32_t waited_ms = 0;; waited_ms += 20) {
        FILE *file = fopen(path, "re");

        if (file || errno != ENOENT || waited_ms >= timeout_ms)
            return file;
        (void)nanosleep(&pause, NULL);
    }
}

/* NAME=VALUE with a name that a shell would take. */
static bool is_setting(const char *line)
{
    const char *c = line;

    if (!isalpha((unsigned char)*c) && *c != '_')
        return false;
    while (isalnum((unsigned char)*c) || *c == '_')
        c++;
    return *c == '=';
}

int crystal_task_env_read(const char *path, uint32_t timeout_ms,
                          struct crystal_argv *out, struct crystal_error *err)
{
    FILE *file = open_when_there(path, timeout_ms);
    char *line = NULL;
    size_t bytes = 0;
    ssize_t got;
    int rc = 0;

    if (!file)
        return crystal_error_set(err, errno,
                                 "%s: %s; the node's agent did not come up, see log/ "
                                 "in the job directory",
                                 path, strerror(errno));
    while (rc == 0 && (got = getline(&line, &bytes, file)) > 0) {
        if (line[got - 1] == '\n')
            line[got - 1] = '\0';
        if (!*line)
            continue;
        if (is_setting(line))
            crystal_argv_add(out, "%s", line);
        else
            rc = crystal_error_set(err, EPROTO, "%s: '%.40s' is no NAME=VALUE line",
                                   path, line);
    }
    if (rc == 0 && ferror(file))
        rc = crystal_error_set(err, EIO, "%s: read error", path);
    if (rc == 0 && out->failed)
        rc = crystal_error_set(err, ENOMEM, "out of memory");
    free(line);
    fclose(file);
    return rc;
}

static void put(void *context, const char *setting)
{
    crystal_argv_add(context, "%s", setting);
}

void crystal_task_env_add(const struct crystal_task *task, struct crystal_argv *out)
{
    uint32_t n = task->logical_rank_count, per_node = task->ranks_per_node;
    struct crystal_slurm_task slurm =
        crystal_slurm_task_of(task->view, task->lrank, n, per_node);

    crystal_argv_add(out, CRYSTAL_ENV_STAGE "=emulate");
    crystal_argv_add(out, CRYSTAL_ENV_LRANK "=%u", task->lrank);
    crystal_argv_add(out, CRYSTAL_ENV_LOGICAL_RANKS "=%u", n);
    crystal_argv_add(out, "RANK=%u", task->lrank);
    crystal_argv_add(out, "LOCAL_RANK=%u", task->lrank % per_node);
    crystal_argv_add(out, "WORLD_SIZE=%u", n);
    crystal_argv_add(out, "LOCAL_WORLD_SIZE=%u", per_node);
    if (task->view != CRYSTAL_SLURM_PHYSICAL)
        crystal_slurm_task_each(&slurm, put, out);
}
