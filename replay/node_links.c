/* Making the links between nodes, sending, and what is known of the others. See
 * node_links.h. */
#include "config.h"

#include "replay/node_links.h"

#include "replay/node_links_internal.h"
#include "runtime/clock.h"
#include "runtime/listen.h"
#include "runtime/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CONNECT_NS  60000000000U
#define ASK_NS      30000000000U
#define PATIENCE_NS 2000000000U /* whoever knows why a node is gone speaks first */
#define WAIT_NS     50000000U

/* --- making --- */

struct crystal_links *crystal_links_create(const uint8_t token[CRYSTAL_TOKEN_BYTES],
                                           const struct crystal_ports *ports,
                                           struct crystal_error *err)
{
    struct crystal_links *links = calloc(1, sizeof *links);
    pthread_condattr_t attr;
    uint16_t port = 0;

    if (!links) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    memcpy(links->token, token, sizeof links->token);
    links->listen_fd = links->stop_fd = -1;
    for (uint32_t i = 0; i < LINKS_STRANGERS; i++)
        links->strangers[i].fd = -1;
    (void)pthread_mutex_init(&links->lock, NULL); /* none fails on Linux */
    (void)pthread_mutex_init(&links->ask_lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&links->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    links->who.clock = crystal_namespace_id("time");
    links->who.host = crystal_namespace_id("net");
    links->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    links->loop = crystal_loop_create(err);
    if (!links->loop || links->stop_fd < 0 ||
        crystal_listen_within(ports, &links->listen_fd, &port, err)) {
        if (links->stop_fd < 0)
            (void)crystal_error_set(err, errno, "cannot make an event: %s",
                                    strerror(errno));
        crystal_links_destroy(links);
        return NULL;
    }
    links->port = port;
    return links;
}

static int make_peers(struct crystal_links *links, uint32_t node,
                      const struct crystal_msg_node *nodes, uint32_t node_count,
                      struct crystal_error *err)
{
    links->nodes = malloc(node_count * sizeof *nodes);
    links->peers = calloc(node_count, sizeof *links->peers);
    if (!links->nodes || !links->peers)
        return crystal_error_set(err, ENOMEM, "out of memory");
    memcpy(links->nodes, nodes, node_count * sizeof *nodes);
    for (uint32_t i = 0; i < node_count; i++) {
        links->peers[i].links = links;
        links->peers[i].node = i;
        links->peers[i].fd = -1;
        (void)pthread_mutex_init(&links->peers[i].send_lock, NULL);
    }
    links->node = node;
    links->node_count = node_count;
    for (uint32_t i = 0; i < node; i++) {
        int code = crystal_link_dial(&nodes[i], links->token, CRYSTAL_LINK_NODE, node,
                                     &links->peers[i].fd, err);

        if (code)
            return code;
        (void)links_send(&links->peers[i], CRYSTAL_LINK_WHO, 0, &links->who,
                         sizeof links->who); /* a failure shows in status */
    }
    return 0;
}

static int start_thread(struct crystal_links *links, struct crystal_error *err)
{
    int code = links_watch(links, err);

    if (code)
        return code;
    code = crystal_thread_start(&links->thread, links_main, links);
    if (code)
        return crystal_error_set(err, code, "cannot start a thread: %s",
                                 strerror(code));
    links->has_thread = true;
    return 0;
}

/* The first node that has not said who it is, or has gone; count: all are there. */
static uint32_t first_absent(const struct crystal_links *links)
{
    uint32_t i = 0;

    while (i < links->node_count &&
           (i == links->node || (links->peers[i].has_who && !links->peers[i].is_gone)))
        i++;
    return i;
}

/* With lock held: waits for a change, a short while. */
static void wait_a_while(struct crystal_links *links)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&links->changed, &links->lock, &until);
}

