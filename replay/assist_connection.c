/* See assist_connection.h. */
#include "config.h"

#include "replay/assist_connection.h"

#include "replay/assist_make.h"
#include "runtime/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PIECES 16 /* of one connection before another's turn */

uint64_t assist_job_ns(const struct assist_shared *s)
{
    return crystal_now_ns() + (uint64_t)s->clock_ns(s->context);
}

void assist_connection_fini(struct assist_connection *c)
{
    free(c->in.kept);
    free(c->in.given);
    for (; c->tail < c->head; c->tail++)
        free(c->answers[c->tail % CRYSTAL_ASSIST_OPEN_MAX].payload);
}

/* payload moves, also on failure. */
static int answer_add(struct assist_connection *c, uint32_t type, uint64_t time_ns,
                      uint64_t begin_ns, unsigned char *payload,
                      struct crystal_error *err)
{
    if (c->head - c->tail == CRYSTAL_ASSIST_OPEN_MAX) {
        free(payload);
        return crystal_error_set(err, EBADMSG, "more than %u requests at once",
                                 CRYSTAL_ASSIST_OPEN_MAX);
    }
    c->answers[c->head++ % CRYSTAL_ASSIST_OPEN_MAX] =
        (struct assist_answer){.message = {.magic = CRYSTAL_ASSIST_MAGIC,
                                           .type = type,
                                           .number = c->in.message.number,
                                           .bytes = c->in.message.bytes,
                                           .time_ns = time_ns},
                               .begin_ns = begin_ns,
                               .payload = payload};
    c->in.got = 0;
    return 0;
}

/* --- the parts of a request --- */

static bool has_payload(const struct assist_request *r)
{
    return r->message.type == CRYSTAL_ASSIST_TAKE ||
           r->source.flags & CRYSTAL_ASSIST_GIVEN;
}

/* The source is here: room for what follows it. */
static int source_take(struct assist_connection *c, struct crystal_error *err)
{
    struct assist_request *r = &c->in;
    int code = crystal_assist_check_source(&r->message, &r->source, err);

    if (code)
        return code;
    if (r->source.flags & CRYSTAL_ASSIST_GIVEN)
        r->given = malloc(r->message.bytes + 1);
    else if (r->message.type == CRYSTAL_ASSIST_TAKE && r->source.flags)
        r->kept = assist_kept_create(&r->source, r->message.bytes);
    else
        return 0;
    return r->given || r->kept
               ? 0
               : crystal_error_set(err, ENOMEM, "out of memory for a message");
}

/* All of a request is here. */
static int request_end(struct assist_shared *s, struct assist_connection *c,
                       struct crystal_error *err)
{
    struct assist_request *r = &c->in;
    unsigned char *payload = r->given;
    int code;

    if (r->message.type == CRYSTAL_ASSIST_TAKE) {
        if (r->kept)
            assist_kept_put(&s->kept, r->kept);
        r->kept = NULL;
        return answer_add(c, CRYSTAL_ASSIST_TAKEN, assist_job_ns(s), 0, NULL, err);
    }
    r->given = NULL;
    if (payload) {
        (void)atomic_fetch_add(&s->given_bytes, r->message.bytes);
    } else {
        code = assist_make(s->graph, &s->kept, &r->message, &r->source, r->terms,
                           &payload, err);
        if (code)
            return code;
    }
    return answer_add(c, CRYSTAL_ASSIST_SENT, 0, r->message.time_ns, payload, err);
}

/* Where the next bytes of the request go, and how many it is in want of there. */
struct request_part {
    void *to;
    uint64_t bytes; /* 0: it is complete */
    bool is_payload;
};

static struct request_part part_next(struct assist_shared *s, struct assist_request *r)
{
    const uint64_t heads = sizeof r->message + sizeof r->source;
    const uint64_t term_bytes =
        r->got < heads ? 0 : r->source.term_count * (uint64_t)sizeof r->terms[0];
    uint64_t at = r->got;
    unsigned char *to = r->kept ? r->kept->data : r->given;

    if (at < sizeof r->message)
        return (struct request_part){(char *)&r->message + at, sizeof r->message - at,
                                     false};
    at -= sizeof r->message;
    if (at < sizeof r->source)
        return (struct request_part){(char *)&r->source + at, sizeof r->source - at,
                                     false};
    at -= sizeof r->source;
    if (at < term_bytes)
        return (struct request_part){(char *)r->terms + at, term_bytes - at, false};
    at -= term_bytes;
    if (!has_payload(r))
        return (struct request_part){NULL, 0, false};
    if (to)
        return (struct request_part){to + at, r->message.bytes - at, true};
    return (struct request_part){
        s->sink,
        r->message.bytes - at < sizeof s->sink ? r->message.bytes - at : sizeof s->sink,
        true};
}

/* Bytes of the request have come. */
static int got_bytes(struct assist_shared *s, struct assist_connection *c, size_t got,
                     bool is_payload, struct crystal_error *err)
{
    struct assist_request *r = &c->in;
    int code = 0;

    r->got += got;
    if (is_payload && r->message.type == CRYSTAL_ASSIST_TAKE)
        (void)atomic_fetch_add(&s->taken_bytes, got);
    if (r->got == sizeof r->message)
        code = crystal_assist_check(&r->message, 0, c->number++, err);
    else if (r->got == sizeof r->message + sizeof r->source)
        code = source_take(c, err);
    if (code || r->got < sizeof r->message + sizeof r->source)
        return code;
    return part_next(s, r).bytes ? 0 : request_end(s, c, err);
}

int assist_connection_read(struct assist_shared *s, struct assist_connection *c,
                           struct crystal_error *err)
{
    for (int i = 0; i < PIECES; i++) {
        const struct request_part part = part_next(s, &c->in);
        ssize_t got = recv(c->fd, part.to,
                           part.bytes < ASSIST_PIECE_BYTES ? (size_t)part.bytes
                                                           : ASSIST_PIECE_BYTES,
                           MSG_DONTWAIT);
        int code;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0)
            return -EPIPE;
        code = got_bytes(s, c, (size_t)got, part.is_payload, err);
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
        unsigned char *from =
            a->payload ? a->payload + (total - head_bytes - left) : s->piece;
        struct iovec parts[2] = {
            {(unsigned char *)&a->message + head_bytes - head, head},
            {from, left < sizeof s->piece ? (size_t)left : sizeof s->piece}};
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
    free(a->payload);
    a->payload = NULL;
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
