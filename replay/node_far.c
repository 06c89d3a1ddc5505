/* See node_far.h. */
#include "config.h"

#include "replay/node_far.h"

#include "replay/board.h"
#include "replay/driver.h"
#include "replay/feed_socket.h"
#include "replay/node_links.h"
#include "replay/node_places.h"
#include "replay/proxy.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PORT_TRIES 32
#define MEET_MS    60000
#define PAUSE_MS   2

int node_far_alive(void *context, struct crystal_error *err)
{
    struct node_far *far = context;
    int code = far->coord ? crystal_client_wait_stop(far->coord, 0, err) : -ETIMEDOUT;

    if (code == -ETIMEDOUT)
        return 0;
    return code ? code : crystal_error_set(err, ECANCELED, "the job is over");
}

/* --- what other nodes say --- */

/* The proxies' port as node 0 would have it. The socket that was tried before goes. */
static int on_port(struct node_far *far, const void *body, uint32_t bytes)
{
    uint32_t word;
    uint16_t port;

    if (bytes != sizeof word)
        return -EBADMSG;
    memcpy(&word, body, sizeof word);
    if (!word || word > UINT16_MAX)
        return -EBADMSG;
    far->port = port = (uint16_t)word;
    if (crystal_links_shares_host(far->links))
        return 0;
    if (far->listen_fd >= 0)
        (void)close(far->listen_fd); /* nobody has come yet */
    far->listen_fd = -1;
    return crystal_proxy_listen(&port, &far->listen_fd, NULL);
}

static int on_comm(struct node_far *far, const void *body, uint32_t bytes)
{
    struct crystal_message_cursor cursor = {body, bytes};
    struct crystal_msg_comm_id msg;
    struct crystal_error err = {0};
    struct crystal_proxy *proxy = atomic_load(&far->proxy);
    const void *name_at, *members_at;
    char name[CRYSTAL_BOARD_NAME];
    uint32_t *members;
    int code;

    if (!proxy || crystal_message_take(&cursor, &msg, sizeof msg) < 0)
        return -EBADMSG;
    name_at = crystal_message_view(&cursor, msg.name_bytes);
    members_at = crystal_message_view(&cursor, (uint64_t)msg.member_count * 4);
    if (!name_at || !members_at || cursor.left_bytes || msg.name_bytes >= sizeof name ||
        !msg.member_count)
        return -EBADMSG;
    members = malloc((size_t)msg.member_count * 4);
    if (!members)
        return -ENOMEM;
    memcpy(members, members_at, (size_t)msg.member_count * 4);
    memcpy(name, name_at, msg.name_bytes);
    name[msg.name_bytes] = '\0';
    code = node_comm_put(proxy, 0, msg.id, name, msg.member_count, members, &err);
    free(members);
    if (code)
        crystal_board_abort(far->board, "%s", crystal_error_text(&err));
    return code;
}

static int on_child(struct node_far *far, uint32_t from, const void *body,
                    uint32_t bytes)
{
    struct crystal_proxy *proxy = atomic_load(&far->proxy);
    struct crystal_error err = {0};
    int code = proxy ? crystal_proxy_child(proxy, from, body, bytes, &err) : -EBADMSG;

    if (code && err.code)
        crystal_board_abort(far->board, "%s", crystal_error_text(&err));
    return code;
}

int node_far_message(void *context, uint32_t from, unsigned type, const void *body,
                     uint32_t bytes)
{
    struct node_far *far = context;
    struct crystal_driver *driver = atomic_load(&far->driver);

    switch (type) {
    case CRYSTAL_LINK_PORT:
        return from == 0 ? on_port(far, body, bytes) : -EBADMSG;
    case CRYSTAL_LINK_COMM:
        return on_comm(far, body, bytes);
    case CRYSTAL_LINK_RINGS:
        return crystal_proxy_rings(far->board, body, bytes);
    case CRYSTAL_LINK_CHILD:
        return on_child(far, from, body, bytes);
    case CRYSTAL_LINK_ARRIVAL:
    case CRYSTAL_LINK_START:
    case CRYSTAL_LINK_FREE:
        return driver ? crystal_driver_far(driver, type, body, bytes) : -EBADMSG;
    default:
        return -EBADMSG;
    }
}

static void on_bootstrap(void *context, int fd, uint32_t where)
{
    struct node_far *far = context;
    struct crystal_proxy *proxy = atomic_load(&far->proxy);

    if (proxy)
        crystal_proxy_adopt(proxy, fd, where);
    else
        (void)close(fd); /* nothing leads here yet */
}

static int on_feed(void *context, int fd, uint32_t lrank)
{
    struct node_far *far = context;

    return crystal_feed_pass(crystal_board_directory(far->board), lrank, fd);
}

static void on_clock(void *context, int64_t clock_ns)
{
    struct node_far *far = context;

    atomic_store(&crystal_board_header(far->board)->clock_ns, clock_ns);
}

