/* Whose process is at the other end: asked of the kernel in both ways, for IPv4, IPv6,
 * IPv4 at a socket of IPv6 and unix sockets; of another user's process, which is let go
 * with a line in the log, and of one that has gone. */
#include "config.h"

#include "runtime/listen.h"
#include "runtime/peer.h"

#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { OTHER_UID = 65534 };

static int listen_fd = -1;
static uint16_t port;

static void begin(void)
{
    CHECK_EQ(crystal_listen(0, "x", &listen_fd, &port, NULL), 0);
}

static void end(void)
{
    close(listen_fd);
}

/* A connected socket, -1 where there is no such address here. */
static int dial(int family)
{
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_port = htons(port),
                               .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_port = htons(port),
                               .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), code;

    if (fd < 0)
        return -1;
    code = family == AF_INET ? connect(fd, (struct sockaddr *)&four, sizeof four)
                             : connect(fd, (struct sockaddr *)&six, sizeof six);
    if (code == 0)
        return fd;
    close(fd);
    return -1;
}

/* The next connection, allowed or not. */
static int take(void)
{
    struct pollfd wait = {.fd = listen_fd, .events = POLLIN};

    CHECK_EQ(poll(&wait, 1, 30000), 1);
    return accept(listen_fd, NULL, NULL);
}

static struct crystal_peer_socket socket_of(int fd)
{
    struct crystal_peer_socket s;
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_bytes = sizeof own, other_bytes = sizeof other;

    CHECK_EQ(getsockname(fd, (struct sockaddr *)&own, &own_bytes), 0);
    CHECK_EQ(getpeername(fd, (struct sockaddr *)&other, &other_bytes), 0);
    CHECK_EQ(crystal_address_from((struct sockaddr *)&own, &s.own), 0);
    CHECK_EQ(crystal_address_from((struct sockaddr *)&other, &s.other), 0);
    /* at the same place in both families */
    s.own_port = ntohs(((struct sockaddr_in *)(void *)&own)->sin_port);
    s.other_port = ntohs(((struct sockaddr_in *)(void *)&other)->sin_port);
    return s;
}

static void own_process(void)
{
    static const int families[] = {AF_INET, AF_INET6};

    begin();
    for (int i = 0; i < 2; i++) {
        int fd = dial(families[i]), got;
        struct crystal_peer_socket s;
        uid_t uid = 1;

        if (fd < 0 && i == 1)
            continue; /* no IPv6 here */
        CHECK(fd >= 0);
        got = take();
        CHECK_EQ(crystal_peer_uid(got, &uid), 0);
        CHECK_EQ(uid, geteuid());
        s = socket_of(fd);
        uid = 1;
        CHECK_EQ(crystal_peer_ask_proc(&s, &uid), 0);
        CHECK_EQ(uid, geteuid());
        uid = 1;
        CHECK_EQ(crystal_peer_ask_kernel(&s, &uid), 0);
        CHECK_EQ(uid, geteuid());
        CHECK_EQ(crystal_peer_admit(got, "test", CRYSTAL_PEER_GONE_MUST_NOT), 1);
        s.own_port ^= 1; /* nobody's */
        CHECK_EQ(crystal_peer_ask_proc(&s, &uid), -ENOENT);
        CHECK_EQ(crystal_peer_ask_kernel(&s, &uid), -ENOENT);
        close(fd);
        close(got);
    }
    end();
}

/* Our end of a connection whose other one, *ret, has said something and is closed. */
static int take_gone(struct crystal_peer_socket *ret)
{
    int fd = dial(AF_INET);

    CHECK(fd >= 0);
    *ret = socket_of(fd);
    CHECK_EQ(send(fd, "x", 1, 0), 1);
    close(fd);
    return take();
}

static void gone(void)
{
    struct crystal_peer_socket s;
    uid_t uid = 1;
    int got;

    begin();
    got = take_gone(&s);
    CHECK_EQ(crystal_peer_uid(got, &uid), -ENOTCONN);
    CHECK_EQ(crystal_peer_ask_proc(&s, &uid), -ENOTCONN);
    CHECK_EQ(crystal_peer_admit(got, "test", CRYSTAL_PEER_GONE_MUST_NOT), 0);
    CHECK_EQ(crystal_peer_admit(got, "test", CRYSTAL_PEER_GONE_MAY), 1);
    close(got);
    end();
}

/* Bytes that this process has read from files until now; what this reads comes on top,
 * *ret_own. */
