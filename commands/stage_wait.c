/* Waiting for the ranks of a stage, and whose end began it where they end badly; see
 * stage.h.
 *
 * Ranks that die take others with them, so the first end that is seen may be a
 * consequence. Who began is known in capture by the coordinator, which performs the
 * communication, in plan and emulate by the node's roll (replay/roll.h).
 */
#include "config.h"

#include "commands/stage.h"

#include "runtime/infile.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRACE_MS       3000 /* between SIGTERM and SIGKILL */
#define CHECK_MS       100
#define SILENT_MS      1000 /* others go on so long after one has ended unheard */
#define STOP_MS        300  /* a coordinator's sentence may be under way */
#define FAR_MS         3000 /* the same, of another node's agent */
#define CAUSE_MS       5000 /* from a closed connection to the end of its process */
#define LOG_TAIL_LINES 20
#define LOG_TAIL_BYTES 8192

/* The end of a rank's log, without its last newline; its length, 0 where there is none.
 */
static size_t read_log_tail(const char *path, char text[LOG_TAIL_BYTES + 1])
{
    int fd = crystal_infile_open(path, NULL, NULL);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    ssize_t got = 0;

    if (size > 0)
        got = pread(fd, text, LOG_TAIL_BYTES,
                    size > LOG_TAIL_BYTES ? size - LOG_TAIL_BYTES : 0);
    if (fd >= 0)
        (void)close(fd); /* read-only */
    if (got < 0)
        got = 0;
    if (got && text[got - 1] == '\n')
        got--;
    text[got] = 0;
    return (size_t)got;
}

/* The last lines of a rank's log, as the program printed them. */
static void show_log_tail(const char *path)
{
    char text[LOG_TAIL_BYTES + 1], *line = text + read_log_tail(path, text);
    int lines = 0;

    if (line == text)
        return;
    while (line > text && (line[-1] != '\n' || ++lines < LOG_TAIL_LINES))
        line--;
    fprintf(stderr, "%s\n", line);
}

/* --- ends --- */

/* This process was asked to stop. -EINTR. */
static int stopped_by(struct stage *stage, int signal, struct crystal_error *err)
{
    stage->stop_signal = signal;
    return crystal_error_set(err, EINTR, "stopped by signal %d (%s)", signal,
                             strsignal(signal));
}

/* One more rank has ended, or -EINTR: a signal stops us. 0: nothing in timeout_ms. */
static int next_end(struct stage *stage, int timeout_ms, struct crystal_launch_end *ret,
                    struct crystal_error *err)
{
    int signal = 0;
    int got = crystal_launch_wait(stage->launch, timeout_ms, ret, &signal);

    if (got == -EINTR)
        return stopped_by(stage, signal, err);
    if (got > 0)
        stage->ends[stage->end_count++] = *ret; /* room for all that run */
    if (got > 0 && stage->service)
        crystal_node_ended(stage->service, ret->lrank);
    return got;
}

/* How this rank ended (UINT32_MAX: the first that failed); waits a while for it. NULL:
 * it runs on. */
static const struct crystal_launch_end *end_of(struct stage *stage, uint32_t lrank)
{
    uint32_t at = 0;

    for (int waited_ms = 0;;) {
        struct crystal_launch_end end;
        int got;

        for (; at < stage->end_count; at++)
            if (lrank == UINT32_MAX ? stage->ends[at].code != 0
                                    : stage->ends[at].lrank == lrank)
                return &stage->ends[at];
        if (waited_ms >= CAUSE_MS || !crystal_launch_running(stage->launch))
            return NULL;
        got = next_end(stage, CHECK_MS, &end, NULL);
        if (got < 0)
            return NULL;
        if (got == 0)
            waited_ms += CHECK_MS;
    }
}

