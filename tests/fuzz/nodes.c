/* Whatever another node, or a stranger, sends to a node's service, it stands: the
 * stream of a connection between nodes in any pieces, what a connection begins with,
 * and the file that says where ranks are. What the messages say goes to a real board,
 * proxy, driver and timeline; only the proxy's sockets are missing.
 *
 * Input: one byte says which reader, one how many bytes a piece has, the rest is what
 * arrives. A stream begins with a message that says who the other node is.
 */
#include "config.h"

#include "replay/driver_internal.h"
#include "replay/node_far.h"
#include "replay/node_links_internal.h"
#include "replay/node_places.h"
#include "replay/proxy_internal.h"
#include "runtime/graph_write.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RANKS      4
#define BOARD_USES 200 /* each input may put a few communicators on it */
#define TIMES      5

static const uint8_t token[CRYSTAL_TOKEN_BYTES] = "the token of this job, 32 bytes";
static char directory[64];
static uint32_t sandbox[2] = {0, 2};
static struct crystal_layout layout = {
    .lrank_count = RANKS, .ranks_per_node = 2, .sandbox = sandbox, .sandbox_count = 2};
static struct crystal_graph *graph;
static struct crystal_program *programs[RANKS];
static uint64_t gaps[RANKS][16];
static const uint64_t *gap_list[RANKS] = {gaps[0], gaps[1], gaps[2], gaps[3]};
static uint8_t is_outside[RANKS] = {1, 0, 1, 0};
static struct crystal_board *board;

static void clean(void)
{
    char path[128];

    crystal_board_destroy(board);
    (void)snprintf(path, sizeof path, "%s/nodes", directory);
    (void)unlink(path); /* nothing to do about it at exit, as below */
    (void)rmdir(directory);
}

/* All reduce, then each sends to the next one. */
static void graph_make(void)
{
    static const uint32_t members[RANKS] = {0, 1, 2, 3}, map[1] = {0};
    struct crystal_graph_writer *w = crystal_graph_writer_create(RANKS);
    struct crystal_op coll = {.kind = CRYSTAL_OP_COLL,
                              .func = CRYSTAL_FUNC_ALLREDUCE,
                              .dtype = 7,
                              .value = 1000};
    struct crystal_op group = {.kind = CRYSTAL_OP_GROUP, .aux = 1};
    struct crystal_op sync = {.kind = CRYSTAL_OP_SYNC};
    struct crystal_op message = {.dtype = 7, .value = 100};
    char path[128];

    if (!w)
        abort();
    (void)crystal_graph_writer_comm(w, NULL, RANKS, members);
    for (uint32_t r = 0; r < RANKS; r++) {
        (void)crystal_graph_writer_rep(w, r, 1);
        crystal_graph_writer_mark(w);
        crystal_graph_writer_op(w, &coll);
        group.aux = 1;
        crystal_graph_writer_op(w, &group);
        message.kind = CRYSTAL_OP_SEND;
        message.func = CRYSTAL_FUNC_SEND;
        message.peer = (r + 1) % RANKS;
        crystal_graph_writer_op(w, &message);
        message.kind = CRYSTAL_OP_RECV;
        message.func = CRYSTAL_FUNC_RECV;
        message.peer = (r + RANKS - 1) % RANKS;
        crystal_graph_writer_op(w, &message);
        group.aux = 0;
        crystal_graph_writer_op(w, &group);
        crystal_graph_writer_op(w, &sync);
        crystal_graph_writer_mark(w);
        gaps[r][0] = 1000000;
    }
    for (uint32_t r = 0; r < RANKS; r++)
        crystal_graph_writer_rank(w, r, r, map);
    (void)snprintf(path, sizeof path, "%s/graph", directory);
    if (crystal_graph_writer_write(w, path, 0, NULL))
        abort();
    crystal_graph_writer_destroy(w);
    graph = crystal_graph_open(path, NULL);
    (void)unlink(path); /* it stays open */
    for (uint32_t r = 0; graph && r < RANKS; r++)
        programs[r] = crystal_program_create(graph, r, NULL);
    if (!programs[RANKS - 1])
        abort();
}

static void board_make(void)
{
    static unsigned uses;
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = RANKS,
                                          .mode = CRYSTAL_BOARD_TIMED,
                                          .comm_capacity = BOARD_USES,
                                          .heap_bytes = (uint64_t)BOARD_USES << 20};

    if (!directory[0]) {
        (void)setenv("CRYSTAL_LOG", "error", 1);
        strcpy(directory, "/tmp/crystal-fuzz-XXXXXX");
        if (!mkdtemp(directory))
            abort();
        atexit(clean);
        graph_make();
    }
    if (board && ++uses % (BOARD_USES / 4))
        return;
    crystal_board_destroy(board);
    board = crystal_board_create(&config, NULL);
    if (!board)
        abort();
}

/* --- a node --- */

struct node {
    struct crystal_links *links;
    struct node_far far;
    struct crystal_proxy *proxy;
    struct crystal_driver driver;
};

static void on_bootstrap(void *context, int fd, uint32_t where)
{
    (void)context;
    (void)where;
    (void)close(fd);
}

static int on_feed(void *context, int fd, uint32_t lrank)
{
    (void)context;
    (void)lrank;
    (void)close(fd);
    return 0;
}

static void on_wire(void *context, int fd)
{
    (void)context;
    (void)close(fd);
}

static void on_clock(void *context, int64_t clock_ns)
{
    (void)context;
    (void)clock_ns;
}

