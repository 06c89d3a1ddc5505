/* The store's keys, queues and waits. See store_keys.h. A chained hash table that
 * doubles; an entry lives as long as it has a value, elements or waiters. */
#include "config.h"

#include "runtime/store_keys.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CHAINS 256
#define APPEND_MAX   ((size_t)1 << 30)

struct element {
    struct element *next;
    uint8_t *value;
    size_t bytes;
};

struct entry {
    struct entry *next;
    uint64_t hash;
    uint8_t *value; /* owned; NULL where the value is empty or missing */
    size_t value_bytes, value_capacity;
    int has_value;
    struct element *first, *last; /* the queue */
    uint64_t queued;
    struct crystal_store_node *first_waiter, *last_waiter;
    size_t key_bytes;
    uint8_t key[];
};

struct crystal_store_node {
    struct crystal_store_node *next_at_key, *prev_at_key;
    struct crystal_store_node *next_of_wait, *prev_of_wait;
    struct entry *entry;
    struct crystal_store_wait *wait;
};

struct crystal_store_keys {
    void (*done)(struct crystal_store_wait *wait);
    struct entry **chains;
    size_t chain_count; /* a power of two */
    size_t entry_count;
    uint64_t value_count;
};

struct crystal_store_keys *
crystal_store_keys_create(void (*done)(struct crystal_store_wait *wait))
{
    struct crystal_store_keys *keys = calloc(1, sizeof *keys);

    if (!keys)
        return NULL;
    keys->done = done;
    keys->chain_count = FIRST_CHAINS;
    keys->chains = calloc(keys->chain_count, sizeof *keys->chains);
    if (!keys->chains) {
        free(keys);
        return NULL;
    }
    return keys;
}

static struct entry **find(const struct crystal_store_keys *keys, const void *key,
                           size_t key_bytes, uint64_t hash)
{
    struct entry **at = &keys->chains[hash & (keys->chain_count - 1)];

    while (*at && ((*at)->hash != hash || (*at)->key_bytes != key_bytes ||
                   memcmp((*at)->key, key, key_bytes) != 0))
        at = &(*at)->next;
    return at;
}

static struct entry *get(const struct crystal_store_keys *keys, const void *key,
                         size_t key_bytes)
{
    return *find(keys, key, key_bytes, crystal_hash(key, key_bytes));
}

/* A table that cannot grow stays as it is: slower, not wrong. */
static void grow(struct crystal_store_keys *keys)
{
    size_t count = keys->chain_count * 2;
    struct entry **chains = calloc(count, sizeof *chains);

    if (!chains)
        return;
    for (size_t i = 0; i < keys->chain_count; i++)
        while (keys->chains[i]) {
            struct entry *e = keys->chains[i];

            keys->chains[i] = e->next;
            e->next = chains[e->hash & (count - 1)];
            chains[e->hash & (count - 1)] = e;
        }
    free(keys->chains);
    keys->chains = chains;
    keys->chain_count = count;
}

static struct entry *get_or_make(struct crystal_store_keys *keys, const void *key,
                                 size_t key_bytes)
{
    uint64_t hash = crystal_hash(key, key_bytes);
    struct entry **at = find(keys, key, key_bytes, hash);
    struct entry *e = *at;

    if (e)
        return e;
    e = calloc(1, sizeof *e + key_bytes);
    if (!e)
        return NULL;
    e->hash = hash;
    e->key_bytes = key_bytes;
    memcpy(e->key, key, key_bytes);
    *at = e;
    if (++keys->entry_count > keys->chain_count)
        grow(keys);
    return e;
}

static void drop_value(struct crystal_store_keys *keys, struct entry *e)
{
    keys->value_count -= e->has_value ? 1 : 0;
    free(e->value);
    e->value = NULL;
    e->value_bytes = e->value_capacity = 0;
    e->has_value = 0;
}

static void drop_queue(struct entry *e)
{
    while (e->first) {
        struct element *gone = e->first;

        e->first = gone->next;
        free(gone->value);
        free(gone);
    }
    e->last = NULL;
    e->queued = 0;
}

