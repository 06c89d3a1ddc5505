/* Writing job.profile and reading it through mmap. profile.h draws the bytes. */
#include "config.h"

#include "runtime/profile_file.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct crystal_profile {
    struct crystal_file_view view;
    const struct crystal_profile_head *head;
    const struct crystal_profile_rep *reps;
    const struct crystal_profile_op *ops;
    const struct crystal_profile_iteration *iterations;
};

const char *crystal_origin_name(enum crystal_origin origin)
{
    switch (origin) {
    case CRYSTAL_ORIGIN_MEASURED:
        return "measured";
    case CRYSTAL_ORIGIN_COMPOSED:
        return "composed";
    case CRYSTAL_ORIGIN_MODELLED:
        return "modelled";
    default:
        return "unknown";
    }
}

static size_t body_bytes(const struct crystal_profile_head *h)
{
    return sizeof *h + h->rep_count * sizeof(struct crystal_profile_rep) +
           h->op_count * sizeof(struct crystal_profile_op) +
           h->lrank_count * sizeof(struct crystal_profile_iteration);
}

int crystal_profile_write(const char *path, const struct crystal_profile_image *image,
                          struct crystal_error *err)
{
    const struct crystal_profile_head *h = &image->head;
    size_t reps = h->rep_count * sizeof *image->reps;
    size_t ops = h->op_count * sizeof *image->ops;
    struct crystal_filehead head;
    char *body = malloc(body_bytes(h)), *at = body;
    int code;

    if (!body)
        return crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    memcpy(at, h, sizeof *h);
    at += sizeof *h;
    memcpy(at, image->reps, reps);
    at += reps;
    memcpy(at, image->ops, ops);
    at += ops;
    memcpy(at, image->iterations, h->lrank_count * sizeof *image->iterations);
    crystal_filehead_init(&head, CRYSTAL_PROFILE_MAGIC, CRYSTAL_PROFILE_VERSION,
                          image->parent_hash, image->fingerprint, 0);
    code = crystal_file_write(path, &head, body, body_bytes(h), err);
    free(body);
    return code;
}

static int check(struct crystal_profile *p, const char *path, struct crystal_error *err)
{
    const struct crystal_profile_head *h = p->view.body;
    size_t have = p->view.body_bytes;
    const char *at = (const char *)p->view.body + sizeof *h;

    if (have < sizeof *h || !h->rep_count || !h->lrank_count ||
        h->rep_count > have / sizeof *p->reps || h->op_count > have / sizeof *p->ops ||
        h->lrank_count > have / sizeof *p->iterations || body_bytes(h) != have)
        goto bad;
    p->head = h;
    p->reps = (const struct crystal_profile_rep *)(const void *)at;
    at += h->rep_count * sizeof *p->reps;
    p->ops = (const struct crystal_profile_op *)(const void *)at;
    at += h->op_count * sizeof *p->ops;
    p->iterations = (const struct crystal_profile_iteration *)(const void *)at;
    for (uint32_t i = 0; i < h->rep_count; i++)
        if (p->reps[i].op_first > h->op_count ||
            p->reps[i].instr_count > h->op_count - p->reps[i].op_first ||
            p->reps[i].lrank >= h->lrank_count ||
            p->reps[i].origin > CRYSTAL_ORIGIN_MODELLED)
            goto bad;
    for (uint64_t i = 0; i < h->op_count; i++)
        if (p->ops[i].gap_ns > CRYSTAL_OP_NS_MAX)
            goto bad;
    return 0;
bad:
    return crystal_error_set(err, EINVAL,
                             "%s: its sections do not fit together; run 'scrystal "
                             "plan' again",
                             path);
}

/* The version to ask for: that of the file where it is one of ours. */
static uint32_t version_of(const char *path)
{
    uint32_t version = crystal_filehead_version(path);

    return version == 1 || version == 2 ? version : CRYSTAL_PROFILE_VERSION;
}

struct crystal_profile *crystal_profile_open(const char *path,
                                             struct crystal_error *err)
{
    struct crystal_profile *p = calloc(1, sizeof *p);

    if (!p) {
        (void)crystal_error_set(err, ENOMEM, "%s: out of memory", path);
        return NULL;
    }
    if (crystal_file_map(path, CRYSTAL_PROFILE_MAGIC, version_of(path), &p->view,
                         err)) {
        if (err && err->code == ENOENT)
            (void)crystal_error_set(
                err, ENOENT, "%s: not there yet; run 'scrystal plan' first", path);
        free(p);
        return NULL;
    }
    if (check(p, path, err)) {
        crystal_profile_close(p);
        return NULL;
    }
    return p;
}

void crystal_profile_close(struct crystal_profile *p)
{
    if (!p)
        return;
    crystal_file_unmap(&p->view);
    free(p);
}

const struct crystal_profile_head *crystal_profile_head(const struct crystal_profile *p)
{
    return p->head;
}

uint64_t crystal_profile_hash(const struct crystal_profile *p)
{
    return p->view.head->body_hash;
}

const struct crystal_profile_rep *crystal_profile_rep(const struct crystal_profile *p,
                                                      uint32_t rep)
{
    return &p->reps[rep];
}

const struct crystal_profile_op *crystal_profile_ops(const struct crystal_profile *p,
                                                     uint32_t rep)
{
    return &p->ops[p->reps[rep].op_first];
}

const struct crystal_profile_iteration *
crystal_profile_iteration(const struct crystal_profile *p, uint32_t lrank)
{
    return &p->iterations[lrank];
}

struct crystal_transfer_wire crystal_profile_wire(const struct crystal_profile *p)
{
    struct crystal_transfer_wire wire = {.bytes_per_s = p->head->wire_bytes_per_s,
                                         .latency_ns = p->head->wire_latency_ns,
                                         .overhead_ns = p->head->overhead_ns,
                                         .channel_count = 1,
                                         .op_overhead_ns = p->head->op_overhead_ns};

    return wire;
}

void crystal_profile_tell(const struct crystal_profile *p,
                          struct crystal_program *const *programs)
{
    for (uint32_t i = 0; i < p->head->rep_count; i++)
        for (uint32_t k = 0; k < programs[i]->instr_count; k++) {
            const struct crystal_profile_op *op = &crystal_profile_ops(p, i)[k];

            crystal_program_tell(&programs[i]->instrs[k], op->way);
            crystal_program_last(&programs[i]->instrs[k], op->transfer_ns);
            crystal_program_cost(&programs[i]->instrs[k], op->cost_ns);
        }
}

int crystal_profile_check(const struct crystal_profile *p,
                          const struct crystal_graph *g,
                          struct crystal_program *const *programs,
                          struct crystal_error *err)
{
    bool is_same = p->head->graph_hash == crystal_graph_hash(g) &&
                   p->head->rep_count == crystal_graph_rep_count(g) &&
                   p->head->lrank_count == crystal_graph_lrank_count(g) &&
                   p->view.head->fingerprint == crystal_graph_fingerprint(g);

    for (uint32_t i = 0; is_same && i < p->head->rep_count; i++)
        is_same = p->reps[i].instr_count == programs[i]->instr_count;
    if (!is_same)
        return crystal_error_set(err, ESTALE,
                                 "job.profile was made for another job.graph; run "
                                 "'scrystal plan' again");
    return 0;
}
