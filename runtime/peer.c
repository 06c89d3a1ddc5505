/* See peer.h. The request and answer of sock_diag are those of linux/inet_diag.h: with
 * both addresses and ports given, the answer is one socket or an error. */
#include "config.h"

#include "runtime/peer.h"

#include "runtime/address.h"
#include "runtime/log.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_BYTES = 1024, LINE_BYTES = 512 };
/* The kernel writes its files of sockets in pieces: where many come and go meanwhile,
 * one that is there all the time may be missing. */
enum { PROC_TRIES = 5 };

struct request {
    struct nlmsghdr head;
    struct inet_diag_req_v2 body;
};

static void put_address(const struct in6_addr *address, int is_four, __be32 *ret)
{
    if (is_four)
        memcpy(ret, address->s6_addr + 12, 4);
    else
        memcpy(ret, address, sizeof *address);
}

static void make_request(const struct crystal_peer_socket *s, struct request *ret)
{
    int is_four = IN6_IS_ADDR_V4MAPPED(&s->own) && IN6_IS_ADDR_V4MAPPED(&s->other);
    struct inet_diag_sockid *id = &ret->body.id;

    memset(ret, 0, sizeof *ret);
    ret->head.nlmsg_len = sizeof *ret;
    ret->head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    ret->head.nlmsg_flags = NLM_F_REQUEST;
    ret->body.sdiag_family = is_four ? AF_INET : AF_INET6;
    ret->body.sdiag_protocol = IPPROTO_TCP;
    ret->body.idiag_states = UINT32_MAX;
    id->idiag_sport = htons(s->own_port);
    id->idiag_dport = htons(s->other_port);
    put_address(&s->own, is_four, id->idiag_src);
    put_address(&s->other, is_four, id->idiag_dst);
    id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
}

/* A socket that its process has closed goes on for a while. Older kernels then say that
 * it is root's (Linux 6.18 does not). */
static int owner(uint64_t inode, uid_t uid, uid_t *ret)
{
    *ret = uid;
    return inode ? 0 : -ENOTCONN;
}

static int read_answer(const char *answer, size_t got, uid_t *ret)
{
    struct nlmsghdr head;
    struct nlmsgerr fault;
    struct inet_diag_msg found;

    if (got < sizeof head)
        return -EPROTO;
    memcpy(&head, answer, sizeof head);
    if (head.nlmsg_type == NLMSG_ERROR && got >= sizeof head + sizeof fault) {
        memcpy(&fault, answer + sizeof head, sizeof fault);
        return fault.error < 0 ? fault.error : -EPROTO;
    }
    if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || got < sizeof head + sizeof found)
        return -EPROTO;
    memcpy(&found, answer + sizeof head, sizeof found);
    return owner(found.idiag_inode, found.idiag_uid, ret);
}

int crystal_peer_ask_kernel(const struct crystal_peer_socket *s, uid_t *ret)
{
    struct request request;
    char answer[ANSWER_BYTES];
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    int code = 0;
    ssize_t got = 0;

    if (fd < 0)
        return -errno;
    make_request(s, &request);
    if (send(fd, &request, sizeof request, 0) != sizeof request ||
        (got = recv(fd, answer, sizeof answer, MSG_DONTWAIT)) < 0)
        code = errno ? -errno : -EPROTO;
    if (!code)
        code = read_answer(answer, (size_t)got, ret);
    (void)close(fd); /* it has told all */
    return code;
}

/* "0100007F:1F90", 8 or 32 digits of address: words of the host's byte order. */
static int parse_end(const char *text, struct in6_addr *ret, uint16_t *ret_port)
{
    const char *colon = strchr(text, ':');
    size_t words = colon ? (size_t)(colon - text) / 8 : 0;
    unsigned word, port;

    if (!colon || (size_t)(colon - text) % 8 || (words != 1 && words != 4))
        return -EPROTO;
    memset(ret, 0, sizeof *ret);
    if (words == 1)
        ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
    for (size_t i = 0; i < words; i++) {
        if (sscanf(text + 8 * i, "%8X", &word) != 1)
            return -EPROTO;
        memcpy(ret->s6_addr + (words == 1 ? 12 : 4 * i), &word, 4);
    }
    if (sscanf(colon + 1, "%4X", &port) != 1)
        return -EPROTO;
    *ret_port = (uint16_t)port;
    return 0;
}

static int line_is(const char *own, const char *other,
                   const struct crystal_peer_socket *s)
{
    struct crystal_peer_socket line = {0};

    return !parse_end(own, &line.own, &line.own_port) &&
           !parse_end(other, &line.other, &line.other_port) &&
           line.own_port == s->own_port && line.other_port == s->other_port &&
           memcmp(&line.own, &s->own, sizeof s->own) == 0 &&
           memcmp(&line.other, &s->other, sizeof s->other) == 0;
}

