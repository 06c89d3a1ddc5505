/* The bootstrap proxy of a node without the node, and independent clients of NCCL's
 * bootstrap in every position of a communicator. For the tests of the proxy.
 */
#ifndef CRYSTAL_TESTS_PROXY_WORLD_H
#define CRYSTAL_TESTS_PROXY_WORLD_H

#include "replay/net_handle.h"
#include "replay/proxy.h"

#include "tests/bootstrap.h"
#include "tests/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#define REAL_MAX      64
#define ROOTS_MAX     8
#define RING_CHANNELS 2 /* that a search found; the rings of odd ones go backwards */

/* A node's service without the node: board, layout, proxy. */
struct place {
    char directory[64];
    struct crystal_layout layout;
    struct crystal_board *board;
    struct crystal_proxy *proxy;
};

static inline void place_open(struct place *p, uint32_t n, uint32_t per_node,
                              const uint32_t *real, uint32_t real_count)
{
    struct crystal_error err = {0};
    struct crystal_board_config board = {
        .lrank_count = n, .mode = CRYSTAL_BOARD_IMMEDIATE, .comm_capacity = 64};
    struct crystal_proxy_config proxy = {.layout = &p->layout};

    memset(p, 0, sizeof *p);
    strcpy(p->directory, "/tmp/crystal-proxy-XXXXXX");
    if (!mkdtemp(p->directory)) {
        printf("Bail out! no directory\n");
        exit(1);
    }
    p->layout.lrank_count = n;
    p->layout.ranks_per_node = per_node;
    p->layout.sandbox_count = real_count;
    p->layout.sandbox = malloc(4 * real_count);
    memcpy(p->layout.sandbox, real, 4 * real_count);
    p->layout.target.nccl_version = (uint32_t)boot_version;
    p->layout.target.nccl_untested = 1;
    board.directory = p->directory;
    p->board = crystal_board_create(&board, &err);
    proxy.board = p->board;
    p->proxy = p->board ? crystal_proxy_create(&proxy, &err) : NULL;
    if (!p->proxy) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
}

static inline void place_close(struct place *p)
{
    crystal_proxy_destroy(p->proxy);
    crystal_board_destroy(p->board);
    CHECK_EQ(rmdir(p->directory), 0);
    free(p->layout.sandbox);
}

/* --- one communicator of real threads and virtual ranks --- */

struct world {
    struct place *place;
    uint32_t n;
    uint32_t *members; /* lrank by crank */
    uint8_t id[128];
    const uint8_t (*ids)[128]; /* where there are several roots; id is the first */
    uint32_t root_count;
    pthread_barrier_t barrier; /* all real ranks */
    uint32_t real_count;
    int is_regular;    /* every target node has the same local ranks */
    int32_t cross_nic; /* 2: the rings of odd nodes change places in pairs */
};

struct client {
    struct world *world;
    struct boot_rank rank;
    pthread_t thread;
    int code;
};

static inline uint32_t node_of(const struct world *w, uint32_t crank)
{
    return w->members[crank] / w->place->layout.ranks_per_node;
}

static inline int is_real(const struct world *w, uint32_t crank)
{
    return crystal_layout_is_sandbox(&w->place->layout, w->members[crank]);
}

#define WRONG(c, ...) \
    (snprintf((c)->rank.error, sizeof(c)->rank.error, __VA_ARGS__), -1)

static inline int32_t i32(const uint8_t *slice, size_t at)
{
    int32_t v;

    memcpy(&v, slice + at, sizeof v);
    return v;
}

static inline uint64_t u64(const uint8_t *slice, size_t at)
{
    uint64_t v;

    memcpy(&v, slice + at, sizeof v);
    return v;
}