static void drop_if_unused(struct crystal_store_keys *keys, struct entry *e)
{
    struct entry **at;

    if (e->has_value || e->queued || e->first_waiter)
        return;
    at = find(keys, e->key, e->key_bytes, e->hash);
    *at = e->next;
    keys->entry_count--;
    free(e->value);
    free(e);
}

void crystal_store_keys_clear(struct crystal_store_keys *keys)
{
    for (size_t i = 0; i < keys->chain_count; i++)
        for (struct entry *e = keys->chains[i], *next; e; e = next) {
            next = e->next;
            drop_value(keys, e);
            drop_queue(e);
            drop_if_unused(keys, e);
        }
}

/* --- waits --- */

static void unlink_node(struct crystal_store_node *n)
{
    struct entry *e = n->entry;

    if (n->prev_at_key)
        n->prev_at_key->next_at_key = n->next_at_key;
    else
        e->first_waiter = n->next_at_key;
    if (n->next_at_key)
        n->next_at_key->prev_at_key = n->prev_at_key;
    else
        e->last_waiter = n->prev_at_key;
    if (n->prev_of_wait)
        n->prev_of_wait->next_of_wait = n->next_of_wait;
    else
        n->wait->nodes = n->next_of_wait;
    if (n->next_of_wait)
        n->next_of_wait->prev_of_wait = n->prev_of_wait;
    n->wait->missing--;
    free(n);
}

/* The key has come to exist: its first waiter, or all of them, go on. done may not
 * change keys, so the entry stays. */
static void wake(struct crystal_store_keys *keys, struct entry *e, int only_one)
{
    while (e->first_waiter) {
        struct crystal_store_wait *wait = e->first_waiter->wait;

        unlink_node(e->first_waiter);
        if (wait->missing == 0) {
            keys->done(wait);
            if (only_one)
                return;
        }
    }
}

int crystal_store_keys_wait(struct crystal_store_keys *keys,
                            struct crystal_store_wait *wait, const void *key,
                            size_t key_bytes)
{
    struct crystal_store_node *n = calloc(1, sizeof *n);
    struct entry *e = n ? get_or_make(keys, key, key_bytes) : NULL;

    if (!e) {
        free(n);
        return -ENOMEM;
    }
    n->entry = e;
    n->wait = wait;
    n->prev_at_key = e->last_waiter;
    if (e->last_waiter)
        e->last_waiter->next_at_key = n;
    else
        e->first_waiter = n;
    e->last_waiter = n;
    n->next_of_wait = wait->nodes;
    if (wait->nodes)
        wait->nodes->prev_of_wait = n;
    wait->nodes = n;
    wait->missing++;
    return 0;
}

void crystal_store_keys_unwait(struct crystal_store_keys *keys,
                               struct crystal_store_wait *wait)
{
    while (wait->nodes) {
        struct entry *e = wait->nodes->entry;

        unlink_node(wait->nodes);
        drop_if_unused(keys, e);
    }
}

const void *crystal_store_keys_waited(const struct crystal_store_wait *wait,
                                      size_t *ret_bytes)
{
    if (!wait->nodes)
        return NULL;
    *ret_bytes = wait->nodes->entry->key_bytes;
    return wait->nodes->entry->key;
}

void crystal_store_keys_each_missing(const struct crystal_store_keys *keys,
                                     void (*fn)(void *context, const void *key,
                                                size_t key_bytes),
                                     void *context)
{
    for (size_t i = 0; i < keys->chain_count; i++)
        for (const struct entry *e = keys->chains[i]; e; e = e->next)
            if (!e->has_value && !e->queued && e->first_waiter)
                fn(context, e->key, e->key_bytes);
}

/* --- values --- */

const uint8_t *crystal_store_keys_get(const struct crystal_store_keys *keys,
                                      const void *key, size_t key_bytes,
                                      size_t *ret_bytes)
{
    static const uint8_t empty[1];
    const struct entry *e = get(keys, key, key_bytes);

    if (!e || !e->has_value)
        return NULL;
    *ret_bytes = e->value_bytes;
    return e->value ? e->value : empty;
}

