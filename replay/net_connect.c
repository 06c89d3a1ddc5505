/* How two ends find each other: listen, connect, accept, and the hello between them.
 * See net_handle.h for the bytes. Nothing blocks; what is not there yet is asked for
 * again by the caller.
 */
#include "config.h"

#include "replay/net.h"

#include "replay/net_address.h"
#include "replay/net_backend.h"
#include "replay/net_connect.h"
#include "replay/wait_list.h"
#include "runtime/clock.h"
#include "runtime/log.h"
#include "runtime/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_PENDING 16
/* A stranger that connects and says nothing is dropped after this time. */
#define HELLO_LIMIT_NS 10000000000U
#define BOARD_WAIT_NS  10000000000U

struct pending {
    int fd; /* -1: free */
    uint32_t got;
    uint64_t since_ns;
    struct crystal_net_hello hello;
};

struct crystal_net_listener {
    struct crystal_net_context *context;
    int fd;
    uint64_t id;
    unsigned nic;
    struct pending pending[LISTEN_PENDING];
};

int crystal_net_hello_check(const struct crystal_net_hello *hello, uint64_t id)
{
    return memcmp(hello->magic, CRYSTAL_NET_HELLO_MAGIC, sizeof hello->magic) == 0 &&
           hello->id == id && hello->kind >= CRYSTAL_NET_REAL &&
           hello->kind <= CRYSTAL_NET_BACKEND;
}

int crystal_net_handle_check(const struct crystal_net_handle *handle,
                             struct crystal_error *err)
{
    struct sockaddr_in in;

    if (memcmp(handle->magic, CRYSTAL_NET_HANDLE_MAGIC, sizeof handle->magic) != 0 ||
        (handle->kind != CRYSTAL_NET_REAL && handle->kind != CRYSTAL_NET_VIRTUAL))
        return crystal_error_set(err, EPROTO,
                                 "connect: the peer's handle is not one of this "
                                 "plugin; every rank must use libnccl-net-crystal.so");
    memcpy(&in, handle->addr, sizeof in);
    if (handle->kind == CRYSTAL_NET_REAL && in.sin_family != AF_INET &&
        in.sin_family != AF_INET6)
        return crystal_error_set(err, EPROTO,
                                 "connect: address family %d in the peer's handle",
                                 (int)in.sin_family);
    return 0;
}

static int random_id(uint64_t *ret, struct crystal_error *err)
{
    ssize_t got = getrandom(ret, sizeof *ret, 0);

    if (got != (ssize_t)sizeof *ret)
        return crystal_error_set(err, EIO, "listen: no random numbers: %s",
                                 strerror(errno));
    return 0;
}

static int listen_socket(struct sockaddr_storage *address, struct crystal_error *err)
{
    socklen_t bytes;
    int fd, code = crystal_net_address(address, &bytes, err);

    if (code)
        return code;
    fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return crystal_error_set(err, errno, "listen: %s", strerror(errno));
    if (bind(fd, (const struct sockaddr *)address, bytes) < 0 ||
        listen(fd, SOMAXCONN) < 0 ||
        getsockname(fd, (struct sockaddr *)address, &bytes) < 0) {
        code = crystal_error_set(err, errno, "listen: %s", strerror(errno));
        (void)close(fd); /* nothing was sent */
        return code;
    }
    return fd;
}

int crystal_net_listen(struct crystal_net_context *context,
                       struct crystal_net_handle *handle,
                       struct crystal_net_listener **ret, struct crystal_error *err)
{
    struct crystal_net_listener *l = calloc(1, sizeof *l);
    struct sockaddr_storage address;
    int code;

    if (!l)
        return crystal_error_set(err, ENOMEM, "listen: out of memory");
    for (int i = 0; i < LISTEN_PENDING; i++)
        l->pending[i].fd = -1;
    l->context = context;
    code = random_id(&l->id, err);
    if (!code)
        code = l->fd = listen_socket(&address, err);
    if (code < 0) {
        free(l);
        return code;
    }
    memset(handle, 0, sizeof *handle);
    memcpy(handle->magic, CRYSTAL_NET_HANDLE_MAGIC, sizeof handle->magic);
    handle->id = l->id;
    handle->kind = CRYSTAL_NET_REAL;
    handle->crank = context->comm->crank;
    handle->comm_id = context->comm->comm_id;
    memcpy(handle->addr, &address, sizeof handle->addr);
    *ret = l;
    return 0;
}

