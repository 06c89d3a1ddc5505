/* Waiting for the ranks of a stage, and whose end began it where they end badly; see
 * stage.h.
 *
 * Who began is known in capture by the coordinator, which performs the communication,
 * in plan and emulate by stage_cause.h.
 */
#include "config.h"

#include "commands/stage.h"
#include "commands/stage_cause.h"

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
#define STOP_MS        1000 /* a coordinator's sentence may be under way */
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

/* How this rank ended; waits a while for it. NULL: it runs on. */
static const struct crystal_launch_end *end_of(struct stage *stage, uint32_t lrank)
{
    uint32_t at = 0;

    for (int waited_ms = 0;;) {
        struct crystal_launch_end end;
        int got;

        for (; at < stage->end_count; at++)
            if (stage->ends[at].lrank == lrank)
                return &stage->ends[at];
        if (waited_ms >= STAGE_CAUSE_MS || !crystal_launch_running(stage->launch))
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

static struct stage_cause find_cause(const struct stage *stage, int service_code)
{
    /* a slice of plan runs on one node */
    const int has_far = stage->kind == STAGE_EMULATE && stage->node_count > 1;

    return stage_cause_find(stage->service, service_code, has_far, stage->ends,
                            stage->end_count);
}

/* One more end, or a while without; negative: a signal stops us. */
static int wait_more(struct stage *stage, struct crystal_error *err)
{
    struct crystal_launch_end end;

    if (crystal_launch_running(stage->launch))
        return next_end(stage, CHECK_MS, &end, err);
    (void)crystal_client_wait_stop(stage->client, CHECK_MS, NULL);
    return 0;
}

/* What is known: the sentence, and the code of the rank that began. service_code, with
 * the sentence that err has, where that is all. */
static int tell_cause(struct stage *stage, const struct stage_cause *cause,
                      int service_code, struct crystal_error *err)
{
    const int is_rank = cause->kind == STAGE_CAUSE_RANK;
    char see[PATH_MAX + 8] = "";

    if (cause->failed && cause->kind != STAGE_CAUSE_SERVICE)
        show_log(stage, is_rank ? cause->lrank : cause->failed->lrank, see);
    stage->code = stage_cause_text(cause, see, err);
    return stage->code ? -err->code : service_code;
}

int stage_explain(struct stage *stage, int service_code, struct crystal_error *err)
{
    struct stage_cause cause;

    for (int waited_ms = 0;;) {
        int got;

        cause = find_cause(stage, service_code);
        if (waited_ms >= stage_cause_wait_ms(&cause))
            break;
        if (cause.kind == STAGE_CAUSE_FAR) {
            if (stage_stopped(stage, err) == -ECANCELED)
                return -ECANCELED;
        } else if (!crystal_launch_running(stage->launch)) {
            break;
        }
        got = wait_more(stage, err);
        if (got < 0)
            return got;
        if (got == 0)
            waited_ms += CHECK_MS;
    }
    return tell_cause(stage, &cause, service_code, err);
}

/* A rank has failed (end), or the coordinator has ended the stage (NULL). One cause is
 * told, that of whoever knows more: of a rank's death we, of everything else the
 * coordinator. */
static int stage_ended(struct stage *stage, const struct crystal_launch_end *end,
                       struct crystal_error *err)
{
    int service_code = stage->service ? crystal_node_status(stage->service, err) : 0;
    const struct stage_cause cause = find_cause(stage, service_code);
    struct stage_cause lost = {.kind = STAGE_CAUSE_RANK};

    if (end && (cause.kind != STAGE_CAUSE_RANK || cause.lrank != end->lrank ||
                (end->signal && end->signal != SIGABRT)))
        return stage_explain(stage, service_code, err);
    if (crystal_client_wait_stop(stage->client, end ? STOP_MS : 0, NULL) != -ECANCELED)
        return stage_explain(stage, service_code, err); /* there is an end */
    lost.lrank = crystal_client_lost(stage->client);
    if (lost.lrank != UINT32_MAX)
        lost.end = end_of(stage, lost.lrank);
    if (!lost.end || !lost.end->code)
        return stage_stopped(stage, err);
    lost.failed = lost.end;
    return stage->service ? stage_explain(stage, service_code, err)
                          : tell_cause(stage, &lost, 0, err);
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
        else if (check && (code = check(context, err)) != 0)
            code = stage_explain(stage, code, err);
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
        if (code)
            return stage_stopped(stage, err) == -ECANCELED ? -ECANCELED : code;
    }
}
