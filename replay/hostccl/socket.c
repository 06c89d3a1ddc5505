/* Bootstrap sockets. Errors are told in the words of the one who waits. */
#include "config.h"

#include "replay/hostccl/socket.h"

#include "runtime/peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABORT_POLL_MS 100
#define BACKLOG       16384

static bool is_aborted(const atomic_bool *abort)
{
    return abort && atomic_load_explicit(abort, memory_order_acquire);
}

/* Waits until fd is ready for events. */
static int wait_ready(int fd, short events, const atomic_bool *abort,
                      struct crystal_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, ABORT_POLL_MS);

        if (is_aborted(abort))
            return crystal_error_set(err, ECANCELED, "the communicator was aborted");
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return crystal_error_set(err, errno, "poll: %s", strerror(errno));
    }
}

static void address_text(const union hostccl_address *address, char *text, size_t bytes)
{
    char host[INET6_ADDRSTRLEN] = "?";

    if (address->any.sa_family == AF_INET6)
        (void)inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host);
    else if (address->any.sa_family == AF_INET)
        (void)inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
    (void)snprintf(text, bytes, "%s port %u", host, ntohs(address->v4.sin_port));
}

static socklen_t address_bytes(const union hostccl_address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof address->v6 : sizeof address->v4;
}

static bool name_matches(const char *want, const char *name)
{
    return want[0] == '=' ? strcmp(want + 1, name) == 0
                          : strncmp(want, name, strlen(want)) == 0;
}

int hostccl_address_own(union hostccl_address *ret, struct crystal_error *err)
{
    const char *want = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all, *i;
    union hostccl_address own = {0};

    if (!want || !*want) {
        own.v4.sin_family = AF_INET;
        own.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        *ret = own;
        return 0;
    }
    if (getifaddrs(&all))
        return crystal_error_set(err, errno, "cannot list network interfaces: %s",
                                 strerror(errno));
    for (i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
            !name_matches(want, i->ifa_name))
            continue;
        if (i->ifa_addr->sa_family == AF_INET) {
            memcpy(&own.v4, i->ifa_addr, sizeof own.v4);
            break; /* rather than an IPv6 address found before */
        }
        if (i->ifa_addr->sa_family == AF_INET6 && !own.any.sa_family)
            memcpy(&own.v6, i->ifa_addr, sizeof own.v6);
    }
    freeifaddrs(all);
    if (!own.any.sa_family)
        return crystal_error_set(
            err, ENODEV, "NCCL_SOCKET_IFNAME=%s matches no interface with an address",
            want);
    *ret = own;
    return 0;
}

int hostccl_listen(const union hostccl_address *own, int *ret_fd,
                   union hostccl_address *ret_address, struct crystal_error *err)
{
    union hostccl_address bound = {0};
    socklen_t bytes = sizeof bound;
    int one = 1;
    int fd = socket(own->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return crystal_error_set(err, errno, "socket: %s", strerror(errno));
    /* a port that an old connection still blocks will do */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, &own->any, address_bytes(own)) || listen(fd, BACKLOG) ||
        getsockname(fd, &bound.any, &bytes)) {
        int code = errno;

        (void)close(fd); /* nothing to lose */
        return crystal_error_set(err, code, "cannot listen for the bootstrap: %s",
                                 strerror(code));
    }
    *ret_fd = fd;
    *ret_address = bound;
    return 0;
}

/* Waits for a connect that is under way. Returns its errno, 0 where it succeeded, or
 * negative where waiting failed. */
static int finish_connect(int fd, const atomic_bool *abort, struct crystal_error *err)
{
    int code = 0, result = wait_ready(fd, POLLOUT, abort, err);
    socklen_t bytes = sizeof code;

    if (result)
        return result;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes))
        return errno;
    return code;
}

