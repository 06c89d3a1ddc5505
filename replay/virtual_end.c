/* Ends whose other side is a virtual rank: nothing of theirs touches the network.
 *
 * A receive gets what virtual ranks would have sent, when it would have come
 * (collectives: virtual_line.h for rings, virtual_tree.h, virtual_pat.h;
 * point-to-point: what was recorded). A send goes into the delay line of the real rank
 * behind the run, here or through a feed to another process; it is complete when this
 * process's NIC has taken it, a point-to-point send also not before the receiver has
 * arrived.
 */
#include "config.h"

#include "replay/net.h"

#include "replay/net_payload.h"
#include "replay/net_rings.h"
#include "replay/virtual_feed.h"
#include "replay/virtual_line.h"
#include "replay/virtual_pat.h"
#include "replay/virtual_tree.h"
#include "replay/wait_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct virtual_end {
    struct crystal_net_end base;
    uint64_t link_free_ns; /* receiver: the messages before have left */
    /* receiver: steps of NCCL's connection, for flags: up to the present operation and
     * with all that were announced */
    uint64_t base_step, next_step;
    /* sender: the feed to the process behind the run */
    int feed_fd; /* -1: not connected */
    uint64_t written;
    struct crystal_feed_message out;
};

/* Stops everybody with the sentence; the caller returns the code. */
static int stop(const struct crystal_net_end *end, int code, struct crystal_error *err)
{
    crystal_board_abort(end->comm->module->board, "rank %u: %s",
                        end->comm->module->lrank, crystal_error_text(err));
    return code;
}

static int operation_check(const struct crystal_net_end *end,
                           const struct crystal_net_request *r,
                           struct crystal_error *err)
{
    const struct crystal_operation *op = r->id.operation;

    if (!op)
        return crystal_error_set(err, EPROTO,
                                 "a message %s virtual rank %u belongs to no known "
                                 "operation; NCCL_PROFILER_PLUGIN must name "
                                 "libnccl-net-crystal.so",
                                 end->is_send ? "to" : "from", end->peer_crank);
    if (op->comm != end->comm)
        return crystal_error_set(
            err, EPROTO,
            "a message of one communicator came on a connection of "
            "another");
    return 0;
}

static void ring_of(const struct crystal_net_request *r,
                    const struct crystal_ring_place *place, struct crystal_ring_op *ret)
{
    const struct crystal_operation *op = r->id.operation;

    *ret = (struct crystal_ring_op){
        .func = op->func,
        .nranks = op->comm->nranks,
        .root =
            op->root < op->comm->nranks ? crystal_ring_place_of(place, op->root) : 0,
        .ring = place->cranks,
        .count = op->count,
        .elt_bytes = (uint32_t)op->elt_bytes,
        .channel_count = op->channel_count ? op->channel_count : 1,
        .channel = r->id.channel,
        .proto = (enum crystal_proto)op->proto};
}

/* What the communicator keeps for trees and PAT, made when it is first needed. */
static struct crystal_trees *trees_of(struct crystal_net_comm *comm,
                                      struct crystal_error *err)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (!comm->trees)
        comm->trees = crystal_trees_create(comm, atomic_load(&comm->board), err);
    (void)pthread_mutex_unlock(&comm->lock);
    return comm->trees;
}

static struct crystal_pats *pats_of(struct crystal_net_comm *comm,
                                    struct crystal_error *err)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (!comm->pats)
        comm->pats = crystal_pats_create(comm, atomic_load(&comm->board), err);
    (void)pthread_mutex_unlock(&comm->lock);
    return comm->pats;
}

static int algorithm_refuse(const struct crystal_operation *op,
                            struct crystal_error *err)
{
    return crystal_error_set(err, ENOTSUP,
                             "virtual ranks know NCCL's ring, tree and PAT algorithms; "
                             "function %u uses another one, set "
                             "NCCL_ALGO=Ring,Tree,PAT",
                             op->func);
}

/* --- receiving --- */

struct arrivals {
    const struct crystal_board_cell *cells; /* NULL: everybody came long ago */
    const struct crystal_ring_place *place;
};

