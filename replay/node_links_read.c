/* The reading thread of the links between nodes: who connects, what the other nodes
 * say, and the clock. See node_links.h. */
#include "config.h"

#include "replay/node_links.h"

#include "replay/node_links_internal.h"
#include "runtime/clock.h"
#include "runtime/coord_dial.h"
#include "runtime/listen.h"
#include "runtime/log.h"
#include "runtime/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BODY_MAX (64U << 20) /* a communicator's members */
#define PING_NS  1000000000U /* between measurements of the clock */
#define BEAT_NS  2000000000U /* between words to every node, to notice a dead one */
#define FEED_NS  5000000U    /* between looks for a rank that is not there yet */

/* --- messages of other nodes --- */

static void answer(struct links_peer *peer, uint32_t request, int code)
{
    uint32_t body = (uint32_t)(code < 0 ? -code : code);

    if (request)
        (void)links_send(peer, CRYSTAL_LINK_OK, request, &body, sizeof body);
}

static void ping(void *context)
{
    struct crystal_links *links = context;

    links->ping_ns = crystal_now_ns();
    (void)links_send(&links->peers[0], CRYSTAL_LINK_PING, 0, &links->ping_ns,
                     sizeof links->ping_ns);
}

static void beat(void *context)
{
    struct crystal_links *links = context;
    uint64_t now_ns = crystal_now_ns();

    links_send_all(links, CRYSTAL_LINK_PING, &now_ns, sizeof now_ns);
    crystal_timer_start(&links->beat, links->loop, BEAT_NS, beat, links);
}

static void on_pong(struct crystal_links *links, const uint64_t times[2])
{
    int64_t offset_ns;

    if (times[0] != links->ping_ns)
        return; /* of a beat */
    if (!crystal_clock_add(&links->clock, times[0], times[1], crystal_now_ns(),
                           &offset_ns)) {
        ping(links);
        return;
    }
    atomic_store(&links->clock_ns, offset_ns);
    links->hooks.clock(links->hooks.context, offset_ns);
    (void)pthread_mutex_lock(&links->lock);
    links->has_clock = true;
    (void)pthread_cond_broadcast(&links->changed);
    (void)pthread_mutex_unlock(&links->lock);
    crystal_timer_start(&links->ping, links->loop, PING_NS, ping, links);
}

static void on_who(struct links_peer *peer, const struct crystal_link_who *who)
{
    struct crystal_links *links = peer->links;
    bool is_same = who->clock == links->who.clock;

    (void)pthread_mutex_lock(&links->lock);
    peer->who = *who;
    peer->has_who = true;
    if (peer->node == 0 && is_same)
        links->has_clock = true; /* of no difference */
    (void)pthread_cond_broadcast(&links->changed);
    (void)pthread_mutex_unlock(&links->lock);
    if (peer->node == 0 && !is_same)
        ping(links);
}

static void on_ok(struct crystal_links *links, uint32_t request, uint32_t code)
{
    (void)pthread_mutex_lock(&links->lock);
    if (request == links->ask_request && links->ask_left) {
        links->ask_left--;
        if (!links->ask_code)
            links->ask_code = (int)(code & 0xffff);
        (void)pthread_cond_broadcast(&links->changed);
    }
    (void)pthread_mutex_unlock(&links->lock);
}

/* A whole message; -EBADMSG where it is none of ours. */
static int on_message(struct links_peer *peer)
{
    struct crystal_links *links = peer->links;
    const uint32_t type = peer->head.type, bytes = peer->head.body_bytes;
    struct crystal_link_who who;
    uint64_t times[2];
    uint32_t word;

    if (!peer->has_who && type != CRYSTAL_LINK_WHO)
        return -EBADMSG;
    switch (type) {
    case CRYSTAL_LINK_WHO:
        if (bytes != sizeof who || peer->has_who)
            return -EBADMSG;
        memcpy(&who, peer->body, sizeof who);
        on_who(peer, &who);
        return 0;
    case CRYSTAL_LINK_PING:
        if (bytes != sizeof times[0])
            return -EBADMSG;
        memcpy(times, peer->body, sizeof times[0]);
        times[1] = crystal_now_ns();
        (void)links_send(peer, CRYSTAL_LINK_PONG, 0, times, sizeof times);
        return 0;
    case CRYSTAL_LINK_PONG:
        if (bytes != sizeof times)
            return -EBADMSG;
        memcpy(times, peer->body, sizeof times);
        if (peer->node == 0)
            on_pong(links, times);
        return 0;
    case CRYSTAL_LINK_PHASE:
    case CRYSTAL_LINK_OK:
        if (bytes != sizeof word)
            return -EBADMSG;
        memcpy(&word, peer->body, sizeof word);
        if (type == CRYSTAL_LINK_OK) {
            on_ok(links, peer->head.request, word);
            return 0;
        }
        (void)pthread_mutex_lock(&links->lock);
        peer->phase = word;
        (void)pthread_mutex_unlock(&links->lock);
        return 0;
    case CRYSTAL_LINK_BYE:
        (void)pthread_mutex_lock(&links->lock);
        peer->is_gone = true;
        (void)pthread_cond_broadcast(&links->changed);
        (void)pthread_mutex_unlock(&links->lock);
        return 0;
    default:
        answer(peer, peer->head.request,
               links->hooks.message(links->hooks.context, peer->node, type, peer->body,
                                    bytes));
        return 0;
    }
}