void crystal_net_listener_set_nic(struct crystal_net_listener *l, unsigned nic)
{
    l->nic = nic;
}

void crystal_net_listener_close(struct crystal_net_listener *l)
{
    if (!l)
        return;
    for (int i = 0; i < LISTEN_PENDING; i++)
        if (l->pending[i].fd >= 0)
            (void)close(l->pending[i].fd);
    (void)close(l->fd); /* nothing to lose on either */
    free(l);
}

/* Takes who knocks as long as there is room to hear them. */
static int listener_take(struct crystal_net_listener *l, struct crystal_error *err)
{
    for (int i = 0; i < LISTEN_PENDING; i++) {
        struct pending *p = &l->pending[i];

        if (p->fd >= 0)
            continue;
        p->fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (p->fd < 0) {
            if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
                return 0;
            return crystal_error_set(err, errno, "accept: %s", strerror(errno));
        }
        if (!crystal_peer_admit(p->fd, "net", CRYSTAL_PEER_GONE_MAY)) {
            (void)close(p->fd); /* another user's */
            p->fd = -1;
            continue;
        }
        p->got = 0;
        p->since_ns = crystal_now_ns();
    }
    return 0;
}

/* 1: the hello is complete and meant for us. */
static int pending_read(struct crystal_net_listener *l, struct pending *p)
{
    ssize_t got;

    if (p->got == sizeof p->hello)
        return 1; /* it has waited for the board */
    got =
        recv(p->fd, (char *)&p->hello + p->got, sizeof p->hello - p->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (crystal_now_ns() - p->since_ns < HELLO_LIMIT_NS) {
            crystal_wait_fd(p->fd, POLLIN);
            return 0;
        }
        got = 0;
    }
    p->got += got > 0 ? (uint32_t)got : 0;
    if (got > 0 && p->got < sizeof p->hello)
        return pending_read(l, p);
    if (got > 0 && crystal_net_hello_check(&p->hello, l->id))
        return 1;
    crystal_log(CRYSTAL_LOG_DEBUG, "net",
                "dropped a connection that sent no hello for this listener");
    (void)close(p->fd); /* a stranger's */
    p->fd = -1;
    return 0;
}

static struct crystal_net_end *accept_backend(const struct crystal_net_listener *l,
                                              int fd, uint32_t crank,
                                              struct crystal_error *err)
{
    if (l->context->comm->module->backend)
        return crystal_backend_end_create(l->context, fd, 0, l->nic, crank, err);
    (void)close(fd); /* nothing was received */
    (void)crystal_error_set(err, EPROTO,
                            "rank %d of its communicator uses another net plugin for "
                            "real ranks; give all ranks one CRYSTAL_NET_BACKEND",
                            (int)crank);
    return NULL;
}

/* 0: a virtual rank's connection has to wait for its communicator, which another node
 * may be about to put on this one's board. For a while; then its end says that it is
 * not there. */
static int is_board_ready(struct crystal_net_comm *comm)
{
    const uint64_t now_ns = crystal_now_ns();
    uint64_t since_ns;

    if (crystal_net_comm_resolve(comm, NULL) || !comm->module->board)
        return 1;
    since_ns = atomic_load(&comm->missed_ns);
    if (!since_ns)
        atomic_store(&comm->missed_ns, since_ns = now_ns);
    return now_ns - since_ns >= BOARD_WAIT_NS;
}

int crystal_net_accept(struct crystal_net_listener *l, struct crystal_net_end **ret,
                       struct crystal_error *err)
{
    int code = listener_take(l, err);

    *ret = NULL;
    for (int i = 0; i < LISTEN_PENDING && !code; i++) {
        struct pending *p = &l->pending[i];
        int fd = p->fd;

        if (fd < 0 || !pending_read(l, p))
            continue;
        if (p->hello.kind == CRYSTAL_NET_VIRTUAL && !is_board_ready(l->context->comm))
            continue;
        p->fd = -1;
        if (p->hello.kind == CRYSTAL_NET_VIRTUAL) {
            (void)close(fd); /* the proxy has said all it has to say */
            *ret = crystal_virtual_end_create(l->context, 0, p->hello.crank, err);
        } else if (p->hello.kind == CRYSTAL_NET_BACKEND) {
            *ret = accept_backend(l, fd, p->hello.crank, err);
        } else {
            *ret = crystal_tcp_end_create(l->context, fd, 0, p->hello.crank, err);
        }
        if (!*ret)
            return -err->code;
        (*ret)->nic = l->nic;
        return 0;
    }
    crystal_wait_fd(l->fd, POLLIN);
    return code;
}

