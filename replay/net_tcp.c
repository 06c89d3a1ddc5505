/* Ends of a TCP connection between two real ranks. See net_tcp.h for the bytes.
 *
 * A sender writes a message at once; pacing is a matter of time stamps. The message
 * carries when its first byte left the modelled NIC; the receiver completes it when the
 * wire would have brought it, or when the bytes are there, whichever is later. Small
 * reads go through a buffer, so that a header and what follows it cost one call; the
 * payload of large messages goes straight to where it belongs.
 */
#include "config.h"

#include "replay/net_tcp.h"

#include "replay/net.h"
#include "replay/net_share.h"
#include "replay/wait_list.h"
#include "runtime/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define TCP_IN_BYTES     16384U
#define TCP_BUFFER_BYTES (4 << 20)
#define TCP_BATCH        8 /* messages written with one call */
#define TCP_HEAD_BYTES   sizeof(struct crystal_tcp_message)
#define TCP_SHARED_LEAST 4096U  /* smaller payload follows its header */
#define TCP_SHARE_NS     20000U /* after this the sender looks for room again */

struct tcp_end {
    struct crystal_net_end base;
    int fd;
    struct crystal_share *share; /* payload of this connection; NULL: on the socket */
    /* sender */
    uint64_t written;           /* of the oldest request: header, then payload */
    struct crystal_tcp_ack ack; /* being read */
    uint32_t ack_got;
    uint32_t acks_due;
    struct crystal_net_request *unacked[CRYSTAL_NET_REQUESTS];
    unsigned unacked_head, unacked_tail;
    /* receiver */
    int has_message; /* in is the header of the oldest request */
    struct crystal_tcp_message in;
    uint64_t number;       /* of the next message */
    uint64_t leave_ns;     /* when the message of `in` could leave the sender */
    uint64_t wire_free_ns; /* when the ones before it have left */
    unsigned char answers[CRYSTAL_NET_REQUESTS * sizeof(struct crystal_tcp_ack)];
    uint32_t answer_bytes;
    uint32_t at, end; /* of buffer: read and not used yet */
    unsigned char buffer[TCP_IN_BYTES];
};

static int peer_gone(const struct tcp_end *t, int error, struct crystal_error *err)
{
    const char *verb = t->base.is_send ? "sending to" : "receiving from";

    if (!t->base.failed)
        crystal_net_note(t->base.comm, CRYSTAL_ROLL_PARTED, t->base.peer_crank);
    if (t->base.peer_crank == CRYSTAL_CRANK_UNKNOWN)
        return crystal_error_set(err, error ? error : ECONNRESET,
                                 "%s a peer on communicator %016llx: %s; its process "
                                 "has ended, see its log",
                                 verb, (unsigned long long)t->base.comm->comm_id,
                                 error ? strerror(error) : "connection closed");
    return crystal_error_set(err, error ? error : ECONNRESET,
                             "%s rank %u of communicator %016llx: %s; its process has "
                             "ended, see its log",
                             verb, t->base.peer_crank,
                             (unsigned long long)t->base.comm->comm_id,
                             error ? strerror(error) : "connection closed");
}

/* --- sending --- */

static int is_rendezvous(const struct tcp_end *t, const struct crystal_net_request *r)
{
    return crystal_wire_is_paced(&t->base.comm->module->wire) && r->id.operation &&
           r->id.operation->is_p2p;
}

static int send_start(struct crystal_net_end *end, struct crystal_net_request *r,
                      struct crystal_error *err)
{
    struct tcp_end *t = (struct tcp_end *)end;
    struct crystal_net_module *module = end->comm->module;

    (void)err;
    r->start_ns = r->posted_ns;
    if (crystal_wire_is_paced(&module->wire)) {
        uint64_t occupy_ns = crystal_wire_occupy_ns(&module->wire, r->bytes);

        r->start_ns =
            crystal_nic_take(&module->nics[end->nic], r->posted_ns, occupy_ns);
        r->due_ns = r->start_ns + occupy_ns;
    }
    r->needs_ack = is_rendezvous(t, r);
    return 0;
}

static int is_shared(const struct tcp_end *t, const struct crystal_net_request *r)
{
    return t->share && r->bytes >= TCP_SHARED_LEAST && r->bytes <= CRYSTAL_SHARE_BYTES;
}