static void lose(struct links_peer *peer, const char *why)
{
    struct crystal_links *links = peer->links;

    crystal_watch_stop(&peer->watch);
    (void)shutdown(peer->fd, SHUT_RDWR);
    (void)pthread_mutex_lock(&links->lock);
    if (!peer->is_gone) {
        peer->lost_ns = crystal_now_ns();
        crystal_log(CRYSTAL_LOG_DEBUG, "links", "node %u is lost: %s", peer->node, why);
    }
    (void)pthread_cond_broadcast(&links->changed);
    (void)pthread_mutex_unlock(&links->lock);
}

/* Where the next bytes go, and how many; 0: the message is complete. */
static int64_t peer_want(struct links_peer *peer, void **ret_to)
{
    if (peer->head_got < sizeof peer->head) {
        *ret_to = (uint8_t *)&peer->head + peer->head_got;
        return (int64_t)(sizeof peer->head - peer->head_got);
    }
    if (!peer->body) {
        if (crystal_message_head_check(&peer->head, NULL) ||
            peer->head.body_bytes > BODY_MAX)
            return -EBADMSG;
        peer->body = malloc((size_t)peer->head.body_bytes + 1);
        if (!peer->body)
            return -ENOMEM;
    }
    *ret_to = peer->body + peer->body_got;
    return (int64_t)(peer->head.body_bytes - peer->body_got);
}

static void on_peer(void *context, uint32_t events)
{
    struct links_peer *peer = context;

    (void)events;
    for (;;) {
        void *to = NULL;
        int64_t want = peer_want(peer, &to);
        ssize_t got;

        if (want < 0) {
            lose(peer, "it sends what is no message");
            return;
        }
        if (want == 0) {
            int code = on_message(peer);

            free(peer->body);
            peer->body = NULL;
            peer->head_got = peer->body_got = 0;
            if (code) {
                lose(peer, "it sends an unknown message");
                return;
            }
            continue;
        }
        got = recv(peer->fd, to, (size_t)want, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            lose(peer, got < 0 ? strerror(errno) : "connection closed");
            return;
        }
        if (peer->head_got < sizeof peer->head)
            peer->head_got += (uint32_t)got;
        else
            peer->body_got += (uint32_t)got;
    }
}

static int watch_peer(struct links_peer *peer, struct crystal_error *err)
{
    return crystal_watch_start(&peer->watch, peer->links->loop, peer->fd, EPOLLIN,
                               on_peer, peer, err);
}

/* --- strangers --- */

static void forget(struct links_stranger *s, bool closes)
{
    crystal_watch_stop(&s->watch);
    crystal_timer_stop(&s->timer);
    if (closes)
        (void)close(s->fd); /* a stranger's */
    s->fd = -1;
    crystal_watch_events(&s->links->listener, EPOLLIN); /* there is room again */
}

static void too_slow(void *context)
{
    forget(context, true);
}

static void become_peer(struct links_stranger *s, uint32_t node)
{
    struct crystal_links *links = s->links;
    struct links_peer *peer =
        node > links->node && node < links->node_count ? &links->peers[node] : NULL;

    if (!peer || peer->fd >= 0) {
        forget(s, true);
        return;
    }
    /* those who send look at fd under this lock */
    (void)pthread_mutex_lock(&peer->send_lock);
    peer->fd = s->fd;
    (void)pthread_mutex_unlock(&peer->send_lock);
    forget(s, false);
    if (watch_peer(peer, NULL)) {
        lose(peer, "it cannot be watched");
        return;
    }
    (void)links_send(peer, CRYSTAL_LINK_WHO, 0, &links->who, sizeof links->who);
    on_peer(peer, 0);
}

