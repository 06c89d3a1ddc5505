/* Tables that grow, then one image. See graph_write.h; graph_file.h draws the bytes. */
#include "config.h"

#include "runtime/graph_write.h"

#include "runtime/filehead.h"
#include "runtime/graph_file.h"
#include "runtime/graph_pack.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct table {
    char *rows;
    size_t count, capacity, row_bytes;
};

struct crystal_graph_writer {
    struct crystal_graph_head head;
    struct table reps, ranks, sets, locals, marks, map, members, names;
    struct crystal_graph_packer ops;
    uint32_t placed_count; /* ranks that have been given */
    uint32_t *labels;      /* open addressing: 1 + offset of a label, 0: free */
    uint32_t label_count, label_mask;
    int code; /* first failure: sticks */
};

/* count rows at the end of the table, zeroed; NULL where there is no memory, or count
 * is 0. */
static void *rows(struct crystal_graph_writer *w, struct table *t, size_t count)
{
    void *at;

    if (!count)
        return NULL;
    if (t->count + count > t->capacity) {
        size_t capacity = 2 * (t->count + count) + 16;
        char *more = realloc(t->rows, capacity * t->row_bytes);

        if (!more) {
            w->code = -ENOMEM;
            return NULL;
        }
        t->rows = more;
        t->capacity = capacity;
    }
    at = memset(t->rows + t->count * t->row_bytes, 0, count * t->row_bytes);
    t->count += count;
    return at;
}

struct crystal_graph_writer *crystal_graph_writer_create(uint32_t lrank_count)
{
    struct crystal_graph_writer *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->head.lrank_count = lrank_count;
    w->head.dp_size = w->head.dp_stride = 1;
    w->reps.row_bytes = sizeof(struct crystal_graph_rep);
    w->ranks.row_bytes = sizeof(struct crystal_graph_rank);
    w->sets.row_bytes = sizeof(struct crystal_graph_set);
    w->locals.row_bytes = sizeof(struct crystal_graph_local);
    w->marks.row_bytes = sizeof(uint64_t);
    w->map.row_bytes = w->members.row_bytes = sizeof(uint32_t);
    w->names.row_bytes = 1;
    if (!lrank_count)
        w->code = -EINVAL;
    else
        (void)rows(w, &w->ranks, lrank_count); /* remembers */
    return w;
}

void crystal_graph_writer_destroy(struct crystal_graph_writer *w)
{
    if (!w)
        return;
    free(w->reps.rows);
    free(w->ranks.rows);
    free(w->sets.rows);
    free(w->locals.rows);
    crystal_graph_packer_fini(&w->ops);
    free(w->marks.rows);
    free(w->map.rows);
    free(w->members.rows);
    free(w->names.rows);
    free(w->labels);
    free(w);
}

void crystal_graph_writer_network(struct crystal_graph_writer *w,
                                  const struct crystal_graph_network *network)
{
    w->head.ranks_per_node = network->ranks_per_node;
    w->head.bytes_per_s = network->bytes_per_s;
    w->head.latency_ns = network->latency_ns;
    w->head.node_bytes_per_s = network->node_bytes_per_s;
    w->head.node_latency_ns = network->node_latency_ns;
}

static uint64_t name_put(struct crystal_graph_writer *w, const char *name)
{
    uint64_t at = w->names.count;
    char *to = rows(w, &w->names, strlen(name) + 1);

    if (to)
        memcpy(to, name, strlen(name) + 1);
    return at;
}

static uint32_t *label_place(const struct crystal_graph_writer *w, const char *name)
{
    uint32_t at = (uint32_t)crystal_hash(name, strlen(name)) & w->label_mask;

    while (w->labels[at] && strcmp(w->names.rows + w->labels[at] - 1, name) != 0)
        at = (at + 1) & w->label_mask;
    return &w->labels[at];
}

/* Twice as many places as labels. */
static int labels_grow(struct crystal_graph_writer *w)
{
    uint32_t *old = w->labels, count = old ? w->label_mask + 1 : 0;

    w->labels = calloc(count ? 2 * (size_t)count : 64, sizeof *w->labels);
    if (!w->labels) {
        w->labels = old;
        return -ENOMEM;
    }
    w->label_mask = (count ? 2 * count : 64) - 1;
    for (uint32_t i = 0; i < count; i++)
        if (old[i])
            *label_place(w, w->names.rows + old[i] - 1) = old[i];
    free(old);
    return 0;
}

uint32_t crystal_graph_writer_label(struct crystal_graph_writer *w, const char *name)
{
    uint32_t *place;
    uint64_t at;

    if (2 * w->label_count >= w->label_mask && labels_grow(w)) {
        w->code = -ENOMEM;
        return 0;
    }
    place = label_place(w, name);
    if (*place)
        return *place;
    at = name_put(w, name);
    if (at >= UINT32_MAX)
        w->code = -EFBIG;
    if (w->code)
        return 0;
    w->label_count++;
    *place = (uint32_t)at + 1;
    return *place;
}

uint32_t crystal_graph_writer_comm(struct crystal_graph_writer *w, const char *name,
                                   uint32_t nranks, const uint32_t *members)
{
    struct crystal_graph_set *set = rows(w, &w->sets, 1);
    uint64_t first = w->members.count;
    uint32_t *to = rows(w, &w->members, nranks);

    if (!set || !to)
        return 0;
    memcpy(to, members, nranks * sizeof *members);
    set->name = name ? name_put(w, name) : CRYSTAL_GRAPH_NONE;
    set->member_first = first;
    set->nranks = nranks;
    return (uint32_t)w->sets.count - 1;
}

