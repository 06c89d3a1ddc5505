/* What a message of a delay line puts into its receiver's buffer: a message that passes
 * keeps its form, with the flags of the receiving connection; recorded contributions
 * are added to its data. See virtual_line.h.
 */
#include "config.h"

#include "replay/virtual_line_internal.h"

#include "replay/assist_recipe.h"
#include "replay/net.h"

#include <errno.h>
#include <string.h>

static void standin_count(const struct line_put *put)
{
    if (!put->line->plan.is_unneeded)
        crystal_operation_standin(put->next->op, put->bytes);
}

/* Room for the message's data before they take their form: the receiver's buffer where
 * they stay as they are. NULL with err set where memory runs out. */
static unsigned char *data_place(const struct line_put *put, struct crystal_error *err)
{
    struct crystal_room **scratch = &put->lines->scratch;

    if (put->next->ring.proto == CRYSTAL_PROTO_SIMPLE)
        return put->wire;
    if (!*scratch || (*scratch)->bytes < put->bytes) {
        crystal_room_give(*scratch);
        *scratch = crystal_room_take(put->lines->comm->module->rooms, put->bytes);
    }
    if (*scratch)
        return (*scratch)->data;
    (void)crystal_error_set(err, ENOMEM, "out of memory for a message");
    return NULL;
}

/* Gives data their form in the receiver's buffer. */
static int data_put(const struct line_put *put, const void *data)
{
    crystal_form_pack(put->next->ring.proto, put->next->step, data, put->bytes,
                      put->wire);
    return 1;
}

/* Whether the receiver's buffer may be exchanged for the room with a message. */
static int is_exchanged(const struct line_put *put, const struct crystal_room *room)
{
    return put->next->room && *put->next->room && room &&
           room->rooms == (*put->next->room)->rooms;
}

/* The same for data that have another message's form. */
static int wire_put(const struct line_put *put, const void *wire)
{
    crystal_form_repack(put->next->ring.proto, put->next->step, wire, put->wire_bytes,
                        put->wire);
    return 1;
}

/* The same bytes in the receiver's room as in one that others read, too. */
static int share_put(const struct line_put *put, struct crystal_room *room)
{
    crystal_room_give(*put->next->room);
    *put->next->room = crystal_room_share(room);
    return 1;
}

static int zeros_put(const struct line_put *put, struct crystal_error *err)
{
    struct crystal_room **to = put->next->room;
    struct crystal_room *zeros;
    unsigned char *data;

    crystal_recipe_open(put->next->recipe, put->bytes);
    if (to && *to && put->next->ring.proto == CRYSTAL_PROTO_SIMPLE) {
        zeros = crystal_room_zeros((*to)->rooms, put->bytes);
        if (!zeros)
            return crystal_error_set(err, ENOMEM, "out of memory for a message");
        crystal_room_give(*to);
        *to = zeros;
        return 1;
    }
    data = data_place(put, err);
    if (!data)
        return -ENOMEM;
    if (put->bytes)
        memset(data, 0, put->bytes);
    return data_put(put, data);
}

/* A reduction that begins here with what changes nothing: zeros. */
static int neutral_put(const struct line_put *put, struct crystal_error *err)
{
    standin_count(put);
    return zeros_put(put, err);
}

/* a's block of a gather at the same place: its message of the loop's first step, which
 * the line still has. Where a is this rank, too, that does not come through the line
 * and is kept apart. 1 put, 0 wait. */
static int sender_put(const struct line_put *put, struct crystal_error *err)
{
    const struct crystal_vt_path *path = &put->line->vt.path;
    const uint64_t index =
        put->message.loop * path->slices * path->steps + put->message.slice;
    const struct line_own *own = &put->line->own[index % 2];
    const struct line_message *first = crystal_line_message(put->line, index);
    const int is_own = put->next->place->sender == put->lines->comm->crank;
    struct crystal_room *room;
    const void *wire;
    uint64_t bytes;

    if (is_own ? own->index_plus1 != index + 1 : !first)
        return 0;
    bytes = is_own ? own->bytes : first->sent.bytes;
    wire = is_own ? own->room->data : first->data;
    if (bytes != put->wire_bytes || (bytes && !wire))
        return crystal_error_set(err, EPROTO,
                                 "an all-gather's first message has %llu bytes where "
                                 "the ring's schedule has %llu",
                                 (unsigned long long)bytes,
                                 (unsigned long long)put->wire_bytes);
    standin_count(put);
    room = is_own ? own->room : first->room;
    if (put->next->ring.proto == CRYSTAL_PROTO_SIMPLE && is_exchanged(put, room))
        return share_put(put, room);
    return wire_put(put, wire);
}

/* A block of a virtual rank: recorded; else of a gather a's at the same place, of a
 * broadcast the first of its shape; else zeros. 1 put, 0 wait. */
