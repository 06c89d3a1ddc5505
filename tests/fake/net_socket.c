/* A small NCCL net plugin of its own, NET v11 over loopback sockets, for the tests of
 * CRYSTAL_NET_BACKEND. A message is its size (8 bytes) and its bytes; one request after
 * the other moves. Where NET_SOCKET_LOG names a file, each end adds a line "send" or
 * "receive" with its messages and bytes when it is closed. NET_SOCKET_FAIL=N lets the
 * N-th message of an end fail, =connect its connections to others.
 */
#include "config.h"

#include "runtime/nccl_net_abi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUESTS 64
#define HEADER   sizeof(uint64_t)

struct request {
    struct end *end;
    int is_used, is_done;
    char *data;
    uint64_t bytes, moved; /* with the header */
};

struct end {
    int fd, is_send;
    struct request requests[REQUESTS];
    uint64_t first, next; /* modulo REQUESTS */
    uint64_t message_count, byte_count;
    int region_count;
};

static ncclResult_t fake_init(void **ctx, uint64_t comm_id,
                              ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
                              ncclProfilerCallback_t profile)
{
    (void)comm_id;
    (void)config;
    (void)log;
    (void)profile;
    *ctx = malloc(1);
    return *ctx ? ncclSuccess : ncclSystemError;
}

static ncclResult_t fake_finalize(void *ctx)
{
    free(ctx);
    return ncclSuccess;
}

static ncclResult_t fake_devices(int *count)
{
    *count = 2;
    return ncclSuccess;
}

static ncclResult_t fake_listen(void *ctx, int nic, void *handle, void **ret)
{
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof in;
    int *fd = malloc(sizeof *fd);

    (void)nic;
    if (!ctx || !fd)
        return ncclSystemError;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&in, bytes) || listen(*fd, 8) ||
        getsockname(*fd, (struct sockaddr *)&in, &bytes))
        return ncclSystemError;
    memcpy((char *)handle + NCCL_NET_HANDLE_MAXSIZE - sizeof in, &in, sizeof in);
    *ret = fd;
    return ncclSuccess;
}

static struct end *end_make(int fd, int is_send)
{
    struct end *end = calloc(1, sizeof *end);

    if (end) {
        end->fd = fd;
        end->is_send = is_send;
    }
    return end;
}

static ncclResult_t fake_connect(void *ctx, int nic, void *handle, void **ret,
                                 void **unused)
{
    const char *fail = getenv("NET_SOCKET_FAIL");
    struct sockaddr_in in;
    int fd;

    (void)ctx;
    (void)nic;
    (void)unused;
    if (fail && strcmp(fail, "connect") == 0)
        return ncclRemoteError;
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&in, (char *)handle + NCCL_NET_HANDLE_MAXSIZE - sizeof in, sizeof in);
    if (fd < 0 || connect(fd, (struct sockaddr *)&in, sizeof in))
        return ncclRemoteError;
    *ret = end_make(fd, 1);
    return *ret ? ncclSuccess : ncclSystemError;
}

static ncclResult_t fake_accept(void *listener, void **ret, void **unused)
{
    int fd = accept4(*(int *)listener, NULL, NULL, SOCK_CLOEXEC);

    (void)unused;
    *ret = NULL;
    if (fd < 0)
        return errno == EAGAIN ? ncclSuccess : ncclSystemError;
    *ret = end_make(fd, 0);
    return *ret ? ncclSuccess : ncclSystemError;
}

static ncclResult_t fake_reg(void *comm, void *data, size_t bytes, int type, void **ret)
{
    if (!data || !bytes || type != NCCL_PTR_HOST)
        return ncclInvalidUsage;
    ((struct end *)comm)->region_count++;
    *ret = comm; /* what a message has to bring */
    return ncclSuccess;
}

static ncclResult_t fake_dereg(void *comm, void *mhandle)
{
    if (mhandle != comm || ((struct end *)comm)->region_count-- == 0)
        return ncclInvalidUsage;
    return ncclSuccess;
}

