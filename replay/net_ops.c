/* Pools of events. See net_ops.h. A place is taken by comparing and exchanging its
 * in-use word, so any thread may start and stop events; what is behind a place is
 * written before its handle is given out.
 */
#include "config.h"

#include "replay/net_ops.h"

#include "replay/net.h"
#include "runtime/clock.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* handle: generation 24 | kind 3 | communicator 13 | place 24 */
enum event_kind { EVENT_CALL = 1, EVENT_OPERATION, EVENT_PROXY, EVENT_STEP };
#define PLACE_BITS      24
#define COMM_BITS       13
#define GENERATION_MASK 0xffffffU

_Static_assert(CRYSTAL_NET_COMMS <= 1 << COMM_BITS, "fits the handle");

static crystal_event_handle pack(const struct crystal_net_comm *comm,
                                 enum event_kind kind, uint64_t place,
                                 uint32_t generation)
{
    return (uint64_t)generation << 40 | (uint64_t)kind << 37 |
           (uint64_t)comm->index << PLACE_BITS | place;
}

static enum event_kind kind_of(crystal_event_handle handle)
{
    return (enum event_kind)(handle >> 37 & 7);
}

static uint32_t place_of(crystal_event_handle handle)
{
    return (uint32_t)handle & ((1U << PLACE_BITS) - 1);
}

static uint32_t generation_of(crystal_event_handle handle)
{
    return (uint32_t)(handle >> 40);
}

static struct crystal_net_comm *comm_of(crystal_event_handle handle)
{
    return crystal_net_comm_at((uint32_t)(handle >> PLACE_BITS) &
                               ((1U << COMM_BITS) - 1));
}

static uint32_t generation_next(struct crystal_ops *ops)
{
    uint32_t generation;

    do {
        generation =
            (atomic_fetch_add_explicit(&ops->generation, 1, memory_order_relaxed) + 1) &
            GENERATION_MASK;
    } while (!generation);
    return generation;
}

static uint32_t clamp(uint64_t value, uint32_t low, uint32_t high)
{
    return value < low ? low : value > high ? high : (uint32_t)value;
}

int crystal_ops_init(struct crystal_ops *ops, uint32_t nranks)
{
    /* the generation goes on where the last user of this object stopped */
    ops->call_count = clamp(4 * (uint64_t)nranks, 1024, 65536);
    ops->operation_count = clamp(4 * (uint64_t)nranks, 1024, 65536);
    ops->proxy_count = clamp(8 * (uint64_t)nranks, 2048, 65536);
    ops->nranks = nranks;
    ops->calls = calloc(ops->call_count, sizeof *ops->calls);
    ops->operations = calloc(ops->operation_count, sizeof *ops->operations);
    ops->proxies = calloc(ops->proxy_count, sizeof *ops->proxies);
    ops->peer_seq = calloc(4 * (size_t)nranks, sizeof *ops->peer_seq);
    if (!ops->calls || !ops->operations || !ops->proxies || !ops->peer_seq) {
        crystal_ops_fini(ops);
        return -ENOMEM;
    }
    return 0;
}

void crystal_ops_fini(struct crystal_ops *ops)
{
    uint32_t generation = atomic_load(&ops->generation);

    free(ops->calls);
    free(ops->operations);
    free(ops->proxies);
    free((void *)ops->peer_seq);
    memset(ops, 0, sizeof *ops);
    atomic_store(&ops->generation, generation);
}

static void lose(struct crystal_net_comm *comm, const char *what)
{
    if (atomic_fetch_add(&comm->ops.lost, 1) == 0)
        crystal_log(CRYSTAL_LOG_WARNING, "net",
                    "communicator %016llx: an event of %s has no place or comes too "
                    "late, ignoring it and counting further ones",
                    (unsigned long long)comm->comm_id, what);
}

static int is_ring(uint32_t func)
{
    return func >= CRYSTAL_FUNC_BROADCAST && func <= CRYSTAL_FUNC_ALLREDUCE;
}

