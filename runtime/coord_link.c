/* The coordinator's end of one client connection. See coord_link.h. */
#include "config.h"

#include "runtime/coord_link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCRATCH_BYTES ((size_t)64 << 10)
#define SEND_PARTS    64

/* A piece of output; owns a reference. */
struct chunk {
    struct chunk *next;
    struct crystal_slice slice;
};

struct crystal_link {
    struct crystal_watch watch;
    struct crystal_link_hooks hooks;
    void *owner;
    size_t body_max;
    struct crystal_message_head head;
    size_t head_have, body_have; /* bytes of the message that is being read */
    struct crystal_blob *body;
    struct chunk *out, **out_end;
    uint8_t ending; /* reads no more, closes when flushed */
    uint8_t dead;
};

/* The loop notices the closed socket and calls back. */
static void kill_link(struct crystal_link *link)
{
    link->dead = 1;
    (void)shutdown(link->watch.fd, SHUT_RDWR);
    crystal_watch_events(&link->watch, EPOLLIN);
}

/* --- output --- */

static void pop_sent(struct crystal_link *link, size_t sent)
{
    while (link->out && sent >= link->out->slice.bytes) {
        struct chunk *gone = link->out;

        sent -= gone->slice.bytes;
        link->out = gone->next;
        if (!link->out)
            link->out_end = &link->out;
        crystal_blob_unref(gone->slice.blob);
        free(gone);
    }
    if (link->out) {
        link->out->slice.at += sent;
        link->out->slice.bytes -= sent;
    }
}