static uint64_t arrival_at(const void *user, uint32_t distance)
{
    const struct arrivals *a = user;
    const uint32_t n = a->place->nranks;
    uint32_t crank =
        crystal_ring_crank(a->place, (a->place->place + 2 * n - 1 - distance) % n);

    return a->cells
               ? atomic_load_explicit(&a->cells[crank].arrive_ns, memory_order_relaxed)
               : 1;
}

/* When a receive that could be complete at arrive_ns is complete, and what of it was
 * waiting for virtual ranks. */
static void receive_done(struct virtual_end *v, struct crystal_net_request *r,
                         uint64_t arrive_ns, uint64_t free_ns, uint64_t bytes)
{
    struct crystal_net_module *module = v->base.comm->module;
    const struct crystal_wire *wire = &module->wire;
    const uint64_t occupy_ns = crystal_wire_occupy_ns(wire, bytes);
    uint64_t link_free_ns = v->link_free_ns, now_ns;
    uint64_t without_ns =
        crystal_vt_deliver(wire, free_ns, r->posted_ns, bytes, &link_free_ns);
    uint64_t due_ns =
        crystal_vt_deliver(wire, arrive_ns, r->posted_ns, bytes, &v->link_free_ns);

    if (due_ns > without_ns)
        crystal_operation_waited(r->id.operation, without_ns, due_ns);
    due_ns = crystal_link_take(&module->link, due_ns - occupy_ns, occupy_ns);
    if (r->asked) {
        now_ns = crystal_now_ns();
        crystal_operation_late(r->id.operation, due_ns, now_ns);
    }
    r->got = bytes;
    crystal_net_queue_pop(&v->base, due_ns);
}

/* 1 done, 0 wait. */
static int take_ring(struct virtual_end *v, struct crystal_net_request *r,
                     const struct crystal_board_cell *cells, uint64_t *ret_bytes,
                     uint64_t *ret_arrive_ns, uint64_t *ret_free_ns,
                     struct crystal_error *err)
{
    struct crystal_net_comm *comm = v->base.comm;
    struct arrivals arrivals = {.cells = cells};
    struct crystal_line_next next = {.op = r->id.operation,
                                     .channel = r->id.channel,
                                     .index = r->id.step,
                                     .step = r->step,
                                     .arrive = arrival_at,
                                     .arrive_user = &arrivals};
    int code = crystal_rings_place(comm->rings, r->id.channel, &next.place, err);

    if (code <= 0)
        return code;
    if (r->device && r->room)
        next.room = &r->room;
    arrivals.place = next.place;
    ring_of(r, next.place, &next.ring);
    next.count = crystal_ring_message_count(&next.ring, next.place->place, 0);
    if (next.index >= next.count)
        return crystal_error_set(err, EPROTO,
                                 "message %llu of an operation that has %llu by the "
                                 "ring's schedule",
                                 (unsigned long long)next.index,
                                 (unsigned long long)next.count);
    return crystal_lines_take(comm->lines, &next, r->data, r->bytes, ret_bytes,
                              ret_arrive_ns, ret_free_ns, err);
}

static int take_tree(struct virtual_end *v, struct crystal_net_request *r,
                     const struct crystal_board_cell *cells, uint64_t *ret_bytes,
                     uint64_t *ret_arrive_ns, uint64_t *ret_free_ns,
                     struct crystal_error *err)
{
    struct crystal_trees *trees = trees_of(v->base.comm, err);
    struct crystal_tree_transfer m = {.op = r->id.operation,
                                      .channel = r->id.channel,
                                      .peer = v->base.peer_crank,
                                      .index = r->id.step,
                                      .step = r->step,
                                      .cells = cells};

    return trees ? crystal_trees_take(trees, &m, r->data, r->bytes, ret_bytes,
                                      ret_arrive_ns, ret_free_ns, err)
                 : -err->code;
}

