/* Check-in, ring, addresses, messages. The ring's all-gather is in gather.c. */
#include "config.h"

#include "replay/hostccl/bootstrap.h"

#include "replay/board.h"
#include "replay/hostccl/board_watch.h"
#include "replay/hostccl/gather.h"
#include "replay/hostccl/service.h"
#include "replay/hostccl/socket.h"
#include "runtime/clock.h"
#include "runtime/loop.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* A neighbour that closed may have sent what we wait for just before. */
#define GONE_NS 2000000000U

struct hostccl_bootstrap {
    uint32_t nranks, crank;
    uint64_t magic, comm_id;
    const atomic_bool *abort; /* borrowed */
    union hostccl_address own;
    int next_fd, prev_fd;          /* the ring; -1: not yet */
    int listen_fd;                 /* for the previous rank */
    int proxy_fd;                  /* NCCL listens there for its proxy; nobody comes */
    struct hostccl_mailbox *box;   /* owned */
    union hostccl_address *peers;  /* [nranks], owned */
    union hostccl_address ring_at; /* where the previous rank connects */
    union hostccl_address peer_at; /* where messages go */
    union hostccl_address proxy_at;
};

int hostccl_bootstrap_id(ncclUniqueId *ret_id, struct crystal_error *err)
{
    struct hostccl_id id = {0};
    union hostccl_address own;
    int fd, result = hostccl_address_own(&own, err);

    if (result)
        return result;
    if (getrandom(&id.magic, sizeof id.magic, 0) != sizeof id.magic)
        return crystal_error_set(err, errno, "getrandom: %s", strerror(errno));
    result = hostccl_listen(&own, &fd, &id.root, err);
    if (result)
        return result;
    result = hostccl_service_root(fd, id.magic, err);
    if (result) {
        (void)close(fd);
        return result;
    }
    memset(ret_id, 0, sizeof *ret_id);
    memcpy(ret_id, &id, sizeof id);
    return 0;
}

static uint32_t root_of(uint32_t crank, uint32_t nranks, uint32_t roots)
{
    uint32_t each = nranks / roots, more = nranks % roots;

    if (crank < more * (each + 1))
        return crank / (each + 1);
    return (crank - more * (each + 1)) / each + more;
}

static struct hostccl_id id_of(const ncclUniqueId *id)
{
    struct hostccl_id bytes;

    memcpy(&bytes, id, sizeof bytes);
    return bytes;
}

static int send_checkin(struct hostccl_bootstrap *b, const ncclUniqueId *id,
                        const struct hostccl_checkin *in, struct crystal_error *err)
{
    struct hostccl_id root = id_of(id);
    int fd, result = hostccl_dial(&root.root, root.magic, b->abort, &fd, err);

    if (result) {
        crystal_error_prefix(err, "rank %u cannot check in at the communicator's root",
                             b->crank);
        return result;
    }
    result = hostccl_send_message(fd, in, sizeof *in, b->abort, err);
    (void)close(fd);
    return result;
}

/* Tells the root where this rank's ring listener is and learns the next rank's. */
static int meet_root(struct hostccl_bootstrap *b, const ncclUniqueId *ids,
                     uint32_t id_count, struct hostccl_checkin *in, int answer_fd,
                     union hostccl_address *ret_next, struct crystal_error *err)
{
    uint32_t root = root_of(b->crank, b->nranks, id_count);
    char connect[NCCL_NET_HANDLE_MAXSIZE];
    int fd, result;

    in->crank = (int32_t)b->crank;
    in->iroot = (int32_t)root;
    result = send_checkin(b, &ids[root], in, err);
    if (result)
        return result;
    if (id_count > 1 &&
        (b->crank == 0 || root_of(b->crank - 1, b->nranks, id_count) != root)) {
        uint32_t before = (b->crank + b->nranks - 1) % b->nranks;

        in->crank = (int32_t)before + 1;
        in->iroot = (int32_t)root_of(before, b->nranks, id_count);
        result = send_checkin(b, &ids[in->iroot], in, err);
        if (result)
            return result;
    }
    result = hostccl_accept(answer_fd, id_of(&ids[root]).magic, b->abort, &fd, err);
    if (result)
        return result;
    result = hostccl_recv_message(fd, connect, sizeof connect, b->abort, err);
    (void)close(fd);
    memcpy(ret_next, connect, sizeof *ret_next);
    return result;
}

static struct hostccl_bootstrap *allocate(uint32_t nranks, uint32_t crank,
                                          uint64_t magic, uint64_t comm_id,
                                          const atomic_bool *abort,
                                          struct crystal_error *err)
{
    struct hostccl_bootstrap *b = calloc(1, sizeof *b);