static void flush(struct crystal_link *link)
{
    while (link->out && !link->dead) {
        struct iovec parts[SEND_PARTS];
        struct msghdr m = {.msg_iov = parts};
        ssize_t n;

        for (struct chunk *c = link->out; c && m.msg_iovlen < SEND_PARTS; c = c->next)
            parts[m.msg_iovlen++] =
                (struct iovec){(void *)(uintptr_t)c->slice.at, c->slice.bytes};
        n = sendmsg(link->watch.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            kill_link(link);
            return;
        }
        pop_sent(link, (size_t)n);
    }
    if (link->dead)
        return;
    if (link->ending && !link->out)
        (void)shutdown(link->watch.fd, SHUT_WR); /* the client closes; we notice */
    crystal_watch_events(&link->watch, link->out ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Takes the reference in slice. */
static void queue_slice(struct crystal_link *link, struct crystal_slice slice)
{
    struct chunk *c = slice.bytes ? calloc(1, sizeof *c) : NULL;

    if (!c) {
        crystal_blob_unref(slice.blob);
        if (slice.bytes)
            kill_link(link);
        return;
    }
    c->slice = slice;
    *link->out_end = c;
    link->out_end = &c->next;
}

static void queue_bytes(struct crystal_link *link, const void *bytes, size_t count)
{
    struct crystal_blob *blob = crystal_blob_create(count);

    if (!blob) {
        kill_link(link);
        return;
    }
    if (count)
        memcpy(blob->data, bytes, count);
    queue_slice(link, (struct crystal_slice){blob, blob->data, count});
}

void crystal_link_send(struct crystal_link *link, unsigned type, uint32_t request,
                       const void *bytes, size_t count)
{
    struct crystal_message_head head;

    if (link->dead || link->ending)
        return;
    crystal_message_head_init(&head, type, request, count);
    queue_bytes(link, &head, sizeof head);
    if (count)
        queue_bytes(link, bytes, count);
    flush(link);
}

void crystal_link_send_results(struct crystal_link *link, uint32_t request,
                               const struct crystal_slice *results, uint32_t count)
{
    struct crystal_message_head head;
    uint64_t bytes = sizeof count;

    if (link->dead || link->ending)
        return;
    for (uint32_t i = 0; i < count; i++)
        bytes += sizeof(uint64_t) + results[i].bytes;
    if (bytes > CRYSTAL_MESSAGE_BODY_MAX) {
        static const char text[] = "coordinator: the results of one group of calls are "
                                   "larger than 4 GiB; use smaller tensors in capture";

        crystal_link_send(link, CRYSTAL_MSG_ERROR, 0, text, strlen(text));
        crystal_link_end(link);
        return;
    }
    crystal_message_head_init(&head, CRYSTAL_MSG_RESULT, request, (size_t)bytes);
    queue_bytes(link, &head, sizeof head);
    queue_bytes(link, &count, sizeof count);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t length = results[i].bytes;

        queue_bytes(link, &length, sizeof length);
        if (length) {
            (void)crystal_blob_ref(results[i].blob);
            queue_slice(link, results[i]);
        }
    }
    flush(link);
}

void crystal_link_end(struct crystal_link *link)
{
    link->ending = 1;
    flush(link);
}

int crystal_link_is_flushed(const struct crystal_link *link)
{
    return !link->out || link->dead;
}

/* --- input --- */

/* A message is complete. */
static int deliver(struct crystal_link *link)
{
    struct crystal_blob *body = link->body;
    struct crystal_message_head head = link->head;
    int rc = 0;

    link->body = NULL;
    link->head_have = link->body_have = 0;
    if (!link->ending) /* else it is read and dropped */
        rc = link->hooks.message(link->hooks.context, link, &head, body);
    crystal_blob_unref(body);
    return rc;
}

static int head_complete(struct crystal_link *link)
{
    if (crystal_message_head_check(&link->head, NULL) < 0 ||
        link->head.body_bytes > link->body_max)
        return -EBADMSG;
    link->body = crystal_blob_create(link->head.body_bytes);
    if (!link->body)
        return -ENOMEM;
    return link->head.body_bytes ? 0 : deliver(link);
}

static int consume(struct crystal_link *link, const uint8_t *data, size_t count)
{
    int rc = 0;

    while (rc == 0 && count) {
        size_t part;

        if (link->head_have < sizeof link->head) {
            part = sizeof link->head - link->head_have;
            if (part > count)
                part = count;
            memcpy((uint8_t *)&link->head + link->head_have, data, part);
            link->head_have += part;
            if (link->head_have == sizeof link->head)
                rc = head_complete(link);
        } else {
            part = link->head.body_bytes - link->body_have;
            if (part > count)
                part = count;
            memcpy(link->body->data + link->body_have, data, part);
            link->body_have += part;
            if (link->body_have == link->head.body_bytes)
                rc = deliver(link);
        }
        data += part;
        count -= part;
    }
    return rc;
}

/* 0, or negative where the link is over. */
static int read_input(struct crystal_link *link)
{
    uint8_t scratch[SCRATCH_BYTES];
    size_t missing = link->body ? link->head.body_bytes - link->body_have : 0;
    int direct = missing >= sizeof scratch;
    ssize_t n =
        recv(link->watch.fd, direct ? link->body->data + link->body_have : scratch,
             direct ? missing : sizeof scratch, MSG_DONTWAIT);

    if (n < 0)
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    if (n == 0)
        return -ECONNRESET;
    if (!direct)
        return consume(link, scratch, (size_t)n);
    link->body_have += (size_t)n;
    return link->body_have == link->head.body_bytes ? deliver(link) : 0;
}

static void on_event(void *context, uint32_t events)
{
    struct crystal_link *link = context;
    int rc = 0;

    if (events & EPOLLOUT)
        flush(link);
    if (!link->dead && events & EPOLLIN)
        rc = read_input(link);
    else if (events & (EPOLLHUP | EPOLLERR))
        rc = -ECONNRESET;
    if (rc < 0 || link->dead) {
        crystal_watch_stop(&link->watch);
        link->hooks.closed(link->hooks.context, link);
    }
}

struct crystal_link *crystal_link_create(struct crystal_loop *loop, int fd,
                                         size_t body_max,
                                         const struct crystal_link_hooks *hooks,
                                         struct crystal_error *err)
{
    struct crystal_link *link = calloc(1, sizeof *link);

    if (!link) {
        (void)crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        goto err_close;
    }
    link->hooks = *hooks;
    link->body_max = body_max;
    link->out_end = &link->out;
    if (crystal_watch_start(&link->watch, loop, fd, EPOLLIN, on_event, link, err) < 0)
        goto err_close;
    return link;
err_close:
    (void)close(fd);
    free(link);
    return NULL;
}

void crystal_link_destroy(struct crystal_link *link)
{
    if (!link)
        return;
    crystal_watch_stop(&link->watch);
    (void)close(link->watch.fd);
    while (link->out) {
        struct chunk *gone = link->out;

        link->out = gone->next;
        crystal_blob_unref(gone->slice.blob);
        free(gone);
    }
    crystal_blob_unref(link->body);
    free(link);
}

void crystal_link_body_max(struct crystal_link *link, size_t body_max)
{
    link->body_max = body_max;
}

int crystal_link_fd(const struct crystal_link *link)
{
    return link->watch.fd;
}

void crystal_link_set_owner(struct crystal_link *link, void *owner)
{
    link->owner = owner;
}

void *crystal_link_owner(const struct crystal_link *link)
{
    return link->owner;
}
