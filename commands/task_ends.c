/* See task_ends.h. */
#include "config.h"

#include "commands/task_ends.h"

#include "runtime/clock.h"
#include "runtime/infile.h"
#include "runtime/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 2000, CAUSE_MS = 5000, NOTICE_MS = 5000 };

extern char **environ;

static uint64_t now_ms(void)
{
    return crystal_now_ns() / 1000000;
}

/* What the lines say. */
struct task_lines {
    uint32_t count; /* a line without its end is still being written */
    struct crystal_launch_end failed; /* the first that failed; code 0: none */
    struct crystal_launch_end began;  /* how `cause` ended, if has_began */
    int has_began;
};

static struct crystal_launch_end end_of(uint32_t lrank, int status)
{
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    return (struct crystal_launch_end){
        lrank, signal ? 128 + signal : WEXITSTATUS(status), signal};
}

/* cause: the rank to look for. */
static struct task_lines read_lines(const struct task_ends *ends, uint32_t cause,
                                    uint32_t *ret_step)
{
    FILE *file = crystal_infile_stream(ends->path, NULL);
    struct task_lines lines = {0};
    uint32_t lrank, step;
    char line[64];
    int status;

    while (file && fgets(line, sizeof line, file) && strchr(line, '\n') &&
           sscanf(line, "%u %d %u", &lrank, &status, &step) == 3) {
        const struct crystal_launch_end end = end_of(lrank, status);

        lines.count++;
        if (ret_step)
            *ret_step = step;
        if (!lines.failed.code && end.code)
            lines.failed = end;
        if (ends->node && !end.code) /* one that fails is told by itself */
            crystal_node_ended(ends->node, lrank);
        if (lrank == cause) {
            lines.began = end;
            lines.has_began = 1;
        }
    }
    if (file)
        (void)fclose(file); /* read-only */
    return lines;
}

/* The sentence of the rank that began; its code, that of the one that died of it where
 * it has none. */
static int tell(struct task_ends *ends, const struct crystal_launch_end *failed,
                const char *more, struct crystal_error *err)
{
    uint32_t cause =
        ends->node ? crystal_node_cause(ends->node, failed->lrank) : failed->lrank;
    struct task_lines lines = read_lines(ends, cause, NULL);
    char how[128];

    if (lines.has_began && lines.began.code) {
        crystal_launch_end_text(&lines.began, how, sizeof how);
        (void)crystal_error_set(err, ECANCELED, "rank %u %s%s", cause, how, more);
        ends->code = lines.began.code;
        return ends->code;
    }
    ends->code = failed->code;
    (void)crystal_error_set(
        err, ECANCELED, "rank %u %s while rank %u still communicates with it%s", cause,
        lines.has_began ? "ended with code 0" : "has closed its connections",
        failed->lrank, more);
    return ends->code;
}

/* Did a rank of another node begin? Its agent tells that, and the coordinator us. */
static int is_far(const struct task_ends *ends)
{
    return ends->node && crystal_node_cause_is_far(ends->node);
}

int task_ends_check(struct task_ends *ends, struct crystal_error *err)
{
    struct task_lines lines = read_lines(ends, UINT32_MAX, &ends->step);

    if (lines.count >= ends->task_count || !lines.failed.code)
        return 0;
    if (!ends->failed_ms)
        ends->failed_ms = now_ms();
    if (now_ms() - ends->failed_ms < (is_far(ends) ? CAUSE_MS : GRACE_MS))
        return 0;
    (void)tell(ends, &lines.failed, " while others run on, ending their communication",
               err);
    return -err->code;
}

int task_ends_explain(struct task_ends *ends, int code, struct crystal_error *err)
{
    uint32_t cause = crystal_node_cause(ends->node, UINT32_MAX);
    struct task_lines lines;

    lines = read_lines(ends, cause, &ends->step);
    if (cause == UINT32_MAX && !is_far(ends)) {
        if (lines.failed.code)
            (void)tell(ends, &lines.failed, "", err);
        return code;
    }
    if (lines.has_began && lines.began.code) {
        (void)tell(ends, &lines.began, "", err);
        return code;
    }
    if (!ends->broken_ms)
        ends->broken_ms = now_ms();
    if (now_ms() - ends->broken_ms < CAUSE_MS)
        return 0;
    if (lines.failed.code)
        (void)tell(ends, &lines.failed, "", err);
    return code;
}

int task_ends_result(struct task_ends *ends, struct crystal_error *err)
{
    struct task_lines lines = read_lines(ends, UINT32_MAX, NULL);

    return lines.failed.code && !is_far(ends) ? tell(ends, &lines.failed, "", err) : 0;
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
    struct task_lines lines = read_lines(ends, UINT32_MAX, &ends->step);

    if (lines.count >= ends->task_count)
        return 1;
    if (!lines.failed.code)
        return 0;
    if (!ends->finish_ms)
        ends->finish_ms = now_ms();
    if (now_ms() - ends->finish_ms < NOTICE_MS)
        return 0;
    cancel_step(ends->step);
    return 1;
}