crystal_event_handle crystal_ops_call(struct crystal_net_comm *comm, uint32_t func,
                                      uint32_t dtype, uint64_t count)
{
    struct crystal_ops *ops = &comm->ops;
    uint32_t generation = generation_next(ops), place;
    struct crystal_api_call *call;

    if (!ops->calls)
        return 0;
    place = (uint32_t)(atomic_fetch_add(&ops->call_next, 1) % ops->call_count);
    call = &ops->calls[place];
    atomic_store(&call->generation, 0);
    call->func = (uint8_t)func;
    call->dtype = (uint8_t)dtype;
    call->count = count;
    call->order = atomic_fetch_add(&comm->module->order, 1);
    call->api_ns = crystal_now_ns();
    if (is_ring(func))
        call->seq = atomic_fetch_add(&ops->coll_seq, 1);
    atomic_store(&ops->has_calls, 1);
    atomic_store(&call->generation, generation);
    return pack(comm, EVENT_CALL, place, generation);
}

/* The call behind a handle, copied; 0 if it is gone or was never told. */
static int call_find(struct crystal_net_comm *comm, crystal_event_handle handle,
                     struct crystal_api_call *ret)
{
    struct crystal_api_call *call;

    if (kind_of(handle) != EVENT_CALL || comm_of(handle) != comm ||
        place_of(handle) >= comm->ops.call_count)
        return 0;
    call = &comm->ops.calls[place_of(handle)];
    if (atomic_load(&call->generation) != generation_of(handle))
        return 0;
    memcpy(ret, call, sizeof *ret);
    return atomic_load(&call->generation) == generation_of(handle);
}

/* A place whose operation is over, zeroed but for its generation word; NULL if all are
 * alive. */
static struct crystal_operation *operation_take(struct crystal_net_comm *comm)
{
    struct crystal_ops *ops = &comm->ops;

    for (uint32_t i = 0; i < ops->operation_count; i++) {
        uint64_t next = atomic_fetch_add(&ops->operation_next, 1);
        struct crystal_operation *op = &ops->operations[next % ops->operation_count];
        uint32_t nobody = 0;

        if (!atomic_compare_exchange_strong(&op->live, &nobody, 1))
            continue;
        atomic_store(&op->generation, 0);
        if (op->comm && !atomic_load(&op->finished))
            crystal_operation_finish(op); /* its messages never came */
        memset((char *)op + offsetof(struct crystal_operation, comm), 0,
               sizeof *op - offsetof(struct crystal_operation, comm));
        op->comm = comm;
        return op;
    }
    lose(comm, "an operation");
    return NULL;
}

/* Everything is filled in: from now on the handle finds it. */
static crystal_event_handle operation_give(struct crystal_operation *op)
{
    struct crystal_ops *ops = &op->comm->ops;
    uint32_t generation = generation_next(ops);

    op->start_ns = crystal_now_ns();
    if (!op->api_ns)
        op->api_ns = op->start_ns;
    atomic_store(&op->generation, generation);
    crystal_operation_begin(op);
    return pack(op->comm, EVENT_OPERATION, (uint64_t)(op - ops->operations),
                generation);
}

/* Order, time and exact numbers of the API call where it was told. Returns whether. */
static int operation_call(struct crystal_operation *op, crystal_event_handle handle)
{
    struct crystal_api_call call;

    if (!call_find(op->comm, handle, &call)) {
        op->order = atomic_fetch_add(&op->comm->module->order, 1);
        if (handle)
            lose(op->comm, "an API call");
        return 0;
    }
    op->order = call.order;
    op->api_ns = call.api_ns;
    op->api_func = call.func;
    op->dtype = call.dtype;
    op->seq = call.seq;
    op->count = call.count;
    return 1;
}