static inline int gather_addresses(struct client *c)
{
    struct boot_rank *r = &c->rank;
    uint32_t n = c->world->n;
    uint8_t *all = calloc(n, BOOT_RING_DATA_BYTES);
    uint8_t *own = all + (size_t)r->crank * BOOT_RING_DATA_BYTES;
    uint8_t zero[56] = {0};
    int code = -1;

    memcpy(own, &r->peer_at, 28);
    memset(own + 28, 0x5a, BOOT_RING_DATA_BYTES - 28);
    if (boot_gather(r, all, BOOT_RING_DATA_BYTES))
        goto out;
    r->peers = calloc(n, sizeof *r->peers);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *slice = all + (size_t)i * BOOT_RING_DATA_BYTES;

        memcpy(&r->peers[i], slice, sizeof r->peers[i]);
        if (is_real(c->world, i)) {
            if (slice[119] != 0x5a) {
                (void)WRONG(c, "rank %u's ring data did not arrive", i);
                goto out;
            }
            continue;
        }
        if (r->peers[i].in.sin_family != AF_INET ||
            ntohl(r->peers[i].in.sin_addr.s_addr) >> 24 != 127 ||
            memcmp(slice + 64, zero, sizeof zero) != 0) {
            (void)WRONG(c, "rank %u's ring data is wrong", i);
            goto out;
        }
        if (i && memcmp(&r->peers[i], &r->peers[i - 1], sizeof r->peers[i]) == 0) {
            (void)WRONG(c, "ranks %u and %u have one address", i - 1, i);
            goto out;
        }
    }
    code = 0;
out:
    free(all);
    return code;
}

static inline int gather_peers(struct client *c)
{
    struct boot_rank *r = &c->rank;
    uint32_t n = c->world->n, me = (uint32_t)r->crank;
    uint8_t *all = calloc(n, BOOT_PEER_INFO_BYTES);
    uint8_t *own = all + (size_t)me * BOOT_PEER_INFO_BYTES;
    uint64_t host = 0x1000 + node_of(c->world, me), pid = 0x77000 + me;
    int32_t local =
        (int32_t)(c->world->members[me] % c->world->place->layout.ranks_per_node);
    int64_t bus = 0x10 * (local + 1);
    int32_t version = boot_version, crank = r->crank;
    int code = -1;

    memcpy(own, &crank, 4);
    memcpy(own + 8, &local, 4); /* nvmlDev */
    memcpy(own + 16, &host, 8);
    memcpy(own + 24, &pid, 8);
    memcpy(own + 40, &bus, 8);
    memcpy(own + 112, &version, 4);
    if (boot_gather(r, all, BOOT_PEER_INFO_BYTES))
        goto out;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *a = all + (size_t)i * BOOT_PEER_INFO_BYTES;

        if (i32(a, 0) != (int32_t)i || i32(a, 112) != boot_version) {
            (void)WRONG(c, "peer info %u says rank %d, version %d", i, i32(a, 0),
                        i32(a, 112));
            goto out;
        }
        if (c->world->is_regular &&
            i32(a, 8) != (int32_t)(c->world->members[i] %
                                   c->world->place->layout.ranks_per_node)) {
            (void)WRONG(c, "rank %u has device %d", i, i32(a, 8));
            goto out;
        }
        for (uint32_t k = n > 200 && i > 64 ? i - 64 : 0; k < i; k++) {
            const uint8_t *b = all + (size_t)k * BOOT_PEER_INFO_BYTES;
            int same = node_of(c->world, i) == node_of(c->world, k) &&
                       is_real(c->world, i) == is_real(c->world, k);

            if ((u64(a, 16) == u64(b, 16)) != same || u64(a, 24) == u64(b, 24) ||
                (same && u64(a, 40) == u64(b, 40))) {
                (void)WRONG(c, "hosts, processes or devices of %u and %u are wrong", k,
                            i);
                goto out;
            }
        }
    }
    code = 0;
out:
    free(all);
    return code;
}

/* The real members of a node in the ring order that a channel has there. */
static inline uint32_t chain(const struct world *w, uint32_t node, uint32_t channel,
                             uint32_t *ret)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w->n; i++)
        if (node_of(w, i) == node && is_real(w, i))
            ret[count++] = i;
    if (channel % 2)
        for (uint32_t i = 0; i < count / 2; i++) {
            uint32_t t = ret[i];

            ret[i] = ret[count - 1 - i];
            ret[count - 1 - i] = t;
        }
    return count;
}