static int take_pat(struct virtual_end *v, struct crystal_net_request *r,
                    const struct crystal_board_cell *cells, uint64_t *ret_bytes,
                    uint64_t *ret_arrive_ns, struct crystal_error *err)
{
    struct crystal_pats *pats = pats_of(v->base.comm, err);
    struct crystal_pat_message m = {.op = r->id.operation,
                                    .channel = r->id.channel,
                                    .peer = v->base.peer_crank,
                                    .index = r->id.step,
                                    .cells = cells};

    return pats ? crystal_pats_take(pats, &m, r->data, r->bytes, ret_bytes,
                                    ret_arrive_ns, err)
                : -err->code;
}

/* 1 done, 0 wait. */
static int receive_collective(struct virtual_end *v, struct crystal_net_request *r,
                              struct crystal_error *err)
{
    const struct crystal_board_cell *cells = NULL;
    uint64_t bytes, arrive_ns, free_ns = 0;
    int code;

    if (v->base.comm->module->is_timed) {
        cells = crystal_operation_arrivals(r->id.operation);
        if (!cells) {
            r->asked = 1;
            crystal_wait_board();
            return 0;
        }
    }
    switch ((enum crystal_algo)r->id.operation->algo) {
    case CRYSTAL_ALGO_RING:
        code = take_ring(v, r, cells, &bytes, &arrive_ns, &free_ns, err);
        break;
    case CRYSTAL_ALGO_TREE:
        code = take_tree(v, r, cells, &bytes, &arrive_ns, &free_ns, err);
        break;
    case CRYSTAL_ALGO_PAT:
        code = take_pat(v, r, cells, &bytes, &arrive_ns, err);
        break;
    default:
        code = algorithm_refuse(r->id.operation, err);
    }
    if (code > 0)
        receive_done(v, r, arrive_ns, free_ns, bytes);
    return code;
}

/* Where this message lies in its transfer; 0 where channels share it in a way that is
 * not known. */
static int part_of_transfer(const struct crystal_net_request *r, uint64_t *ret_offset,
                            uint64_t *ret_bytes)
{
    const struct crystal_operation *op = r->id.operation;
    uint64_t all = op->count * op->elt_bytes;
    uint64_t messages =
        all ? (all + CRYSTAL_P2P_CHUNK_BYTES - 1) / CRYSTAL_P2P_CHUNK_BYTES : 1;

    if (r->id.message_count != messages || r->id.step >= messages)
        return 0;
    *ret_offset = (uint64_t)r->id.step * CRYSTAL_P2P_CHUNK_BYTES;
    *ret_bytes = all - *ret_offset;
    if (*ret_bytes > CRYSTAL_P2P_CHUNK_BYTES)
        *ret_bytes = CRYSTAL_P2P_CHUNK_BYTES;
    return 1;
}

static int receive_transfer(struct virtual_end *v, struct crystal_net_request *r,
                            struct crystal_error *err)
{
    struct crystal_operation *op = r->id.operation;
    uint64_t partner_ns = crystal_operation_partner_ns(op), offset, bytes;
    uint64_t hop_ns;
    const void *recorded;
    int code = 0;

    if (!partner_ns) {
        r->asked = 1;
        crystal_wait_board();
        return 0;
    }
    if (!part_of_transfer(r, &offset, &bytes)) {
        bytes = r->bytes; /* all that was posted is its part */
    } else {
        if (bytes > r->bytes)
            return crystal_error_set(
                err, EMSGSIZE,
                "%llu bytes of a transfer do not fit the %llu that "
                "were posted",
                (unsigned long long)bytes, (unsigned long long)r->bytes);
        code = crystal_payload_p2p(op, offset, bytes, &recorded, err);
    }
    if (code < 0)
        return code;
    if (!r->data)
        code = 0;
    else if (code)
        memcpy(r->data, recorded, bytes);
    else
        memset(r->data, 0, bytes);
    if (code != 1 && bytes)
        crystal_operation_standin(op, bytes);
    hop_ns = crystal_vt_hop_ns(&v->base.comm->module->wire, bytes);
    receive_done(v, r, partner_ns + hop_ns, 0, bytes);
    return 1;
}

/* The step of NCCL's connection that a message takes. An operation begins at a multiple
 * of its chunk's steps. */
