/* What the timeline told before sandbox ranks came to the operation: a list for each
 * communicator of the graph, in the order in which it was told.
 */
#include "config.h"

#include "replay/driver_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A collective of which nobody has asked when so many have come after it is a gather or
 * a scatter without a message between this node and a virtual rank. */
#define UNASKED 1024U

void dr_no_memory(struct crystal_driver *d)
{
    struct crystal_error err;

    (void)crystal_error_set(&err, ENOMEM, "timeline: out of memory");
    dr_fail(d, &err);
}

static void known_add(struct crystal_driver *d, uint32_t comm, struct dr_known *k)
{
    struct dr_known **place = &d->known[comm];

    while (*place) { /* in order: what came first is asked for first */
        struct dr_known *old = *place;

        if (!k->is_p2p && !old->is_p2p && old->seq + UNASKED < k->seq) {
            *place = old->next;
            free(old);
            continue;
        }
        place = &old->next;
    }
    k->next = NULL;
    *place = k;
}

void dr_board_on_coll(void *context, uint32_t comm, uint64_t seq,
                      const uint64_t *arrive)
{
    struct crystal_driver *d = context;
    struct crystal_graph_comm c;
    struct dr_known *k;

    if (d->has_local && !d->has_local[comm])
        return; /* nobody here waits for it */
    crystal_graph_comm(d->graph, comm, &c);
    k = malloc(sizeof *k + c.nranks * sizeof *arrive);
    if (!k) {
        dr_no_memory(d);
        return;
    }
    k->is_p2p = false;
    k->asked = 0;
    k->from = k->to = 0;
    k->seq = seq;
    memcpy(k->arrive_ns, arrive, c.nranks * sizeof *arrive);
    known_add(d, comm, k);
}

void dr_board_on_p2p(void *context, uint32_t comm, uint32_t from, uint32_t to,
                     uint64_t seq, int inside_sends, uint64_t arrive_ns)
{
    struct crystal_driver *d = context;
    struct crystal_graph_comm c;
    struct dr_known *k;

    crystal_graph_comm(d->graph, comm, &c);
    if (d->has_local && !dr_is_local(d, c.members[inside_sends ? to : from]))
        return;
    k = malloc(sizeof *k + sizeof arrive_ns);
    if (!k) {
        dr_no_memory(d);
        return;
    }
    k->is_p2p = true;
    k->from = from;
    k->to = to;
    k->seq = seq;
    k->arrive_ns[0] = arrive_ns;
    known_add(d, comm, k);
}

/* Where the list leads to one operation, or to NULL. */
static struct dr_known **known_place(struct crystal_driver *d, uint32_t comm,
                                     bool is_p2p, uint32_t from, uint32_t to,
                                     uint64_t seq)
{
    struct dr_known **place = &d->known[comm];

    while (*place && ((*place)->is_p2p != is_p2p || (*place)->seq != seq ||
                      (*place)->from != from || (*place)->to != to))
        place = &(*place)->next;
    return place;
}

struct dr_known *dr_known_take(struct crystal_driver *d, uint32_t comm, bool is_p2p,
                               uint32_t from, uint32_t to, uint64_t seq)
{
    struct dr_known **place = known_place(d, comm, is_p2p, from, to, seq), *k = *place;

    if (k)
        *place = k->next;
    return k;
}

const struct dr_known *dr_known_ask(struct crystal_driver *d, uint32_t comm,
                                    uint64_t seq)
{
    struct dr_known *k = *known_place(d, comm, false, 0, 0, seq);

    if (k)
        k->asked++;
    return k;
}

void dr_known_asked(struct crystal_driver *d, uint32_t comm, uint64_t seq,
                    uint64_t count)
{
    struct dr_known **place = known_place(d, comm, false, 0, 0, seq), *k = *place;

    if (!k || k->asked < count)
        return;
    *place = k->next;
    free(k);
}

void dr_known_fini(struct crystal_driver *d)
{
    for (uint32_t i = 0; d->known && i < crystal_graph_comm_count(d->graph); i++)
        while (d->known[i]) {
            struct dr_known *next = d->known[i]->next;

            free(d->known[i]);
            d->known[i] = next;
        }
    free(d->known);
}
