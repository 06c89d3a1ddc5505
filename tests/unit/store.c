/* The store server over real sockets: every opcode, waits and queues, limits, who may
 * connect, hooks. */
#include "config.h"

#include "runtime/store.h"

#include "tests/check.h"
#include "tests/unit/store_client.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

struct server {
    struct crystal_loop *loop;
    struct crystal_store *store;
    uint16_t port;
    pthread_t thread;
    atomic_int stop;
};

static void *server_main(void *context)
{
    struct server *s = context;

    while (!atomic_load(&s->stop))
        (void)crystal_loop_step(s->loop, 5, NULL);
    return NULL;
}

static void server_start(struct server *s, const struct crystal_store_hooks *hooks)
{
    struct crystal_error err = {0};
    int fd;

    memset(s, 0, sizeof *s);
    s->loop = crystal_loop_create(&err);
    CHECK(s->loop);
    CHECK_EQ(crystal_listen(0, "--store-port", &fd, &s->port, &err), 0);
    s->store = crystal_store_create(s->loop, fd, NULL, hooks, &err);
    CHECK(s->store);
    CHECK_EQ(pthread_create(&s->thread, NULL, server_main, s), 0);
}

static void server_stop(struct server *s)
{
    atomic_store(&s->stop, 1);
    (void)pthread_join(s->thread, NULL);
    crystal_store_destroy(s->store);
    crystal_loop_destroy(s->loop);
}

static void check_text(char *got, const char *want)
{
    CHECK_STR(got, want);
    free(got);
}

static int64_t count_keys(int fd)
{
    uint8_t code = CRYSTAL_STORE_GETNUMKEYS;

    (void)send_whole(fd, &code, 1);
    return reply_int(fd);
}

static int check_keys(int fd, const char *const *keys, size_t count)
{
    store_keys(fd, CRYSTAL_STORE_CHECK, keys, count);
    return reply_byte(fd);
}

static void values(void)
{
    static const char *const ab[] = {"/a", "/b"};
    struct server s;
    int fd;
    size_t bytes;
    char *value;

    server_start(&s, NULL);
    fd = store_connect(s.port);
    CHECK(fd >= 0);
    CHECK_EQ(count_keys(fd), 0);
    CHECK_EQ(check_keys(fd, ab, 2), CRYSTAL_STORE_NOT_READY);
    store_set(fd, "/a", "one", 3);
    CHECK_EQ(check_keys(fd, ab, 2), CRYSTAL_STORE_NOT_READY);
    store_set(fd, "/b", "\0two", 4);
    CHECK_EQ(check_keys(fd, ab, 2), CRYSTAL_STORE_READY);
    check_text(store_get(fd, "/a", NULL), "one");
    value = store_get(fd, "/b", &bytes);
    CHECK_EQ(bytes, 4);
    CHECK(memcmp(value, "\0two", 4) == 0);
    free(value);
    store_set(fd, "/a", "", 0);
    value = store_get(fd, "/a", &bytes);
    CHECK_EQ(bytes, 0);
    free(value);
    value = store_get(fd, "/none", &bytes);
    CHECK_EQ(bytes, 0);
    free(value);
    CHECK_EQ(count_keys(fd), 2);
    store_key(fd, CRYSTAL_STORE_DELETE_KEY, "/a");
    CHECK_EQ(reply_int(fd), 1);
    store_key(fd, CRYSTAL_STORE_DELETE_KEY, "/a");
    CHECK_EQ(reply_int(fd), 0);
    CHECK_EQ(count_keys(fd), 1);
    (void)close(fd);
    server_stop(&s);
}

static void append(int fd, const char *key, const char *value)
{
    struct request r = {0};

    request_begin(&r, CRYSTAL_STORE_APPEND);
    request_text(&r, key);
    request_text(&r, value);
    (void)request_send(&r, fd);
    free(r.data);
}