/* What connect() keeps between two calls, in the caller's copy of the handle. */
struct connecting {
    int fd_plus1;
};
_Static_assert(sizeof(struct connecting) <=
                   sizeof((struct crystal_net_handle *)0)->zero,
               "fits");

static int connect_start(const struct crystal_net_handle *handle,
                         struct crystal_error *err)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes;
    int fd, code;

    memcpy(&address, handle->addr, sizeof handle->addr);
    bytes = address.ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                         : sizeof(struct sockaddr_in6);
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return crystal_error_set(err, errno, "connect: %s", strerror(errno));
    if (connect(fd, (const struct sockaddr *)&address, bytes) < 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        code = crystal_error_set(err, errno,
                                 "connect to rank %d of its communicator: %s; the "
                                 "peer's process may have ended, see its log",
                                 (int)handle->crank, strerror(errno));
        (void)close(fd); /* nothing was sent */
        return code;
    }
    return fd;
}

/* 1 connected, 0 not yet, negative errno. */
static int connect_poll(int fd, uint32_t crank, struct crystal_error *err)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    socklen_t bytes = sizeof(int);
    int ready = poll(&p, 1, 0), error = 0;

    if (ready < 0 && errno != EINTR)
        return crystal_error_set(err, errno, "connect: %s", strerror(errno));
    if (ready <= 0) {
        crystal_wait_fd(fd, POLLOUT);
        return 0;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0)
        error = errno;
    if (error)
        return crystal_error_set(err, error,
                                 "connect to rank %d of its communicator: %s; the "
                                 "peer's process may have ended, see its log",
                                 (int)crank, strerror(error));
    return 1;
}

/* The socket is new and empty, so 64 bytes always fit. */
static int hello_send(int fd, const struct crystal_net_context *context, uint64_t id,
                      struct crystal_error *err)
{
    struct crystal_net_hello hello = {
        .id = id,
        .kind = context->comm->module->backend ? CRYSTAL_NET_BACKEND : CRYSTAL_NET_REAL,
        .crank = context->comm->crank,
        .comm_id = context->comm->comm_id};
    ssize_t sent;

    memcpy(hello.magic, CRYSTAL_NET_HELLO_MAGIC, sizeof hello.magic);
    do {
        sent = send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof hello)
        return crystal_error_set(err, sent < 0 ? errno : EIO,
                                 "connect: cannot greet the peer: %s",
                                 sent < 0 ? strerror(errno) : "short write");
    return 0;
}

static int connect_real(struct crystal_net_context *context, unsigned nic,
                        struct crystal_net_handle *handle, struct crystal_net_end **ret,
                        struct crystal_error *err)
{
    struct connecting state;
    int fd, code;

    memcpy(&state, handle->zero, sizeof state);
    if (!state.fd_plus1) {
        fd = connect_start(handle, err);
        if (fd < 0)
            return fd;
        state.fd_plus1 = fd + 1;
        memcpy(handle->zero, &state, sizeof state);
    }
    fd = state.fd_plus1 - 1;
    code = connect_poll(fd, handle->crank, err);
    if (code == 0)
        return 0;
    memset(handle->zero, 0, sizeof state);
    if (code > 0)
        code = hello_send(fd, context, handle->id, err);
    if (code) {
        (void)close(fd); /* the error is already known */
        return code;
    }
    *ret = context->comm->module->backend
               ? crystal_backend_end_create(context, fd, 1, nic, handle->crank, err)
               : crystal_tcp_end_create(context, fd, 1, handle->crank, err);
    return *ret ? 0 : -err->code;
}

int crystal_net_connect(struct crystal_net_context *context, unsigned nic,
                        struct crystal_net_handle *handle, struct crystal_net_end **ret,
                        struct crystal_error *err)
{
    int code = crystal_net_handle_check(handle, err);

    *ret = NULL;
    if (!code && handle->kind == CRYSTAL_NET_VIRTUAL) {
        if (!is_board_ready(context->comm))
            return 0;
        *ret = crystal_virtual_end_create(context, 1, handle->crank, err);
        code = *ret ? 0 : -err->code;
    } else if (!code) {
        code = connect_real(context, nic, handle, ret, err);
    }
    if (*ret)
        (*ret)->nic = nic;
    return code;
}
