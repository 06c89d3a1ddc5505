/* What holds up ranks that cannot go on, followed from rank to rank. */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <string.h>

/* The lane that keeps the host from going on, or any that has not done its work. */
static const struct tl_lane *blocked_lane(const struct tl_rank *r)
{
    const struct tl_lane *lane = NULL;

    if (r->state == TL_WAITS_LANE || r->state == TL_WAITS_ROOM)
        lane = &r->lanes[r->wait_lane];
    for (uint32_t i = 0; !lane && i < r->list->lane_count; i++)
        if (r->lanes[i].outstanding)
            lane = &r->lanes[i];
    return lane;
}

/* The lane whose queue holds the recording of an event that an entry waits for: the
 * last one issued before it (`code` as in its entry, NONE: now). */
static const struct tl_lane *recorder(const struct tl_rank *r, uint32_t slot,
                                      uint32_t before)
{
    const struct tl_lane *found = NULL;
    uint32_t latest = 0;

    for (uint32_t i = 0; i < r->list->lane_count; i++) {
        const struct tl_lane *lane = &r->lanes[i];

        for (uint32_t k = lane->head; k != lane->tail; k++) {
            uint32_t at = lane->ring[k & lane->mask].code;
            const struct tl_code *c = &r->list->code[at % TL_CODE_MAX];

            if (c->kind != TL_RECORD || c->arg != slot || at >= before || at < latest)
                continue;
            found = lane;
            latest = at;
        }
    }
    return found;
}

/* From a lane that waits for others of its rank to the one with something under way. */
static const struct tl_lane *under_way(const struct tl_rank *r)
{
    const struct tl_lane *lane = r->state == TL_WAITS_EVENT
                                     ? recorder(r, r->wait_lane, TL_NONE)
                                     : blocked_lane(r);

    for (uint32_t i = 0; lane && !lane->outstanding && i <= r->list->lane_count; i++) {
        const struct tl_code *c;
        uint32_t at;

        if (lane->head == lane->tail)
            return NULL;
        at = lane->ring[lane->head & lane->mask].code;
        c = &r->list->code[at % TL_CODE_MAX];
        if (c->kind == TL_SWAIT) {
            lane = recorder(r, c->arg, at);
            continue;
        }
        for (uint32_t k = 0; k < r->list->lane_count; k++) /* its communicator's */
            if (r->lanes[k].outstanding && r->lanes[k].local == c->local)
                return &r->lanes[k];
        return NULL;
    }
    return lane && lane->outstanding ? lane : NULL;
}

static bool in_collective(const struct tl_rank *r, const struct tl_lane *lane,
                          struct crystal_timeline_wait *step)
{
    const struct tl_local *local = &r->locals[lane->local];

    for (const struct tl_coll *coll = local->comm->colls; coll; coll = coll->next) {
        if (coll->is_ended || coll->seats[local->crank].lane != lane - r->lanes)
            continue;
        step->instr = r->list->code[coll->seats[local->crank].code].instr;
        step->seq = coll->seq;
        for (uint32_t k = 0; k < local->comm->nranks; k++)
            if (coll->arrive[k] == UINT64_MAX) {
                if (!step->missing_count++)
                    step->for_lrank = local->comm->members[k];
            }
        return true;
    }
    return false;
}

/* Waits a message of this pair, at this end of it, for the other end? */
static bool in_message(const struct tl_pair *pair, uint32_t lane, bool sends,
                       struct crystal_timeline_wait *step)
{
    for (uint64_t seq = pair->first; seq < pair->first + pair->capacity; seq++) {
        const struct tl_message *m = &pair->ring[seq & (pair->capacity - 1)];
        uint32_t instr = sends ? m->send_instr : m->recv_instr;

        if (m->is_over || !(sends ? m->has_send : m->has_recv) || instr == TL_NONE ||
            (sends ? m->has_recv : m->has_send) ||
            (sends ? m->send_lane : m->recv_lane) != lane)
            continue;
        step->instr = instr;
        step->seq = seq;
        step->for_lrank = sends ? pair->to_lrank : pair->from_lrank;
        step->missing_count = 1;
        return true;
    }
    return false;
}

static void step_of(const struct crystal_timeline *t, uint32_t lrank,
                    struct crystal_timeline_wait *step)
{
    const struct tl_rank *r = &t->ranks[lrank];
    const struct tl_lane *lane;

    *step = (struct crystal_timeline_wait){
        .lrank = lrank, .instr = TL_NONE, .comm = TL_NONE, .for_lrank = TL_NONE};
    lane = r->state == TL_OUTSIDE ? NULL : under_way(r);
    if (!lane)
        return;
    step->comm = r->locals[lane->local].comm->index;
    if (in_collective(r, lane, step))
        return;
    for (uint32_t i = 0; i < r->list->program->pair_count; i++)
        if (r->list->program->pairs[i].local == lane->local &&
            in_message(r->pair[i], (uint32_t)(lane - r->lanes),
                       r->list->program->pairs[i].is_send != 0, step))
            return;
}

static bool is_stuck(const struct tl_rank *r)
{
    if (r->state == TL_OUTSIDE)
        return false;
    for (uint32_t i = 0; i < r->list->lane_count; i++)
        if (r->lanes[i].outstanding)
            return true;
    return r->state != TL_DONE;
}

uint32_t crystal_timeline_witness(const struct crystal_timeline *t,
                                  struct crystal_timeline_wait *steps,
                                  uint32_t capacity, uint32_t *ret_cycle)
{
    uint32_t count = 0, lrank = 0;

    *ret_cycle = capacity;
    while (lrank < t->lrank_count && !is_stuck(&t->ranks[lrank]))
        lrank++;
    if (lrank == t->lrank_count)
        return 0;
    while (count < capacity && lrank != TL_NONE) {
        for (uint32_t i = 0; i < count; i++)
            if (steps[i].lrank == lrank) {
                *ret_cycle = i;
                return count;
            }
        step_of(t, lrank, &steps[count]);
        lrank = steps[count++].for_lrank;
    }
    return count;
}