/* -ENOENT: not in this file. */
static int ask_file(const char *path, const struct crystal_peer_socket *s, uid_t *ret)
{
    char text[LINE_BYTES], own[64], other[64];
    unsigned long long inode;
    unsigned uid;
    int code = -ENOENT;
    FILE *file = fopen(path, "re");

    if (!file)
        return -errno;
    while (code == -ENOENT && fgets(text, sizeof text, file))
        if (sscanf(text, " %*u: %63s %63s %*s %*s %*s %*s %u %*u %llu", own, other,
                   &uid, &inode) == 4 &&
            line_is(own, other, s))
            code = owner(inode, uid, ret);
    (void)fclose(file); /* only read */
    return code;
}

int crystal_peer_ask_proc(const struct crystal_peer_socket *s, uid_t *ret)
{
    int code = -ENOENT;

    for (int i = 0; i < PROC_TRIES && code == -ENOENT; i++) {
        code = ask_file("/proc/net/tcp", s, ret);
        if (code == -ENOENT)
            code = ask_file("/proc/net/tcp6", s, ret);
    }
    return code;
}

static int end_of(const struct sockaddr_storage *sa, struct in6_addr *ret,
                  uint16_t *ret_port)
{
    const void *any = sa;

    *ret_port =
        ntohs(sa->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)any)->sin6_port
                                        : ((const struct sockaddr_in *)any)->sin_port);
    return crystal_address_from(any, ret);
}

/* The socket at the other end. */
static int other_end(int fd, struct crystal_peer_socket *ret)
{
    struct sockaddr_storage peer = {0}, own = {0};
    socklen_t peer_bytes = sizeof peer, own_bytes = sizeof own;
    int code;

    if (getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) < 0 ||
        getsockname(fd, (struct sockaddr *)&own, &own_bytes) < 0)
        return -errno;
    code = end_of(&peer, &ret->own, &ret->own_port);
    return code ? code : end_of(&own, &ret->other, &ret->other_port);
}

/* Whether -ENOENT of the kernel means that there is no such socket, as it knows our end
 * of the same connection; a kernel without this part of sock_diag says -ENOENT of every
 * socket. */
static int kernel_knows_all(const struct crystal_peer_socket *other)
{
    static atomic_int knows; /* once it has answered it goes on doing so */
    const struct crystal_peer_socket own = {.own = other->other,
                                            .own_port = other->other_port,
                                            .other = other->own,
                                            .other_port = other->own_port};
    uid_t uid;

    if (!atomic_load_explicit(&knows, memory_order_relaxed) &&
        crystal_peer_ask_kernel(&own, &uid) == 0)
        atomic_store_explicit(&knows, 1, memory_order_relaxed);
    return atomic_load_explicit(&knows, memory_order_relaxed);
}

int crystal_peer_uid(int fd, uid_t *ret)
{
    struct crystal_peer_socket s;
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    int code = other_end(fd, &s), is_here;

    if (code == -EAFNOSUPPORT) {
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
            return -errno;
        *ret = peer.uid;
        return 0;
    }
    if (code)
        return code;
    is_here =
        crystal_address_is_loopback(&s.own) || !memcmp(&s.own, &s.other, sizeof s.own);
    code = crystal_peer_ask_kernel(&s, ret);
    if (code == -ENOENT ? is_here && !kernel_knows_all(&s) : code && code != -ENOTCONN)
        code = crystal_peer_ask_proc(&s, ret); /* long where there are many sockets */
    if (code == -ENOENT)
        code = is_here ? -ENOTCONN : -EREMOTE;
    return code;
}

static int is_own(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

static int refuse(const char *component, const char *what)
{
    static atomic_uint refused_count; /* of this process */
    unsigned before =
        atomic_fetch_add_explicit(&refused_count, 1, memory_order_relaxed);

    if ((before & (before + 1)) == 0)
        crystal_log(CRYSTAL_LOG_WARNING, component, "refused a connection %s", what);
    return 0;
}

int crystal_peer_admit(int fd, const char *component, enum crystal_peer_gone gone)
{
    char what[128];
    uid_t uid = 0;
    int code = crystal_peer_uid(fd, &uid);

    if (code == -EREMOTE)
        return 1;
    if ((code == 0 || code == -ENOTCONN) && !is_own(uid)) {
        (void)snprintf(what, sizeof what,
                       "by a process of user %u on this machine; only the job's own "
                       "user may connect",
                       (unsigned)uid);
        return refuse(component, what);
    }
    if (code == -ENOTCONN)
        return gone == CRYSTAL_PEER_GONE_MAY;
    if (code == 0)
        return 1;
    (void)snprintf(what, sizeof what, "since it cannot be learned whose it is: %s",
                   strerror(-code));
    return refuse(component, what);
}
