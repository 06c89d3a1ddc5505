/* The order in which the nodes of a Chakra trace are placed. See import_chakra.h. */
#include "config.h"

#include "runtime/import_chakra.h"

#include <errno.h>
#include <stdlib.h>

/* --- dependencies --- */

struct places { /* of ids, open addressing: 1 + index, 0: free */
    uint32_t *rows;
    size_t mask;
};

static uint32_t *place_of(const struct chakra *c, const struct places *p, uint64_t id)
{
    size_t at = (size_t)(id * UINT64_C(0x9e3779b97f4a7c15) >> 20) & p->mask;

    while (p->rows[at] && c->nodes[p->rows[at] - 1].id != id)
        at = (at + 1) & p->mask;
    return &p->rows[at];
}

static int places_init(struct places *p, const struct chakra *c)
{
    size_t capacity = 16;

    while (capacity < 2 * c->count)
        capacity *= 2;
    p->mask = capacity - 1;
    p->rows = calloc(capacity, sizeof *p->rows);
    if (!p->rows)
        return -ENOMEM;
    for (size_t i = 0; i < c->count; i++) {
        uint32_t *place = place_of(c, p, c->nodes[i].id);

        if (*place)
            return -EINVAL;
        *place = (uint32_t)i + 1;
    }
    return 0;
}

/* A chain needs no event: a node is recorded that several wait for, or one that waits
 * for others, too. */
static void await(struct chakra_node *n, bool is_one_of_many)
{
    n->is_recorded = n->is_recorded || n->is_awaited || is_one_of_many;
    n->is_awaited = true;
}

/* Dependencies as indices. A node that is not in the trace is nothing to wait for.
 * Tells whether each is behind what it depends on already. */
static void deps_resolve(struct chakra *c, const struct places *p, bool *ret_in_order)
{
    *ret_in_order = true;
    for (size_t i = 0; i < c->count; i++) {
        struct chakra_node *n = &c->nodes[i];
        struct chakra_dep *deps = &c->deps[n->dep_first];
        uint32_t kept = 0;

        for (uint32_t k = 0; k < n->dep_count; k++) {
            uint32_t at = *place_of(c, p, deps[k].id);

            if (!at || (deps[k].is_ctrl && c->has_data_deps))
                continue;
            *ret_in_order = *ret_in_order && at - 1 < i;
            deps[kept++].id = at - 1;
        }
        n->dep_count = kept;
        for (uint32_t k = 0; k < kept; k++)
            await(&c->nodes[deps[k].id], kept > 1);
    }
}

/* --- turns: the nodes in the order in which they begin, so that a stream which has to
 * be shared is one that is through by then. Communication keeps the order of the file,
 * in which the ranks agree --- */

struct turns {
    uint64_t front_us; /* when the last communication begins */
    uint32_t count;
    bool is_sorted;
};

static void turn_add(struct chakra *c, struct turns *t, uint32_t index)
{
    struct chakra_node *n = &c->nodes[index];

    if (chakra_communicates(n))
        n->begin_us = t->front_us;
    for (uint32_t k = 0; k < n->dep_count; k++) {
        const struct chakra_node *dep = &c->nodes[c->deps[n->dep_first + k].id];

        n->begin_us = dep->end_us > n->begin_us ? dep->end_us : n->begin_us;
    }
    n->end_us = n->begin_us + n->us;
    if (chakra_communicates(n))
        t->front_us = n->begin_us;
    t->is_sorted =
        t->is_sorted && (!t->count || c->turns[t->count - 1].begin_us <= n->begin_us);
    c->turns[t->count] = (struct chakra_turn){n->begin_us, t->count, index};
    t->count++;
}

static int turn_compare(const void *a, const void *b)
{
    const struct chakra_turn *x = a, *y = b;

    if (x->begin_us != y->begin_us)
        return x->begin_us < y->begin_us ? -1 : 1;
    return x->nth < y->nth ? -1 : 1;
}

/* --- the order of the file as far as it goes: of the nodes that are ready, because all
 * that they depend on had their turn, the first one --- */

struct ready {
    uint32_t *heap; /* by index */
    size_t count;
    uint32_t *missing; /* of each node's dependencies, those without a turn */
    size_t *first;     /* of each node's followers in the list */
    uint32_t *followers;
};

static void ready_push(struct ready *r, uint32_t node)
{
    size_t i = r->count++;

    while (i && r->heap[(i - 1) / 2] > node) {
        r->heap[i] = r->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    r->heap[i] = node;
}

static uint32_t ready_pop(struct ready *r)
{
    uint32_t first = r->heap[0], last = r->heap[--r->count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < r->count) {
        if (child + 1 < r->count && r->heap[child + 1] < r->heap[child])
            child++;
        if (r->heap[child] >= last)
            break;
        r->heap[i] = r->heap[child];
        i = child;
    }
    r->heap[i] = last;
    return first;
}

static int ready_init(struct ready *r, const struct chakra *c)
{
    *r = (struct ready){.heap = malloc(c->count * sizeof *r->heap),
                        .missing = malloc(c->count * sizeof *r->missing),
                        .first = calloc(c->count + 2, sizeof *r->first),
                        .followers = malloc((c->dep_count + 1) * sizeof *r->followers)};
    if (!r->heap || !r->missing || !r->first || !r->followers)
        return -ENOMEM;
    for (size_t i = 0; i < c->count; i++)
        for (uint32_t k = 0; k < c->nodes[i].dep_count; k++)
            r->first[c->deps[c->nodes[i].dep_first + k].id + 2]++;
    for (size_t i = 2; i < c->count + 2; i++)
        r->first[i] += r->first[i - 1];
    for (size_t i = 0; i < c->count; i++) {
        const struct chakra_node *n = &c->nodes[i];

        for (uint32_t k = 0; k < n->dep_count; k++)
            r->followers[r->first[c->deps[n->dep_first + k].id + 1]++] = (uint32_t)i;
        r->missing[i] = n->dep_count;
        if (!n->dep_count)
            ready_push(r, (uint32_t)i);
    }
    return 0;
}

static int turns_by_dependency(struct chakra *c, struct turns *t)
{
    struct ready r;
    int code = ready_init(&r, c);

    while (!code && r.count) {
        uint32_t index = ready_pop(&r);

        turn_add(c, t, index);
        for (size_t k = r.first[index]; k < r.first[index + 1]; k++)
            if (--r.missing[r.followers[k]] == 0)
                ready_push(&r, r.followers[k]);
    }
    free(r.heap);
    free(r.missing);
    free(r.first);
    free(r.followers);
    return code ? code : t->count < c->count ? -ELOOP : 0;
}

int chakra_order(struct chakra *c)
{
    struct turns turns = {.is_sorted = true};
    struct places places = {NULL, 0};
    bool is_in_order;
    int code = places_init(&places, c);

    c->turns = malloc(c->count * sizeof *c->turns);
    if (!code && !c->turns)
        code = -ENOMEM;
    if (!code) {
        deps_resolve(c, &places, &is_in_order);
        if (!is_in_order)
            code = turns_by_dependency(c, &turns);
        for (uint32_t i = 0; is_in_order && i < c->count; i++)
            turn_add(c, &turns, i);
        if (!code && !turns.is_sorted)
            qsort(c->turns, c->count, sizeof *c->turns, turn_compare);
    }
    free(places.rows);
    return code;
}
