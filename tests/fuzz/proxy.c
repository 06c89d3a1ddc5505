/* Whatever real ranks, roots and strangers send, the bootstrap proxy stands: every role
 * of a connection is fed any bytes, alone and as payload of well-formed frames. No
 * sockets: the proxy is detached, what it sends is lost.
 *
 * Input: 4 bytes (number of ranks, which are real, ranks per node, forged), then
 * records: role, number of bytes (2), bytes.
 */
#include "config.h"

#include "replay/proxy_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BOARD_USES 200

static char directory[64];
static struct crystal_board *board;
static unsigned board_uses;

static void remove_board(void)
{
    crystal_board_destroy(board);
    (void)rmdir(directory); /* nothing to do about it at exit */
}

static struct crystal_board *fresh_board(void)
{
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = 16,
                                          .mode = CRYSTAL_BOARD_IMMEDIATE,
                                          .comm_capacity = BOARD_USES,
                                          .heap_bytes = (uint64_t)BOARD_USES << 20};

    if (!directory[0]) {
        strcpy(directory, "/tmp/crystal-fuzz-XXXXXX");
        if (!mkdtemp(directory))
            abort();
        atexit(remove_board);
    }
    if (board && board_uses++ < BOARD_USES)
        return board;
    crystal_board_destroy(board);
    board_uses = 1;
    board = crystal_board_create(&config, NULL);
    if (!board)
        abort();
    return board;
}

static struct proxy_conn *open_conn(struct crystal_proxy *proxy,
                                    struct proxy_comm *comm, uint8_t role,
                                    uint32_t crank)
{
    static const enum proxy_conn_kind kinds[] = {PROXY_CONN_NEW,    PROXY_CONN_CHECKIN,
                                                 PROXY_CONN_ANSWER, PROXY_CONN_LINK,
                                                 PROXY_CONN_PEER,   PROXY_CONN_LINK};
    enum proxy_conn_kind kind = kinds[(role & 0x3f) % 6];
    struct proxy_conn *conn;

    if (!comm->is_open || comm->is_failed)
        return NULL;
    if (kind == PROXY_CONN_ANSWER || kind == PROXY_CONN_PEER)
        while (!proxy_comm_is_virtual(comm, crank))
            crank = (crank + 1) % comm->nranks;
    if (kind == PROXY_CONN_LINK) {
        struct proxy_link *link = &comm->links[crank % comm->link_count];

        if (link->conn)
            return link->conn;
        if (link->is_closed)
            return NULL;
        conn = proxy_conn_create(proxy, -1, kind, 0);
        conn->comm = comm;
        proxy_link_open(comm, link, conn);
        return conn;
    }
    conn = proxy_conn_create(proxy, -1, kind, 0);
    conn->crank = crank;
    conn->port = PROXY_PORT_ROOT + role % 4;
    if (kind == PROXY_CONN_NEW)
        proxy->new_count++;
    else
        conn->comm = comm;
    return conn;
}

/* The bytes as one frame, or as the payload of a frame of the size that comes next. */
static void feed(struct proxy_conn *conn, const uint8_t *bytes, size_t count,
                 bool is_framed)
{
    static const uint32_t sizes[] = {120, 120, 2292, 2, 40};
    uint8_t frame[4 + 2292] = {0};
    uint32_t index, size;

    if (!is_framed) {
        (void)proxy_conn_feed(conn, bytes, count);
        return;
    }
    index = conn->link ? conn->link->in_gather : 5;
    size = index < 5 ? sizes[index] : (uint32_t)(count < 2292 ? count : 2292);
    memcpy(frame, &size, 4);
    if (count)
        memcpy(frame + 4, bytes, count < size ? count : size);
    if (index == 1 && count % 7) { /* as it should be, mostly */
        struct proxy_comm *comm = conn->comm;
        const struct proxy_link *link = conn->link;
        uint32_t crank = comm->reals[link->real].crank, n = comm->nranks;

        crank = link->is_next ? (crank + n - link->in_frame % n) % n
                              : (crank + link->in_frame) % n;
        proxy_put_i32(frame + 4, 0, (int32_t)crank);
        proxy_put_i32(frame + 4, 112, 22809);
    } else if (index == 0 && count % 7) {
        proxy_put_i32(frame + 4, 0, 0x01000002); /* AF_INET, port 1 */
    }
    (void)proxy_conn_feed(conn, frame, 4 + size);
}

static struct proxy_comm *make_comm(struct crystal_proxy *proxy,
                                    struct crystal_layout *layout, const uint8_t *data)
{
    uint32_t members[16], n = 2 + data[0] % 15;
    uint8_t id[NCCL_UNIQUE_ID_BYTES] = {1, 2, 3, 4};
    struct crystal_error err = {0};
    struct proxy_comm *comm;
    static uint32_t salt;

    layout->lrank_count = 16;
    layout->ranks_per_node = 1 + data[2] % 8;
    for (uint32_t i = 0; i < n; i++) {
        members[i] = data[3] & 2 ? 15 - i : i;
        if (data[1] >> (i % 8) & 1)
            layout->sandbox[layout->sandbox_count++] = i;
    }
    salt++;
    memcpy(id + 4, &salt, sizeof salt);
    id[8] = 2; /* AF_INET */
    id[11] = 1;
    comm = proxy_comm_create(proxy, "fuzz", 1, n, members, &err);
    if (comm && proxy_comm_root(comm, 0, id, data[3] & 1, &err)) {
        proxy_comm_remove(comm);
        return NULL;
    }
    return comm;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t sandbox[16];
    struct crystal_layout layout = {.sandbox = sandbox};
    struct crystal_proxy *proxy;
    struct proxy_comm *comm;

    if (size < 4)
        return 0;
    proxy = calloc(1, sizeof *proxy);
    if (!proxy)
        abort();
    proxy->board = fresh_board();
    proxy->layout = &layout;
    proxy->messages = proxy_layout_find(0, false, NULL);
    proxy->comms_end = &proxy->comms;
    proxy->epoll_fd = -1;
    proxy->is_detached = true;
    (void)pthread_mutex_init(&proxy->lock, NULL); /* cannot fail on Linux */
    comm = make_comm(proxy, &layout, data);
    data += 4;
    size -= 4;
    if (comm && !comm->roots[0].is_forged)
        proxy_root_pump(comm);
    while (comm && size >= 4) {
        uint8_t role = data[0];
        uint32_t crank = data[1] % comm->nranks;
        size_t count = (size_t)data[2] | (size_t)(data[3] & 15) << 8;
        struct proxy_conn *conn = open_conn(proxy, comm, role, crank);

        data += 4;
        size -= 4;
        if (count > size)
            count = size;
        if (conn)
            feed(conn, data, count, role & 0x40);
        if (conn && !conn->is_dead)
            proxy_conn_flush(conn);
        if (conn && !conn->is_dead && role & 0x80) {
            if (conn->kind == PROXY_CONN_LINK)
                proxy_link_eof(conn);
            else
                proxy_conn_close(conn);
        }
        proxy_bury(proxy);
        data += count;
        size -= count;
    }
    crystal_proxy_destroy(proxy);
    return 0;
}
