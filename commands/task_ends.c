/* See task_ends.h. */
#include "config.h"

#include "commands/task_ends.h"

#include "runtime/launch.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { GRACE_MS = 5000, NOTICE_MS = 10000 };

extern char **environ;

static uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The first line of a task that failed, and the number of lines. A line without its end
 * is still being written. */
static uint32_t read_ends(struct task_ends *ends, struct crystal_launch_end *ret_failed)
{
    FILE *file = fopen(ends->path, "re");
    uint32_t count = 0, lrank, step;
    char line[64];
    int status;

    while (file && fgets(line, sizeof line, file) && strchr(line, '\n') &&
           sscanf(line, "%u %d %u", &lrank, &status, &step) == 3) {
        count++;
        ends->step = step;
        if (ret_failed->code || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
            continue;
        ret_failed->lrank = lrank;
        ret_failed->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        ret_failed->code =
            ret_failed->signal ? 128 + ret_failed->signal : WEXITSTATUS(status);
    }
    if (file)
        (void)fclose(file); /* read-only */
    return count;
}

int task_ends_check(struct task_ends *ends, struct crystal_error *err)
{
    struct crystal_launch_end failed = {0};
    char how[128];

    if (read_ends(ends, &failed) >= ends->task_count || !failed.code)
        return 0;
    if (!ends->failed_ms)
        ends->failed_ms = now_ms();
    if (now_ms() - ends->failed_ms < GRACE_MS)
        return 0;
    crystal_launch_end_text(&failed, how, sizeof how);
    return crystal_error_set(err, ECANCELED,
                             "rank %u %s while others run on, ending their "
                             "communication",
                             failed.lrank, how);
}

/* Slurm's own command, as the user could call it. */
static void cancel_step(uint32_t step)
{
    const char *job = getenv("SLURM_JOB_ID");
    char id[64], name[] = "scancel";
    char *argv[] = {name, id, NULL};
    pid_t pid;

    if (!job || snprintf(id, sizeof id, "%s.%u", job, step) >= (int)sizeof id ||
        posix_spawnp(&pid, name, NULL, NULL, argv, environ))
        return; /* the user has the sentence and Ctrl-C */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

int task_ends_finish(struct task_ends *ends)
{
    struct crystal_launch_end failed = {0};

    if (read_ends(ends, &failed) >= ends->task_count)
        return 1;
    if (!failed.code)
        return 0;
    if (!ends->finish_ms)
        ends->finish_ms = now_ms();
    if (now_ms() - ends->finish_ms < NOTICE_MS)
        return 0;
    cancel_step(ends->step);
    return 1;
}
