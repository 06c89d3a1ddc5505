/* Whether a rank ever has operations of two streams under way at once. See
 * timeline_internal.h.
 *
 * Each stream, the host, each event and each communicator knows how many operations of
 * every stream are done by then; what is issued on a stream while another one has more
 * under way than it knows of overlaps them. An iteration is gone through twice, as what
 * it leaves under way meets the next one.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct overlap {
    const struct tl_list *list;
    uint32_t lane_count;
    uint64_t *issued; /* by lane */
    uint64_t *host;   /* all below: by lane, how many are done */
    uint64_t *lanes;  /* of each */
    uint64_t *slots;
    uint64_t *locals;
    bool is_found;
};

static void join(const struct overlap *o, uint64_t *to, const uint64_t *from)
{
    for (uint32_t i = 0; i < o->lane_count; i++)
        to[i] = from[i] > to[i] ? from[i] : to[i];
}

static uint64_t *row(const struct overlap *o, uint64_t *rows, uint32_t i)
{
    return rows + (size_t)i * o->lane_count;
}

static void operation(struct overlap *o, const struct tl_code *c)
{
    uint64_t *lane = row(o, o->lanes, c->lane), *local = row(o, o->locals, c->local);

    join(o, lane, o->host);
    join(o, lane, local); /* a communicator's operations are one after the other */
    for (uint32_t i = 0; i < o->lane_count; i++)
        o->is_found |= i != c->lane && o->issued[i] > lane[i];
    lane[c->lane] = ++o->issued[c->lane]; /* what follows on the lane comes behind it */
    join(o, local, lane);
}

static void step(struct overlap *o, const struct tl_code *c)
{
    switch (c->kind) {
    case TL_COLL:
    case TL_BATCH:
        operation(o, c);
        break;
    case TL_LAUNCH:
        for (c = &o->list->code[c->arg]; c->kind != TL_END; c++)
            operation(o, c);
        break;
    case TL_RECORD:
        memcpy(row(o, o->slots, c->arg), row(o, o->lanes, c->lane),
               o->lane_count * sizeof *o->slots);
        break;
    case TL_SWAIT:
        join(o, row(o, o->lanes, c->lane), row(o, o->slots, c->arg));
        break;
    case TL_WAIT:
        join(o, o->host, row(o, o->slots, c->arg));
        break;
    case TL_SYNC:
        join(o, o->host, row(o, o->lanes, c->lane));
        break;
    default:
        break;
    }
}

int tl_list_find_overlap(struct tl_list *list)
{
    struct overlap o = {.list = list, .lane_count = list->lane_count};
    size_t rows =
        2 + (size_t)list->lane_count + list->slot_count + list->program->local_count;
    uint64_t *room = calloc(rows, o.lane_count * sizeof *room);

    if (!room)
        return -ENOMEM;
    o.issued = room;
    o.host = row(&o, room, 1);
    o.lanes = row(&o, room, 2);
    o.slots = row(&o, o.lanes, o.lane_count);
    o.locals = row(&o, o.slots, list->slot_count);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < list->begin_count && !o.is_found; i++)
            step(&o, &list->code[i]);
    list->overlaps = o.is_found;
    free(room);
    return 0;
}
