/* What real ranks send to virtual ones with bootstrapSend: one connection per message,
 * closed by the sender; after the handshake a frame {int rank, int tag} and a frame of
 * data. The rank that is meant is in the address that was dialled.
 *
 * The only messages between ranks of different nodes are those of the exchange of
 * connections (tag = distance << 8 | graph + 1): entries of 256 bytes, one per channel.
 * Rank r exchanges with r - distance, from which it receives, and r + distance, to
 * which it sends. An entry for receiving carries the handle of a listener of its net
 * plugin (replay/net_handle.h), an entry for sending a rank number; both say at byte
 * 128 whether GPU Direct is used, which we say too. Where both peers are the same rank,
 * one message holds the entries for receiving and then those for sending, and so does
 * the answer from the other's view. Bit 7 of the tag marks the empty messages by which
 * both sides wait for each other afterwards. A virtual rank only ever answers; a
 * message that nobody asked for would make the real rank fail when it closes.
 *
 * When a communicator is made of another (proxy_split.c), its members tell each other
 * through the parent where their ring listeners are, with a tag of its own.
 */
#include "config.h"

#include "replay/net_handle.h"
#include "replay/proxy_internal.h"

#include <stdlib.h>
#include <string.h>

#define ENVELOPE_BYTES 16U /* size 8, rank, tag, size of the data */
#define TAG_SYNC       0x80U
#define TAG_BARRIER    0xbeefU /* bootstrapBarrier of symmetric memory */
#define ENTRIES_MAX    128U    /* 64 channels in each direction */

struct message {
    uint32_t from; /* crank of the sender */
    uint32_t to;   /* virtual crank */
    uint32_t tag;
    uint32_t bytes;
    const uint8_t *data;
};

void proxy_connect_send(struct proxy_comm *comm, uint32_t from, uint32_t real,
                        uint32_t tag, const void *data, uint32_t bytes)
{
    struct proxy_conn *conn =
        proxy_dial(comm, PROXY_CONN_ONCE, comm->reals[real].peer_address);
    uint32_t envelope[2] = {from, tag};

    if (conn && proxy_conn_put_handshake(conn, comm->magic) &&
        proxy_conn_put_frame(conn, envelope, sizeof envelope) &&
        proxy_conn_put_frame(conn, data, bytes))
        proxy_conn_flush(conn);
}

static void reply(struct proxy_comm *comm, const struct message *m, const void *data)
{
    proxy_connect_send(comm, m->to, proxy_comm_real(comm, m->from), m->tag, data,
                       m->bytes);
}

/* The virtual rank will send: says so at the real rank's listener. */
static bool greet(struct proxy_comm *comm, const struct message *m,
                  const struct crystal_net_handle *theirs)
{
    struct crystal_net_hello hello = {.kind = CRYSTAL_NET_VIRTUAL,
                                      .id = theirs->id,
                                      .crank = m->to,
                                      .comm_id = comm->comm_id};
    struct proxy_conn *conn;

    if (!proxy_address_is_usable(theirs->addr)) {
        proxy_comm_fail(comm, "the net plugin of rank %u listens nowhere", m->from);
        return false;
    }
    memcpy(hello.magic, CRYSTAL_NET_HELLO_MAGIC, sizeof hello.magic);
    conn = proxy_dial(comm, PROXY_CONN_ONCE, theirs->addr);
    if (!conn || !proxy_conn_put(conn, &hello, sizeof hello))
        return false;
    proxy_conn_flush(conn);
    return !comm->is_failed;
}

/* The virtual rank will receive: a handle of kind VIRTUAL, which the plugin recognises.
 */
static void make_handle(struct proxy_comm *comm, const struct message *m,
                        uint8_t *entry)
{
    struct crystal_net_handle handle = {
        .kind = CRYSTAL_NET_VIRTUAL, .crank = m->to, .comm_id = comm->comm_id};

    memcpy(handle.magic, CRYSTAL_NET_HANDLE_MAGIC, sizeof handle.magic);
    handle.id = comm->comm_id + ++comm->connect_count * UINT64_C(0x9e3779b97f4a7c15);
    memcpy(entry, &handle, sizeof handle);
}

/* What the sender of this message may ask for. */
static bool direction_is_right(const struct proxy_comm *comm, const struct message *m,
                               uint32_t receives, uint32_t sends)
{
    uint32_t n = comm->nranks, distance = m->tag >> 8;

    if (!distance || distance >= n)
        return false;
    if (receives && (m->to + distance) % n != m->from)
        return false;
    return !sends || (m->from + distance) % n == m->to;
}

