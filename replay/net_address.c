/* Choosing the address to listen at. See net_address.h. */
#include "config.h"

#include "replay/net_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

int crystal_net_ifname_match(const char *list, const char *name)
{
    int is_not = *list == '^', is_whole, matches = 0;

    list += is_not;
    is_whole = *list == '=';
    list += is_whole;
    while (*list && !matches) {
        size_t length = strcspn(list, ",");

        matches = length && strncmp(list, name, length) == 0 &&
                  (!is_whole || name[length] == 0);
        list += length + (list[length] == ',');
    }
    return matches != is_not;
}

static int is_usable(const struct ifaddrs *at, int family)
{
    const struct sockaddr_in6 *six;

    if (!at->ifa_addr || !(at->ifa_flags & IFF_UP) || at->ifa_addr->sa_family != family)
        return 0;
    six = (const struct sockaddr_in6 *)(const void *)at->ifa_addr;
    return family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr);
}

static int address_of(const char *list, struct sockaddr_storage *ret,
                      socklen_t *ret_bytes, struct crystal_error *err)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *all, *at = NULL;
    socklen_t bytes = 0;

    if (getifaddrs(&all) < 0)
        return crystal_error_set(err, errno, "cannot list network interfaces: %s",
                                 strerror(errno));
    for (int i = 0; i < 2 && !at; i++) {
        bytes = families[i] == AF_INET ? sizeof(struct sockaddr_in)
                                       : sizeof(struct sockaddr_in6);
        for (at = all; at; at = at->ifa_next)
            if (is_usable(at, families[i]) &&
                crystal_net_ifname_match(list, at->ifa_name))
                break;
    }
    if (at) {
        memset(ret, 0, sizeof *ret);
        memcpy(ret, at->ifa_addr, bytes);
        *ret_bytes = bytes;
    }
    freeifaddrs(all);
    if (!at)
        return crystal_error_set(err, ENODEV,
                                 "NCCL_SOCKET_IFNAME: no interface that is up matches "
                                 "'%s'; unset it or name one of this node",
                                 list);
    return 0;
}

int crystal_net_address(struct sockaddr_storage *ret, socklen_t *ret_bytes,
                        struct crystal_error *err)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME");
    struct sockaddr_in loopback = {.sin_family = AF_INET,
                                   .sin_addr = {htonl(INADDR_LOOPBACK)}};

    if (list && *list)
        return address_of(list, ret, ret_bytes, err);
    memset(ret, 0, sizeof *ret);
    memcpy(ret, &loopback, sizeof loopback);
    *ret_bytes = sizeof loopback;
    return 0;
}
