/* The root of a communicator's bootstrap, from both sides.
 *
 * Every rank connects to the root once and says (check-in): its rank, how many there
 * are, where the root may answer, and where its ring listener is. The root answers each
 * with the ring address of the rank after it. Where the id was made here we are the
 * root and only real ranks check in. Where a real crank 0 made it, we check in there
 * once for each virtual rank, those in front of a real rank and behind one first, so
 * that the real ranks get their answers at once and the others follow in the
 * background.
 *
 * A root takes one connection after the other; a connection of ours counts as flying
 * until the root has closed it, and few fly at a time, so that its queue of unaccepted
 * connections never overflows (which costs a second each).
 */
#include "config.h"

#include "replay/proxy_internal.h"

#include <string.h>

#define FLYING_MAX 64U

static void refuse_size(struct proxy_comm *comm, uint32_t size)
{
    proxy_comm_fail(comm,
                    "a check-in of %u bytes is that of an unknown version of NCCL; use "
                    "NCCL %s",
                    size, proxy_layout_known());
}

/* Tells a real rank where its next is. */
static void answer(struct proxy_comm *comm, const struct proxy_real *real,
                   const uint8_t next[PROXY_ADDRESS_BYTES])
{
    uint8_t info[PROXY_CONNECT_BYTES] = {0};
    struct proxy_conn *conn = proxy_dial(comm, PROXY_CONN_ONCE, real->root_address);

    memcpy(info, next, PROXY_ADDRESS_BYTES);
    if (conn && proxy_conn_put_handshake(conn) &&
        proxy_conn_put_frame(conn, info, sizeof info))
        proxy_conn_flush(conn);
}

/* A virtual rank connects to its real next. */
static void dial_ring(struct proxy_comm *comm, uint32_t real)
{
    struct proxy_link *link = proxy_comm_link(comm, real, false);
    struct proxy_conn *conn;

    if (!link || link->conn || link->is_closed)
        return;
    conn = proxy_dial(comm, PROXY_CONN_LINK, comm->reals[real].ring_address);
    if (!conn)
        return;
    conn->crank = (comm->reals[real].crank + comm->nranks - 1) % comm->nranks;
    proxy_link_open(comm, link, conn);
    if (proxy_conn_put_handshake(conn))
        proxy_conn_flush(conn);
}

static void checked_in(struct proxy_comm *comm, uint32_t real)
{
    struct proxy_real *me = &comm->reals[real];
    uint32_t after = (me->crank + 1) % comm->nranks;
    uint32_t before = (me->crank + comm->nranks - 1) % comm->nranks;
    uint32_t next = proxy_comm_real(comm, after);
    uint32_t previous = proxy_comm_real(comm, before);
    uint8_t own[PROXY_ADDRESS_BYTES];

    if (next == PROXY_NONE) {
        proxy_address(comm->proxy, PROXY_PORT_RING, after, own);
        answer(comm, me, own);
    } else if (comm->reals[next].is_checked_in) {
        answer(comm, me, comm->reals[next].ring_address);
    }
    if (comm->is_failed)
        return;
    if (previous == PROXY_NONE)
        dial_ring(comm, real);
    else if (comm->reals[previous].is_checked_in)
        answer(comm, &comm->reals[previous], me->ring_address);
}

static bool is_sensible(struct proxy_comm *comm, const uint8_t *checkin)
{
    const struct proxy_layout *layout = comm->layout;
    uint32_t crank = proxy_get_u32(checkin, layout->checkin_rank);
    uint32_t nranks = proxy_get_u32(checkin, layout->checkin_nranks);
    uint32_t nroots = proxy_get_u32(checkin, layout->checkin_nroots);
    uint32_t real;

    if (nroots != 1) {
        proxy_comm_fail(comm,
                        "it is made with %u roots, one is supported; set "
                        "TORCH_NCCL_RANKS_PER_ROOT to the number of ranks",
                        nroots);
        return false;
    }
    if (nranks != comm->nranks) {
        proxy_comm_fail(comm,
                        "rank %u says it has %u ranks; give every rank the same "
                        "list of members",
                        crank, nranks);
        return false;
    }
    real = proxy_comm_real(comm, crank);
    if (real == PROXY_NONE) {
        proxy_comm_fail(comm, "rank %u checks in, but it is not a real rank", crank);
        return false;
    }
    if (comm->reals[real].is_checked_in) {
        proxy_comm_fail(comm, "rank %u has already checked in", crank);
        return false;
    }
    if (!proxy_address_is_usable(checkin + layout->checkin_listen) ||
        !proxy_address_is_usable(checkin + layout->checkin_connect)) {
        proxy_comm_fail(comm,
                        "rank %u checks in without an address; leave "
                        "NCCL_OOB_NET_ENABLE unset",
                        crank);
        return false;
    }
    return true;
}

