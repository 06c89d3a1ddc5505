/* Ends whose other side is a virtual rank: nothing of theirs touches the network.
 *
 * A receive gets what virtual ranks would have sent, when it would have come
 * (collectives: virtual_line.h for rings, virtual_tree.h, virtual_pat.h;
 * point-to-point: virtual_transfer.c). virtual_send.c is the sending side.
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
#include "runtime/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int crystal_virtual_stop(const struct crystal_net_end *end, int code,
                         struct crystal_error *err)
{
    crystal_net_stop(end->comm->module, "rank %u: %s", end->comm->module->lrank,
                     crystal_error_text(err));
    return code;
}

int crystal_virtual_check(const struct crystal_net_end *end,
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

/* Fills in what is the same for all messages of the operation. */
static void ring_fill(struct virtual_end *v, const struct crystal_net_request *r,
                      const struct crystal_ring_place *place)
{
    const struct crystal_operation *op = r->id.operation;
    const uint32_t receiver = crystal_ring_place_of(place, place->receiver);
    struct virtual_ring *ring = &v->ring;

    ring->op = (struct crystal_ring_op){
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
    ring->place = place;
    ring->count = crystal_ring_message_count(&ring->op, place->place, v->base.is_send);
    if (v->base.is_send) {
        crystal_vt_path(&ring->op, receiver, place->run_behind, &ring->path);
        ring->heard = crystal_vt_sent_count(
            &ring->path, crystal_ring_message_count(&ring->op, receiver, 0));
    }
}

int crystal_virtual_ring(struct virtual_end *v, const struct crystal_net_request *r,
                         struct crystal_error *err)
{
    struct crystal_operation *op = r->id.operation;
    const uint32_t generation =
        atomic_load_explicit(&op->generation, memory_order_relaxed);
    const struct crystal_ring_place *place;
    int code;

    if (v->ring.of == op && v->ring.generation == generation &&
        v->ring.op.channel == r->id.channel)
        return 1;
    code = crystal_rings_place(v->base.comm->rings, r->id.channel, &place, err);
    if (code <= 0)
        return code;
    ring_fill(v, r, place);
    v->ring.of = op;
    v->ring.generation = generation;
    return 1;
}

struct crystal_trees *crystal_virtual_trees(struct crystal_net_comm *comm,
                                            struct crystal_error *err)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (!comm->trees)
        comm->trees = crystal_trees_create(comm, atomic_load(&comm->board), err);
    (void)pthread_mutex_unlock(&comm->lock);
    return comm->trees;
}

struct crystal_pats *crystal_virtual_pats(struct crystal_net_comm *comm,
                                          struct crystal_error *err)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (!comm->pats)
        comm->pats = crystal_pats_create(comm, atomic_load(&comm->board), err);
    (void)pthread_mutex_unlock(&comm->lock);
    return comm->pats;
}

