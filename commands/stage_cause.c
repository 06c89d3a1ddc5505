/* See stage_cause.h. */
#include "config.h"

#include "commands/stage_cause.h"

#include <errno.h>
#include <signal.h>

static const struct crystal_launch_end *end_of(const struct crystal_launch_end *ends,
                                               uint32_t count, uint32_t lrank)
{
    for (uint32_t i = 0; i < count; i++)
        if (ends[i].lrank == lrank)
            return &ends[i];
    return NULL;
}

static const struct crystal_launch_end *
first_failed(const struct crystal_launch_end *ends, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (ends[i].code)
            return &ends[i];
    return NULL;
}

/* A program that gets an error may call abort(). */
static int is_killed(const struct crystal_launch_end *end)
{
    return end->signal && end->signal != SIGABRT;
}

/* One that failed of itself: it saw nothing end before. One that was killed rather than
 * one that may have had a reason of which no record is. */
static const struct crystal_launch_end *
failed_alone(struct crystal_node *node, const struct crystal_launch_end *ends,
             uint32_t count)
{
    const struct crystal_launch_end *found = NULL;

    for (uint32_t i = 0; i < count; i++) {
        const struct crystal_launch_end *end = &ends[i];

        if (!end->code || (found && !is_killed(end)) ||
            (node && crystal_node_has_seen(node, end->lrank)))
            continue;
        if (is_killed(end))
            return end;
        found = end;
    }
    return found;
}

struct stage_cause stage_cause_find(struct crystal_node *node, int service_code,
                                    int has_far, const struct crystal_launch_end *ends,
                                    uint32_t count)
{
    struct stage_cause cause = {STAGE_CAUSE_NONE, UINT32_MAX, NULL,
                                first_failed(ends, count)};
    struct crystal_roll_cause seen = {CRYSTAL_FIRST_NONE, UINT32_MAX};

    if (!service_code && !cause.failed)
        return cause;
    if (node)
        seen = crystal_node_cause(node);
    if (seen.first == CRYSTAL_FIRST_RANK)
        cause.end = end_of(ends, count, seen.lrank);
    else
        cause.end = failed_alone(node, ends, count);
    if (seen.first == CRYSTAL_FIRST_RANK || cause.end) {
        cause.kind = STAGE_CAUSE_RANK;
        cause.lrank = cause.end ? cause.end->lrank : seen.lrank;
    } else if (service_code && service_code != -ECONNRESET &&
               seen.first != CRYSTAL_FIRST_STRANGER) {
        cause.kind = STAGE_CAUSE_SERVICE;
    } else {
        cause.kind = has_far ? STAGE_CAUSE_FAR : STAGE_CAUSE_UNKNOWN;
    }
    return cause;
}

int stage_cause_wait_ms(const struct stage_cause *cause)
{
    const struct crystal_launch_end *end = cause->end;

    if (cause->kind == STAGE_CAUSE_FAR)
        return STAGE_FAR_MS;
    /* one that ended well has left one that will fail */
    return cause->kind == STAGE_CAUSE_UNKNOWN ||
                   (cause->kind == STAGE_CAUSE_RANK &&
                    (!end || (!end->code && !cause->failed)))
               ? STAGE_CAUSE_MS
               : 0;
}

int stage_cause_text(const struct stage_cause *cause, const char *more,
                     struct crystal_error *err)
{
    const struct crystal_launch_end *end = cause->end, *failed = cause->failed;
    char how[128];

    if (!failed || cause->kind == STAGE_CAUSE_SERVICE)
        return 0;
    if (cause->kind == STAGE_CAUSE_RANK && (!end || !end->code)) {
        (void)crystal_error_set(
            err, ECANCELED, "rank %u %s while rank %u still communicates with it%s",
            cause->lrank, end ? "ended with code 0" : "has closed its connections",
            failed->lrank, more);
        return failed->code;
    }
    if (cause->kind != STAGE_CAUSE_RANK)
        end = failed;
    crystal_launch_end_text(end, how, sizeof how);
    (void)crystal_error_set(err, ECANCELED, "rank %u %s%s", end->lrank, how, more);
    return end->code;
}