static char *compare_set(int fd, const char *key, const char *expected,
                         const char *desired)
{
    struct request r = {0};

    request_begin(&r, CRYSTAL_STORE_COMPARE_SET);
    request_text(&r, key);
    request_text(&r, expected);
    request_text(&r, desired);
    (void)request_send(&r, fd);
    free(r.data);
    return reply_text(fd, NULL);
}

static void counters_and_changes(void)
{
    struct server s;
    int fd;

    server_start(&s, NULL);
    fd = store_connect(s.port);
    CHECK_EQ(store_add(fd, "/n", 5), 5);
    CHECK_EQ(store_add(fd, "/n", -7), -2);
    check_text(store_get(fd, "/n", NULL), "-2");
    store_set(fd, "/n", "40", 2);
    CHECK_EQ(store_add(fd, "/n", 2), 42);
    append(fd, "/x", "ab");
    append(fd, "/x", "cd");
    check_text(store_get(fd, "/x", NULL), "abcd");
    check_text(compare_set(fd, "/c", "old", "new"), "old"); /* missing: echoes */
    check_text(store_get(fd, "/c", NULL), "");
    check_text(compare_set(fd, "/c", "", "first"), "first");
    check_text(compare_set(fd, "/c", "other", "second"), "first");
    check_text(compare_set(fd, "/c", "first", "second"), "second");
    check_text(store_get(fd, "/c", NULL), "second");
    /* A counter that is no number, or overflows, closes the connection. */
    CHECK_EQ(store_add(fd, "/c", 1), INT64_MIN);
    (void)close(fd);
    fd = store_connect(s.port);
    CHECK_EQ(store_add(fd, "/big", INT64_MAX), INT64_MAX);
    CHECK_EQ(store_add(fd, "/big", 1), INT64_MIN);
    (void)close(fd);
    server_stop(&s);
}

static void many_keys_at_once(void)
{
    static const char *const keys[] = {"/k0", "/k1", "/k2"};
    struct request r = {0};
    struct server s;
    int fd;

    server_start(&s, NULL);
    fd = store_connect(s.port);
    request_begin(&r, CRYSTAL_STORE_MULTI_SET);
    request_u64(&r, 3);
    for (int i = 0; i < 3; i++) {
        request_text(&r, keys[i]);
        request_bytes(&r, &"v0v1v2"[2 * i], 2);
    }
    (void)request_send(&r, fd);
    free(r.data);
    store_keys(fd, CRYSTAL_STORE_MULTI_GET, keys, 3);
    check_text(reply_text(fd, NULL), "v0");
    check_text(reply_text(fd, NULL), "v1");
    check_text(reply_text(fd, NULL), "v2");
    CHECK_EQ(count_keys(fd), 3);
    (void)close(fd);
    server_stop(&s);
}

static void waits(void)
{
    static const char *const keys[] = {"/a", "/b", "/a"};
    uint8_t cancel = CRYSTAL_STORE_CANCEL_WAIT;
    uint32_t nonce = 4711, back = 0;
    uint8_t ping[5] = {CRYSTAL_STORE_PING};
    struct server s;
    int waiter, setter;

    server_start(&s, NULL);
    waiter = store_connect(s.port);
    setter = store_connect(s.port);
    store_keys(waiter, CRYSTAL_STORE_WAIT, keys, 0); /* nothing to wait for */
    CHECK_EQ(reply_byte(waiter), CRYSTAL_STORE_STOP_WAITING);
    store_keys(waiter, CRYSTAL_STORE_WAIT, keys, 3);
    CHECK(store_is_quiet(waiter));
    store_set(setter, "/a", "1", 1);
    CHECK(store_is_quiet(waiter));
    CHECK_EQ(store_add(setter, "/b", 1), 1); /* ADD wakes like SET */
    CHECK_EQ(reply_byte(waiter), CRYSTAL_STORE_STOP_WAITING);
    store_keys(waiter, CRYSTAL_STORE_WAIT, keys, 3);
    CHECK_EQ(reply_byte(waiter), CRYSTAL_STORE_STOP_WAITING);

    /* Cancelled: one answer, and later keys wake nobody. */
    store_keys(waiter, CRYSTAL_STORE_WAIT, (const char *const[]){"/later"}, 1);
    (void)send_whole(waiter, &cancel, 1);
    CHECK_EQ(reply_byte(waiter), CRYSTAL_STORE_WAIT_CANCELED);
    store_set(setter, "/later", "", 0);
    CHECK(store_is_quiet(waiter));

    memcpy(ping + 1, &nonce, sizeof nonce);
    (void)send_whole(waiter, ping, sizeof ping);
    CHECK_EQ(receive_whole(waiter, &back, sizeof back), 0);
    CHECK_EQ(back, 4711);

    /* A client that dies while it waits leaves nothing behind. */
    store_keys(waiter, CRYSTAL_STORE_WAIT, (const char *const[]){"/dead"}, 1);
    CHECK(store_is_quiet(waiter));
    (void)close(waiter);
    CHECK_EQ(count_keys(setter), 3);
    store_set(setter, "/dead", "x", 1);
    CHECK_EQ(count_keys(setter), 4);
    (void)close(setter);
    server_stop(&s);
}

