/* Framing of coordinator messages and checked reads of their bodies. See message.h. */
#include "config.h"

#include "runtime/message.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

void crystal_message_head_init(struct crystal_message_head *head, unsigned type,
                               uint32_t request, size_t body_bytes)
{
    memcpy(head->magic, CRYSTAL_MESSAGE_MAGIC, sizeof head->magic);
    head->type = (uint16_t)type;
    head->zero = 0;
    head->request = request;
    head->body_bytes = (uint32_t)body_bytes;
}

int crystal_message_head_check(const struct crystal_message_head *head,
                               struct crystal_error *err)
{
    if (memcmp(head->magic, CRYSTAL_MESSAGE_MAGIC, sizeof head->magic) != 0 ||
        head->zero != 0)
        return crystal_error_set(err, EBADMSG,
                                 "message: the other side does not speak %s; use the "
                                 "same version of crystal everywhere",
                                 CRYSTAL_MESSAGE_MAGIC);
    if (head->body_bytes > CRYSTAL_MESSAGE_BODY_MAX)
        return crystal_error_set(err, EBADMSG,
                                 "message: %u bytes announced, %u are the most",
                                 head->body_bytes, CRYSTAL_MESSAGE_BODY_MAX);
    return 0;
}

void crystal_message_socket(int fd)
{
    int one = 1, idle_s = 10, interval_s = 5, probes = 4;

    /* Only faster, or sooner to notice that nobody is there: not worth failing for. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static int send_all(int fd, struct iovec *iov, size_t iov_count,
                    struct crystal_error *err)
{
    while (iov_count) {
        struct msghdr m = {.msg_iov = iov,
                           .msg_iovlen = iov_count < IOV_MAX ? iov_count : IOV_MAX};
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
        size_t sent;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return crystal_error_set(err, errno, "message: cannot send: %s",
                                     strerror(errno));
        for (sent = (size_t)n; iov_count && sent >= iov->iov_len; iov++, iov_count--)
            sent -= iov->iov_len;
        if (iov_count) {
            iov->iov_base = (char *)iov->iov_base + sent;
            iov->iov_len -= sent;
        }
    }
    return 0;
}

int crystal_message_send(int fd, unsigned type, uint32_t request, struct iovec *body,
                         size_t body_count, struct crystal_error *err)
{
    struct crystal_message_head head;
    struct iovec first[64]; /* the head and what fits: one system call as a rule */
    size_t first_count = 1;
    size_t bytes = 0;
    int rc;

    for (size_t i = 0; i < body_count; i++) {
        if (body[i].iov_len > CRYSTAL_MESSAGE_BODY_MAX - bytes)
            return crystal_error_set(err, EMSGSIZE,
                                     "message: more than %u bytes in one call or group "
                                     "of calls; use smaller tensors in capture",
                                     CRYSTAL_MESSAGE_BODY_MAX);
        bytes += body[i].iov_len;
        if (first_count < sizeof first / sizeof first[0])
            first[first_count++] = body[i];
    }
    crystal_message_head_init(&head, type, request, bytes);
    first[0] = (struct iovec){&head, sizeof head};
    rc = send_all(fd, first, first_count, err);
    if (rc < 0)
        return rc;
    return send_all(fd, body + first_count - 1, body_count - (first_count - 1), err);
}

int crystal_message_receive(int fd, void *out, size_t bytes, struct crystal_error *err)
{
    char *at = out;

    while (bytes) {
        ssize_t n = recv(fd, at, bytes, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return crystal_error_set(err, errno, "message: cannot receive: %s",
                                     strerror(errno));
        if (n == 0)
            return crystal_error_set(err, ECONNRESET,
                                     "message: the connection was closed");
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

const void *crystal_message_view(struct crystal_message_cursor *cursor, uint64_t bytes)
{
    const uint8_t *at = cursor->at;

    if (bytes > cursor->left_bytes)
        return NULL;
    cursor->at += bytes;
    cursor->left_bytes -= (size_t)bytes;
    return at;
}

int crystal_message_stop(int fd, struct crystal_message_head *head,
                         struct crystal_msg_stop *ret_stop, struct crystal_error *err)
{
    int rc;

    *ret_stop = (struct crystal_msg_stop){0};
    if (head->type != CRYSTAL_MSG_STOP)
        return 0;
    if (head->body_bytes < sizeof *ret_stop)
        return crystal_error_set(err, EBADMSG, "message: STOP of %u bytes is too short",
                                 head->body_bytes);
    rc = crystal_message_receive(fd, ret_stop, sizeof *ret_stop, err);
    if (rc == 0)
        head->body_bytes -= sizeof *ret_stop;
    return rc;
}

int crystal_message_take(struct crystal_message_cursor *cursor, void *out, size_t bytes)
{
    const void *at = crystal_message_view(cursor, bytes);

    if (!at)
        return -EBADMSG;
    if (bytes)
        memcpy(out, at, bytes);
    return 0;
}
