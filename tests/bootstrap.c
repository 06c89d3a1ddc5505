/* See bootstrap.h. */
#include "config.h"

#include "tests/bootstrap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define FAIL(r, ...) (snprintf((r)->error, sizeof(r)->error, __VA_ARGS__), -1)

static const int bootstrap_type = 1;

int boot_write(int fd, const void *bytes, size_t count)
{
    const char *next = bytes;

    while (count) {
        ssize_t sent = send(fd, next, count, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        next += sent;
        count -= (size_t)sent;
    }
    return 0;
}

int boot_read(int fd, void *bytes, size_t count)
{
    char *next = bytes;

    while (count) {
        ssize_t got = recv(fd, next, count, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        next += got;
        count -= (size_t)got;
    }
    return 0;
}

static void set_options(int fd)
{
    struct timeval limit = {.tv_sec = 20}; /* no test waits longer */
    int one = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

int boot_dial(const union boot_address *to)
{
    int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, &to->sa, sizeof to->in) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    set_options(fd);
    return fd;
}

static int listener(union boot_address *at)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof *at;

    memset(at, 0, sizeof *at);
    at->in.sin_family = AF_INET;
    at->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, &at->sa, sizeof at->in) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, &at->sa, &bytes) < 0)
        return -1;
    set_options(fd);
    return fd;
}

/* Connects and shakes hands. */
static int greet(uint64_t magic, const union boot_address *to)
{
    int fd = boot_dial(to);

    if (fd < 0)
        return -1;
    if (boot_write(fd, &magic, sizeof magic) ||
        boot_write(fd, &bootstrap_type, sizeof bootstrap_type)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Accepts the first connection with our magic. */
static int welcome(uint64_t magic, int listen_fd)
{
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC), type;
        uint64_t got;

        if (fd < 0)
            return -1;
        set_options(fd);
        if (boot_read(fd, &got, sizeof got) == 0 && got == magic &&
            boot_read(fd, &type, sizeof type) == 0 && type == bootstrap_type)
            return fd;
        close(fd);
    }
}

static int write_frame(int fd, const void *bytes, int size)
{
    return boot_write(fd, &size, sizeof size) ||
                   (size && boot_write(fd, bytes, (size_t)size))
               ? -1
               : 0;
}

static int read_frame(int fd, void *bytes, int size)
{
    int got;

    if (boot_read(fd, &got, sizeof got) || got != size)
        return -1;
    return size ? boot_read(fd, bytes, (size_t)size) : 0;
}

int boot_open(struct boot_rank *r, const uint8_t id[128], int crank, int nranks)
{
    memset(r, 0, sizeof *r);
    r->crank = crank;
    r->nranks = nranks;
    memcpy(&r->magic, id, sizeof r->magic);
    memcpy(&r->root, id + 8, sizeof r->root);
    r->root_magic = r->magic;
    r->next_fd = r->previous_fd = -1;
    r->ring_listener = listener(&r->ring_at);
    r->root_listener = listener(&r->root_at);
    r->peer_listener = listener(&r->peer_at);
    r->plugin_listener = listener(&r->plugin_at);
    if (r->ring_listener < 0 || r->root_listener < 0 || r->peer_listener < 0 ||
        r->plugin_listener < 0)
        return FAIL(r, "cannot listen: %s", strerror(errno));
    return 0;
}

void boot_close(struct boot_rank *r)
{
    int fds[] = {r->next_fd,       r->previous_fd,   r->ring_listener,
                 r->root_listener, r->peer_listener, r->plugin_listener};

    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    while (r->pending) {
        struct boot_pending *p = r->pending;

        r->pending = p->next;
        close(p->fd);
        free(p);
    }
    free(r->peers);
    r->peers = NULL;
    r->next_fd = r->previous_fd = r->ring_listener = r->root_listener =
        r->peer_listener = r->plugin_listener = -1;
}

int boot_block(int index, int count, int nranks)
{
    int each = nranks / count, more = nranks % count;

    return index * each + (index < more ? index : more);
}

void boot_roots(struct boot_rank *r, const uint8_t (*ids)[128], int count)
{
    while (r->crank >= boot_block(r->iroot + 1, count, r->nranks))
        r->iroot++;
    memcpy(&r->root_magic, ids[r->iroot], sizeof r->root_magic);
    memcpy(&r->root, ids[r->iroot] + 8, sizeof r->root);
    if (count == 1 || r->crank != boot_block(r->iroot, count, r->nranks))
        return;
    r->before_iroot = (r->iroot + count - 1) % count;
    r->before_rank = r->crank ? r->crank : r->nranks;
    memcpy(&r->before_magic, ids[r->before_iroot], sizeof r->before_magic);
    memcpy(&r->before, ids[r->before_iroot] + 8, sizeof r->before);
}