int hostccl_dial(const union hostccl_address *address, uint64_t magic,
                 const atomic_bool *abort, int *ret_fd, struct crystal_error *err)
{
    struct hostccl_handshake shake = {.magic = magic, .kind = HOSTCCL_SOCKET_BOOTSTRAP};
    int family = address->any.sa_family, one = 1, fd, result = 0;
    char text[80];

    if (family != AF_INET && family != AF_INET6)
        return crystal_error_set(err, EINVAL, "a peer's address has family %d", family);
    fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return crystal_error_set(err, errno, "socket: %s", strerror(errno));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* slower only */
    if (connect(fd, &address->any, address_bytes(address)))
        result = errno == EINPROGRESS ? finish_connect(fd, abort, err) : errno;
    if (result > 0) {
        address_text(address, text, sizeof text);
        result = crystal_error_set(err, result, "cannot connect to %s: %s", text,
                                   strerror(result));
    }
    if (!result)
        result = hostccl_send(fd, &shake, sizeof shake, abort, err);
    if (result)
        (void)close(fd);
    else
        *ret_fd = fd;
    return result;
}

int hostccl_accept(int listen_fd, uint64_t magic, const atomic_bool *abort, int *ret_fd,
                   struct crystal_error *err)
{
    for (;;) {
        struct hostccl_handshake shake;
        struct crystal_error own = {0};
        int one = 1;
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int result;

        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                return crystal_error_set(err, errno, "accept: %s", strerror(errno));
            result = wait_ready(listen_fd, POLLIN, abort, err);
            if (result)
                return result;
            continue;
        }
        if (!crystal_peer_admit(fd, "hostccl", CRYSTAL_PEER_GONE_MAY)) {
            (void)close(fd); /* another user's */
            continue;
        }
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        result = hostccl_recv(fd, &shake, sizeof shake, abort, &own);
        if (!result && shake.magic == magic && shake.kind == HOSTCCL_SOCKET_BOOTSTRAP) {
            *ret_fd = fd;
            return 0;
        }
        (void)close(fd); /* a stranger */
        if (result == -ECANCELED)
            return crystal_error_set(err, ECANCELED, "%s", own.text);
    }
}

/* Moves all count bytes, out or in. */
static int move(int fd, char *next, size_t count, bool is_send,
                const atomic_bool *abort, struct crystal_error *err)
{
    while (count) {
        ssize_t n =
            is_send ? send(fd, next, count, MSG_NOSIGNAL) : recv(fd, next, count, 0);
        int result;

        if (n > 0) {
            next += n;
            count -= (size_t)n;
            continue;
        }
        if (n == 0)
            return crystal_error_set(err, ECONNRESET, "a peer closed its connection");
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return crystal_error_set(err, errno, "%s a peer: %s",
                                     is_send ? "sending to" : "receiving from",
                                     strerror(errno));
        result = wait_ready(fd, is_send ? POLLOUT : POLLIN, abort, err);
        if (result)
            return result;
    }
    return 0;
}

int hostccl_send(int fd, const void *bytes, size_t count, const atomic_bool *abort,
                 struct crystal_error *err)
{
    return move(fd, (char *)(uintptr_t)bytes, count, true, abort, err);
}

int hostccl_recv(int fd, void *bytes, size_t count, const atomic_bool *abort,
                 struct crystal_error *err)
{
    return move(fd, bytes, count, false, abort, err);
}

int hostccl_send_message(int fd, const void *bytes, uint32_t count,
                         const atomic_bool *abort, struct crystal_error *err)
{
    int result = hostccl_send(fd, &count, sizeof count, abort, err);

    return result ? result : hostccl_send(fd, bytes, count, abort, err);
}

int hostccl_recv_message(int fd, void *bytes, uint32_t count, const atomic_bool *abort,
                         struct crystal_error *err)
{
    uint32_t size;
    int result = hostccl_recv(fd, &size, sizeof size, abort, err);

    if (result)
        return result;
    if (size != count)
        return crystal_error_set(err, EPROTO,
                                 "a bootstrap message has %u bytes, not %u; all ranks "
                                 "must speak NCCL 2.28's bootstrap",
                                 size, count);
    return hostccl_recv(fd, bytes, count, abort, err);
}
