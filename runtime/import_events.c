/* Groups and events of the ranks. See import_trace.h. */
#include "config.h"

#include "runtime/import_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- groups --- */

uint64_t import_hash(const char *text, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint32_t import_group_find(const struct import *m, uint64_t name, uint64_t list)
{
    for (uint32_t i = 0; i < m->group_count; i++)
        if (m->groups[i].name == name && m->groups[i].list == list)
            return i;
    return IMPORT_NONE;
}

uint32_t import_group_add(struct import *m, uint64_t name, uint64_t list,
                          uint32_t *members, uint32_t count)
{
    for (uint32_t i = 0; i < m->group_count; i++)
        if (m->groups[i].name == name && m->groups[i].count == count &&
            memcmp(m->groups[i].members, members, count * sizeof *members) == 0) {
            free(members);
            return i;
        }
    if (m->group_count == m->group_capacity) {
        uint32_t capacity = m->group_capacity ? 2 * m->group_capacity : 16;
        struct import_group *groups = realloc(m->groups, capacity * sizeof *groups);

        if (!groups) {
            free(members);
            return IMPORT_NONE;
        }
        m->groups = groups;
        m->group_capacity = capacity;
    }
    m->groups[m->group_count] = (struct import_group){members, count, name, list};
    return m->group_count++;
}

uint32_t import_local_of(const struct import_rank *r, uint32_t group)
{
    uint32_t i = 0;

    while (i < r->local_count && r->locals[i] != group)
        i++;
    return i;
}

int import_locals_make(const struct import *m, struct import_rank *r)
{
    r->locals = malloc((m->group_count + 1) * sizeof *r->locals);
    if (!r->locals)
        return -ENOMEM;
    for (size_t i = 0; i < r->count; i++) {
        const struct import_event *e = &r->events[i];
        bool is_member = false;

        if (e->what != IMPORT_COLL && e->what != IMPORT_SEND && e->what != IMPORT_RECV)
            continue;
        for (uint32_t k = 0; k < m->groups[e->group].count; k++)
            is_member = is_member || m->groups[e->group].members[k] == r->lrank;
        if (!is_member)
            return -EPROTO;
        if (import_local_of(r, e->group) == r->local_count)
            r->locals[r->local_count++] = e->group;
    }
    return r->local_count < UINT16_MAX ? 0 : -EPROTO;
}

/* --- events --- */

int import_event_add(struct import_rank *r, const struct import_event *e)
{
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 1024;
        struct import_event *events = realloc(r->events, capacity * sizeof *events);

        if (!events)
            return -ENOMEM;
        r->events = events;
        r->capacity = capacity;
    }
    r->events[r->count++] = *e;
    return 0;
}

int import_launch_add(struct import_rank *r, struct import_launch launch)
{
    if (r->launch_count == r->launch_capacity) {
        size_t capacity = r->launch_capacity ? 2 * r->launch_capacity : 1024;
        struct import_launch *more = realloc(r->launches, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        r->launches = more;
        r->launch_capacity = capacity;
    }
    r->launches[r->launch_count++] = launch;
    return 0;
}

/* --- order of issue --- */

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

static int launches_init(struct launches *l, const struct import_rank *r)
{
    size_t capacity = 16;

    while (capacity < 2 * r->launch_count)
        capacity *= 2;
    l->mask = capacity - 1;
    l->rows = calloc(capacity, sizeof *l->rows);
    if (!l->rows)
        return -ENOMEM;
    for (size_t i = 0; i < r->launch_count; i++) {
        struct import_launch *row = launch_row(l, r->launches[i].correlation);

        if (!row->correlation || r->launches[i].issue_ns < row->issue_ns)
            *row = r->launches[i];
    }
    return 0;
}

int import_order(struct import_rank *r)
{
    struct launches l;
    bool is_sorted = true;

    if (launches_init(&l, r))
        return -ENOMEM;
    for (size_t i = 0; i < r->count; i++) {
        struct import_event *e = &r->events[i];
        const struct import_launch *launch =
            e->correlation ? launch_row(&l, e->correlation) : NULL;

        if (launch && launch->correlation && launch->issue_ns < e->issue_ns)
            e->issue_ns = launch->issue_ns;
        is_sorted = is_sorted && (!i || by_issue(e - 1, e) <= 0);
    }
    free(l.rows);
    if (!is_sorted)
        qsort(r->events, r->count, sizeof *r->events, by_issue);
    return 0;
}
