/* The bootstrap proxy against an independent client of NCCL's bootstrap: real ranks in
 * every position, ids of both origins, several communicators at once, and peers that
 * die, lie or talk nonsense. */
#include "config.h"

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

static void place_open(struct place *p, uint32_t n, uint32_t per_node,
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
    board.directory = p->directory;
    p->board = crystal_board_create(&board, &err);
    proxy.board = p->board;
    p->proxy = p->board ? crystal_proxy_create(&proxy, &err) : NULL;
    if (!p->proxy) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
}

static void place_close(struct place *p)
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

static uint32_t node_of(const struct world *w, uint32_t crank)
{
    return w->members[crank] / w->place->layout.ranks_per_node;
}

static int is_real(const struct world *w, uint32_t crank)
{
    return crystal_layout_is_sandbox(&w->place->layout, w->members[crank]);
}

#define WRONG(c, ...) \
    (snprintf((c)->rank.error, sizeof(c)->rank.error, __VA_ARGS__), -1)

static int32_t i32(const uint8_t *slice, size_t at)
{
    int32_t v;

    memcpy(&v, slice + at, sizeof v);
    return v;
}

static uint64_t u64(const uint8_t *slice, size_t at)
{
    uint64_t v;

    memcpy(&v, slice + at, sizeof v);
    return v;
}

static int gather_addresses(struct client *c)
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

