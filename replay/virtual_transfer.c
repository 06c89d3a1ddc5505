/* Messages of a virtual rank that are no part of a collective of the library's: what
 * was recorded, else zeros.
 */
#include "config.h"

#include "replay/virtual_end_internal.h"

#include "replay/net.h"
#include "replay/net_payload.h"
#include "replay/net_room.h"
#include "replay/wait_list.h"

#include <errno.h>
#include <string.h>

#define P2P_PART_BYTES 4096U /* a channel's part of a transfer is a multiple */

/* Where a message lies in its transfer. NCCL 2.28.9 (src/enqueue.cc, addP2pToPlan)
 * gives each of its channels a part, a multiple of 4 KiB, and cuts that into chunks; of
 * several chunks each is as large as what is posted for it. */
struct transfer_part {
    uint64_t offset, bytes;
    int is_placed; /* the offset is known */
};

/* index: the channel's, negative where it is not known. */
static void part_find(const struct crystal_net_request *r, int index,
                      struct transfer_part *ret)
{
    const struct crystal_operation *op = r->id.operation;
    const uint64_t all = op->count * op->elt_bytes, count = r->id.message_count;
    const uint64_t channels = op->channel_count > 1 ? op->channel_count : 1;
    const uint64_t grain = channels > 1 ? P2P_PART_BYTES : 1;
    const uint64_t part =
        (all + channels * grain - 1) / (channels * grain) * grain; /* not the last's */
    uint64_t chunk = CRYSTAL_P2P_CHUNK_BYTES, in_part, from = 0, own = part;

    if ((part + chunk - 1) / chunk != count)
        chunk = count > 1 ? r->bytes : part;
    if (index > 0)
        from = (uint64_t)index * part < all ? (uint64_t)index * part : all;
    if (index >= 0 && own > all - from)
        own = all - from;
    in_part = r->id.step * chunk;
    *ret = (struct transfer_part){.offset = from + in_part, .is_placed = index >= 0};
    ret->bytes = own > in_part ? own - in_part : 0;
    if (ret->bytes > chunk)
        ret->bytes = chunk;
    if (index < 0 && ret->bytes > r->bytes)
        ret->bytes = r->bytes; /* the last part may be shorter */
}

/* The payload of a virtual rank's message, and what it is: see crystal_payload_p2p. */
static int transfer_payload(const struct crystal_net_request *r,
                            const struct transfer_part *part, const void **ret,
                            struct crystal_error *err)
{
    struct crystal_operation *op = r->id.operation;

    if (part->bytes > r->bytes)
        return crystal_error_set(err, EMSGSIZE,
                                 "%llu bytes of a transfer do not fit the %llu that "
                                 "were posted",
                                 (unsigned long long)part->bytes,
                                 (unsigned long long)r->bytes);
    if (part->is_placed)
        return crystal_payload_p2p(op, part->offset, part->bytes, ret, err);
    if (op->comm->module->graph && !crystal_dtype_is_float(op->dtype))
        return crystal_error_set(err, ENOTSUP,
                                 "%llu integers from virtual rank %u come on all of %u "
                                 "channels, whose order is not known where nodes "
                                 "differ; set NCCL_NCHANNELS_PER_NET_PEER=1",
                                 (unsigned long long)op->count, r->end->peer_crank,
                                 op->channel_count);
    return 0;
}

static int transfer_zeros(struct crystal_net_request *r, uint64_t bytes,
                          struct crystal_error *err)
{
    struct crystal_room *zeros;

    if (!r->room || r->end->comm->module->has_assistant) {
        memset(r->data, 0, bytes);
        return 0;
    }
    zeros = crystal_room_zeros(r->room->rooms, bytes);
    if (!zeros)
        return crystal_error_set(err, ENOMEM, "out of memory for a message");
    crystal_room_give(r->room);
    r->room = zeros;
    return 0;
}

int crystal_virtual_transfer(struct virtual_end *v, struct crystal_net_request *r,
                             struct crystal_error *err)
{
    struct crystal_operation *op = r->id.operation;
    uint64_t partner_ns = crystal_operation_partner_ns(op), bytes, hop_ns;
    struct transfer_part part;
    const void *recorded;
    int code, index;

    if (!partner_ns) {
        r->asked = 1;
        crystal_wait_board();
        return 0;
    }
    index = crystal_operation_part(op, r->id.channel);
    if (index == -EAGAIN && op->comm->module->graph)
        return 0; /* NCCL asks again; nobody else has to know of it */
    part_find(r, index, &part);
    bytes = part.bytes;
    code = transfer_payload(r, &part, &recorded, err);
    if (code < 0)
        return code;
    if (code)
        crystal_recipe_set(v->wire.recipe, recorded, bytes);
    else
        crystal_recipe_open(v->wire.recipe, bytes);
    if (!r->data)
        code = 0;
    else if (code)
        memcpy(r->data, recorded, bytes);
    else if (transfer_zeros(r, bytes, err))
        return -err->code;
    if (code != 1 && bytes)
        crystal_operation_standin(op, bytes);
    hop_ns = crystal_vt_hop_ns(&v->base.comm->module->wire, bytes);
    return crystal_virtual_done(v, r, partner_ns + hop_ns, 0, bytes, err);
}
