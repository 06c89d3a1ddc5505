/* Ends over another NCCL net plugin. See net_backend.h. */
#include "config.h"

#include "replay/net_backend.h"

#include "replay/wait_list.h"
#include "runtime/clock.h"
#include "runtime/log.h"
#include "runtime/nccl_net_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SYMBOL       "ncclNetPlugin_v11"
#define ASK_AGAIN_NS 20000U /* a backend cannot say when to ask */

struct crystal_backend {
    const ncclNet_v11_t *net;
    void *context; /* stays open: some plugins end with their last one */
    int nics;
};

/* A buffer of NCCL's in host memory. */
struct region {
    struct region *next;
    char *data;
    size_t bytes;
    void *mhandle;
    bool is_registered;
};

/* What the backend has of a request, by the request's place in the end. */
struct slot {
    void *request; /* NULL: not posted */
    void *mhandle; /* of this message alone */
    bool has_mhandle;
};

struct backend_end {
    struct crystal_net_end base;
    const ncclNet_v11_t *net;
    int fd; /* the hello's; open as long as the connection */
    int nic;
    void *context, *listener, *comm; /* the backend's; comm NULL: not connected yet */
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    size_t handle_bytes; /* sent or received so far */
    struct region *regions;
    struct slot slots[CRYSTAL_NET_REQUESTS];
    uint64_t posted; /* tail <= posted <= head: of the queue, given to the backend */
};

static void log_line(int level, unsigned long flags, const char *file, int line,
                     const char *format, ...)
{
    (void)level; /* NCCL's own log has what its plugin says; ours stays short */
    (void)flags;
    (void)file;
    (void)line;
    (void)format;
}

static int failed(const struct backend_end *b, const char *call, ncclResult_t result,
                  struct crystal_error *err)
{
    return crystal_error_set(
        err, EIO,
        "net plugin '%s': %s with rank %d of its communicator fails "
        "with NCCL's code %d; see that plugin's log, or unset "
        "CRYSTAL_NET_BACKEND",
        b->net->name, call, (int)b->base.peer_crank, (int)result);
}

struct crystal_backend *crystal_backend_open(const char *path,
                                             struct crystal_error *err)
{
    struct crystal_backend *backend;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const ncclNet_v11_t *net = library ? dlsym(library, SYMBOL) : NULL;
    ncclNetCommConfig_v11_t config = {-1};
    void *context = NULL;
    int nics = 0;

    if (!net) {
        (void)crystal_error_set(err, ENOENT,
                                "CRYSTAL_NET_BACKEND: %s; name an NCCL net plugin that "
                                "has " SYMBOL,
                                library ? "'" SYMBOL "' is not in it" : dlerror());
        return NULL;
    }
    if (net->init(&context, 0, &config, log_line, NULL) || net->devices(&nics) ||
        nics < 1) {
        (void)crystal_error_set(err, ENODEV,
                                "CRYSTAL_NET_BACKEND: net plugin '%s' has no device "
                                "here; unset it for our own TCP",
                                net->name);
        return NULL;
    }
    backend = calloc(1, sizeof *backend);
    if (!backend) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for the net plugin");
        return NULL;
    }
    backend->net = net;
    backend->context = context;
    backend->nics = nics;
    return backend;
}

/* --- meeting --- */

static int does_not_meet(const struct backend_end *b, int code,
                         struct crystal_error *err)
{
    return crystal_error_set(err, code ? code : ECONNRESET,
                             "rank %d of its communicator does not meet by the net "
                             "plugin '%s': %s; give all ranks one CRYSTAL_NET_BACKEND",
                             (int)b->base.peer_crank, b->net->name,
                             code ? strerror(code) : "it left");
}