static int block_put(const struct line_put *put, struct crystal_error *err)
{
    const struct crystal_payload_plan *plan = &put->line->plan;
    const struct crystal_line_next *next = put->next;
    const uint32_t crank = crystal_ring_crank(next->place, put->source.first);
    uint64_t offset = put->message.offset_elts;
    const void *recorded;
    int code;

    if (next->ring.func == CRYSTAL_FUNC_ALLGATHER)
        offset -= (uint64_t)crank * next->ring.count;
    offset *= next->ring.elt_bytes;
    if (plan->is_recorded || plan->is_bulk ||
        next->ring.func == CRYSTAL_FUNC_BROADCAST) {
        code = crystal_payload_get(next->op, plan, crank, offset, put->bytes, &recorded,
                                   plan->is_recorded ? err : NULL);
        if (!code) {
            crystal_recipe_set(next->recipe, recorded, put->bytes);
            return data_put(put, recorded);
        }
        if (plan->is_recorded)
            return code;
    }
    if (next->ring.func == CRYSTAL_FUNC_ALLGATHER)
        return sender_put(put, err);
    standin_count(put);
    if (crystal_payload_first(next->op, plan, crank, offset, put->bytes, &recorded)) {
        crystal_recipe_set(next->recipe, recorded, put->bytes);
        return data_put(put, recorded);
    }
    return zeros_put(put, err);
}

/* Adds the contributions of the run to what data holds (or starts with them). */
static int contributions_put(const struct line_put *put, void *data,
                             struct crystal_error *err)
{
    const struct crystal_line_next *next = put->next;
    const struct crystal_payload_plan *plan = &put->line->plan;
    struct crystal_payload_sum sum = {.op = next->op,
                                      .plan = plan,
                                      .data = data,
                                      .elts = put->message.elts,
                                      .is_started = put->source.has_copy,
                                      .recipe = next->recipe};
    const uint64_t offset = put->message.offset_elts * next->ring.elt_bytes;

    for (uint32_t i = 0; i < put->source.count; i++) {
        uint32_t place = (put->source.first + i) % next->ring.nranks;
        int code = crystal_payload_add(&sum, crystal_ring_crank(next->place, place),
                                       offset, err);

        if (code)
            return code;
    }
    crystal_payload_end(&sum);
    /* integers are divided by whom the sum completes, floats beforehand by everybody */
    if (put->source.is_completed)
        crystal_payload_complete(&sum);
    return 0;
}

/* a's message as it is, which nobody asks for again. */
static int copy_put(const struct line_put *put, struct line_message *copy)
{
    struct crystal_room *room = copy->room;

    if (put->next->ring.proto == CRYSTAL_PROTO_SIMPLE && is_exchanged(put, room))
        return share_put(put, room);
    if (!is_exchanged(put, room) || atomic_load(&room->owners) > 1)
        return wire_put(put, copy->data);
    crystal_form_flags(put->next->ring.proto, put->next->step, put->wire_bytes,
                       room->data);
    copy->room = *put->next->room;
    *put->next->room = room;
    return 1;
}

/* The message begins with a's, which the assistant has where it keeps those. */
static void copy_tell(const struct line_put *put)
{
    const struct crystal_line_next *next = put->next;
    const struct crystal_assist_key key = {.comm_id = put->lines->comm->comm_id,
                                           .seq = next->op->seq,
                                           .index = put->source.copy_index,
                                           .channel = next->channel,
                                           .crank = next->place->sender};

    if (!next->is_kept)
        return;
    crystal_recipe_open(next->recipe, put->bytes);
    crystal_recipe_keep(next->recipe, &key);
}

/* a's message with the contributions of the run. 1 put, 0 wait. */
static int passed_put(const struct line_put *put, struct crystal_error *err)
{
    const struct crystal_payload_plan *plan = &put->line->plan;
    struct line_message *copy = crystal_line_message(put->line, put->source.copy_index);
    unsigned char *data;
    int code;

    if (!copy)
        return 0;
    if (copy->sent.bytes != put->wire_bytes || (put->bytes && !copy->data))
        return crystal_error_set(err, EPROTO,
                                 "message %llu of an operation has %llu bytes where "
                                 "the ring's schedule has %llu",
                                 (unsigned long long)put->source.copy_index,
                                 (unsigned long long)copy->sent.bytes,
                                 (unsigned long long)put->bytes);
    copy_tell(put);
    if (!put->source.count)
        return copy_put(put, copy);
    if (!plan->is_recorded && !plan->is_bulk) { /* stand-ins change nothing */
        standin_count(put);
        return copy_put(put, copy);
    }
    data = data_place(put, err);
    if (!data)
        return -ENOMEM;
    crystal_form_unpack(put->next->ring.proto, copy->data, put->bytes, data);
    code = contributions_put(put, data, err);
    return code ? code : data_put(put, data);
}

int crystal_line_put(const struct line_put *put, struct crystal_error *err)
{
    const struct crystal_payload_plan *plan = &put->line->plan;
    unsigned char *data;
    int code;

    if (!crystal_payload_is_valued(put->next->op)) {
        standin_count(put);
        if (put->wire)
            crystal_form_flags(put->next->ring.proto, put->next->step, put->wire_bytes,
                               put->wire);
        return 1;
    }
    if (!put->wire)
        return 1;
    if (put->source.is_block)
        return block_put(put, err);
    if (put->source.has_copy)
        return passed_put(put, err);
    if (put->source.count && !plan->is_recorded && !plan->is_bulk &&
        crystal_payload_neutral_is_zero(plan->dtype, plan->redop))
        return neutral_put(put, err);
    data = data_place(put, err);
    if (!data)
        return -ENOMEM;
    if (put->source.count)
        crystal_recipe_open(put->next->recipe, put->bytes);
    code = put->source.count ? contributions_put(put, data, err) : 0;
    return code ? code : data_put(put, data);
}