crystal_event_handle crystal_ops_coll(struct crystal_net_comm *comm,
                                      crystal_event_handle call,
                                      const struct crystal_coll_facts *facts)
{
    struct crystal_operation *op;

    if (!comm->ops.operations || !is_ring(facts->func) ||
        (facts->root >= comm->ops.nranks && facts->root))
        return 0;
    op = operation_take(comm);
    if (!op)
        return 0;
    op->func = op->api_func = (uint8_t)facts->func;
    op->dtype = (uint8_t)facts->dtype;
    op->count = facts->count;
    op->root = facts->root;
    op->channel_count = facts->channel_count;
    op->algo = (uint8_t)facts->algo;
    op->proto = (uint8_t)facts->proto;
    if (!operation_call(op, call)) {
        if (atomic_load(&comm->ops.has_calls)) { /* its number cannot be known */
            lose(comm, "a collective");
            atomic_store(&op->finished, 1);
            atomic_store(&op->live, 0);
            return 0;
        }
        op->seq = atomic_fetch_add(&comm->ops.coll_seq, 1);
    }
    op->graph_seq = op->seq;
    op->elt_bytes = crystal_dtype_bytes(op->dtype);
    return operation_give(op);
}

crystal_event_handle crystal_ops_p2p(struct crystal_net_comm *comm,
                                     crystal_event_handle call, uint32_t func,
                                     uint32_t dtype, uint64_t count, uint32_t peer,
                                     uint32_t channel_count)
{
    struct crystal_operation *op;
    uint64_t at = peer + (func == CRYSTAL_FUNC_RECV ? (uint64_t)comm->ops.nranks : 0);

    if (!comm->ops.operations || peer >= comm->ops.nranks ||
        (func != CRYSTAL_FUNC_SEND && func != CRYSTAL_FUNC_RECV))
        return 0;
    op = operation_take(comm);
    if (!op)
        return 0;
    op->func = op->api_func = (uint8_t)func;
    op->is_p2p = 1;
    op->peer = peer;
    op->channel_count = channel_count;
    (void)operation_call(op, call); /* without it: order of the transfers */
    op->dtype = (uint8_t)dtype;
    op->count = count; /* of this transfer; an all-to-all's call has another */
    op->elt_bytes = crystal_dtype_bytes(op->dtype);
    op->seq = op->graph_seq = atomic_fetch_add(&comm->ops.peer_seq[at], 1);
    return operation_give(op);
}

static struct crystal_operation *operation_find(crystal_event_handle handle)
{
    struct crystal_net_comm *comm = comm_of(handle);
    struct crystal_operation *op;

    if (kind_of(handle) != EVENT_OPERATION || !comm || !comm->ops.operations ||
        place_of(handle) >= comm->ops.operation_count)
        return NULL;
    op = &comm->ops.operations[place_of(handle)];
    return atomic_load(&op->generation) == generation_of(handle) ? op : NULL;
}

/* One of its events has stopped. The last one records the end; a caller whose
 * operations stop before their messages start is over when the messages are. */
static void operation_release(struct crystal_operation *op)
{
    uint32_t live = atomic_load(&op->live);

    do {
        if (live == 1 && atomic_load(&op->has_stopped) &&
            (atomic_load(&op->proxies) || op->comm->ops.nranks == 1 ||
             (op->is_p2p && op->peer == op->comm->crank)) &&
            !atomic_exchange(&op->finished, 1))
            crystal_operation_finish(op);
    } while (!atomic_compare_exchange_weak(&op->live, &live, live - 1));
}