static inline void own_topology(struct client *c, uint8_t *slice)
{
    uint32_t ranks[REAL_MAX], me = (uint32_t)c->rank.crank;
    const int32_t channels = RING_CHANNELS;

    for (uint32_t ch = 0; ch < BOOT_CHANNELS; ch++) {
        uint32_t count = chain(c->world, node_of(c->world, me), ch, ranks), at = 0;
        int32_t v[8];

        while (ranks[at] != me)
            at++;
        v[0] = (int32_t)ranks[0];
        v[1] = (int32_t)ranks[count - 1];
        v[2] = at ? (int32_t)ranks[at - 1] : -1;
        v[3] = at + 1 < count ? (int32_t)ranks[at + 1] : -1;
        v[4] = v[5] = v[0];
        v[6] = (int32_t)ranks[count > 1];
        v[7] = -1;
        for (uint32_t a = 0; a < 8; a++)
            memcpy(slice + 228 + 4 * (a * BOOT_CHANNELS + ch), &v[a], 4);
    }
    memset(slice, 0x11, 224);
    memcpy(slice + 224, &c->world->cross_nic, 4);
    memcpy(slice + 4, &channels, 4);
    memcpy(slice + 36, &channels, 4);
}

/* What NCCL does with it: nodes in the order in which their first ranks come, the end
 * of one node leads to the beginning of the next, and the ring must close over all. */
static inline int check_rings(struct client *c, const uint8_t *all)
{
    uint32_t n = c->world->n;
    int32_t *firsts = malloc(4 * (size_t)n);
    uint32_t node_count, code = 0;

#define FIELD(rank, array, ch)                    \
    i32(all + (size_t)(rank)*BOOT_TOPOLOGY_BYTES, \
        228 + 4 * ((array)*BOOT_CHANNELS + (ch)))
    for (uint32_t ch = 0; ch < 2 && !code; ch++) {
        uint32_t seen = 0, node = 0;
        int32_t at;

        node_count = 0;
        for (uint32_t i = 0; i < n; i++) {
            int32_t first = FIELD(i, 0, ch);
            uint32_t k = node_count && firsts[node_count - 1] == first ? 0 : node_count;

            if (first < 0 || (uint32_t)first >= n) {
                code = 1;
                break;
            }
            for (uint32_t j = 0; k && j < node_count; j++)
                if (firsts[j] == first)
                    k = 0;
            if (k || !node_count)
                firsts[node_count++] = first;
        }
        at = firsts[0];
        while (!code && seen < n) {
            int32_t next = FIELD(at, 3, ch);

            seen++;
            if (next < 0) { /* the end of this node */
                if (FIELD(at, 1, ch) != at)
                    code = 2;
                node++;
                next = firsts[node % node_count];
            }
            if (next < 0 || (uint32_t)next >= n || (seen < n && next == firsts[0]))
                code = 3;
            else
                at = next;
        }
        if (!code && (at != firsts[0] || node != node_count))
            code = 4;
    }
#undef FIELD
    free(firsts);
    return code ? WRONG(c, "ring does not close (%u)", code) : 0;
}

/* The channel whose entries of a rank the ring of ch uses: NCCL numbers the nodes as
 * their first ranks come, and in odd ones the channels of a pair change places where
 * the NICs cross. */
static inline uint32_t channel_at(const struct world *w, const uint8_t *all,
                                  uint32_t rank, uint32_t ch)
{
    const int32_t entry = i32(all + (size_t)rank * BOOT_TOPOLOGY_BYTES, 228);
    uint32_t nodes = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        int32_t own = i32(all + (size_t)i * BOOT_TOPOLOGY_BYTES, 228);
        uint32_t k = 0;

        while (k < i && i32(all + (size_t)k * BOOT_TOPOLOGY_BYTES, 228) != own)
            k++;
        if (k == i && own == entry)
            break;
        nodes += k == i;
    }
    return w->cross_nic == 2 && nodes % 2 ? ch ^ 1 : ch;
}

