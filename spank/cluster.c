/* See cluster.h.
 *
 * A job that salloc made for us is where SLURM_WORKING_CLUSTER says. One whose node we
 * are on, in a batch script or a task, is on the cluster that is configured there;
 * asking for that by name would need the accounting's database. SLURMD_NODENAME does
 * not tell them apart: salloc inside a job leaves it as it was. Which of salloc and
 * slurmstepd is nearer among our parents does.
 */
#include "config.h"

#include "spank/cluster.h"

#include "spank/argv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORKING_CLUSTER "SLURM_WORKING_CLUSTER"
#define PARENTS_MAX     100

/* The value that this process was started with; caller frees, NULL: none. */
static char *started_with(const char *name)
{
    struct crystal_argv environment = {0};
    size_t bytes = strlen(name);
    char *value = NULL;

    if (crystal_argv_read(&environment, "/proc/self/environ") == 0)
        for (int i = 0; i < environment.count && !value; i++)
            if (strncmp(environment.v[i], name, bytes) == 0 &&
                environment.v[i][bytes] == '=')
                value = strdup(environment.v[i] + bytes + 1);
    crystal_argv_fini(&environment);
    return value;
}

/* Name and parent of a process; parent 0: not known. */
static int parent_of(int pid, char name[16])
{
    char path[64], line[256];
    int parent = 0;
    FILE *file;

    name[0] = '\0';
    (void)snprintf(path, sizeof path, "/proc/%d/status", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    while (!parent && fgets(line, sizeof line, file))
        if (sscanf(line, "Name: %15s", name) != 1)
            (void)sscanf(line, "PPid: %d", &parent);
    (void)fclose(file); /* only read */
    return parent;
}

static bool is_on_node(void)
{
    int pid = (int)getpid();

    for (int i = 0; i < PARENTS_MAX && pid > 0; i++) {
        char name[16];

        pid = parent_of(pid, name);
        if (strcmp(name, "slurmstepd") == 0)
            return true;
        if (strcmp(name, "salloc") == 0)
            return false;
    }
    return getenv("SLURMD_NODENAME") != NULL;
}

/* NAME:ADDRESS:PORT:..., of another cluster; NULL: that of this node. */
static char *working_cluster(void)
{
    char *value = started_with(WORKING_CLUSTER);

    if (value && is_on_node()) {
        free(value);
        value = NULL;
    }
    return value;
}

char *crystal_cluster_of_job(void)
{
    char *value = working_cluster();

    if (value)
        value[strcspn(value, ":")] = '\0';
    return value;
}

void crystal_cluster_tell_again(void)
{
    char *value = working_cluster();

    if (value)
        (void)setenv(WORKING_CLUSTER, value, 1); /* without, -M on the line counts */
    free(value);
}

/* Is the word one of the list, which commas separate? */
static bool has_word(const char *list, const char *word)
{
    size_t bytes = strlen(word);

    for (;;) {
        size_t length = strcspn(list, ",");

        if (length == bytes && strncmp(list, word, bytes) == 0)
            return true;
        if (!list[length])
            return false;
        list += length + 1;
    }
}

int crystal_cluster_check(const char *wanted, const char *job_id,
                          struct crystal_error *err)
{
    const char *option = wanted ? "-M" : "SLURM_CLUSTERS";
    char *own = started_with("SLURM_CLUSTER_NAME");
    int code = 0;

    if (!wanted)
        wanted = getenv("SLURM_CLUSTERS");
    if (own && *own && wanted && *wanted && !has_word(wanted, own) &&
        !has_word(wanted, "all"))
        code = crystal_error_set(err, EINVAL,
                                 "job %s is on cluster '%s', and %s names '%s'; unset "
                                 "SLURM_JOB_ID and SLURM_JOBID to start a job there",
                                 job_id, own, option, wanted);
    free(own);
    return code;
}
