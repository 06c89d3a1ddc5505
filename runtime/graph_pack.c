/* See graph_pack.h. */
#include "config.h"

#include "runtime/graph_pack.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct crystal_graph_packed) == 16, "frozen");

/* What the next record is told from. */
struct last {
    uint64_t t_ns, payload;
};

/* What the value is told from; false: it belongs to the shape. */
static bool value_base(const struct crystal_op *op, const struct last *last,
                       uint64_t t_ns, uint64_t *ret)
{
    switch (op->kind) {
    case CRYSTAL_OP_WAIT:
    case CRYSTAL_OP_SYNC:
        *ret = t_ns;
        return true;
    case CRYSTAL_OP_KERNEL:
        *ret = 0;
        return true;
    case CRYSTAL_OP_PAYLOAD:
        *ret = last->payload;
        return true;
    default:
        return false;
    }
}

static void remember(struct last *last, const struct crystal_op *op)
{
    if (op->kind == CRYSTAL_OP_EXT)
        return; /* all of it is data */
    last->t_ns = op->t_ns;
    if (op->kind == CRYSTAL_OP_PAYLOAD)
        last->payload = op->value;
}

/* Takes apart; false where the record has to be WIDE. */
static bool take_apart(const struct crystal_op *op, const struct last *last,
                       struct crystal_op *shape, struct crystal_graph_packed *p)
{
    int64_t dt_ns = (int64_t)(op->t_ns - last->t_ns);
    uint64_t base;

    if (op->kind == CRYSTAL_OP_EXT || dt_ns < INT32_MIN || dt_ns > INT32_MAX)
        return false;
    *shape = *op;
    shape->t_ns = 0;
    shape->peer = 0;
    *p = (struct crystal_graph_packed){.dt_ns = (int32_t)dt_ns, .peer = op->peer};
    if (!value_base(op, last, op->t_ns, &base))
        return true;
    if (op->value - base > UINT32_MAX)
        return false;
    p->value = (uint32_t)(op->value - base);
    shape->value = 0;
    return true;
}

/* --- shapes, found by their bytes --- */

static uint32_t *place_of(const struct crystal_graph_packer *p,
                          const struct crystal_op *shape)
{
    uint64_t at = crystal_hash(shape, sizeof *shape) & p->mask;

    while (p->places[at] &&
           memcmp(&p->shapes[p->places[at] - 1], shape, sizeof *shape) != 0)
        at = (at + 1) & p->mask;
    return &p->places[at];
}

static int shapes_grow(struct crystal_graph_packer *p)
{
    uint64_t capacity = p->shape_capacity ? 2 * p->shape_capacity : 256;
    struct crystal_op *shapes = realloc(p->shapes, capacity * sizeof *shapes);
    uint32_t *places = calloc(2 * capacity, sizeof *places);

    p->shapes = shapes ? shapes : p->shapes;
    if (!shapes || !places) {
        free(places);
        return -ENOMEM;
    }
    free(p->places);
    p->places = places;
    p->mask = 2 * capacity - 1;
    p->shape_capacity = capacity;
    for (uint64_t i = 0; i < p->shape_count; i++)
        *place_of(p, &p->shapes[i]) = (uint32_t)i + 1;
    return 0;
}

static int shape_index(struct crystal_graph_packer *p, const struct crystal_op *shape,
                       uint32_t *ret)
{
    uint32_t *place;

    if (p->shape_count == p->shape_capacity && shapes_grow(p))
        return -ENOMEM;
    place = place_of(p, shape);
    if (!*place) {
        if (p->shape_count == CRYSTAL_GRAPH_WIDE - 1)
            return -E2BIG;
        p->shapes[p->shape_count++] = *shape;
        *place = (uint32_t)p->shape_count;
    }
    *ret = *place - 1;
    return 0;
}

/* --- records --- */

/* Room for count more. */
static int rows_grow(struct crystal_graph_packer *p, uint64_t count)
{
    uint64_t capacity = 2 * (p->count + count);
    struct crystal_graph_packed *rows;

    if (p->count + count <= p->capacity)
        return 0;
    rows = realloc(p->rows, capacity * sizeof *rows);
    if (!rows)
        return -ENOMEM;
    p->rows = rows;
    p->capacity = capacity;
    return 0;
}

int crystal_graph_packer_put(struct crystal_graph_packer *p,
                             const struct crystal_op *ops, uint64_t count)
{
    struct last last = {p->t_ns, p->payload};
    int code = rows_grow(p, count);

    for (uint64_t i = 0; !code && i < count; i++) {
        struct crystal_graph_packed row = {0, 0, 0, 0};
        struct crystal_op shape;
        bool is_wide = !take_apart(&ops[i], &last, &shape, &row);

        if (is_wide) {
            shape = ops[i];
            row = (struct crystal_graph_packed){0, 0, 0, 0};
        }
        code = shape_index(p, &shape, &row.shape);
        if (is_wide)
            row.shape |= CRYSTAL_GRAPH_WIDE;
        p->rows[p->count++] = row;
        remember(&last, &ops[i]);
    }
    p->t_ns = last.t_ns;
    p->payload = last.payload;
    return code;
}

void crystal_graph_packer_fini(struct crystal_graph_packer *p)
{
    free(p->shapes);
    free(p->places);
    free(p->rows);
}

int crystal_graph_unpack(const struct crystal_op *shapes, uint64_t shape_count,
                         const struct crystal_graph_packed *packed, uint64_t count,
                         struct crystal_op *ops)
{
    struct last last = {0, 0};

    for (uint64_t i = 0; i < count; i++) {
        uint32_t shape = packed[i].shape & ~CRYSTAL_GRAPH_WIDE;
        struct crystal_op op;
        uint64_t base;

        if (shape >= shape_count)
            return -EINVAL;
        op = shapes[shape];
        if (!(packed[i].shape & CRYSTAL_GRAPH_WIDE)) {
            if (op.kind == CRYSTAL_OP_EXT)
                return -EINVAL;
            op.t_ns = last.t_ns + (uint64_t)(int64_t)packed[i].dt_ns;
            op.peer = packed[i].peer;
            if (value_base(&op, &last, op.t_ns, &base))
                op.value = base + packed[i].value;
        }
        remember(&last, &op);
        ops[i] = op;
    }
    return 0;
}
