/* A server of PyTorch's TCPStore protocol (both of its backends speak it), in an event
 * loop. What keys mean is the hooks' business; without hooks it is a plain store.
 *
 * A connection that breaks the protocol or its limits is closed. Values of 8 MiB, keys
 * of 8 KiB and 131072 keys per request are the most, as in PyTorch's own server.
 */
#ifndef CRYSTAL_STORE_H
#define CRYSTAL_STORE_H

#include "runtime/error.h"
#include "runtime/listen.h"
#include "runtime/loop.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_store;

/* All may be NULL. They may call crystal_store_set, and nothing else of the store. */
struct crystal_store_hooks {
    void *context;
    /* A client asked for a key that does not exist. */
    void (*missing)(void *context, const void *key, size_t key_bytes);
    /* A client is about to write key (value NULL where it adds or appends). 0 = do so;
     * 1 = drop it silently, the key does not come to exist. */
    int (*write)(void *context, const void *key, size_t key_bytes, const void *value,
                 size_t value_bytes);
    /* What a counter is before a client's first ADD to it. */
    int64_t (*counter_start)(void *context, const void *key, size_t key_bytes);
};

/* listen_fd: a listening socket that the store then owns, or -1. access and hooks are
 * borrowed until destroy. NULL on failure (listen_fd is still the caller's). */
struct crystal_store *crystal_store_create(struct crystal_loop *loop, int listen_fd,
                                           const struct crystal_access *access,
                                           const struct crystal_store_hooks *hooks,
                                           struct crystal_error *err);
void crystal_store_destroy(struct crystal_store *store);

/* Takes a connected, non-blocking socket as a client; the store owns it, also on
 * failure. */
int crystal_store_adopt(struct crystal_store *store, int fd, struct crystal_error *err);

/* Sets a key as a client would, without asking the hooks. */
int crystal_store_set(struct crystal_store *store, const void *key, size_t key_bytes,
                      const void *value, size_t value_bytes);
/* NULL where there is none; borrowed until the store changes. */
const uint8_t *crystal_store_get(const struct crystal_store *store, const void *key,
                                 size_t key_bytes, size_t *ret_bytes);
/* Asks the missing hook once more for every key that clients wait for. */
void crystal_store_ask_again(struct crystal_store *store);
/* Calls fn for each connection that waits for keys: the process that it said it is
 * (PING; 0: it has not), one of the keys, and since when. fn must not change the store.
 */
void crystal_store_each_waiting(const struct crystal_store *store,
                                void (*fn)(void *context, uint32_t pid, const void *key,
                                           size_t key_bytes, uint64_t since_ns),
                                void *context);
/* Empties the store and closes all its connections. */
void crystal_store_reset(struct crystal_store *store);

#endif