/* Between int nroots and what follows, 2.29 has an offset (0 but for ncclCommGrow). */
static void add_offset(char *info)
{
    memmove(info + 20, info + 16, 156);
    memset(info + 16, 0, 4);
}

static int checkin(struct boot_rank *r, uint32_t bytes, int nroots, int is_before)
{
    struct {
        int rank, nranks, iroot, nroots;
        union boot_address root_at;
        char connect[128];
        char more[512];
    } info;
    int fd;

    memset(&info, 0, sizeof info);
    info.rank = is_before ? r->before_rank : r->crank;
    info.nranks = r->nranks;
    info.iroot = is_before ? r->before_iroot : r->iroot;
    info.nroots = nroots;
    info.root_at = r->root_at;
    memcpy(info.connect, &r->ring_at, sizeof r->ring_at);
    if (boot_version >= 22902)
        add_offset((char *)&info);
    fd =
        is_before ? greet(r->before_magic, &r->before) : greet(r->root_magic, &r->root);
    if (fd < 0)
        return FAIL(r, "no root");
    if (write_frame(fd, &info, (int)bytes)) {
        close(fd);
        return FAIL(r, "the root does not take the check-in");
    }
    close(fd);
    return 0;
}

int boot_checkin(struct boot_rank *r, uint32_t bytes, int nroots)
{
    if (checkin(r, bytes, nroots, 0))
        return -1;
    return r->before_rank ? checkin(r, bytes, nroots, 1) : 0;
}

int boot_connect_ring(struct boot_rank *r)
{
    char answer[128];
    union boot_address next;
    int fd = welcome(r->root_magic, r->root_listener);

    if (fd < 0 || read_frame(fd, answer, sizeof answer)) {
        if (fd >= 0)
            close(fd);
        return FAIL(r, "the root does not answer");
    }
    close(fd);
    memcpy(&next, answer, sizeof next);
    r->next_fd = greet(r->magic, &next);
    if (r->next_fd < 0)
        return FAIL(r, "cannot connect to the next rank");
    r->previous_fd = welcome(r->magic, r->ring_listener);
    if (r->previous_fd < 0)
        return FAIL(r, "the previous rank does not connect");
    return 0;
}

int boot_ring(struct boot_rank *r, int nroots)
{
    return boot_checkin(r, boot_version >= 22902 ? 176 : 172, nroots) ||
                   boot_connect_ring(r)
               ? -1
               : 0;
}

int boot_version = 22809;

/* --- all-gather --- */

struct transfer {
    int fd, is_send;
    char *bytes;
    size_t count;
};

/* All transfers at once, whatever the order in which the sockets get ready. */
static int transfer_all(struct transfer *t, int count)
{
    for (;;) {
        struct pollfd polls[4];
        int waiting = 0;

        for (int i = 0; i < count; i++)
            if (t[i].count) {
                ssize_t done =
                    t[i].is_send ? send(t[i].fd, t[i].bytes, t[i].count,
                                        MSG_DONTWAIT | MSG_NOSIGNAL)
                                 : recv(t[i].fd, t[i].bytes, t[i].count, MSG_DONTWAIT);

                if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
                    return -1;
                if (done > 0) {
                    t[i].bytes += done;
                    t[i].count -= (size_t)done;
                }
                if (t[i].count) {
                    polls[waiting].fd = t[i].fd;
                    polls[waiting++].events = t[i].is_send ? POLLOUT : POLLIN;
                }
            }
        if (!waiting)
            return 0;
        if (poll(polls, (nfds_t)waiting, 20000) == 0)
            return -1;
    }
}

static int exchange_sizes(int to, int from, int size)
{
    int theirs = -1;
    struct transfer t[2] = {{to, 1, (char *)&size, sizeof size},
                            {from, 0, (char *)&theirs, sizeof theirs}};

    return transfer_all(t, 2) || theirs != size ? -1 : 0;
}

#define SLICE(k) (slices + (size_t)(((k) % n + n) % n) * (size_t)size)

/* Before 2.28.7: each slice goes round. */
static int gather_one_way(struct boot_rank *r, char *slices, int size)
{
    int n = r->nranks;

    for (int s = 0; s < n - 1; s++) {
        struct transfer t[2] = {
            {r->next_fd, 1, SLICE(r->crank - s), (size_t)size},
            {r->previous_fd, 0, SLICE(r->crank - s - 1), (size_t)size}};

        if (exchange_sizes(r->next_fd, r->previous_fd, size) || transfer_all(t, 2))
            return FAIL(r, "all-gather of %d bytes stops in step %d", size, s);
    }
    return 0;
}

