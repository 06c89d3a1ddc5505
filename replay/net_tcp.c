/* Ends of a connection between two real ranks: what does not depend on how their bytes
 * go. See net_tcp.h.
 *
 * A sender writes a message at once; pacing is a matter of time stamps. The message
 * carries when its first byte left the modelled NIC; the receiver completes it when the
 * wire would have brought it, or when the bytes are there, whichever is later.
 */
#include "config.h"

#include "replay/net_tcp_internal.h"

#include "replay/net_device.h"
#include "replay/wait_list.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TCP_BUFFER_BYTES (4 << 20)

int crystal_tcp_gone(const struct tcp_end *t, int error, struct crystal_error *err)
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

int crystal_tcp_send_start(struct crystal_net_end *end, struct crystal_net_request *r,
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

void crystal_tcp_sent(struct tcp_end *t, struct crystal_net_request *r)
{
    r->got = r->bytes;
    crystal_net_queue_pop(&t->base, r->due_ns);
    if (!r->needs_ack)
        return;
    r->state = CRYSTAL_REQUEST_BUSY;
    t->unacked[t->unacked_head++ % CRYSTAL_NET_REQUESTS] = r;
}

void crystal_tcp_answered(struct tcp_end *t, uint64_t job_ns)
{
    struct crystal_net_request *r =
        t->unacked[t->unacked_tail++ % CRYSTAL_NET_REQUESTS];
    const uint64_t leave_ns = crystal_net_own_ns(t->base.comm->module, job_ns);

    if (leave_ns > r->start_ns)
        r->due_ns =
            leave_ns + crystal_wire_occupy_ns(&t->base.comm->module->wire, r->bytes);
    r->state = CRYSTAL_REQUEST_MOVED;
}

/* --- receiving --- */

int crystal_tcp_message_check(const struct crystal_tcp_message *m, uint64_t number,
                              uint64_t room, struct crystal_error *err)
{
    if (m->magic != CRYSTAL_TCP_MESSAGE || (m->flags & ~CRYSTAL_TCP_RENDEZVOUS) ||
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

int crystal_tcp_recv_start(struct crystal_net_end *end, struct crystal_net_request *r,
                           struct crystal_error *err)
{
    (void)end;
    (void)r;
    (void)err;
    return 0;
}

int crystal_tcp_message_begin(struct tcp_end *t, struct crystal_net_request *r,
                              struct crystal_error *err)
{
    const struct crystal_wire *wire = &t->base.comm->module->wire;
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
    return (t->in.flags & CRYSTAL_TCP_RENDEZVOUS) != 0;
}

void crystal_tcp_received(struct tcp_end *t, struct crystal_net_request *r)
{
    const struct crystal_wire *wire = &t->base.comm->module->wire;
    const uint64_t occupy_ns = crystal_wire_occupy_ns(wire, r->got);
    uint64_t due_ns = 0;

    if (crystal_wire_is_paced(wire))
        due_ns = crystal_link_take(&t->base.comm->module->links[t->base.nic],
                                   t->wire_free_ns + wire->latency_ns - occupy_ns,
                                   occupy_ns);
    crystal_net_queue_pop(&t->base, due_ns);
    t->has_message = 0;
}

/* --- ends --- */

static int is_peer_gone(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void crystal_tcp_close(struct crystal_net_end *end)
{
    struct tcp_end *t = (struct tcp_end *)end;

    crystal_wait_forget(t->fd);
    if (t->pinned)
        crystal_device_unpin(t->pinned, crystal_share_payload(t->share),
                             CRYSTAL_SHARE_BYTES);
    if (t->share)
        crystal_share_destroy(t->share, is_peer_gone(t->fd));
    (void)close(t->fd); /* the caller has tested all it cares for */
    free(t);
}

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
    return sent == (ssize_t)sizeof said
               ? 0
               : crystal_tcp_gone(t, sent < 0 ? errno : 0, err);
}

int crystal_tcp_share_begin(struct tcp_end *t, const struct crystal_tcp_share *said,
                            struct crystal_error *err)
{
    if (t->number)
        return crystal_error_set(err, EPROTO,
                                 "a peer shares memory in the midst of its messages");
    t->share = crystal_share_open(said->name, err);
    if (!t->share)
        return -err->code;
    t->base.ops = &crystal_shared_recv_ops;
    return 0;
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
    t->base.ops = is_send ? &crystal_tcp_send_ops : &crystal_tcp_recv_ops;
    t->base.context = context;
    t->base.comm = context->comm;
    t->base.is_send = is_send;
    t->base.peer_crank = peer_crank;
    if (is_send && context->comm->module->is_sharing && is_local(fd) &&
        share_offer(t, err)) {
        crystal_tcp_close(&t->base);
        return NULL;
    }
    if (t->share)
        t->base.ops = &crystal_shared_send_ops;
    return &t->base;
}
