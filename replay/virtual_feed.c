/* Feeds between processes. See virtual_feed.h. */
#include "config.h"

#include "replay/virtual_feed.h"

#include "replay/link_dial.h"
#include "replay/net.h"
#include "replay/net_rings.h"
#include "replay/node_places.h"
#include "replay/virtual_end_internal.h"
#include "replay/virtual_line.h"
#include "replay/virtual_tree.h"
#include "runtime/clock.h"
#include "runtime/log.h"
#include "runtime/peer.h"
#include "runtime/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FEED_CONNECTIONS 512
/* A message whose communicator this process has not made yet waits this long. */
#define FEED_HOLD_NS 10000000000U
#define FEED_POLL_MS 5

/* --- the stream --- */

int crystal_feed_message_check(const struct crystal_feed_message *m,
                               struct crystal_error *err)
{
    if ((m->magic != CRYSTAL_FEED_MAGIC && m->magic != CRYSTAL_FEED_TREE) ||
        m->channel >= CRYSTAL_NET_CHANNELS || m->has_bytes > 1 ||
        m->index >= m->count || m->bytes > CRYSTAL_FEED_BYTES_MAX)
        return crystal_error_set(err, EPROTO,
                                 "a message from another sandbox rank has a broken "
                                 "header");
    return 0;
}

int64_t crystal_feed_want(struct crystal_feed_reader *r, void **ret_to,
                          struct crystal_error *err)
{
    int code;

    if (r->head_got < sizeof r->head) {
        *ret_to = (char *)&r->head + r->head_got;
        return (int64_t)(sizeof r->head - r->head_got);
    }
    code = crystal_feed_message_check(&r->head, err);
    if (code)
        return code;
    if (!r->head.has_bytes || r->data_got == r->head.bytes)
        return 0;
    if (!r->data) {
        r->data = malloc(r->head.bytes);
        if (!r->data)
            return crystal_error_set(err, ENOMEM, "out of memory for a message");
    }
    *ret_to = r->data + r->data_got;
    return (int64_t)(r->head.bytes - r->data_got);
}

void crystal_feed_got(struct crystal_feed_reader *r, uint64_t bytes)
{
    if (r->head_got < sizeof r->head)
        r->head_got += (uint32_t)bytes;
    else
        r->data_got += bytes;
}

void *crystal_feed_take(struct crystal_feed_reader *r,
                        struct crystal_feed_message *ret_head)
{
    void *data = r->data;

    *ret_head = r->head;
    memset(r, 0, sizeof *r);
    return data;
}

void crystal_feed_reader_fini(struct crystal_feed_reader *r)
{
    free(r->data);
    memset(r, 0, sizeof *r);
}

/* --- the receiving thread --- */

struct feed_connection {
    struct crystal_feed_reader reader;
    uint64_t held_since_ns; /* 0: not held */
    int passed_fd;          /* that came with the message being read; -1: none */
};

struct feed {
    struct crystal_net_module *module;
    struct pollfd fds[1 + FEED_CONNECTIONS]; /* the first one listens */
    struct feed_connection connections[FEED_CONNECTIONS];
    unsigned count;
};

static struct feed *the_feed; /* under the registry's lock */

/* A message with its data, on its way into a line. */
struct arrival {
    const struct crystal_feed_message *head;
    void *data;
};

static int tree_put(struct crystal_net_comm *comm, struct arrival *a,
                    struct crystal_error *err)
{
    const struct crystal_feed_message *m = a->head;
    const struct crystal_tree_feed feed = {
        .seq = m->seq,
        .index = m->index,
        .channel = m->channel,
        .crank = m->crank,
        .started_ns = crystal_net_own_ns(comm->module, m->start_ns),
        .wire_bytes = m->bytes};
    struct crystal_trees *trees;
    void *data = a->data;

    if (!atomic_load(&atomic_load(&comm->board)->graph_channels))
        return -ENOENT; /* it is held until this process knows its channels */
    trees = crystal_virtual_trees(comm, err);
    if (!trees)
        return -err->code;
    a->data = NULL;
    return crystal_trees_fed(trees, &feed, data, err);
}