/* Shows the end of the rank's log and gives " see" its path, "" where it has none. */
static void show_log(const struct stage *stage, uint32_t lrank, char see[PATH_MAX + 8])
{
    char log[PATH_MAX];

    see[0] = 0;
    if (stage_log_path(stage, lrank, log, NULL) || access(log, R_OK) < 0)
        return;
    show_log_tail(log);
    (void)snprintf(see, PATH_MAX + 8, "; see %s", log);
}

/* What is known of the rank that began. */
static int rank_failed(struct stage *stage, const struct crystal_launch_end *end,
                       struct crystal_error *err)
{
    char how[128], see[PATH_MAX + 8];

    stage->code = end->code;
    crystal_launch_end_text(end, how, sizeof how);
    show_log(stage, end->lrank, see);
    return crystal_error_set(err, ECANCELED, "rank %u %s%s", end->lrank, how, see);
}

/* It has not failed, but left another (end) that needed it. */
static int rank_left(struct stage *stage, uint32_t lrank, int has_ended,
                     const struct crystal_launch_end *end, struct crystal_error *err)
{
    char see[PATH_MAX + 8];

    stage->code = end->code;
    show_log(stage, lrank, see);
    return crystal_error_set(
        err, ECANCELED, "rank %u %s while rank %u still communicates with it%s", lrank,
        has_ended ? "ended with code 0" : "has closed its connections", end->lrank,
        see);
}

/* A rank has failed: of itself, or of another's end? */
static int tell_end(struct stage *stage, const struct crystal_launch_end *end,
                    struct crystal_error *err)
{
    const struct crystal_launch_end seen = *end, *began = &seen;
    uint32_t lrank =
        stage->service ? crystal_node_cause(stage->service, seen.lrank) : seen.lrank;

    if (lrank != seen.lrank)
        began = end_of(stage, lrank);
    return began && began->code ? rank_failed(stage, began, err)
                                : rank_left(stage, lrank, began != NULL, &seen, err);
}

int stage_stopped(struct stage *stage, struct crystal_error *err)
{
    static const char prefix[] = "coordinator: ";
    struct crystal_error stop = {0};
    int code = crystal_client_wait_stop(stage->client, 0, &stop);

    if (code != -ECANCELED)
        return code;
    stage->was_told = 1;
    stage->coord_found = strncmp(stop.text, prefix, sizeof prefix - 1) == 0;
    return crystal_error_set(err, ECANCELED, "%s",
                             stop.text + (stage->coord_found ? sizeof prefix - 1 : 0));
}

/* Another node's rank has ended: its agent tells why, or is about to. */
static int is_told_elsewhere(struct stage *stage)
{
    return stage->service && crystal_node_cause_is_far(stage->service) &&
           crystal_client_wait_stop(stage->client, FAR_MS, NULL) == -ECANCELED;
}

/* Something ended the stage: a rank (end) or the coordinator (end NULL). One cause is
 * told, that of whoever knows more: of a rank's death we, of everything else the
 * coordinator. */
static int stage_ended(struct stage *stage, const struct crystal_launch_end *end,
                       struct crystal_error *err)
{
    uint32_t lost;

    if (is_told_elsewhere(stage))
        return stage_stopped(stage, err);
    if (end && ((end->signal && end->signal != SIGABRT) ||
                (stage->service &&
                 crystal_node_cause(stage->service, end->lrank) != end->lrank)))
        return tell_end(stage, end, err);
    if (crystal_client_wait_stop(stage->client, end ? STOP_MS : 0, NULL) != -ECANCELED)
        return tell_end(stage, end, err); /* there is one: we have waited */
    lost = crystal_client_lost(stage->client);
    if (lost != UINT32_MAX && (!end || end->lrank != lost))
        end = end_of(stage, lost);
    if (lost != UINT32_MAX && end && end->code)
        return tell_end(stage, end, err);
    return stage_stopped(stage, err);
}

/* The node's service or a plugin stops the job: of itself (err), or because a rank has
 * ended? */
