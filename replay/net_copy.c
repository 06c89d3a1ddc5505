/* Between callers' buffers and our room. See net_copy.h. */
#include "config.h"

#include "replay/net_copy.h"

#include "replay/net_copiers.h"
#include "replay/net_device.h"
#include "replay/net_room.h"
#include "replay/wait_list.h"
#include "runtime/clock.h"

#include <errno.h>
#include <string.h>

#define LINE_BYTES 128U /* of LL128 */
#define POLL_NS    2000U
#define DRAIN_NS   1000000000U

/* The form in which a request's bytes are. */
static enum crystal_proto proto_of(const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;

    return op && !op->is_p2p ? (enum crystal_proto)op->proto : CRYSTAL_PROTO_SIMPLE;
}

/* Whether the receiver sees the bytes before test() says that they are there. */
static int is_seen_early(const struct crystal_net_end *end,
                         const struct crystal_net_request *r)
{
    return !end->is_send && proto_of(r) != CRYSTAL_PROTO_SIMPLE &&
           crystal_wire_is_paced(&end->comm->module->wire);
}

/* How long the message can be: NCCL posts room for the largest. */
static uint64_t most_bytes(const struct crystal_net_request *r)
{
    const struct crystal_operation *op = r->id.operation;
    uint64_t bytes;

    if (r->end->is_send || !op)
        return r->bytes;
    bytes = op->count * op->elt_bytes;
    if (!op->is_p2p && op->func == CRYSTAL_FUNC_ALLREDUCE &&
        op->algo == CRYSTAL_ALGO_RING)
        bytes = bytes / op->comm->nranks + LINE_BYTES; /* a rank's share */
    return bytes < r->bytes ? bytes : r->bytes;
}

/* Whether threads copy the bytes: for NCCL's proxy thread, which never sleeps; others
 * have their CPUs in use. Received flags have to be made anew. */
static int is_copied(const struct crystal_net_request *r)
{
    return !r->device && r->end->comm->module->copiers && r->end->ops->has_rooms &&
           most_bytes(r) >= CRYSTAL_COPIERS_LEAST && !crystal_wait_sleeps() &&
           (r->end->is_send || proto_of(r) == CRYSTAL_PROTO_SIMPLE);
}

int crystal_copy_is_put(const struct crystal_net_request *r)
{
    return r->device || is_copied(r) || is_seen_early(r->end, r);
}

/* Begins to copy what is to be sent to data. */
static int fetch(struct crystal_net_request *r, struct crystal_error *err)
{
    struct crystal_copiers *copiers = r->end->comm->module->copiers;

    if (!r->device && !is_copied(r)) {
        memcpy(r->data, r->buffer, r->bytes);
        return 0;
    }
    r->copy = CRYSTAL_COPY_FETCH;
    if (r->device)
        return crystal_device_fetch(r->device, r->data, r->buffer, r->bytes, &r->ticket,
                                    err);
    r->ticket = crystal_copiers_copy(copiers, r->data, r->buffer, r->bytes);
    return 0;
}

int crystal_copy_prepare(struct crystal_net_end *end, struct crystal_net_request *r,
                         struct crystal_error *err)
{
    struct crystal_rooms *rooms =
        r->device ? crystal_device_rooms(r->device) : end->comm->module->rooms;

    if (end->ops->needs && !end->ops->needs(end, r))
        return 0;
    r->data = end->ops->place ? end->ops->place(end, r) : NULL;
    if (r->data)
        return r->bytes ? fetch(r, err) : 0;
    r->data = r->buffer;
    if (!r->bytes ||
        (end->is_send ? !r->device && !is_copied(r) : !crystal_copy_is_put(r)))
        return 0;
    r->room = crystal_room_take(rooms, r->bytes);
    if (!r->room)
        return crystal_error_set(err, ENOMEM, "out of memory for a message");
    r->data = r->room->data;
    return end->is_send ? fetch(r, err) : 0;
}

int crystal_copy_is_done(struct crystal_net_request *r, struct crystal_error *err)
{
    int code = 1;

    if (r->copy != CRYSTAL_COPY_NONE)
        code = r->device
                   ? crystal_device_is_done(r->device, r->ticket, err)
                   : crystal_copiers_is_done(r->end->comm->module->copiers, r->ticket);
    if (code > 0)
        r->copy = CRYSTAL_COPY_NONE;
    else if (!code)
        crystal_wait_until(crystal_now_ns() + POLL_NS);
    return code;
}