int crystal_virtual_refuse(const struct crystal_operation *op,
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

int crystal_virtual_done(struct virtual_end *v, struct crystal_net_request *r,
                         uint64_t arrive_ns, uint64_t free_ns, uint64_t bytes,
                         struct crystal_error *err)
{
    struct crystal_net_module *module = v->base.comm->module;
    const struct crystal_wire *wire = &module->wire;
    const uint64_t occupy_ns = crystal_wire_occupy_ns(wire, bytes);
    uint64_t link_free_ns = v->link_free_ns, now_ns, without_ns, due_ns;

    if (v->wire.assist) {
        int code = crystal_virtual_ask(v, r, arrive_ns, free_ns, bytes, err);

        return code ? code : 1;
    }
    without_ns = crystal_vt_deliver(wire, free_ns, r->posted_ns, bytes, &link_free_ns);
    due_ns = crystal_vt_deliver(wire, arrive_ns, r->posted_ns, bytes, &v->link_free_ns);
    if (due_ns > without_ns)
        crystal_operation_waited(r->id.operation, without_ns, due_ns);
    due_ns =
        crystal_link_take(&module->links[v->base.nic], due_ns - occupy_ns, occupy_ns);
    if (r->asked) {
        now_ns = crystal_now_ns();
        crystal_operation_late(r->id.operation, due_ns, now_ns);
    }
    r->got = bytes;
    crystal_net_queue_pop(&v->base, due_ns);
    return 1;
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
    const uint64_t news = crystal_lines_news(comm->lines, r->id.channel);
    int code;

    if (v->wanted == news + 1 && !crystal_wait_sleeps())
        return 0;
    code = crystal_virtual_ring(v, r, err);
    if (code <= 0)
        return code;
    if (r->room && !v->wire.assist) /* else it is written to by what arrives */
        next.room = &r->room;
    arrivals.place = next.place = v->ring.place;
    next.recipe = v->wire.recipe;
    next.is_kept =
        v->wire.assist && crystal_virtual_is_shared(v, v->ring.place->sender);
    next.ring = v->ring.op;
    next.count = v->ring.count;
    if (next.index >= next.count)
        return crystal_error_set(err, EPROTO,
                                 "message %llu of an operation that has %llu by the "
                                 "ring's schedule",
                                 (unsigned long long)next.index,
                                 (unsigned long long)next.count);
    code = crystal_lines_take(comm->lines, &next, r->data, r->bytes, ret_bytes,
                              ret_arrive_ns, ret_free_ns, err);
    v->wanted = code ? 0 : news + 1;
    return code;
}

static int take_tree(struct virtual_end *v, struct crystal_net_request *r,
                     const struct crystal_board_cell *cells, uint64_t *ret_bytes,
                     uint64_t *ret_arrive_ns, uint64_t *ret_free_ns,
                     struct crystal_error *err)
{
    struct crystal_trees *trees = crystal_virtual_trees(v->base.comm, err);
    struct crystal_tree_transfer m = {.op = r->id.operation,
                                      .channel = r->id.channel,
                                      .peer = v->base.peer_crank,
                                      .index = r->id.step,
                                      .step = r->step,
                                      .cells = cells,
                                      .recipe = v->wire.recipe};

    return trees ? crystal_trees_take(trees, &m, r->data, r->bytes, ret_bytes,
                                      ret_arrive_ns, ret_free_ns, err)
                 : -err->code;
}

static int take_pat(struct virtual_end *v, struct crystal_net_request *r,
                    const struct crystal_board_cell *cells, uint64_t *ret_bytes,
                    uint64_t *ret_arrive_ns, struct crystal_error *err)
{
    struct crystal_pats *pats = crystal_virtual_pats(v->base.comm, err);
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

    crystal_recipe_spoil(v->wire.recipe);
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
        code = crystal_virtual_refuse(r->id.operation, err);
    }
    return code > 0 ? crystal_virtual_done(v, r, arrive_ns, free_ns, bytes, err) : code;
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
    int code = crystal_virtual_check(end, r, err);

    if (code)
        return crystal_virtual_stop(end, code, err);
    r->step = connection_step(v, r);
    return 0;
}

static int recv_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    struct virtual_end *v = (struct virtual_end *)end;
    struct crystal_net_request *r;
    int code = 1;

    while (code > 0 && (r = crystal_net_queue_first(end)))
        code = r->id.operation->is_p2p ? crystal_virtual_transfer(v, r, err)
                                       : receive_collective(v, r, err);
    if (code >= 0 && v->wire.assist)
        code = crystal_virtual_asked(v, err);
    return code < 0 ? crystal_virtual_stop(end, code, err) : 0;
}

/* --- making and closing --- */

static int recv_needs(struct crystal_net_end *end, const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;

    (void)end;
    return !op || crystal_payload_is_valued(op) ||
           (!op->is_p2p && op->proto != CRYSTAL_PROTO_SIMPLE);
}

void crystal_virtual_close(struct crystal_net_end *end)
{
    struct virtual_end *v = (struct virtual_end *)end;

    for (uint32_t i = 0; i < v->feed_count; i++)
        if (v->feed_fds[i] >= 0)
            (void)close(v->feed_fds[i]); /* what was written arrives */
    free(v->feed_fds);
    crystal_assist_close(v->wire.assist);
    for (unsigned i = 0; i < CRYSTAL_NET_REQUESTS; i++)
        free(v->wire.places[i]);
    free(v->wire.recipe);
    free(v);
}

static const struct crystal_net_end_ops virtual_recv_ops = {.name = "virtual receive",
                                                            .has_rooms = 1,
                                                            .start = virtual_start_recv,
                                                            .progress = recv_progress,
                                                            .close =
                                                                crystal_virtual_close,
                                                            .needs = recv_needs};

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
    v->base.ops = is_send ? &crystal_virtual_send_ops : &virtual_recv_ops;
    v->base.context = context;
    v->base.comm = context->comm;
    v->base.is_send = is_send;
    v->base.peer_crank = peer_crank;
    if (context->comm->module->has_assistant) {
        v->wire.is_shared = -1;
        v->wire.assist = crystal_assist_open(context->comm->module, err);
        v->wire.recipe = is_send ? NULL : calloc(1, sizeof *v->wire.recipe);
        if (!v->wire.assist || (!is_send && !v->wire.recipe)) {
            if (v->wire.assist)
                (void)crystal_error_set(err, ENOMEM, "out of memory for a connection");
            crystal_virtual_close(&v->base);
            return NULL;
        }
        if (v->wire.recipe)
            v->wire.recipe->graph = context->comm->module->graph;
    }
    return &v->base;
}
