/* Building job.graph from what capture left in a job directory: layout.yaml, comms.tab,
 * ranks/R.trace and ranks/R.payload of every live rank R. graph_file.h draws the
 * result.
 */
#include "config.h"

#include "runtime/graph_build_internal.h"

#include "runtime/infile.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- parents --- */

/* Adds one file to an identity by the body hash in its header, 0 where there is none.
 */
static int identify(const char *path, uint64_t *hash, struct crystal_error *err)
{
    struct crystal_filehead head;
    uint64_t pair[2] = {*hash, 0};
    struct crystal_error why = {0};
    int fd = crystal_infile_open(path, NULL, &why);

    if (fd < 0 && fd != -ENOENT)
        return crystal_error_set(err, -fd, "%s", crystal_error_text(&why));
    if (fd >= 0) {
        ssize_t got = read(fd, &head, sizeof head);

        (void)close(fd); /* read-only, nothing to lose */
        if (got != (ssize_t)sizeof head)
            return crystal_error_set(err, EINVAL, "%s: too short; capture again", path);
        pair[1] = head.body_hash;
    }
    *hash = crystal_hash(pair, sizeof pair);
    return 0;
}

/* The identity of a graph's parent: the body hashes of each live rank's trace and
 * payload, in order of rank. */
static int identify_rank(const char *job_dir, uint32_t lrank, uint64_t *hash,
                         struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = graph_payload_path(job_dir, lrank, path, err);

    if (!code)
        code = identify(path, hash, err);
    snprintf(path, sizeof path, "%s/ranks/%u.trace", job_dir, lrank);
    return code ? code : identify(path, hash, err);
}

/* The whole identity; a trace must be there. */
int graph_identify(const char *job_dir, const uint32_t *lranks, uint32_t count,
                   uint64_t *hash, struct crystal_error *err)
{
    int code = 0;

    *hash = 0;
    for (uint32_t i = 0; !code && i < count; i++) {
        char path[PATH_MAX];

        if (snprintf(path, sizeof path, "%s/ranks/%u.trace", job_dir, lranks[i]) <
                (int)sizeof path &&
            access(path, F_OK) < 0)
            return crystal_error_set(err, ENOENT,
                                     "%s is missing; run 'scrystal capture' and what "
                                     "comes behind it again",
                                     path);
        code = identify_rank(job_dir, lranks[i], hash, err);
    }
    return code;
}

int crystal_graph_check_traces(const char *job_dir, const uint32_t *lranks,
                               uint32_t count, uint64_t parent,
                               struct crystal_error *err)
{
    uint64_t hash;
    int code = graph_identify(job_dir, lranks, count, &hash, err);

    if (!code && hash != parent)
        code =
            crystal_error_set(err, ESTALE,
                              "%s/job.graph: made from other traces than those in "
                              "ranks/; run 'scrystal graph' and 'scrystal plan' again",
                              job_dir);
    return code;
}

int crystal_graph_check_parent(const struct crystal_graph *g, const char *job_dir,
                               struct crystal_error *err)
{
    uint32_t count = crystal_graph_rep_count(g);
    uint32_t *lranks = malloc((count + 1) * sizeof *lranks);
    int code;

    if (!lranks)
        return crystal_error_set(err, ENOMEM, "%s/job.graph: out of memory", job_dir);
    for (uint32_t i = 0; i < count; i++)
        lranks[i] = crystal_graph_rep_lrank(g, i);
    code = crystal_graph_check_traces(job_dir, lranks, count, crystal_graph_parent(g),
                                      err);
    free(lranks);
    return code;
}

/* --- all --- */

static void build_fini(struct crystal_graph_build *b)
{
    for (uint32_t r = 0; b->sources && r < b->layout.live_count; r++) {
        struct crystal_graph_source *s = &b->sources[r];

        crystal_trace_fini(&s->trace);
        crystal_file_unmap(&s->payload);
        free(s->locals);
        free(s->marks);
    }
    free(b->sources);
    free(b->reps);
    free(b->ranks);
    free(b->sets);
    free(b->locals);
    free(b->colls);
    free(b->sends);
    free(b->map);
    crystal_graph_comms_fini(&b->comms);
    crystal_layout_fini(&b->layout);
}

static int build_read(struct crystal_graph_build *b, struct crystal_error *err)
{
    char path[PATH_MAX];
    int code;

    if (snprintf(path, sizeof path, "%s/layout.yaml", b->job_dir) >= (int)sizeof path)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", b->job_dir);
    code = crystal_layout_read(path, &b->layout, err);
    if (code)
        return code;
    snprintf(path, sizeof path, "%s/comms.tab", b->job_dir);
    code = crystal_graph_comms_read(&b->comms, path, &b->layout, err);
    if (code)
        return code;
    b->sources = calloc(b->layout.live_count, sizeof *b->sources);
    b->reps = calloc(b->layout.live_count, sizeof *b->reps);
    b->ranks = calloc(b->layout.lrank_count, sizeof *b->ranks);
    if (!b->sources || !b->reps || !b->ranks)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t r = 0; !code && r < b->layout.live_count; r++)
        code = graph_source_read(b, &b->sources[r], b->layout.live[r], err);
    return code;
}

int crystal_graph_build(const char *job_dir, struct crystal_error *err)
{
    struct crystal_graph_build b;
    char path[PATH_MAX];
    int code;

    memset(&b, 0, sizeof b);
    b.job_dir = job_dir;
    code = build_read(&b, err);
    if (!code)
        code = graph_marks_find(&b, err);
    if (!code)
        code = graph_sources_agree(&b, err);
    if (!code) {
        b.head.lrank_count = b.layout.lrank_count;
        b.head.rep_count = b.layout.live_count;
        b.head.dp_stride = b.comms.replica.stride;
        b.head.dp_size = b.comms.replica.size;
    }
    if (!code && !(code = graph_map_make(&b, err)) &&
        !(code = graph_sets_make(&b, err)) && !(code = graph_reps_make(&b, err))) {
        snprintf(path, sizeof path, "%s/job.graph", job_dir);
        code = graph_image_write(&b, path, err);
    }
    build_fini(&b);
    return code;
}
