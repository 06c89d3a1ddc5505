/* What the store holds: keys with values or queues, and who waits for which keys.
 *
 * A key is a value, a queue, or only waited for; the store counts keys with values. A
 * wait is one client's: it ends when each of its keys has come to exist once. Waits are
 * the caller's storage. Not thread-safe. -ENOMEM leaves everything as it was.
 */
#ifndef CRYSTAL_STORE_KEYS_H
#define CRYSTAL_STORE_KEYS_H

#include <stddef.h>
#include <stdint.h>

struct crystal_store_keys;
struct crystal_store_node; /* one wait at one key */

struct crystal_store_wait {
    uint32_t missing;                 /* keys that have not come yet */
    struct crystal_store_node *nodes; /* owned; one per such key */
    void *owner;
};

/* done: called when the last key of a wait has come; the wait is empty by then. */
struct crystal_store_keys *
crystal_store_keys_create(void (*done)(struct crystal_store_wait *wait));
void crystal_store_keys_destroy(struct crystal_store_keys *keys);
/* Forgets all values and queues; waits go on. */
void crystal_store_keys_clear(struct crystal_store_keys *keys);

/* NULL without a value; borrowed until the key changes. */
const uint8_t *crystal_store_keys_get(const struct crystal_store_keys *keys,
                                      const void *key, size_t key_bytes,
                                      size_t *ret_bytes);
/* 1 where key has a value or a queue that is not empty. */
int crystal_store_keys_has(const struct crystal_store_keys *keys, const void *key,
                           size_t key_bytes);
int crystal_store_keys_set(struct crystal_store_keys *keys, const void *key,
                           size_t key_bytes, const void *value, size_t value_bytes);
/* -EMSGSIZE beyond a total of 1 GiB. */
int crystal_store_keys_append(struct crystal_store_keys *keys, const void *key,
                              size_t key_bytes, const void *value, size_t value_bytes);
/* 1 = was there. */
int crystal_store_keys_delete(struct crystal_store_keys *keys, const void *key,
                              size_t key_bytes);
uint64_t crystal_store_keys_count(const struct crystal_store_keys *keys);

int crystal_store_keys_push(struct crystal_store_keys *keys, const void *key,
                            size_t key_bytes, const void *value, size_t value_bytes);
uint64_t crystal_store_keys_queued(const struct crystal_store_keys *keys,
                                   const void *key, size_t key_bytes);
/* The first element, NULL without; the caller frees it. */
uint8_t *crystal_store_keys_pop(struct crystal_store_keys *keys, const void *key,
                                size_t key_bytes, size_t *ret_bytes);

/* Adds a key that does not exist to a wait. */
int crystal_store_keys_wait(struct crystal_store_keys *keys,
                            struct crystal_store_wait *wait, const void *key,
                            size_t key_bytes);
/* Takes a wait out of all its keys. */
void crystal_store_keys_unwait(struct crystal_store_keys *keys,
                               struct crystal_store_wait *wait);
/* One of the keys of a wait; NULL where it waits for none. Borrowed. */
const void *crystal_store_keys_waited(const struct crystal_store_wait *wait,
                                      size_t *ret_bytes);
/* Calls fn for every key that is waited for and does not exist. fn must not change the
 * store. */
void crystal_store_keys_each_missing(const struct crystal_store_keys *keys,
                                     void (*fn)(void *context, const void *key,
                                                size_t key_bytes),
                                     void *context);

#endif