/* Bytes of a message on the socket. */
static uint64_t stream_bytes(const struct tcp_end *t,
                             const struct crystal_net_request *r)
{
    return TCP_HEAD_BYTES + (is_shared(t, r) ? sizeof r->shared_at : r->bytes);
}

/* Puts a message's payload where the receiver finds it. 0: there is no room yet. */
static int payload_share(struct tcp_end *t, struct crystal_net_request *r)
{
    unsigned char *at;

    if (!is_shared(t, r) || r->is_placed)
        return 1;
    at = crystal_share_place(t->share, r->bytes, &r->shared_at);
    if (!at) {
        crystal_wait_until(crystal_now_ns() + TCP_SHARE_NS);
        return 0;
    }
    memcpy(at, r->data, r->bytes);
    r->is_placed = 1;
    return 1;
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
    for (unsigned i = 0; i < TCP_BATCH && (r = crystal_net_queue_at(&t->base, i)) &&
                         payload_share(t, r);
         i++) {
        uint64_t head = skip < TCP_HEAD_BYTES ? TCP_HEAD_BYTES - skip : 0;
        uint64_t done = head ? 0 : skip - TCP_HEAD_BYTES;
        unsigned char *payload =
            is_shared(t, r) ? (unsigned char *)&r->shared_at : r->data;

        batch->heads[i] = (struct crystal_tcp_message){
            CRYSTAL_TCP_MESSAGE,
            (r->needs_ack ? CRYSTAL_TCP_RENDEZVOUS : 0) |
                (is_shared(t, r) ? CRYSTAL_TCP_SHARED : 0),
            r->bytes, crystal_net_job_ns(t->base.comm->module, r->start_ns), r->number};
        batch->parts[batch->count++] = (struct iovec){
            (char *)&batch->heads[i] + TCP_HEAD_BYTES - head, (size_t)head};
        batch->parts[batch->count++] = (struct iovec){
            payload + done, (size_t)(stream_bytes(t, r) - TCP_HEAD_BYTES - done)};
        skip = 0;
    }
}

static void request_written(struct tcp_end *t, struct crystal_net_request *r)
{
    r->got = r->bytes;
    crystal_net_queue_pop(&t->base, r->due_ns);
    if (!r->needs_ack)
        return;
    r->state = CRYSTAL_REQUEST_BUSY;
    t->unacked[t->unacked_head++ % CRYSTAL_NET_REQUESTS] = r;
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
        if (!batch.count)
            return 0;
        message.msg_iovlen = (size_t)batch.count;
        sent = sendmsg(t->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN) {
            crystal_wait_fd(t->fd, POLLOUT);
            return 0;
        }
        if (sent < 0)
            return peer_gone(t, errno, err);
        t->written += (uint64_t)sent;
        while ((r = crystal_net_queue_first(&t->base)) &&
               t->written >= stream_bytes(t, r)) {
            t->written -= stream_bytes(t, r);
            request_written(t, r);
        }
    }
    return 0;
}

