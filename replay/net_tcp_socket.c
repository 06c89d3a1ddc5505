/* The ends of a connection between two real ranks as long as payload goes by the
 * socket. See net_tcp.h for the bytes.
 *
 * Small reads go through a buffer, so that a header and what follows it cost one call;
 * the payload of large messages goes straight to where it belongs.
 */
#include "config.h"

#include "replay/net_tcp_internal.h"

#include "replay/wait_list.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define TCP_BATCH      8 /* messages written with one call */
#define TCP_HEAD_BYTES sizeof(struct crystal_tcp_message)

/* What a call that moved nothing means; result: what it returned, errno is its own. 0:
 * it would have blocked, and events are noted for the thread's sleep; else the code. */
static int not_moved(struct tcp_end *t, ssize_t result, short events,
                     struct crystal_error *err)
{
    if (result < 0 && errno == EAGAIN) {
        crystal_wait_fd(t->fd, events);
        return 0;
    }
    return crystal_tcp_gone(t, result < 0 ? errno : 0, err);
}

/* --- sending --- */

/* Bytes of a message on the socket. */
static uint64_t stream_bytes(const struct crystal_net_request *r)
{
    return TCP_HEAD_BYTES + r->bytes;
}

/* Messages that are written with one call. */
struct batch {
    struct crystal_tcp_message heads[TCP_BATCH];
    struct iovec parts[2 * TCP_BATCH];
    int count; /* of parts */
};

/* The oldest requests of the queue, less what of the first is written. */
static void batch_fill(struct batch *batch, struct tcp_end *t)
{
    struct crystal_net_request *r;
    uint64_t skip = t->written;

    batch->count = 0;
    for (unsigned i = 0; i < TCP_BATCH && (r = crystal_net_queue_at(&t->base, i));
         i++) {
        uint64_t head = skip < TCP_HEAD_BYTES ? TCP_HEAD_BYTES - skip : 0;
        uint64_t done = head ? 0 : skip - TCP_HEAD_BYTES;

        batch->heads[i] = (struct crystal_tcp_message){
            CRYSTAL_TCP_MESSAGE, r->needs_ack ? CRYSTAL_TCP_RENDEZVOUS : 0, r->bytes,
            crystal_net_job_ns(t->base.comm->module, r->start_ns), r->number};
        batch->parts[batch->count++] = (struct iovec){
            (char *)&batch->heads[i] + TCP_HEAD_BYTES - head, (size_t)head};
        batch->parts[batch->count++] =
            (struct iovec){r->data + done, (size_t)(r->bytes - done)};
        skip = 0;
    }
}

/* Writes as much of the queue as the socket takes. */
static int queue_write(struct tcp_end *t, struct crystal_error *err)
{
    struct crystal_net_request *r;
    struct batch batch;

    while (crystal_net_queue_first(&t->base)) {
        struct msghdr message = {.msg_iov = batch.parts};
        ssize_t sent;

        if (crystal_wait_is_noted(t->fd, POLLOUT))
            return 0;
        batch_fill(&batch, t);
        message.msg_iovlen = (size_t)batch.count;
        sent = sendmsg(t->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return not_moved(t, sent, POLLOUT, err);
        t->written += (uint64_t)sent;
        while ((r = crystal_net_queue_first(&t->base)) &&
               t->written >= stream_bytes(r)) {
            t->written -= stream_bytes(r);
            crystal_tcp_sent(t, r);
        }
    }
    return 0;
}

static int ack_take(struct tcp_end *t, struct crystal_error *err)
{
    const struct crystal_net_request *r =
        t->unacked[t->unacked_tail % CRYSTAL_NET_REQUESTS];

    if (t->ack.magic != CRYSTAL_TCP_ACK || t->ack.number != r->number)
        return crystal_error_set(
            err, EPROTO,
            "rank %d of communicator %016llx acknowledged what was "
            "not sent",
            (int)t->base.peer_crank, (unsigned long long)t->base.comm->comm_id);
    t->ack_got = 0;
    crystal_tcp_answered(t, t->ack.start_ns);
    return 0;
}

static int acks_read(struct tcp_end *t, struct crystal_error *err)
{
    while (t->unacked_head != t->unacked_tail &&
           !crystal_wait_is_noted(t->fd, POLLIN)) {
        ssize_t got = recv(t->fd, (char *)&t->ack + t->ack_got,
                           sizeof t->ack - t->ack_got, MSG_DONTWAIT);
        int code;

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return not_moved(t, got, POLLIN, err);
        t->ack_got += (uint32_t)got;
        if (t->ack_got < sizeof t->ack)
            continue;
        code = ack_take(t, err);
        if (code)
            return code;
    }
    return 0;
}

static int send_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    struct tcp_end *t = (struct tcp_end *)end;
    int code = queue_write(t, err);

    return code ? code : acks_read(t, err);
}

/* --- receiving --- */

