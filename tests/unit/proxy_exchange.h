/* A client's exchange of connection handles with its peers. For the tests of the proxy.
 */
#ifndef CRYSTAL_TESTS_PROXY_EXCHANGE_H
#define CRYSTAL_TESTS_PROXY_EXCHANGE_H

#include "tests/unit/proxy_place.h"

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

#endif
