/* Ends whose other side is a virtual rank, where the wire is real: how long a message
 * takes is what the network takes between this process and an assistant. What it is
 * made of, and when its sender begins, is as on the modelled wire.
 */
#include "config.h"

#include "replay/virtual_end_internal.h"

#include "replay/net.h"
#include "replay/net_assist.h"
#include "replay/net_payload.h"
#include "replay/node_places.h"
#include "replay/virtual_line.h"
#include "runtime/clock.h"
#include "runtime/wire_form.h"

#include <errno.h>
#include <stdlib.h>

int crystal_virtual_is_shared(struct virtual_end *v, uint32_t crank)
{
    const struct crystal_net_comm *comm = v->base.comm;
    const struct crystal_net_module *module = comm->module;
    struct virtual_wire *wire = &v->wire;
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    struct crystal_msg_node other;
    const uint32_t *members;

    if (crank == comm->crank)
        return 1;
    if (wire->is_shared >= 0 && wire->partner == crank)
        return wire->is_shared;
    members = crystal_board_members(module->board, atomic_load(&comm->board));
    wire->partner = crank;
    wire->is_shared =
        crystal_places_assistant(crystal_board_directory(module->board), members[crank],
                                 &other, token, NULL) > 0 &&
        other.node == module->assistant.node;
    return wire->is_shared;
}

/* --- receiving --- */

/* The form in which a message's bytes are on the wire. */
static enum crystal_proto proto_of(const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;

    return op->is_p2p ? CRYSTAL_PROTO_SIMPLE : (enum crystal_proto)op->proto;
}

/* When a message begins its last hop that could be here at arrive_ns. */
static uint64_t begin_of(uint64_t arrive_ns, uint64_t hop_ns, uint64_t posted_ns)
{
    return arrive_ns > posted_ns + hop_ns ? arrive_ns - hop_ns : posted_ns;
}

/* What is asked for, and where it goes: what has flags does not go where the receiver
 * sees it before it is complete. */
static int ask_fill(struct virtual_end *v, const struct crystal_net_request *r,
                    struct crystal_assist_ask *ask, struct crystal_error *err)
{
    void **place = &v->wire.places[v->wire.ask_head % CRYSTAL_NET_REQUESTS];

    if (!r->data || !ask->bytes || !crystal_payload_is_valued(r->id.operation))
        return 0; /* nobody looks at it */
    v->wire.recipe->source.proto = proto_of(r);
    v->wire.recipe->source.step = r->step;
    ask->recipe = v->wire.recipe;
    ask->given = ask->to = r->data;
    if (proto_of(r) == CRYSTAL_PROTO_SIMPLE)
        return 0;
    ask->to = *place = malloc(ask->bytes);
    return ask->to ? 0 : crystal_error_set(err, ENOMEM, "out of memory for a message");
}

int crystal_virtual_ask(struct virtual_end *v, struct crystal_net_request *r,
                        uint64_t arrive_ns, uint64_t free_ns, uint64_t bytes,
                        struct crystal_error *err)
{
    const struct crystal_wire *wire = &v->base.comm->module->wire;
    const uint64_t hop_ns = crystal_vt_hop_ns(wire, bytes);
    const uint64_t without_ns = begin_of(free_ns, hop_ns, r->posted_ns);
    struct crystal_assist_ask ask = {
        .bytes = bytes, .begin_ns = begin_of(arrive_ns, hop_ns, r->posted_ns)};
    int code = ask_fill(v, r, &ask, err);

    if (code)
        return code;
    if (ask.begin_ns > without_ns)
        crystal_operation_waited(r->id.operation, without_ns, ask.begin_ns);
    r->got = bytes;
    crystal_net_queue_pop(&v->base, 0);
    r->state = CRYSTAL_REQUEST_BUSY;
    v->wire.asked[v->wire.ask_head++ % CRYSTAL_NET_REQUESTS] = r;
    return crystal_assist_ask(v->wire.assist, &ask, err);
}

