/* The links between nodes: three services in this process find each other, ask, meet
 * and part; what strangers are told, and what a connection that is cut looks like. The
 * clock of another node, from messages there and back.
 */
#include "config.h"

#include "replay/node_clock.h"
#include "replay/node_links.h"
#include "runtime/clock.h"
#include "runtime/loop.h"

#include "tests/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define COUNT 3

static uint8_t token[CRYSTAL_TOKEN_BYTES] = "the token of this job, 32 bytes";

struct node {
    struct crystal_links *links;
    uint32_t number;
    struct crystal_msg_node *nodes;
    int connected; /* what connect gave */
    struct crystal_error err;
    pthread_t thread;
    _Atomic int answer; /* of its message hook */
    _Atomic uint32_t heard_type, heard_word, heard_from, heard_count;
    _Atomic uint32_t where; /* of a bootstrap connection */
    _Atomic int fd;         /* that a hook was given */
    _Atomic uint32_t lrank, feed_tries;
};

static struct node nodes[COUNT];
static struct crystal_msg_node places[COUNT];

static void pause_ms(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};

    (void)nanosleep(&pause, NULL);
}

static int on_message(void *context, uint32_t from, unsigned type, const void *body,
                      uint32_t bytes)
{
    struct node *n = context;
    uint32_t word = 0;

    if (bytes == sizeof word)
        memcpy(&word, body, sizeof word);
    atomic_store(&n->heard_word, word);
    atomic_store(&n->heard_from, from);
    atomic_store(&n->heard_type, type);
    (void)atomic_fetch_add(&n->heard_count, 1);
    return atomic_load(&n->answer);
}

static void on_bootstrap(void *context, int fd, uint32_t where)
{
    struct node *n = context;

    atomic_store(&n->where, where);
    atomic_store(&n->fd, fd);
}

/* The rank is there at the third look. */
static int on_feed(void *context, int fd, uint32_t lrank)
{
    struct node *n = context;

    atomic_store(&n->lrank, lrank);
    if (atomic_fetch_add(&n->feed_tries, 1) < 2)
        return -EAGAIN;
    atomic_store(&n->fd, fd);
    return 0;
}

static int alive(void *context, struct crystal_error *err)
{
    (void)context;
    (void)err;
    return 0;
}

static void on_clock(void *context, int64_t clock_ns)
{
    (void)context;
    (void)clock_ns;
}

static void *connect_main(void *argument)
{
    struct node *n = argument;
    const struct crystal_links_hooks hooks = {.context = n,
                                              .message = on_message,
                                              .bootstrap = on_bootstrap,
                                              .feed = on_feed,
                                              .alive = alive,
                                              .clock = on_clock};

    n->connected =
        crystal_links_connect(n->links, n->number, places, COUNT, 0, &hooks, &n->err);
    return NULL;
}

