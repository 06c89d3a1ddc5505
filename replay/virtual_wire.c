/* Ends whose other side is a virtual rank, where the wire is real: how long a message
 * takes is what the network takes between this process and an assistant. What it is
 * made of, and when its sender begins, is as on the modelled wire.
 */
#include "config.h"

#include "replay/virtual_end_internal.h"

#include "replay/net.h"
#include "replay/net_assist.h"
#include "runtime/clock.h"

/* --- receiving --- */

/* When a message begins its last hop that could be here at arrive_ns. */
static uint64_t begin_of(uint64_t arrive_ns, uint64_t hop_ns, uint64_t posted_ns)
{
    return arrive_ns > posted_ns + hop_ns ? arrive_ns - hop_ns : posted_ns;
}

int crystal_virtual_ask(struct virtual_end *v, struct crystal_net_request *r,
                        uint64_t arrive_ns, uint64_t free_ns, uint64_t bytes,
                        struct crystal_error *err)
{
    const struct crystal_wire *wire = &v->base.comm->module->wire;
    const uint64_t hop_ns = crystal_vt_hop_ns(wire, bytes);
    const uint64_t begin_ns = begin_of(arrive_ns, hop_ns, r->posted_ns);
    const uint64_t without_ns = begin_of(free_ns, hop_ns, r->posted_ns);

    if (begin_ns > without_ns)
        crystal_operation_waited(r->id.operation, without_ns, begin_ns);
    r->got = bytes;
    crystal_net_queue_pop(&v->base, 0);
    r->state = CRYSTAL_REQUEST_BUSY;
    v->wire.asked[v->wire.ask_head++ % CRYSTAL_NET_REQUESTS] = r;
    return crystal_assist_ask(v->wire.assist, bytes, begin_ns, err);
}

int crystal_virtual_asked(struct virtual_end *v, struct crystal_error *err)
{
    struct virtual_wire *wire = &v->wire;
    int code = 1;

    while (wire->ask_tail < wire->ask_head) {
        struct crystal_net_request *r =
            wire->asked[wire->ask_tail % CRYSTAL_NET_REQUESTS];

        code = crystal_assist_answer(wire->assist, &r->due_ns, err);
        if (code <= 0)
            break;
        r->state = CRYSTAL_REQUEST_MOVED;
        wire->ask_tail++;
    }
    return code < 0 ? code : 0;
}

/* --- sending --- */

/* Gives as many requests away as the socket takes. */
static int give_all(struct virtual_end *v, struct crystal_error *err)
{
    struct crystal_net_end *end = &v->base;
    struct virtual_wire *wire = &v->wire;
    const struct crystal_net_request *r;

    while ((r = crystal_net_queue_at(end, (unsigned)(wire->given - end->tail)))) {
        int code;

        if (wire->begun == wire->given)
            wire->begin_ns[wire->begun++ % CRYSTAL_NET_REQUESTS] = crystal_now_ns();
        code = crystal_assist_give(wire->assist, r->data, r->bytes, err);
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
