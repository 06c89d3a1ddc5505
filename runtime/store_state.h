/* What the files of the store share: its connections, and buffers. Include store.h
 * instead.
 */
#ifndef CRYSTAL_STORE_STATE_H
#define CRYSTAL_STORE_STATE_H

#include "runtime/store.h"
#include "runtime/store_keys.h"
#include "runtime/store_wire.h"

#include <stddef.h>
#include <stdint.h>

#define STORE_READ_BYTES ((size_t)256 << 10)
#define STORE_OUT_FULL                                            \
    ((size_t)8 << 20) /* no more requests before this has drained \
                       */

struct store_bytes {
    uint8_t *data; /* owned */
    size_t begin, end, capacity;
};

struct store_connection {
    struct store_connection *next, *prev;
    struct crystal_store *store;
    struct crystal_watch watch;
    struct store_bytes in, out;
    struct crystal_store_scan scan;
    struct crystal_store_wait wait;
    uint64_t waits_since_ns;
    uint32_t pid; /* as its PING says; 0: not said */
    uint8_t validated;
    uint8_t busy; /* its requests are being handled: output is flushed afterwards */
    uint8_t dead; /* closed as soon as the loop comes to it */
};

struct crystal_store {
    struct crystal_loop *loop;
    struct crystal_watch listener;
    int listen_fd;
    const struct crystal_access *access;
    struct crystal_store_hooks hooks;
    struct crystal_store_keys *keys;
    struct store_connection *connections;
    uint8_t scratch[STORE_READ_BYTES]; /* of the connection that is being read */
};

/* store_bytes.c: a buffer that is filled at its end and emptied at its front; 0 or
 * -ENOMEM. */
int store_bytes_reserve(struct store_bytes *b, size_t more);
int store_bytes_append(struct store_bytes *b, const void *data, size_t count);
void store_bytes_consume(struct store_bytes *b, size_t count);

/* store_requests.c: handles the complete requests at the front of data; ret_used is
 * their bytes. Negative where the connection is to be closed. */
int store_handle(struct store_connection *c, const uint8_t *data, size_t bytes,
                 size_t *ret_used);
/* Is the key there, perhaps since the missing hook has set it? */
int store_has(struct crystal_store *s, struct crystal_store_string key);

#endif
