/* The bootstrap proxy's listener, its life and what the node asks; see proxy.h.
 *
 * One listener serves every role of every virtual rank: the low 24 bits of the loopback
 * address that a peer dialled are (role << 21 | crank), so 2 Mi ranks per communicator
 * are possible and the number of descriptors does not grow with them. The listener is
 * bound to the loopback device where the kernel allows it; connections to an address
 * outside 127/8 are dropped in any case.
 */
#include "config.h"

#include "replay/proxy_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define DESCRIPTORS    65536U
#define LISTEN_BACKLOG 16384

/* Each communicator keeps two sockets per run of real ranks open. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= DESCRIPTORS)
        return;
    limit.rlim_cur = limit.rlim_max < DESCRIPTORS ? limit.rlim_max : DESCRIPTORS;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* what we have may be enough */
}

int crystal_proxy_listen(uint16_t *port, int *ret_fd, struct crystal_error *err)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(*port)};
    socklen_t bytes = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), code;

    if (fd < 0)
        return crystal_error_set(
            err, errno, "bootstrap proxy: cannot make a socket: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo",
                     sizeof "lo"); /* else the address is checked at accept */
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    if (bind(fd, (struct sockaddr *)&any, sizeof any) < 0 ||
        listen(fd, LISTEN_BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&any, &bytes) < 0) {
        code = errno;
        (void)close(fd);
        return crystal_error_set(err, code, "bootstrap proxy: cannot listen: %s",
                                 strerror(code));
    }
    *port = ntohs(any.sin_port);
    *ret_fd = fd;
    return 0;
}

/* Is there somebody at the address of a virtual rank? */
static int probe(const struct crystal_proxy *proxy, struct crystal_error *err)
{
    uint8_t address[PROXY_ADDRESS_BYTES];
    struct sockaddr_in to;
    int code = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    proxy_address(proxy, PROXY_PORT_PEER, PROXY_CRANK_MAX, address);
    memcpy(&to, address, sizeof to);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
        code = crystal_error_set(err, errno,
                                 "bootstrap proxy: the loopback address of a virtual "
                                 "rank does not work: %s; give the loopback device "
                                 "127.0.0.1/8",
                                 strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    return code;
}

static int listener_open(struct crystal_proxy *proxy,
                         const struct crystal_proxy_config *config,
                         struct crystal_error *err)
{
    int fd = config->listen_fd, code = 0;

    proxy->tcp_port = config->links ? config->port : 0;
    if (!config->links)
        code = crystal_proxy_listen(&proxy->tcp_port, &fd, err);
    if (code)
        return code;
    code = probe(proxy, err);
    if (!code && fd >= 0 && !proxy_conn_create(proxy, fd, PROXY_CONN_LISTEN, EPOLLIN))
        code = crystal_error_set(err, ENOMEM, "bootstrap proxy: out of memory");
    if (code && !config->links)
        (void)close(fd);
    return code;
}

static int wake_open(struct crystal_proxy *proxy, struct crystal_error *err)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (fd < 0 || !proxy_conn_create(proxy, fd, PROXY_CONN_WAKE, EPOLLIN)) {
        int code = fd < 0 ? errno : ENOMEM;

        if (fd >= 0)
            (void)close(fd);
        return crystal_error_set(err, code, "bootstrap proxy: cannot make an event: %s",
                                 strerror(code));
    }
    return 0;
}

struct crystal_proxy *crystal_proxy_create(const struct crystal_proxy_config *config,
                                           struct crystal_error *err)
{
    struct crystal_proxy *proxy = calloc(1, sizeof *proxy);
    int code;

