/* Sending to a virtual rank. A message goes into the delay line of the real rank behind
 * the run, here or through a feed to another process; it is complete when this
 * process's NIC has taken it, a point-to-point send also not before the receiver has
 * arrived.
 */
#include "config.h"

#include "replay/virtual_end_internal.h"

#include "replay/net.h"
#include "replay/net_payload.h"
#include "replay/net_rings.h"
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

static int virtual_start_send(struct crystal_net_end *end,
                              struct crystal_net_request *r, struct crystal_error *err)
{
    struct crystal_net_module *module = end->comm->module;
    uint64_t occupy_ns = crystal_wire_occupy_ns(&module->wire, r->bytes);
    int code = crystal_virtual_check(end, r, err);

    if (code)
        return crystal_virtual_stop(end, code, err);
    r->got = r->bytes;
    r->start_ns = r->posted_ns;
    if (((struct virtual_end *)end)->wire.assist)
        return 0; /* the network tells */
    r->start_ns = crystal_nic_take(&module->nics[end->nic], r->posted_ns, occupy_ns);
    r->due_ns = r->start_ns + occupy_ns;
    return 0;
}

/* Room for so many feeds; those that are there stay. */
static int feeds_make(struct virtual_end *v, uint32_t count, struct crystal_error *err)
{
    int *more;

    if (v->feed_count >= count)
        return 0;
    more = realloc(v->feed_fds, count * sizeof *more);
    if (!more)
        return crystal_error_set(err, ENOMEM, "out of memory for a connection");
    v->feed_fds = more;
    while (v->feed_count < count)
        more[v->feed_count++] = -1;
    return 0;
}

/* Writes v->out and the request's bytes to the feed of a rank, which is always the
 * same. 1 written, 0 wait. */
