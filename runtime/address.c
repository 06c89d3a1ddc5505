/* See address.h. */
#include "config.h"

#include "runtime/address.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

int crystal_address_from(const struct sockaddr *sa, struct in6_addr *ret)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (sa->sa_family == AF_INET6) {
        memcpy(ret, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr,
               sizeof *ret);
        return 0;
    }
    if (sa->sa_family != AF_INET)
        return -EAFNOSUPPORT;
    memcpy(ret->s6_addr, mapped, sizeof mapped);
    memcpy(ret->s6_addr + 12, &((const struct sockaddr_in *)(const void *)sa)->sin_addr,
           4);
    return 0;
}

int crystal_address_is_loopback(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) ||
           (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

int crystal_address_of(int fd, int is_peer, struct in6_addr *ret)
{
    struct sockaddr_storage sa;
    socklen_t bytes = sizeof sa;

    if ((is_peer ? getpeername(fd, (struct sockaddr *)&sa, &bytes)
                 : getsockname(fd, (struct sockaddr *)&sa, &bytes)) < 0)
        return -errno;
    return crystal_address_from((struct sockaddr *)&sa, ret);
}
