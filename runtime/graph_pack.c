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

struct shapes {
    struct crystal_op *rows;
    uint64_t count, capacity;
    uint32_t *places; /* open addressing: 1 + index, 0: free */
    uint64_t mask;
};

static uint32_t *place_of(const struct shapes *s, const struct crystal_op *shape)
{
    uint64_t at = crystal_hash(shape, sizeof *shape) & s->mask;

    while (s->places[at] &&
           memcmp(&s->rows[s->places[at] - 1], shape, sizeof *shape) != 0)
        at = (at + 1) & s->mask;
    return &s->places[at];
}

static int shapes_grow(struct shapes *s)
{
    uint64_t capacity = s->capacity ? 2 * s->capacity : 256;
    struct crystal_op *rows = realloc(s->rows, capacity * sizeof *rows);
    uint32_t *places = calloc(2 * capacity, sizeof *places);

    s->rows = rows ? rows : s->rows;
    if (!rows || !places) {
        free(places);
        return -ENOMEM;
    }
    free(s->places);
    s->places = places;
    s->mask = 2 * capacity - 1;
    s->capacity = capacity;
    for (uint64_t i = 0; i < s->count; i++)
        *place_of(s, &s->rows[i]) = (uint32_t)i + 1;
    return 0;
}

static int shape_index(struct shapes *s, const struct crystal_op *shape, uint32_t *ret)
{
    uint32_t *place;

    if (s->count == s->capacity && shapes_grow(s))
        return -ENOMEM;
    place = place_of(s, shape);
    if (!*place) {
        if (s->count == CRYSTAL_GRAPH_WIDE - 1)
            return -E2BIG;
        s->rows[s->count++] = *shape;
        *place = (uint32_t)s->count;
    }
    *ret = *place - 1;
    return 0;
}

int crystal_graph_pack(const struct crystal_op *ops, uint64_t count,
                       struct crystal_op **ret_shapes, uint64_t *ret_shape_count,
                       struct crystal_graph_packed **ret_packed)
{
    struct crystal_graph_packed *packed = malloc((count + 1) * sizeof *packed);
    struct shapes shapes = {NULL, 0, 0, NULL, 0};
    struct last last = {0, 0};
    int code = packed ? 0 : -ENOMEM;

    for (uint64_t i = 0; !code && i < count; i++) {
        struct crystal_graph_packed p = {0, 0, 0, 0};
        struct crystal_op shape;
        bool is_wide = !take_apart(&ops[i], &last, &shape, &p);

        if (is_wide) {
            shape = ops[i];
            p = (struct crystal_graph_packed){0, 0, 0, 0};
        }
        code = shape_index(&shapes, &shape, &p.shape);
        if (is_wide)
            p.shape |= CRYSTAL_GRAPH_WIDE;
        packed[i] = p;
        remember(&last, &ops[i]);
    }
    free(shapes.places);
    *ret_shapes = shapes.rows;
    *ret_shape_count = shapes.count;
    *ret_packed = packed;
    return code;
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