/* The board has the rings that NCCL makes of these messages. */
static inline int check_board(struct client *c, const uint8_t *all)
{
    struct crystal_board *board = c->world->place->board;
    const struct crystal_board_comm *entry =
        crystal_board_comm_find(board, crystal_nccl_hash(c->world->id, 128));
    const struct world *w = c->world;
    const uint32_t n = w->n;
    int wait = 0;

    if (!entry)
        return WRONG(c, "not on the board");
    while (atomic_load(&entry->rings) == CRYSTAL_BOARD_RINGS_AWAITED && wait++ < 60000)
        usleep(1000);
    if (atomic_load(&entry->rings) == CRYSTAL_BOARD_RINGS_AWAITED)
        return WRONG(c, "the board has no rings");
    for (uint32_t ch = 0; ch < 2 * RING_CHANNELS; ch++) {
        const uint32_t *ranks = atomic_load(&entry->rings) == CRYSTAL_BOARD_RINGS_LISTED
                                    ? crystal_board_ring_ranks(board, entry, ch)
                                    : NULL;

        for (uint32_t i = 0; i < n; i++) {
            const uint32_t here = ranks ? ranks[i] : i;
            const uint32_t there = ranks ? ranks[(i + 1) % n] : (i + 1) % n;
            const uint8_t *slice = all + (size_t)here * BOOT_TOPOLOGY_BYTES;
            const uint32_t at = w->cross_nic
                                    ? channel_at(w, all, here, ch % RING_CHANNELS)
                                    : ch % RING_CHANNELS;
            const uint32_t behind = w->cross_nic
                                        ? channel_at(w, all, there, ch % RING_CHANNELS)
                                        : ch % RING_CHANNELS;
            int32_t next = i32(slice, 228 + 4 * (3 * BOOT_CHANNELS + at));
            int32_t entry_there =
                i32(all + (size_t)there * BOOT_TOPOLOGY_BYTES, 228 + 4 * behind);

            if ((i == 0 && here) ||
                (next >= 0 ? (uint32_t)next != there : (uint32_t)entry_there != there))
                return WRONG(c, "place %u of the board's ring %u is %u, behind it %u",
                             i, ch, here, there);
        }
    }
    return 0;
}

static inline int gather_topology(struct client *c)
{
    uint32_t n = c->world->n;
    uint8_t *all = calloc(n, BOOT_TOPOLOGY_BYTES);
    int code;

    own_topology(c, all + (size_t)c->rank.crank * BOOT_TOPOLOGY_BYTES);
    code = boot_gather(&c->rank, all, BOOT_TOPOLOGY_BYTES);
    if (!code)
        code = check_rings(c, all);
    if (!code)
        code = check_board(c, all);
    if (!code && all[(size_t)(n - 1) * BOOT_TOPOLOGY_BYTES] != 0x11)
        code = WRONG(c, "graphs are not cloned");
    free(all);
    return code;
}

static inline int gather_flags(struct client *c)
{
    uint8_t *all = calloc(c->world->n, 2);
    int code;

    all[2 * c->rank.crank + 1] = 7;
    code = boot_gather(&c->rank, all, 2);
    for (uint32_t i = 0; !code && i < c->world->n; i++)
        if (all[2 * i] != 0 || all[2 * i + 1] != 7)
            code = WRONG(c, "flags of %u are wrong", i);
    free(all);
    return code;
}

/* --- exchange of connections --- */

struct entry {
    uint8_t bytes[BOOT_ENTRY_BYTES];
};

static inline void receive_entry(const struct client *c, struct entry *e, uint64_t id)
{
    struct crystal_net_handle h = {.id = id, .kind = CRYSTAL_NET_REAL};
    int32_t gdr = 1;

    memset(e, 0, sizeof *e);
    memcpy(h.magic, CRYSTAL_NET_HANDLE_MAGIC, 8);
    h.crank = (uint32_t)c->rank.crank;
    memcpy(h.addr, &c->rank.plugin_at, 28);
    memcpy(e->bytes, &h, sizeof h);
    memcpy(e->bytes + 128, &gdr, 4);
}