static void open_all(void)
{
    memset(nodes, 0, sizeof nodes);
    memset(places, 0, sizeof places);
    for (uint32_t i = 0; i < COUNT; i++) {
        struct crystal_error err = {0};
        static const uint8_t loopback[16] = {
            [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};

        nodes[i].number = i;
        nodes[i].fd = -1;
        nodes[i].links =
            crystal_links_create(token, &(struct crystal_ports){0, 0}, &err);
        CHECK_STR(err.text, "");
        places[i].node = i;
        places[i].node_count = COUNT;
        places[i].port = crystal_links_port(nodes[i].links);
        memcpy(places[i].address, loopback, sizeof loopback);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK_EQ(pthread_create(&nodes[i].thread, NULL, connect_main, &nodes[i]), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        (void)pthread_join(nodes[i].thread, NULL);
        CHECK_EQ(nodes[i].connected, 0);
        CHECK_STR(nodes[i].err.text, "");
    }
}

static void close_all(void)
{
    for (uint32_t i = 0; i < COUNT; i++)
        crystal_links_destroy(nodes[i].links);
}

static void wait_until(_Atomic uint32_t *word, uint32_t value)
{
    for (int i = 0; i < 12000 && atomic_load(word) != value; i++)
        pause_ms(5);
    CHECK_EQ(atomic_load(word), value);
}

static void nodes_find_each_other(void)
{
    uint32_t word = 77;

    open_all();
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_EQ(crystal_links_node(nodes[i].links), i);
        CHECK_EQ(crystal_links_count(nodes[i].links), COUNT);
        CHECK_EQ(crystal_links_clock_ns(nodes[i].links), 0); /* one clock */
        CHECK_EQ(crystal_links_shares_host(nodes[i].links), i > 0);
    }
    crystal_links_send(nodes[2].links, 1, CRYSTAL_LINK_FREE, &word, sizeof word);
    wait_until(&nodes[1].heard_count, 1);
    CHECK_EQ(nodes[1].heard_type, CRYSTAL_LINK_FREE);
    CHECK_EQ(nodes[1].heard_from, 2);
    CHECK_EQ(nodes[1].heard_word, 77);
    crystal_links_tell(nodes[0].links, CRYSTAL_LINK_FREE, &word, sizeof word);
    wait_until(&nodes[1].heard_count, 2);
    wait_until(&nodes[2].heard_count, 1);
    CHECK_EQ(nodes[0].heard_count, 0);
    close_all();
}

static void questions(void)
{
    struct crystal_error err = {0};
    uint32_t word = 5;

    open_all();
    CHECK_EQ(
        crystal_links_ask(nodes[1].links, CRYSTAL_LINK_PORT, &word, sizeof word, &err),
        0);
    CHECK_EQ(nodes[0].heard_count, 1);
    CHECK_EQ(nodes[2].heard_count, 1);
    nodes[2].answer = -EADDRINUSE;
    CHECK_EQ(
        crystal_links_ask(nodes[0].links, CRYSTAL_LINK_PORT, &word, sizeof word, &err),
        -EADDRINUSE);
    CHECK_STR(err.text, "the agent of another node has failed; see log/ in the job "
                        "directory");
    close_all();
}

static void phases(void)
{
    open_all();
    CHECK_EQ(crystal_links_meet(nodes[0].links, 1), 0);
    CHECK_EQ(crystal_links_meet(nodes[1].links, 1), 0);
    for (int i = 0; i < 12000 && !crystal_links_meet(nodes[2].links, 1); i++)
        pause_ms(5);
    for (uint32_t n = 0; n < COUNT; n++) {
        for (int i = 0; i < 12000 && !crystal_links_meet(nodes[n].links, 1); i++)
            pause_ms(5);
        CHECK_EQ(crystal_links_meet(nodes[n].links, 1), 1);
    }
    CHECK_EQ(crystal_links_meet(nodes[1].links, 2), 0);
    CHECK_EQ(crystal_links_meet(NULL, 9), 1); /* alone */
    close_all();
}

static void a_node_leaves(void)
{
    struct crystal_error err = {0};

    open_all();
    crystal_links_destroy(nodes[1].links);
    nodes[1].links = NULL;
    pause_ms(2300);
    CHECK_EQ(crystal_links_status(nodes[0].links, &err), 0);
    CHECK_EQ(crystal_links_status(nodes[2].links, &err), 0);
    CHECK_STR(err.text, "");
    close_all();
}

/* --- faults --- */

/* Ends a connection of this process to the service at `port`, under its feet. */
static void cut(uint32_t port)
{
    int count = 0;

    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage peer;
        socklen_t bytes = sizeof peer;
        const struct sockaddr_in *in = (const void *)&peer;

        if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 &&
            peer.ss_family == AF_INET && ntohs(in->sin_port) == port && !count++)
            (void)shutdown(fd, SHUT_RDWR);
    }
    CHECK(count > 0);
}

/* Not at once: whoever knows why speaks first. Node 2 has the third connection. */
static void a_connection_is_cut(void)
{
    struct crystal_error err = {0};
    uint64_t begin_ns = crystal_now_ns(), took_ns;

    open_all();
    cut(places[1].port); /* of node 2 to node 1 */
    while (!crystal_links_status(nodes[1].links, &err) &&
           crystal_now_ns() - begin_ns < 60000000000U)
        pause_ms(20);
    took_ns = crystal_now_ns() - begin_ns;
    CHECK_STR(err.text, "the connection to the agent of node 2 is cut; see log/ in the "
                        "job directory");
    CHECK(took_ns > 1900000000U);
    memset(&err, 0, sizeof err);
    CHECK_EQ(crystal_links_status(nodes[2].links, &err), -ECONNRESET);
    CHECK_STR(err.text, "the connection to the agent of node 1 is cut; see log/ in the "
                        "job directory");
    CHECK_EQ(crystal_links_status(nodes[0].links, NULL), 0);
    close_all();
}