/* --- setting up --- */

int node_far_meet(struct node_far *far, enum node_phase phase,
                  struct crystal_error *err)
{
    const struct timespec pause = {0, PAUSE_MS * 1000000L};
    int code = 0;

    for (int waited_ms = 0; far->links && !crystal_links_meet(far->links, phase);
         waited_ms += PAUSE_MS) {
        (void)nanosleep(&pause, NULL);
        code = node_far_alive(far, err);
        if (!code)
            code = crystal_links_status(far->links, err);
        if (!code && waited_ms >= MEET_MS)
            code =
                crystal_error_set(err, ETIMEDOUT,
                                  "an agent of another node is not ready after 60 s; "
                                  "see log/ in the job directory");
        if (code)
            return code;
    }
    return 0;
}

/* Node 0 looks for a port that is free on all hosts. */
static int choose_port(struct node_far *far, struct crystal_error *err)
{
    int code = -EADDRINUSE;

    for (int i = 0; i < PORT_TRIES && code == -EADDRINUSE; i++) {
        uint32_t word;

        if (far->listen_fd >= 0)
            (void)close(far->listen_fd); /* nobody has come yet */
        far->listen_fd = -1;
        far->port = 0;
        code = crystal_proxy_listen(&far->port, &far->listen_fd, err);
        if (code)
            return code;
        word = far->port;
        code =
            crystal_links_ask(far->links, CRYSTAL_LINK_PORT, &word, sizeof word, err);
    }
    if (code == -EADDRINUSE)
        return crystal_error_set(err, EADDRINUSE,
                                 "no port of %d that were tried is free on all nodes",
                                 PORT_TRIES);
    return code;
}

static int write_places(const struct node_far *far, const struct crystal_layout *layout,
                        struct crystal_error *err)
{
    struct crystal_place *ranks = calloc(layout->sandbox_count, sizeof *ranks);
    const uint32_t count = crystal_links_count(far->links);
    const uint32_t assistants = crystal_links_assistants(far->links);
    int code;

    if (!ranks)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < layout->sandbox_count; i++) {
        ranks[i].lrank = layout->sandbox[i];
        ranks[i].node = crystal_layout_node_of(layout, count, layout->sandbox[i]);
    }
    code = crystal_places_write(crystal_board_directory(far->board),
                                crystal_links_nodes(far->links), count + assistants,
                                assistants, crystal_links_token(far->links), ranks,
                                layout->sandbox_count, err);
    free(ranks);
    return code;
}

int node_far_connect(struct node_far *far, const struct crystal_node_config *config,
                     struct crystal_board *board, struct crystal_error *err)
{
    const struct crystal_links_hooks hooks = {.context = far,
                                              .message = node_far_message,
                                              .bootstrap = on_bootstrap,
                                              .feed = on_feed,
                                              .alive = node_far_alive,
                                              .clock = on_clock};
    struct crystal_board_header *head = crystal_board_header(board);
    int code;

    far->coord = config->coord;
    far->board = board;
    far->listen_fd = -1;
    if (!far->links)
        return 0;
    head->node = config->node;
    code =
        crystal_links_connect(far->links, config->node, config->nodes,
                              config->node_count, config->assistant_count, &hooks, err);
    if (!code && config->node == 0)
        code = choose_port(far, err);
    if (!code)
        code = node_far_meet(far, NODE_PORT_KNOWN, err);
    return code ? code : write_places(far, config->layout, err);
}

int node_far_comm(struct node_far *far, const uint8_t id[NCCL_UNIQUE_ID_BYTES],
                  const char *name, uint32_t nranks, const uint32_t *members,
                  struct crystal_error *err)
{
    struct crystal_msg_comm_id msg = {.name_bytes = (uint32_t)strlen(name),
                                      .member_count = nranks};
    size_t bytes = sizeof msg + msg.name_bytes + (size_t)nranks * 4;
    uint8_t *body;
    int code;

    if (!far->links)
        return 0;
    body = malloc(bytes);
    if (!body)
        return crystal_error_set(err, ENOMEM, "out of memory");
    memcpy(msg.id, id, sizeof msg.id);
    memcpy(body, &msg, sizeof msg);
    memcpy(body + sizeof msg, name, msg.name_bytes);
    memcpy(body + sizeof msg + msg.name_bytes, members, (size_t)nranks * 4);
    code = crystal_links_ask(far->links, CRYSTAL_LINK_COMM, body, (uint32_t)bytes, err);
    free(body);
    if (code)
        crystal_error_prefix(err, "communicator '%s'", name);
    return code;
}

void node_far_stop(struct node_far *far)
{
    crystal_links_stop(far->links);
}

void node_far_fini(struct node_far *far)
{
    if (far->links && far->listen_fd >= 0)
        (void)close(far->listen_fd); /* no proxy took it */
    crystal_links_destroy(far->links);
    far->links = NULL;
}
