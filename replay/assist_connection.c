/* See assist_connection.h. */
#include "config.h"

#include "replay/assist_connection.h"

#include "runtime/clock.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PIECES 16 /* of one connection before another's turn */

uint64_t assist_job_ns(const struct assist_shared *s)
{
    return crystal_now_ns() + (uint64_t)s->clock_ns(s->context);
}

static int answer_add(struct assist_connection *c, uint32_t type, uint64_t time_ns,
                      uint64_t begin_ns, struct crystal_error *err)
{
    if (c->head - c->tail == CRYSTAL_ASSIST_OPEN_MAX)
        return crystal_error_set(err, EBADMSG, "more than %u requests at once",
                                 CRYSTAL_ASSIST_OPEN_MAX);
    c->answers[c->head++ % CRYSTAL_ASSIST_OPEN_MAX] =
        (struct assist_answer){.message = {.magic = CRYSTAL_ASSIST_MAGIC,
                                           .type = type,
                                           .number = c->in.number,
                                           .bytes = c->in.bytes,
                                           .time_ns = time_ns},
                               .begin_ns = begin_ns};
    return 0;
}

/* All of a TAKE is here. */
static int taken(struct assist_shared *s, struct assist_connection *c,
                 struct crystal_error *err)
{
    c->in_got = 0;
    return answer_add(c, CRYSTAL_ASSIST_TAKEN, assist_job_ns(s), 0, err);
}

/* The head of a request is complete. */
static int request(struct assist_shared *s, struct assist_connection *c,
                   struct crystal_error *err)
{
    int code = crystal_assist_check(&c->in, 0, c->number, err);

    if (code)
        return code;
    c->number++;
    if (c->in.type == CRYSTAL_ASSIST_TAKE) {
        c->take_left = c->in.bytes;
        return c->take_left ? 0 : taken(s, c, err);
    }
    c->in_got = 0;
    return answer_add(c, CRYSTAL_ASSIST_SENT, 0, c->in.time_ns, err);
}

/* Bytes have come. */
static int got_bytes(struct assist_shared *s, struct assist_connection *c, size_t got,
                     struct crystal_error *err)
{
    if (c->in_got < sizeof c->in) {
        c->in_got += (uint32_t)got;
        return c->in_got < sizeof c->in ? 0 : request(s, c, err);
    }
    c->take_left -= got;
    (void)atomic_fetch_add(&s->taken_bytes, got);
    return c->take_left ? 0 : taken(s, c, err);
}

int assist_connection_read(struct assist_shared *s, struct assist_connection *c,
                           struct crystal_error *err)
{
    for (int i = 0; i < PIECES; i++) {
        void *to =
            c->in_got < sizeof c->in ? (unsigned char *)&c->in + c->in_got : s->sink;
        size_t want = c->in_got < sizeof c->in        ? sizeof c->in - c->in_got
                      : c->take_left < sizeof s->sink ? (size_t)c->take_left
                                                      : sizeof s->sink;
        ssize_t got = recv(c->fd, to, want, MSG_DONTWAIT);
        int code;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0)
            return -EPIPE;
        code = got_bytes(s, c, (size_t)got, err);
        if (code)
            return code;
    }
    return 0;
}

static uint64_t payload_bytes(const struct assist_answer *a)
{
    return a->message.type == CRYSTAL_ASSIST_SENT ? a->message.bytes : 0;
}

/* 1 the oldest answer is written, 0 the socket is full, -EPIPE. */
static int answer_write(struct assist_shared *s, struct assist_connection *c,
                        struct assist_answer *a)
{
    const size_t head_bytes = sizeof a->message;
    const uint64_t total = head_bytes + payload_bytes(a);

    if (!c->written && a->message.type == CRYSTAL_ASSIST_SENT)
        a->message.time_ns = assist_job_ns(s);
    while (c->written < total) {
        size_t head = c->written < head_bytes ? head_bytes - (size_t)c->written : 0;
        uint64_t left = total - c->written - head;
        struct iovec parts[2] = {
            {(unsigned char *)&a->message + head_bytes - head, head},
            {s->piece, left < sizeof s->piece ? (size_t)left : sizeof s->piece}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN ? 0 : -EPIPE;
        if ((size_t)sent > head)
            (void)atomic_fetch_add(&s->sent_bytes, (size_t)sent - head);
        c->written += (uint64_t)sent;
    }
    c->written = 0;
    c->tail++;
    return 1;
}

int assist_connection_write(struct assist_shared *s, struct assist_connection *c)
{
    struct assist_answer *a;
    int code = 1;

    while (code > 0 && (a = assist_answer_first(c)) &&
           (c->written || a->begin_ns <= assist_job_ns(s)))
        code = answer_write(s, c, a);
    return code < 0 ? code : 0;
}
