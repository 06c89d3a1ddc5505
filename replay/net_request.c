/* Requests: taking one, starting it, asking whether it is done. What is the same for
 * all kinds of ends. */
#include "config.h"

#include "replay/net.h"

#include "replay/net_copy.h"
#include "replay/net_messages.h"
#include "replay/net_rings.h"
#include "replay/virtual_line.h"
#include "replay/wait_list.h"
#include "runtime/clock.h"
#include "runtime/log.h"

#include <errno.h>
#include <string.h>

#define WAITING_NS 3000000000U
#define WAITING_POLLS \
    1024U /* of a thread that does not sleep, to a look at the clock */

/* The time that this thread has seen: what was due by then needs no look at the clock.
 */
static _Thread_local uint64_t seen_ns;

_Static_assert(CRYSTAL_NET_REQUESTS == 32, "a bit of taken for each");

/* The one that was used last of those that are free: what is in the cache. */
static struct crystal_net_request *request_take(struct crystal_net_end *end)
{
    unsigned at;

    if (end->taken == UINT32_MAX)
        return NULL;
    at = (unsigned)__builtin_ctz(~end->taken);
    end->taken |= 1U << at;
    memset(&end->requests[at], 0, sizeof end->requests[at]);
    return &end->requests[at];
}

static void request_give(struct crystal_net_request *r)
{
    crystal_copy_release(r);
    r->state = CRYSTAL_REQUEST_FREE;
    r->end->taken &= ~(1U << (unsigned)(r - r->end->requests));
}

/* Logs the first failure of an end; the caller returns the code. */
static int end_fail(struct crystal_net_end *end, int code, struct crystal_error *err)
{
    if (!end->failed) {
        end->failed = -code;
        if (code != -ECANCELED) /* told once for all ends */
            crystal_log(CRYSTAL_LOG_ERROR, "net", "%s", crystal_error_text(err));
    }
    return code;
}

static int end_check(struct crystal_net_end *end, struct crystal_error *err)
{
    if (end->failed)
        return crystal_error_set(err, end->failed, "connection has failed before");
    if (crystal_net_abort_check(end->comm->module))
        return crystal_error_set(err, ECANCELED, "the emulation was stopped");
    return 0;
}

/* Whether a message is what this rank puts into an all-gather, which stands in for
 * virtual ranks' blocks where it is the only real rank of the ring. 1 it is, 0 it is
 * not, -EAGAIN: the rings are not known yet. */
static int own_check(const struct crystal_net_end *end,
                     const struct crystal_message_id *id, struct crystal_error *err)
{
    const struct crystal_operation *op = id->operation;
    const struct crystal_ring_place *place;
    int code;

    if (!op || !end->is_send || op->is_p2p || op->func != CRYSTAL_FUNC_ALLGATHER ||
        !atomic_load(&op->comm->board) || op->algo != CRYSTAL_ALGO_RING ||
        id->step / (op->proto == CRYSTAL_PROTO_SIMPLE ? 2 : 1) %
                (op->comm->nranks - 1) !=
            0)
        return 0;
    code = crystal_rings_place(op->comm->rings, id->channel, &place, err);
    if (code <= 0)
        return code ? code : -EAGAIN;
    return place->run_before && place->sender == op->comm->crank;
}

static int own_keep(const struct crystal_net_request *r, struct crystal_error *err)
{
    const struct crystal_operation *op = r->id.operation;

    if (!r->is_own || !r->data)
        return 0;
    return crystal_lines_own(op->comm->lines, op->seq, r->id.channel, r->id.step,
                             r->data, r->bytes, r->room, err);
}

/* Moves what can be moved; callers' bytes that come from and go to a GPU included. */
static int end_progress(struct crystal_net_end *end, struct crystal_error *err)
{
    struct crystal_net_request *r;
    int code = 1;

    for (uint64_t i = end->tail; i < end->head && code > 0 && end->is_send; i++) {
        r = end->queue[i % CRYSTAL_NET_REQUESTS];
        if (r->copy != CRYSTAL_COPY_FETCH)
            continue;
        code = crystal_copy_is_done(r, err);
        if (code > 0)
            code = own_keep(r, err) ? -err->code : 1;
    }
    if (code >= 0)
        code = end->ops->progress(end, err);
    return code < 0 || end->is_send ? code : crystal_copy_put_all(end, err);
}

/* Whether one more may be posted: 1, 0 not yet, negative errno. */
static int has_place(struct crystal_net_end *end, uint64_t bytes,
                     struct crystal_error *err)
{
    int code = end->ops->has_place ? end->ops->has_place(end, bytes, err) : 1;

    if (code)
        return code;
    code = end_progress(end, err); /* those before it may be what it waits for */
    return code ? code : end->ops->has_place(end, bytes, err);
}

