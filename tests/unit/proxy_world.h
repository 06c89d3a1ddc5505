/* Independent clients of NCCL's bootstrap in every position of a communicator, from the
 * ring to the exchange of connections. For the tests of the proxy.
 */
#ifndef CRYSTAL_TESTS_PROXY_WORLD_H
#define CRYSTAL_TESTS_PROXY_WORLD_H

#include "tests/unit/proxy_exchange.h"
#include "tests/unit/proxy_place.h"
#include "tests/unit/proxy_topology.h"

#include <time.h>

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