int crystal_virtual_asked(struct virtual_end *v, struct crystal_error *err)
{
    struct virtual_wire *wire = &v->wire;
    int code = 1;

    while (wire->ask_tail < wire->ask_head) {
        const uint64_t at = wire->ask_tail % CRYSTAL_NET_REQUESTS;
        struct crystal_net_request *r = wire->asked[at];

        code = crystal_assist_answer(wire->assist, &r->due_ns, err);
        if (code <= 0)
            break;
        if (wire->places[at])
            crystal_form_repack(proto_of(r), r->step, wire->places[at], r->got,
                                r->data);
        free(wire->places[at]);
        wire->places[at] = NULL;
        r->state = CRYSTAL_REQUEST_MOVED;
        wire->ask_tail++;
    }
    return code < 0 ? code : 0;
}

/* --- sending --- */

/* Of a ring's message that virtual ranks pass on to a real rank of the same assistant:
 * that it is to be kept. 1 ret is filled or not, 0 the rings are not known yet,
 * negative errno. */
static int source_find(struct virtual_end *v, const struct crystal_net_request *r,
                       struct crystal_assist_source *ret, struct crystal_error *err)
{
    const struct crystal_operation *op = r->id.operation;
    struct crystal_ring_message m;
    int code;

    *ret = (struct crystal_assist_source){.nranks = 1};
    if (op->is_p2p || op->algo != CRYSTAL_ALGO_RING || !r->data ||
        !crystal_payload_is_valued(op))
        return 1;
    code = crystal_virtual_ring(v, r, err);
    if (code <= 0)
        return code;
    if (r->id.step >= v->ring.heard || r->id.step >= v->ring.count ||
        !crystal_line_is_passed(&v->ring.path, r->id.step) ||
        !crystal_virtual_is_shared(v, v->ring.place->receiver))
        return 1;
    crystal_ring_message(&v->ring.op, v->ring.place->place, 1, r->id.step, &m);
    ret->data_bytes = (uint64_t)m.elts * v->ring.op.elt_bytes;
    ret->proto = proto_of(r);
    if (crystal_form_bytes(proto_of(r), ret->data_bytes) != r->bytes)
        return 1; /* send_ring says what is wrong with it */
    ret->flags = CRYSTAL_ASSIST_KEPT;
    ret->key = (struct crystal_assist_key){.comm_id = v->base.comm->comm_id,
                                           .seq = op->seq,
                                           .index = r->id.step,
                                           .channel = r->id.channel,
                                           .crank = v->base.comm->crank};
    return 1;
}

/* Gives as many requests away as the socket takes. */
static int give_all(struct virtual_end *v, struct crystal_error *err)
{
    struct crystal_net_end *end = &v->base;
    struct virtual_wire *wire = &v->wire;
    const struct crystal_net_request *r;

    while ((r = crystal_net_queue_at(end, (unsigned)(wire->given - end->tail)))) {
        struct crystal_assist_source source;
        int code = source_find(v, r, &source, err);

        if (code <= 0)
            return code;

        if (wire->begun == wire->given)
            wire->begin_ns[wire->begun++ % CRYSTAL_NET_REQUESTS] = crystal_now_ns();
        code = crystal_assist_give(wire->assist, r->data, r->bytes, &source, err);
        if (code <= 0)
            return code;
        wire->given++;
    }
    return 0;
}

int crystal_virtual_give(struct virtual_end *v, struct crystal_error *err)
{
    struct crystal_net_end *end = &v->base;
    struct virtual_wire *wire = &v->wire;
    const uint64_t at = end->tail % CRYSTAL_NET_REQUESTS;
    struct crystal_net_request *r;
    uint64_t hop_ns;
    int code = give_all(v, err);

    while (!code && wire->taken < wire->given) {
        code = crystal_assist_answer(
            wire->assist, &wire->taken_ns[wire->taken % CRYSTAL_NET_REQUESTS], err);
        if (code <= 0)
            break;
        wire->taken++;
        code = 0;
    }
    if (code < 0 || wire->taken == end->tail)
        return code;
    r = crystal_net_queue_first(end);
    r->due_ns = wire->taken_ns[at];
    if (r->id.operation->is_p2p) {
        r->start_ns = wire->begin_ns[at];
        return 1;
    }
    /* the virtual rank has it now: as if it had left so long ago on the modelled wire
     */
    hop_ns = crystal_vt_hop_ns(&end->comm->module->wire, r->bytes);
    r->start_ns = r->due_ns > hop_ns ? r->due_ns - hop_ns : 1;
    return 1;
}
