/* The ends of a connection between two real ranks of one host that share memory
 * (net_share.h). A message is put there when it is posted, so that the GPU's copy
 * engine or a copying thread (net_copy.h) writes it where the receiver's reads it, and
 * nobody else touches its bytes. What finds no room is not posted yet; a message that
 * is larger than a quarter of the memory goes in pieces.
 *
 * The socket is looked at where a side is about to sleep, and now and then by one that
 * does not sleep: the other side may have died.
 */
#include "config.h"

#include "replay/net_tcp_internal.h"

#include "replay/net_copy.h"
#include "replay/net_device.h"
#include "replay/wait_list.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define LOOK_ROUNDS 1024U /* of a thread that does not sleep: well below 1 ms */

/* --- both sides --- */

static void wake(struct tcp_end *t)
{
    if (!crystal_share_wakes(t->share))
        return;
    /* where it does not go, bytes are there already or the other side is gone */
    if (send(t->fd, "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return;
}

/* Takes wakes off the socket; notes whether the other side has closed it. */
static void socket_look(struct tcp_end *t)
{
    char wakes[64];
    ssize_t got;

    do {
        got = recv(t->fd, wakes, sizeof wakes, MSG_DONTWAIT);
    } while (got > 0 || (got < 0 && errno == EINTR));
    t->is_gone = got == 0 || errno != EAGAIN;
}

/* Nothing could be done. 1: now look once more, 0: wait. */
static int idle(struct tcp_end *t)
{
    if (!crystal_wait_sleeps()) {
        crystal_wait_board(); /* if it sleeps after all, then not for long */
        if (t->idle++ % LOOK_ROUNDS == LOOK_ROUNDS - 1)
            socket_look(t);
        return t->is_gone;
    }
    if (crystal_wait_is_noted(t->fd, POLLIN) && crystal_share_sleeps(t->share))
        return 0;
    socket_look(t);
    crystal_share_sleep(t->share);
    crystal_wait_fd(t->fd, POLLIN);
    return 1;
}

/* step: 1 nothing is waited for, 0 something is, negative errno. */
static int progress(struct tcp_end *t,
                    int (*step)(struct tcp_end *t, struct crystal_error *err),
                    struct crystal_error *err)
{
    int code = step(t, err);

    if (!code && idle(t))
        code = step(t, err);
    if (!code && t->is_gone)
        return crystal_tcp_gone(t, 0, err);
    return code < 0 ? code : 0;
}

/* The GPU copies from and to the memory by itself. */
static void pin(struct tcp_end *t, struct crystal_device *device)
{
    if (t->pinned || t->is_pin_refused || !device)
        return;
    if (crystal_device_pin(device, crystal_share_payload(t->share),
                           CRYSTAL_SHARE_BYTES))
        t->pinned = device;
    else
        t->is_pin_refused = 1;
}

/* --- sending --- */

/* Until the receiver has taken what there is, nothing is posted that finds no place:
 * behind one that goes in pieces nothing has a place before it has gone. */
static int send_has_place(struct crystal_net_end *end, uint64_t bytes,
                          struct crystal_error *err)
{
    struct tcp_end *t = (struct tcp_end *)end;

    if (t->placed == end->head && !t->next && bytes <= CRYSTAL_SHARE_PIECE)
        t->next = crystal_share_place(t->share, bytes, &t->next_at);
    if (t->next || bytes > CRYSTAL_SHARE_PIECE)
        return 1;
    if (idle(t) && !t->is_gone && t->placed == end->head)
        t->next = crystal_share_place(t->share, bytes, &t->next_at);
    if (t->is_gone)
        return crystal_tcp_gone(t, 0, err);
    return t->next != NULL;
}

/* The place of a request that is being posted; NULL: it goes in pieces, later. */
static unsigned char *send_place(struct crystal_net_end *end,
                                 struct crystal_net_request *r)
{
    struct tcp_end *t = (struct tcp_end *)end;
    unsigned char *at = t->next;

    if (!at)
        return NULL;
    pin(t, r->device);
    t->next = NULL;
    t->placed++;
    r->shared_at = t->next_at;
    r->is_placed = 1;
    return at;
}

static int piece_send(struct tcp_end *t, const struct crystal_net_request *r,
                      uint64_t at, uint32_t bytes)
{
    struct crystal_share_message m = {
        .bytes = r->bytes,
        .start_ns = crystal_net_job_ns(t->base.comm->module, r->start_ns),
        .number = r->number,
        .at = at,
        .piece = bytes,
        .flags = r->needs_ack ? CRYSTAL_TCP_RENDEZVOUS : 0};

    return crystal_share_send(t->share, &m);
}

/* 1 the receiver may have all of it, 0 there is no room. */
static int message_send(struct tcp_end *t, const struct crystal_net_request *r)
{
    unsigned char *at;

    if (r->is_placed)
        return piece_send(t, r, r->shared_at, (uint32_t)r->bytes);
    do {
        if (!t->piece) {
            t->piece = r->bytes - t->written < CRYSTAL_SHARE_PIECE
                           ? (uint32_t)(r->bytes - t->written)
                           : CRYSTAL_SHARE_PIECE;
            at = crystal_share_place(t->share, t->piece, &t->piece_at);
            if (!at) {
                t->piece = 0;
                return 0;
            }
            memcpy(at, r->data + t->written, t->piece);
        }
        if (!piece_send(t, r, t->piece_at, t->piece))
            return 0;
        t->written += t->piece;
        t->piece = 0;
        wake(t); /* it may be more than there is room for at once */
    } while (t->written < r->bytes);
    t->written = 0;
    t->placed = r->place + 1;
    return 1;
}

static int send_step(struct tcp_end *t, struct crystal_error *err)
{
    struct crystal_net_request *r;
    int is_first = 1;
    uint64_t ns;

    (void)err;
    while ((r = crystal_net_queue_first(&t->base)) && message_send(t, r)) {
        crystal_tcp_sent(t, r);
        is_first = 0;
    }
    if (!is_first)
        wake(t);
    while (t->unacked_head != t->unacked_tail && crystal_share_answered(t->share, &ns))
        crystal_tcp_answered(t, ns);
    return !r && t->unacked_head == t->unacked_tail;
}

static int send_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    return progress((struct tcp_end *)end, send_step, err);
}

/* --- receiving --- */

static void places_settle(struct tcp_end *t)
{
    const unsigned tail = t->place_tail;
    const struct tcp_place *last = NULL;

    while (t->place_tail != t->place_head &&
           !t->places[t->place_tail % TCP_PLACES].is_held)
        last = &t->places[t->place_tail++ % TCP_PLACES];
    if (t->place_tail == tail)
        return;
    crystal_share_taken(t->share, last->at, last->bytes);
    wake(t);
}

/* The request has put its bytes into the caller's buffer. */
static void recv_release(struct crystal_net_end *end, struct crystal_net_request *r)
{
    struct tcp_end *t = (struct tcp_end *)end;

    if (!r->is_placed)
        return;
    r->is_placed = 0;
    t->places[r->shared_at].is_held = 0;
    places_settle(t);
}

/* Takes a piece out of the memory; all of a message that is put into the buffer later
 * stays there until then. */
static int piece_take(struct tcp_end *t, struct crystal_net_request *r,
                      const struct crystal_share_message *m, struct crystal_error *err)
{
    unsigned char *from = crystal_share_at(t->share, m->at, m->piece);
    struct tcp_place *place = &t->places[t->place_head % TCP_PLACES];

    if (!from || m->piece > t->in.bytes - r->got || (!m->piece && t->in.bytes))
        return crystal_error_set(err, EPROTO,
                                 "a peer's message lies outside of the shared memory");
    *place = (struct tcp_place){.at = m->at, .bytes = m->piece};
    if (m->piece && m->piece == t->in.bytes && crystal_copy_is_put(r)) {
        crystal_room_give(r->room);
        r->room = NULL;
        r->data = from;
        r->shared_at = t->place_head % TCP_PLACES;
        r->is_placed = place->is_held = 1;
        pin(t, r->device);
    } else if (m->piece) {
        memcpy(r->data + r->got, from, m->piece);
    }
    r->got += m->piece;
    t->place_head++;
    places_settle(t);
    return 0;
}

static int message_begin(struct tcp_end *t, struct crystal_net_request *r,
                         const struct crystal_share_message *m,
                         struct crystal_error *err)
{
    int code;

    t->in = (struct crystal_tcp_message){CRYSTAL_TCP_MESSAGE, m->flags, m->bytes,
                                         m->start_ns, m->number};
    code = crystal_tcp_message_begin(t, r, err);
    if (code > 0) {
        crystal_share_answer(t->share,
                             crystal_net_job_ns(t->base.comm->module, t->leave_ns));
        wake(t);
    }
    return code < 0 ? code : 0;
}

static int recv_step(struct tcp_end *t, struct crystal_error *err)
{
    struct crystal_share_message m;
    struct crystal_net_request *r;
    int code;

    while ((r = crystal_net_queue_first(&t->base))) {
        if (t->place_head - t->place_tail == TCP_PLACES ||
            !crystal_share_receive(t->share, &m))
            return 0;
        code = t->has_message ? 0 : message_begin(t, r, &m, err);
        if (!code)
            code = piece_take(t, r, &m, err);
        if (code)
            return code;
        if (r->got == t->in.bytes)
            crystal_tcp_received(t, r);
    }
    return 1;
}

static int recv_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    return progress((struct tcp_end *)end, recv_step, err);
}

const struct crystal_net_end_ops crystal_shared_send_ops = {.name = "shared send",
                                                            .has_rooms = 1,
                                                            .start =
                                                                crystal_tcp_send_start,
                                                            .progress = send_progress,
                                                            .close = crystal_tcp_close,
                                                            .has_place = send_has_place,
                                                            .place = send_place};
const struct crystal_net_end_ops crystal_shared_recv_ops = {.name = "shared receive",
                                                            .has_rooms = 1,
                                                            .start =
                                                                crystal_tcp_recv_start,
                                                            .progress = recv_progress,
                                                            .close = crystal_tcp_close,
                                                            .release = recv_release};