static void push(int fd, const char *key, const char *value)
{
    struct request r = {0};

    request_begin(&r, CRYSTAL_STORE_QUEUE_PUSH);
    request_text(&r, key);
    request_text(&r, value);
    (void)request_send(&r, fd);
    free(r.data);
}

static int64_t queue_length(int fd, const char *key)
{
    store_key(fd, CRYSTAL_STORE_QUEUE_LEN, key);
    return reply_int(fd);
}

static void queues(void)
{
    static const char *const q[] = {"/q"};
    struct server s;
    int one, two, three;

    server_start(&s, NULL);
    one = store_connect(s.port);
    two = store_connect(s.port);
    three = store_connect(s.port);
    CHECK_EQ(queue_length(one, "/q"), 0);
    store_key(one, CRYSTAL_STORE_QUEUE_POP, "/q");
    CHECK_EQ(reply_int(one), 0); /* empty: no value follows */
    CHECK_EQ(check_keys(one, q, 1), CRYSTAL_STORE_NOT_READY);
    push(one, "/q", "first");
    push(one, "/q", "second");
    CHECK_EQ(queue_length(one, "/q"), 2);
    CHECK_EQ(check_keys(one, q, 1), CRYSTAL_STORE_READY);
    CHECK_EQ(count_keys(one), 0); /* queues are not counted */
    store_key(one, CRYSTAL_STORE_QUEUE_POP, "/q");
    CHECK_EQ(reply_int(one), 2);
    check_text(reply_text(one, NULL), "first");
    store_key(one, CRYSTAL_STORE_QUEUE_POP, "/q");
    CHECK_EQ(reply_int(one), 1);
    check_text(reply_text(one, NULL), "second");

    /* A push wakes the first waiter only. */
    store_keys(one, CRYSTAL_STORE_WAIT, q, 1);
    CHECK(store_is_quiet(one));
    store_keys(two, CRYSTAL_STORE_WAIT, q, 1);
    CHECK(store_is_quiet(two));
    push(three, "/q", "third");
    CHECK_EQ(reply_byte(one), CRYSTAL_STORE_STOP_WAITING);
    CHECK(store_is_quiet(two));
    push(three, "/q", "fourth");
    CHECK_EQ(reply_byte(two), CRYSTAL_STORE_STOP_WAITING);
    (void)close(one);
    (void)close(two);
    (void)close(three);
    server_stop(&s);
}

