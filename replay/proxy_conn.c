/* Connections of the bootstrap proxy: addresses, queued bytes, dialling, reading; what
 * the bytes mean is for others. */
#include "config.h"

#include "replay/proxy_internal.h"
#include "runtime/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* --- addresses --- */

void proxy_address(const struct crystal_proxy *proxy, enum proxy_port port,
                   uint32_t crank, uint8_t ret[PROXY_ADDRESS_BYTES])
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(proxy->tcp_port)};

    in.sin_addr.s_addr =
        htonl(0x7f000000U | (uint32_t)port << PROXY_PORT_SHIFT | crank);
    memset(ret, 0, PROXY_ADDRESS_BYTES);
    memcpy(ret, &in, sizeof in);
}

/* Length for connect(), 0 for a family that is none of NCCL's. */
static socklen_t address_length(const uint8_t address[PROXY_ADDRESS_BYTES])
{
    sa_family_t family;

    memcpy(&family, address + offsetof(struct sockaddr, sa_family), sizeof family);
    if (family == AF_INET)
        return sizeof(struct sockaddr_in);
    return family == AF_INET6 ? sizeof(struct sockaddr_in6) : 0;
}

bool proxy_address_is_usable(const uint8_t address[PROXY_ADDRESS_BYTES])
{
    in_port_t port;

    memcpy(&port, address + offsetof(struct sockaddr_in, sin_port), sizeof port);
    return address_length(address) && port;
}

const char *proxy_address_text(const uint8_t address[PROXY_ADDRESS_BYTES], char *text,
                               size_t text_bytes)
{
    char host[INET6_ADDRSTRLEN] = "?";
    in_port_t port;

    if (address_length(address) == sizeof(struct sockaddr_in))
        (void)inet_ntop(AF_INET, address + offsetof(struct sockaddr_in, sin_addr), host,
                        sizeof host);
    else if (address_length(address))
        (void)inet_ntop(AF_INET6, address + offsetof(struct sockaddr_in6, sin6_addr),
                        host, sizeof host);
    memcpy(&port, address + offsetof(struct sockaddr_in, sin_port), sizeof port);
    (void)snprintf(text, text_bytes, "%s port %u", host, ntohs(port));
    return text;
}

/* --- bytes --- */

static bool bytes_reserve(struct proxy_bytes *b, size_t count)
{
    size_t used = b->end - b->begin, capacity = b->capacity ? b->capacity : 512;
    uint8_t *data;

    if (b->capacity - b->end >= count)
        return true;
    if (b->begin) {
        memmove(b->data, b->data + b->begin, used);
        b->begin = 0;
        b->end = used;
    }
    while (capacity - used < count)
        capacity *= 2;
    if (capacity == b->capacity)
        return true;
    data = realloc(b->data, capacity);
    if (!data)
        return false;
    b->data = data;
    b->capacity = capacity;
    return true;
}