static int gather_peers(struct client *c)
{
    struct boot_rank *r = &c->rank;
    uint32_t n = c->world->n, me = (uint32_t)r->crank;
    uint8_t *all = calloc(n, BOOT_PEER_INFO_BYTES);
    uint8_t *own = all + (size_t)me * BOOT_PEER_INFO_BYTES;
    uint64_t host = 0x1000 + node_of(c->world, me), pid = 0x77000 + me;
    int32_t local =
        (int32_t)(c->world->members[me] % c->world->place->layout.ranks_per_node);
    int64_t bus = 0x10 * (local + 1);
    int32_t version = 22809, crank = r->crank;
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

        if (i32(a, 0) != (int32_t)i || i32(a, 112) != 22809) {
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
static uint32_t chain(const struct world *w, uint32_t node, uint32_t channel,
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

static void own_topology(struct client *c, uint8_t *slice)
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
static int check_rings(struct client *c, const uint8_t *all)
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
static uint32_t channel_at(const struct world *w, const uint8_t *all, uint32_t rank,
                           uint32_t ch)
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
static int check_board(struct client *c, const uint8_t *all)
{
    struct crystal_board *board = c->world->place->board;
    const struct crystal_board_comm *entry =
        crystal_board_comm_find(board, crystal_nccl_hash(c->world->id, 128));
    const struct world *w = c->world;
    const uint32_t n = w->n;
    int wait = 0;

    if (!entry)
        return WRONG(c, "not on the board");
    while (atomic_load(&entry->rings) == CRYSTAL_BOARD_RINGS_AWAITED && wait++ < 2000)
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

static int gather_topology(struct client *c)
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

static int gather_flags(struct client *c)
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

static void receive_entry(const struct client *c, struct entry *e, uint64_t id)
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

static void send_entry(const struct client *c, struct entry *e)
{
    int32_t proxy_rank = c->rank.crank, gdr = 1;

    memset(e, 0, sizeof *e);
    memcpy(e->bytes, &proxy_rank, 4);
    memcpy(e->bytes + 128, &gdr, 4);
}

/* The answer to a sending entry. */
static int check_handle(struct client *c, const struct entry *e, uint32_t peer)
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
static int check_hello(struct client *c, uint32_t peer, uint64_t first_id, int count)
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
static int exchange(struct client *c, uint32_t distance, int graph, int receives,
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

static int exchanges(struct client *c)
{
    uint32_t n = c->world->n;

    if (exchange(c, 1, 1, 2, 2)) /* ring, 2 channels */
        return -1;
    if (n > 2 &&
        exchange(c, n / 2, 0, 3, 3)) /* p2p; twice the same peer if n is even */
        return -1;
    return n > 4 && exchange(c, n - 2, 0, 1, 1) ? -1 : 0;
}

static void *client_run(void *argument)
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

static void begin(struct world *w, struct client *clients)
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

static void end(struct world *w, struct client *clients, const char *what)
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

static void count_open(void *context, const struct crystal_proxy_comm_info *info)
{
    if (info->is_open)
        ++*(int *)context;
}

static void wait_closed(struct place *p)
{
    int open = 1;

    for (int i = 0; open && i < 500; i++) {
        struct timespec t = {.tv_nsec = 10000000};

        open = 0;
        crystal_proxy_each(p->proxy, count_open, &open);
        if (open)
            (void)nanosleep(&t, NULL);
    }
    CHECK_EQ(open, 0);
}

static void check_healthy(struct place *p, const char *what)
{
    struct crystal_error err = {0};

    if (crystal_proxy_status(p->proxy, &err)) {
        printf("# %s: %s\n", what, err.text);
        check_ok = false;
    }
    CHECK_EQ(atomic_load(&crystal_board_header(p->board)->abort_flag), 0);
}

/* One communicator from forge or join to its end. */
static void one_crossed(struct place *p, uint32_t n, uint32_t *members, int is_regular,
                        int is_forged, int32_t cross_nic, const char *what)
{
    struct world w = {.place = p,
                      .n = n,
                      .members = members,
                      .is_regular = is_regular,
                      .cross_nic = cross_nic};
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    struct crystal_board_comm *entry;
    struct crystal_error err = {0};
    struct boot_root root;
    pthread_t root_thread;

    if (is_forged) {
        CHECK_EQ(crystal_proxy_forge(p->proxy, "/default_pg/0//cpu//0", n, members,
                                     w.id, &err),
                 0);
    } else {
        CHECK_EQ(boot_root_open(&root, w.id, (int)n), 0);
        CHECK_EQ(pthread_create(&root_thread, NULL, boot_root_run, &root), 0);
        CHECK_EQ(crystal_proxy_join(p->proxy, w.id, "/default_pg/0//cpu//0", n, members,
                                    &err),
                 0);
    }
    CHECK_STR(err.text, "");
    entry = crystal_board_comm_find(p->board, crystal_nccl_hash(w.id, 128));
    CHECK(entry != NULL);
    if (entry) {
        CHECK_EQ(entry->nranks, n);
        CHECK_EQ(entry->graph_comm, UINT32_MAX);
        CHECK_STR(entry->name, "/default_pg/0//cpu//0");
    }
    begin(&w, clients);
    end(&w, clients, what);
    if (!is_forged) {
        (void)pthread_join(root_thread, NULL);
        CHECK_EQ(root.checkin_count, n);
    }
    wait_closed(p);
    check_healthy(p, what);
    free(clients);
}

static void one(struct place *p, uint32_t n, uint32_t *members, int is_regular,
                int is_forged, const char *what)
{
    one_crossed(p, n, members, is_regular, is_forged, 0, what);
}

static uint32_t *identity(uint32_t n)
{
    uint32_t *members = malloc(4 * (size_t)n);

    for (uint32_t i = 0; i < n; i++)
        members[i] = i;
    return members;
}

static void world_of(uint32_t n, uint32_t per_node, uint32_t first, uint32_t count,
                     int is_forged)
{
    uint32_t real[REAL_MAX], *members = identity(n);
    struct place p;
    char what[80];

    for (uint32_t i = 0; i < count; i++)
        real[i] = first + i;
    snprintf(what, sizeof what, "real %u-%u, %u per node, %s", first, first + count - 1,
             per_node, is_forged ? "forged" : "joined");
    place_open(&p, n, per_node, real, count);
    one(&p, n, members, count % per_node == 0 && first % per_node == 0, is_forged,
        what);
    place_close(&p);
    free(members);
}

/* A communicator of several roots: those of virtual ranks are made by the proxy. With
 * is_late the real ranks begin before the proxy knows the id that a real rank 0 made.
 */
static void roots_of(uint32_t n, uint32_t roots, uint32_t first, uint32_t count,
                     int is_late)
{
    uint32_t real[REAL_MAX], *members = identity(n);
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    static uint8_t ids[ROOTS_MAX][128];
    struct boot_root own[ROOTS_MAX];
    pthread_t threads[ROOTS_MAX];
    int is_own[ROOTS_MAX] = {0};
    struct timespec pause = {.tv_nsec = 50000000};
    struct place p;
    struct world w = {.place = &p,
                      .n = n,
                      .members = members,
                      .ids = (const uint8_t(*)[128])ids,
                      .root_count = roots};
    char what[80];

    for (uint32_t i = 0; i < count; i++)
        real[i] = first + i;
    snprintf(what, sizeof what, "%u roots, real %u-%u%s", roots, first,
             first + count - 1, is_late ? ", late" : "");
    place_open(&p, n, 1, real, count);
    for (uint32_t i = roots; i-- > 0;) { /* root 0 comes last */
        uint32_t maker = (uint32_t)boot_block((int)i, (int)roots, (int)n);

        is_own[i] = maker >= first && maker < first + count;
        if (is_own[i]) {
            CHECK_EQ(boot_root_open(&own[i], ids[i], (int)n), 0);
            own[i].index = (int)i;
            own[i].count = (int)roots;
            CHECK_EQ(pthread_create(&threads[i], NULL, boot_root_run, &own[i]), 0);
        } else {
            CHECK_EQ(crystal_proxy_forge_root(p.proxy, "several", i, roots, n, members,
                                              ids[i], NULL),
                     0);
        }
        if (is_own[i] && !(is_late && i == 0))
            CHECK_EQ(crystal_proxy_join_root(p.proxy, ids[i], "several", i, roots, n,
                                             members, NULL),
                     0);
    }
    memcpy(w.id, ids[0], sizeof w.id);
    begin(&w, clients);
    if (is_late && is_own[0]) {
        (void)nanosleep(&pause, NULL);
        CHECK_EQ(crystal_proxy_join_root(p.proxy, ids[0], "several", 0, roots, n,
                                         members, NULL),
                 0);
    }
    end(&w, clients, what);
    for (uint32_t i = 0; i < roots; i++)
        if (is_own[i]) {
            (void)pthread_join(threads[i], NULL);
            CHECK_EQ(own[i].checkin_count, boot_block((int)i + 1, (int)roots, (int)n) -
                                               boot_block((int)i, (int)roots, (int)n) +
                                               1);
        }
    wait_closed(&p);
    check_healthy(&p, what);
    place_close(&p);
    free(clients);
    free(members);
}

static void several_roots(void)
{
    roots_of(64, 4, 0, 1, 0); /* rank 0 real: root 0 is */
    roots_of(64, 4, 0, 1, 1);
    roots_of(64, 4, 5, 1, 0);  /* no root is real */
    roots_of(64, 4, 16, 1, 0); /* root 1 */
    roots_of(64, 4, 15, 1, 0); /* the last of a block */
    roots_of(64, 4, 63, 1, 0);
    roots_of(64, 4, 14, 4, 0); /* over the border of two blocks */
    roots_of(64, 4, 0, 16, 1); /* a whole block */
    roots_of(64, 4, 8, 32, 0);
    roots_of(67, 5, 0, 2, 0); /* blocks of 14 and 13 */
    roots_of(67, 5, 26, 3, 0);
    roots_of(1024, 8, 0, 8, 0);
    roots_of(3, 3, 0, 1, 0); /* a root each */
    roots_of(3, 3, 1, 2, 0);
}

static void rings_that_cross_nics(void)
{
    static const uint32_t blocks[] = {1, 2, 4};

    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        uint32_t real[REAL_MAX], *members = identity(32);
        struct place p;

        for (uint32_t k = 0; k < blocks[i]; k++)
            real[k] = k;
        place_open(&p, 32, blocks[i], real, blocks[i]);
        one_crossed(&p, 32, members, 1, 1, 2, "crossed NICs");
        place_close(&p);
        free(members);
    }
}

static void one_real_rank(void)
{
    static const uint32_t sizes[] = {2, 3, 4, 5, 8, 16, 63, 64, 1024};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t n = sizes[i];

        world_of(n, 1, 0, 1, 1);
        world_of(n, 1, n - 1, 1, 1);
        world_of(n, 1, n / 2, 1, 1);
        world_of(n, 1, 0, 1, 0);
    }
}

static void blocks_of_real_ranks(void)
{
    static const uint32_t blocks[] = {2, 4, 8};

    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        for (uint32_t first = 0; first < 32; first += blocks[i]) {
            world_of(32, blocks[i], first, blocks[i], 1);
            if (first == 0)
                world_of(32, blocks[i], first, blocks[i], 0);
        }
    world_of(64, 8, 16, 16, 1); /* two nodes side by side */
    world_of(9, 3, 3, 6, 1);    /* all but one node */
    world_of(17, 8, 3, 8, 1);   /* a block that is no node; the end is no node either */
    world_of(13, 1, 5, 7, 0 + 1);
}

/* Real ranks in several runs, members in any order. */
static void runs_of_real_ranks(void)
{
    static const struct {
        uint32_t n, per_node, count, real[16];
        int is_regular;
    } rows[] = {
        {8, 2, 4, {0, 1, 4, 5}, 1},
        {64, 8, 16, {0, 1, 2, 3, 4, 5, 6, 7, 56, 57, 58, 59, 60, 61, 62, 63}, 1},
        {64, 8, 16, {8, 9, 10, 11, 12, 13, 14, 15, 40, 41, 42, 43, 44, 45, 46, 47}, 1},
        {6, 1, 3, {0, 2, 4}, 1},
        {7, 1, 6, {0, 1, 2, 3, 4, 5}, 1},
        {10, 8, 3, {0, 1, 2}, 0}, /* the rest of a node, and an odd node */
        {12, 4, 5, {1, 2, 3, 7, 11}, 0},
        {33, 4, 7, {0, 5, 6, 7, 8, 20, 32}, 0},
        {4, 8, 3, {0, 1, 2}, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int is_forged = 0; is_forged < 2; is_forged++) {
            uint32_t *members;
            struct place p;
            char what[40];

            if (!is_forged && rows[i].real[0])
                continue;
            members = identity(rows[i].n);
            snprintf(what, sizeof what, "row %zu", i);
            place_open(&p, rows[i].n, rows[i].per_node, rows[i].real, rows[i].count);
            one(&p, rows[i].n, members, rows[i].is_regular, is_forged, what);
            place_close(&p);
            free(members);
        }
}

static void any_subset_in_any_order(void)
{
    uint32_t state = 12345;

    for (int round = 0; round < 40; round++) {
        uint32_t n = 2 + round % 19, count = 0, real[REAL_MAX], *members = identity(n);
        struct place p;
        char what[40];

#define NEXT() (state = state * 1664525u + 1013904223u, state >> 16)
        for (uint32_t i = 0; i < n; i++)
            if (NEXT() % 3 == 0)
                real[count++] = i;
        if (count == 0)
            real[count++] = NEXT() % n;
        if (count == n)
            count--;
        for (uint32_t i = n - 1; i > 0; i--) {
            uint32_t k = NEXT() % (i + 1), t = members[i];

            members[i] = members[k];
            members[k] = t;
        }
#undef NEXT
        snprintf(what, sizeof what, "round %d", round);
        place_open(&p, n, 1 + (uint32_t)round % 4, real, count);
        one(&p, n, members, 0, 1, what);
        place_close(&p);
        free(members);
    }
}

static void several_at_once(void)
{
    static const uint32_t real[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    enum { COUNT = 12 };
    struct world w[COUNT];
    struct client *clients = calloc(COUNT * 8, sizeof *clients);
    struct boot_root roots[COUNT];
    pthread_t root_threads[COUNT];
    struct crystal_proxy_counters counters;
    uint32_t *world = identity(64), strided[8] = {3, 11, 19, 27, 35, 43, 51, 59};
    uint32_t inside[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct place p;

    place_open(&p, 64, 8, real, 8);
    for (int i = 0; i < COUNT; i++) {
        struct crystal_error err = {0};
        char name[40];

        w[i] = (struct world){.place = &p,
                              .n = i % 3 ? 64 : 8,
                              .members = i % 3 ? world : strided,
                              .is_regular = i % 3 != 0};
        snprintf(name, sizeof name, "/default_pg/%d//cpu//0", i);
        if (i % 2) {
            CHECK_EQ(boot_root_open(&roots[i], w[i].id, (int)w[i].n), 0);
            CHECK_EQ(pthread_create(&root_threads[i], NULL, boot_root_run, &roots[i]),
                     0);
            CHECK_EQ(
                crystal_proxy_join(p.proxy, w[i].id, name, w[i].n, w[i].members, &err),
                0);
        } else {
            CHECK_EQ(
                crystal_proxy_forge(p.proxy, name, w[i].n, w[i].members, w[i].id, &err),
                0);
            /* the coordinator may tell us what we forged */
            CHECK_EQ(
                crystal_proxy_join(p.proxy, w[i].id, name, w[i].n, w[i].members, &err),
                0);
        }
        CHECK_STR(err.text, "");
    }
    for (int i = 0; i < COUNT; i++)
        begin(&w[i], clients + 8 * i);
    for (int i = 0; i < COUNT; i++) {
        end(&w[i], clients + 8 * i, "several");
        if (i % 2)
            (void)pthread_join(root_threads[i], NULL);
    }
    wait_closed(&p);
    CHECK_EQ(crystal_proxy_join(p.proxy, w[1].id, "again", 64, world, NULL), 0);
    w[1].id[0] ^= 1;
    CHECK_EQ(crystal_proxy_join(p.proxy, w[1].id, "inside", 8, inside, NULL), 0);
    crystal_proxy_counters(p.proxy, &counters);
    CHECK_EQ(counters.real_only_count, 1);
    CHECK_EQ(counters.dropped_count, 0);
    check_healthy(&p, "several");
    place_close(&p);
    free(clients);
    free(world);
}

/* --- failures --- */

static void expect_failure(struct place *p, const char *part)
{
    struct crystal_error err = {0};
    struct crystal_board_header *head = crystal_board_header(p->board);

    for (int i = 0; i < 500 && !crystal_proxy_status(p->proxy, NULL); i++) {
        struct timespec t = {.tv_nsec = 10000000};

        (void)nanosleep(&t, NULL);
    }
    CHECK(crystal_proxy_status(p->proxy, &err) < 0);
    CHECK_HAS(err.text, part);
    CHECK_HAS(err.text, "communicator '/default_pg/7//cpu//0' (1 of 4 ranks real): ");
    CHECK_EQ(atomic_load(&head->abort_flag), 1);
    CHECK_HAS(head->abort_text, "communicator '/default_pg/7//cpu//0'");
}

static void fail_open(struct place *p, struct boot_rank *r, uint8_t id[128])
{
    static const uint32_t real[1] = {2};
    uint32_t members[4] = {0, 1, 2, 3};

    place_open(p, 4, 1, real, 1);
    CHECK_EQ(
        crystal_proxy_forge(p->proxy, "/default_pg/7//cpu//0", 4, members, id, NULL),
        0);
    CHECK_EQ(boot_open(r, id, 2, 4), 0);
}

static void fail_close(struct place *p, struct boot_rank *r)
{
    boot_close(r);
    place_close(p);
}

static void dies_in_bootstrap(void)
{
    uint8_t id[128], slices[4 * 120] = {0};
    struct boot_rank r;
    struct place p;

    fail_open(&p, &r, id); /* right after the ring */
    CHECK_EQ(boot_ring(&r, 1), 0);
    boot_close(&r);
    expect_failure(&p,
                   "logical rank 2 (rank 2) left in all-gather 0 of its set-up; see "
                   "that rank's log");
    fail_close(&p, &r);

    fail_open(&p, &r, id); /* between two all-gathers */
    CHECK_EQ(boot_ring(&r, 1), 0);
    memcpy(slices + 2 * 120, &r.peer_at, 28);
    CHECK_EQ(boot_gather(&r, slices, 120), 0);
    boot_close(&r);
    expect_failure(&p, "left in all-gather 1");
    fail_close(&p, &r);

    fail_open(&p, &r, id); /* its listener is gone when the proxy dials */
    close(r.ring_listener);
    r.ring_listener = -1;
    CHECK_EQ(boot_checkin(&r, 172, 1), 0);
    expect_failure(&p, "cannot connect to the next rank of virtual rank 1: Connection "
                       "refused; see that rank's log");
    fail_close(&p, &r);
}

/* A program that ends soon takes its root with it while virtual ranks still check in.
 */
static void root_leaves_after_set_up(void)
{
    static const uint32_t real[1] = {0};
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    uint32_t *members = identity(1024);
    struct crystal_proxy_counters counters;
    struct boot_root root;
    pthread_t thread;
    struct world w;
    struct place p;

    place_open(&p, 1024, 1, real, 1);
    w = (struct world){.place = &p, .n = 1024, .members = members, .is_regular = 1};
    CHECK_EQ(boot_root_open(&root, w.id, 1024), 0);
    root.is_brief = 1;
    CHECK_EQ(pthread_create(&thread, NULL, boot_root_run, &root), 0);
    CHECK_EQ(crystal_proxy_join(p.proxy, w.id, "early", 1024, members, NULL), 0);
    begin(&w, clients);
    (void)pthread_join(thread, NULL);
    end(&w, clients, "early");
    close(root.listener);
    wait_closed(&p);
    check_healthy(&p, "early");
    crystal_proxy_counters(p.proxy, &counters);
    CHECK(counters.checkin_count < 1023);
    place_close(&p);
    free(clients);
    free(members);
}

static void wrong_sizes(void)
{
    uint8_t id[128], slices[4 * 160] = {0};
    struct boot_rank r;
    struct place p;

    fail_open(&p, &r, id);
    CHECK_EQ(boot_checkin(&r, 176, 1), 0);
    expect_failure(&p, "a check-in of 176 bytes is that of an unknown version of NCCL; "
                       "use NCCL 2.28.7 to 2.28.9");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    CHECK_EQ(boot_checkin(&r, 172, 2), 0);
    expect_failure(&p, "leave TORCH_NCCL_RANKS_PER_ROOT unset");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    r.nranks = 8;
    CHECK_EQ(boot_checkin(&r, 172, 1), 0);
    expect_failure(&p, "rank 2 says it has 8 ranks");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    r.crank = 1;
    CHECK_EQ(boot_checkin(&r, 172, 1), 0);
    expect_failure(&p, "rank 1 checks in, but it is not a real rank");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    CHECK_EQ(boot_ring(&r, 1), 0);
    CHECK(boot_gather(&r, slices, 160) < 0);
    expect_failure(&p, "all-gather 0 of its set-up has 160 bytes per rank, NCCL 2.28.7 "
                       "to 2.28.9 has 120");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    CHECK_EQ(boot_ring(&r, 1), 0);
    memcpy(slices + 2 * 120, &r.peer_at, 28);
    CHECK_EQ(boot_gather(&r, slices, 120), 0);
    slices[2 * 120] = 2;
    CHECK(boot_gather(&r, slices, 120) < 0);
    expect_failure(&p, "logical rank 2 runs NCCL version code 0");
    fail_close(&p, &r);
}

static void wrong_arguments(void)
{
    static const uint32_t real[1] = {2};
    uint32_t members[4] = {0, 1, 2, 3};
    struct crystal_error err = {0};
    uint8_t id[128] = {0};
    struct place p;

    place_open(&p, 4, 1, real, 1);
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 1, members, id, &err), -EINVAL);
    CHECK_STR(err.text, "communicator 'a': 1 members in a job of 4 ranks");
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 5, members, id, &err), -EINVAL);
    members[3] = 4;
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 4, members, id, &err), -EINVAL);
    CHECK_STR(err.text, "communicator 'a': member 4 of a job of 4 ranks");
    members[3] = 1;
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 4, members, id, &err), -EINVAL);
    CHECK_STR(err.text, "communicator 'a': member 1 stands in it twice");
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 2, members, id, &err), -EINVAL);
    CHECK_HAS(err.text, "0 of its 2 members are real");
    members[3] = 3;
    CHECK_EQ(crystal_proxy_join(p.proxy, id, "a", 4, members, &err), -EINVAL);
    CHECK_HAS(err.text, "its id holds no address of a root");
    CHECK_EQ(crystal_proxy_status(p.proxy, NULL), 0);
    place_close(&p);
}

