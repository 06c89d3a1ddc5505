/* See plan_progress.h. */
#include "config.h"

#include "commands/plan_progress.h"

#include "runtime/filehead.h"
#include "runtime/infile.h"
#include "runtime/outfile.h"
#include "runtime/profile.h"
#include "runtime/yaml_map.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static int hash_layout(const struct stage *stage, uint64_t *ret,
                       struct crystal_error *err)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    int code = stage_path(stage, path, err, "layout.yaml");

    if (!code)
        code = crystal_infile_read(path, CRYSTAL_YAML_BYTES_MAX, &text, &bytes, err);
    if (code)
        return code;
    *ret = crystal_hash(text, bytes);
    free(text);
    return 0;
}

/* 0, or negative where there is none that can be understood. */
static int read_progress(const struct stage *stage, struct plan_progress *ret)
{
    char path[PATH_MAX];
    FILE *file;
    int count;

    if (stage_path(stage, path, NULL, "plan/progress"))
        return -ENAMETOOLONG;
    file = crystal_infile_stream(path, NULL);
    if (!file)
        return -ENOENT;
    count = fscanf(file,
                   "version=1 id=%" SCNx64 " graph=%" SCNx64 " layout=%" SCNx64
                   " pass=%" SCNu32 " before_ns=%lf",
                   &ret->id, &ret->graph_hash, &ret->layout_hash, &ret->pass,
                   &ret->before_ns);
    (void)fclose(file); /* read-only */
    return count == 5 && ret->pass && isfinite(ret->before_ns) &&
                   (ret->pass == 1) == (ret->before_ns <= 0)
               ? 0
               : -EINVAL;
}

/* A later pass needs what the one before has composed. */
static int has_profile(const struct stage *stage, uint64_t graph_hash)
{
    struct crystal_profile *profile;
    char path[PATH_MAX];
    int found;

    if (stage_path(stage, path, NULL, "job.profile"))
        return 0;
    profile = crystal_profile_open(path, NULL);
    found = profile && crystal_profile_head(profile)->graph_hash == graph_hash;
    crystal_profile_close(profile);
    return found;
}

int plan_progress_open(const struct stage *stage, uint64_t graph_hash,
                       struct plan_progress *ret, struct crystal_error *err)
{
    struct plan_progress was = {0}, p = {.graph_hash = graph_hash, .pass = 1};
    int code = hash_layout(stage, &p.layout_hash, err);

    if (code)
        return code;
    if (read_progress(stage, &was) == 0 && was.graph_hash == p.graph_hash &&
        was.layout_hash == p.layout_hash &&
        (was.pass == 1 || has_profile(stage, graph_hash)))
        p = was;
    else if (getrandom(&p.id, sizeof p.id, 0) != (ssize_t)sizeof p.id)
        return crystal_error_set(err, EIO, "no random numbers");
    *ret = p;
    return 0;
}

static int write_line(const struct stage *stage, const char *name, const char *text,
                      struct crystal_error *err)
{
    struct crystal_outfile f;
    char path[PATH_MAX];
    int code = stage_path(stage, path, err, "plan/%s", name);

    if (!code)
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);
    if (code)
        return code;
    (void)fputs(text, f.stream); /* close tells */
    return crystal_outfile_close(&f, 0, err);
}

int plan_progress_begin(const struct stage *stage, const struct plan_progress *p,
                        struct crystal_error *err)
{
    static const char *const what[] = {".trace", ".run", ".done"};
    struct plan_progress was = {0};
    char text[256];
    int code = 0;

    if (read_progress(stage, &was) == 0 && was.id == p->id && was.pass == p->pass)
        return 0;
    for (size_t i = 0; !code && i < sizeof what / sizeof *what; i++)
        code = stage_sweep(stage, "plan", what[i], err);
    (void)snprintf(text, sizeof text,
                   "version=1\nid=%" PRIx64 "\ngraph=%" PRIx64 "\nlayout=%" PRIx64
                   "\npass=%" PRIu32 "\nbefore_ns=%.17g\n",
                   p->id, p->graph_hash, p->layout_hash, p->pass, p->before_ns);
    return code ? code : write_line(stage, "progress", text, err);
}

int plan_progress_mark(const struct stage *stage, const struct plan_progress *p,
                       uint32_t target_node, struct crystal_error *err)
{
    char name[32], text[64];

    (void)snprintf(name, sizeof name, "%" PRIu32 ".done", target_node);
    (void)snprintf(text, sizeof text, "%" PRIx64 " %" PRIu32 "\n", p->id, p->pass);
    return write_line(stage, name, text, err);
}

int plan_progress_has(const struct stage *stage, const struct plan_progress *p,
                      uint32_t target_node)
{
    uint64_t id = 0;
    uint32_t pass = 0;
    char path[PATH_MAX];
    FILE *file;
    int count;

    if (stage_path(stage, path, NULL, "plan/%" PRIu32 ".done", target_node))
        return 0;
    file = crystal_infile_stream(path, NULL);
    if (!file)
        return 0;
    count = fscanf(file, "%" SCNx64 " %" SCNu32, &id, &pass);
    (void)fclose(file); /* read-only */
    return count == 2 && id == p->id && pass == p->pass;
}

int plan_progress_end(const struct stage *stage, struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = stage_path(stage, path, err, "plan/progress");

    if (!code && unlink(path) < 0 && errno != ENOENT)
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    return code ? code : stage_sweep(stage, "plan", ".done", err);
}