int crystal_store_keys_has(const struct crystal_store_keys *keys, const void *key,
                           size_t key_bytes)
{
    const struct entry *e = get(keys, key, key_bytes);

    return e && (e->has_value || e->queued);
}

/* Puts value behind the first keep bytes of the old one. */
static int write_value(struct crystal_store_keys *keys, const void *key,
                       size_t key_bytes, size_t keep, const void *value,
                       size_t value_bytes)
{
    struct entry *e = get_or_make(keys, key, key_bytes);
    size_t need = keep + value_bytes;

    if (!e)
        return -ENOMEM;
    if (need > e->value_capacity) {
        size_t capacity = keep ? need + need / 2 : need;
        uint8_t *more = realloc(e->value, capacity);

        if (!more) {
            drop_if_unused(keys, e);
            return -ENOMEM;
        }
        e->value = more;
        e->value_capacity = capacity;
    }
    if (value_bytes)
        memcpy(e->value + keep, value, value_bytes);
    e->value_bytes = need;
    keys->value_count += e->has_value ? 0 : 1;
    e->has_value = 1;
    wake(keys, e, 0);
    return 0;
}

int crystal_store_keys_set(struct crystal_store_keys *keys, const void *key,
                           size_t key_bytes, const void *value, size_t value_bytes)
{
    return write_value(keys, key, key_bytes, 0, value, value_bytes);
}

int crystal_store_keys_append(struct crystal_store_keys *keys, const void *key,
                              size_t key_bytes, const void *value, size_t value_bytes)
{
    size_t have = 0;

    (void)crystal_store_keys_get(keys, key, key_bytes, &have); /* none: 0 bytes */
    if (value_bytes > APPEND_MAX - have)
        return -EMSGSIZE;
    return write_value(keys, key, key_bytes, have, value, value_bytes);
}

int crystal_store_keys_delete(struct crystal_store_keys *keys, const void *key,
                              size_t key_bytes)
{
    struct entry *e = get(keys, key, key_bytes);

    if (!e || !e->has_value)
        return 0;
    drop_value(keys, e);
    drop_if_unused(keys, e);
    return 1;
}

uint64_t crystal_store_keys_count(const struct crystal_store_keys *keys)
{
    return keys->value_count;
}

/* --- queues --- */

int crystal_store_keys_push(struct crystal_store_keys *keys, const void *key,
                            size_t key_bytes, const void *value, size_t value_bytes)
{
    struct element *x = calloc(1, sizeof *x);
    uint8_t *copy = malloc(value_bytes + 1);
    struct entry *e = x && copy ? get_or_make(keys, key, key_bytes) : NULL;

    if (!e) {
        free(copy);
        free(x);
        return -ENOMEM;
    }
    memcpy(copy, value, value_bytes);
    x->value = copy;
    x->bytes = value_bytes;
    if (e->last)
        e->last->next = x;
    else
        e->first = x;
    e->last = x;
    e->queued++;
    wake(keys, e, 1);
    return 0;
}

uint64_t crystal_store_keys_queued(const struct crystal_store_keys *keys,
                                   const void *key, size_t key_bytes)
{
    const struct entry *e = get(keys, key, key_bytes);

    return e ? e->queued : 0;
}

uint8_t *crystal_store_keys_pop(struct crystal_store_keys *keys, const void *key,
                                size_t key_bytes, size_t *ret_bytes)
{
    struct entry *e = get(keys, key, key_bytes);
    struct element *x = e ? e->first : NULL;
    uint8_t *value;

    if (!x)
        return NULL;
    e->first = x->next;
    if (!e->first)
        e->last = NULL;
    e->queued--;
    value = x->value;
    *ret_bytes = x->bytes;
    free(x);
    drop_if_unused(keys, e);
    return value;
}

void crystal_store_keys_destroy(struct crystal_store_keys *keys)
{
    if (!keys)
        return;
    crystal_store_keys_clear(keys);
    for (size_t i = 0; i < keys->chain_count; i++)
        while (keys->chains[i] && keys->chains[i]->first_waiter)
            crystal_store_keys_unwait(keys, keys->chains[i]->first_waiter->wait);
    free(keys->chains);
    free(keys);
}