static int feed_write(struct virtual_end *v, const struct crystal_net_request *r,
                      int *fd, uint32_t crank, struct crystal_error *err)
{
    struct crystal_net_module *module = v->base.comm->module;
    uint64_t total = sizeof v->out + (v->out.has_bytes ? r->bytes : 0);

    if (*fd < 0) {
        const uint32_t *members =
            crystal_board_members(module->board, atomic_load(&v->base.comm->board));

        *fd = crystal_feed_connect(module, members[crank], err);
        if (*fd == -EAGAIN) {
            crystal_wait_board();
            return 0;
        }
        if (*fd < 0)
            return *fd;
    }
    while (v->written < total) {
        uint64_t head = v->written < sizeof v->out ? sizeof v->out - v->written : 0;
        uint64_t done = head ? 0 : v->written - sizeof v->out;
        struct iovec parts[2] = {{(char *)&v->out + sizeof v->out - head, (size_t)head},
                                 {v->out.has_bytes ? r->data + done : NULL,
                                  v->out.has_bytes ? (size_t)(r->bytes - done) : 0}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(*fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN) {
            crystal_wait_fd(*fd, POLLOUT);
            return 0;
        }
        if (sent < 0) {
            int code = errno;

            crystal_net_note(v->base.comm, CRYSTAL_ROLL_PARTED, crank);
            return crystal_error_set(
                err, code,
                "sending to rank %u of communicator %016llx, behind "
                "virtual ranks: %s; its process has ended, see its "
                "log",
                crank, (unsigned long long)v->base.comm->comm_id, strerror(code));
        }
        v->written += (uint64_t)sent;
    }
    v->written = 0;
    return 1;
}

/* The bytes must be those that everybody computes the ring's schedule to have. */
static int schedule_check(const struct crystal_net_request *r,
                          const struct virtual_ring *v, struct crystal_error *err)
{
    const struct crystal_ring_op *ring = &v->op;
    struct crystal_ring_message m;

    if (r->id.step < v->count) {
        crystal_ring_message(ring, v->place->place, 1, r->id.step, &m);
        if (crystal_form_bytes(ring->proto, (uint64_t)m.elts * ring->elt_bytes) ==
            r->bytes)
            return 0;
    }
    return crystal_error_set(
        err, EPROTO,
        "message %u of %llu that function %u sends has %llu bytes, "
        "which is not the ring's schedule",
        r->id.step, (unsigned long long)v->count, ring->func,
        (unsigned long long)r->bytes);
}

/* What goes in front of a request's bytes on a feed. */
static struct crystal_feed_message feed_head(const struct virtual_end *v,
                                             const struct crystal_net_request *r,
                                             uint32_t magic, uint64_t count,
                                             bool has_bytes)
{
    const struct crystal_net_comm *comm = v->base.comm;

    return (struct crystal_feed_message){
        .magic = magic,
        .channel = r->id.channel,
        .comm_id = comm->comm_id,
        .seq = r->id.operation->seq,
        .index = r->id.step,
        .count = count,
        .start_ns = crystal_net_job_ns(comm->module, r->start_ns),
        .bytes = r->bytes,
        .crank = comm->crank,
        .has_bytes = has_bytes && r->bytes};
}

/* Gives the request to the trees, and begins to feed it to who hears of it. */
static int tree_begin(struct virtual_end *v, const struct crystal_net_request *r,
                      struct crystal_error *err)
{
    struct crystal_net_comm *comm = v->base.comm;
    struct crystal_trees *trees = crystal_virtual_trees(comm, err);
    const struct crystal_tree_transfer m = {.op = r->id.operation,
                                            .channel = r->id.channel,
                                            .peer = v->base.peer_crank,
                                            .index = r->id.step,
                                            .started_ns = r->start_ns};
    const uint32_t *heard = v->hearers.cranks;
    int code = trees
                   ? crystal_trees_send(trees, &m, r->data, r->bytes, &v->hearers, err)
                   : -err->code;

    if (code)
        return code;
    for (uint32_t i = 0; heard != v->hearers.cranks && i < v->feed_count; i++)
        if (v->feed_fds[i] >= 0) { /* those of the other tree */
            (void)close(v->feed_fds[i]);
            v->feed_fds[i] = -1;
        }
    code = feeds_make(v, v->hearers.count, err);
    if (code)
        return code;
    v->fed = 0;
    v->is_feeding = 1;
    v->out =
        feed_head(v, r, CRYSTAL_FEED_TREE, v->hearers.message_count, r->data != NULL);
    return 0;
}

static int send_tree(struct virtual_end *v, const struct crystal_net_request *r,
                     struct crystal_error *err)
{
    int code = v->is_feeding ? 0 : tree_begin(v, r, err);

    for (; !code && v->fed < v->hearers.count; v->fed++) {
        int written =
            feed_write(v, r, &v->feed_fds[v->fed], v->hearers.cranks[v->fed], err);

        if (written <= 0)
            return written;
    }
    v->is_feeding = 0;
    return code ? code : 1;
}

static int send_pat(struct virtual_end *v, struct crystal_net_request *r,
                    struct crystal_error *err)
{
    struct crystal_pats *pats = crystal_virtual_pats(v->base.comm, err);
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
    struct crystal_vt_sent sent = {r->start_ns, r->bytes};
    const struct crystal_ring_place *place;
    uint64_t count;
    int code = crystal_virtual_ring(v, r, err), is_passed;

    if (code <= 0)
        return code;
    place = v->ring.place;
    count = v->ring.heard;
    code = v->written ? 0 : schedule_check(r, &v->ring, err);
    if (code)
        return code;
    if (r->id.step >= count)
        return 1; /* nobody behind the run hears of it */
    is_passed = r->data && crystal_line_is_passed(&v->ring.path, r->id.step);
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
        v->out = feed_head(v, r, CRYSTAL_FEED_MAGIC, count, is_passed);
    code = feeds_make(v, 1, err);
    return code ? code : feed_write(v, r, v->feed_fds, place->receiver, err);
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
        return crystal_virtual_refuse(r->id.operation, err);
    }
}

static int send_transfer(struct crystal_net_request *r)
{
    uint64_t partner_ns = crystal_operation_partner_ns(r->id.operation);
    uint64_t done_ns = partner_ns + (r->due_ns - r->start_ns); /* it takes as long */

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
        code = v->wire.assist ? crystal_virtual_give(v, err) : 1;
        if (code > 0)
            code =
                r->id.operation->is_p2p ? send_transfer(r) : send_collective(v, r, err);
        if (code > 0)
            crystal_net_queue_pop(end, r->due_ns);
    }
    return code < 0 ? crystal_virtual_stop(end, code, err) : 0;
}

/* Of what this rank sends, virtual ranks need what comes back to a real one. */
static int send_needs(struct crystal_net_end *end, const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;
    struct virtual_end *v = (struct virtual_end *)end;

    if (!op || v->wire.assist)
        return 1;
    if (op->is_p2p || !crystal_payload_is_valued(op))
        return 0;
    if (op->algo != CRYSTAL_ALGO_RING)
        return 1;
    if (r->is_own || crystal_virtual_ring(v, r, NULL) <= 0)
        return 1;
    return crystal_line_is_passed(&v->ring.path, r->id.step);
}

const struct crystal_net_end_ops crystal_virtual_send_ops = {
    .name = "virtual send",
    .has_rooms = 1,
    .start = virtual_start_send,
    .progress = send_progress,
    .close = crystal_virtual_close,
    .needs = send_needs};