int boot_gather(struct boot_rank *r, void *data, int size)
{
    int n = r->nranks, steps = n / 2;
    char *slices = data;

    if (boot_version < 22807)
        return gather_one_way(r, slices, size);
    for (int s = 0; s < steps; s++) {
        int is_last = s == steps - 1 && n % 2 == 0;
        struct transfer t[4] = {
            {r->next_fd, 1, SLICE(r->crank - s), (size_t)size},
            {r->previous_fd, 0, SLICE(r->crank - s - 1), (size_t)size},
            {r->previous_fd, 1, SLICE(r->crank + s), (size_t)size},
            {r->next_fd, 0, SLICE(r->crank + s + 1), (size_t)size}};

        if (exchange_sizes(r->next_fd, r->previous_fd, size) ||
            (!is_last && exchange_sizes(r->previous_fd, r->next_fd, size)) ||
            transfer_all(t, is_last ? 2 : 4))
            return FAIL(r, "all-gather of %d bytes stops in step %d of %d", size, s,
                        steps);
    }
#undef SLICE
    return 0;
}

/* --- messages --- */

int boot_send(struct boot_rank *r, int peer, int tag, const void *data, int size)
{
    int envelope[2] = {r->crank, tag};
    int fd = greet(r->magic, &r->peers[peer]);

    if (fd < 0)
        return FAIL(r, "cannot reach rank %d", peer);
    if (write_frame(fd, envelope, sizeof envelope) || write_frame(fd, data, size)) {
        close(fd);
        return FAIL(r, "cannot send to rank %d", peer);
    }
    close(fd);
    return 0;
}

static int take_pending(struct boot_rank *r, int peer, int tag)
{
    for (struct boot_pending **p = &r->pending; *p; p = &(*p)->next)
        if ((*p)->peer == peer && (*p)->tag == tag) {
            struct boot_pending *found = *p;
            int fd = found->fd;

            *p = found->next;
            free(found);
            return fd;
        }
    return -1;
}

int boot_receive(struct boot_rank *r, int peer, int tag, void *data, int size)
{
    int fd = take_pending(r, peer, tag);
    char end;

    while (fd < 0) {
        int envelope[2];

        fd = welcome(r->magic, r->peer_listener);
        if (fd < 0 || read_frame(fd, envelope, sizeof envelope))
            return FAIL(r, "no message of rank %d with tag 0x%x", peer, tag);
        if (envelope[0] != peer || envelope[1] != tag) {
            struct boot_pending *p = malloc(sizeof *p);

            if (!p)
                return FAIL(r, "out of memory");
            *p = (struct boot_pending){r->pending, fd, envelope[0], envelope[1]};
            r->pending = p;
            fd = -1;
        }
    }
    if (read_frame(fd, data, size) || recv(fd, &end, 1, 0) != 0) {
        close(fd);
        return FAIL(r, "a bad message of rank %d with tag 0x%x", peer, tag);
    }
    close(fd);
    return 0;
}

/* --- root --- */

int boot_root_open(struct boot_root *root, uint8_t id[128], int nranks)
{
    union boot_address at;

    memset(root, 0, sizeof *root);
    root->nranks = nranks;
    root->count = 1;
    root->listener = listener(&at);
    if (root->listener < 0 ||
        getrandom(&root->magic, sizeof root->magic, 0) != sizeof root->magic)
        return -1;
    memset(id, 0, 128);
    memcpy(id, &root->magic, sizeof root->magic);
    memcpy(id + 8, &at, sizeof at);
    return 0;
}

void *boot_root_run(void *argument)
{
    struct boot_root *root = argument;
    const int first = boot_block(root->index, root->count, root->nranks);
    const int block = boot_block(root->index + 1, root->count, root->nranks) - first;
    const int n = block + (root->count > 1);
    struct info {
        int rank, nranks, iroot, nroots;
        union boot_address root_at;
        char connect[128];
        char more[4];
        int is_here;
    } *all = calloc((size_t)n, sizeof *all);

    for (int i = 0; all && i < n; i++) {
        struct info in;
        int fd;

        if (root->is_brief && all[0].is_here && all[1].is_here && all[n - 1].is_here) {
            free(all);
            return NULL;
        }
        fd = welcome(root->magic, root->listener);
        if (fd < 0 || read_frame(fd, &in, boot_version >= 22902 ? 176 : 172))
            break;
        if (boot_version >= 22902)
            memmove((char *)&in + 16, (char *)&in + 20, 156);
        close(fd);
        in.rank -= first;
        if (in.rank < 0 || in.rank >= n || in.nranks != root->nranks ||
            in.iroot != root->index || in.nroots != root->count || all[in.rank].is_here)
            break;
        in.is_here = 1;
        all[in.rank] = in;
        root->checkin_count++;
        for (int k = 0; k < 2; k++) { /* this rank, and the one before it */
            int r = (in.rank + n - k) % n, next = (r + 1) % n;

            if (r >= block || !all[r].is_here || !all[next].is_here || (k && r == next))
                continue;
            fd = greet(root->magic, &all[r].root_at);
            if (fd < 0 || write_frame(fd, all[next].connect, 128))
                goto out;
            close(fd);
        }
    }
out:
    close(root->listener);
    free(all);
    return NULL;
}
