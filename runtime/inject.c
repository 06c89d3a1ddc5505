/* Recorded contributions by rank, communicator and number. See inject.h. */
#include "config.h"

#include "runtime/inject.h"

#include "runtime/filehead.h"
#include "runtime/payload.h"
#include "runtime/trace.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One collective or send. */
struct part {
    uint32_t peer; /* of a send */
    int is_kept;
    uint64_t offset, bytes; /* in the payload */
};

struct row {
    struct part *parts; /* owned */
    uint64_t count, capacity;
};

struct comm {
    char *name; /* owned */
    struct row colls, sends;
};

struct rank {
    uint32_t lrank;
    struct crystal_file_view payload; /* all zero where there is none */
    struct comm *comms;               /* owned, by local index */
    uint32_t comm_count;
};

struct crystal_inject {
    struct rank *ranks; /* owned */
    uint32_t count;
};

struct crystal_inject *crystal_inject_create(void)
{
    return calloc(1, sizeof(struct crystal_inject));
}

static void rank_fini(struct rank *r)
{
    for (uint32_t i = 0; i < r->comm_count; i++) {
        free(r->comms[i].name);
        free(r->comms[i].colls.parts);
        free(r->comms[i].sends.parts);
    }
    free(r->comms);
    crystal_file_unmap(&r->payload);
}

void crystal_inject_destroy(struct crystal_inject *inject)
{
    if (!inject)
        return;
    for (uint32_t i = 0; i < inject->count; i++)
        rank_fini(&inject->ranks[i]);
    free(inject->ranks);
    free(inject);
}

/* --- reading --- */

static struct part *row_add(struct row *row, uint32_t peer)
{
    if (row->count == row->capacity) {
        uint64_t capacity = row->capacity ? 2 * row->capacity : 64;
        struct part *parts = realloc(row->parts, capacity * sizeof *parts);

        if (!parts)
            return NULL;
        row->parts = parts;
        row->capacity = capacity;
    }
    row->parts[row->count] = (struct part){.peer = peer};
    return &row->parts[row->count++];
}

/* The COMM record at `at` with the name in the records behind it. */
static int comm_add(struct rank *r, const struct crystal_trace *t, uint64_t at)
{
    struct comm *comms = realloc(r->comms, (r->comm_count + 1) * sizeof *comms);
    char name[1024];
    size_t used = 0;

    if (!comms)
        return -ENOMEM;
    r->comms = comms;
    for (at++; at < t->op_count && t->ops[at].kind == CRYSTAL_OP_EXT; at++) {
        const struct crystal_op_ext *ext = (const struct crystal_op_ext *)&t->ops[at];

        for (size_t i = 0; i < sizeof ext->data && used < sizeof name - 1; i++)
            name[used++] = (char)ext->data[i];
    }
    name[used] = 0;
    comms[r->comm_count] = (struct comm){.name = strdup(name)};
    return comms[r->comm_count++].name ? 0 : -ENOMEM;
}

static int rank_read(struct rank *r, const struct crystal_trace *t)
{
    struct part *part = NULL;
    int code = 0;

    for (uint64_t i = 0; !code && i < t->op_count; i++) {
        const struct crystal_op *op = &t->ops[i];

        if (op->kind == CRYSTAL_OP_COMM)
            code = comm_add(r, t, i);
        if (op->kind == CRYSTAL_OP_PAYLOAD && part &&
            op->value <= r->payload.body_bytes &&
            op->peer <= r->payload.body_bytes - op->value) {
            part->is_kept = 1;
            part->offset = op->value;
            part->bytes = op->peer;
        }
        if (op->kind == CRYSTAL_OP_RECV)
            part = NULL;
        if ((op->kind != CRYSTAL_OP_COLL && op->kind != CRYSTAL_OP_SEND) ||
            op->comm >= r->comm_count)
            continue;
        part = row_add(op->kind == CRYSTAL_OP_COLL ? &r->comms[op->comm].colls
                                                   : &r->comms[op->comm].sends,
                       op->peer);
        code = part ? 0 : -ENOMEM;
    }
    return code;
}

static struct rank *rank_find(const struct crystal_inject *inject, uint32_t lrank)
{
    for (uint32_t i = 0; i < inject->count; i++)
        if (inject->ranks[i].lrank == lrank)
            return &inject->ranks[i];
    return NULL;
}

int crystal_inject_add(struct crystal_inject *inject, const char *job_dir,
                       uint32_t lrank, struct crystal_error *err)
{
    struct rank *ranks, r = {.lrank = lrank};
    struct crystal_trace trace = {0};
    char path[PATH_MAX];
    int code;

    if (rank_find(inject, lrank))
        return 0;
    if (snprintf(path, sizeof path, "%s/ranks/%u.payload", job_dir, lrank) >=
        (int)sizeof path)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", job_dir);
    code = crystal_file_map(path, CRYSTAL_PAYLOAD_MAGIC, CRYSTAL_PAYLOAD_VERSION,
                            &r.payload, err);
    if (code)
        return code;
    (void)snprintf(path, sizeof path, "%s/ranks/%u.trace", job_dir, lrank); /* fits */
    code = crystal_trace_read(path, &trace, err);
    if (!code && rank_read(&r, &trace))
        code = crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    crystal_trace_fini(&trace);
    ranks = code ? NULL
                 : realloc(inject->ranks, (inject->count + 1) * sizeof *inject->ranks);
    if (!ranks) {
        rank_fini(&r);
        return code ? code : crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    }
    inject->ranks = ranks;
    inject->ranks[inject->count++] = r;
    return 0;
}

/* --- finding --- */

static const struct comm *comm_find(const struct rank *r, const char *name)
{
    for (uint32_t i = 0; r && i < r->comm_count; i++)
        if (strcmp(r->comms[i].name, name) == 0)
            return &r->comms[i];
    return NULL;
}

static struct crystal_slice copy(const struct rank *r, const struct part *part)
{
    struct crystal_blob *blob = crystal_blob_create(part->bytes);

    if (!blob)
        return (struct crystal_slice){0};
    if (part->bytes)
        memcpy(blob->data, (const char *)r->payload.body + part->offset, part->bytes);
    return (struct crystal_slice){blob, blob->data, part->bytes};
}

struct crystal_slice crystal_inject_coll(const struct crystal_inject *inject,
                                         uint32_t lrank, const char *name, uint64_t seq,
                                         uint64_t bytes)
{
    const struct rank *r = rank_find(inject, lrank);
    const struct comm *c = comm_find(r, name);

    if (!c || seq >= c->colls.count || !c->colls.parts[seq].is_kept ||
        c->colls.parts[seq].bytes < bytes)
        return (struct crystal_slice){0};
    return copy(r, &c->colls.parts[seq]);
}

struct crystal_slice crystal_inject_send(const struct crystal_inject *inject,
                                         uint32_t lrank, const char *name, uint32_t to,
                                         uint64_t seq, uint64_t bytes)
{
    const struct rank *r = rank_find(inject, lrank);
    const struct comm *c = comm_find(r, name);
    const struct part *first = NULL;

    for (uint64_t i = 0; c && i < c->sends.count; i++) {
        const struct part *part = &c->sends.parts[i];

        if (part->peer != to)
            continue;
        if (part->is_kept && part->bytes == bytes) {
            if (!first)
                first = part;
            if (seq == 0)
                return copy(r, part);
        }
        if (seq-- == 0)
            break;
    }
    return first ? copy(r, first) : (struct crystal_slice){0};
}
