/* A server of PyTorch's TCPStore protocol. See store.h; store_wire.h draws the bytes.
 *
 * Replies: SET, APPEND, MULTI_SET, QUEUE_PUSH none; GET, COMPARE_SET a string;
 * MULTI_GET one string per key; ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN i64; QUEUE_POP
 * i64 length before the pop and, if that is not 0, a string; CHECK, WAIT, CANCEL_WAIT
 * u8; PING its u32. A WAIT is answered when all its keys exist, a cancelled one only as
 * cancelled. A connection has one WAIT at a time and begins with VALIDATE.
 */
#include "config.h"

#include "runtime/store.h"

#include "runtime/log.h"
#include "runtime/store_keys.h"
#include "runtime/store_wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES   ((size_t)256 << 10)
#define KEEP_BYTES   ((size_t)64 << 10) /* a drained buffer above this is freed */
#define OUT_FULL     ((size_t)8 << 20)  /* no more requests before this has drained */
#define OUT_MAX      ((size_t)1 << 30)
#define INT64_DIGITS 24

struct bytes {
    uint8_t *data; /* owned */
    size_t begin, end, capacity;
};

struct connection {
    struct connection *next, *prev;
    struct crystal_store *store;
    struct crystal_watch watch;
    struct bytes in, out;
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
    struct connection *connections;
    uint8_t scratch[READ_BYTES]; /* of the connection that is being read */
};

/* --- bytes --- */

static int bytes_reserve(struct bytes *b, size_t more)
{
    size_t have = b->end - b->begin, capacity = b->capacity ? b->capacity : 256;
    uint8_t *data;

    if (b->capacity - b->end >= more)
        return 0;
    if (b->begin) {
        memmove(b->data, b->data + b->begin, have);
        b->begin = 0;
        b->end = have;
        if (b->capacity - have >= more)
            return 0;
    }
    while (capacity - have < more)
        capacity *= 2;
    data = realloc(b->data, capacity);
    if (!data)
        return -ENOMEM;
    b->data = data;
    b->capacity = capacity;
    return 0;
}

static int bytes_append(struct bytes *b, const void *data, size_t count)
{
    if (bytes_reserve(b, count) < 0)
        return -ENOMEM;
    if (count)
        memcpy(b->data + b->end, data, count);
    b->end += count;
    return 0;
}

static void bytes_consume(struct bytes *b, size_t count)
{
    b->begin += count;
    if (b->begin < b->end)
        return;
    b->begin = b->end = 0;
    if (b->capacity > KEEP_BYTES) {
        free(b->data);
        b->data = NULL;
        b->capacity = 0;
    }
}

/* --- connections --- */

static void connection_destroy(struct connection *c)
{
    int fd = c->watch.fd;

    crystal_store_keys_unwait(c->store->keys, &c->wait);
    crystal_watch_stop(&c->watch);
    (void)close(fd);
    if (c->prev)
        c->prev->next = c->next;
    else
        c->store->connections = c->next;
    if (c->next)
        c->next->prev = c->prev;
    free(c->in.data);
    free(c->out.data);
    free(c);
}

/* The loop sees the closed socket and destroys the connection. */
static void connection_kill(struct connection *c)
{
    c->dead = 1;
    (void)shutdown(c->watch.fd, SHUT_RDWR);
}

static void flush(struct connection *c)
{
    while (!c->dead && c->out.begin < c->out.end) {
        ssize_t n = send(c->watch.fd, c->out.data + c->out.begin,
                         c->out.end - c->out.begin, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            connection_kill(c);
            return;
        }
        bytes_consume(&c->out, (size_t)n);
    }
    crystal_watch_events(&c->watch, c->out.end - c->out.begin >= OUT_FULL ? EPOLLOUT
                                    : c->out.begin < c->out.end ? EPOLLIN | EPOLLOUT
                                                                : EPOLLIN);
}

static void wait_done(struct crystal_store_wait *wait)
{
    static const uint8_t stop_waiting = CRYSTAL_STORE_STOP_WAITING;
    struct connection *c = wait->owner;

    if (bytes_append(&c->out, &stop_waiting, 1) < 0)
        connection_kill(c);
    else if (!c->busy)
        flush(c);
}

/* --- replies --- */

