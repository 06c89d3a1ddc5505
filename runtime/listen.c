/* Listening sockets and access lists. See listen.h. */
#include "config.h"

#include "runtime/listen.h"

#include "runtime/message.h"
#include "runtime/peer.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct crystal_access {
    size_t count;
    struct in6_addr *addresses; /* IPv4 as ::ffff:a.b.c.d */
};

static int access_add(struct crystal_access *access, const char *name,
                      struct crystal_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    int rc = getaddrinfo(name, NULL, &hints, &list);

    if (rc != 0)
        return crystal_error_set(err, EINVAL, "host '%s': %s", name, gai_strerror(rc));
    rc = 0;
    for (struct addrinfo *a = list; a && rc == 0; a = a->ai_next) {
        struct in6_addr *more =
            realloc(access->addresses, (access->count + 1) * sizeof *more);

        if (!more) {
            rc = crystal_error_set(err, ENOMEM, "out of memory");
            break;
        }
        access->addresses = more;
        if (crystal_address_from(a->ai_addr, &more[access->count]) == 0)
            access->count++;
    }
    freeaddrinfo(list);
    return rc;
}

struct crystal_access *crystal_access_create(const char *names,
                                             struct crystal_error *err)
{
    struct crystal_access *access = calloc(1, sizeof *access);
    char *copy = strdup(names ? names : ""), *rest = NULL;

    if (!access || !copy) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        goto err_free;
    }
    for (char *name = strtok_r(copy, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest))
        if (access_add(access, name, err) < 0)
            goto err_free;
    free(copy);
    return access;
err_free:
    free(copy);
    crystal_access_destroy(access);
    return NULL;
}

void crystal_access_destroy(struct crystal_access *access)
{
    if (!access)
        return;
    free(access->addresses);
    free(access);
}

int crystal_access_allows(const struct crystal_access *access, int fd)
{
    struct in6_addr p, l;

    if (crystal_address_of(fd, 1, &p) < 0 || crystal_address_of(fd, 0, &l) < 0)
        return 0;
    if (crystal_address_is_loopback(&p) || memcmp(&p, &l, sizeof p) == 0)
        return 1;
    for (size_t i = 0; access && i < access->count; i++)
        if (memcmp(&p, &access->addresses[i], sizeof p) == 0)
            return 1;
    return 0;
}

static int bind_any(int family, uint16_t port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1, zero = 0, rc, cause;

    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
        rc = bind(fd, (struct sockaddr *)&six, sizeof six);
    } else {
        rc = bind(fd, (struct sockaddr *)&four, sizeof four);
    }
    if (rc == 0)
        rc = listen(fd, SOMAXCONN);
    if (rc == 0)
        return fd;
    cause = errno;
    (void)close(fd);
    return -cause;
}

int crystal_listen(uint16_t port, const char *option, int *ret_fd, uint16_t *ret_port,
                   struct crystal_error *err)
{
    struct sockaddr_storage a;
    socklen_t bytes = sizeof a;
    int fd = bind_any(AF_INET6, port);

    if (fd < 0 && fd != -EADDRINUSE) /* no IPv6 here */
        fd = bind_any(AF_INET, port);
    if (fd == -EADDRINUSE)
        return crystal_error_set(err, EADDRINUSE,
                                 "port %u is in use by another program; choose a free "
                                 "one with %s",
                                 port, option);
    if (fd < 0)
        return crystal_error_set(err, -fd, "cannot listen on port %u: %s", port,
                                 strerror(-fd));
    if (getsockname(fd, (struct sockaddr *)&a, &bytes) < 0) {
        (void)close(fd);
        return crystal_error_set(err, EIO, "cannot learn the port of a socket");
    }
    *ret_fd = fd;
    *ret_port =
        ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&a)->sin6_port
                                      : ((struct sockaddr_in *)(void *)&a)->sin_port);
    return 0;
}

int crystal_listen_within(const struct crystal_ports *ports, int *ret_fd,
                          uint16_t *ret_port, struct crystal_error *err)
{
    uint32_t count = ports->first ? (uint32_t)(ports->last - ports->first) + 1 : 0;
    /* jobs of one node begin at different ports */
    uint32_t begin = count ? (uint32_t)getpid() * 7U % count : 0;

    if (!count)
        return crystal_listen(0, "no option", ret_fd, ret_port, err);
    for (uint32_t i = 0; i < count; i++) {
        uint16_t port = (uint16_t)(ports->first + (begin + i) % count);
        int code = crystal_listen(port, "port_range", ret_fd, ret_port, err);

        if (code != -EADDRINUSE && code != -EACCES)
            return code;
    }
    return crystal_error_set(err, EADDRINUSE,
                             "every port from %u to %u is in use; widen port_range in "
                             "crystal.yaml",
                             ports->first, ports->last);
}

int crystal_accept(int listen_fd, const struct crystal_access *access,
                   const char *component, int *ret_fd)
{
    int fd;

    for (;;) {
        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return errno == EWOULDBLOCK ? -EAGAIN : -errno;
        if (crystal_access_allows(access, fd) &&
            crystal_peer_admit(fd, component, CRYSTAL_PEER_GONE_MUST_NOT))
            break;
        (void)close(fd);
    }
    crystal_message_socket(fd);
    *ret_fd = fd;
    return 0;
}
