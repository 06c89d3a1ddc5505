/* Building job.graph from what capture left in a job directory: layout.yaml, comms.tab,
 * ranks/R.trace and ranks/R.payload of every live rank R. graph_file.h draws the
 * result.
 *
 * The traces of two members of a communicator must agree in what its collectives are;
 * ranks that were cut off are noticed by that or by their lost records. Limits: 65535
 * communicators per rank, as a trace counts them in 16 bits.
 */
#include "config.h"

#include "runtime/graph_build.h"

#include "runtime/filehead.h"
#include "runtime/graph_comms.h"
#include "runtime/graph_file.h"
#include "runtime/infile.h"
#include "runtime/iteration.h"
#include "runtime/layout.h"
#include "runtime/payload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME_BYTES 1024

/* One live rank while it is read. */
struct source {
    struct crystal_trace trace;
    struct crystal_file_view payload; /* all zero where there is none */
    uint32_t *locals; /* entry of the communicator table, by local index */
    uint32_t local_count;
    uint64_t *marks;
    uint32_t mark_count;
};

struct build {
    const char *job_dir;
    struct crystal_layout layout;
    struct crystal_graph_comms comms;
    struct source *sources; /* by index in layout.live */
    /* sections in the making */
    struct crystal_graph_head head;
    struct crystal_graph_rep *reps;
    struct crystal_graph_rank *ranks;
    struct crystal_graph_set *sets;
    struct crystal_graph_local *locals;
    struct crystal_graph_coll *colls;
    struct crystal_graph_send *sends;
    uint32_t *map;
};

static bool is_comm_kind(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV;
}

/* --- reading --- */

/* A live rank that contributed nothing that is kept has no payload file. */
static int payload_read(struct source *s, const char *path, uint32_t lrank,
                        struct crystal_error *err)
{
    int code;

    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    code = crystal_payload_seal(path, err);
    if (code)
        return code;
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

static uint32_t occurrences(const struct source *s, const struct crystal_graph_comms *c,
                            const char *name)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->local_count; i++)
        count += strcmp(c->entries[s->locals[i]].name, name) == 0;
    return count;
}

static int comm_record(struct build *b, struct source *s, uint32_t lrank, uint64_t at,
                       struct crystal_error *err)
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

static int record_check(const struct build *b, const struct source *s,
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
        return crystal_error_set(err, EINVAL,
                                 "its payload file is shorter than the trace says; "
                                 "capture again");
    if (!is_comm_kind(op))
        return 0;
    if (op->comm >= s->local_count)
        return crystal_error_set(err, EINVAL, "an operation names no communicator");
    nranks = b->comms.entries[s->locals[op->comm]].nranks;
    if (!bytes || op->func == CRYSTAL_FUNC_NONE || op->func >= CRYSTAL_FUNC_COUNT ||
        op->peer >= nranks || op->value > (UINT64_MAX >> 8) / bytes / nranks)
        return crystal_error_set(err, EINVAL, "an operation has a value out of range");
    return 0;
}

static int source_read(struct build *b, struct source *s, uint32_t lrank,
                       struct crystal_error *err)
{
    char path[PATH_MAX];
    uint64_t comm_count = 0;
    int code;

    if (snprintf(path, sizeof path, "%s/ranks/%u.trace", b->job_dir, lrank) >=
        (int)sizeof path)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", b->job_dir);
    /* a rank that was killed left whole blocks; no agent may have lived to seal them */
    code = crystal_trace_seal(path, err);
    if (!code)
        code = crystal_trace_read(path, &s->trace, err);
    if (code)
        return code;
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
    snprintf(path, sizeof path, "%s/ranks/%u.payload", b->job_dir, lrank);
    code = payload_read(s, path, lrank, err);
    for (uint64_t i = 0; !code && i < s->trace.op_count; i++) {
        code = s->trace.ops[i].kind == CRYSTAL_OP_COMM
                   ? comm_record(b, s, lrank, i, err)
                   : record_check(b, s, &s->trace.ops[i], err);
        if (code)
            crystal_error_prefix(err, "%s/ranks/%u.trace: record %llu", b->job_dir,
                                 lrank, (unsigned long long)i);
    }
    if (!code && crystal_iteration_find(s->trace.ops, s->trace.op_count, &s->marks,
                                        &s->mark_count))
        code = crystal_error_set(err, ENOMEM, "out of memory");
    return code;
}

/* All ranks get the iterations that all have; the recording of the others begins one
 * or two later, where the first ones have another structure. */
static void marks_agree(struct build *b)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < b->layout.live_count; i++)
        if (b->sources[i].mark_count && (!count || b->sources[i].mark_count < count))
            count = b->sources[i].mark_count;
    for (uint32_t i = 0; i < b->layout.live_count; i++) {
        struct source *s = &b->sources[i];

        if (s->mark_count > count) {
            memmove(s->marks, s->marks + s->mark_count - count,
                    count * sizeof *s->marks);
            s->mark_count = count;
        }
    }
}

