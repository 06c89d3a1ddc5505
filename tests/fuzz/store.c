/* The store takes any bytes from a connection, with a second one that waits. */
#include "config.h"

#include "runtime/store.h"
#include "runtime/store_rules.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct crystal_store *store;

static void missing(void *context, const void *key, size_t key_bytes)
{
    struct crystal_store_match m;

    (void)context;
    crystal_store_rules_match(key, key_bytes, &m);
    if (m.effect == CRYSTAL_STORE_ID && crystal_store_rules_setter(&m, 4) < 4)
        (void)crystal_store_set(store, key, key_bytes, "made", 4);
}

static int drops(void *context, const void *key, size_t key_bytes, const void *value,
                 size_t value_bytes)
{
    struct crystal_store_match m;

    (void)context;
    (void)value;
    crystal_store_rules_match(key, key_bytes, &m);
    if (m.effect == CRYSTAL_STORE_MEMBERS && value_bytes < 100)
        crystal_store_ask_again(store);
    return m.effect == CRYSTAL_STORE_NEVER;
}

static int connect_pair(void)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0 ||
        crystal_store_adopt(store, pair[0], NULL) < 0)
        abort();
    return pair[1];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* VALIDATE, then WAIT for "/k" and "/q". */
    static const uint8_t waiter_says[] = {
        0, 0xce, 0xf7, 0x85, 0x3c, 6,   2,   0, 0, 0, 0, 0, 0, 0, 2, 0,   0,
        0, 0,    0,    0,    0,    '/', 'k', 2, 0, 0, 0, 0, 0, 0, 0, '/', 'q'};
    static const struct crystal_store_hooks hooks = {NULL, missing, drops, NULL};
    struct crystal_loop *loop = crystal_loop_create(NULL);
    uint8_t replies[65536];
    int waiter, fd;

    store = loop ? crystal_store_create(loop, -1, NULL, &hooks, NULL) : NULL;
    if (!store)
        abort();
    waiter = connect_pair();
    fd = connect_pair();
    if (write(waiter, waiter_says, sizeof waiter_says) < 0)
        abort();
    for (size_t at = 0; at < size;) {
        /* In pieces, so that requests are split anywhere. */
        size_t part = 1 + (size_t)data[at] * 37;
        ssize_t n;

        if (part > size - at)
            part = size - at;
        n = send(fd, data + at, part, MSG_NOSIGNAL);
        if (n <= 0)
            break; /* closed by the store */
        at += (size_t)n;
        for (int i = 0; i < 3; i++)
            (void)crystal_loop_step(loop, 0, NULL);
        while (recv(fd, replies, sizeof replies, 0) > 0)
            continue;
    }
    (void)close(waiter);
    (void)crystal_loop_step(loop, 0, NULL);
    (void)close(fd);
    crystal_store_destroy(store);
    crystal_loop_destroy(loop);
    return 0;
}
