/* The traces that a graph is made of. See graph_build.h.
 *
 * The traces of two members of a communicator must agree in what its collectives are;
 * ranks that were cut off are noticed by that or by their lost records. Limits: 65535
 * communicators per rank, as a trace counts them in 16 bits.
 */
#include "config.h"

#include "runtime/graph_build_internal.h"

#include "runtime/payload.h"
#include "runtime/trace_work.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_BYTES 1024

int graph_payload_path(const char *job_dir, uint32_t lrank, char out[PATH_MAX],
                       struct crystal_error *err)
{
    char ranks[PATH_MAX];

    if (snprintf(ranks, sizeof ranks, "%s/ranks", job_dir) >= (int)sizeof ranks)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", job_dir);
    return crystal_payload_path(ranks, lrank, out, PATH_MAX, err);
}

/* A live rank that contributed nothing that is kept has no payload file. */
static int payload_read(struct crystal_graph_source *s, const char *path,
                        uint32_t lrank, struct crystal_error *err)
{
    int code;

    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    code = crystal_file_map(path, CRYSTAL_PAYLOAD_MAGIC, CRYSTAL_PAYLOAD_VERSION,
                            &s->payload, err);
    if (code)
        return code;
    if (s->payload.head->lrank != lrank)
        return crystal_error_set(err, EINVAL, "%s: written by rank %llu; capture again",
                                 path, (unsigned long long)s->payload.head->lrank);
    return 0;
}

/* The name in the EXT records behind a COMM record; cut where too long. */
static void comm_name(const struct crystal_trace *t, uint64_t at, char *name,
                      size_t name_bytes)
{
    size_t used = 0;

    for (at++; at < t->op_count && t->ops[at].kind == CRYSTAL_OP_EXT; at++) {
        const struct crystal_op_ext *ext = (const struct crystal_op_ext *)&t->ops[at];

        for (size_t i = 0; i < sizeof ext->data && used < name_bytes - 1; i++)
            name[used++] = (char)ext->data[i];
    }
    name[used] = 0;
}

static uint32_t occurrences(const struct crystal_graph_source *s,
                            const struct crystal_graph_comms *c, const char *name)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->local_count; i++)
        count += strcmp(c->entries[s->locals[i]].name, name) == 0;
    return count;
}

static int comm_record(struct crystal_graph_build *b, struct crystal_graph_source *s,
                       uint32_t lrank, uint64_t at, struct crystal_error *err)
{
    const struct crystal_op *op = &s->trace.ops[at];
    const struct crystal_graph_entry *e;
    char name[NAME_BYTES];
    uint32_t entry;

    comm_name(&s->trace, at, name, sizeof name);
    entry = crystal_graph_comms_named(&b->comms, name, occurrences(s, &b->comms, name));
    if (entry == UINT32_MAX)
        return crystal_error_set(
            err, EINVAL, "communicator '%s' is not in comms.tab; capture again", name);
    e = &b->comms.entries[entry];
    if (op->comm != s->local_count || op->value != e->nranks || op->peer >= e->nranks ||
        e->members[op->peer] != lrank)
        return crystal_error_set(err, EINVAL,
                                 "communicator '%s' differs from comms.tab; "
                                 "capture again",
                                 name);
    s->locals[s->local_count++] = entry;
    return 0;
}

static int record_check(const struct crystal_graph_build *b,
                        const struct crystal_graph_source *s,
                        const struct crystal_op *op, struct crystal_error *err)
{
    size_t bytes = crystal_dtype_bytes(op->dtype);
    uint32_t nranks;

    if (op->kind == CRYSTAL_OP_LOST)
        return crystal_error_set(err, EIO,
                                 "%llu records were lost; capture again with more "
                                 "disk space",
                                 (unsigned long long)op->value);
    if (op->kind == CRYSTAL_OP_DONE && op->peer >= s->trace.op_count)
        return crystal_error_set(err, EINVAL, "an end names no operation");
    if (op->kind == CRYSTAL_OP_PAYLOAD &&
        (op->value > s->payload.body_bytes ||
         op->peer > s->payload.body_bytes - op->value))
        return crystal_error_set(
            err, EINVAL,
            s->payload.head ? "its payload file is shorter than the trace says; "
                              "capture again"
                            : "its payload file is missing; with spill_dir that must "
                              "be a directory of all nodes of the job; capture again");
    if (!graph_is_comm_kind(op))
        return 0;
    if (op->comm >= s->local_count)
        return crystal_error_set(err, EINVAL, "an operation names no communicator");
    nranks = b->comms.entries[s->locals[op->comm]].nranks;
    if (!bytes || op->func == CRYSTAL_FUNC_NONE || op->func >= CRYSTAL_FUNC_COUNT ||
        op->peer >= nranks || op->value > (UINT64_MAX >> 8) / bytes / nranks)
        return crystal_error_set(err, EINVAL, "an operation has a value out of range");
    return 0;
}