/* Nonsense on every role of every address never reaches a communicator. */
static void garbage(void)
{
    static const uint32_t real[1] = {2};
    uint32_t members[4] = {0, 1, 2, 3};
    struct crystal_proxy_counters counters = {0};
    struct crystal_error err = {0};
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    uint8_t id[128], noise[4096];
    struct world w;
    struct place p;
    int fds[16];

    place_open(&p, 4, 1, real, 1);
    CHECK_EQ(
        crystal_proxy_forge(p.proxy, "/default_pg/7//cpu//0", 4, members, id, &err), 0);
    for (uint32_t role = 0; role < 8; role++) {
        union boot_address to;
        uint32_t address = 0x7f000000u | role << 21 | 1;

        memcpy(&to, id + 8, sizeof to);
        to.in.sin_addr.s_addr = htonl(address);
        CHECK_EQ(getrandom(noise, sizeof noise, 0), (ssize_t)sizeof noise);
        fds[2 * role] = boot_dial(&to);
        CHECK(fds[2 * role] >= 0);
        (void)boot_write(fds[2 * role], noise, sizeof noise);
        fds[2 * role + 1] = boot_dial(&to); /* says nothing */
    }
    for (int i = 0; i < 500 && counters.dropped_count < 8; i++) {
        struct timespec t = {.tv_nsec = 10000000};

        (void)nanosleep(&t, NULL);
        crystal_proxy_counters(p.proxy, &counters);
    }
    CHECK(counters.dropped_count >= 8);
    for (int i = 0; i < 16; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    check_healthy(&p, "garbage");
    w = (struct world){.place = &p, .n = 4, .members = members, .is_regular = 1};
    memcpy(w.id, id, sizeof w.id);
    begin(&w, clients);
    end(&w, clients, "after garbage");
    wait_closed(&p);
    check_healthy(&p, "after garbage");
    place_close(&p);
    free(clients);
}

int main(void)
{
    check_begin();
    CHECK_RUN(one_real_rank);
    CHECK_RUN(blocks_of_real_ranks);
    CHECK_RUN(several_roots);
    CHECK_RUN(rings_that_cross_nics);
    CHECK_RUN(runs_of_real_ranks);
    CHECK_RUN(any_subset_in_any_order);
    CHECK_RUN(several_at_once);
    CHECK_RUN(dies_in_bootstrap);
    CHECK_RUN(root_leaves_after_set_up);
    CHECK_RUN(wrong_sizes);
    CHECK_RUN(wrong_arguments);
    CHECK_RUN(garbage);
    return check_end();
}