/* --- agreement of the members of each communicator --- */

static const struct crystal_op *next_coll(const struct source *s, uint32_t local,
                                          uint64_t *at)
{
    while (*at < s->trace.op_count) {
        const struct crystal_op *op = &s->trace.ops[(*at)++];

        if (op->kind == CRYSTAL_OP_COLL && op->comm == local)
            return op;
    }
    return NULL;
}

static int agree(const struct build *b, uint32_t first, uint32_t first_local,
                 uint32_t other, uint32_t other_local, struct crystal_error *err)
{
    const struct source *s = &b->sources[first], *t = &b->sources[other];
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

static int agree_all(const struct build *b, struct crystal_error *err)
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

/* --- sections --- */

static int map_make(struct build *b, struct crystal_error *err)
{
    uint32_t *rep_of = malloc(b->layout.lrank_count * sizeof *rep_of);
    uint64_t used = 0;
    int code = rep_of ? 0 : crystal_error_set(err, ENOMEM, "out of memory");

    for (uint32_t i = 0; !code && i < b->layout.live_count; i++)
        rep_of[b->layout.live[i]] = i;
    for (uint32_t r = 0; !code && r < b->layout.lrank_count; r++) {
        uint32_t rep = crystal_layout_representative(&b->layout, r);
        bool is_live = false;

        for (uint32_t low = 0, high = b->layout.live_count; low < high;) {
            uint32_t middle = low + (high - low) / 2;

            is_live = is_live || b->layout.live[middle] == rep;
            if (b->layout.live[middle] < rep)
                low = middle + 1;
            else
                high = middle;
        }
        if (rep >= b->layout.lrank_count || !is_live)
            code = crystal_error_set(err, EINVAL,
                                     "rank %u was not captured and no captured rank "
                                     "stands for it; capture with --crystal-live=all",
                                     r);
        else
            b->ranks[r].rep = rep_of[rep];
        b->ranks[r].map_first = used;
        if (!code)
            used += b->sources[rep_of[rep]].local_count;
    }
    free(rep_of);
    if (code)
        return code;
    b->head.map_count = used;
    b->map = malloc((used ? used : 1) * sizeof *b->map);
    if (!b->map)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t r = 0; !code && r < b->layout.lrank_count; r++) {
        const struct source *s = &b->sources[b->ranks[r].rep];

        for (uint32_t i = 0; !code && i < s->local_count; i++)
            code = crystal_graph_comms_of(&b->comms, s->locals[i],
                                          b->layout.live[b->ranks[r].rep], r,
                                          &b->map[b->ranks[r].map_first + i], err);
    }
    return code;
}

static int sets_make(struct build *b, struct crystal_error *err)
{
    uint64_t members = 0, names = 0;

    b->sets = calloc(b->comms.count ? b->comms.count : 1, sizeof *b->sets);
    if (!b->sets)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < b->comms.count; i++) {
        const struct crystal_graph_entry *e = &b->comms.entries[i];

        b->sets[i] = (struct crystal_graph_set){e->name ? names : CRYSTAL_GRAPH_NONE,
                                                members,
                                                e->nranks,
                                                e->dp.first,
                                                e->dp.step,
                                                e->dp.count};
        members += e->nranks;
        names += e->name ? strlen(e->name) + 1 : 0;
    }
    b->head.comm_count = b->comms.count;
    b->head.member_count = members;
    b->head.name_bytes = names;
    return 0;
}

static int send_compare(const void *a, const void *b)
{
    const struct crystal_graph_send *x = a, *y = b;

    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return x->zero < y->zero ? -1 : x->zero > y->zero; /* order of issue for now */
}