static void big_keys_and_values(void)
{
    struct request r = {0};
    char *key = malloc(CRYSTAL_STORE_KEY_MAX + 1);
    char *value = malloc(CRYSTAL_STORE_VALUE_MAX);
    char *got;
    size_t bytes = 0;
    struct server s;
    int fd;

    memset(key, 'k', CRYSTAL_STORE_KEY_MAX);
    key[CRYSTAL_STORE_KEY_MAX] = '\0';
    memset(value, 'v', CRYSTAL_STORE_VALUE_MAX);
    value[CRYSTAL_STORE_VALUE_MAX - 1] = 'w';
    server_start(&s, NULL);
    fd = store_connect(s.port);
    store_set(fd, key, value, CRYSTAL_STORE_VALUE_MAX);
    got = store_get(fd, key, &bytes);
    CHECK_EQ(bytes, CRYSTAL_STORE_VALUE_MAX);
    CHECK(got && memcmp(got, value, bytes) == 0);
    free(got);

    /* 131072 keys in one request; 40 answers of 8 MiB that nobody reads meanwhile. */
    request_begin(&r, CRYSTAL_STORE_CHECK);
    request_u64(&r, CRYSTAL_STORE_COUNT_MAX);
    for (unsigned i = 0; i < CRYSTAL_STORE_COUNT_MAX; i++)
        request_bytes(&r, &i, sizeof i);
    (void)request_send(&r, fd);
    CHECK_EQ(reply_byte(fd), CRYSTAL_STORE_NOT_READY);
    for (int i = 0; i < 40; i++)
        store_key(fd, CRYSTAL_STORE_GET, key);
    for (int i = 0; i < 40; i++) {
        got = reply_text(fd, &bytes);
        CHECK(got && bytes == CRYSTAL_STORE_VALUE_MAX && got[bytes - 1] == 'w');
        free(got);
    }
    (void)close(fd);
    server_stop(&s);
    free(r.data);
    free(key);
    free(value);
}

static void split_anywhere(void)
{
    struct request r = {0}, twice = {0};
    struct server s;
    int fd;

    server_start(&s, NULL);
    fd = store_connect(s.port);
    request_begin(&r, CRYSTAL_STORE_COMPARE_SET);
    request_text(&r, "/split");
    request_text(&r, "");
    request_text(&r, "value");
    for (size_t i = 0; i < r.bytes; i++) {
        (void)send_whole(fd, r.data + i, 1);
        (void)usleep(500);
    }
    check_text(reply_text(fd, NULL), "value");
    /* Two requests and a half in one piece. */
    request_begin(&r, CRYSTAL_STORE_GET);
    request_text(&r, "/split");
    request_raw(&twice, r.data, r.bytes);
    request_raw(&twice, r.data, r.bytes);
    request_raw(&twice, r.data, r.bytes / 4);
    (void)request_send(&twice, fd);
    check_text(reply_text(fd, NULL), "value");
    check_text(reply_text(fd, NULL), "value");
    CHECK(store_is_quiet(fd));
    (void)close(fd);
    server_stop(&s);
    free(r.data);
    free(twice.data);
}

static void bad_requests_close(void)
{
    static const struct {
        const char *what;
        uint8_t bytes[32];
        size_t count;
    } rows[] = {
        {"opcode 17", {17}, 1},
        {"opcode 255", {255}, 1},
        {"key of 8193 bytes", {CRYSTAL_STORE_GET, 1, 0x20}, 9},
        {"key of 2^64 - 1 bytes",
         {CRYSTAL_STORE_GET, 255, 255, 255, 255, 255, 255, 255, 255},
         9},
        {"131073 keys", {CRYSTAL_STORE_WAIT, 1, 0, 2}, 9},
        {"a negative count",
         {CRYSTAL_STORE_MULTI_SET, 255, 255, 255, 255, 255, 255, 255, 255},
         9},
        {"value of 8 MiB + 1",
         {CRYSTAL_STORE_SET, 1, 0, 0, 0, 0, 0, 0, 0, 'k', 1, 0, 0x80},
         18},
        {"VALIDATE with another number", {CRYSTAL_STORE_VALIDATE, 1, 2, 3, 4}, 5},
        {"a second WAIT",
         {CRYSTAL_STORE_WAIT, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
          CRYSTAL_STORE_WAIT, 0, 0, 0, 0, 0, 0, 0, 0},
         26},
    };
    struct server s;
    int fd;

    server_start(&s, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fd = store_connect(s.port);
        (void)send_whole(fd, rows[i].bytes, rows[i].count);
        if (!store_is_closed(fd)) {
            printf("# %s\n", rows[i].what);
            CHECK(0);
        }
        (void)close(fd);
    }
    /* No VALIDATE first. */
    fd = store_dial(s.port);
    store_key(fd, CRYSTAL_STORE_GET, "/a");
    CHECK(store_is_closed(fd));
    (void)close(fd);
    /* The server lives on. */
    fd = store_connect(s.port);
    CHECK_EQ(count_keys(fd), 0);
    (void)close(fd);
    server_stop(&s);
}

