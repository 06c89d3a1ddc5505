/* Who connects to whom: NCCL's exchange of entries.
 *
 * For each distance i = 1 .. n-1 rank r receives from r-i and sends to r+i. It sends
 * r-i the handle of a listener and r+i its own number, with the tag i << 8 (plus graph
 * id + 1: 1 for rings, 0 for p2p), and gets the same back: where the peer listens, who
 * sends. Where both peers are one rank, one message carries the entry for receiving and
 * then the one for sending. When all is connected, both sides send an empty message
 * with 0x80 in the tag; a rank that left before it has the other's would be missed.
 *
 * The ring is connected while the communicator is made. p2p connections are asked for
 * by the call that needs them first and joined by the driver, so that a
 * receive may be posted long before its peer sends.
 */
#include "config.h"

#include "replay/hostccl/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TAG_RING     1
#define TAG_TREE     2
#define TAG_SYNC     0x80
#define POLL_NS      50000L   /* between tries to join */
#define POLL_MAX_NS  1000000L /* after a while */
#define SETTLE_TRIES 1000     /* of POLL_MAX_NS */

static uint32_t distance_of(const struct ncclComm *comm, uint32_t peer, bool is_send)
{
    uint32_t n = comm->nranks;

    return is_send ? (peer + n - comm->crank) % n : (comm->crank + n - peer) % n;
}

/* Sends our entries for one distance; recv or send may be NULL. */
static int send_entries(ncclComm_t comm, int32_t tag, struct hostccl_conn *recv,
                        struct hostccl_conn *send, struct crystal_error *err)
{
    struct hostccl_entry entries[2];
    int result = 0;

    if (recv)
        result = hostccl_conn_entry(recv, &entries[0], err);
    if (!result && send)
        result = hostccl_conn_entry(send, &entries[1], err);
    if (result)
        return result;
    if (recv && send && recv->peer == send->peer)
        return hostccl_bootstrap_send(comm->bootstrap, recv->peer, tag, entries,
                                      sizeof entries, err);
    if (recv)
        result = hostccl_bootstrap_send(comm->bootstrap, recv->peer, tag, &entries[0],
                                        sizeof entries[0], err);
    if (!result && send)
        result = hostccl_bootstrap_send(comm->bootstrap, send->peer, tag, &entries[1],
                                        sizeof entries[1], err);
    return result;
}

static int recv_entries(ncclComm_t comm, uint32_t peer, int32_t tag,
                        struct hostccl_entry *entries, uint32_t count,
                        struct crystal_error *err)
{
    uint32_t bytes = 0, want = count * HOSTCCL_ENTRY_BYTES;
    int result =
        hostccl_bootstrap_recv(comm->bootstrap, peer, tag, entries, want, &bytes, err);

    if (!result && bytes != want)
        return crystal_error_set(err, EPROTO,
                                 "rank %u wants %u channels, this one %u; set the same "
                                 "NCCL variables everywhere",
                                 peer, bytes / HOSTCCL_ENTRY_BYTES, count);
    return result;
}

/* What is connected at one distance: receiving from the rank that far behind, sending
 * to the one that far ahead. NULL where there is nothing to connect. */
struct span {
    uint32_t distance;
    struct hostccl_conn *recv, *send;
};

static int ask(ncclComm_t comm, const struct span *span, int32_t graph,
               struct crystal_error *err)
{
    return send_entries(comm, (int32_t)(span->distance << 8) + graph, span->recv,
                        span->send, err);
}

static int hear(ncclComm_t comm, const struct span *span, int32_t graph,
                struct crystal_error *err)
{
    struct hostccl_conn *recv = span->recv, *send = span->send;
    int32_t tag = (int32_t)(span->distance << 8) + graph;
    struct hostccl_entry both[2];
    int result = 0;

    if (recv && send && recv->peer == send->peer) {
        /* the peer's receiver first: it is our sender's */
        result = recv_entries(comm, recv->peer, tag, both, 2, err);
        send->mail = both[0];
        recv->mail = both[1];
    } else {
        if (send)
            result = recv_entries(comm, send->peer, tag, &send->mail, 1, err);
        if (!result && recv)
            result = recv_entries(comm, recv->peer, tag, &recv->mail, 1, err);
    }
    if (recv)
        recv->state = HOSTCCL_CONN_JOINING;
    if (send)
        send->state = HOSTCCL_CONN_JOINING;
    return result;
}

/* An empty message each way says that all is connected. */
static int sync_span(ncclComm_t comm, const struct span *span, int32_t graph,
                     struct crystal_error *err)
{
    int32_t tag = (int32_t)(span->distance << 8) + TAG_SYNC + graph;
    uint32_t peers[2], count = 0, bytes;
    int result = 0;

    if (span->send)
        peers[count++] = span->send->peer;
    if (span->recv && (!count || span->recv->peer != peers[0]))
        peers[count++] = span->recv->peer;
    for (uint32_t i = 0; i < count && !result; i++)
        result = hostccl_bootstrap_send(comm->bootstrap, peers[i], tag, NULL, 0, err);
    for (uint32_t i = 0; i < count && !result; i++)
        result = hostccl_bootstrap_recv(comm->bootstrap, peers[i], tag, NULL, 0, &bytes,
                                        err);
    return result;
}

