/* See feed_socket.h. */
#include "config.h"

#include "replay/feed_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int crystal_feed_address(const char *directory, uint32_t lrank, struct sockaddr_un *ret,
                         struct crystal_error *err)
{
    memset(ret, 0, sizeof *ret);
    ret->sun_family = AF_UNIX;
    if (snprintf(ret->sun_path, sizeof ret->sun_path, "%s/feed.%u", directory, lrank) >=
        (int)sizeof ret->sun_path)
        return crystal_error_set(err, ENAMETOOLONG,
                                 "board '%s': its directory's path is too long for a "
                                 "socket in it",
                                 directory);
    return 0;
}

int crystal_feed_dial(const char *directory, uint32_t lrank, struct crystal_error *err)
{
    struct sockaddr_un address;
    int fd, code = crystal_feed_address(directory, lrank, &address, err);

    if (code)
        return code;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return crystal_error_set(err, errno, "cannot make a socket: %s",
                                 strerror(errno));
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    code = -errno;
    (void)close(fd);
    if (code == -ENOENT || code == -ECONNREFUSED || code == -EAGAIN)
        return -EAGAIN;
    return crystal_error_set(err, -code, "'%s': %s", address.sun_path, strerror(-code));
}

int crystal_feed_pass(const char *board_directory, uint32_t lrank, int fd)
{
    struct crystal_feed_message note = {.magic = CRYSTAL_FEED_PASSED};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof fd),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {&note, sizeof note};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.room};
    int to = crystal_feed_dial(board_directory, lrank, NULL);
    ssize_t sent;

    if (to == -EAGAIN)
        return -EAGAIN;
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    sent = to < 0 ? -1 : sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (to >= 0)
        (void)close(to); /* what was sent arrives */
    if (to >= 0 && sent < 0 && errno == EAGAIN)
        return -EAGAIN;
    (void)close(fd); /* the rank has it, or is gone: then the sender sees that */
    return 0;
}
