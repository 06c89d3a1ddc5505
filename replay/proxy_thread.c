/* The bootstrap proxy's thread: it accepts connections, finds out what they are for,
 * and has what comes handled.
 *
 * A socket of NCCL's bootstrap begins with 12 bytes from the side that connects: the
 * communicator's magic (8) and a type (4; 1 = bootstrap). Messages are a size (int) and
 * that many bytes. A connection that does not begin with a magic we know is dropped.
 */
#include "config.h"

#include "replay/proxy_internal.h"

#include "runtime/clock.h"
#include "runtime/peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define HANDSHAKE_BYTES   12U
#define NEW_MAX           1024U /* strangers that have not said anything yet */
#define EVENTS_PER_ROUND  128
#define ACCEPTS_PER_ROUND 256

/* A stranger becomes somebody: the magic names the communicator, the address it dialled
 * names the role. */
static void handshake(struct proxy_conn *conn)
{
    const uint8_t *bytes;
    struct proxy_comm *comm;
    struct proxy_link *link = NULL;
    uint32_t before;
    uint64_t magic;

    if (proxy_conn_input(conn, &bytes) < HANDSHAKE_BYTES)
        return;
    magic = proxy_get_u64(bytes, 0);
    if (conn->port == PROXY_PORT_ROOT || conn->port == PROXY_PORT_ANSWER)
        comm = proxy_comm_find_root(conn->proxy, magic, &conn->root);
    else
        comm = proxy_comm_find(conn->proxy, magic);
    if (!comm && proxy_split_may_come(conn))
        return; /* again when another child is known */
    if (!comm || proxy_get_i32(bytes, 8) != PROXY_SOCKET_BOOTSTRAP) {
        proxy_conn_drop(conn);
        return;
    }
    if (proxy_comm_is_far(comm)) {
        proxy_relay_begin(comm, conn);
        return;
    }
    if (conn->port == PROXY_PORT_ROOT ? !comm->roots[conn->root].is_forged
                                      : !proxy_comm_is_virtual(comm, conn->crank)) {
        proxy_conn_drop(conn);
        return;
    }
    if (conn->port == PROXY_PORT_RING) {
        before = (conn->crank + comm->nranks - 1) % comm->nranks;
        link = proxy_comm_link(comm, proxy_comm_real(comm, before), true);
        if (!link || link->conn || link->is_closed) {
            proxy_conn_drop(conn);
            return;
        }
    }
    proxy_conn_consume(conn, HANDSHAKE_BYTES);
    conn->proxy->new_count--;
    conn->comm = comm;
    if (!comm->begin_ns)
        comm->begin_ns = crystal_now_ns();
    switch (conn->port) {
    case PROXY_PORT_ROOT:
        conn->kind = PROXY_CONN_CHECKIN;
        break;
    case PROXY_PORT_ANSWER:
        conn->kind = PROXY_CONN_ANSWER;
        break;
    case PROXY_PORT_PEER:
        conn->kind = PROXY_CONN_PEER;
        break;
    default:
        conn->kind = PROXY_CONN_LINK;
        proxy_link_open(comm, link, conn);
        break;
    }
}

void proxy_conn_handle(struct proxy_conn *conn)
{
    if (conn->kind == PROXY_CONN_NEW)
        handshake(conn);
    if (conn->is_dead)
        return;
    switch (conn->kind) {
    case PROXY_CONN_CHECKIN:
        proxy_root_checkin(conn);
        break;
    case PROXY_CONN_ANSWER:
        proxy_root_answer(conn);
        break;
    case PROXY_CONN_LINK:
        proxy_link_read(conn);
        break;
    case PROXY_CONN_PEER:
        proxy_connect_read(conn);
        break;
    case PROXY_CONN_RELAY:
        proxy_relay_read(conn);
        break;
    default: /* those who only listen to us say nothing */
        break;
    }
}

static void proxy_fail(struct crystal_proxy *proxy, int code, const char *what)
{
    if (!proxy->failure.code)
        (void)crystal_error_set(&proxy->failure, code, "bootstrap proxy: %s: %s", what,
                                strerror(code));
    crystal_board_abort(proxy->board, "%s", proxy->failure.text);
}