static uint64_t connection_step(struct virtual_end *v,
                                const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;
    uint64_t chunk_steps = 1, slices = 1;

    if (!op->is_p2p && op->algo == CRYSTAL_ALGO_RING) {
        struct crystal_ring_op ring = {.func = op->func,
                                       .proto = (enum crystal_proto)op->proto};

        chunk_steps = crystal_ring_chunk_steps(&ring);
        slices = crystal_ring_slices(&ring);
    }
    if (r->id.step == 0) {
        v->base_step = (v->next_step + chunk_steps - 1) / chunk_steps * chunk_steps;
        v->next_step = v->base_step + r->id.message_count * (chunk_steps / slices);
    }
    return v->base_step + r->id.step * (chunk_steps / slices);
}

static int virtual_start_recv(struct crystal_net_end *end,
                              struct crystal_net_request *r, struct crystal_error *err)
{
    struct virtual_end *v = (struct virtual_end *)end;
    int code = operation_check(end, r, err);

    if (code)
        return stop(end, code, err);
    r->step = connection_step(v, r);
    return 0;
}

static int recv_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    struct virtual_end *v = (struct virtual_end *)end;
    struct crystal_net_request *r;
    int code = 1;

    while (code > 0 && (r = crystal_net_queue_first(end)))
        code = r->id.operation->is_p2p ? receive_transfer(v, r, err)
                                       : receive_collective(v, r, err);
    return code < 0 ? stop(end, code, err) : 0;
}

/* --- sending --- */

static int virtual_start_send(struct crystal_net_end *end,
                              struct crystal_net_request *r, struct crystal_error *err)
{
    struct crystal_net_module *module = end->comm->module;
    uint64_t occupy_ns = crystal_wire_occupy_ns(&module->wire, r->bytes);
    int code = operation_check(end, r, err);

    if (code)
        return stop(end, code, err);
    r->start_ns = crystal_nic_take(&module->nic, r->posted_ns, occupy_ns);
    r->due_ns = r->start_ns + occupy_ns;
    r->got = r->bytes;
    return 0;
}