static ncclResult_t post(struct end *end, void *data, uint64_t bytes, void *mhandle,
                         void **ret)
{
    struct request *r = &end->requests[end->next % REQUESTS];
    const char *fail = getenv("NET_SOCKET_FAIL");

    *ret = NULL;
    if (mhandle != end)
        return ncclInvalidUsage; /* not registered */
    if (fail && end->message_count == (uint64_t)atoll(fail))
        return ncclRemoteError;
    if (r->is_used || end->message_count % 5 == 4) {
        end->message_count += !r->is_used; /* every fifth has to come again */
        return ncclSuccess;
    }
    *r = (struct request){.end = end, .is_used = 1, .data = data, .bytes = bytes};
    end->next++;
    end->message_count++;
    *ret = r;
    return ncclSuccess;
}

static ncclResult_t fake_isend(void *comm, void *data, size_t bytes, int tag,
                               void *mhandle, void *phandle, void **ret)
{
    (void)tag;
    (void)phandle;
    return post(comm, data, bytes, mhandle, ret);
}

static ncclResult_t fake_irecv(void *comm, int n, void **data, size_t *bytes, int *tags,
                               void **mhandles, void **phandles, void **ret)
{
    (void)tags;
    (void)phandles;
    return n == 1 ? post(comm, data[0], bytes[0], mhandles[0], ret) : ncclInvalidUsage;
}

/* 1 moved, 0 the socket does not take or give more, -1 gone. */
static int move_some(struct request *r)
{
    struct end *end = r->end;
    uint64_t size = r->bytes;
    ssize_t n;

    if (r->moved < HEADER) {
        n = end->is_send ? send(end->fd, (char *)&size + r->moved, HEADER - r->moved,
                                MSG_DONTWAIT | MSG_NOSIGNAL)
                         : recv(end->fd, &size, HEADER, MSG_DONTWAIT | MSG_PEEK);
        if (!end->is_send && n == (ssize_t)HEADER) {
            if (size > r->bytes)
                return -1;
            r->bytes = size;
            n = recv(end->fd, &size, HEADER, MSG_DONTWAIT);
        } else if (!end->is_send && n > 0) {
            return 0;
        }
    } else {
        char *at = r->data + (r->moved - HEADER);
        const uint64_t left = r->bytes + HEADER - r->moved;

        if (!left)
            return 1;
        n = end->is_send ? send(end->fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                         : recv(end->fd, at, left, MSG_DONTWAIT);
    }
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0)
        return -1;
    r->moved += (uint64_t)n;
    return 1;
}

static ncclResult_t fake_test(void *request, int *done, int *bytes)
{
    struct request *r = request;
    struct end *end = r->end;

    *done = 0;
    while (end->first < end->next && !r->is_done) {
        struct request *at = &end->requests[end->first % REQUESTS];
        int moved = move_some(at);

        if (moved < 0)
            return ncclRemoteError;
        if (!moved)
            return ncclSuccess;
        if (at->moved == HEADER + at->bytes) {
            at->is_done = 1;
            end->first++;
            end->byte_count += at->bytes;
        }
    }
    *done = r->is_done;
    *bytes = (int)r->bytes;
    if (r->is_done)
        r->is_used = 0;
    return ncclSuccess;
}

static ncclResult_t fake_close(void *comm)
{
    struct end *end = comm;
    const char *path = getenv("NET_SOCKET_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;

    if (log) {
        (void)fprintf(log, "%s %llu messages %llu bytes %d regions left\n",
                      end->is_send ? "send" : "receive", (unsigned long long)end->first,
                      (unsigned long long)end->byte_count, end->region_count);
        (void)fclose(log);
    }
    (void)close(end->fd);
    free(end);
    return ncclSuccess;
}

static ncclResult_t fake_close_listen(void *listener)
{
    (void)close(*(int *)listener);
    free(listener);
    return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclNet_v11_t ncclNetPlugin_v11 = {
    .name = "sockets of a test",
    .init = fake_init,
    .devices = fake_devices,
    .listen = fake_listen,
    .connect = fake_connect,
    .accept = fake_accept,
    .regMr = fake_reg,
    .deregMr = fake_dereg,
    .isend = fake_isend,
    .irecv = fake_irecv,
    .test = fake_test,
    .closeSend = fake_close,
    .closeRecv = fake_close,
    .closeListen = fake_close_listen,
    .finalize = fake_finalize,
};