static int answers_send(struct tcp_end *t, struct crystal_error *err)
{
    while (t->answer_bytes) {
        ssize_t sent =
            send(t->fd, t->answers, t->answer_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return not_moved(t, sent, POLLOUT, err);
        t->answer_bytes -= (uint32_t)sent;
        memmove(t->answers, t->answers + sent, t->answer_bytes);
    }
    return 0;
}

/* The header of the oldest request is there. */
static int message_begin(struct tcp_end *t, struct crystal_net_request *r,
                         struct crystal_error *err)
{
    int code = crystal_tcp_message_begin(t, r, err);
    struct crystal_tcp_ack ack = {
        CRYSTAL_TCP_ACK, 0, t->in.number,
        crystal_net_job_ns(t->base.comm->module, t->leave_ns)};

    if (code <= 0 || t->answer_bytes + sizeof ack > sizeof t->answers)
        return code < 0 ? code : 0; /* as many answers as requests: there is room */
    memcpy(t->answers + t->answer_bytes, &ack, sizeof ack);
    t->answer_bytes += sizeof ack;
    return answers_send(t, err);
}

/* Reads a header. 1 there, 0 not yet; the end may go over to shared memory. */
static int header_use(struct tcp_end *t, struct crystal_net_request *r,
                      struct crystal_error *err)
{
    struct crystal_tcp_share said;
    int code;

    if (t->end - t->at < sizeof t->in)
        return 0;
    memcpy(&t->in, t->buffer + t->at, sizeof t->in);
    t->at += sizeof t->in;
    if (t->in.magic != CRYSTAL_TCP_SHARE) {
        code = message_begin(t, r, err);
        return code ? code : 1;
    }
    memcpy(&said, &t->in, sizeof said);
    return crystal_tcp_share_begin(t, &said, err);
}

/* Uses what the buffer holds. 1: the oldest request is complete. */
static int buffer_use(struct tcp_end *t, struct crystal_net_request *r,
                      struct crystal_error *err)
{
    uint64_t count;

    if (!t->has_message) {
        int code = header_use(t, r, err);

        if (code <= 0)
            return code;
    }
    count = t->in.bytes - r->got;
    if (count > t->end - t->at)
        count = t->end - t->at;
    if (count)
        memcpy(r->data + r->got, t->buffer + t->at, count);
    t->at += (uint32_t)count;
    r->got += count;
    return r->got == t->in.bytes;
}

/* Bytes that are there: `rest` at most to their place, what follows into the buffer. */
static ssize_t socket_take(struct tcp_end *t, struct crystal_net_request *r,
                           uint64_t rest)
{
    struct iovec parts[2] = {{r->data + r->got, (size_t)rest},
                             {t->buffer + t->end, TCP_IN_BYTES - t->end}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    if (!rest) /* two thirds of the time of recvmsg */
        return recv(t->fd, parts[1].iov_base, parts[1].iov_len, MSG_DONTWAIT);
    return recvmsg(t->fd, &message, MSG_DONTWAIT);
}

/* Reads the rest of a payload to its place and what follows into the buffer. 1: some
 * bytes came, 0: none there. */
static int socket_read(struct tcp_end *t, struct crystal_net_request *r,
                       struct crystal_error *err)
{
    uint64_t rest = t->has_message ? t->in.bytes - r->got : 0;
    ssize_t got;

    if (crystal_wait_is_noted(t->fd, POLLIN))
        return 0;
    memmove(t->buffer, t->buffer + t->at, t->end - t->at);
    t->end -= t->at;
    t->at = 0;
    do {
        got = socket_take(t, r, rest);
    } while (got < 0 && errno == EINTR);
    if (got <= 0)
        return not_moved(t, got, POLLIN, err);
    if ((uint64_t)got <= rest) {
        r->got += (uint64_t)got;
    } else {
        r->got += rest;
        t->end += (uint32_t)((uint64_t)got - rest);
    }
    return 1;
}

static int recv_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    struct tcp_end *t = (struct tcp_end *)end;
    struct crystal_net_request *r;
    int code = answers_send(t, err);

    while (!code && (r = crystal_net_queue_first(end))) {
        code = buffer_use(t, r, err);
        if (t->share) /* from now on */
            return code < 0 ? code : end->ops->progress(end, err);
        if (code > 0) {
            crystal_tcp_received(t, r);
            code = 0;
            continue;
        }
        if (code < 0)
            return code;
        code = socket_read(t, r, err);
        if (code <= 0)
            return code;
        code = 0;
    }
    return code;
}

const struct crystal_net_end_ops crystal_tcp_send_ops = {.name = "tcp send",
                                                         .start =
                                                             crystal_tcp_send_start,
                                                         .progress = send_progress,
                                                         .close = crystal_tcp_close};
const struct crystal_net_end_ops crystal_tcp_recv_ops = {.name = "tcp receive",
                                                         .start =
                                                             crystal_tcp_recv_start,
                                                         .progress = recv_progress,
                                                         .close = crystal_tcp_close};
