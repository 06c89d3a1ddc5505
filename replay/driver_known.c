/* What the timeline told before sandbox ranks came to the operation: a hash table, as
 * ranks ask for operations in another order than they were told, and for some never.
 */
#include "config.h"

#include "replay/driver_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A collective of which nobody has asked when the one so much later is told is a gather
 * or a scatter without a message between this node and a virtual rank. */
#define UNASKED 1025U

void dr_no_memory(struct crystal_driver *d)
{
    struct crystal_error err;

    (void)crystal_error_set(&err, ENOMEM, "timeline: out of memory");
    dr_fail(d, &err);
}

/* --- the table --- */

static uint64_t hash_of(const struct dr_key *key)
{
    uint64_t hash = (uint64_t)key->comm << 32 ^ (uint64_t)key->is_p2p << 63;

    hash =
        (hash ^ ((uint64_t)key->from << 32 | key->to)) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ key->seq) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static bool is_same(const struct dr_key *a, const struct dr_key *b)
{
    return a->comm == b->comm && a->is_p2p == b->is_p2p && a->from == b->from &&
           a->to == b->to && a->seq == b->seq;
}

/* Twice as many buckets. */
static int grow(struct dr_knowns *all)
{
    struct dr_knowns more = {.bucket_count =
                                 all->bucket_count ? 2 * all->bucket_count : 256};

    more.buckets = calloc(more.bucket_count, sizeof(*more.buckets));
    if (!more.buckets)
        return -ENOMEM;
    for (uint64_t i = 0; i < all->bucket_count; i++)
        for (struct dr_known *k = all->buckets[i], *next; k; k = next) {
            struct dr_known **place =
                &more.buckets[hash_of(&k->key) & (more.bucket_count - 1)];

            next = k->next;
            k->next = *place;
            *place = k;
        }
    more.count = all->count;
    free(all->buckets);
    *all = more;
    return 0;
}

/* What leads to the operation, or to NULL; NULL where there are no buckets. */
static struct dr_known **known_place(const struct dr_knowns *all,
                                     const struct dr_key *key)
{
    struct dr_known **place =
        all->bucket_count ? &all->buckets[hash_of(key) & (all->bucket_count - 1)]
                          : NULL;

    while (place && *place && !is_same(&(*place)->key, key))
        place = &(*place)->next;
    return place;
}

static struct dr_known *known_find(const struct dr_knowns *all,
                                   const struct dr_key *key)
{
    struct dr_known **place = known_place(all, key);

    return place ? *place : NULL;
}

static struct dr_known *known_take(struct dr_knowns *all, const struct dr_key *key)
{
    struct dr_known **place = known_place(all, key), *k = place ? *place : NULL;

    if (!k)
        return NULL;
    *place = k->next;
    all->count--;
    return k;
}

/* An operation of which `arrivals` are known; NULL: out of memory. */
static struct dr_known *known_add(struct crystal_driver *d, const struct dr_key *key,
                                  uint32_t arrivals)
{
    struct dr_knowns *all = &d->known;
    struct dr_known *k = malloc(sizeof *k + arrivals * sizeof k->arrive_ns[0]), **place;

    if (!k || (all->count == all->bucket_count && grow(all))) {
        free(k);
        dr_no_memory(d);
        return NULL;
    }
    place = &all->buckets[hash_of(key) & (all->bucket_count - 1)];
    k->key = *key;
    k->asked = 0;
    k->next = *place;
    *place = k;
    all->count++;
    return k;
}

/* --- what is told --- */

void dr_board_on_coll(void *context, uint32_t comm, uint64_t seq,
                      const uint64_t *arrive)
{
    struct crystal_driver *d = context;
    struct dr_key key = {.comm = comm, .seq = seq};
    struct crystal_graph_comm c;
    struct dr_known *k;

    if (d->has_local && !d->has_local[comm])
        return; /* nobody here waits for it */
    crystal_graph_comm(d->graph, comm, &c);
    k = known_add(d, &key, c.nranks);
    if (!k)
        return;
    memcpy(k->arrive_ns, arrive, c.nranks * sizeof *arrive);
    if (seq < UNASKED)
        return;
    key.seq = seq - UNASKED;
    free(known_take(&d->known, &key));
}

void dr_board_on_p2p(void *context, uint32_t comm, uint32_t from, uint32_t to,
                     uint64_t seq, int inside_sends, uint64_t arrive_ns)
{
    struct crystal_driver *d = context;
    const struct dr_key key = {comm, true, from, to, seq};
    struct crystal_graph_comm c;
    struct dr_known *k;

    crystal_graph_comm(d->graph, comm, &c);
    if (d->has_local && !dr_is_local(d, c.members[inside_sends ? to : from]))
        return;
    k = known_add(d, &key, 1);
    if (k)
        k->arrive_ns[0] = arrive_ns;
}

/* --- who asks --- */

struct dr_known *dr_known_take(struct crystal_driver *d, uint32_t comm, bool is_p2p,
                               uint32_t from, uint32_t to, uint64_t seq)
{
    const struct dr_key key = {comm, is_p2p, from, to, seq};

    return known_take(&d->known, &key);
}

const struct dr_known *dr_known_ask(struct crystal_driver *d, uint32_t comm,
                                    uint64_t seq)
{
    const struct dr_key key = {.comm = comm, .seq = seq};
    struct dr_known *k = known_find(&d->known, &key);

    if (k)
        k->asked++;
    return k;
}

void dr_known_asked(struct crystal_driver *d, uint32_t comm, uint64_t seq,
                    uint64_t count)
{
    const struct dr_key key = {.comm = comm, .seq = seq};
    const struct dr_known *k = known_find(&d->known, &key);

    if (k && k->asked >= count)
        free(known_take(&d->known, &key));
}

void dr_known_fini(struct crystal_driver *d)
{
    for (uint64_t i = 0; i < d->known.bucket_count; i++)
        for (struct dr_known *k = d->known.buckets[i], *next; k; k = next) {
            next = k->next;
            free(k);
        }
    free(d->known.buckets);
    d->known = (struct dr_knowns){.buckets = NULL};
}