static void exchange(struct proxy_comm *comm, const struct message *m)
{
    const struct proxy_layout *layout = comm->layout;
    uint32_t step = layout->entry_bytes, count = m->bytes / step;
    uint32_t receives = 0, reply_at, send_at = 0;
    struct crystal_net_handle handle;
    uint8_t *answer;

    while (receives < count) { /* entries for receiving stand first */
        memcpy(&handle, m->data + (size_t)receives * step, sizeof handle);
        if (memcmp(handle.magic, CRYSTAL_NET_HANDLE_MAGIC, sizeof handle.magic) != 0 ||
            handle.kind != CRYSTAL_NET_REAL)
            break;
        receives++;
    }
    if (!direction_is_right(comm, m, receives, count - receives)) {
        proxy_comm_fail(comm,
                        "rank %u sends %u entries with tag 0x%x to virtual rank %u, "
                        "which is no exchange of connections; use "
                        "libnccl-net-crystal.so as NCCL_NET_PLUGIN",
                        m->from, count, m->tag, m->to);
        return;
    }
    answer = calloc(count, step);
    if (!answer) {
        proxy_comm_fail(comm, "out of memory");
        return;
    }
    reply_at =
        count - receives; /* our entries for receiving answer theirs for sending */
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *theirs = m->data + (size_t)i * step;
        uint8_t *ours;

        if (i < receives) {
            ours = answer + (size_t)reply_at++ * step;
            memcpy(&handle, theirs, sizeof handle);
            proxy_put_i32(ours, 0, (int32_t)m->to);
            comm->connect_count++;
            if (!greet(comm, m, &handle))
                goto out;
        } else {
            ours = answer + (size_t)send_at++ * step;
            make_handle(comm, m, ours);
        }
        memcpy(ours + layout->entry_gdr, theirs + layout->entry_gdr, sizeof(int32_t));
    }
    reply(comm, m, answer);
out:
    free(answer);
}

static void handle_message(struct proxy_comm *comm, const struct message *m)
{
    if (m->tag == TAG_BARRIER)
        proxy_comm_fail(comm,
                        "rank %u enters a barrier of symmetric memory, which "
                        "virtual ranks do not have; set NCCL_WIN_ENABLE=0",
                        m->from);
    else if (m->tag == PROXY_TAG_SPLIT && m->bytes == PROXY_CONNECT_BYTES)
        proxy_split_meet(comm, m->from, m->to, m->data);
    else if (m->bytes == 0 && m->tag & TAG_SYNC)
        reply(comm, m, NULL);
    else if (m->bytes && m->bytes % comm->layout->entry_bytes == 0 &&
             m->bytes / comm->layout->entry_bytes <= ENTRIES_MAX &&
             !(m->tag & TAG_SYNC))
        exchange(comm, m);
    else
        proxy_comm_fail(
            comm,
            "rank %u sends %u bytes with tag 0x%x to virtual rank %u, which "
            "NCCL %s does not",
            m->from, m->bytes, m->tag, m->to, comm->layout->versions);
}

/* 1 a whole message, 0 not yet, -1 nonsense. */
static int parse(const struct proxy_conn *conn, struct message *ret)
{
    const uint8_t *bytes;
    size_t count = proxy_conn_input(conn, &bytes);

    if (count >= 4 && proxy_get_u32(bytes, 0) != 8)
        return -1;
    if (count < ENVELOPE_BYTES)
        return 0;
    ret->from = proxy_get_u32(bytes, 4);
    ret->to = conn->crank;
    ret->tag = proxy_get_u32(bytes, 8);
    ret->bytes = proxy_get_u32(bytes, 12);
    ret->data = bytes + ENVELOPE_BYTES;
    if (ret->bytes > PROXY_INPUT_MAX - 2 * ENVELOPE_BYTES ||
        proxy_comm_real(conn->comm, ret->from) == PROXY_NONE)
        return -1;
    return count - ENVELOPE_BYTES >= ret->bytes;
}

static bool is_ready(const struct proxy_comm *comm, const struct message *m)
{
    return comm->reals[proxy_comm_real(comm, m->from)].has_peer_address &&
           (m->tag != PROXY_TAG_SPLIT || !proxy_split_is_early(comm, m->from));
}

bool proxy_connect_is_early(const struct proxy_conn *conn)
{
    struct message m;

    return parse(conn, &m) > 0 && !is_ready(conn->comm, &m);
}

void proxy_connect_read(struct proxy_conn *conn)
{
    struct proxy_comm *comm = conn->comm;
    struct message m = {0};
    int result = parse(conn, &m);

    if (result == 0)
        return;
    if (result < 0)
        proxy_comm_fail(comm, "virtual rank %u got a message that is none of NCCL's",
                        conn->crank);
    else if (!is_ready(comm, &m))
        return;
    else
        handle_message(comm, &m);
    proxy_conn_close(conn);
}

void proxy_connect_retry(struct proxy_comm *comm)
{
    struct proxy_conn *conn = comm->proxy->first;

    while (conn && !comm->is_failed) {
        struct proxy_conn *next = conn->next;

        if (conn->kind == PROXY_CONN_PEER && conn->comm == comm)
            proxy_connect_read(conn);
        conn = next;
    }
}