/* Writes the request to the feed. 1 written, 0 wait. */
static int feed_write(struct virtual_end *v, struct crystal_net_request *r,
                      const struct crystal_ring_place *place, struct crystal_error *err)
{
    struct crystal_net_module *module = v->base.comm->module;
    uint64_t total = sizeof v->out + (v->out.has_bytes ? r->bytes : 0);

    if (v->feed_fd < 0) {
        const uint32_t *members =
            crystal_board_members(module->board, atomic_load(&v->base.comm->board));

        v->feed_fd = crystal_feed_connect(module, members[place->receiver], err);
        if (v->feed_fd == -EAGAIN) {
            crystal_wait_board();
            return 0;
        }
        if (v->feed_fd < 0)
            return v->feed_fd;
    }
    while (v->written < total) {
        uint64_t head = v->written < sizeof v->out ? sizeof v->out - v->written : 0;
        uint64_t done = head ? 0 : v->written - sizeof v->out;
        struct iovec parts[2] = {{(char *)&v->out + sizeof v->out - head, (size_t)head},
                                 {v->out.has_bytes ? r->data + done : NULL,
                                  v->out.has_bytes ? (size_t)(r->bytes - done) : 0}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(v->feed_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN) {
            crystal_wait_fd(v->feed_fd, POLLOUT);
            return 0;
        }
        if (sent < 0) {
            int code = errno;

            crystal_net_note(v->base.comm, CRYSTAL_ROLL_PARTED, place->receiver);
            return crystal_error_set(
                err, code,
                "sending to rank %u of communicator %016llx, behind "
                "virtual ranks: %s; its process has ended, see its "
                "log",
                place->receiver, (unsigned long long)v->base.comm->comm_id,
                strerror(code));
        }
        v->written += (uint64_t)sent;
    }
    v->written = 0;
    return 1;
}

/* The bytes must be those that everybody computes the ring's schedule to have. */
static int schedule_check(const struct crystal_net_request *r,
                          const struct crystal_ring_op *ring, uint32_t place,
                          struct crystal_error *err)
{
    uint64_t count = crystal_ring_message_count(ring, place, 1);
    struct crystal_ring_message m;

    if (r->id.step < count) {
        crystal_ring_message(ring, place, 1, r->id.step, &m);
        if (crystal_form_bytes(ring->proto, (uint64_t)m.elts * ring->elt_bytes) ==
            r->bytes)
            return 0;
    }
    return crystal_error_set(
        err, EPROTO,
        "message %u of %llu that function %u sends has %llu bytes, "
        "which is not the ring's schedule",
        r->id.step, (unsigned long long)count, ring->func,
        (unsigned long long)r->bytes);
}

static int send_tree(struct virtual_end *v, struct crystal_net_request *r,
                     struct crystal_error *err)
{
    struct crystal_trees *trees = trees_of(v->base.comm, err);
    struct crystal_tree_transfer m = {.op = r->id.operation,
                                      .channel = r->id.channel,
                                      .peer = v->base.peer_crank,
                                      .index = r->id.step,
                                      .started_ns = r->start_ns};
    int code =
        trees ? crystal_trees_send(trees, &m, r->data, r->bytes, err) : -err->code;

    return code ? code : 1;
}

static int send_pat(struct virtual_end *v, struct crystal_net_request *r,
                    struct crystal_error *err)
{
    struct crystal_pats *pats = pats_of(v->base.comm, err);
    struct crystal_pat_message m = {.op = r->id.operation,
                                    .channel = r->id.channel,
                                    .peer = v->base.peer_crank,
                                    .index = r->id.step};
    int code = pats ? crystal_pats_send(pats, &m, r->data, r->bytes, err) : -err->code;

    return code ? code : 1;
}

/* 1 given away, 0 wait. */
static int send_ring(struct virtual_end *v, struct crystal_net_request *r,
                     struct crystal_error *err)
{
    struct crystal_net_comm *comm = v->base.comm;
    const struct crystal_ring_place *place;
    struct crystal_vt_sent sent = {r->start_ns, r->bytes};
    struct crystal_ring_op ring;
    struct crystal_vt_path path;
    uint32_t receiver;
    uint64_t count;
    int code = crystal_rings_place(comm->rings, r->id.channel, &place, err), is_passed;

    if (code <= 0)
        return code;
    ring_of(r, place, &ring);
    code = v->written ? 0 : schedule_check(r, &ring, place->place, err);
    if (code)
        return code;
    receiver = crystal_ring_place_of(place, place->receiver);
    crystal_vt_path(&ring, receiver, place->run_behind, &path);
    count =
        crystal_vt_sent_count(&path, crystal_ring_message_count(&ring, receiver, 0));
    if (r->id.step >= count)
        return 1; /* nobody behind the run hears of it */
    is_passed = crystal_line_is_passed(&path, r->id.step);
    is_passed &= r->data != NULL;
    if (place->receiver == comm->crank && is_passed && r->room) {
        code = crystal_lines_push_room(comm->lines, r->id.operation->seq, r->id.channel,
                                       r->id.step, count, &sent, r->room, err);
        return code ? code : 1;
    }
    if (place->receiver == comm->crank) {
        code = crystal_lines_push(comm->lines, r->id.operation->seq, r->id.channel,
                                  r->id.step, count, &sent, is_passed ? r->data : NULL,
                                  err);
        return code ? code : 1;
    }
    if (!v->written)
        v->out = (struct crystal_feed_message){.magic = CRYSTAL_FEED_MAGIC,
                                               .channel = r->id.channel,
                                               .comm_id = comm->comm_id,
                                               .seq = r->id.operation->seq,
                                               .index = r->id.step,
                                               .count = count,
                                               .start_ns = r->start_ns,
                                               .bytes = r->bytes,
                                               .crank = comm->crank,
                                               .has_bytes = is_passed && r->bytes};
    return feed_write(v, r, place, err);
}

static int send_collective(struct virtual_end *v, struct crystal_net_request *r,
                           struct crystal_error *err)
{
    switch ((enum crystal_algo)r->id.operation->algo) {
    case CRYSTAL_ALGO_RING:
        return send_ring(v, r, err);
    case CRYSTAL_ALGO_TREE:
        return send_tree(v, r, err);
    case CRYSTAL_ALGO_PAT:
        return send_pat(v, r, err);
    default:
        return algorithm_refuse(r->id.operation, err);
    }
}

static int send_transfer(struct virtual_end *v, struct crystal_net_request *r)
{
    const struct crystal_wire *wire = &v->base.comm->module->wire;
    uint64_t partner_ns = crystal_operation_partner_ns(r->id.operation);
    uint64_t done_ns = partner_ns + crystal_wire_occupy_ns(wire, r->bytes);

    if (!partner_ns) {
        crystal_wait_board();
        return 0;
    }
    if (partner_ns > r->start_ns) {
        crystal_operation_waited(r->id.operation, r->due_ns, done_ns);
        r->due_ns = done_ns;
    }
    return 1;
}

static int send_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    struct virtual_end *v = (struct virtual_end *)end;
    struct crystal_net_request *r;
    int code = 1;

    while (code > 0 && (r = crystal_net_queue_first(end))) {
        code =
            r->id.operation->is_p2p ? send_transfer(v, r) : send_collective(v, r, err);
        if (code > 0)
            crystal_net_queue_pop(end, r->due_ns);
    }
    return code < 0 ? stop(end, code, err) : 0;
}

