/* See layout_stages.h. */
#include "config.h"

#include "commands/layout_stages.h"

#include "runtime/filehead.h"
#include "runtime/graph.h"
#include "runtime/graph_build.h"
#include "runtime/infile.h"
#include "runtime/payload.h"
#include "runtime/profile.h"
#include "runtime/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CAPTURE, PLAN, EMULATE };

/* The header of a finished file of this job, 0 where there is none. */
static int finished(const char *path, const char *magic, const struct crystal_layout *l,
                    struct crystal_filehead *head)
{
    struct stat st;
    int fd = crystal_infile_open(path, NULL, NULL), ok;

    if (fd < 0)
        return 0;
    ok = fstat(fd, &st) == 0 && read(fd, head, sizeof *head) == sizeof *head &&
         memcmp(head->magic, magic, sizeof head->magic) == 0 && head->file_bytes &&
         head->file_bytes == (uint64_t)st.st_size &&
         head->fingerprint == l->fingerprint;
    (void)close(fd); /* read-only */
    return ok;
}

static int capture_is_current(const char *dir, const struct crystal_layout *l)
{
    struct crystal_filehead head;
    struct stat link;
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/ranks/" CRYSTAL_PAYLOAD_SPILL, dir);
    if (lstat(path, &link) == 0 && access(path, F_OK) < 0)
        return 0; /* its payload has gone */
    for (uint32_t i = 0; i < l->live_count; i++) {
        (void)snprintf(path, sizeof path, "%s/ranks/%u.trace", dir, l->live[i]);
        if (!finished(path, CRYSTAL_TRACE_MAGIC, l, &head))
            return 0;
    }
    return 1;
}

static int plan_is_current(const char *dir, const struct crystal_layout *l)
{
    struct crystal_filehead graph, profile;
    struct crystal_layout old;
    char path[PATH_MAX];
    int same;

    (void)snprintf(path, sizeof path, "%s/job.graph", dir);
    if (!finished(path, CRYSTAL_GRAPH_MAGIC, l, &graph))
        return 0;
    (void)snprintf(path, sizeof path, "%s/job.profile", dir);
    if (!finished(path, CRYSTAL_PROFILE_MAGIC, l, &profile) ||
        crystal_graph_check_traces(dir, l->live, l->live_count, graph.parent_hash,
                                   NULL))
        return 0;
    (void)snprintf(path, sizeof path, "%s/layout.yaml", dir);
    if (crystal_layout_read(path, &old, NULL))
        return 0;
    same = old.wire_bytes_per_s == l->wire_bytes_per_s &&
           old.wire_latency_ns == l->wire_latency_ns &&
           old.plan_passes == l->plan_passes &&
           old.plan_tolerance_ppm == l->plan_tolerance_ppm &&
           old.sandbox_count == l->sandbox_count &&
           memcmp(old.sandbox, l->sandbox, l->sandbox_count * sizeof *l->sandbox) == 0;
    crystal_layout_fini(&old);
    return same;
}

/* asked[STAGE] for each word of the list. */
static int parse_list(const char *list, int asked[CRYSTAL_STAGE_COUNT],
                      struct crystal_error *err)
{
    int any = 0;

    for (size_t bytes; *list; list += bytes + (list[bytes] == ',')) {
        int found = 0;

        bytes = strcspn(list, ",");
        for (int i = 0; i < CRYSTAL_STAGE_COUNT && !found && bytes; i++)
            if (strlen(crystal_stage_names[i]) == bytes &&
                strncmp(crystal_stage_names[i], list, bytes) == 0)
                found = asked[i] = any = 1;
        if (!found && bytes)
            return crystal_error_set(err, EINVAL,
                                     "--crystal-stages: '%.*s' is none of capture, "
                                     "plan, emulate",
                                     (int)(bytes < 32 ? bytes : 32), list);
    }
    return any ? 0 : crystal_error_set(err, EINVAL, "--crystal-stages: names no stage");
}

static int check_nodes(const struct crystal_layout *l, struct crystal_error *err)
{
    uint32_t nodes = l->sandbox_count / l->ranks_per_node;

    if (nodes > 1 && l->live_mode == CRYSTAL_LIVE_LIST)
        return crystal_error_set(err, ENOTSUP,
                                 "--crystal-sandbox: spans %u target nodes; ranks that "
                                 "run one by one (--crystal-live) need one",
                                 nodes);
    return 0;
}

/* Leaves out what is current, aloud; refuses a stage whose parent is neither there nor
 * asked for. */
static int skip_current(const struct layout_stages *stages,
                        const struct crystal_layout *l, int *asked, char *notice,
                        size_t notice_bytes, struct crystal_error *err)
{
    int is_captured = capture_is_current(stages->dir, l);
    int is_planned = plan_is_current(stages->dir, l); /* by what was captured */

    if (!asked[CAPTURE] && !is_captured && stages->needs_capture)
        return crystal_error_set(err, ENOENT,
                                 "%s has no current capture; add capture to "
                                 "--crystal-stages",
                                 stages->dir);
    if (asked[EMULATE] && !asked[PLAN] &&
        (!is_planned || (asked[CAPTURE] && !is_captured)))
        return crystal_error_set(err, ENOENT,
                                 "%s has no current plan; add plan to --crystal-stages",
                                 stages->dir);
    if (asked[CAPTURE] && is_captured) {
        asked[CAPTURE] = 0;
        (void)snprintf(notice, notice_bytes, "capture is current, skipped");
        if (asked[PLAN] && is_planned) {
            asked[PLAN] = 0;
            (void)snprintf(notice, notice_bytes,
                           "capture and plan are current, skipped");
        }
    }
    return 0;
}

int layout_stages(const struct layout_stages *stages, const struct crystal_layout *l,
                  char *out, size_t out_bytes, char *notice, size_t notice_bytes,
                  struct crystal_error *err)
{
    int asked[CRYSTAL_STAGE_COUNT] = {0, 0, 0}, used = 0, code;

    notice[0] = out[0] = 0;
    code =
        parse_list(stages->asked ? stages->asked : "capture,plan,emulate", asked, err);
    if (!code)
        code = check_nodes(l, err);
    if (!code && stages->dir)
        code = skip_current(stages, l, asked, notice, notice_bytes, err);
    for (int i = 0; i < CRYSTAL_STAGE_COUNT && !code; i++)
        if (asked[i])
            used += snprintf(out + used, out_bytes - (size_t)used, "%s%s",
                             used ? "," : "", crystal_stage_names[i]);
    return code;
}