/* How long before its due time a message must be put to be seen in time. */
static uint64_t lead_ns(const struct crystal_net_request *r)
{
    return r->device ? CRYSTAL_DEVICE_LATENCY_NS + r->got / CRYSTAL_DEVICE_BYTES_PER_NS
                     : 0;
}

/* The data of all lines without a flag that could be taken for theirs, then the flags.
 */
static int put_lines(struct crystal_net_request *r, unsigned char *from,
                     struct crystal_error *err)
{
    const uint64_t lines = r->got / LINE_BYTES;
    const uint64_t flag = crystal_form_step(CRYSTAL_PROTO_LL128, from) + 1;
    int code;

    r->flags = crystal_room_take(crystal_device_rooms(r->device), 8 * lines);
    if (!r->flags)
        return crystal_error_set(err, ENOMEM, "out of memory for a message");
    for (uint64_t i = 0; i < lines; i++)
        memcpy(r->flags->data + 8 * i, &flag, sizeof flag);
    crystal_form_flags(CRYSTAL_PROTO_LL128, UINT64_MAX, r->got, from);
    code = crystal_device_put(r->device, r->buffer, from, r->got, &r->ticket, err);
    if (code)
        return code;
    return crystal_device_put_words(r->device,
                                    (unsigned char *)r->buffer + LINE_BYTES - 8,
                                    LINE_BYTES, r->flags->data, lines, &r->ticket, err);
}

/* Begins to copy what was received from where it is. 1 or negative errno. */
static int put_begin(struct crystal_net_request *r, unsigned char *from,
                     struct crystal_error *err)
{
    const enum crystal_proto proto = proto_of(r);
    int code = 0;

    if (!r->device && !is_copied(r)) {
        crystal_form_repack(proto, crystal_form_step(proto, from), from, r->got,
                            r->buffer);
        return 1;
    }
    if (!r->device && r->got < CRYSTAL_COPIERS_LEAST) {
        memcpy(r->buffer, from, r->got);
        return 1;
    }
    if (!r->device)
        r->ticket = crystal_copiers_copy(r->end->comm->module->copiers, r->buffer, from,
                                         r->got);
    else if (proto == CRYSTAL_PROTO_LL128)
        code = put_lines(r, from, err);
    else
        code = crystal_device_put(r->device, r->buffer, from, r->got, &r->ticket, err);
    r->copy = CRYSTAL_COPY_PUT;
    return code ? code : 1;
}

/* 1 begun or nothing to do, 0 not due. */
static int put_one(struct crystal_net_end *end, struct crystal_net_request *r,
                   struct crystal_error *err)
{
    /* a virtual end may have exchanged the room */
    unsigned char *from = r->room ? r->room->data : r->data;

    if (!from || from == r->buffer || !r->got)
        return 1;
    if (is_seen_early(end, r) && r->due_ns > crystal_now_ns() + lead_ns(r)) {
        crystal_wait_until(r->due_ns - lead_ns(r));
        return 0;
    }
    return put_begin(r, from, err);
}

int crystal_copy_put_all(struct crystal_net_end *end, struct crystal_error *err)
{
    int code = 1;

    while (end->put < end->tail && code > 0) {
        code = put_one(end, end->queue[end->put % CRYSTAL_NET_REQUESTS], err);
        end->put += code > 0;
    }
    return code < 0 ? code : 0;
}

void crystal_copy_release(struct crystal_net_request *r)
{
    if (r->end->ops->release)
        r->end->ops->release(r->end, r);
    crystal_room_give(r->room);
    crystal_room_give(r->flags);
    r->room = r->flags = NULL;
}

void crystal_copy_drain(struct crystal_net_end *end)
{
    const uint64_t until_ns = crystal_now_ns() + DRAIN_NS;

    for (unsigned i = 0; i < CRYSTAL_NET_REQUESTS; i++) {
        struct crystal_net_request *r = &end->requests[i];
        int code = 0;

        if (r->state == CRYSTAL_REQUEST_FREE)
            continue;
        while (r->copy != CRYSTAL_COPY_NONE && !code && crystal_now_ns() < until_ns)
            code = crystal_copy_is_done(r, NULL);
        if (r->copy == CRYSTAL_COPY_NONE) /* else the GPU still uses it */
            crystal_copy_release(r);
    }
}