static int arrival_put(struct crystal_net_comm *comm, void *user,
                       struct crystal_error *err)
{
    struct arrival *a = user;
    const struct crystal_feed_message *m = a->head;
    struct crystal_vt_sent sent = {crystal_net_own_ns(comm->module, m->start_ns),
                                   m->bytes};
    const struct crystal_ring_place *place;
    void *data = a->data;
    int code;

    if (m->magic == CRYSTAL_FEED_TREE)
        return tree_put(comm, a, err);
    code = crystal_rings_place(comm->rings, m->channel, &place, err);

    if (!code)
        return -ENOENT; /* it is held until this process knows its rings */
    a->data = NULL;
    if (code < 0) {
        free(data);
        return code;
    }
    if (place->sender != m->crank) {
        free(data);
        return crystal_error_set(
            err, EPROTO,
            "rank %u of communicator %016llx is not the one before "
            "this one",
            m->crank, (unsigned long long)m->comm_id);
    }
    return crystal_lines_push_owned(comm->lines, m->seq, m->channel, m->index, m->count,
                                    &sent, data, err);
}

/* 1: put, 0: its communicator is not there yet, negative errno: give up. */
static int message_put(struct feed_connection *c, struct crystal_error *err)
{
    struct arrival arrival = {&c->reader.head, c->reader.data};
    struct crystal_feed_message head;
    int code =
        crystal_net_comm_with(c->reader.head.comm_id, arrival_put, &arrival, err);

    if (code == -ENOENT) {
        uint64_t now = crystal_now_ns();

        if (!c->held_since_ns)
            c->held_since_ns = now;
        if (now - c->held_since_ns < FEED_HOLD_NS)
            return 0;
        return crystal_error_set(err, ENOENT,
                                 "a message for communicator %016llx, which this rank "
                                 "does not have",
                                 (unsigned long long)c->reader.head.comm_id);
    }
    c->held_since_ns = 0;
    (void)crystal_feed_take(&c->reader, &head); /* the line has the data or freed it */
    return code ? code : 1;
}

/* As recv, and takes a connection that is handed on. */
static ssize_t read_some(struct feed_connection *c, int fd, void *to, size_t want)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {to, want};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    int passed = -1;

    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof passed))
        memcpy(&passed, CMSG_DATA(head), sizeof passed);
    if (passed >= 0 && c->passed_fd >= 0)
        (void)close(passed); /* one at a time */
    else if (passed >= 0)
        c->passed_fd = passed;
    return got;
}

static int is_passing(const struct crystal_feed_reader *r)
{
    return r->head_got == sizeof r->head && r->head.magic == CRYSTAL_FEED_PASSED;
}

/* Reads what is there. 0 stay, 1 the connection passed_fd takes its place, negative:
 * close. */
static int connection_read(struct feed_connection *c, int fd, struct crystal_error *err)
{
    for (;;) {
        void *to = NULL;
        int64_t want = crystal_feed_want(&c->reader, &to, err);
        ssize_t got;
        int code;

        if (want < 0)
            return (int)want;
        if (want == 0) {
            code = message_put(c, err);
            if (code <= 0)
                return code;
            continue;
        }
        got = read_some(c, fd, to, (size_t)want);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0)
            return -EPIPE; /* the other rank is through */
        crystal_feed_got(&c->reader, (uint64_t)got);
        if (c->passed_fd >= 0 && is_passing(&c->reader))
            return 1;
    }
}

