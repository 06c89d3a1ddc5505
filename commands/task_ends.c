/* See task_ends.h. */
#include "config.h"

#include "commands/task_ends.h"

#include "runtime/clock.h"
#include "runtime/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 2000, NOTICE_MS = 5000 };

extern char **environ;

static uint64_t now_ms(void)
{
    return crystal_now_ns() / 1000000;
}

static struct crystal_launch_end end_of(uint32_t lrank, int status)
{
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    return (struct crystal_launch_end){
        lrank, signal ? 128 + signal : WEXITSTATUS(status), signal};
}

/* Reads the lines of a node; one without its end is still being written. Returns how
 * many there are, and puts the first ones, at most most, into list. */
static uint32_t read_node(struct task_ends *ends, uint32_t node,
                          struct crystal_launch_end *list, uint32_t most)
{
    uint32_t count = 0, lrank, step;
    char path[PATH_MAX], line[64];
    FILE *file = NULL;
    int status;

    if (snprintf(path, sizeof path, "%s/agent.%u.ends", ends->job_dir, node) <
        (int)sizeof path)
        file = crystal_infile_stream(path, NULL); /* NULL: nobody has ended there */
    while (file && fgets(line, sizeof line, file) && strchr(line, '\n') &&
           sscanf(line, "%u %d %u", &lrank, &status, &step) == 3) {
        ends->step = step;
        if (list && count < most)
            list[count] = end_of(lrank, status);
        count++;
    }
    if (file)
        (void)fclose(file); /* read-only */
    return count;
}

static void read_own(struct task_ends *ends)
{
    uint32_t count = read_node(ends, ends->own_node, ends->list, ends->task_count);

    ends->count = count < ends->task_count ? count : ends->task_count;
    for (uint32_t i = 0; ends->node && i < ends->count; i++)
        if (!ends->list[i].code) /* one that fails is told by itself */
            crystal_node_ended(ends->node, ends->list[i].lrank);
}

/* Nobody on this node runs any more, nor on others, whose files say so, too. */
static int all_have_ended(struct task_ends *ends)
{
    uint64_t count = 0;

    for (uint32_t node = 0; node < ends->node_count; node++)
        count += read_node(ends, node, NULL, 0);
    return count >= ends->all_task_count;
}

static int has_far(const struct task_ends *ends)
{
    return ends->node_count > 1;
}

static struct stage_cause find_cause(const struct task_ends *ends, int service_code)
{
    return stage_cause_find(ends->node, service_code, has_far(ends), ends->list,
                            ends->count);
}

int task_ends_check(struct task_ends *ends, struct crystal_error *err)
{
    struct stage_cause cause;
    int wait_ms, have_all;

    read_own(ends);
    have_all = ends->count >= ends->task_count;
    cause = find_cause(ends, 0);
    if (cause.kind == STAGE_CAUSE_NONE || (have_all && !has_far(ends)))
        return 0;
    if (!ends->failed_ms)
        ends->failed_ms = now_ms();
    wait_ms = stage_cause_wait_ms(&cause);
    if (now_ms() - ends->failed_ms < (uint64_t)(wait_ms ? wait_ms : GRACE_MS))
        return 0;
    ends->code = stage_cause_text(
        &cause, have_all ? "" : " while others run on, ending their communication",
        err);
    return -err->code;
}

int task_ends_explain(struct task_ends *ends, int code, struct crystal_error *err)
{
    struct stage_cause cause;

    read_own(ends);
    cause = find_cause(ends, code);
    if (!ends->broken_ms)
        ends->broken_ms = now_ms();
    if (now_ms() - ends->broken_ms < (uint64_t)stage_cause_wait_ms(&cause))
        return 0;
    ends->code = stage_cause_text(&cause, "", err);
    return code;
}

int task_ends_result(struct task_ends *ends, struct crystal_error *err)
{
    struct stage_cause cause;

    read_own(ends);
    cause = find_cause(ends, 0);
    if (cause.kind == STAGE_CAUSE_NONE || cause.kind == STAGE_CAUSE_FAR)
        return 0;
    return ends->code = stage_cause_text(&cause, "", err);
}

static int write_code(int fd, int code, int is_own)
{
    char line[16];
    int bytes = snprintf(line, sizeof line, "%3d %d\n", code, is_own ? 1 : 0);

    return pwrite(fd, line, (size_t)bytes, 0) == bytes ? 0 : -EIO;
}

int task_ends_code_begin(const char *path, struct crystal_error *err)
{
    int fd, code = 0;

    (void)unlink(path); /* of an earlier run */
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || write_code(fd, 0, 0))
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        (void)close(fd); /* what is not there at the end counts as 0 */
    return code;
}

void task_ends_code_end(const char *path, int code, int is_own)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return;
    (void)write_code(fd, code, is_own); /* srun has the agents' own code besides */
    (void)close(fd);
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
    read_own(ends);
    if (ends->count >= ends->task_count) {
        if (all_have_ended(ends))
            return 1;
    } else if (find_cause(ends, 0).kind == STAGE_CAUSE_NONE) {
        return 0;
    }
    if (!ends->finish_ms)
        ends->finish_ms = now_ms();
    if (now_ms() - ends->finish_ms < NOTICE_MS)
        return 0;
    cancel_step(ends->step);
    return 1;
}