/* --- making and closing --- */

/* Of what this rank sends, virtual ranks need what comes back to a real one. */
static int send_needs(const struct crystal_net_end *end,
                      const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;
    const struct crystal_ring_place *place;
    struct crystal_ring_op ring;
    struct crystal_vt_path path;

    if (!op)
        return 1;
    if (op->is_p2p || !crystal_payload_is_valued(op))
        return 0;
    if (op->algo != CRYSTAL_ALGO_RING)
        return 1;
    if (r->is_own ||
        crystal_rings_place(end->comm->rings, r->id.channel, &place, NULL) <= 0)
        return 1;
    ring_of(r, place, &ring);
    crystal_vt_path(&ring, crystal_ring_place_of(place, place->receiver),
                    place->run_behind, &path);
    return crystal_line_is_passed(&path, r->id.step);
}

static int recv_needs(const struct crystal_net_end *end,
                      const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;

    (void)end;
    return !op || crystal_payload_is_valued(op) ||
           (!op->is_p2p && op->proto != CRYSTAL_PROTO_SIMPLE);
}

static void virtual_close(struct crystal_net_end *end)
{
    struct virtual_end *v = (struct virtual_end *)end;

    if (v->feed_fd >= 0)
        (void)close(v->feed_fd); /* what was written arrives */
    free(v);
}

static const struct crystal_net_end_ops virtual_send_ops = {
    "virtual send", virtual_start_send, send_progress, virtual_close, send_needs};
static const struct crystal_net_end_ops virtual_recv_ops = {
    "virtual receive", virtual_start_recv, recv_progress, virtual_close, recv_needs};

struct crystal_net_end *crystal_virtual_end_create(struct crystal_net_context *context,
                                                   int is_send, uint32_t peer_crank,
                                                   struct crystal_error *err)
{
    int found = crystal_net_comm_resolve(context->comm, err);
    struct virtual_end *v;

    if (found < 0)
        return NULL;
    if (!found) {
        (void)crystal_error_set(
            err, EINVAL, "virtual rank %u of communicator %016llx: %s", peer_crank,
            (unsigned long long)context->comm->comm_id,
            context->comm->module->board ? "the communicator is not on the board"
                                         : "there are virtual ranks only where "
                                           "CRYSTAL_BOARD is set");
        return NULL;
    }
    if (peer_crank >= context->comm->nranks ||
        crystal_board_is_real(context->comm->module->board,
                              atomic_load(&context->comm->board))[peer_crank]) {
        (void)crystal_error_set(err, EPROTO,
                                "rank %u of communicator %016llx is no virtual rank",
                                peer_crank, (unsigned long long)context->comm->comm_id);
        return NULL;
    }
    v = calloc(1, sizeof *v);
    if (!v) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a connection");
        return NULL;
    }
    v->feed_fd = -1;
    v->base.ops = is_send ? &virtual_send_ops : &virtual_recv_ops;
    v->base.context = context;
    v->base.comm = context->comm;
    v->base.is_send = is_send;
    v->base.peer_crank = peer_crank;
    return &v->base;
}
