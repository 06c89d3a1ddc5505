/* The events of a rank as records of a graph. See import_trace.h. */
#include "config.h"

#include "runtime/import_trace.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void import_ops_fini(struct import_ops *o)
{
    free(o->rows);
    free(o->labels);
    free(o->label_places);
    free(o->locals);
}

static int put(struct import_ops *o, const struct crystal_op *op)
{
    if (o->count == o->capacity) {
        size_t capacity = o->capacity ? 2 * o->capacity : 1024;
        struct crystal_op *rows = realloc(o->rows, capacity * sizeof *rows);

        if (!rows)
            return -ENOMEM;
        o->rows = rows;
        o->capacity = capacity;
    }
    o->rows[o->count++] = *op;
    return 0;
}

/* Ids are often the numbers already. */
static uint16_t stream_of(struct import_ops *o, uint64_t id)
{
    uint32_t i = 0;

    if (id < o->stream_count && o->streams[id] == id)
        return (uint16_t)id;
    while (i < o->stream_count && o->streams[i] != id)
        i++;
    if (i == o->stream_count && o->stream_count < IMPORT_STREAMS_MAX)
        o->streams[o->stream_count++] = id;
    return (uint16_t)(i < IMPORT_STREAMS_MAX ? i : IMPORT_STREAMS_MAX - 1);
}

/* --- labels --- */

static uint32_t *label_place(const struct import_ops *o, struct import_label label)
{
    const uint32_t mask = 2 * o->label_capacity - 1;
    uint32_t at = (uint32_t)crystal_hash(label.name, label.bytes) & mask;

    for (; o->label_places[at]; at = (at + 1) & mask) {
        const struct import_label *other = &o->labels[o->label_places[at] - 1];

        /* an empty one may have no bytes to compare */
        if (other->bytes == label.bytes &&
            (!label.bytes || memcmp(other->name, label.name, label.bytes) == 0))
            break;
    }
    return &o->label_places[at];
}

/* Twice as many places as labels. */
static int labels_grow(struct import_ops *o)
{
    uint32_t capacity = o->label_capacity ? 2 * o->label_capacity : 64;
    struct import_label *labels = realloc(o->labels, capacity * sizeof *labels);
    uint32_t *places = calloc(2 * (size_t)capacity, sizeof *places);

    o->labels = labels ? labels : o->labels;
    if (!labels || !places || capacity > UINT32_MAX / 4) {
        free(places);
        return -ENOMEM;
    }
    free(o->label_places);
    o->label_places = places;
    o->label_capacity = capacity;
    for (uint32_t i = 0; i < o->label_count; i++)
        *label_place(o, o->labels[i]) = i + 1;
    return 0;
}

static int label_of(struct import_ops *o, const struct import_event *e, uint32_t *ret)
{
    struct import_label label = {e->name, e->name_bytes};
    uint32_t *place;

    if (o->label_count == o->label_capacity && labels_grow(o))
        return -ENOMEM;
    place = label_place(o, label);
    if (!*place) {
        o->labels[o->label_count++] = label;
        *place = o->label_count;
    }
    *ret = *place - 1;
    return 0;
}

/* --- groups --- */

/* Of a message's other end, or of the root; IMPORT_NONE: no member. */
static uint32_t crank_of(const struct import_group *group, uint32_t lrank)
{
    for (uint32_t k = 0; k < group->count; k++)
        if (group->members[k] == lrank)
            return k;
    return IMPORT_NONE;
}

static int local_of(struct import_rank *r, struct import_group *group, uint16_t *ret)
{
    struct import_ops *o = &r->ops;

    if (group->local == IMPORT_NONE) {
        if (crank_of(group, r->lrank) == IMPORT_NONE)
            return IMPORT_OTHER_RANK;
        if (o->local_count == UINT16_MAX - 1)
            return -EPROTO;
        if (o->local_count == o->local_capacity) {
            uint32_t capacity = o->local_capacity ? 2 * o->local_capacity : 16;
            uint32_t *locals = realloc(o->locals, capacity * sizeof *locals);

            if (!locals)
                return -ENOMEM;
            o->locals = locals;
            o->local_capacity = capacity;
        }
        o->locals[o->local_count] = (uint32_t)(group - r->groups.rows);
        group->local = o->local_count++;
    }
    *ret = (uint16_t)group->local;
    return 0;
}

static uint64_t count_of(const struct import_event *e, uint32_t nranks)
{
    switch (e->func) {
    case CRYSTAL_FUNC_REDUCESCATTER:
        return e->out;
    case CRYSTAL_FUNC_ALLTOALL:
    case CRYSTAL_FUNC_SCATTER:
        return e->in / nranks;
    case CRYSTAL_FUNC_RECV:
        return e->out ? e->out : e->in;
    default:
        return e->in;
    }
}

static int communication(struct import_rank *r, const struct import_event *e,
                         struct crystal_op *op)
{
    struct import_group *group = &r->groups.rows[e->group];
    int code = local_of(r, group, &op->comm);

    op->kind = e->what == IMPORT_COLL   ? CRYSTAL_OP_COLL
               : e->what == IMPORT_SEND ? CRYSTAL_OP_SEND
                                        : CRYSTAL_OP_RECV;
    op->func = e->func;
    op->dtype = e->dtype;
    op->value = count_of(e, group->count);
    if (e->what == IMPORT_COLL) {
        op->flags = e->way;
        op->peer = crank_of(group, e->root);
        if (op->peer == IMPORT_NONE)
            op->peer = 0; /* not told */
        return code;
    }
    op->peer = crank_of(group, e->what == IMPORT_SEND ? e->to : e->from);
    return !code && op->peer == IMPORT_NONE ? -EPROTO : code;
}

/* --- events --- */

int import_ops_event(struct import_rank *r, uint8_t kind, uint64_t stream,
                     uint32_t event, uint64_t t_ns)
{
    struct crystal_op op = {.kind = kind,
                            .stream = stream_of(&r->ops, stream),
                            .peer = event,
                            .t_ns = t_ns};

    return put(&r->ops, &op);
}

int import_ops_put(struct import_rank *r, const struct import_event *e, uint64_t t_ns)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_KERNEL, .t_ns = t_ns};
    int code;

    if (e->what == IMPORT_STREAM_WAIT) {
        code = import_ops_event(r, CRYSTAL_OP_RECORD, e->other_stream, 0, t_ns);
        return code ? code : import_ops_event(r, CRYSTAL_OP_SWAIT, e->stream, 0, t_ns);
    }
    op.stream = stream_of(&r->ops, e->stream);
    op.value = e->ns;
    code = e->what == IMPORT_KERNEL ? label_of(&r->ops, e, &op.aux)
                                    : communication(r, e, &op);
    return code ? code : put(&r->ops, &op);
}

int import_ops_end(struct import_rank *r)
{
    uint64_t last_ns = r->ops.count ? r->ops.rows[r->ops.count - 1].t_ns : 0;
    int code = 0;

    for (uint32_t i = 0; !code && (i < r->ops.stream_count || i == 0); i++) {
        struct crystal_op op = {.kind = CRYSTAL_OP_SYNC,
                                .stream = (uint16_t)i,
                                .t_ns = last_ns,
                                .value = last_ns};

        code = put(&r->ops, &op);
    }
    return code;
}