/* Whether the other end has closed its socket, which it does with the connection. */
static bool has_left(const struct backend_end *b)
{
    char byte;
    ssize_t n = recv(b->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* The backend's handle goes over the socket. 1 done, 0 not yet. */
static int move_handle(struct backend_end *b, struct crystal_error *err)
{
    while (b->handle_bytes < sizeof b->handle) {
        char *at = b->handle + b->handle_bytes;
        const size_t left = sizeof b->handle - b->handle_bytes;
        ssize_t n = b->base.is_send
                        ? recv(b->fd, at, left, MSG_DONTWAIT)
                        : send(b->fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            crystal_wait_fd(b->fd, b->base.is_send ? POLLIN : POLLOUT);
            return 0;
        }
        if (n <= 0)
            return does_not_meet(b, n ? errno : 0, err);
        b->handle_bytes += (size_t)n;
    }
    return 1;
}

/* 1 connected, 0 not yet. */
static int meet(struct backend_end *b, struct crystal_error *err)
{
    ncclResult_t result;
    bool is_alone;
    int code;

    if (b->comm)
        return 1;
    code = move_handle(b, err);
    if (code <= 0)
        return code;
    is_alone = has_left(b); /* asked first: what it did before is there then */
    result = b->base.is_send
                 ? b->net->connect(b->context, b->nic, b->handle, &b->comm, NULL)
                 : b->net->accept(b->listener, &b->comm, NULL);
    if (result)
        return failed(b, b->base.is_send ? "connect" : "accept", result, err);
    if (!b->comm && is_alone)
        return does_not_meet(b, 0, err);
    if (!b->comm) {
        crystal_wait_until(crystal_now_ns() + ASK_AGAIN_NS);
        return 0;
    }
    return 1;
}

/* --- messages --- */

/* The handle of the memory that a message is in. */
static int find_mhandle(struct backend_end *b, struct crystal_net_request *r,
                        struct slot *slot, void **ret, struct crystal_error *err)
{
    char *data = (char *)r->data;
    struct region *region = b->regions;
    ncclResult_t result;

    while (region &&
           (data < region->data || data + r->bytes > region->data + region->bytes))
        region = region->next;
    if (region && region->is_registered) {
        *ret = region->mhandle;
        return 0;
    }
    result = region ? b->net->regMr(b->comm, region->data, region->bytes, NCCL_PTR_HOST,
                                    &region->mhandle)
                    : b->net->regMr(b->comm, data, r->bytes ? r->bytes : 1,
                                    NCCL_PTR_HOST, &slot->mhandle);
    if (result)
        return failed(b, "a buffer for messages", result, err);
    if (region)
        region->is_registered = true;
    else
        slot->has_mhandle = true;
    *ret = region ? region->mhandle : slot->mhandle;
    return 0;
}

static struct slot *slot_of(struct backend_end *b, const struct crystal_net_request *r)
{
    return &b->slots[r - b->base.requests];
}

/* Gives the oldest request that it has not got to the backend. 1 given, 0 wait. */
static int give(struct backend_end *b, struct crystal_error *err)
{
    struct crystal_net_request *r =
        crystal_net_queue_at(&b->base, (unsigned)(b->posted - b->base.tail));
    struct slot *slot;
    ncclResult_t result;
    void *mhandle, *data;
    size_t bytes;
    int tag = 0, code;

    if (!r)
        return 0;
    if (b->base.is_send && r->due_ns > crystal_now_ns()) {
        crystal_wait_until(r->due_ns);
        return 0;
    }
    slot = slot_of(b, r);
    code = slot->has_mhandle ? 0 : find_mhandle(b, r, slot, &mhandle, err);
    if (code)
        return code;
    if (slot->has_mhandle)
        mhandle = slot->mhandle;
    data = r->data;
    bytes = r->bytes;
    result = b->base.is_send ? b->net->isend(b->comm, data, bytes, tag, mhandle, NULL,
                                             &slot->request)
                             : b->net->irecv(b->comm, 1, &data, &bytes, &tag, &mhandle,
                                             NULL, &slot->request);
    if (result)
        return failed(b, b->base.is_send ? "a message" : "a receive", result, err);
    if (!slot->request) {
        crystal_wait_until(crystal_now_ns() + ASK_AGAIN_NS);
        return 0;
    }
    b->posted++;
    return 1;
}

/* Takes back the oldest request that the backend has done. 1 taken, 0 wait. */
static int take(struct backend_end *b, struct crystal_error *err)
{
    struct crystal_net_request *r = crystal_net_queue_first(&b->base);
    const struct crystal_wire *wire = &b->base.comm->module->wire;
    struct slot *slot;
    uint64_t occupy_ns, due_ns = 0;
    int done = 0, bytes = 0;
    ncclResult_t result;

    if (!r || b->posted == b->base.tail)
        return 0;
    slot = slot_of(b, r);
    result = b->net->test(slot->request, &done, &bytes);
    if (result)
        return failed(b, "a message", result, err);
    if (!done) {
        crystal_wait_until(crystal_now_ns() + ASK_AGAIN_NS);
        return 0;
    }
    if (slot->has_mhandle)
        (void)b->net->deregMr(b->comm, slot->mhandle); /* the message is over */
    *slot = (struct slot){0};
    if (b->base.is_send) {
        r->got = r->bytes;
    } else {
        if (bytes < 0 || (uint64_t)bytes > r->bytes)
            return crystal_error_set(
                err, EPROTO,
                "net plugin '%s': a message of %d bytes came where "
                "%llu were posted",
                b->net->name, bytes, (unsigned long long)r->bytes);
        r->got = (uint64_t)bytes;
        occupy_ns = crystal_wire_occupy_ns(wire, r->got);
        if (crystal_wire_is_paced(wire))
            due_ns = crystal_link_take(&b->base.comm->module->links[b->base.nic],
                                       crystal_now_ns() - occupy_ns, occupy_ns);
    }
    crystal_net_queue_pop(&b->base, due_ns);
    return 1;
}

static int backend_start(struct crystal_net_end *end, struct crystal_net_request *r,
                         struct crystal_error *err)
{
    struct crystal_net_module *module = end->comm->module;
    const struct crystal_wire *wire = &module->wire;
    uint64_t occupy_ns;

    (void)err;
    r->start_ns = r->posted_ns;
    if (!end->is_send || !crystal_wire_is_paced(wire))
        return 0;
    occupy_ns = crystal_wire_occupy_ns(wire, r->bytes);
    r->start_ns = crystal_nic_take(&module->nics[end->nic], r->posted_ns, occupy_ns);
    r->due_ns = r->start_ns + occupy_ns + wire->latency_ns;
    return 0;
}

static int backend_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    struct backend_end *b = (struct backend_end *)end;
    int code = meet(b, err);

    if (code <= 0)
        return code;
    do {
        while ((code = give(b, err)) > 0)
            ;
        if (!code)
            code = take(b, err);
    } while (code > 0);
    return code;
}

static int backend_region(struct crystal_net_end *end, void *data, uint64_t bytes,
                          struct crystal_error *err)
{
    struct backend_end *b = (struct backend_end *)end;
    struct region *region = calloc(1, sizeof *region);

    if (!region)
        return crystal_error_set(err, ENOMEM, "out of memory for a connection");
    region->data = data;
    region->bytes = bytes;
    region->next = b->regions;
    b->regions = region;
    return 0;
}

/* The caller has tested all it cares for; whatever a plugin says now helps nobody. */
static void backend_close(struct crystal_net_end *end)
{
    struct backend_end *b = (struct backend_end *)end;

    for (int i = 0; i < CRYSTAL_NET_REQUESTS; i++)
        if (b->slots[i].has_mhandle)
            (void)b->net->deregMr(b->comm, b->slots[i].mhandle);
    while (b->regions) {
        struct region *region = b->regions;

        b->regions = region->next;
        if (region->is_registered)
            (void)b->net->deregMr(b->comm, region->mhandle);
        free(region);
    }
    if (b->comm)
        (void)(end->is_send ? b->net->closeSend(b->comm) : b->net->closeRecv(b->comm));
    if (b->listener)
        (void)b->net->closeListen(b->listener);
    if (b->context && b->net->finalize)
        (void)b->net->finalize(b->context);
    crystal_wait_forget(b->fd);
    (void)close(b->fd);
    free(b);
}

static const struct crystal_net_end_ops send_ops = {.name = "backend send",
                                                    .start = backend_start,
                                                    .progress = backend_progress,
                                                    .close = backend_close,
                                                    .region = backend_region};
static const struct crystal_net_end_ops recv_ops = {.name = "backend receive",
                                                    .start = backend_start,
                                                    .progress = backend_progress,
                                                    .close = backend_close,
                                                    .region = backend_region};

struct crystal_net_end *crystal_backend_end_create(struct crystal_net_context *context,
                                                   int fd, int is_send, unsigned nic,
                                                   uint32_t peer_crank,
                                                   struct crystal_error *err)
{
    const struct crystal_backend *backend = context->comm->module->backend;
    ncclNetCommConfig_v11_t config = {-1};
    struct backend_end *b = calloc(1, sizeof *b);
    ncclResult_t result;

    if (!b) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a connection");
        (void)close(fd);
        return NULL;
    }
    b->base.ops = is_send ? &send_ops : &recv_ops;
    b->base.context = context;
    b->base.comm = context->comm;
    b->base.is_send = is_send;
    b->base.peer_crank = peer_crank;
    b->base.nic = nic;
    b->net = backend->net;
    b->nic = (int)nic % backend->nics;
    b->fd = fd;
    result = b->net->init(&b->context, context->comm->comm_id, &config, log_line, NULL);
    if (!result && !is_send)
        result = b->net->listen(b->context, b->nic, b->handle, &b->listener);
    if (result) {
        (void)failed(b, is_send ? "init" : "listen", result, err);
        backend_close(&b->base);
        return NULL;
    }
    return &b->base;
}