/* Contributions of one local communicator of one source, in order of issue. */
static void local_make(struct build *b, const struct source *s, uint32_t local,
                       uint64_t payload_base, struct crystal_graph_local *l)
{
    uint64_t last_begin = s->mark_count ? s->marks[s->mark_count - 2] : UINT64_MAX;
    uint64_t last_end = s->mark_count ? s->marks[s->mark_count - 1] : UINT64_MAX;
    uint64_t *payload = NULL, *bytes = NULL;

    l->coll_first = b->head.coll_count;
    l->send_first = b->head.send_count;
    for (uint64_t i = 0; i < s->trace.op_count; i++) {
        const struct crystal_op *op = &s->trace.ops[i];

        if (is_comm_kind(op))
            payload = bytes = NULL;
        if (op->kind == CRYSTAL_OP_PAYLOAD && payload) {
            *payload = payload_base + op->value;
            *bytes = op->peer;
        }
        if (op->comm != local)
            continue;
        if (op->kind == CRYSTAL_OP_COLL) {
            struct crystal_graph_coll *c = &b->colls[b->head.coll_count++];

            *c = (struct crystal_graph_coll){CRYSTAL_GRAPH_NONE, 0};
            payload = &c->payload;
            bytes = &c->bytes;
            l->last_first += i < last_begin && s->mark_count;
            l->last_count += i >= last_begin && i < last_end;
            l->coll_count++;
        } else if (op->kind == CRYSTAL_OP_SEND) {
            struct crystal_graph_send *e = &b->sends[b->head.send_count++];

            *e = (struct crystal_graph_send){op->peer, (uint32_t)l->send_count,
                                             CRYSTAL_GRAPH_NONE, 0};
            payload = &e->payload;
            bytes = &e->bytes;
            l->send_count++;
        }
    }
    qsort(b->sends + l->send_first, l->send_count, sizeof *b->sends, send_compare);
    for (uint64_t i = 0; i < l->send_count; i++)
        b->sends[l->send_first + i].zero = 0;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 15) & ~UINT64_C(15);
}

static int reps_make(struct build *b, struct crystal_error *err)
{
    struct crystal_graph_head *h = &b->head;
    uint64_t colls = 0, sends = 0;

    for (uint32_t r = 0; r < b->layout.live_count; r++) {
        const struct source *s = &b->sources[r];

        h->local_count += s->local_count;
        h->op_count += s->trace.op_count;
        h->mark_count += s->mark_count;
        for (uint64_t i = 0; i < s->trace.op_count; i++) {
            colls += s->trace.ops[i].kind == CRYSTAL_OP_COLL;
            sends += s->trace.ops[i].kind == CRYSTAL_OP_SEND;
        }
    }
    b->locals = calloc(h->local_count + 1, sizeof *b->locals);
    b->colls = malloc((colls + 1) * sizeof *b->colls);
    b->sends = malloc((sends + 1) * sizeof *b->sends);
    if (!b->locals || !b->colls || !b->sends)
        return crystal_error_set(err, ENOMEM, "out of memory");
    h->local_count = h->op_count = h->mark_count = 0;
    for (uint32_t r = 0; r < b->layout.live_count; r++) {
        const struct source *s = &b->sources[r];

        b->reps[r] = (struct crystal_graph_rep){
            b->layout.live[r], s->local_count, h->local_count, h->op_count,
            s->trace.op_count, h->mark_count,  s->mark_count,  0};
        for (uint32_t i = 0; i < s->local_count; i++)
            local_make(b, s, i, h->payload_bytes, &b->locals[h->local_count + i]);
        h->local_count += s->local_count;
        h->op_count += s->trace.op_count;
        h->mark_count += s->mark_count;
        h->payload_bytes += aligned(s->payload.body_bytes);
    }
    return 0;
}

/* --- writing --- */

struct image {
    unsigned char *bytes; /* NULL while only measuring */
    size_t used;
};

/* Begins a section and gives its place, or NULL while measuring. */
static void *place(struct image *m, uint64_t count, size_t element_bytes)
{
    m->used = (m->used + 15) & ~(size_t)15;
    m->used += (size_t)count * element_bytes;
    return m->bytes ? m->bytes + m->used - (size_t)count * element_bytes : NULL;
}

static void put(struct image *m, const void *data, uint64_t count, size_t element_bytes)
{
    void *to = place(m, count, element_bytes);

    if (to && count)
        memcpy(to, data, (size_t)count * element_bytes);
}

static void put_comms(const struct build *b, struct image *m)
{
    uint32_t *members = place(m, b->head.member_count, sizeof *members);
    char *names = place(m, b->head.name_bytes, 1);

    for (uint32_t i = 0; m->bytes && i < b->comms.count; i++) {
        const struct crystal_graph_entry *e = &b->comms.entries[i];

        memcpy(members, e->members, e->nranks * sizeof *members);
        members += e->nranks;
        if (e->name)
            names = (char *)memcpy(names, e->name, strlen(e->name) + 1) +
                    strlen(e->name) + 1;
    }
}