/* --- hooks --- */

static struct server *hooked;

static void hook_missing(void *context, const void *key, size_t key_bytes)
{
    (void)context;
    if (key_bytes == 7 && memcmp(key, "/demand", 7) == 0)
        CHECK_EQ(crystal_store_set(hooked->store, key, key_bytes, "made", 4), 0);
}

static int hook_write(void *context, const void *key, size_t key_bytes,
                      const void *value, size_t value_bytes)
{
    (void)context;
    (void)value;
    (void)value_bytes;
    return key_bytes == 6 && memcmp(key, "/never", 6) == 0;
}

static int64_t hook_start(void *context, const void *key, size_t key_bytes)
{
    (void)context;
    return key_bytes == 5 && memcmp(key, "init/", 5) == 0 ? 12 : 0;
}

static void hooks_answer(void)
{
    static const struct crystal_store_hooks hooks = {NULL, hook_missing, hook_write,
                                                     hook_start};
    static const char *const demand[] = {"/demand"}, *const never[] = {"/never"};
    struct server s;
    int fd;

    hooked = &s;
    server_start(&s, &hooks);
    fd = store_connect(s.port);
    store_keys(fd, CRYSTAL_STORE_WAIT, demand, 1);
    CHECK_EQ(reply_byte(fd), CRYSTAL_STORE_STOP_WAITING);
    check_text(store_get(fd, "/demand", NULL), "made");
    store_set(fd, "/never", "x", 1);
    append(fd, "/never", "x");
    CHECK_EQ(store_add(fd, "/never", 1), 1);
    CHECK_EQ(check_keys(fd, never, 1), CRYSTAL_STORE_NOT_READY);
    CHECK_EQ(store_add(fd, "init/", 1), 13);
    CHECK_EQ(store_add(fd, "init/", 1), 14);
    (void)close(fd);
    server_stop(&s);
}

static void only_this_host_and_the_list(void)
{
    struct crystal_error err = {0};
    struct crystal_access *access = crystal_access_create("127.0.0.1,10.0.0.2", &err);

    CHECK(access);
    crystal_access_destroy(access);
    CHECK(!crystal_access_create("10.0.0.1,no such host", &err));
    CHECK_HAS(err.text, "host 'no such host': ");
}

static void port_in_use(void)
{
    struct crystal_error err = {0};
    uint16_t port, again;
    int fd, other;
    char want[64];

    CHECK_EQ(crystal_listen(0, "--store-port", &fd, &port, &err), 0);
    CHECK_EQ(crystal_listen(port, "--store-port", &other, &again, &err), -EADDRINUSE);
    (void)snprintf(want, sizeof want, "port %u is in use by another program", port);
    CHECK_HAS(err.text, want);
    CHECK_HAS(err.text, "--store-port");
    (void)close(fd);
}

int main(void)
{
    check_begin();
    CHECK_RUN(values);
    CHECK_RUN(counters_and_changes);
    CHECK_RUN(many_keys_at_once);
    CHECK_RUN(waits);
    CHECK_RUN(queues);
    CHECK_RUN(big_keys_and_values);
    CHECK_RUN(split_anywhere);
    CHECK_RUN(bad_requests_close);
    CHECK_RUN(hooks_answer);
    CHECK_RUN(only_this_host_and_the_list);
    CHECK_RUN(port_in_use);
    return check_end();
}