static struct crystal_graph_rep *last_rep(struct crystal_graph_writer *w)
{
    return (struct crystal_graph_rep *)(void *)w->reps.rows + w->reps.count - 1;
}

uint32_t crystal_graph_writer_rep(struct crystal_graph_writer *w, uint32_t lrank,
                                  uint32_t local_count)
{
    struct crystal_graph_rep *rep = rows(w, &w->reps, 1);

    if (!rep)
        return 0;
    rep->lrank = lrank;
    rep->local_count = local_count;
    rep->local_first = w->locals.count;
    rep->op_first = w->ops.count;
    rep->mark_first = w->marks.count;
    (void)rows(w, &w->locals, local_count); /* remembers */
    return (uint32_t)w->reps.count - 1;
}

void crystal_graph_writer_ops(struct crystal_graph_writer *w,
                              const struct crystal_op *ops, size_t count)
{
    if (!w->code)
        w->code = crystal_graph_packer_put(&w->ops, ops, count);
    if (!w->code)
        last_rep(w)->op_count += count;
}

void crystal_graph_writer_op(struct crystal_graph_writer *w,
                             const struct crystal_op *op)
{
    crystal_graph_writer_ops(w, op, 1);
}

void crystal_graph_writer_mark(struct crystal_graph_writer *w)
{
    uint64_t *mark = w->code ? NULL : rows(w, &w->marks, 1);

    if (!mark)
        return;
    *mark = last_rep(w)->op_count;
    last_rep(w)->mark_count++;
}

void crystal_graph_writer_rank(struct crystal_graph_writer *w, uint32_t lrank,
                               uint32_t rep, const uint32_t *map)
{
    struct crystal_graph_rank *rank;
    uint32_t count, *to;

    if (w->code || lrank >= w->head.lrank_count || rep >= w->reps.count) {
        w->code = w->code ? w->code : -EINVAL;
        return;
    }
    count = ((struct crystal_graph_rep *)(void *)w->reps.rows)[rep].local_count;
    rank = (struct crystal_graph_rank *)(void *)w->ranks.rows + lrank;
    rank->rep = rep;
    rank->map_first = w->map.count;
    to = rows(w, &w->map, count);
    if (to)
        memcpy(to, map, count * sizeof *map);
    w->placed_count++;
}

/* --- the image --- */

static size_t aligned(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

/* Copies the sections where body is not NULL. Returns the bytes of all. */
static size_t place(const struct crystal_graph_writer *w, char *body)
{
    struct crystal_graph_pack_head numbers = {.shape_count = w->ops.shape_count};
    struct table head = {(char *)&numbers, 1, 1, sizeof numbers};
    struct table shapes = {(char *)w->ops.shapes, w->ops.shape_count, 0,
                           sizeof *w->ops.shapes};
    struct table ops = {(char *)w->ops.rows, w->ops.count, 0, sizeof *w->ops.rows};
    const struct table *tables[] = {
        &w->reps, &w->ranks, &w->sets,  &w->locals, NULL,        NULL,      &head,
        &shapes,  &ops,      &w->marks, &w->map,    &w->members, &w->names, NULL};
    size_t used = sizeof w->head;

    if (body)
        memcpy(body, &w->head, sizeof w->head);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        size_t bytes = tables[i] ? tables[i]->count * tables[i]->row_bytes : 0;

        used = aligned(used);
        if (body && bytes)
            memcpy(body + used, tables[i]->rows, bytes);
        used += bytes;
    }
    return used;
}

static void head_fill(struct crystal_graph_writer *w)
{
    w->head.rep_count = (uint32_t)w->reps.count;
    w->head.comm_count = (uint32_t)w->sets.count;
    w->head.local_count = w->locals.count;
    w->head.op_count = w->ops.count;
    w->head.mark_count = w->marks.count;
    w->head.map_count = w->map.count;
    w->head.member_count = w->members.count;
    w->head.name_bytes = w->names.count;
}

int crystal_graph_writer_write(struct crystal_graph_writer *w, const char *path,
                               uint64_t fingerprint, struct crystal_error *err)
{
    struct crystal_filehead head;
    struct crystal_graph *g;
    size_t bytes;
    char *body;
    int code;

    if (!w->code && w->placed_count != w->head.lrank_count)
        w->code = -EINVAL;
    if (w->code)
        return crystal_error_set(err, -w->code, "%s: %s", path,
                                 w->code == -ENOMEM ? "out of memory"
                                                    : "does not fit the format");
    head_fill(w);
    bytes = place(w, NULL);
    body = calloc(1, bytes);
    if (!body)
        return crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    (void)place(w, body);
    crystal_filehead_init(&head, CRYSTAL_GRAPH_MAGIC,
                          CRYSTAL_GRAPH_VERSION_HASHED + CRYSTAL_GRAPH_VERSION_WAYS, 0,
                          fingerprint, 0);
    crystal_filehead_ask_hash(&head);
    code = crystal_file_write(path, &head, body, bytes, err);
    free(body);
    if (code)
        return code;
    g = crystal_graph_open(path, err);
    crystal_graph_close(g);
    return g ? 0 : -EINVAL;
}
