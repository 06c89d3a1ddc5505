/* The roots of a communicator's bootstrap, from both sides.
 *
 * Every rank connects to the root of its block once and says (check-in): its rank, how
 * many there are, where the root may answer, and where its ring listener is. The root
 * answers each with the ring address of the rank after it. With several roots the first
 * rank of a block also checks in at the root before its own, as that block's rank
 * behind the last, so that the last one gets its answer. Where an id was made here we
 * are the root and only real ranks check in. Where a real rank made it, we check in
 * there once for each virtual rank, those in front of a real rank and behind one first,
 * so that the real ranks get their answers at once and the others follow in the
 * background.
 *
 * A root takes one connection after the other; a connection of ours counts as flying
 * until the root has closed it, and few fly at a time, so that its queue of unaccepted
 * connections never overflows (which costs a second each).
 */
#include "config.h"

#include "replay/proxy_internal.h"
#include "runtime/clock.h"

#include <string.h>

#define FLYING_MAX 64U

static void refuse_size(struct proxy_comm *comm, uint32_t size)
{
    proxy_comm_fail(comm,
                    "a check-in of %u bytes is that of NCCL %s, but the job is set up "
                    "for NCCL %s (nccl.version in crystal.yaml)",
                    size, proxy_layout_of_checkin(size), comm->layout->versions);
}

/* The root whose block has this crank. */
static struct proxy_root *root_of(struct proxy_comm *comm, uint32_t crank)
{
    struct proxy_root *root = comm->roots;

    while (crank >= root->first + root->count)
        root++;
    return root;
}