static int ack_take(struct tcp_end *t, struct crystal_error *err)
{
    struct crystal_net_request *r = t->unacked[t->unacked_tail % CRYSTAL_NET_REQUESTS];
    uint64_t occupy_ns = crystal_wire_occupy_ns(&t->base.comm->module->wire, r->bytes);
    uint64_t leave_ns;

    if (t->ack.magic != CRYSTAL_TCP_ACK || t->ack.number != r->number)
        return crystal_error_set(
            err, EPROTO,
            "rank %d of communicator %016llx acknowledged what was "
            "not sent",
            (int)t->base.peer_crank, (unsigned long long)t->base.comm->comm_id);
    t->unacked_tail++;
    t->ack_got = 0;
    leave_ns = crystal_net_own_ns(t->base.comm->module, t->ack.start_ns);
    if (leave_ns > r->start_ns)
        r->due_ns = leave_ns + occupy_ns;
    r->state = CRYSTAL_REQUEST_MOVED;
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
        if (got < 0 && errno == EAGAIN) {
            crystal_wait_fd(t->fd, POLLIN);
            return 0;
        }
        if (got <= 0)
            return peer_gone(t, got < 0 ? errno : 0, err);
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

int crystal_tcp_message_check(const struct crystal_tcp_message *m, uint64_t number,
                              uint64_t room, struct crystal_error *err)
{
    if (m->magic != CRYSTAL_TCP_MESSAGE ||
        (m->flags & ~(CRYSTAL_TCP_RENDEZVOUS | CRYSTAL_TCP_SHARED)) ||
        m->number != number)
        return crystal_error_set(err, EPROTO,
                                 "a peer's message %llu has a broken header; is "
                                 "everybody on the same version of crystal?",
                                 (unsigned long long)number);
    if (m->bytes > room)
        return crystal_error_set(err, EMSGSIZE,
                                 "a peer's message of %llu bytes does not fit the %llu "
                                 "that were posted; the ranks called collectives of "
                                 "different size",
                                 (unsigned long long)m->bytes,
                                 (unsigned long long)room);
    return 0;
}

static int recv_start(struct crystal_net_end *end, struct crystal_net_request *r,
                      struct crystal_error *err)
{
    (void)end;
    (void)r;
    (void)err;
    return 0;
}

static int answers_send(struct tcp_end *t, struct crystal_error *err)
{
    while (t->answer_bytes) {
        ssize_t sent =
            send(t->fd, t->answers, t->answer_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN) {
            crystal_wait_fd(t->fd, POLLOUT);
            return 0;
        }
        if (sent < 0)
            return peer_gone(t, errno, err);
        t->answer_bytes -= (uint32_t)sent;
        memmove(t->answers, t->answers + sent, t->answer_bytes);
    }
    return 0;
}

/* The header of the oldest request is there: when could its message leave? */
static int message_begin(struct tcp_end *t, struct crystal_net_request *r,
                         struct crystal_error *err)
{
    const struct crystal_wire *wire = &t->base.comm->module->wire;
    struct crystal_tcp_ack ack;
    int code = crystal_tcp_message_check(&t->in, t->number, r->bytes, err);

    if (code)
        return code;
    t->number++;
    t->has_message = 1;
    t->leave_ns = crystal_net_own_ns(t->base.comm->module, t->in.start_ns);
    if (!crystal_wire_is_paced(wire))
        return 0;
    if (r->posted_ns > t->leave_ns)
        t->leave_ns = r->posted_ns;
    if (t->wire_free_ns > t->leave_ns)
        t->leave_ns = t->wire_free_ns;
    t->wire_free_ns = t->leave_ns + crystal_wire_occupy_ns(wire, t->in.bytes);
    if (!(t->in.flags & CRYSTAL_TCP_RENDEZVOUS) ||
        t->answer_bytes + sizeof ack > sizeof t->answers)
        return 0; /* as many answers as requests: there is room */
    ack =
        (struct crystal_tcp_ack){CRYSTAL_TCP_ACK, 0, t->in.number,
                                 crystal_net_job_ns(t->base.comm->module, t->leave_ns)};
    memcpy(t->answers + t->answer_bytes, &ack, sizeof ack);
    t->answer_bytes += sizeof ack;
    return answers_send(t, err);
}

/* The first 32 bytes of a connection may say where its payload is. */
static int share_begin(struct tcp_end *t, struct crystal_error *err)
{
    struct crystal_tcp_share said;

    memcpy(&said, &t->in, sizeof said);
    if (t->share || t->number)
        return crystal_error_set(err, EPROTO, "a peer shares memory twice");
    t->share = crystal_share_open(said.name, err);
    return t->share ? 0 : -err->code;
}

/* Reads a header. 1 there, 0 not yet. */
static int header_use(struct tcp_end *t, struct crystal_net_request *r,
                      struct crystal_error *err)
{
    while (t->end - t->at >= sizeof t->in) {
        int code;

        memcpy(&t->in, t->buffer + t->at, sizeof t->in);
        t->at += sizeof t->in;
        if (t->in.magic != CRYSTAL_TCP_SHARE) {
            code = message_begin(t, r, err);
            return code ? code : 1;
        }
        code = share_begin(t, err);
        if (code)
            return code;
    }
    return 0;
}

/* Takes a payload out of the shared memory. 1 taken, 0 its place is not told yet. */
static int shared_use(struct tcp_end *t, struct crystal_net_request *r,
                      struct crystal_error *err)
{
    const unsigned char *from;
    uint64_t at;

    if (t->end - t->at < sizeof at)
        return 0;
    memcpy(&at, t->buffer + t->at, sizeof at);
    t->at += sizeof at;
    from = t->share ? crystal_share_at(t->share, at, t->in.bytes) : NULL;
    if (!from)
        return crystal_error_set(err, EPROTO,
                                 "a peer's message lies outside of the shared memory");
    memcpy(r->data, from, t->in.bytes);
    crystal_share_taken(t->share, at, t->in.bytes);
    r->got = t->in.bytes;
    return 1;
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
    if (t->in.flags & CRYSTAL_TCP_SHARED)
        return shared_use(t, r, err);
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
    uint64_t rest = t->has_message && !(t->in.flags & CRYSTAL_TCP_SHARED)
                        ? t->in.bytes - r->got
                        : 0;
    ssize_t got;

    if (crystal_wait_is_noted(t->fd, POLLIN))
        return 0;
    memmove(t->buffer, t->buffer + t->at, t->end - t->at);
    t->end -= t->at;
    t->at = 0;
    do {
        got = socket_take(t, r, rest);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) {
        crystal_wait_fd(t->fd, POLLIN);
        return 0;
    }
    if (got <= 0)
        return peer_gone(t, got < 0 ? errno : 0, err);
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
    const struct crystal_wire *wire = &end->comm->module->wire;
    struct crystal_net_request *r;
    int code = answers_send(t, err);

    while (!code && (r = crystal_net_queue_first(end))) {
        code = buffer_use(t, r, err);
        if (code > 0) {
            uint64_t occupy_ns = crystal_wire_occupy_ns(wire, r->got), due_ns = 0;

            if (crystal_wire_is_paced(wire))
                due_ns = crystal_link_take(
                    &end->comm->module->links[end->nic],
                    t->wire_free_ns + wire->latency_ns - occupy_ns, occupy_ns);
            crystal_net_queue_pop(end, due_ns);
            t->has_message = 0;
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

static int is_peer_gone(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

static void tcp_close(struct crystal_net_end *end)
{
    struct tcp_end *t = (struct tcp_end *)end;

    crystal_wait_forget(t->fd);
    if (t->share)
        crystal_share_destroy(t->share, is_peer_gone(t->fd));
    (void)close(t->fd); /* the caller has tested all it cares for */
    free(t);
}

static const struct crystal_net_end_ops tcp_send_ops = {"tcp send", send_start,
                                                        send_progress, tcp_close, NULL};
static const struct crystal_net_end_ops tcp_recv_ops = {"tcp receive", recv_start,
                                                        recv_progress, tcp_close, NULL};

/* Larger buffers and no delay only make it faster: failures do not matter. */
static void socket_tune(int fd, int is_send)
{
    int zero = 0, one = 1, bytes = TCP_BUFFER_BYTES;

    if (!is_send) /* nothing goes back: no packet of its own for every small read */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof zero);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

/* Whether both ends have one address: one host. */
static int is_local(int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer;
    struct sockaddr_in a, b;

    if (getsockname(fd, (struct sockaddr *)&own, &own_bytes) < 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) < 0 ||
        own.ss_family != AF_INET || peer.ss_family != AF_INET)
        return 0;
    memcpy(&a, &own, sizeof a);
    memcpy(&b, &peer, sizeof b);
    return a.sin_addr.s_addr == b.sin_addr.s_addr;
}

/* The socket is new: 32 bytes always fit behind the hello. */
static int share_offer(struct tcp_end *t, struct crystal_error *err)
{
    struct crystal_tcp_share said = {.magic = CRYSTAL_TCP_SHARE};
    ssize_t sent;

    t->share = crystal_share_create(said.name, err);
    if (!t->share)
        return -err->code;
    do {
        sent = send(t->fd, &said, sizeof said, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof said ? 0 : peer_gone(t, sent < 0 ? errno : 0, err);
}

struct crystal_net_end *crystal_tcp_end_create(struct crystal_net_context *context,
                                               int fd, int is_send, uint32_t peer_crank,
                                               struct crystal_error *err)
{
    struct tcp_end *t = calloc(1, sizeof *t);

    if (!t) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a connection");
        (void)close(fd);
        return NULL;
    }
    socket_tune(fd, is_send);
    t->fd = fd;
    t->base.ops = is_send ? &tcp_send_ops : &tcp_recv_ops;
    t->base.context = context;
    t->base.comm = context->comm;
    t->base.is_send = is_send;
    t->base.peer_crank = peer_crank;
    if (is_send && context->comm->module->is_sharing && is_local(fd) &&
        share_offer(t, err)) {
        tcp_close(&t->base);
        return NULL;
    }
    return &t->base;
}