static int wait_for_all(struct crystal_links *links, struct crystal_error *err)
{
    uint64_t begin_ns = crystal_now_ns();
    uint32_t absent;
    int code = 0;

    (void)pthread_mutex_lock(&links->lock);
    while (!code &&
           ((absent = first_absent(links)) < links->node_count || !links->has_clock)) {
        wait_a_while(links);
        (void)pthread_mutex_unlock(&links->lock);
        code = links->hooks.alive(links->hooks.context, err);
        if (!code)
            code = crystal_links_status(links, err);
        if (!code && crystal_now_ns() - begin_ns > CONNECT_NS)
            code = crystal_error_set(err, ETIMEDOUT,
                                     "the agent of node %u has not connected within 60 "
                                     "s; see log/ in the job directory",
                                     absent < links->node_count ? absent : 0);
        (void)pthread_mutex_lock(&links->lock);
    }
    (void)pthread_mutex_unlock(&links->lock);
    return code;
}

int crystal_links_connect(struct crystal_links *links, uint32_t node,
                          const struct crystal_msg_node *nodes, uint32_t node_count,
                          uint32_t assistant_count,
                          const struct crystal_links_hooks *hooks,
                          struct crystal_error *err)
{
    int code;

    links->hooks = *hooks;
    links->assistant_count = assistant_count;
    links->has_clock = node == 0;
    code = make_peers(links, node, nodes, node_count, err);
    if (!code)
        code = start_thread(links, err);
    return code ? code : wait_for_all(links, err);
}

void crystal_links_stop(struct crystal_links *links)
{
    const uint64_t one = 1;

    if (!links || !links->has_thread)
        return;
    links->has_thread = false;
    links_send_all(links, CRYSTAL_LINK_BYE, NULL, 0);
    (void)!write(links->stop_fd, &one, sizeof one); /* its counter cannot be full */
    (void)pthread_join(links->thread, NULL);
}

void crystal_links_destroy(struct crystal_links *links)
{
    if (!links)
        return;
    crystal_links_stop(links);
    for (uint32_t i = 0; links->peers && i < links->node_count; i++) {
        crystal_watch_stop(&links->peers[i].watch);
        if (links->peers[i].fd >= 0)
            (void)close(links->peers[i].fd); /* what was sent arrives */
        free(links->peers[i].body);
        (void)pthread_mutex_destroy(&links->peers[i].send_lock);
    }
    for (uint32_t i = 0; i < LINKS_STRANGERS; i++) {
        crystal_watch_stop(&links->strangers[i].watch);
        crystal_timer_stop(&links->strangers[i].timer);
        if (links->strangers[i].fd >= 0)
            (void)close(links->strangers[i].fd);
    }
    crystal_timer_stop(&links->ping);
    crystal_timer_stop(&links->beat);
    crystal_watch_stop(&links->listener);
    crystal_watch_stop(&links->stop);
    if (links->loop)
        crystal_loop_destroy(links->loop);
    if (links->listen_fd >= 0)
        (void)close(links->listen_fd);
    if (links->stop_fd >= 0)
        (void)close(links->stop_fd);
    (void)pthread_cond_destroy(&links->changed);
    (void)pthread_mutex_destroy(&links->ask_lock);
    (void)pthread_mutex_destroy(&links->lock);
    free(links->peers);
    free(links->nodes);
    free(links);
}

/* --- what is known --- */

uint32_t crystal_links_port(const struct crystal_links *links)
{
    return links->port;
}

uint32_t crystal_links_node(const struct crystal_links *links)
{
    return links ? links->node : 0;
}

uint32_t crystal_links_count(const struct crystal_links *links)
{
    return links ? links->node_count - links->assistant_count : 1;
}

uint32_t crystal_links_assistants(const struct crystal_links *links)
{
    return links ? links->assistant_count : 0;
}

const struct crystal_msg_node *crystal_links_nodes(const struct crystal_links *links)
{
    return links->nodes;
}

const uint8_t *crystal_links_token(const struct crystal_links *links)
{
    return links->token;
}

int64_t crystal_links_clock_ns(const struct crystal_links *links)
{
    return links ? atomic_load(&links->clock_ns) : 0;
}

int crystal_links_shares_host(const struct crystal_links *links)
{
    for (uint32_t i = 0; i < links->node; i++) /* all have said who they are */
        if (links->peers[i].who.host == links->who.host)
            return 1;
    return 0;
}