static int reply_u8(struct connection *c, unsigned value)
{
    uint8_t v = (uint8_t)value;

    return bytes_append(&c->out, &v, sizeof v);
}

static int reply_i64(struct connection *c, int64_t value)
{
    return bytes_append(&c->out, &value, sizeof value);
}

static int reply_string(struct connection *c, const void *value, size_t bytes)
{
    uint64_t count = bytes;

    if (c->out.end - c->out.begin > OUT_MAX - bytes)
        return -EMSGSIZE;
    if (bytes_append(&c->out, &count, sizeof count) < 0)
        return -ENOMEM;
    return bytes_append(&c->out, value, bytes);
}

/* --- requests: at stands behind the opcode of a complete request --- */

typedef struct crystal_store_string string;

static int has(struct crystal_store *s, string key)
{
    if (crystal_store_keys_has(s->keys, key.at, key.bytes))
        return 1;
    if (!s->hooks.missing)
        return 0;
    s->hooks.missing(s->hooks.context, key.at, key.bytes);
    return crystal_store_keys_has(s->keys, key.at, key.bytes);
}

static int drops_write(struct crystal_store *s, string key, const string *value)
{
    return s->hooks.write &&
           s->hooks.write(s->hooks.context, key.at, key.bytes, value ? value->at : NULL,
                          value ? value->bytes : 0);
}

static int on_validate(struct connection *c, const uint8_t *at)
{
    if (crystal_store_take_u32(&at) != CRYSTAL_STORE_MAGIC)
        return -EBADMSG;
    c->validated = 1;
    return 0;
}

static int set(struct crystal_store *s, string key, string value)
{
    if (drops_write(s, key, &value))
        return 0;
    return crystal_store_keys_set(s->keys, key.at, key.bytes, value.at, value.bytes);
}

static int on_set(struct connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);

    return set(c->store, key, crystal_store_take_string(&at));
}

static int on_compare_set(struct connection *c, const uint8_t *at)
{
    struct crystal_store *s = c->store;
    string key = crystal_store_take_string(&at);
    string expected = crystal_store_take_string(&at);
    string desired = crystal_store_take_string(&at);
    size_t bytes = 0;
    const uint8_t *now = crystal_store_keys_get(s->keys, key.at, key.bytes, &bytes);
    int rc;

    /* A key that is missing while something is expected answers what was expected, as
     * PyTorch's servers do. */
    if (now ? bytes != expected.bytes || memcmp(now, expected.at, bytes) != 0
            : expected.bytes != 0)
        return now ? reply_string(c, now, bytes)
                   : reply_string(c, expected.at, expected.bytes);
    rc = set(s, key, desired);
    return rc < 0 ? rc : reply_string(c, desired.at, desired.bytes);
}

static int get(struct connection *c, string key)
{
    size_t bytes = 0;
    const uint8_t *value;

    (void)has(c->store, key); /* asks the hook */
    value = crystal_store_keys_get(c->store->keys, key.at, key.bytes, &bytes);
    return reply_string(c, value, value ? bytes : 0);
}

static int on_get(struct connection *c, const uint8_t *at)
{
    return get(c, crystal_store_take_string(&at));
}

/* The number that a counter's text begins with; -EBADMSG where it is none. */
static int counter_value(const uint8_t *text, size_t bytes, int64_t *ret)
{
    char copy[INT64_DIGITS], *end;
    long long v;

    if (bytes >= sizeof copy)
        return -EBADMSG;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    errno = 0;
    v = strtoll(copy, &end, 10);
    if (end == copy || errno)
        return -EBADMSG;
    *ret = v;
    return 0;
}

static int on_add(struct connection *c, const uint8_t *at)
{
    struct crystal_store *s = c->store;
    string key = crystal_store_take_string(&at);
    int64_t delta = (int64_t)crystal_store_take_u64(&at), value = 0;
    char text[INT64_DIGITS];
    size_t bytes = 0;
    const uint8_t *now = crystal_store_keys_get(s->keys, key.at, key.bytes, &bytes);
    int rc, length;

    if (now) {
        rc = counter_value(now, bytes, &value);
        if (rc < 0)
            return rc;
    } else if (s->hooks.counter_start) {
        value = s->hooks.counter_start(s->hooks.context, key.at, key.bytes);
    }
    if (__builtin_add_overflow(value, delta, &value))
        return -EBADMSG;
    if (!drops_write(s, key, NULL)) {
        length = snprintf(text, sizeof text, "%lld", (long long)value);
        rc = crystal_store_keys_set(s->keys, key.at, key.bytes, text, (size_t)length);
        if (rc < 0)
            return rc;
    }
    return reply_i64(c, value);
}

