/* Events in the order in which the host issued them. See import_trace.h. */
#include "config.h"

#include "runtime/import_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void import_events_fini(struct import_events *v)
{
    free(v->rows);
    free(v->launches);
}

int import_event_add(struct import_events *v, const struct import_event *e)
{
    if (v->count == v->capacity) {
        size_t capacity = v->capacity ? 2 * v->capacity : 1024;
        struct import_event *rows = realloc(v->rows, capacity * sizeof *rows);

        if (!rows)
            return -ENOMEM;
        v->rows = rows;
        v->capacity = capacity;
    }
    v->rows[v->count++] = *e;
    return 0;
}

int import_launch_add(struct import_events *v, struct import_launch launch)
{
    if (v->launch_count == v->launch_capacity) {
        size_t capacity = v->launch_capacity ? 2 * v->launch_capacity : 1024;
        struct import_launch *more = realloc(v->launches, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        v->launches = more;
        v->launch_capacity = capacity;
    }
    v->launches[v->launch_count++] = launch;
    return 0;
}

static int by_issue(const void *a, const void *b)
{
    const struct import_event *x = a, *y = b;

    if (x->issue_ns != y->issue_ns)
        return x->issue_ns < y->issue_ns ? -1 : 1;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return (x->correlation > y->correlation) - (x->correlation < y->correlation);
}

/* The earliest launch of each correlation, in a table with open addressing. */
struct launches {
    struct import_launch *rows; /* correlation 0: free */
    size_t mask;
};

static struct import_launch *launch_row(const struct launches *l, uint64_t correlation)
{
    size_t at = (size_t)(correlation * UINT64_C(0x9e3779b97f4a7c15) >> 20) & l->mask;

    while (l->rows[at].correlation && l->rows[at].correlation != correlation)
        at = (at + 1) & l->mask;
    return &l->rows[at];
}

static int launches_init(struct launches *l, const struct import_events *v)
{
    size_t capacity = 16;

    while (capacity < 2 * v->launch_count)
        capacity *= 2;
    l->mask = capacity - 1;
    l->rows = calloc(capacity, sizeof *l->rows);
    if (!l->rows)
        return -ENOMEM;
    for (size_t i = 0; i < v->launch_count; i++) {
        struct import_launch *row = launch_row(l, v->launches[i].correlation);

        if (!row->correlation || v->launches[i].issue_ns < row->issue_ns)
            *row = v->launches[i];
    }
    return 0;
}

int import_events_order(struct import_events *v)
{
    struct launches l;
    bool is_sorted = true;

    if (launches_init(&l, v))
        return -ENOMEM;
    for (size_t i = 0; i < v->count; i++) {
        struct import_event *e = &v->rows[i];
        const struct import_launch *launch =
            e->correlation ? launch_row(&l, e->correlation) : NULL;

        if (launch && launch->correlation && launch->issue_ns < e->issue_ns)
            e->issue_ns = launch->issue_ns;
        is_sorted = is_sorted && (!i || by_issue(e - 1, e) <= 0);
    }
    free(l.rows);
    if (!is_sorted)
        qsort(v->rows, v->count, sizeof *v->rows, by_issue);
    return 0;
}