/* A new connection to a virtual rank; where: the low 24 bits of its address. */
void proxy_take(struct crystal_proxy *proxy, int fd, uint32_t where)
{
    struct proxy_conn *conn;
    int one = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a hint */
    conn = proxy_conn_create(proxy, fd, PROXY_CONN_NEW, EPOLLIN);
    if (!conn) {
        (void)close(fd);
        proxy->counters.dropped_count++;
        return;
    }
    conn->port = where >> PROXY_PORT_SHIFT & 7;
    conn->crank = where & PROXY_CRANK_MAX;
    if (++proxy->new_count > NEW_MAX)
        for (struct proxy_conn *old = proxy->first; old; old = old->next)
            if (old->kind == PROXY_CONN_NEW) {
                proxy_conn_drop(old);
                break;
            }
    if (conn->is_dead)
        return;
    if (conn->port < PROXY_PORT_ROOT || conn->port > PROXY_PORT_PEER) {
        proxy_conn_drop(conn);
        return;
    }
    proxy_conn_read(conn); /* the handshake is usually there already */
    if (!conn->is_dead)
        proxy_conn_flush(conn);
}

static void stranger(struct crystal_proxy *proxy, int fd)
{
    struct sockaddr_in local;
    socklen_t bytes = sizeof local;

    memset(&local, 0, sizeof local);
    if (getsockname(fd, (struct sockaddr *)&local, &bytes) < 0 ||
        local.sin_family != AF_INET || ntohl(local.sin_addr.s_addr) >> 24 != 127 ||
        !crystal_peer_admit(fd, "proxy", CRYSTAL_PEER_GONE_MAY)) {
        (void)close(fd);
        proxy->counters.dropped_count++;
        return;
    }
    proxy_take(proxy, fd, ntohl(local.sin_addr.s_addr) & 0xffffff);
}

static void accept_some(struct proxy_conn *listener)
{
    struct crystal_proxy *proxy = listener->proxy;

    for (int i = 0; i < ACCEPTS_PER_ROUND; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            stranger(proxy, fd);
            continue;
        }
        if (errno == EAGAIN)
            return;
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            proxy_fail(proxy, errno,
                       "cannot accept a connection; raise the limit of open files");
            proxy_conn_watch(listener, 0);
            return;
        }
    }
}

static void connected(struct proxy_conn *conn)
{
    int code = 0;
    socklen_t bytes = sizeof code;

    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &code, &bytes) < 0)
        code = errno;
    if (code) {
        proxy_conn_broke(conn, code);
        return;
    }
    conn->connecting = false;
}

static void dispatch(struct proxy_conn *conn, uint32_t events)
{
    uint64_t count;

    if (conn->is_dead)
        return;
    if (conn->kind == PROXY_CONN_LISTEN) {
        accept_some(conn);
        return;
    }
    if (conn->kind == PROXY_CONN_WAKE) {
        (void)!read(conn->fd, &count, sizeof count); /* only to make it quiet */
        return;
    }
    if (conn->connecting && events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        connected(conn);
    if (!conn->is_dead && !conn->connecting && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        proxy_conn_read(conn);
    if (!conn->is_dead)
        proxy_conn_flush(conn);
}

void *proxy_run(void *argument)
{
    struct crystal_proxy *proxy = argument;
    struct epoll_event events[EVENTS_PER_ROUND];

    (void)pthread_mutex_lock(&proxy->lock); /* cannot fail: not recursive, ours */
    while (!proxy->is_stopping) {
        int count;

        proxy_bury(proxy);
        (void)pthread_mutex_unlock(&proxy->lock);
        count = epoll_wait(proxy->epoll_fd, events, EVENTS_PER_ROUND, -1);
        (void)pthread_mutex_lock(&proxy->lock);
        if (count < 0 && errno != EINTR) {
            proxy_fail(proxy, errno, "cannot wait for events");
            break;
        }
        for (int i = 0; i < count; i++)
            dispatch(events[i].data.ptr, events[i].events);
    }
    (void)pthread_mutex_unlock(&proxy->lock);
    return NULL;
}
