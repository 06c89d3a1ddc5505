/* See report_events.h. The members of one collective, and the two ends of one message,
 * are neighbours once all events are sorted. */
#include "config.h"

#include "replay/report_events.h"

#include "runtime/op.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int grow(void **list, size_t count, size_t *capacity, size_t bytes)
{
    size_t more = *capacity ? 2 * *capacity : 256;
    void *grown;

    if (count < *capacity)
        return 0;
    grown = realloc(*list, more * bytes);
    if (!grown)
        return -ENOMEM;
    *list = grown;
    *capacity = more;
    return 0;
}

int rp_events_add(struct rp_events *e, const struct rp_event *event)
{
    if (e->count == RP_EVENTS_MAX) {
        e->left_out++;
        return 0;
    }
    if (grow((void **)&e->list, e->count, &e->capacity, sizeof *e->list))
        return -ENOMEM;
    e->list[e->count++] = *event;
    return 0;
}

int rp_events_mark(struct rp_events *e, const struct rp_mark *mark)
{
    if (grow((void **)&e->marks, e->mark_count, &e->mark_capacity, sizeof *e->marks))
        return -ENOMEM;
    e->marks[e->mark_count++] = *mark;
    return 0;
}

/* The two ranks of a message, sender first; a collective has none. */
static uint64_t way(const struct rp_event *e, const uint32_t *lranks)
{
    uint64_t own = lranks[e->rank], peer = e->peer;

    if (e->kind == CRYSTAL_OP_SEND)
        return own << 32 | peer;
    return e->kind == CRYSTAL_OP_RECV ? peer << 32 | own : UINT64_MAX;
}

static int compare(const void *a, const void *b, void *lranks)
{
    const struct rp_event *x = a, *y = b;
    uint64_t v = way(x, lranks), w = way(y, lranks);

    if (x->comm != y->comm)
        return x->comm < y->comm ? -1 : 1;
    if (v != w)
        return v < w ? -1 : 1;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* seq counts a rank's events of the same communicator and way. They stand in the order
 * of its calls, so that one pass over them, sorted by rank, numbers them. */
static void number(struct rp_events *e, const uint32_t *lranks)
{
    for (size_t i = 0; i < e->count; i++)
        e->list[i].seq = i; /* keeps the order of calls */
    qsort_r(e->list, e->count, sizeof *e->list, compare, (void *)lranks);
    for (size_t i = 0; i < e->count;) {
        size_t end = i;

        while (end < e->count && e->list[end].comm == e->list[i].comm &&
               way(&e->list[end], lranks) == way(&e->list[i], lranks))
            end++;
        /* one row of calls by each rank, ranks one after the other in the list */
        for (uint64_t seq = 0; i < end; i++) {
            if (i > 0 && (e->list[i].comm != e->list[i - 1].comm ||
                          way(&e->list[i], lranks) != way(&e->list[i - 1], lranks) ||
                          e->list[i].rank != e->list[i - 1].rank))
                seq = 0;
            e->list[i].seq = seq++;
        }
    }
    qsort_r(e->list, e->count, sizeof *e->list, compare, (void *)lranks);
}

static void link_row(struct rp_event *list, size_t begin, size_t end)
{
    size_t last = begin;

    for (size_t i = begin; i < end; i++)
        if (list[i].kind == CRYSTAL_OP_SEND ||
            (list[last].kind != CRYSTAL_OP_SEND &&
             list[i].arrive_ns > list[last].arrive_ns))
            last = i;
    for (size_t i = begin; i < end; i++)
        list[i].waits_for = i == last || list[last].arrive_ns <= list[i].arrive_ns
                                ? UINT32_MAX
                                : (uint32_t)last;
}

void rp_events_link(struct rp_events *e, const uint32_t *lranks)
{
    uint32_t track = 0;

    if (!e->count)
        return;
    number(e, lranks);
    for (size_t i = 0; i < e->count; i++) {
        track += i == 0 || e->list[i].comm != e->list[i - 1].comm ||
                 way(&e->list[i], lranks) != way(&e->list[i - 1], lranks);
        e->list[i].track = track;
    }
    for (size_t i = 0; i < e->count;) {
        size_t end = i;

        while (end < e->count && e->list[end].comm == e->list[i].comm &&
               way(&e->list[end], lranks) == way(&e->list[i], lranks) &&
               e->list[end].seq == e->list[i].seq)
            end++;
        link_row(e->list, i, end);
        i = end;
    }
}

void rp_events_fini(struct rp_events *e)
{
    free(e->list);
    free(e->marks);
    memset(e, 0, sizeof *e);
}