/* 1: READY, 0: not yet. NULL is ready. */
static int join(struct hostccl_conn *conn, struct crystal_error *err)
{
    return !conn || conn->state == HOSTCCL_CONN_READY ? 1
                                                      : hostccl_conn_join(conn, err);
}

static int join_all(ncclComm_t comm, const struct span *spans, uint32_t count,
                    struct crystal_error *err)
{
    struct timespec pause = {.tv_nsec = POLL_NS};
    uint64_t broken_ns = 0;

    for (;;) {
        bool is_ready = true;
        int result;

        for (uint32_t i = 0; i < count; i++) {
            int sends = join(spans[i].send, err);
            int receives = sends < 0 ? sends : join(spans[i].recv, err);

            if (receives < 0)
                return receives;
            is_ready &= sends && receives;
        }
        if (is_ready)
            return 0;
        result = hostccl_bootstrap_check(comm->bootstrap, &broken_ns, err);
        if (result)
            return result;
        (void)nanosleep(&pause, NULL); /* woken early is fine */
        if (pause.tv_nsec < POLL_MAX_NS)
            pause.tv_nsec += pause.tv_nsec / 8;
    }
}

static int connect_spans(ncclComm_t comm, const struct span *spans, uint32_t count,
                         int32_t graph, struct crystal_error *err)
{
    int result = 0;

    for (uint32_t i = 0; i < count && !result; i++)
        result = ask(comm, &spans[i], graph, err);
    for (uint32_t i = 0; i < count && !result; i++)
        result = hear(comm, &spans[i], graph, err);
    if (!result)
        result = join_all(comm, spans, count, err);
    for (uint32_t i = 0; i < count && !result; i++)
        result = sync_span(comm, &spans[i], graph, err);
    return result;
}

int hostccl_connect_ring(ncclComm_t comm, struct crystal_error *err)
{
    uint32_t n = comm->nranks;
    struct span span = {.distance = 1};

    comm->ring_prev = hostccl_conn_create(comm, (comm->crank + n - 1) % n, false, err);
    comm->ring_next = hostccl_conn_create(comm, (comm->crank + 1) % n, true, err);
    if (!comm->ring_prev || !comm->ring_next)
        return -ENOMEM;
    span.recv = comm->ring_prev;
    span.send = comm->ring_next;
    return connect_spans(comm, &span, 1, TAG_RING, err);
}

/* The connection with a neighbour in the tree; the ring's where it has one. */
static struct hostccl_conn *tree_conn(ncclComm_t comm, uint32_t peer, bool is_send,
                                      struct crystal_error *err)
{
    struct hostccl_conn *ring = is_send ? comm->ring_next : comm->ring_prev;

    return ring->peer == peer ? ring : hostccl_conn_create(comm, peer, is_send, err);
}

/* Those of the tree's connections that are new, by distance. */
static uint32_t tree_spans(const struct ncclComm *comm, struct span *spans)
{
    uint32_t count = 0;

    for (uint32_t i = 1; i < comm->nranks; i++) {
        struct span span = {.distance = i};

        for (int k = 0; k <= CRYSTAL_TREE_ARITY; k++) {
            struct hostccl_conn *send = comm->tree[k].send, *recv = comm->tree[k].recv;

            if (send && send->state == HOSTCCL_CONN_NEW &&
                distance_of(comm, send->peer, true) == i)
                span.send = send;
            if (recv && recv->state == HOSTCCL_CONN_NEW &&
                distance_of(comm, recv->peer, false) == i)
                span.recv = recv;
        }
        if (span.send || span.recv)
            spans[count++] = span;
    }
    return count;
}

int hostccl_connect_tree(ncclComm_t comm, struct crystal_error *err)
{
    struct crystal_tree_op op = hostccl_tree_op(comm);
    struct crystal_tree_place place;
    struct span spans[2 * (1 + CRYSTAL_TREE_ARITY)];
    int result;

    crystal_tree_place(&op, comm->crank, &place);
    for (int k = 0; k <= CRYSTAL_TREE_ARITY; k++) {
        int32_t peer = k ? place.down[k - 1] : place.up;

        if (peer < 0)
            continue;
        comm->tree[k].send = tree_conn(comm, (uint32_t)peer, true, err);
        comm->tree[k].recv = tree_conn(comm, (uint32_t)peer, false, err);
        if (!comm->tree[k].send || !comm->tree[k].recv)
            return -ENOMEM;
    }
    result = connect_spans(comm, spans, tree_spans(comm, spans), TAG_TREE, err);
    comm->has_tree = !result;
    return result;
}

/* Makes the connection that task needs. comm->lock is held. */
static int make_conn(ncclComm_t comm, const struct hostccl_task *task,
                     struct crystal_error *err)
{
    bool is_send = task->func == CRYSTAL_FUNC_SEND;
    struct hostccl_pair *pair = &comm->peers[task->peer];
    struct hostccl_conn **at = is_send ? &pair->send : &pair->recv;