int crystal_links_status(struct crystal_links *links, struct crystal_error *err)
{
    uint64_t now_ns = crystal_now_ns();
    int code = 0;

    if (!links)
        return 0;
    (void)pthread_mutex_lock(&links->lock);
    for (uint32_t i = 0; !code && i < links->node_count; i++)
        if (links->peers[i].lost_ns && now_ns - links->peers[i].lost_ns > PATIENCE_NS)
            code = crystal_error_set(err, ECONNRESET,
                                     "the connection to the agent of node %u is cut; "
                                     "see log/ in the job directory",
                                     i);
    (void)pthread_mutex_unlock(&links->lock);
    return code;
}

/* --- sending --- */

int links_send(struct links_peer *peer, unsigned type, uint32_t request,
               const void *body, uint32_t bytes)
{
    struct iovec part = {(void *)(uintptr_t)body, bytes};
    int code;

    (void)pthread_mutex_lock(&peer->send_lock);
    code = peer->fd < 0 ? -ENOTCONN
                        : crystal_message_send(peer->fd, type, request, &part,
                                               bytes ? 1 : 0, NULL);
    if (code && peer->fd >= 0)
        (void)shutdown(peer->fd, SHUT_RDWR); /* the reading thread sees it */
    (void)pthread_mutex_unlock(&peer->send_lock);
    return code;
}

void crystal_links_send(struct crystal_links *links, uint32_t to, unsigned type,
                        const void *body, uint32_t bytes)
{
    if (to != links->node)
        (void)links_send(&links->peers[to], type, 0, body, bytes);
}

void links_send_all(struct crystal_links *links, unsigned type, const void *body,
                    uint32_t bytes)
{
    for (uint32_t i = 0; i < links->node_count; i++)
        crystal_links_send(links, i, type, body, bytes);
}

void crystal_links_tell(struct crystal_links *links, unsigned type, const void *body,
                        uint32_t bytes)
{
    for (uint32_t i = 0; i < crystal_links_count(links); i++)
        crystal_links_send(links, i, type, body, bytes);
}

int crystal_links_ask(struct crystal_links *links, unsigned type, const void *body,
                      uint32_t bytes, struct crystal_error *err)
{
    uint64_t begin_ns = crystal_now_ns();
    uint32_t request;
    int code = 0;

    (void)pthread_mutex_lock(&links->ask_lock);
    (void)pthread_mutex_lock(&links->lock);
    request = ++links->ask_request ? links->ask_request : ++links->ask_request;
    links->ask_left = crystal_links_count(links) - 1;
    links->ask_code = 0;
    (void)pthread_mutex_unlock(&links->lock);
    for (uint32_t i = 0; i < crystal_links_count(links); i++)
        if (i != links->node)
            (void)links_send(&links->peers[i], type, request, body, bytes);
    (void)pthread_mutex_lock(&links->lock);
    while (!code && links->ask_left) {
        wait_a_while(links);
        (void)pthread_mutex_unlock(&links->lock);
        code = crystal_links_status(links, err);
        if (!code && crystal_now_ns() - begin_ns > ASK_NS)
            code = crystal_error_set(err, ETIMEDOUT,
                                     "an agent of another node does not answer; see "
                                     "log/ in the job directory");
        (void)pthread_mutex_lock(&links->lock);
    }
    if (!code && links->ask_code)
        code = crystal_error_set(err, links->ask_code,
                                 "the agent of another node has failed; see log/ in "
                                 "the job directory");
    links->ask_left = 0;
    (void)pthread_mutex_unlock(&links->lock);
    (void)pthread_mutex_unlock(&links->ask_lock);
    return code;
}

int crystal_links_meet(struct crystal_links *links, uint32_t phase)
{
    struct links_peer *own;
    int is_new, is_met = 1;

    if (!links)
        return 1;
    (void)pthread_mutex_lock(&links->lock);
    own = &links->peers[links->node];
    is_new = own->phase < phase;
    own->phase = phase;
    (void)pthread_mutex_unlock(&links->lock);
    if (is_new)
        links_send_all(links, CRYSTAL_LINK_PHASE, &phase, sizeof phase);
    (void)pthread_mutex_lock(&links->lock);
    for (uint32_t i = 0; i < links->node_count; i++)
        is_met &= links->peers[i].phase >= phase || links->peers[i].is_gone;
    (void)pthread_mutex_unlock(&links->lock);
    return is_met;
}