static void put_all(const struct build *b, struct image *m)
{
    const struct crystal_graph_head *h = &b->head;
    struct crystal_op *ops;
    uint64_t *marks;
    unsigned char *payload;

    put(m, h, 1, sizeof *h);
    put(m, b->reps, h->rep_count, sizeof *b->reps);
    put(m, b->ranks, h->lrank_count, sizeof *b->ranks);
    put(m, b->sets, h->comm_count, sizeof *b->sets);
    put(m, b->locals, h->local_count, sizeof *b->locals);
    put(m, b->colls, h->coll_count, sizeof *b->colls);
    put(m, b->sends, h->send_count, sizeof *b->sends);
    ops = place(m, h->op_count, sizeof *ops);
    marks = place(m, h->mark_count, sizeof *marks);
    put(m, b->map, h->map_count, sizeof *b->map);
    put_comms(b, m);
    payload = place(m, h->payload_bytes, 1);
    for (uint32_t r = 0; m->bytes && r < h->rep_count; r++) {
        const struct source *s = &b->sources[r];

        memcpy(ops, s->trace.ops, s->trace.op_count * sizeof *ops);
        ops += s->trace.op_count;
        if (s->mark_count)
            memcpy(marks, s->marks, s->mark_count * sizeof *marks);
        marks += s->mark_count;
        if (s->payload.body_bytes)
            memcpy(payload, s->payload.body, s->payload.body_bytes);
        payload += aligned(s->payload.body_bytes);
    }
}

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
    int code;

    if (snprintf(path, sizeof path, "%s/ranks/%u.payload", job_dir, lrank) >=
        (int)sizeof path)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", job_dir);
    code = identify(path, hash, err);
    snprintf(path, sizeof path, "%s/ranks/%u.trace", job_dir, lrank);
    return code ? code : identify(path, hash, err);
}

/* The whole identity; a trace must be there. */
static int identify_ranks(const char *job_dir, const uint32_t *lranks, uint32_t count,
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
    int code = identify_ranks(job_dir, lranks, count, &hash, err);

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

#define IMAGE_IN_MEMORY ((size_t)64 << 20)

/* Zeroed room for the image. With recorded bulk payload it may exceed memory: then it
 * is a file without a name beside path. Freed with munmap. */
static int image_alloc(const char *path, size_t bytes, void **ret,
                       struct crystal_error *err)
{
    const int is_file = bytes > IMAGE_IN_MEMORY;
    char temporary[PATH_MAX];
    int fd = -1, code = 0;

    if (is_file) {
        if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >=
            (int)sizeof temporary)
            return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", path);
        fd = mkostemp(temporary, O_CLOEXEC);
        if (fd < 0)
            return crystal_error_set(err, errno, "%s: %s", temporary, strerror(errno));
        (void)unlink(temporary);                     /* its pages live as long as fd */
        code = posix_fallocate(fd, 0, (off_t)bytes); /* a full disk is an error here */
    }
    if (!code) {
        *ret = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    is_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
        code = *ret == MAP_FAILED ? errno : 0;
    }
    if (fd >= 0)
        (void)close(fd); /* the mapping stays */
    return code ? crystal_error_set(err, code, "%s: room for %zu bytes: %s", path,
                                    bytes, strerror(code))
                : 0;
}

static int image_write(struct build *b, const char *path, struct crystal_error *err)
{
    struct image m = {NULL, 0};
    void *room;
    size_t bytes;
    struct crystal_filehead head;
    uint64_t parent = 0;
    int code = 0;

    code =
        identify_ranks(b->job_dir, b->layout.live, b->layout.live_count, &parent, err);
    if (code)
        return code;
    put_all(b, &m);
    bytes = m.used;
    code = image_alloc(path, bytes, &room, err);
    if (code)
        return code;
    m.bytes = room;
    m.used = 0;
    put_all(b, &m);
    crystal_filehead_init(&head, CRYSTAL_GRAPH_MAGIC, CRYSTAL_GRAPH_VERSION, parent,
                          b->layout.fingerprint, 0);
    code = crystal_file_write(path, &head, m.bytes, m.used, err);
    (void)munmap(room, bytes); /* cannot fail for our own mapping */
    return code;
}

static void build_fini(struct build *b)
{
    for (uint32_t r = 0; b->sources && r < b->layout.live_count; r++) {
        struct source *s = &b->sources[r];

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

static int build_read(struct build *b, struct crystal_error *err)
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
        code = source_read(b, &b->sources[r], b->layout.live[r], err);
    return code;
}

int crystal_graph_build(const char *job_dir, struct crystal_error *err)
{
    struct build b;
    char path[PATH_MAX];
    int code;

    memset(&b, 0, sizeof b);
    b.job_dir = job_dir;
    code = build_read(&b, err);
    if (!code) {
        marks_agree(&b);
        code = agree_all(&b, err);
    }
    if (!code) {
        b.head.lrank_count = b.layout.lrank_count;
        b.head.rep_count = b.layout.live_count;
        b.head.dp_stride = b.comms.replica.stride;
        b.head.dp_size = b.comms.replica.size;
    }
    if (!code && !(code = map_make(&b, err)) && !(code = sets_make(&b, err)) &&
        !(code = reps_make(&b, err))) {
        snprintf(path, sizeof path, "%s/job.graph", job_dir);
        code = image_write(&b, path, err);
    }
    build_fini(&b);
    return code;
}