static void links_make(struct node *n)
{
    struct crystal_links *l =
        crystal_links_create(token, &(struct crystal_ports){0, 0}, NULL);

    if (!l)
        abort();
    l->node = 1;
    l->node_count = 3;
    l->hooks = (struct crystal_links_hooks){.context = &n->far,
                                            .message = node_far_message,
                                            .bootstrap = on_bootstrap,
                                            .feed = on_feed,
                                            .wire = on_wire,
                                            .clock = on_clock};
    l->nodes = calloc(l->node_count, sizeof *l->nodes);
    l->peers = calloc(l->node_count, sizeof *l->peers);
    if (!l->nodes || !l->peers)
        abort();
    for (uint32_t i = 0; i < l->node_count; i++) {
        l->peers[i].links = l;
        l->peers[i].node = i;
        l->peers[i].fd = -1;
        (void)pthread_mutex_init(&l->peers[i].send_lock, NULL);
    }
    n->links = l;
}

static void driver_make(struct node *n)
{
    struct crystal_timeline_config config = {
        .graph = graph,
        .programs = programs,
        .gap_ns = gap_list,
        .is_outside = is_outside,
        .nics = CRYSTAL_NICS_OF_ALL,
        .wire = {.bytes_per_s = 1000000000, .latency_ns = 1000}};
    struct crystal_driver *d = &n->driver;

    d->links = n->links;
    d->board = board;
    d->head = crystal_board_header(board);
    d->comms = calloc(d->head->comm_capacity, sizeof *d->comms);
    d->graph = graph;
    d->timeline = crystal_timeline_create(&config, NULL);
    (void)pthread_mutex_init(&d->inbox_lock, NULL);
    if (!d->comms || !d->timeline)
        abort();
}

static void node_make(struct node *n)
{
    memset(n, 0, sizeof *n);
    board_make();
    links_make(n);
    n->proxy = calloc(1, sizeof *n->proxy);
    if (!n->proxy)
        abort();
    n->proxy->board = board;
    n->proxy->layout = &layout;
    n->proxy->messages = proxy_layout_find(0, false, NULL);
    n->proxy->comms_end = &n->proxy->comms;
    n->proxy->epoll_fd = -1;
    n->proxy->is_detached = true;
    (void)pthread_mutex_init(&n->proxy->lock, NULL);
    driver_make(n);
    n->far.links = n->links;
    n->far.board = board;
    n->far.listen_fd = -1;
    atomic_store(&n->far.proxy, n->proxy);
    atomic_store(&n->far.driver, &n->driver);
}

static void node_end(struct node *n)
{
    if (n->far.listen_fd >= 0)
        (void)close(n->far.listen_fd);
    crystal_links_destroy(n->links);
    crystal_timeline_destroy(n->driver.timeline);
    free(n->driver.comms);
    free(n->driver.inbox);
    free(n->driver.letters);
    crystal_proxy_destroy(n->proxy);
}

static void rounds(struct node *n)
{
    for (int i = 0; i < TIMES; i++)
        if (crystal_loop_step(n->links->loop, 0, NULL) < 0)
            abort();
}

/* --- readers --- */

/* Node 0 writes pieces. */
static void stream(size_t piece, const uint8_t *data, size_t size)
{
    struct node n;
    int fds[2];

    node_make(&n);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        abort();
    n.links->peers[0].fd = fds[0];
    if (links_watch(n.links, NULL))
        abort();
    while (size) {
        ssize_t wrote = send(fds[1], data, size < piece ? size : piece, MSG_NOSIGNAL);

        if (wrote <= 0)
            break;
        data += wrote;
        size -= (size_t)wrote;
        rounds(&n);
        (void)dr_far_look(&n.driver);
        if (n.driver.is_started && !n.driver.is_failed)
            (void)crystal_timeline_advance(n.driver.timeline, UINT64_C(1) << 40, NULL);
    }
    (void)close(fds[1]);
    rounds(&n);
    node_end(&n);
}

/* Somebody at the node's port. */
static int dial(uint16_t port)
{
    const struct linger none = {1, 0}; /* its port is free again at once */
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) ||
        connect(fd, (struct sockaddr *)&to, sizeof to))
        abort();
    return fd;
}

static void stranger(size_t piece, const uint8_t *data, size_t size)
{
    struct node n;
    int fd;

    node_make(&n);
    n.links->node = 0; /* so the others dial */
    if (links_watch(n.links, NULL))
        abort();
    fd = dial((uint16_t)n.links->port);
    while (size) {
        ssize_t wrote =
            send(fd, data, size < piece ? size : piece, MSG_NOSIGNAL | MSG_DONTWAIT);

        rounds(&n);
        if (wrote <= 0)
            break;
        data += wrote;
        size -= (size_t)wrote;
    }
    (void)close(fd);
    rounds(&n);
    node_end(&n);
}

static void places(const uint8_t *data, size_t size)
{
    uint8_t got_token[CRYSTAL_TOKEN_BYTES];
    struct crystal_msg_node node;
    char path[128];
    int fd;

    board_make();
    (void)snprintf(path, sizeof path, "%s/nodes", directory);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    (void)close(fd);
    for (uint32_t lrank = 0; lrank < RANKS; lrank++) {
        (void)crystal_places_find(directory, lrank, &node, got_token, NULL);
        (void)crystal_places_assistant(directory, lrank, &node, got_token, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t piece;

    if (size < 2)
        return 0;
    piece = data[1] ? data[1] : 4096;
    switch (data[0] % 4) {
    case 0:
    case 1:
        stream(piece, data + 2, size - 2);
        break;
    case 2:
        stranger(piece, data + 2, size - 2);
        break;
    default:
        places(data + 2, size - 2);
    }
    return 0;
}
