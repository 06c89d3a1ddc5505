/* A small blocking client of the store's protocol for tests and benchmarks. */
#ifndef CRYSTAL_TESTS_STORE_CLIENT_H
#define CRYSTAL_TESTS_STORE_CLIENT_H

#include "runtime/store_wire.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct request {
    uint8_t *data;
    size_t bytes, capacity;
};

static inline void request_raw(struct request *r, const void *data, size_t bytes)
{
    if (r->capacity - r->bytes < bytes) {
        r->capacity = (r->bytes + bytes) * 2;
        r->data = realloc(r->data, r->capacity);
        if (!r->data)
            abort();
    }
    if (bytes)
        memcpy(r->data + r->bytes, data, bytes);
    r->bytes += bytes;
}

static inline void request_begin(struct request *r, unsigned opcode)
{
    uint8_t code = (uint8_t)opcode;

    r->bytes = 0;
    request_raw(r, &code, 1);
}

static inline void request_u64(struct request *r, uint64_t v)
{
    request_raw(r, &v, sizeof v);
}

static inline void request_bytes(struct request *r, const void *data, size_t bytes)
{
    request_u64(r, bytes);
    request_raw(r, data, bytes);
}

static inline void request_text(struct request *r, const char *text)
{
    request_bytes(r, text, strlen(text));
}

static inline int send_whole(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);

        if (n <= 0)
            return -1;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static inline int receive_whole(int fd, void *data, size_t bytes)
{
    char *at = data;

    while (bytes) {
        ssize_t n = recv(fd, at, bytes, 0);

        if (n <= 0)
            return -1;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static inline int request_send(const struct request *r, int fd)
{
    return send_whole(fd, r->data, r->bytes);
}

/* Connects to a host, NULL: this one's loopback; no VALIDATE yet. -1 on failure. */
static inline int store_dial_host(const char *host, uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct timeval limit = {20, 0}; /* no test waits for ever */
    struct addrinfo *found = NULL;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (host && !getaddrinfo(host, NULL, &hints, &found) && found) {
        a.sin_addr = ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr;
        freeaddrinfo(found);
    }
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static inline int store_dial(uint16_t port)
{
    return store_dial_host(NULL, port);
}

static inline int store_validate(int fd)
{
    uint32_t magic = CRYSTAL_STORE_MAGIC;
    uint8_t hello[5] = {CRYSTAL_STORE_VALIDATE};

    memcpy(hello + 1, &magic, sizeof magic);
    return send_whole(fd, hello, sizeof hello);
}

static inline int store_connect_host(const char *host, uint16_t port)
{
    int fd = store_dial_host(host, port);

    if (fd >= 0)
        (void)store_validate(fd);
    return fd;
}

static inline int store_connect(uint16_t port)
{
    return store_connect_host(NULL, port);
}

/* One request with keys or key-value pairs. */
static inline void store_set(int fd, const char *key, const void *value, size_t bytes)
{
    struct request r = {0};

    request_begin(&r, CRYSTAL_STORE_SET);
    request_text(&r, key);
    request_bytes(&r, value, bytes);
    (void)request_send(&r, fd);
    free(r.data);
}

static inline void store_keys(int fd, unsigned opcode, const char *const *keys,
                              size_t count)
{
    struct request r = {0};

    request_begin(&r, opcode);
    request_u64(&r, count);
    for (size_t i = 0; i < count; i++)
        request_text(&r, keys[i]);
    (void)request_send(&r, fd);
    free(r.data);
}

static inline void store_key(int fd, unsigned opcode, const char *key)
{
    struct request r = {0};

    request_begin(&r, opcode);
    request_text(&r, key);
    (void)request_send(&r, fd);
    free(r.data);
}

static inline int64_t reply_int(int fd)
{
    int64_t v = INT64_MIN;

    (void)receive_whole(fd, &v, sizeof v);
    return v;
}

/* -1 where nothing came. */
static inline int reply_byte(int fd)
{
    uint8_t v;

    return receive_whole(fd, &v, 1) < 0 ? -1 : v;
}

/* Caller frees; terminated by a zero; NULL where nothing came. */
static inline char *reply_text(int fd, size_t *ret_bytes)
{
    uint64_t bytes;
    char *text;

    if (receive_whole(fd, &bytes, sizeof bytes) < 0 || bytes > 1U << 30)
        return NULL;
    text = calloc(1, bytes + 1);
    if (text && receive_whole(fd, text, bytes) < 0) {
        free(text);
        return NULL;
    }
    if (ret_bytes)
        *ret_bytes = bytes;
    return text;
}

static inline int64_t store_add(int fd, const char *key, int64_t delta)
{
    struct request r = {0};

    request_begin(&r, CRYSTAL_STORE_ADD);
    request_text(&r, key);
    request_raw(&r, &delta, sizeof delta);
    (void)request_send(&r, fd);
    free(r.data);
    return reply_int(fd);
}

static inline char *store_get(int fd, const char *key, size_t *ret_bytes)
{
    store_key(fd, CRYSTAL_STORE_GET, key);
    return reply_text(fd, ret_bytes);
}

/* WAIT, then GET, as PyTorch's client does. */
static inline char *store_wait_get(int fd, const char *key, size_t *ret_bytes)
{
    store_keys(fd, CRYSTAL_STORE_WAIT, &key, 1);
    if (reply_byte(fd) != CRYSTAL_STORE_STOP_WAITING)
        return NULL;
    return store_get(fd, key, ret_bytes);
}

/* 1 where nothing arrives within 100 ms. */
static inline int store_is_quiet(int fd)
{
    struct timeval soon = {0, 100000}, limit = {20, 0};
    uint8_t byte;
    ssize_t n;

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    n = recv(fd, &byte, 1, MSG_PEEK);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return n < 0;
}

/* 1 where the server closes the connection. */
static inline int store_is_closed(int fd)
{
    uint8_t byte;

    return recv(fd, &byte, 1, 0) <= 0;
}

#endif