/* A socket to node 0, what was said on it, and whether it was closed within a while. */
static int stranger(const void *bytes, size_t count)
{
    struct sockaddr_storage address;
    socklen_t length = crystal_link_address(&places[0], &address);
    struct timeval limit = {5, 0};
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    CHECK_EQ(connect(fd, (struct sockaddr *)&address, length), 0);
    CHECK_EQ(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    return fd;
}

static int is_closed(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    int closed = got == 0 || (got < 0 && errno == ECONNRESET);

    (void)close(fd);
    return closed;
}

static void strangers_are_closed(void)
{
    uint8_t hello[CRYSTAL_LINK_HELLO_BYTES], other[CRYSTAL_TOKEN_BYTES];
    uint32_t word = 3;

    open_all();
    memcpy(other, token, sizeof other);
    other[31] ^= 1;
    crystal_link_hello(other, CRYSTAL_LINK_BOOTSTRAP, 1, hello);
    CHECK(is_closed(stranger(hello, sizeof hello))); /* another job's token */
    crystal_link_hello(token, (enum crystal_link_role)CRYSTAL_ROLE_RANK, 1, hello);
    CHECK(is_closed(stranger(hello, sizeof hello))); /* the coordinator's client */
    crystal_link_hello(token, CRYSTAL_LINK_NODE, 1, hello);
    CHECK(is_closed(stranger(hello, sizeof hello))); /* node 1 is there already */
    crystal_link_hello(token, CRYSTAL_LINK_NODE, 0, hello);
    CHECK(is_closed(stranger(hello, sizeof hello))); /* itself */
    crystal_link_hello(token, CRYSTAL_LINK_NODE, 4000000000U, hello);
    CHECK(is_closed(stranger(hello, sizeof hello)));
    memset(hello, 'x', sizeof hello);
    CHECK(is_closed(stranger(hello, sizeof hello)));
    crystal_link_hello(token, CRYSTAL_LINK_FEED, 1, hello);
    hello[12]++; /* a body of another length */
    CHECK(is_closed(stranger(hello, sizeof hello)));
    /* and the nodes have not noticed */
    crystal_links_tell(nodes[0].links, CRYSTAL_LINK_FREE, &word, sizeof word);
    wait_until(&nodes[1].heard_count, 1);
    CHECK_EQ(crystal_links_status(nodes[1].links, NULL), 0);
    CHECK_EQ(nodes[0].fd, -1);
    close_all();
}

/* Their fds come behind the HELLO, with the next byte unread. */
static void connections_for_others(void)
{
    struct crystal_error err = {0};
    char byte = 'b';
    int fd = -1;

    open_all();
    CHECK_EQ(crystal_link_dial(&places[0], token, CRYSTAL_LINK_BOOTSTRAP, 0x812345, &fd,
                               &err),
             0);
    CHECK_EQ(send(fd, &byte, 1, 0), 1);
    wait_until(&nodes[0].where, 0x812345);
    for (int i = 0; i < 12000 && nodes[0].fd < 0; i++)
        pause_ms(5);
    byte = 0;
    CHECK_EQ(recv(nodes[0].fd, &byte, 1, 0), 1);
    CHECK_EQ(byte, 'b');
    (void)close(nodes[0].fd);
    (void)close(fd);
    nodes[0].fd = -1;
    CHECK_EQ(crystal_link_dial(&places[0], token, CRYSTAL_LINK_FEED, 42, &fd, &err), 0);
    wait_until(&nodes[0].lrank, 42);
    wait_until(&nodes[0].feed_tries, 3);
    for (int i = 0; i < 12000 && nodes[0].fd < 0; i++)
        pause_ms(5);
    (void)close(nodes[0].fd);
    (void)close(fd);
    close_all();
    places[0].port = 1;
    CHECK_EQ(crystal_link_dial(&places[0], token, CRYSTAL_LINK_FEED, 42, &fd, &err),
             -ECONNREFUSED);
    CHECK_STR(err.text,
              "cannot connect to the agent of node 0: Connection refused; see "
              "log/ in the job directory");
}

/* --- the clock --- */

/* The other clock is 5 s behind; the third message is the quickest one, with 10 us
 * there and 12 us back. */
static void the_quickest_message_counts(void)
{
    struct crystal_clock clock = {0};
    int64_t offset_ns = 0;

    for (uint64_t i = 0; i < CRYSTAL_CLOCK_ROUND; i++) {
        uint64_t there_ns = i == 2 ? 10000 : 70000 + i,
                 back_ns = i == 2 ? 12000 : 90000;
        uint64_t sent_ns = 60000000000U + i * 1000000;
        int done = crystal_clock_add(&clock, sent_ns, sent_ns + there_ns - 5000000000U,
                                     sent_ns + there_ns + back_ns, &offset_ns);

        CHECK_EQ(done, i == CRYSTAL_CLOCK_ROUND - 1);
    }
    CHECK_EQ(offset_ns, -5000001000); /* half of what the ways differ by */
    CHECK_EQ(clock.count, 0);
    CHECK_EQ(crystal_clock_add(&clock, 20, 5, 10, &offset_ns), 0); /* not ours */
    CHECK_EQ(clock.count, 0);
}

static void namespaces_have_numbers(void)
{
    CHECK_EQ(crystal_namespace_id("net"), crystal_namespace_id("net"));
    CHECK(crystal_namespace_id("net") != crystal_namespace_id("pid"));
}

int main(void)
{
    check_begin();
    CHECK_RUN(nodes_find_each_other);
    CHECK_RUN(questions);
    CHECK_RUN(phases);
    CHECK_RUN(a_node_leaves);
    CHECK_RUN(a_connection_is_cut);
    CHECK_RUN(strangers_are_closed);
    CHECK_RUN(connections_for_others);
    CHECK_RUN(the_quickest_message_counts);
    CHECK_RUN(namespaces_have_numbers);
    return check_end();
}
