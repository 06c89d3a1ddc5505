/* See link_dial.h. */
#include "config.h"

#include "replay/link_dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define SEND_S  10   /* a node that takes nothing for so long is lost ... */
#define LOST_MS 8000 /* ... or whose machine does not say that it has something */

void crystal_link_socket(int fd)
{
    const struct timeval limit = {SEND_S, 0}; /* connect's, too */
    const unsigned lost_ms = LOST_MS;

    crystal_message_socket(fd);
    /* else a network that has gone silent is noticed half a minute later */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_ms, sizeof lost_ms);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* --- addresses and greetings --- */

socklen_t crystal_link_address(const struct crystal_msg_node *node,
                               struct sockaddr_storage *ret)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)node->port)};
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)node->port)};

    memset(ret, 0, sizeof *ret);
    memcpy(&six.sin6_addr, node->address, sizeof six.sin6_addr);
    if (!IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
        memcpy(ret, &six, sizeof six);
        return sizeof six;
    }
    memcpy(&four.sin_addr, node->address + 12, 4);
    memcpy(ret, &four, sizeof four);
    return sizeof four;
}

void crystal_link_hello(const uint8_t token[CRYSTAL_TOKEN_BYTES],
                        enum crystal_link_role role, uint32_t lrank,
                        uint8_t ret[CRYSTAL_LINK_HELLO_BYTES])
{
    struct crystal_message_head head;
    struct crystal_msg_hello hello = {
        .role = role, .lrank = lrank, .pid = (uint32_t)getpid()};

    memcpy(hello.token, token, sizeof hello.token);
    crystal_message_head_init(&head, CRYSTAL_MSG_HELLO, 0, sizeof hello);
    memcpy(ret, &head, sizeof head);
    memcpy(ret + sizeof head, &hello, sizeof hello);
}

int crystal_link_dial(const struct crystal_msg_node *node,
                      const uint8_t token[CRYSTAL_TOKEN_BYTES],
                      enum crystal_link_role role, uint32_t lrank, int *ret_fd,
                      struct crystal_error *err)
{
    uint8_t hello[CRYSTAL_LINK_HELLO_BYTES];
    struct sockaddr_storage address;
    socklen_t bytes = crystal_link_address(node, &address);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), code;

    if (fd < 0)
        return crystal_error_set(err, errno, "node %u: cannot make a socket: %s",
                                 node->node, strerror(errno));
    crystal_link_socket(fd);
    crystal_link_hello(token, role, lrank, hello);
    if (connect(fd, (const struct sockaddr *)&address, bytes) < 0 ||
        send(fd, hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
        code = crystal_error_set(err, errno,
                                 "cannot connect to the agent of node %u: %s; see log/ "
                                 "in the job directory",
                                 node->node, strerror(errno));
        (void)close(fd); /* nobody has it */
        return code;
    }
    *ret_fd = fd;
    return 0;
}