    if (b)
        b->peers = calloc(nranks, sizeof *b->peers);
    if (!b || !b->peers) {
        free(b);
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    b->nranks = nranks;
    b->crank = crank;
    b->magic = magic;
    b->comm_id = comm_id;
    b->abort = abort;
    b->next_fd = b->prev_fd = b->listen_fd = b->proxy_fd = -1;
    if (hostccl_address_own(&b->own, err) ||
        hostccl_listen(&b->own, &b->listen_fd, &b->ring_at, err)) {
        hostccl_bootstrap_destroy(b);
        return NULL;
    }
    hostccl_board_note(CRYSTAL_ROLL_JOINED, comm_id, crank);
    return b;
}

static int connect_ring(struct hostccl_bootstrap *b, const union hostccl_address *next,
                        struct crystal_error *err)
{
    int result = hostccl_dial(next, b->magic, b->abort, &b->next_fd, err);

    return result ? result
                  : hostccl_accept(b->listen_fd, b->magic, b->abort, &b->prev_fd, err);
}

static int open_mailbox(struct hostccl_bootstrap *b, void (*notify)(void),
                        struct crystal_error *err)
{
    int fd, result = hostccl_listen(&b->own, &fd, &b->peer_at, err);

    if (result)
        return result;
    b->box = hostccl_mailbox_create(fd, b->magic, notify, err);
    if (!b->box) {
        (void)close(fd);
        return -EIO;
    }
    return 0;
}

/* All-gather 0: where every rank gets its messages. */
static int gather_addresses(struct hostccl_bootstrap *b, struct crystal_error *err)
{
    struct hostccl_ring_data *all = calloc(b->nranks, sizeof *all);
    int result;

    if (!all)
        return crystal_error_set(err, ENOMEM, "out of memory");
    all[b->crank].peer = b->peer_at;
    all[b->crank].proxy = b->proxy_at;
    /* a number by which NCCL's proxies would name their local sockets */
    if (getrandom(&all[b->crank].proxy_local, sizeof all->proxy_local, 0) < 0)
        all[b->crank].proxy_local = b->magic + b->crank;
    result = hostccl_bootstrap_gather(b, all, sizeof *all, err);
    for (uint32_t i = 0; !result && i < b->nranks; i++)
        b->peers[i] = all[i].peer;
    free(all);
    return result;
}

struct hostccl_bootstrap *
hostccl_bootstrap_create(const ncclUniqueId *ids, uint32_t id_count, uint32_t nranks,
                         uint32_t crank, const atomic_bool *abort, void (*notify)(void),
                         struct crystal_error *err)
{
    struct hostccl_bootstrap *b =
        allocate(nranks, crank, id_of(&ids[0]).magic,
                 crystal_nccl_hash(&ids[0], sizeof ids[0]), abort, err);
    struct hostccl_checkin in = {.nranks = (int32_t)nranks,
                                 .nroots = (int32_t)id_count};
    union hostccl_address next;
    int answer_fd, result;

    if (!b)
        return NULL;
    result = hostccl_listen(&b->own, &answer_fd, &in.answer_at, err);
    if (result) {
        hostccl_bootstrap_destroy(b);
        return NULL;
    }
    in.connect.ring = b->ring_at;
    result = meet_root(b, ids, id_count, &in, answer_fd, &next, err);
    (void)close(answer_fd);
    if (!result)
        result = connect_ring(b, &next, err);
    if (!result)
        result = hostccl_listen(&b->own, &b->proxy_fd, &b->proxy_at, err);
    if (!result)
        result = open_mailbox(b, notify, err);
    if (!result)
        result = gather_addresses(b, err);
    if (result) {
        hostccl_bootstrap_destroy(b);
        return NULL;
    }
    return b;
}

/* The ring of a split is met through the parent: each rank tells its previous where it
 * listens. */
static int meet_through(struct hostccl_bootstrap *b, struct hostccl_bootstrap *parent,
                        const uint32_t *cranks, union hostccl_address *ret_next,
                        struct crystal_error *err)
{
    uint32_t next = cranks[(b->crank + 1) % b->nranks];
    uint32_t prev = cranks[(b->crank + b->nranks - 1) % b->nranks];
    char connect[NCCL_NET_HANDLE_MAXSIZE] = {0};
    uint32_t bytes = 0;
    int result;

    memcpy(connect, &b->ring_at, sizeof b->ring_at);
    result = hostccl_bootstrap_send(parent, prev, HOSTCCL_TAG_SPLIT, connect,
                                    sizeof connect, err);
    if (!result)
        result = hostccl_bootstrap_recv(parent, next, HOSTCCL_TAG_SPLIT, connect,
                                        sizeof connect, &bytes, err);
    if (!result && bytes != sizeof connect)
        result = crystal_error_set(err, EPROTO, "rank %u sends %u bytes for the ring",
                                   next, bytes);
    memcpy(ret_next, connect, sizeof *ret_next);
    return result;
}

struct hostccl_bootstrap *
hostccl_bootstrap_split(struct hostccl_bootstrap *parent, uint64_t magic,
                        uint32_t nranks, uint32_t crank, const uint32_t *cranks,
                        const atomic_bool *abort, void (*notify)(void),
                        struct crystal_error *err)
{
    struct hostccl_bootstrap *b = allocate(nranks, crank, magic, magic, abort, err);
    union hostccl_address next;
    int result;