int graph_source_read(struct crystal_graph_build *b, struct crystal_graph_source *s,
                      uint32_t lrank, struct crystal_error *err)
{
    char path[PATH_MAX];
    uint64_t comm_count = 0;
    int code;

    if (snprintf(path, sizeof path, "%s/ranks/%u.trace", b->job_dir, lrank) >=
        (int)sizeof path)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", b->job_dir);
    code = crystal_trace_read(path, &s->trace, err);
    if (code)
        return code;
    if (!s->trace.head.file_bytes) /* what a failed capture has left is not sealed */
        return crystal_error_set(err, ENODATA,
                                 "%s: its capture has failed or was stopped; "
                                 "run 'scrystal capture' again",
                                 path);
    code = crystal_trace_place_work(&s->trace, err);
    if (code) {
        crystal_error_prefix(err, "%s", path);
        return code;
    }
    if (s->trace.head.lrank != lrank)
        return crystal_error_set(err, EINVAL, "%s: written by rank %llu; capture again",
                                 path, (unsigned long long)s->trace.head.lrank);
    if (s->trace.head.fingerprint != b->layout.fingerprint)
        return crystal_error_set(err, ESTALE,
                                 "%s: captured from another program or layout; "
                                 "run 'scrystal capture' again",
                                 path);
    for (uint64_t i = 0; i < s->trace.op_count; i++)
        comm_count += s->trace.ops[i].kind == CRYSTAL_OP_COMM;
    s->locals = malloc((comm_count ? comm_count : 1) * sizeof *s->locals);
    if (!s->locals)
        return crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    code = graph_payload_path(b->job_dir, lrank, path, err);
    if (!code)
        code = payload_read(s, path, lrank, err);
    for (uint64_t i = 0; !code && i < s->trace.op_count; i++) {
        code = s->trace.ops[i].kind == CRYSTAL_OP_COMM
                   ? comm_record(b, s, lrank, i, err)
                   : record_check(b, s, &s->trace.ops[i], err);
        if (code)
            crystal_error_prefix(err, "%s/ranks/%u.trace: record %llu", b->job_dir,
                                 lrank, (unsigned long long)i);
    }
    return code;
}

/* --- agreement of the members of each communicator --- */

static const struct crystal_op *next_coll(const struct crystal_graph_source *s,
                                          uint32_t local, uint64_t *at)
{
    while (*at < s->trace.op_count) {
        const struct crystal_op *op = &s->trace.ops[(*at)++];

        if (op->kind == CRYSTAL_OP_COLL && op->comm == local)
            return op;
    }
    return NULL;
}

static int agree(const struct crystal_graph_build *b, uint32_t first,
                 uint32_t first_local, uint32_t other, uint32_t other_local,
                 struct crystal_error *err)
{
    const struct crystal_graph_source *s = &b->sources[first], *t = &b->sources[other];
    uint64_t i = 0, k = 0;

    for (uint64_t seq = 0;; seq++) {
        const struct crystal_op *x = next_coll(s, first_local, &i);
        const struct crystal_op *y = next_coll(t, other_local, &k);

        if (!x || !y)
            return 0; /* stopped at different moments of their last iteration */
        if (x->func == y->func && x->dtype == y->dtype && x->value == y->value &&
            x->peer == y->peer)
            continue;
        return crystal_error_set(
            err, EINVAL,
            "collective %llu of '%s' differs between ranks %u and %u; capture again",
            (unsigned long long)seq, b->comms.entries[s->locals[first_local]].name,
            b->layout.live[first], b->layout.live[other]);
    }
}

int graph_sources_agree(const struct crystal_graph_build *b, struct crystal_error *err)
{
    uint32_t *first = malloc((b->comms.named_count + 1) * 2 * sizeof *first);
    int code = 0;

    if (!first)
        return crystal_error_set(err, ENOMEM, "out of memory");
    memset(first, 0xff, (b->comms.named_count + 1) * 2 * sizeof *first);
    for (uint32_t r = 0; !code && r < b->layout.live_count; r++)
        for (uint32_t i = 0; !code && i < b->sources[r].local_count; i++) {
            uint32_t *f = &first[2 * (size_t)b->sources[r].locals[i]];

            if (f[0] == UINT32_MAX) {
                f[0] = r;
                f[1] = i;
            } else {
                code = agree(b, f[0], f[1], r, i, err);
            }
        }
    free(first);
    return code;
}