static void try_feed(void *context)
{
    struct links_stranger *s = context;
    struct crystal_links *links = s->links;

    if (links->hooks.feed(links->hooks.context, s->fd, s->lrank) == 0)
        forget(s, false);
    else
        crystal_timer_start(&s->timer, links->loop, FEED_NS, try_feed, s);
}

/* Its HELLO is complete. */
static void on_hello(struct links_stranger *s)
{
    struct crystal_links *links = s->links;
    struct crystal_message_head head;
    struct crystal_msg_hello hello;

    memcpy(&head, s->hello, sizeof head);
    memcpy(&hello, s->hello + sizeof head, sizeof hello);
    if (crystal_message_head_check(&head, NULL) || head.type != CRYSTAL_MSG_HELLO ||
        head.body_bytes != sizeof hello ||
        !crystal_token_is(hello.token, links->token)) {
        crystal_log(CRYSTAL_LOG_DEBUG, "links",
                    "dropped a connection without the job's token");
        forget(s, true);
        return;
    }
    crystal_link_socket(s->fd);
    switch (hello.role) {
    case CRYSTAL_LINK_NODE:
        become_peer(s, hello.lrank);
        break;
    case CRYSTAL_LINK_BOOTSTRAP:
        crystal_watch_stop(&s->watch); /* it is the proxy's from here */
        links->hooks.bootstrap(links->hooks.context, s->fd, hello.lrank);
        forget(s, false);
        break;
    case CRYSTAL_LINK_FEED:
        crystal_watch_stop(&s->watch);
        s->lrank = hello.lrank;
        try_feed(s);
        break;
    case CRYSTAL_LINK_WIRE:
        crystal_watch_stop(&s->watch);
        if (links->hooks.wire)
            links->hooks.wire(links->hooks.context, s->fd);
        forget(s, !links->hooks.wire);
        break;
    default:
        forget(s, true);
    }
}

static void on_stranger(void *context, uint32_t events)
{
    struct links_stranger *s = context;
    ssize_t got;

    (void)events;
    do {
        got = recv(s->fd, s->hello + s->got, sizeof s->hello - s->got, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        forget(s, true);
        return;
    }
    s->got += (uint32_t)got;
    if (s->got == sizeof s->hello)
        on_hello(s);
}

static void on_listener(void *context, uint32_t events)
{
    struct crystal_links *links = context;

    (void)events;
    for (uint32_t i = 0; i < LINKS_STRANGERS; i++) {
        struct links_stranger *s = &links->strangers[i];

        if (s->fd >= 0)
            continue;
        s->fd = accept4(links->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (s->fd < 0)
            return; /* nobody is there, or it has gone again */
        if (!crystal_peer_admit(s->fd, "node links", CRYSTAL_PEER_GONE_MAY)) {
            (void)close(s->fd); /* another user's */
            s->fd = -1;
            continue;
        }
        s->links = links;
        s->got = 0;
        if (crystal_watch_start(&s->watch, links->loop, s->fd, EPOLLIN, on_stranger, s,
                                NULL)) {
            forget(s, true);
            return;
        }
        crystal_timer_start(&s->timer, links->loop, LINKS_HELLO_NS, too_slow, s);
        on_stranger(s, 0); /* its HELLO is usually there already */
    }
    for (uint32_t i = 0; i < LINKS_STRANGERS; i++) /* no room: silent ones make some */
        if (links->strangers[i].got < sizeof links->strangers[i].hello) {
            forget(&links->strangers[i], true);
            return;
        }
    crystal_watch_events(&links->listener, 0);
}

/* --- the thread --- */

static void on_stop(void *context, uint32_t events)
{
    struct crystal_links *links = context;

    (void)events;
    crystal_loop_quit(links->loop);
}

int links_watch(struct crystal_links *links, struct crystal_error *err)
{
    int code = crystal_watch_start(&links->listener, links->loop, links->listen_fd,
                                   EPOLLIN, on_listener, links, err);

    if (!code)
        code = crystal_watch_start(&links->stop, links->loop, links->stop_fd, EPOLLIN,
                                   on_stop, links, err);
    for (uint32_t i = 0; !code && i < links->node; i++)
        code = watch_peer(&links->peers[i], err);
    if (!code)
        crystal_timer_start(&links->beat, links->loop, BEAT_NS, beat, links);
    return code;
}

void *links_main(void *context)
{
    struct crystal_links *links = context;
    struct crystal_error err = {0};

    if (crystal_loop_run(links->loop, &err) < 0)
        crystal_log(CRYSTAL_LOG_ERROR, "links", "%s", crystal_error_text(&err));
    return NULL;
}