static long read_bytes(long *ret_own)
{
    char text[512] = "";
    long bytes = -1;
    int fd = open("/proc/self/io", O_RDONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    *ret_own = read(fd, text, sizeof text - 1);
    CHECK_EQ(sscanf(text, "rchar: %ld", &bytes), 1);
    close(fd);
    return bytes;
}

/* In a network of its own that keeps no closed sockets, as a busy machine keeps no more
 * than so many: the peer has left no trace. Only where sock_diag answers. */
static void gone_without_a_trace(void)
{
    uid_t uid = 1;
    struct crystal_peer_socket s;
    long before, after, own;
    int got, limit;

    limit = open("/proc/sys/net/ipv4/tcp_max_tw_buckets", O_WRONLY | O_CLOEXEC);
    CHECK(limit >= 0 && write(limit, "0", 1) == 1);
    close(limit);
    begin();
    got = take_gone(&s);
    for (int i = 0; i < 30000 && crystal_peer_ask_kernel(&s, &uid) != -ENOENT; i++)
        usleep(1000);
    CHECK_EQ(crystal_peer_ask_kernel(&s, &uid), -ENOENT);
    before = read_bytes(&own);
    CHECK_EQ(crystal_peer_uid(got, &uid), -ENOTCONN);
    CHECK_EQ(crystal_peer_admit(got, "test", CRYSTAL_PEER_GONE_MUST_NOT), 0);
    CHECK_EQ(crystal_peer_admit(got, "test", CRYSTAL_PEER_GONE_MAY), 1);
    before += own;
    after = read_bytes(&own);
    CHECK_EQ(after - before, 0); /* no list of all sockets, which may be long */
    close(got);
    end();
}

static int own_network(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd, code;

    if (unshare(CLONE_NEWNET))
        return -1;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    code = ioctl(fd, SIOCSIFFLAGS, &lo);
    close(fd);
    return code;
}

static void unix_socket(void)
{
    int fds[2];
    uid_t uid = 1;

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    CHECK_EQ(crystal_peer_uid(fds[0], &uid), 0);
    CHECK_EQ(uid, geteuid());
    CHECK_EQ(crystal_peer_admit(fds[0], "test", CRYSTAL_PEER_GONE_MUST_NOT), 1);
    close(fds[0]);
    close(fds[1]);
}

/* Another user's process that connects count times and waits until all are closed. */
static pid_t start_stranger(int count)
{
    pid_t pid = fork();
    char byte;

    if (pid)
        return pid;
    if (setgid(OTHER_UID) || setuid(OTHER_UID))
        _exit(2);
    for (int i = 0; i < count; i++) {
        int fd = dial(AF_INET);

        if (fd < 0 || read(fd, &byte, 1) != 0)
            _exit(1);
        close(fd);
    }
    _exit(0);
}

/* Standard error of what stands between these two. */
static int saved = -1, log_fd = -1;
static void log_begin(void)
{
    char path[] = "/tmp/crystal-peer-XXXXXX";

    log_fd = mkstemp(path);
    unlink(path);
    saved = dup(2);
    CHECK(log_fd >= 0 && saved >= 0 && dup2(log_fd, 2) == 2);
}
static void log_end(char *text, size_t bytes)
{
    ssize_t got;

    CHECK_EQ(dup2(saved, 2), 2);
    got = pread(log_fd, text, bytes - 1, 0);
    text[got > 0 ? got : 0] = 0;
    close(saved);
    close(log_fd);
}

static void another_user(void)
{
    static const char line[] = "crystal: test: refused a connection by a process of "
                               "user 65534 on this machine; only the job's own user "
                               "may connect\n";
    char text[4096], want[4096];
    int status = 1, fd, got = -1, code;
    pid_t stranger;

    begin();
    log_begin();
    stranger = start_stranger(5);
    CHECK(stranger > 0);
    for (int i = 0; i < 30000 && waitpid(stranger, &status, WNOHANG) == 0; i++) {
        CHECK_EQ(crystal_accept(listen_fd, NULL, "test", &got), -EAGAIN);
        usleep(1000);
    }
    fd = dial(AF_INET); /* the next one of ours is served */
    for (int i = 0; i < 30000; i++) {
        code = crystal_accept(listen_fd, NULL, "test", &got);
        if (code != -EAGAIN)
            break;
        usleep(1000);
    }
    log_end(text, sizeof text);
    CHECK_EQ(status, 0);
    CHECK_EQ(code, 0);
    /* of five the first, second and fourth */
    snprintf(want, sizeof want, "%s%s%s", line, line, line);
    CHECK_STR(text, want);
    close(fd);
    close(got);
    end();
}

int main(void)
{
    check_begin();
    CHECK_RUN(own_process);
    CHECK_RUN(gone);
    CHECK_RUN(unix_socket);
    if (geteuid() == 0)
        CHECK_RUN(another_user);
    if (geteuid() == 0 && own_network() == 0) /* the last one stays in it */
        CHECK_RUN(gone_without_a_trace);
    return check_end();
}