int crystal_net_post(struct crystal_net_end *end, void *data, uint64_t bytes,
                     struct crystal_device *device, const struct crystal_message_id *id,
                     struct crystal_net_request **ret, struct crystal_error *err)
{
    struct crystal_net_request *r;
    int code = end_check(end, err), is_own;

    *ret = NULL;
    if (code)
        return code;
    if (id->operation && !crystal_operation_is_ready(id->operation)) {
        crystal_wait_board();
        return 0;
    }
    is_own = own_check(end, id, err);
    if (is_own < 0)
        return is_own == -EAGAIN ? 0 : end_fail(end, is_own, err);
    code = has_place(end, bytes, err);
    if (code <= 0)
        return code ? end_fail(end, code, err) : 0;
    r = request_take(end);
    if (!r)
        return 0;
    r->end = end;
    r->state = CRYSTAL_REQUEST_BUSY;
    r->buffer = data;
    r->device = device;
    r->is_own = is_own;
    r->bytes = bytes;
    r->posted_ns = seen_ns = crystal_now_ns();
    r->number = end->number++;
    r->id = *id;
    if (end->comm->module->messages)
        crystal_messages_add(end->comm->module->messages, end, r);
    code = crystal_copy_prepare(end, r, err);
    r->place = end->head;
    end->queue[end->head++ % CRYSTAL_NET_REQUESTS] = r;
    if (!code && r->copy == CRYSTAL_COPY_NONE)
        code = own_keep(r, err);
    if (!code)
        code = end->ops->start(end, r, err);
    if (!code && end->is_send && id->operation)
        crystal_operation_arrive(id->operation, r->posted_ns, r->start_ns);
    if (!code && !(end->is_send && crystal_wait_is_more()))
        code = end_progress(end, err);
    if (code)
        return end_fail(end, code, err);
    *ret = r;
    return 0;
}

/* For whoever looks for the cause of a hang: what has not moved for long. */
static void tell_waiting(struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;
    struct crystal_net_end *end = r->end;

    if (r->told || (++end->polls % WAITING_POLLS && !crystal_wait_sleeps()) ||
        crystal_now_ns() < r->posted_ns + WAITING_NS)
        return;
    r->told = 1;
    if (!end->waiting++)
        crystal_net_note(end->comm, CRYSTAL_ROLL_WAITS, end->peer_crank);
    crystal_log(CRYSTAL_LOG_DEBUG, "net",
                "communicator %016llx: %s rank %u, message %u of %llu, %llu bytes, has "
                "waited %d s: function %u, operation %llu, channel %u, algorithm %d, "
                "protocol %d",
                (unsigned long long)end->comm->comm_id, end->ops->name, end->peer_crank,
                r->id.step, (unsigned long long)r->id.message_count,
                (unsigned long long)r->bytes, (int)(WAITING_NS / 1000000000U),
                op ? op->func : 0, op ? (unsigned long long)op->seq : 0ULL,
                r->id.channel, op ? (int)op->algo : 0, op ? (int)op->proto : 0);
}

static void tell_going_on(const struct crystal_net_request *r)
{
    struct crystal_net_end *end = r->end;

    if (r->told && !--end->waiting)
        crystal_net_note(end->comm, CRYSTAL_ROLL_WENT_ON, end->peer_crank);
}

int crystal_net_test(struct crystal_net_request *r, int *ret_done, uint64_t *ret_bytes,
                     struct crystal_error *err)
{
    struct crystal_net_end *end = r->end;
    int code;

    *ret_done = 0;
    if (r->state == CRYSTAL_REQUEST_FREE)
        return crystal_error_set(err, EINVAL, "test of a request that is over");
    if (r->state == CRYSTAL_REQUEST_BUSY || r->copy != CRYSTAL_COPY_NONE ||
        (!end->is_send && r->place >= end->put)) {
        code = end_check(end, err);
        if (!code)
            code = end_progress(end, err);
        if (!code && r->copy == CRYSTAL_COPY_PUT)
            code = crystal_copy_is_done(r, err);
        if (code < 0)
            return end_fail(end, code, err);
    }
    if (r->state != CRYSTAL_REQUEST_MOVED || r->copy != CRYSTAL_COPY_NONE ||
        (!end->is_send && r->place >= end->put)) {
        tell_waiting(r);
        return 0;
    }
    if (r->due_ns > seen_ns && r->due_ns > (seen_ns = crystal_now_ns())) {
        crystal_wait_until(r->due_ns);
        return crystal_net_abort_check(end->comm->module);
    }
    tell_going_on(r);
    *ret_done = 1;
    *ret_bytes = r->got;
    request_give(r);
    return 0;
}