static int on_check(struct connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    unsigned answer = CRYSTAL_STORE_READY;

    for (uint64_t i = 0; i < count; i++)
        if (!has(c->store, crystal_store_take_string(&at)))
            answer = CRYSTAL_STORE_NOT_READY;
    return reply_u8(c, answer);
}

static int on_wait(struct connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    int rc;

    if (c->wait.nodes)
        return -EBADMSG; /* one at a time */
    c->waits_since_ns = crystal_now_ns();
    for (uint64_t i = 0; i < count; i++) {
        string key = crystal_store_take_string(&at);

        if (has(c->store, key))
            continue;
        rc = crystal_store_keys_wait(c->store->keys, &c->wait, key.at, key.bytes);
        if (rc < 0)
            return rc;
    }
    return c->wait.nodes ? 0 : reply_u8(c, CRYSTAL_STORE_STOP_WAITING);
}

static int on_cancel_wait(struct connection *c, const uint8_t *at)
{
    (void)at;
    crystal_store_keys_unwait(c->store->keys, &c->wait);
    return reply_u8(c, CRYSTAL_STORE_WAIT_CANCELED);
}

static int on_getnumkeys(struct connection *c, const uint8_t *at)
{
    (void)at;
    return reply_i64(c, (int64_t)crystal_store_keys_count(c->store->keys));
}

static int on_delete_key(struct connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);

    return reply_i64(c, crystal_store_keys_delete(c->store->keys, key.at, key.bytes));
}

static int on_append(struct connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);
    string value = crystal_store_take_string(&at);

    if (drops_write(c->store, key, NULL))
        return 0;
    return crystal_store_keys_append(c->store->keys, key.at, key.bytes, value.at,
                                     value.bytes);
}

static int on_multi_get(struct connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < count; i++)
        rc = get(c, crystal_store_take_string(&at));
    return rc;
}

static int on_multi_set(struct connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        string key = crystal_store_take_string(&at);

        rc = set(c->store, key, crystal_store_take_string(&at));
    }
    return rc;
}

static int on_ping(struct connection *c, const uint8_t *at)
{
    const uint8_t *nonce = at; /* PyTorch's clients put their process number there */

    c->pid = crystal_store_take_u32(&nonce);
    return bytes_append(&c->out, at, sizeof(uint32_t));
}

static int on_queue_push(struct connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);
    string value = crystal_store_take_string(&at);

    return crystal_store_keys_push(c->store->keys, key.at, key.bytes, value.at,
                                   value.bytes);
}

static int on_queue_pop(struct connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);
    struct crystal_store_keys *keys = c->store->keys;
    uint64_t queued = crystal_store_keys_queued(keys, key.at, key.bytes);
    size_t bytes = 0;
    uint8_t *value = crystal_store_keys_pop(keys, key.at, key.bytes, &bytes);
    int rc = reply_i64(c, (int64_t)queued);

    if (rc == 0 && value)
        rc = reply_string(c, value, bytes);
    free(value);
    return rc;
}

static int on_queue_len(struct connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);

    return reply_i64(
        c, (int64_t)crystal_store_keys_queued(c->store->keys, key.at, key.bytes));
}