    if (*at)
        return 0;
    *at = hostccl_conn_create(comm, task->peer, is_send, err);
    return *at ? 1 : -ENOMEM;
}

static struct hostccl_conn *if_new(struct hostccl_conn *conn)
{
    return conn && conn->state == HOSTCCL_CONN_NEW ? conn : NULL;
}

int hostccl_connect_p2p(ncclComm_t comm, const struct hostccl_task *tasks,
                        struct crystal_error *err)
{
    uint32_t n = comm->nranks;
    int result = 0, made = 0;

    pthread_mutex_lock(&comm->lock);
    for (const struct hostccl_task *t = tasks; t && result >= 0; t = t->next)
        if (t->peer != comm->crank) {
            result = make_conn(comm, t, err);
            made += result > 0;
        }
    if (result > 0)
        result = 0;
    for (uint32_t i = 1; made && !result && i < n; i++) {
        struct hostccl_conn *recv = if_new(comm->peers[(comm->crank + n - i) % n].recv);
        struct hostccl_conn *send = if_new(comm->peers[(comm->crank + i) % n].send);

        if (recv || send)
            result = send_entries(comm, (int32_t)i << 8, recv, send, err);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* An entry of a sender is its number and zeros; of a listener, a handle. */
static bool is_handle(const struct hostccl_entry *entry)
{
    for (size_t i = sizeof entry->proxy_crank; i < sizeof entry->handle; i++)
        if (entry->handle[i])
            return true;
    return false;
}

static void keep_mail(struct hostccl_pair *pair, bool is_send,
                      const struct hostccl_entry *entry)
{
    pair->mail[is_send] = *entry;
    pair->has_mail[is_send] = true;
}

/* Looks for the peer's entry for this connection. Half way round the ring both
 * directions have the same distance and so the same tag. */
static int read_mail(struct hostccl_conn *conn, struct crystal_error *err)
{
    ncclComm_t comm = conn->comm;
    struct hostccl_pair *pair = &comm->peers[conn->peer];
    uint32_t distance = distance_of(comm, conn->peer, conn->is_send), bytes = 0;
    struct hostccl_entry entries[2];
    int result =
        hostccl_bootstrap_poll(comm->bootstrap, conn->peer, (int32_t)distance << 8,
                               entries, sizeof entries, &bytes);

    if (result == 0)
        return 0;
    if (result < 0 || !bytes || bytes % HOSTCCL_ENTRY_BYTES)
        return crystal_error_set(err, EPROTO,
                                 "rank %u sends %u bytes to connect, expected %d",
                                 conn->peer, bytes, HOSTCCL_ENTRY_BYTES);
    if (distance * 2 != comm->nranks) {
        keep_mail(pair, conn->is_send, &entries[0]);
    } else if (bytes == sizeof entries) {
        keep_mail(pair, true, &entries[0]);
        keep_mail(pair, false, &entries[1]);
    } else {
        keep_mail(pair, is_handle(&entries[0]), &entries[0]);
    }
    return 1;
}

int hostccl_connect_progress(struct hostccl_conn *conn, struct crystal_error *err)
{
    struct hostccl_pair *pair = &conn->comm->peers[conn->peer];
    int result, moved = 0;

    if (conn->state == HOSTCCL_CONN_ASKED) {
        while (!pair->has_mail[conn->is_send]) {
            result = read_mail(conn, err);
            if (result <= 0)
                return result < 0 ? result : moved;
            moved = 1;
        }
        conn->mail = pair->mail[conn->is_send];
        conn->state = HOSTCCL_CONN_JOINING;
    }
    if (conn->state != HOSTCCL_CONN_JOINING)
        return moved;
    result = hostccl_conn_join(conn, err);
    if (result <= 0)
        return result < 0 ? result : moved;
    /* Its answer is awaited when the communicator is destroyed (settle); a peer that
     * had only this to send may be gone already. */
    conn->needs_sync = true;
    (void)hostccl_bootstrap_send(
        conn->comm->bootstrap, conn->peer,
        (int32_t)(distance_of(conn->comm, conn->peer, conn->is_send) << 8) + TAG_SYNC,
        NULL, 0, NULL);
    return 1;
}

static bool is_settled(struct hostccl_conn *conn)
{
    uint32_t bytes;

    if (!conn || !conn->needs_sync)
        return true;
    conn->needs_sync =
        hostccl_bootstrap_poll(
            conn->comm->bootstrap, conn->peer,
            (int32_t)(distance_of(conn->comm, conn->peer, conn->is_send) << 8) +
                TAG_SYNC,
            NULL, 0, &bytes) == 0;
    return !conn->needs_sync;
}

void hostccl_connect_settle(ncclComm_t comm)
{
    struct timespec pause = {.tv_nsec = POLL_MAX_NS};

    for (int i = 0; i < SETTLE_TRIES; i++) {
        bool settled = true;

        for (uint32_t p = 0; p < comm->nranks && settled; p++)
            settled =
                is_settled(comm->peers[p].send) && is_settled(comm->peers[p].recv);
        if (settled)
            return;
        (void)nanosleep(&pause, NULL); /* woken early is fine */
    }
}