static void connection_accept(struct feed *feed)
{
    int fd = accept4(feed->fds[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    if (feed->count == FEED_CONNECTIONS ||
        !crystal_peer_admit(fd, "net", CRYSTAL_PEER_GONE_MAY)) {
        (void)close(fd); /* a stranger's */
        return;
    }
    memset(&feed->connections[feed->count], 0, sizeof feed->connections[0]);
    feed->connections[feed->count].passed_fd = -1;
    feed->fds[++feed->count] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void connection_drop(struct feed *feed, unsigned i)
{
    (void)close(feed->fds[i + 1].fd); /* nothing to lose */
    if (feed->connections[i].passed_fd >= 0)
        (void)close(feed->connections[i].passed_fd);
    crystal_feed_reader_fini(&feed->connections[i].reader);
    feed->count--;
    feed->fds[i + 1] = feed->fds[feed->count + 1];
    feed->connections[i] = feed->connections[feed->count];
}

/* From the agent's socket to the connection that came through it. */
static void connection_replace(struct feed *feed, unsigned i)
{
    struct feed_connection *c = &feed->connections[i];

    (void)close(feed->fds[i + 1].fd); /* it has said all */
    feed->fds[i + 1].fd = c->passed_fd;
    crystal_feed_reader_fini(&c->reader);
    c->passed_fd = -1;
}

static void *feed_main(void *argument)
{
    struct feed *feed = argument;

    for (;;) {
        int is_held = 0;

        for (unsigned i = feed->count; i-- > 0;) {
            struct feed_connection *c = &feed->connections[i];
            struct crystal_error err = {0};
            int code;

            if (!feed->fds[i + 1].revents && !c->held_since_ns)
                continue;
            code = connection_read(c, feed->fds[i + 1].fd, &err);
            if (code < 0 && code != -EPIPE)
                crystal_net_stop(feed->module, "rank %u: %s", feed->module->lrank,
                                 crystal_error_text(&err));
            if (code > 0)
                connection_replace(feed, i);
            else if (code < 0)
                connection_drop(feed, i);
            else if (c->held_since_ns)
                is_held = 1;
        }
        if (feed->fds[0].revents)
            connection_accept(feed);
        for (unsigned i = 0; i < feed->count; i++) /* a held one is not asked */
            feed->fds[i + 1].events = feed->connections[i].held_since_ns ? 0 : POLLIN;
        (void)poll(feed->fds, 1 + feed->count, is_held ? FEED_POLL_MS : -1);
    }
    return NULL;
}

static int feed_socket(struct crystal_net_module *module, struct crystal_error *err)
{
    struct sockaddr_un address;
    int fd, code = crystal_feed_address(crystal_board_directory(module->board),
                                        module->lrank, &address, err);

    if (code)
        return code;
    (void)unlink(address.sun_path); /* of an earlier process with this rank */
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
        listen(fd, SOMAXCONN) < 0) {
        code = crystal_error_set(err, errno, "'%s': %s", address.sun_path,
                                 strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return code;
    }
    return fd;
}

int crystal_feed_listen(struct crystal_net_module *module, struct crystal_error *err)
{
    struct feed *feed;
    int fd, code;

    if (the_feed)
        return 0;
    feed = calloc(1, sizeof *feed);
    if (!feed)
        return crystal_error_set(err, ENOMEM, "out of memory for feeds");
    fd = feed_socket(module, err);
    if (fd < 0) {
        free(feed);
        return fd;
    }
    feed->module = module;
    feed->fds[0] = (struct pollfd){.fd = fd, .events = POLLIN};
    code = crystal_thread_start(NULL, feed_main, feed);
    if (code) {
        (void)close(fd);
        free(feed);
        return crystal_error_set(err, code, "cannot start a thread: %s",
                                 strerror(code));
    }
    the_feed = feed;
    return 0;
}

int crystal_feed_connect(const struct crystal_net_module *module, uint32_t lrank,
                         struct crystal_error *err)
{
    const char *directory = crystal_board_directory(module->board);
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    struct crystal_msg_node node;
    int fd, found = crystal_places_find(directory, lrank, &node, token, err);

    if (found < 0)
        return found;
    if (!found || node.node == module->head->node)
        return crystal_feed_dial(directory, lrank, err);
    found = crystal_link_dial(&node, token, CRYSTAL_LINK_FEED, lrank, &fd, err);
    return found ? found : fd;
}
