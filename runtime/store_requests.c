/* The requests of PyTorch's TCPStore protocol; store_wire.h draws the bytes.
 *
 * Replies: SET, APPEND, MULTI_SET, QUEUE_PUSH none; GET, COMPARE_SET a string;
 * MULTI_GET one string per key; ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN i64; QUEUE_POP
 * i64 length before the pop and, if that is not 0, a string; CHECK, WAIT, CANCEL_WAIT
 * u8; PING its u32. A WAIT is answered when all its keys exist, a cancelled one only as
 * cancelled. A connection has one WAIT at a time and begins with VALIDATE.
 */
#include "config.h"

#include "runtime/clock.h"
#include "runtime/store_state.h"

#include "runtime/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT_MAX      ((size_t)1 << 30)
#define INT64_DIGITS 24

/* --- replies --- */

static int reply_u8(struct store_connection *c, unsigned value)
{
    uint8_t v = (uint8_t)value;

    return store_bytes_append(&c->out, &v, sizeof v);
}

static int reply_i64(struct store_connection *c, int64_t value)
{
    return store_bytes_append(&c->out, &value, sizeof value);
}

static int reply_string(struct store_connection *c, const void *value, size_t bytes)
{
    uint64_t count = bytes;

    if (c->out.end - c->out.begin > OUT_MAX - bytes)
        return -EMSGSIZE;
    if (store_bytes_append(&c->out, &count, sizeof count) < 0)
        return -ENOMEM;
    return store_bytes_append(&c->out, value, bytes);
}

/* --- requests: at stands behind the opcode of a complete request --- */

typedef struct crystal_store_string string;

int store_has(struct crystal_store *s, string key)
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

static int on_validate(struct store_connection *c, const uint8_t *at)
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

static int on_set(struct store_connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);

    return set(c->store, key, crystal_store_take_string(&at));
}

static int on_compare_set(struct store_connection *c, const uint8_t *at)
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

static int get(struct store_connection *c, string key)
{
    size_t bytes = 0;
    const uint8_t *value;

    (void)store_has(c->store, key); /* asks the hook */
    value = crystal_store_keys_get(c->store->keys, key.at, key.bytes, &bytes);
    return reply_string(c, value, value ? bytes : 0);
}

static int on_get(struct store_connection *c, const uint8_t *at)
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

static int on_add(struct store_connection *c, const uint8_t *at)
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

static int on_check(struct store_connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    unsigned answer = CRYSTAL_STORE_READY;

    for (uint64_t i = 0; i < count; i++)
        if (!store_has(c->store, crystal_store_take_string(&at)))
            answer = CRYSTAL_STORE_NOT_READY;
    return reply_u8(c, answer);
}

static int on_wait(struct store_connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    int rc;

    if (c->wait.nodes)
        return -EBADMSG; /* one at a time */
    c->waits_since_ns = crystal_now_ns();
    for (uint64_t i = 0; i < count; i++) {
        string key = crystal_store_take_string(&at);

        if (store_has(c->store, key))
            continue;
        rc = crystal_store_keys_wait(c->store->keys, &c->wait, key.at, key.bytes);
        if (rc < 0)
            return rc;
    }
    return c->wait.nodes ? 0 : reply_u8(c, CRYSTAL_STORE_STOP_WAITING);
}

static int on_cancel_wait(struct store_connection *c, const uint8_t *at)
{
    (void)at;
    crystal_store_keys_unwait(c->store->keys, &c->wait);
    return reply_u8(c, CRYSTAL_STORE_WAIT_CANCELED);
}

static int on_getnumkeys(struct store_connection *c, const uint8_t *at)
{
    (void)at;
    return reply_i64(c, (int64_t)crystal_store_keys_count(c->store->keys));
}

static int on_delete_key(struct store_connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);

    return reply_i64(c, crystal_store_keys_delete(c->store->keys, key.at, key.bytes));
}

static int on_append(struct store_connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);
    string value = crystal_store_take_string(&at);

    if (drops_write(c->store, key, NULL))
        return 0;
    return crystal_store_keys_append(c->store->keys, key.at, key.bytes, value.at,
                                     value.bytes);
}

static int on_multi_get(struct store_connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < count; i++)
        rc = get(c, crystal_store_take_string(&at));
    return rc;
}

static int on_multi_set(struct store_connection *c, const uint8_t *at)
{
    uint64_t count = crystal_store_take_u64(&at);
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        string key = crystal_store_take_string(&at);

        rc = set(c->store, key, crystal_store_take_string(&at));
    }
    return rc;
}

static int on_ping(struct store_connection *c, const uint8_t *at)
{
    const uint8_t *nonce = at; /* PyTorch's clients put their process number there */

    c->pid = crystal_store_take_u32(&nonce);
    return store_bytes_append(&c->out, at, sizeof(uint32_t));
}

static int on_queue_push(struct store_connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);
    string value = crystal_store_take_string(&at);

    return crystal_store_keys_push(c->store->keys, key.at, key.bytes, value.at,
                                   value.bytes);
}

static int on_queue_pop(struct store_connection *c, const uint8_t *at)
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

static int on_queue_len(struct store_connection *c, const uint8_t *at)
{
    string key = crystal_store_take_string(&at);

    return reply_i64(
        c, (int64_t)crystal_store_keys_queued(c->store->keys, key.at, key.bytes));
}

static int (*const handlers[CRYSTAL_STORE_OPCODES])(struct store_connection *c,
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
int store_handle(struct store_connection *c, const uint8_t *data, size_t bytes,
                 size_t *ret_used)
{
    size_t used = 0;
    int rc = 0;

    while (used < bytes && c->out.end - c->out.begin < STORE_OUT_FULL) {
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