crystal_event_handle crystal_ops_proxy(crystal_event_handle operation, uint32_t channel,
                                       uint32_t peer, uint32_t message_count,
                                       int is_send)
{
    struct crystal_operation *op = operation_find(operation);
    struct crystal_net_comm *comm = comm_of(operation);
    struct crystal_ops *ops;

    if (!op || channel >= CRYSTAL_NET_CHANNELS) {
        if (operation && comm && comm->ops.operations)
            lose(comm, "a proxy operation");
        return 0;
    }
    ops = &comm->ops;
    (void)atomic_fetch_add(&op->live, 1);
    /* between the look and the count it may have gone: look again */
    if (operation_find(operation) != op) {
        (void)atomic_fetch_sub(&op->live, 1);
        lose(comm, "a proxy operation");
        return 0;
    }
    for (uint32_t i = 0; i < ops->proxy_count; i++) {
        uint32_t place =
            (uint32_t)(atomic_fetch_add(&ops->proxy_next, 1) % ops->proxy_count);
        struct crystal_proxy_op *proxy = &ops->proxies[place];
        uint32_t nobody = 0, generation;

        if (!atomic_compare_exchange_strong(&proxy->in_use, &nobody, 1))
            continue;
        (void)atomic_fetch_add(&op->proxies, 1);
        generation = generation_next(ops);
        proxy->operation = op;
        proxy->channel = channel;
        proxy->peer = peer;
        proxy->message_count = message_count;
        proxy->is_send = is_send ? 1 : 0;
        if (op->is_p2p) {
            (void)atomic_fetch_or(&op->channels, UINT64_C(1) << channel);
            (void)atomic_fetch_or(&ops->p2p_channels, UINT64_C(1) << channel);
        }
        atomic_store(&proxy->generation, generation);
        return pack(comm, EVENT_PROXY, place, generation);
    }
    (void)atomic_fetch_sub(&op->live, 1);
    lose(comm, "a proxy operation");
    return 0;
}

static struct crystal_proxy_op *proxy_find(crystal_event_handle handle,
                                           enum event_kind kind, uint32_t place)
{
    struct crystal_net_comm *comm = comm_of(handle);
    struct crystal_proxy_op *proxy;

    if (kind_of(handle) != kind || !comm || !comm->ops.proxies ||
        place >= comm->ops.proxy_count)
        return NULL;
    proxy = &comm->ops.proxies[place];
    return atomic_load(&proxy->generation) == generation_of(handle) ? proxy : NULL;
}

/* A step's place is its proxy operation's place times CRYSTAL_NET_STEPS plus its own.
 */
_Static_assert(65536U * CRYSTAL_NET_STEPS <= 1U << PLACE_BITS, "fits the handle");

crystal_event_handle crystal_ops_step(crystal_event_handle proxy, uint32_t step)
{
    uint32_t place = place_of(proxy), slot = step % CRYSTAL_NET_STEPS;
    struct crystal_proxy_op *p = proxy_find(proxy, EVENT_PROXY, place);

    if (!p)
        return 0;
    p->steps[slot] = step;
    return pack(comm_of(proxy), EVENT_STEP, (uint64_t)place * CRYSTAL_NET_STEPS + slot,
                generation_of(proxy));
}

void crystal_ops_stop(crystal_event_handle event)
{
    struct crystal_operation *op;
    struct crystal_proxy_op *proxy;

    switch (kind_of(event)) {
    case EVENT_OPERATION:
        op = operation_find(event);
        if (op && !atomic_exchange(&op->has_stopped, 1))
            operation_release(op);
        break;
    case EVENT_PROXY:
        proxy = proxy_find(event, EVENT_PROXY, place_of(event));
        if (!proxy)
            break;
        op = proxy->operation;
        atomic_store(&proxy->generation, 0);
        atomic_store(&proxy->in_use, 0);
        operation_release(op);
        break;
    default:
        break; /* calls and steps have nothing to give back */
    }
}

void crystal_ops_identify(crystal_event_handle step, struct crystal_message_id *ret)
{
    uint32_t place = place_of(step);
    struct crystal_proxy_op *proxy =
        proxy_find(step, EVENT_STEP, place / CRYSTAL_NET_STEPS);

    memset(ret, 0, sizeof *ret);
    if (!proxy)
        return;
    ret->operation = proxy->operation;
    ret->channel = proxy->channel;
    ret->message_count = proxy->message_count;
    ret->step = proxy->steps[place % CRYSTAL_NET_STEPS];
}