void proxy_root_checkin(struct proxy_conn *conn)
{
    struct proxy_comm *comm = conn->comm;
    const struct proxy_layout *layout;
    const uint8_t *bytes;
    size_t count = proxy_conn_input(conn, &bytes);
    struct proxy_real *member;
    uint32_t size, real;

    if (count < sizeof size)
        return;
    size = proxy_get_u32(bytes, 0);
    layout = size ? proxy_layout_find(size) : NULL;
    if (!layout || !comm->is_open) {
        refuse_size(comm, size);
        proxy_conn_close(conn);
        return;
    }
    if (count < sizeof size + size)
        return;
    comm->layout = layout;
    bytes += sizeof size;
    if (!is_sensible(comm, bytes)) {
        proxy_conn_close(conn);
        return;
    }
    real = proxy_comm_real(comm, proxy_get_u32(bytes, layout->checkin_rank));
    member = &comm->reals[real];
    memcpy(member->root_address, bytes + layout->checkin_listen, PROXY_ADDRESS_BYTES);
    memcpy(member->ring_address, bytes + layout->checkin_connect, PROXY_ADDRESS_BYTES);
    member->is_checked_in = true;
    proxy_conn_close(conn);
    checked_in(comm, real);
}

void proxy_root_answer(struct proxy_conn *conn)
{
    struct proxy_comm *comm = conn->comm;
    const uint8_t *bytes;
    size_t count = proxy_conn_input(conn, &bytes);
    uint32_t real = proxy_comm_real(comm, (conn->crank + 1) % comm->nranks);

    if (count < sizeof(uint32_t))
        return;
    if (proxy_get_u32(bytes, 0) != PROXY_CONNECT_BYTES) {
        proxy_comm_fail(comm,
                        "the root answers with %u bytes, NCCL %s with %u; use one "
                        "of these versions",
                        proxy_get_u32(bytes, 0), proxy_layout_known(),
                        PROXY_CONNECT_BYTES);
        proxy_conn_close(conn);
        return;
    }
    if (count < sizeof(uint32_t) + PROXY_CONNECT_BYTES)
        return;
    bytes += sizeof(uint32_t);
    if (real != PROXY_NONE && proxy_address_is_usable(bytes)) {
        memcpy(comm->reals[real].ring_address, bytes, PROXY_ADDRESS_BYTES);
        dial_ring(comm, real);
    } else if (real != PROXY_NONE) {
        proxy_comm_fail(comm, "the root names no address of rank %u",
                        comm->reals[real].crank);
    }
    proxy_conn_close(conn);
}

/* --- check-ins at a real root --- */

static bool is_edge(const struct proxy_comm *comm, uint32_t crank)
{
    uint32_t n = comm->nranks;

    return !comm->is_real[crank] &&
           (comm->is_real[(crank + 1) % n] || comm->is_real[(crank + n - 1) % n]);
}

/* The next virtual rank to check in: edges in the first round, the others in the
 * second; PROXY_NONE when all are done. */
static uint32_t next_crank(struct proxy_comm *comm)
{
    while (comm->checkin_edge < comm->nranks) {
        uint32_t crank = comm->checkin_edge++;

        if (is_edge(comm, crank))
            return crank;
    }
    while (comm->checkin_next < comm->nranks) {
        uint32_t crank = comm->checkin_next++;

        if (!comm->is_real[crank] && !is_edge(comm, crank))
            return crank;
    }
    return PROXY_NONE;
}

bool proxy_root_is_missed(struct proxy_comm *comm)
{
    if (!comm->setup_ns)
        return true;
    comm->checkin_edge = comm->checkin_next = comm->nranks;
    return false;
}

static bool check_in(struct proxy_comm *comm, uint32_t crank)
{
    const struct proxy_layout *layout = comm->layout;
    struct proxy_conn *conn =
        proxy_dial(comm, PROXY_CONN_ATROOT, comm->id + sizeof(uint64_t));
    uint8_t message[256] = {0};

    if (!conn)
        return false;
    comm->checkin_flying++;
    comm->proxy->counters.checkin_count++;
    conn->crank = crank;
    proxy_put_i32(message, layout->checkin_rank, (int32_t)crank);
    proxy_put_i32(message, layout->checkin_nranks, (int32_t)comm->nranks);
    proxy_put_i32(message, layout->checkin_nroots, 1);
    proxy_address(comm->proxy, PROXY_PORT_ANSWER, crank,
                  message + layout->checkin_listen);
    proxy_address(comm->proxy, PROXY_PORT_RING, crank,
                  message + layout->checkin_connect);
    if (!proxy_conn_put_handshake(conn) ||
        !proxy_conn_put_frame(conn, message, layout->checkin_bytes))
        return false;
    proxy_conn_flush(conn);
    return !comm->is_failed;
}

void proxy_root_pump(struct proxy_comm *comm)
{
    if (!comm->begin_ns)
        comm->begin_ns = proxy_now_ns();
    while (!comm->is_failed && comm->is_open && comm->checkin_flying < FLYING_MAX) {
        uint32_t crank = next_crank(comm);

        if (crank == PROXY_NONE || !check_in(comm, crank))
            return;
    }
}

void proxy_root_left(struct proxy_comm *comm)
{
    comm->checkin_flying--;
    if (comm->is_failed || comm->proxy->is_stopping || !comm->is_open)
        return;
    proxy_root_pump(comm);
    proxy_comm_close_if_done(comm);
}