static void bytes_free(struct proxy_bytes *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

/* --- connections --- */

struct proxy_conn *proxy_conn_create(struct crystal_proxy *proxy, int fd,
                                     enum proxy_conn_kind kind, uint32_t events)
{
    struct proxy_conn *conn = calloc(1, sizeof *conn);
    struct epoll_event event = {.events = events, .data.ptr = conn};

    if (!conn)
        return NULL;
    conn->proxy = proxy;
    conn->fd = fd;
    conn->kind = kind;
    conn->events = events;
    if (fd >= 0 && epoll_ctl(proxy->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        free(conn);
        return NULL;
    }
    conn->prev = proxy->last;
    if (proxy->last)
        proxy->last->next = conn;
    else
        proxy->first = conn;
    proxy->last = conn;
    return conn;
}

void proxy_conn_close(struct proxy_conn *conn)
{
    struct crystal_proxy *proxy = conn->proxy;

    if (conn->is_dead)
        return;
    conn->is_dead = true;
    if (conn->fd >= 0) {
        /* a child between fork and exec may hold it too: close alone would leave it in
         * epoll, with a pointer to us */
        (void)epoll_ctl(proxy->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
        (void)close(conn->fd);
    }
    conn->fd = -1;
    bytes_free(&conn->in);
    bytes_free(&conn->out);
    proxy_relay_closed(conn);
    if (conn->kind == PROXY_CONN_NEW)
        proxy->new_count--;
    if (conn->is_parked)
        conn->comm->parked_count--;
    if (conn->link && conn->link->conn == conn)
        conn->link->conn = NULL;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        proxy->first = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    else
        proxy->last = conn->prev;
    conn->next = proxy->dead;
    proxy->dead = conn;
    if (conn->kind == PROXY_CONN_ATROOT)
        proxy_root_left(conn->comm);
}

bool proxy_conn_feed(struct proxy_conn *conn, const void *bytes, size_t count)
{
    if (conn->is_dead || count > PROXY_INPUT_MAX ||
        conn->in.end - conn->in.begin > PROXY_INPUT_MAX - count ||
        !bytes_reserve(&conn->in, count))
        return false;
    if (count)
        memcpy(conn->in.data + conn->in.end, bytes, count);
    conn->in.end += count;
    proxy_conn_handle(conn);
    return !conn->is_dead;
}

void proxy_bury(struct crystal_proxy *proxy)
{
    while (proxy->dead) {
        struct proxy_conn *conn = proxy->dead;

        proxy->dead = conn->next;
        free(conn);
    }
}

void proxy_conn_watch(struct proxy_conn *conn, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};

    if (conn->fd < 0 || conn->events == events)
        return;
    conn->events = events;
    (void)epoll_ctl(conn->proxy->epoll_fd, EPOLL_CTL_MOD, conn->fd,
                    &event); /* the descriptor is in it */
}

bool proxy_conn_put(struct proxy_conn *conn, const void *bytes, size_t count)
{
    if (conn->is_dead)
        return false;
    if (!bytes_reserve(&conn->out, count)) {
        proxy_comm_fail(conn->comm, "out of memory");
        return false;
    }
    if (count)
        memcpy(conn->out.data + conn->out.end, bytes, count);
    conn->out.end += count;
    return true;
}

bool proxy_conn_put_handshake(struct proxy_conn *conn, uint64_t magic)
{
    int32_t type = PROXY_SOCKET_BOOTSTRAP;

    return proxy_conn_put(conn, &magic, sizeof magic) &&
           proxy_conn_put(conn, &type, sizeof type);
}

bool proxy_conn_put_frame(struct proxy_conn *conn, const void *bytes, uint32_t count)
{
    return proxy_conn_put(conn, &count, sizeof count) &&
           proxy_conn_put(conn, bytes, count);
}

void proxy_conn_broke(struct proxy_conn *conn, int code)
{
    struct proxy_comm *comm = conn->comm;

    switch (conn->kind) {
    case PROXY_CONN_LINK:
        if (!conn->connecting) {
            proxy_link_eof(conn);
            return;
        }
        proxy_comm_lose(comm,
                        "cannot connect to the next rank of virtual rank %u: %s; "
                        "see that rank's log",
                        conn->crank, strerror(code));
        break;
    case PROXY_CONN_ATROOT:
        if ((conn->out.begin != conn->out.end || conn->connecting) &&
            proxy_root_is_missed(comm))
            proxy_comm_lose(comm,
                            "cannot check virtual rank %u in at the root of real rank "
                            "0: %s; see that rank's log",
                            conn->crank, strerror(code));
        break;
    case PROXY_CONN_PEER:
        if (conn->in.begin != conn->in.end && !conn->is_parked && code == ECONNRESET &&
            proxy_connect_is_early(conn)) {
            conn->is_parked = true; /* proxy_connect_retry reads it */
            comm->parked_count++;
            proxy_conn_watch(conn, 0);
            return;
        }
        break;
    case PROXY_CONN_RELAY:
        if (conn->connecting)
            proxy_comm_fail(comm,
                            "cannot connect to the agent of node %u, which answers for "
                            "its virtual ranks: %s; see log/ in the job directory",
                            comm->owner, strerror(code));
        break;
    case PROXY_CONN_ONCE:
        proxy_comm_lose(comm, "a real rank does not answer: %s; see the ranks' logs",
                        strerror(code));
        break;
    default: /* a stranger, or a peer that has nothing more to say */
        break;
    }
    proxy_conn_close(conn);
}

/* Sends what is queued; links make more as long as the socket takes it. */
void proxy_conn_flush(struct proxy_conn *conn)
{
    for (;;) {
        ssize_t sent;

        if (conn->is_dead || conn->connecting)
            return;
        if (conn->kind == PROXY_CONN_LINK)
            proxy_link_fill(conn->comm, conn->link);
        if (conn->is_dead || conn->out.begin == conn->out.end)
            break;
        if (conn->fd < 0) { /* detached: nobody reads it */
            conn->out.begin = conn->out.end = 0;
            continue;
        }
        sent = send(conn->fd, conn->out.data + conn->out.begin,
                    conn->out.end - conn->out.begin, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN) {
            proxy_conn_watch(conn, EPOLLIN | EPOLLOUT);
            return;
        }
        if (sent < 0) {
            proxy_conn_broke(conn, errno);
            return;
        }
        conn->proxy->counters.bytes_out += (uint64_t)sent;
        conn->out.begin += (size_t)sent;
        if (conn->out.begin == conn->out.end)
            conn->out.begin = conn->out.end = 0;
        proxy_relay_sent(conn);
    }
    if (conn->is_dead)
        return;
    if (conn->close_when_sent)
        proxy_conn_close(conn);
    else if (!conn->is_parked)
        proxy_conn_watch(conn, EPOLLIN);
}

struct proxy_conn *proxy_dial(struct proxy_comm *comm, enum proxy_conn_kind kind,
                              const uint8_t address[PROXY_ADDRESS_BYTES])
{
    struct sockaddr_storage to;
    struct proxy_conn *conn;
    char text[80];
    int one = 1, fd, code = 0;

    memset(&to, 0, sizeof to);
    memcpy(&to, address, PROXY_ADDRESS_BYTES);
    if (comm->proxy->is_detached) {
        fd = -1;
        goto connected;
    }
    fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        proxy_comm_fail(comm, "cannot make a socket: %s", strerror(errno));
        return NULL;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a hint */
    if (connect(fd, (const struct sockaddr *)&to, address_length(address)) < 0)
        code = errno;
    if (code && code != EINPROGRESS) {
        (void)close(fd);
        if (kind == PROXY_CONN_ATROOT && !proxy_root_is_missed(comm))
            return NULL;
        proxy_comm_lose(comm, "cannot connect to %s: %s; see the ranks' logs",
                        proxy_address_text(address, text, sizeof text), strerror(code));
        return NULL;
    }
connected:
    conn = proxy_conn_create(comm->proxy, fd, kind, EPOLLIN | EPOLLOUT);
    if (!conn) {
        if (fd >= 0)
            (void)close(fd);
        proxy_comm_fail(comm, "out of memory");
        return NULL;
    }
    conn->comm = comm;
    conn->connecting = code != 0;
    conn->close_when_sent = kind == PROXY_CONN_ONCE;
    return conn;
}

size_t proxy_conn_input(const struct proxy_conn *conn, const uint8_t **ret_bytes)
{
    *ret_bytes = conn->in.data ? conn->in.data + conn->in.begin : NULL;
    return conn->is_dead ? 0 : conn->in.end - conn->in.begin;
}

void proxy_conn_consume(struct proxy_conn *conn, size_t count)
{
    if (conn->is_dead)
        return;
    conn->in.begin += count;
    if (conn->in.begin == conn->in.end)
        conn->in.begin = conn->in.end = 0;
}

void proxy_conn_drop(struct proxy_conn *conn)
{
    conn->proxy->counters.dropped_count++;
    proxy_conn_close(conn);
}

void proxy_conn_read(struct proxy_conn *conn)
{
    for (int round = 0; round < 16 && !conn->is_dead; round++) {
        size_t used = conn->in.end - conn->in.begin;
        size_t room = conn->kind == PROXY_CONN_LINK ? PROXY_INPUT_MAX : 4096;
        ssize_t got;

        if (proxy_relay_is_full(conn)) {
            proxy_conn_watch(conn, 0); /* proxy_relay_sent goes on */
            return;
        }
        if (used >= PROXY_INPUT_MAX) { /* no message is that long */
            proxy_conn_drop(conn);
            return;
        }
        if (room > PROXY_INPUT_MAX - used)
            room = PROXY_INPUT_MAX - used;
        if (!bytes_reserve(&conn->in, room)) {
            proxy_conn_drop(conn);
            return;
        }
        got = recv(conn->fd, conn->in.data + conn->in.end, room, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            proxy_conn_broke(conn, got < 0 ? errno : ECONNRESET);
            return;
        }
        conn->proxy->counters.bytes_in += (uint64_t)got;
        conn->in.end += (size_t)got;
        proxy_conn_handle(conn);
    }
}