static inline void send_entry(const struct client *c, struct entry *e)
{
    int32_t proxy_rank = c->rank.crank, gdr = 1;

    memset(e, 0, sizeof *e);
    memcpy(e->bytes, &proxy_rank, 4);
    memcpy(e->bytes + 128, &gdr, 4);
}

/* The answer to a sending entry. */
static inline int check_handle(struct client *c, const struct entry *e, uint32_t peer)
{
    struct crystal_net_handle h;

    memcpy(&h, e->bytes, sizeof h);
    if (memcmp(h.magic, CRYSTAL_NET_HANDLE_MAGIC, 8) != 0 || i32(e->bytes, 128) != 1)
        return WRONG(c, "no handle of rank %u", peer);
    if (is_real(c->world, peer))
        return h.kind == CRYSTAL_NET_REAL ? 0 : WRONG(c, "kind %u", h.kind);
    if (h.kind != CRYSTAL_NET_VIRTUAL || h.crank != peer || h.addr[0] ||
        h.comm_id != crystal_nccl_hash(c->world->id, 128))
        return WRONG(c, "handle of virtual rank %u is wrong", peer);
    return 0;
}

/* A virtual sender says hello. */
static inline int check_hello(struct client *c, uint32_t peer, uint64_t first_id,
                              int count)
{
    uint64_t ids = 0;

    for (int i = 0; i < count; i++) {
        struct crystal_net_hello h;
        int fd = accept(c->rank.plugin_listener, NULL, NULL);
        char end;

        if (fd < 0 || boot_read(fd, &h, sizeof h) || recv(fd, &end, 1, 0) != 0)
            return WRONG(c, "no hello of rank %u", peer);
        close(fd);
        if (memcmp(h.magic, CRYSTAL_NET_HELLO_MAGIC, 8) != 0 || h.crank != peer ||
            h.kind != CRYSTAL_NET_VIRTUAL || h.id < first_id ||
            h.id >= first_id + (uint64_t)count ||
            h.comm_id != crystal_nccl_hash(c->world->id, 128))
            return WRONG(c, "hello of rank %u is wrong", peer);
        ids |= UINT64_C(1) << (h.id - first_id);
    }
    return ids == (UINT64_C(1) << count) - 1 ? 0 : WRONG(c, "hellos are not distinct");
}

/* As NCCL connects: channels receive from rank-distance, the others send to
 * rank+distance. */
static inline int exchange(struct client *c, uint32_t distance, int graph, int receives,
                           int sends)
{
    uint32_t n = c->world->n, me = (uint32_t)c->rank.crank;
    uint32_t from = (me + n - distance) % n, to = (me + distance) % n;
    int tag = (int)(distance << 8) + graph;
    uint64_t id = (uint64_t)me << 32 | (uint64_t)distance << 8 | 1;
    struct entry *out = calloc((size_t)(receives + sends), sizeof *out);
    struct entry *in = calloc((size_t)(receives + sends), sizeof *in);
    struct entry *handles = in, *senders;
    int code = 0;

    for (int i = 0; i < receives; i++)
        receive_entry(c, &out[i], id + (uint64_t)i);
    for (int i = 0; i < sends; i++)
        send_entry(c, &out[receives + i]);
    if (from == to) {
        code = boot_send(&c->rank, (int)to, tag, out, (receives + sends) * 256) ||
               boot_receive(&c->rank, (int)to, tag, in, (receives + sends) * 256);
        senders = in + sends;
    } else {
        senders = in + sends;
        code =
            (receives && boot_send(&c->rank, (int)from, tag, out, receives * 256)) ||
            (sends && boot_send(&c->rank, (int)to, tag, out + receives, sends * 256)) ||
            (sends && boot_receive(&c->rank, (int)to, tag, handles, sends * 256)) ||
            (receives &&
             boot_receive(&c->rank, (int)from, tag, senders, receives * 256));
    }
    for (int i = 0; !code && i < sends; i++)
        code = check_handle(c, &handles[i], to);
    for (int i = 0; !code && i < receives; i++)
        if (i32(senders[i].bytes, 0) != (int32_t)from ||
            i32(senders[i].bytes, 128) != 1)
            code = WRONG(c, "sender entry of %u is wrong", from);
    if (!code && receives && !is_real(c->world, from))
        code = check_hello(c, from, id, receives);
    tag |= 0x80;
    if (!code && from == to)
        code = boot_send(&c->rank, (int)to, tag, NULL, 0) ||
               boot_receive(&c->rank, (int)to, tag, NULL, 0);
    else if (!code)
        code = (sends && boot_send(&c->rank, (int)to, tag, NULL, 0)) ||
               (receives && boot_send(&c->rank, (int)from, tag, NULL, 0)) ||
               (sends && boot_receive(&c->rank, (int)to, tag, NULL, 0)) ||
               (receives && boot_receive(&c->rank, (int)from, tag, NULL, 0));
    free(out);
    free(in);
    return code ? -1 : 0;
}

