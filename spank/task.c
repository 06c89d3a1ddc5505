/* What slurmstepd does for one task of ours. */
#include "config.h"

#include "spank/task.h"

#include "runtime/env.h"
#include "runtime/guard.h"
#include "spank/request.h"
#include "spank/task_env.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AGENT_TIMEOUT_MS = 30000, RANKS_MAX = 1 << 24 };

/* DIR/agent.NODE.what */
static int agent_path(const struct crystal_options *options, uint32_t node,
                      const char *what, char *out, struct crystal_error *err)
{
    const char *dir = options->value[CRYSTAL_OPTION_JOB_DIR];

    if (!dir || node == UINT32_MAX)
        return crystal_error_set(err, EINVAL,
                                 "a step of ours came without job directory or node; "
                                 "install one release on all nodes");
    if (snprintf(out, PATH_MAX, "%s/agent.%u.%s", dir, node, what) >= PATH_MAX)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", dir);
    return 0;
}

int crystal_task_mark_agent(const struct crystal_options *options, uint32_t node,
                            struct crystal_error *err)
{
    char path[PATH_MAX];
    int rc = agent_path(options, node, "spank", path, err), fd;

    if (rc < 0)
        return rc;
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    (void)close(fd); /* nothing was written */
    return 0;
}

static void write_line(const char *path, const char *line, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);

    _exit(fd >= 0 && write(fd, line, bytes) == (ssize_t)bytes ? 0 : 1);
}

static uint32_t number(const struct crystal_options *options, enum crystal_option which)
{
    const char *text = options->value[which];
    char *end;
    unsigned long value = text ? strtoul(text, &end, 10) : 0;

    return text && *text && !*end && value <= RANKS_MAX ? (uint32_t)value : 0;
}

static int task_of(const struct crystal_options *options, uint32_t index,
                   struct crystal_task *ret, struct crystal_error *err)
{
    const char *sandbox = options->value[CRYSTAL_OPTION_SANDBOX];
    const char *slurm_env = options->value[CRYSTAL_OPTION_SLURM_ENV];

    ret->logical_rank_count = number(options, CRYSTAL_OPTION_LOGICAL_RANKS);
    ret->ranks_per_node = number(options, CRYSTAL_OPTION_RANKS_PER_NODE);
    ret->view = CRYSTAL_SLURM_LOGICAL;
    ret->lrank = sandbox ? crystal_rank_list_at(sandbox, index) : UINT32_MAX;
    if (slurm_env && crystal_slurm_view_parse(slurm_env, &ret->view))
        return crystal_error_set(err, EINVAL,
                                 "--crystal-slurm-env=%s is not known; install one "
                                 "release on all nodes",
                                 slurm_env);
    if (!ret->logical_rank_count || !ret->ranks_per_node ||
        ret->lrank >= ret->logical_rank_count)
        return crystal_error_set(err, EINVAL,
                                 "task %u is no sandbox rank of '%s'; install one "
                                 "release on all nodes",
                                 index, sandbox ? sandbox : "");
    return 0;
}

/* All of them as one variable. */
static int keep_settings(const struct crystal_argv *settings,
                         crystal_task_setenv_fn set, void *context,
                         struct crystal_error *err)
{
    size_t bytes = 1, used = 0;
    char *text;
    int rc;

    for (int i = 0; i < settings->count; i++)
        bytes += strlen(settings->v[i]) + 1;
    text = malloc(bytes);
    if (!text)
        return crystal_error_set(err, ENOMEM, "out of memory");
    text[0] = '\0';
    for (int i = 0; i < settings->count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s\n", settings->v[i]);
    rc = set(context, CRYSTAL_ENV_RANK_ENV, text);
    free(text);
    return rc < 0 ? crystal_error_set(err, EIO, CRYSTAL_ENV_RANK_ENV " cannot be set")
                  : 0;
}

int crystal_task_enter(const struct crystal_options *options, uint32_t node,
                       uint32_t task, crystal_task_setenv_fn set, void *context,
                       struct crystal_error *err)
{
    struct crystal_argv settings = {0};
    struct crystal_task rank;
    char path[PATH_MAX];
    int rc = task_of(options, task, &rank, err);

    if (rc == 0)
        rc = agent_path(options, node, "env", path, err);
    if (rc == 0)
        rc = crystal_task_env_read(path, AGENT_TIMEOUT_MS, &settings, err);
    if (rc == 0)
        crystal_task_env_add(&rank, &settings);
    if (rc == 0 && settings.failed)
        rc = crystal_error_set(err, ENOMEM, "out of memory");
    if (rc == 0)
        rc = keep_settings(&settings, set, context, err);
    for (int i = 0; rc == 0 && i < settings.count; i++) {
        char *equals = strchr(settings.v[i], '=');

        *equals = '\0';
        if (set(context, settings.v[i], equals + 1) < 0)
            rc = crystal_error_set(err, EIO, "%s cannot be set", settings.v[i]);
    }
    crystal_argv_fini(&settings);
    return rc;
}

/* A child that is the user; 0 in it. The process has threads, so malloc is all that it
 * may use beside system calls. */
static pid_t fork_as(const struct crystal_task_end *end)
{
    pid_t pid = fork();

    if (pid == 0 && geteuid() == 0 &&
        (setgroups(0, NULL) < 0 || setresgid(end->gid, end->gid, end->gid) < 0 ||
         setresuid(end->uid, end->uid, end->uid) < 0))
        _exit(1);
    return pid;
}

static void reap(pid_t pid)
{
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

void crystal_task_leave(const struct crystal_options *options,
                        const struct crystal_task_end *end)
{
    struct crystal_task rank;
    char path[PATH_MAX], line[48];
    pid_t pid;
    int bytes;

    if (task_of(options, end->task, &rank, NULL) < 0 ||
        agent_path(options, end->node, "ends", path, NULL) < 0)
        return;
    bytes =
        snprintf(line, sizeof line, "%u %d %u\n", rank.lrank, end->status, end->step);
    pid = fork_as(end);
    if (pid == 0)
        write_line(path, line, (size_t)bytes);
    reap(pid);
}

/* The directory of the board that the agent's file names. */
static void clear(const char *env_path) __attribute__((noreturn));
static void clear(const char *env_path)
{
    static const char setting[] = CRYSTAL_ENV_BOARD "=/dev/shm/crystal-";
    struct crystal_argv settings = {0};

    if (crystal_task_env_read(env_path, 0, &settings, NULL) < 0)
        _exit(1);
    for (int i = 0; i < settings.count; i++) {
        char *path = settings.v[i] + strlen(CRYSTAL_ENV_BOARD "=");
        char *slash = strrchr(settings.v[i], '/');

        if (strncmp(settings.v[i], setting, strlen(setting)) != 0 ||
            strcmp(slash, "/board") != 0)
            continue;
        *slash = '\0';
        crystal_guard_remove_directory(path);
    }
    _exit(0);
}

void crystal_task_clear_agent(const struct crystal_options *options,
                              const struct crystal_task_end *end)
{
    char path[PATH_MAX];
    pid_t pid;

    if (!WIFSIGNALED(end->status) ||
        agent_path(options, end->node, "env", path, NULL) < 0)
        return;
    pid = fork_as(end);
    if (pid == 0)
        clear(path);
    reap(pid);
}