static int (*const handlers[CRYSTAL_STORE_OPCODES])(struct connection *c,
                                                    const uint8_t *at) = {
    [CRYSTAL_STORE_VALIDATE] = on_validate,
    [CRYSTAL_STORE_SET] = on_set,
    [CRYSTAL_STORE_COMPARE_SET] = on_compare_set,
    [CRYSTAL_STORE_GET] = on_get,
    [CRYSTAL_STORE_ADD] = on_add,
    [CRYSTAL_STORE_CHECK] = on_check,
    [CRYSTAL_STORE_WAIT] = on_wait,
    [CRYSTAL_STORE_GETNUMKEYS] = on_getnumkeys,
    [CRYSTAL_STORE_DELETE_KEY] = on_delete_key,
    [CRYSTAL_STORE_APPEND] = on_append,
    [CRYSTAL_STORE_MULTI_GET] = on_multi_get,
    [CRYSTAL_STORE_MULTI_SET] = on_multi_set,
    [CRYSTAL_STORE_CANCEL_WAIT] = on_cancel_wait,
    [CRYSTAL_STORE_PING] = on_ping,
    [CRYSTAL_STORE_QUEUE_PUSH] = on_queue_push,
    [CRYSTAL_STORE_QUEUE_POP] = on_queue_pop,
    [CRYSTAL_STORE_QUEUE_LEN] = on_queue_len,
};

/* Handles the complete requests at the front of data; ret_used = their bytes. */
static int handle(struct connection *c, const uint8_t *data, size_t bytes,
                  size_t *ret_used)
{
    size_t used = 0;
    int rc = 0;

    while (used < bytes && c->out.end - c->out.begin < OUT_FULL) {
        rc = crystal_store_scan(&c->scan, data + used, bytes - used);
        if (rc <= 0)
            break;
        if (!c->validated && c->scan.opcode != CRYSTAL_STORE_VALIDATE)
            rc = -EBADMSG;
        else
            rc = handlers[c->scan.opcode](c, data + used + 1);
        if (rc < 0)
            break;
        used += c->scan.end;
        c->scan = (struct crystal_store_scan){0};
    }
    *ret_used = used;
    return rc < 0 ? rc : 0;
}

/* --- events --- */

/* Handles what is in the connection's own buffer. Output beyond OUT_FULL stops it until
 * that has drained. */
static int handle_buffered(struct connection *c)
{
    size_t used = 1;
    int rc = 0;

    while (rc == 0 && used && c->in.begin < c->in.end) {
        rc = handle(c, c->in.data + c->in.begin, c->in.end - c->in.begin, &used);
        bytes_consume(&c->in, used);
        flush(c);
    }
    return rc;
}

/* 0, or negative where the connection is to be closed. */
static int read_input(struct connection *c)
{
    struct crystal_store *s = c->store;
    int direct = c->in.begin == c->in.end;
    size_t used = 0;
    ssize_t n;
    int rc;

    if (!direct && bytes_reserve(&c->in, READ_BYTES) < 0)
        return -ENOMEM;
    n = recv(c->watch.fd, direct ? s->scratch : c->in.data + c->in.end, READ_BYTES,
             MSG_DONTWAIT);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    if (n == 0)
        return -ECONNRESET;
    if (!direct) {
        c->in.end += (size_t)n;
        return handle_buffered(c);
    }
    rc = handle(c, s->scratch, (size_t)n, &used);
    flush(c);
    if (rc == 0 && used < (size_t)n) {
        rc = bytes_append(&c->in, s->scratch + used, (size_t)n - used);
        if (rc == 0)
            rc = handle_buffered(c);
    }
    return rc;
}

static void on_connection(void *context, uint32_t events)
{
    struct connection *c = context;
    int rc = 0;

    c->busy = 1;
    if (events & EPOLLOUT) {
        flush(c);
        rc = handle_buffered(c);
    }
    if (rc == 0 && !c->dead && events & EPOLLIN)
        rc = read_input(c);
    else if (events & (EPOLLHUP | EPOLLERR))
        rc = -ECONNRESET;
    c->busy = 0;
    if (rc < 0 || c->dead) {
        if (rc < 0 && rc != -ECONNRESET)
            crystal_log(CRYSTAL_LOG_DEBUG, "store", "connection closed: %s",
                        strerror(-rc));
        connection_destroy(c);
    }
}

int crystal_store_adopt(struct crystal_store *store, int fd, struct crystal_error *err)
{
    struct connection *c = calloc(1, sizeof *c);
    int rc;

    if (!c) {
        (void)close(fd);
        return crystal_error_set(err, ENOMEM, "store: out of memory");
    }
    c->store = store;
    c->wait.owner = c;
    rc =
        crystal_watch_start(&c->watch, store->loop, fd, EPOLLIN, on_connection, c, err);
    if (rc < 0) {
        (void)close(fd);
        free(c);
        return rc;
    }
    c->next = store->connections;
    if (c->next)
        c->next->prev = c;
    store->connections = c;
    return 0;
}