    if (!b)
        return NULL;
    result = open_mailbox(b, notify, err);
    if (!result)
        result = meet_through(b, parent, cranks, &next, err);
    if (!result)
        result = connect_ring(b, &next, err);
    if (!result)
        result = hostccl_listen(&b->own, &b->proxy_fd, &b->proxy_at, err);
    if (!result)
        result = gather_addresses(b, err);
    if (result) {
        hostccl_bootstrap_destroy(b);
        return NULL;
    }
    return b;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

void hostccl_bootstrap_destroy(struct hostccl_bootstrap *b)
{
    if (!b)
        return;
    hostccl_mailbox_destroy(b->box);
    close_fd(b->next_fd);
    close_fd(b->prev_fd);
    close_fd(b->listen_fd);
    close_fd(b->proxy_fd);
    free(b->peers);
    free(b);
}

/* Which neighbours in the ring have closed their ends? Returns their number. */
static int broken_count(const struct hostccl_bootstrap *b, bool is_noted)
{
    const uint32_t cranks[2] = {(b->crank + 1) % b->nranks,
                                (b->crank + b->nranks - 1) % b->nranks};
    struct pollfd fds[2] = {{.fd = b->next_fd, .events = POLLRDHUP},
                            {.fd = b->prev_fd, .events = POLLRDHUP}};
    int count = poll(fds, 2, 0);

    for (int i = 0; is_noted && i < 2; i++)
        if (count > 0 && fds[i].revents)
            hostccl_board_note(CRYSTAL_ROLL_PARTED, b->comm_id, cranks[i]);
    return count;
}

int hostccl_bootstrap_gather(struct hostccl_bootstrap *b, void *slices, uint32_t bytes,
                             struct crystal_error *err)
{
    int result = hostccl_gather(b->next_fd, b->prev_fd, b->nranks, b->crank, slices,
                                bytes, b->abort, err);

    if (result && result != -ECANCELED)
        (void)broken_count(b, true);
    if (result)
        crystal_error_prefix(err, "all-gather of %u bytes per rank", bytes);
    return result;
}

int hostccl_bootstrap_send(struct hostccl_bootstrap *b, uint32_t crank, int32_t tag,
                           const void *data, uint32_t bytes, struct crystal_error *err)
{
    struct hostccl_envelope from = {.crank = (int32_t)b->crank, .tag = tag};
    int fd, result = hostccl_dial(&b->peers[crank], b->magic, b->abort, &fd, err);

    if (!result) {
        result = hostccl_send_message(fd, &from, sizeof from, b->abort, err);
        if (!result)
            result = hostccl_send_message(fd, data, bytes, b->abort, err);
        (void)close(fd);
    }
    if (result == -ECONNREFUSED || result == -ECONNRESET || result == -EPIPE)
        hostccl_board_note(CRYSTAL_ROLL_PARTED, b->comm_id, crank);
    if (result)
        crystal_error_prefix(err, "message to rank %u", crank);
    return result;
}

int hostccl_bootstrap_check(struct hostccl_bootstrap *b, uint64_t *broken_ns,
                            struct crystal_error *err)
{
    uint64_t now = crystal_now_ns();

    if (atomic_load_explicit(b->abort, memory_order_acquire))
        return crystal_error_set(err, ECANCELED, "the communicator was aborted");
    if (broken_count(b, false) <= 0)
        return 0;
    if (!*broken_ns)
        *broken_ns = now;
    if (now - *broken_ns < GONE_NS)
        return 0;
    (void)broken_count(b, true);
    return crystal_error_set(err, ECONNRESET, "a neighbour in the ring left");
}

int hostccl_bootstrap_recv(struct hostccl_bootstrap *b, uint32_t crank, int32_t tag,
                           void *data, uint32_t max, uint32_t *ret_bytes,
                           struct crystal_error *err)
{
    uint64_t broken_ns = 0;
    int result;

    while (!(result = hostccl_mailbox_wait(b->box, (int32_t)crank, tag, data, max,
                                           ret_bytes)))
        if ((result = hostccl_bootstrap_check(b, &broken_ns, err)))
            return result;
    if (result < 0)
        return crystal_error_set(err, EPROTO, "rank %u sends %u bytes, expected %u",
                                 crank, *ret_bytes, max);
    return 0;
}

int hostccl_bootstrap_poll(struct hostccl_bootstrap *b, uint32_t crank, int32_t tag,
                           void *data, uint32_t max, uint32_t *ret_bytes)
{
    return hostccl_mailbox_take(b->box, (int32_t)crank, tag, data, max, ret_bytes);
}