static inline int exchanges(struct client *c)
{
    uint32_t n = c->world->n;

    if (exchange(c, 1, 1, 2, 2)) /* ring, 2 channels */
        return -1;
    if (n > 2 &&
        exchange(c, n / 2, 0, 3, 3)) /* p2p; twice the same peer if n is even */
        return -1;
    return n > 4 && exchange(c, n - 2, 0, 1, 1) ? -1 : 0;
}

static inline void *client_run(void *argument)
{
    struct client *c = argument;

    c->code = boot_ring(&c->rank, (int)c->world->root_count) || gather_addresses(c) ||
              gather_peers(c) || gather_topology(c) || gather_flags(c) || exchanges(c);
    if (c->rank.pending && !c->code)
        c->code = WRONG(c, "a message that nobody asked for is left");
    pthread_barrier_wait(&c->world->barrier);
    boot_close(&c->rank);
    return NULL;
}

static inline void begin(struct world *w, struct client *clients)
{
    uint32_t k = 0;

    if (!w->root_count)
        w->root_count = 1;
    for (uint32_t i = 0; i < w->n; i++)
        w->real_count += is_real(w, i) ? 1 : 0;
    (void)pthread_barrier_init(&w->barrier, NULL, w->real_count);
    for (uint32_t i = 0; i < w->n; i++)
        if (is_real(w, i)) {
            clients[k].world = w;
            CHECK_EQ(boot_open(&clients[k].rank, w->id, (int)i, (int)w->n), 0);
            if (w->root_count > 1)
                boot_roots(&clients[k].rank, w->ids, (int)w->root_count);
            CHECK_EQ(pthread_create(&clients[k].thread, NULL, client_run, &clients[k]),
                     0);
            k++;
        }
}

static inline void end(struct world *w, struct client *clients, const char *what)
{
    for (uint32_t k = 0; k < w->real_count; k++) {
        (void)pthread_join(clients[k].thread, NULL);
        if (clients[k].code) {
            printf("# %s, n=%u, rank %d: %s\n", what, w->n, clients[k].rank.crank,
                   clients[k].rank.error);
            check_ok = false;
        }
    }
    (void)pthread_barrier_destroy(&w->barrier);
}

static inline void count_open(void *context, const struct crystal_proxy_comm_info *info)
{
    if (info->is_open)
        ++*(int *)context;
}

static inline void wait_closed(struct place *p)
{
    int open = 1;

    for (int i = 0; open && i < 6000; i++) {
        struct timespec t = {.tv_nsec = 10000000};

        open = 0;
        crystal_proxy_each(p->proxy, count_open, &open);
        if (open)
            (void)nanosleep(&t, NULL);
    }
    CHECK_EQ(open, 0);
}

static inline void check_healthy(struct place *p, const char *what)
{
    struct crystal_error err = {0};

    if (crystal_proxy_status(p->proxy, &err)) {
        printf("# %s: %s\n", what, err.text);
        check_ok = false;
    }
    CHECK_EQ(atomic_load(&crystal_board_header(p->board)->abort_flag), 0);
}

static inline uint32_t *identity(uint32_t n)
{
    uint32_t *members = malloc(4 * (size_t)n);

    for (uint32_t i = 0; i < n; i++)
        members[i] = i;
    return members;
}

#endif