static void on_listener(void *context, uint32_t events)
{
    struct crystal_store *s = context;
    struct crystal_error err = {0};
    int fd, rc;

    (void)events;
    while ((rc = crystal_accept(s->listen_fd, s->access, &fd)) == 0)
        if (crystal_store_adopt(s, fd, &err) < 0)
            crystal_log(CRYSTAL_LOG_DEBUG, "store", "%s", crystal_error_text(&err));
    if (rc != -EAGAIN)
        crystal_log(CRYSTAL_LOG_DEBUG, "store", "cannot accept: %s", strerror(-rc));
}

/* --- the store itself --- */

struct crystal_store *crystal_store_create(struct crystal_loop *loop, int listen_fd,
                                           const struct crystal_access *access,
                                           const struct crystal_store_hooks *hooks,
                                           struct crystal_error *err)
{
    struct crystal_store *s = calloc(1, sizeof *s);

    if (s) {
        s->listen_fd = -1;
        s->keys = crystal_store_keys_create(wait_done);
    }
    if (!s || !s->keys) {
        (void)crystal_error_set(err, ENOMEM, "store: out of memory");
        goto err_free;
    }
    s->loop = loop;
    s->access = access;
    if (hooks)
        s->hooks = *hooks;
    if (listen_fd >= 0) {
        if (crystal_watch_start(&s->listener, loop, listen_fd, EPOLLIN, on_listener, s,
                                err) < 0)
            goto err_free;
        s->listen_fd = listen_fd;
    }
    return s;
err_free:
    crystal_store_destroy(s);
    return NULL;
}

void crystal_store_reset(struct crystal_store *store)
{
    while (store->connections)
        connection_destroy(store->connections);
    crystal_store_keys_clear(store->keys);
}

void crystal_store_destroy(struct crystal_store *store)
{
    if (!store)
        return;
    if (store->keys)
        crystal_store_reset(store);
    crystal_watch_stop(&store->listener);
    if (store->listen_fd >= 0)
        (void)close(store->listen_fd);
    crystal_store_keys_destroy(store->keys);
    free(store);
}

int crystal_store_set(struct crystal_store *store, const void *key, size_t key_bytes,
                      const void *value, size_t value_bytes)
{
    return crystal_store_keys_set(store->keys, key, key_bytes, value, value_bytes);
}

const uint8_t *crystal_store_get(const struct crystal_store *store, const void *key,
                                 size_t key_bytes, size_t *ret_bytes)
{
    return crystal_store_keys_get(store->keys, key, key_bytes, ret_bytes);
}

/* Copies of the missing keys, since asking changes the table they stand in. */
struct missing_keys {
    struct bytes all; /* u64 length, key; ... */
};

static void collect_missing(void *context, const void *key, size_t key_bytes)
{
    struct missing_keys *m = context;
    uint64_t bytes = key_bytes;

    /* Out of memory: the rest is asked for by the next reason to ask. */
    if (bytes_reserve(&m->all, sizeof bytes + key_bytes) < 0)
        return;
    (void)bytes_append(&m->all, &bytes, sizeof bytes);
    (void)bytes_append(&m->all, key, key_bytes);
}

void crystal_store_each_waiting(const struct crystal_store *store,
                                void (*fn)(void *context, uint32_t pid, const void *key,
                                           size_t key_bytes, uint64_t since_ns),
                                void *context)
{
    for (const struct connection *c = store->connections; c; c = c->next) {
        size_t key_bytes;
        const void *key = crystal_store_keys_waited(&c->wait, &key_bytes);

        if (key && !c->dead)
            fn(context, c->pid, key, key_bytes, c->waits_since_ns);
    }
}

void crystal_store_ask_again(struct crystal_store *store)
{
    struct missing_keys m = {{0}};
    const uint8_t *at;

    if (!store->hooks.missing)
        return;
    crystal_store_keys_each_missing(store->keys, collect_missing, &m);
    for (at = m.all.data; at < m.all.data + m.all.end;)
        (void)has(store, crystal_store_take_string(&at));
    free(m.all.data);
}
