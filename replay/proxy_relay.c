/* Bootstrap connections of real ranks of this machine to virtual ranks for which
 * another node answers: everything that comes is handed on, in both directions. */
#include "config.h"

#include "replay/node_links.h"
#include "replay/net_ops.h"
#include "replay/proxy_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define BACKLOG_HIGH (256U << 10)

bool proxy_comm_is_far(const struct proxy_comm *comm)
{
    return comm->owner != crystal_links_node(comm->proxy->links);
}

static size_t backlog(const struct proxy_conn *conn)
{
    return conn->out.end - conn->out.begin;
}

bool proxy_relay_is_full(const struct proxy_conn *conn)
{
    return conn->pair && backlog(conn->pair) > BACKLOG_HIGH;
}

void proxy_relay_begin(struct proxy_comm *comm, struct proxy_conn *conn)
{
    const struct crystal_links *links = comm->proxy->links;
    const uint32_t where = conn->port << PROXY_PORT_SHIFT | conn->crank;
    uint8_t hello[CRYSTAL_LINK_HELLO_BYTES];
    struct sockaddr_storage address;
    struct proxy_conn *pair;

    (void)crystal_link_address(&crystal_links_nodes(links)[comm->owner], &address);
    crystal_link_hello(crystal_links_token(links), CRYSTAL_LINK_BOOTSTRAP, where,
                       hello);
    conn->proxy->new_count--;
    conn->kind = PROXY_CONN_RELAY;
    conn->comm = comm;
    pair = proxy_dial(comm, PROXY_CONN_RELAY, (const uint8_t *)&address);
    if (!pair || !proxy_conn_put(pair, hello, sizeof hello)) {
        proxy_conn_close(conn);
        return;
    }
    conn->pair = pair;
    pair->pair = conn;
    proxy_relay_read(conn);
}

void proxy_relay_read(struct proxy_conn *conn)
{
    const uint8_t *bytes;
    size_t count = proxy_conn_input(conn, &bytes);

    if (!conn->pair || !count || !proxy_conn_put(conn->pair, bytes, count))
        return;
    proxy_conn_consume(conn, count);
    proxy_conn_flush(conn->pair);
}

void proxy_relay_sent(struct proxy_conn *conn)
{
    if (conn->pair && backlog(conn) < BACKLOG_HIGH)
        proxy_conn_watch(conn->pair,
                         EPOLLIN | (backlog(conn->pair) ? (uint32_t)EPOLLOUT : 0));
}

void proxy_relay_closed(struct proxy_conn *conn)
{
    struct proxy_conn *pair = conn->pair;

    if (!pair)
        return;
    conn->pair = pair->pair = NULL;
    pair->close_when_sent = true;
    if (!backlog(pair))
        proxy_conn_close(pair);
}

/* --- rings --- */

static int tell_rings(const struct proxy_comm *comm, uint32_t ring_count,
                      const uint32_t *ranks, bool alone, struct crystal_error *err)
{
    struct crystal_link_rings head = {.comm_id = comm->comm_id,
                                      .graph_channels = comm->graph_channels,
                                      .ring_count = ring_count,
                                      .nranks = comm->nranks,
                                      .alone = alone};
    const size_t bytes = sizeof *ranks * (size_t)ring_count * comm->nranks;
    uint8_t *body = malloc(sizeof head + bytes);

    if (!body)
        return crystal_error_set(err, ENOMEM, "out of memory");
    memcpy(body, &head, sizeof head);
    if (bytes)
        memcpy(body + sizeof head, ranks, bytes);
    crystal_links_tell(comm->proxy->links, CRYSTAL_LINK_RINGS, body,
                       (uint32_t)(sizeof head + bytes));
    free(body);
    return 0;
}

int proxy_relay_rings(struct proxy_comm *comm, uint32_t ring_count,
                      const uint32_t *ranks, bool alone, struct crystal_error *err)
{
    int code = comm->proxy->links ? tell_rings(comm, ring_count, ranks, alone, err) : 0;

    return code ? code
                : crystal_board_comm_rings(comm->proxy->board, comm->comm_id,
                                           ring_count, ranks, alone, err);
}

int crystal_proxy_rings(struct crystal_board *board, const void *body, uint32_t bytes)
{
    struct crystal_message_cursor cursor = {body, bytes};
    const struct crystal_board_comm *comm;
    struct crystal_link_rings head;
    const uint32_t *ranks;
    uint64_t count;

    if (crystal_message_take(&cursor, &head, sizeof head) < 0 ||
        head.ring_count > CRYSTAL_NET_CHANNELS)
        return -EBADMSG;
    comm = crystal_board_comm_find(board, head.comm_id);
    if (!comm)
        return 0; /* no member runs here */
    count = (uint64_t)head.ring_count * head.nranks;
    ranks = crystal_message_view(&cursor, count * sizeof *ranks);
    if (head.nranks != comm->nranks || !ranks || cursor.left_bytes)
        return -EBADMSG;
    for (uint64_t i = 0; i < count; i++)
        if (ranks[i] >= head.nranks)
            return -EBADMSG;
    if (head.graph_channels)
        crystal_board_comm_channels(board, head.comm_id, head.graph_channels);
    return crystal_board_comm_rings(board, head.comm_id, head.ring_count, ranks,
                                    head.alone != 0, NULL);
}