    if (!proxy) {
        (void)crystal_error_set(err, ENOMEM, "bootstrap proxy: out of memory");
        return NULL;
    }
    proxy->board = config->board;
    proxy->layout = config->layout;
    proxy->graph = config->graph;
    proxy->links = config->links;
    proxy->comms_end = &proxy->comms;
    (void)pthread_mutex_init(&proxy->lock, NULL); /* cannot fail on Linux */
    raise_descriptor_limit();
    proxy->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (proxy->epoll_fd < 0) {
        (void)crystal_error_set(err, errno, "bootstrap proxy: cannot watch sockets: %s",
                                strerror(errno));
        goto err_proxy;
    }
    proxy->messages = proxy_layout_find((int)config->layout->target.nccl_version,
                                        config->layout->target.nccl_untested, err);
    if (!proxy->messages)
        goto err_proxy;
    if (wake_open(proxy, err) || listener_open(proxy, config, err))
        goto err_proxy;
    code = pthread_create(&proxy->thread, NULL, proxy_run, proxy);
    if (code) {
        (void)crystal_error_set(err, code, "bootstrap proxy: cannot make a thread: %s",
                                strerror(code));
        goto err_proxy;
    }
    proxy->has_thread = true;
    return proxy;

err_proxy:
    crystal_proxy_destroy(proxy);
    return NULL;
}

static void stop_thread(struct crystal_proxy *proxy)
{
    uint64_t one = 1;

    (void)pthread_mutex_lock(&proxy->lock);
    proxy->is_stopping = true;
    for (struct proxy_conn *conn = proxy->first; conn; conn = conn->next)
        if (conn->kind == PROXY_CONN_WAKE)
            (void)!write(conn->fd, &one, sizeof one); /* its counter cannot be full */
    (void)pthread_mutex_unlock(&proxy->lock);
    (void)pthread_join(proxy->thread, NULL); /* it is there */
}

void crystal_proxy_destroy(struct crystal_proxy *proxy)
{
    if (!proxy)
        return;
    if (proxy->has_thread)
        stop_thread(proxy);
    proxy->is_stopping = true;
    while (proxy->first)
        proxy_conn_close(proxy->first);
    proxy_bury(proxy);
    while (proxy->comms) {
        struct proxy_comm *comm = proxy->comms;

        proxy->comms = comm->next;
        proxy_comm_destroy(comm);
    }
    split_told_fini(&proxy->told);
    if (proxy->epoll_fd >= 0)
        (void)close(proxy->epoll_fd);
    (void)pthread_mutex_destroy(&proxy->lock);
    free(proxy);
}

/* --- what the node asks --- */

void crystal_proxy_adopt(struct crystal_proxy *proxy, int fd, uint32_t where)
{
    (void)pthread_mutex_lock(&proxy->lock);
    proxy_take(proxy, fd, where);
    (void)pthread_mutex_unlock(&proxy->lock);
}

int crystal_proxy_status(struct crystal_proxy *proxy, struct crystal_error *err)
{
    int result = 0;

    (void)pthread_mutex_lock(&proxy->lock);
    if (proxy->failure.code)
        result = crystal_error_set(err, proxy->failure.code, "%s", proxy->failure.text);
    (void)pthread_mutex_unlock(&proxy->lock);
    return result;
}

void crystal_proxy_counters(struct crystal_proxy *proxy,
                            struct crystal_proxy_counters *ret)
{
    (void)pthread_mutex_lock(&proxy->lock);
    *ret = proxy->counters;
    (void)pthread_mutex_unlock(&proxy->lock);
}

void crystal_proxy_each(struct crystal_proxy *proxy,
                        void (*fn)(void *context,
                                   const struct crystal_proxy_comm_info *info),
                        void *context)
{
    (void)pthread_mutex_lock(&proxy->lock);
    for (struct proxy_comm *comm = proxy->comms; comm; comm = comm->next) {
        const struct crystal_proxy_comm_info info = {
            .name = comm->name,
            .comm_id = comm->comm_id,
            .nranks = comm->nranks,
            .real_count = comm->real_count,
            .is_forged = comm->roots[0].is_forged,
            .is_child = comm->parent != NULL,
            .is_open = comm->is_open && !comm->is_left,
            .setup_ns = comm->setup_ns,
            .connect_count = comm->connect_count,
        };

        if (!proxy_comm_is_far(comm))
            fn(context, &info);
    }
    (void)pthread_mutex_unlock(&proxy->lock);
}