static int check_failed(struct stage *stage, struct crystal_error *err)
{
    uint32_t lrank =
        stage->service ? crystal_node_cause(stage->service, UINT32_MAX) : UINT32_MAX;
    const struct crystal_launch_end *end, *other;

    if (is_told_elsewhere(stage))
        return stage_stopped(stage, err);
    if (lrank == UINT32_MAX)
        return -err->code;
    end = end_of(stage, lrank);
    if (end && end->code)
        return rank_failed(stage, end, err);
    other = end_of(stage, UINT32_MAX);
    return other ? rank_left(stage, lrank, end != NULL, other, err) : -err->code;
}

/* A rank of capture that has ended well without any NCCL call: the others may wait for
 * it, and the coordinator does not know it. */
static int has_recorded(const struct stage *stage, uint32_t lrank)
{
    char path[PATH_MAX];

    return strcmp(stage->name, "capture") != 0 ||
           stage_path(stage, path, NULL, "ranks/%u.trace", lrank) ||
           access(path, F_OK) == 0;
}

static int silent_failed(const struct stage *stage, uint32_t lrank,
                         struct crystal_error *err)
{
    char log[PATH_MAX];
    int code = stage_log_path(stage, lrank, log, err);

    return code ? code
                : crystal_error_set(err, ENOENT,
                                    "rank %u has ended without any NCCL call while "
                                    "others go on; see %s",
                                    lrank, log);
}

/* --- waiting --- */

static int wait_ranks(struct stage *stage, stage_check_fn check, void *context,
                      struct crystal_error *err)
{
    uint32_t silent = UINT32_MAX; /* ended so SILENT_MS ago at most */
    int silent_ms = 0;
    int code = 0;

    while (!code && crystal_launch_running(stage->launch)) {
        struct crystal_launch_end end;
        int got = next_end(stage, CHECK_MS, &end, err);

        if (got < 0)
            code = got;
        else if (got > 0 && end.code)
            code = stage_ended(stage, &end, err);
        else if (crystal_client_wait_stop(stage->client, 0, NULL) == -ECANCELED)
            code = stage_ended(stage, NULL, err);
        else if (check && check(context, err))
            code = check_failed(stage, err);
        if (got > 0 && !code && !has_recorded(stage, end.lrank))
            silent = end.lrank;
        else if (got == 0 && silent != UINT32_MAX)
            silent_ms += CHECK_MS;
        if (!code && silent_ms >= SILENT_MS)
            code = silent_failed(stage, silent, err);
    }
    return code;
}

int stage_wait_ranks(struct stage *stage, stage_check_fn check, void *context,
                     struct crystal_error *err)
{
    int code;

    free(stage->ends);
    stage->end_count = 0;
    stage->ends =
        calloc(crystal_launch_running(stage->launch) + 1, sizeof *stage->ends);
    code = stage->ends ? wait_ranks(stage, check, context, err)
                       : crystal_error_set(err, ENOMEM, "out of memory");
    if (code) /* before it sees the others die */
        stage_tell(stage, err);
    crystal_launch_stop(stage->launch, GRACE_MS); /* what they left, too */
    return code;
}

int stage_pause(struct stage *stage, int ms, struct crystal_error *err)
{
    struct crystal_launch_end end;
    int signal = 0;

    return crystal_launch_wait(stage->launch, ms, &end, &signal) == -EINTR
               ? stopped_by(stage, signal, err)
               : 0;
}

int stage_wait_job(struct stage *stage, stage_check_fn check, void *context,
                   struct crystal_error *err)
{
    for (;;) {
        int code = stage_pause(stage, CHECK_MS, err);

        if (code)
            return code;
        code = stage_stopped(stage, err);
        if (code != -ETIMEDOUT)
            return code;
        code = check ? check(context, err) : 0;
        if (code && is_told_elsewhere(stage))
            code = stage_stopped(stage, err);
        if (code)
            return code;
    }
}
