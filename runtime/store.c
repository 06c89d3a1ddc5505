/* A server of PyTorch's TCPStore protocol: connections and the store itself. See
 * store.h.
 */
#include "config.h"

#include "runtime/store_state.h"

#include "runtime/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- connections --- */

static void connection_destroy(struct store_connection *c)
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
static void store_connection_kill(struct store_connection *c)
{
    c->dead = 1;
    (void)shutdown(c->watch.fd, SHUT_RDWR);
}

static void flush(struct store_connection *c)
{
    while (!c->dead && c->out.begin < c->out.end) {
        ssize_t n = send(c->watch.fd, c->out.data + c->out.begin,
                         c->out.end - c->out.begin, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            store_connection_kill(c);
            return;
        }
        store_bytes_consume(&c->out, (size_t)n);
    }
    crystal_watch_events(&c->watch, c->out.end - c->out.begin >= STORE_OUT_FULL
                                        ? EPOLLOUT
                                    : c->out.begin < c->out.end ? EPOLLIN | EPOLLOUT
                                                                : EPOLLIN);
}

static void wait_done(struct crystal_store_wait *wait)
{
    static const uint8_t stop_waiting = CRYSTAL_STORE_STOP_WAITING;
    struct store_connection *c = wait->owner;

    if (store_bytes_append(&c->out, &stop_waiting, 1) < 0)
        store_connection_kill(c);
    else if (!c->busy)
        flush(c);
}

/* --- events --- */

/* Handles what is in the connection's own buffer. Output beyond STORE_OUT_FULL stops it
 * until that has drained. */
static int handle_buffered(struct store_connection *c)
{
    size_t used = 1;
    int rc = 0;

    while (rc == 0 && used && c->in.begin < c->in.end) {
        rc = store_handle(c, c->in.data + c->in.begin, c->in.end - c->in.begin, &used);
        store_bytes_consume(&c->in, used);
        flush(c);
    }
    return rc;
}

/* 0, or negative where the connection is to be closed. */
static int read_input(struct store_connection *c)
{
    struct crystal_store *s = c->store;
    int direct = c->in.begin == c->in.end;
    size_t used = 0;
    ssize_t n;
    int rc;

    if (!direct && store_bytes_reserve(&c->in, STORE_READ_BYTES) < 0)
        return -ENOMEM;
    n = recv(c->watch.fd, direct ? s->scratch : c->in.data + c->in.end,
             STORE_READ_BYTES, MSG_DONTWAIT);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    if (n == 0)
        return -ECONNRESET;
    if (!direct) {
        c->in.end += (size_t)n;
        return handle_buffered(c);
    }
    rc = store_handle(c, s->scratch, (size_t)n, &used);
    flush(c);
    if (rc == 0 && used < (size_t)n) {
        rc = store_bytes_append(&c->in, s->scratch + used, (size_t)n - used);
        if (rc == 0)
            rc = handle_buffered(c);
    }
    return rc;
}

static void on_connection(void *context, uint32_t events)
{
    struct store_connection *c = context;
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
    struct store_connection *c = calloc(1, sizeof *c);
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
    while ((rc = crystal_accept(s->listen_fd, s->access, "store", &fd)) == 0)
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
    struct store_bytes all; /* u64 length, key; ... */
};

static void collect_missing(void *context, const void *key, size_t key_bytes)
{
    struct missing_keys *m = context;
    uint64_t bytes = key_bytes;

    /* Out of memory: the rest is asked for by the next reason to ask. */
    if (store_bytes_reserve(&m->all, sizeof bytes + key_bytes) < 0)
        return;
    (void)store_bytes_append(&m->all, &bytes, sizeof bytes);
    (void)store_bytes_append(&m->all, key, key_bytes);
}

void crystal_store_each_waiting(const struct crystal_store *store,
                                void (*fn)(void *context, uint32_t pid, const void *key,
                                           size_t key_bytes, uint64_t since_ns),
                                void *context)
{
    for (const struct store_connection *c = store->connections; c; c = c->next) {
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
        (void)store_has(store, crystal_store_take_string(&at));
    free(m.all.data);
}