/* Tells a real rank where its next is. */
static void answer(struct proxy_comm *comm, struct proxy_real *real,
                   const uint8_t next[PROXY_ADDRESS_BYTES])
{
    uint8_t info[PROXY_CONNECT_BYTES] = {0};
    struct proxy_conn *conn = proxy_dial(comm, PROXY_CONN_ONCE, real->root_address);

    real->is_answered = true;
    memcpy(info, next, PROXY_ADDRESS_BYTES);
    if (conn && proxy_conn_put_handshake(conn, root_of(comm, real->crank)->magic) &&
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
    if (proxy_conn_put_handshake(conn, comm->magic))
        proxy_conn_flush(conn);
}

/* Does what a real member's addresses allow: answers it, answers the one before it,
 * connects to it. Nothing before root 0 is known, whose magic the ring has. */
static void settle(struct proxy_comm *comm, uint32_t real)
{
    struct proxy_real *me = &comm->reals[real];
    uint32_t after = (me->crank + 1) % comm->nranks;
    uint32_t before = (me->crank + comm->nranks - 1) % comm->nranks;
    uint32_t next = proxy_comm_real(comm, after);
    uint32_t previous = proxy_comm_real(comm, before);
    uint8_t own[PROXY_ADDRESS_BYTES];

    if (!comm->roots[0].is_known)
        return;
    if (me->is_checked_in && !me->is_answered) {
        if (next == PROXY_NONE) {
            proxy_address(comm->proxy, PROXY_PORT_RING, after, own);
            answer(comm, me, own);
        } else if (comm->reals[next].has_ring_address) {
            answer(comm, me, comm->reals[next].ring_address);
        }
    }
    if (comm->is_failed || !me->has_ring_address)
        return;
    if (previous == PROXY_NONE)
        dial_ring(comm, real);
    else if (comm->reals[previous].is_checked_in && !comm->reals[previous].is_answered)
        answer(comm, &comm->reals[previous], me->ring_address);
}

void proxy_root_settle_one(struct proxy_comm *comm, uint32_t real)
{
    settle(comm, real);
}

void proxy_root_settle(struct proxy_comm *comm)
{
    for (uint32_t i = 0; i < comm->real_count && !comm->is_failed; i++)
        settle(comm, i);
}

/* The block and whom a check-in stands for are right. */
static bool is_sensible(struct proxy_comm *comm, uint32_t index, const uint8_t *checkin)
{
    const struct proxy_layout *layout = comm->layout;
    const struct proxy_root *root = &comm->roots[index];
    uint32_t crank = proxy_get_u32(checkin, layout->checkin_rank);
    uint32_t nranks = proxy_get_u32(checkin, layout->checkin_nranks);
    uint32_t nroots = proxy_get_u32(checkin, layout->checkin_nroots);
    uint32_t more = comm->root_count > 1, real;
    const struct proxy_real *member;

    if (nroots != comm->root_count) {
        proxy_comm_fail(comm,
                        "it is made with %u roots where %u were told; leave "
                        "TORCH_NCCL_RANKS_PER_ROOT unset",
                        nroots, comm->root_count);
        return false;
    }
    if (nranks != comm->nranks) {
        proxy_comm_fail(comm,
                        "rank %u says it has %u ranks; give every rank the same "
                        "list of members",
                        crank, nranks);
        return false;
    }
    real = crank < root->first || crank >= root->first + root->count + more ||
                   proxy_get_u32(checkin, layout->checkin_iroot) != index
               ? PROXY_NONE
               : proxy_comm_real(comm, crank % comm->nranks);
    if (real == PROXY_NONE) {
        proxy_comm_fail(comm, "rank %u checks in, but it is not a real rank", crank);
        return false;
    }
    member = &comm->reals[real];
    if (crank < root->first + root->count ? member->is_checked_in
                                          : member->has_neighbour) {
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

/* Takes over what a real rank says. */
static void take_checkin(struct proxy_comm *comm, uint32_t index,
                         const uint8_t *checkin)
{
    const struct proxy_layout *layout = comm->layout;
    const struct proxy_root *root = &comm->roots[index];
    uint32_t crank = proxy_get_u32(checkin, layout->checkin_rank);
    uint32_t real = proxy_comm_real(comm, crank % comm->nranks);
    struct proxy_real *member = &comm->reals[real];

    memcpy(member->ring_address, checkin + layout->checkin_connect,
           PROXY_ADDRESS_BYTES);
    member->has_ring_address = true;
    if (crank < root->first + root->count) {
        memcpy(member->root_address, checkin + layout->checkin_listen,
               PROXY_ADDRESS_BYTES);
        member->is_checked_in = true;
    } else {
        member->has_neighbour = true;
    }
    settle(comm, real);
}

void proxy_root_checkin(struct proxy_conn *conn)
{
    struct proxy_comm *comm = conn->comm;
    const uint8_t *bytes;
    size_t count = proxy_conn_input(conn, &bytes);
    uint32_t size;

    if (count < sizeof size)
        return;
    size = proxy_get_u32(bytes, 0);
    if (size != comm->layout->checkin_bytes || !comm->is_open) {
        refuse_size(comm, size);
        proxy_conn_close(conn);
        return;
    }
    if (count < sizeof size + size)
        return;
    bytes += sizeof size;
    if (is_sensible(comm, conn->root, bytes))
        take_checkin(comm, conn->root, bytes);
    proxy_conn_close(conn);
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
                        "the root answers with %u bytes, NCCL %s with %u; set "
                        "nccl.version in crystal.yaml to the program's",
                        proxy_get_u32(bytes, 0), comm->layout->versions,
                        PROXY_CONNECT_BYTES);
        proxy_conn_close(conn);
        return;
    }
    if (count < sizeof(uint32_t) + PROXY_CONNECT_BYTES)
        return;
    bytes += sizeof(uint32_t);
    if (real != PROXY_NONE && proxy_address_is_usable(bytes)) {
        memcpy(comm->reals[real].ring_address, bytes, PROXY_ADDRESS_BYTES);
        comm->reals[real].has_ring_address = true;
        settle(comm, real);
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

/* Ranks that check in at a root: its block, and with several roots the one behind. */
static uint32_t checkin_end(const struct proxy_comm *comm,
                            const struct proxy_root *root)
{
    return root->count + (comm->root_count > 1);
}

/* The next virtual rank to check in at a real root, as its place from the block's
 * first: edges in the first round, the others in the second; PROXY_NONE when all are
 * done. */
static uint32_t next_place(const struct proxy_comm *comm, struct proxy_root *root)
{
    const uint32_t end = checkin_end(comm, root);

    while (root->edge < end) {
        uint32_t place = root->edge++;

        if (is_edge(comm, (root->first + place) % comm->nranks))
            return place;
    }
    while (root->next < end) {
        uint32_t place = root->next++, crank = (root->first + place) % comm->nranks;

        if (!comm->is_real[crank] && !is_edge(comm, crank))
            return place;
    }
    return PROXY_NONE;
}

bool proxy_root_is_done(const struct proxy_comm *comm)
{
    for (uint32_t i = 0; i < comm->root_count; i++) {
        const struct proxy_root *root = &comm->roots[i];

        if (!root->is_forged && root->next < checkin_end(comm, root))
            return false;
    }
    return true;
}

bool proxy_root_is_missed(struct proxy_comm *comm)
{
    if (!comm->setup_ns)
        return true;
    for (uint32_t i = 0; i < comm->root_count; i++)
        comm->roots[i].edge = comm->roots[i].next = checkin_end(comm, &comm->roots[i]);
    return false;
}

static bool check_in(struct proxy_comm *comm, uint32_t index, uint32_t place)
{
    const struct proxy_layout *layout = comm->layout;
    const struct proxy_root *root = &comm->roots[index];
    const uint32_t crank = (root->first + place) % comm->nranks;
    struct proxy_conn *conn =
        proxy_dial(comm, PROXY_CONN_ATROOT, root->id + sizeof(uint64_t));
    uint8_t message[256] = {0};

    if (!conn)
        return false;
    comm->checkin_flying++;
    comm->proxy->counters.checkin_count++;
    conn->crank = crank;
    conn->root = index;
    proxy_put_i32(message, layout->checkin_rank, (int32_t)(root->first + place));
    proxy_put_i32(message, layout->checkin_nranks, (int32_t)comm->nranks);
    proxy_put_i32(message, layout->checkin_iroot, (int32_t)index);
    proxy_put_i32(message, layout->checkin_nroots, (int32_t)comm->root_count);
    proxy_address(comm->proxy, PROXY_PORT_ANSWER, crank,
                  message + layout->checkin_listen);
    proxy_address(comm->proxy, PROXY_PORT_RING, crank,
                  message + layout->checkin_connect);
    if (!proxy_conn_put_handshake(conn, root->magic) ||
        !proxy_conn_put_frame(conn, message, layout->checkin_bytes))
        return false;
    proxy_conn_flush(conn);
    return !comm->is_failed;
}

void proxy_root_pump(struct proxy_comm *comm)
{
    if (!comm->begin_ns)
        comm->begin_ns = crystal_now_ns();
    for (uint32_t i = 0; i < comm->root_count; i++) {
        struct proxy_root *root = &comm->roots[i];

        while (root->is_known && !root->is_forged && !comm->is_failed &&
               comm->is_open && comm->checkin_flying < FLYING_MAX) {
            uint32_t place = next_place(comm, root);

            if (place == PROXY_NONE)
                break;
            if (!check_in(comm, i, place))
                return;
        }
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
