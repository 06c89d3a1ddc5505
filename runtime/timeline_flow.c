/* Collectives that share NICs with each other and with messages.
 *
 * Alone, a collective takes alone_ns from the last arrival on and uses a member's NIC
 * for a part of that: so much of the NIC it asks for. What the collectives at one NIC
 * ask for, and the whole for the messages in its queue, is its load. A collective goes
 * on at its own speed where no NIC of its members has more load than the whole, else
 * slower by the greatest of these loads; a message that is given to a NIC takes longer
 * by what collectives ask for there at that moment. Times are exact as far as nothing
 * changes; at each change what is left is rounded up to a nanosecond.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

static uint64_t load_of(const struct tl_nic *nic)
{
    return nic->load + (nic->is_busy ? TL_WHOLE : 0);
}

uint64_t tl_flow_slowed(const struct tl_nic *nic, uint64_t ns)
{
    return nic->load ? ns + (uint64_t)((wide)ns * nic->load / TL_WHOLE) : ns;
}

static struct tl_nic *nic_of(struct crystal_timeline *t, const struct tl_comm *comm,
                             uint32_t crank)
{
    return &t->ranks[comm->members[crank]].nics[comm->way];
}

/* The greatest load at its members' NICs. */
static uint64_t fullest(struct crystal_timeline *t, const struct tl_flow *flow)
{
    uint64_t most = TL_WHOLE;

    for (uint32_t k = 0; k < flow->comm->nranks; k++) {
        uint64_t load = load_of(nic_of(t, flow->comm, k));

        most = load > most ? load : most;
    }
    return most;
}

/* Goes on from now on at another speed. Members may end before the last one, so what
 * they do next may come a little earlier than what is known; it counts from there. */
static void speed(struct crystal_timeline *t, struct tl_flow *flow, uint64_t now_ns,
                  uint64_t load)
{
    uint64_t done_ns, end_ns;

    now_ns = now_ns > flow->since_ns ? now_ns : flow->since_ns;
    done_ns = (uint64_t)((wide)(now_ns - flow->since_ns) * TL_WHOLE / flow->load);
    flow->left_ns -= done_ns < flow->left_ns ? done_ns : flow->left_ns;
    flow->since_ns = now_ns;
    flow->load = load;
    end_ns =
        now_ns + (uint64_t)(((wide)flow->left_ns * load + TL_WHOLE - 1) / TL_WHOLE);
    tl_turn_wait(t, (struct tl_turn){.time_ns = end_ns,
                                     .order = flow->comm->index,
                                     .seq = ++flow->turn,
                                     .flow = flow,
                                     .kind = TL_TURN_END});
}

/* The load of a NIC has changed from `before`. */
static void nic_changed(struct crystal_timeline *t, const struct tl_nic *nic,
                        uint64_t before, uint64_t now_ns)
{
    uint64_t after = load_of(nic);

    for (const struct tl_use *use = nic->uses; use; use = use->next) {
        struct tl_flow *flow = use->flow;
        uint64_t load = flow->load;

        if (after > load)
            load = after;
        else if (before == load)
            load = fullest(t, flow);
        if (load != flow->load)
            speed(t, flow, now_ns, load);
    }
}

/* --- messages --- */

uint64_t tl_nic_take(struct crystal_timeline *t, struct tl_rank *r, enum tl_way way,
                     uint64_t now_ns, uint64_t occupy_ns, uint64_t *ret_held_ns)
{
    struct tl_nic *nic = &r->nics[way];
    uint64_t start = nic->free_ns > now_ns ? nic->free_ns : now_ns;
    uint64_t before = load_of(nic);

    *ret_held_ns = tl_flow_slowed(nic, occupy_ns) - occupy_ns;
    nic->free_ns = start + occupy_ns + *ret_held_ns;
    if (t->config.nics != CRYSTAL_NICS_OF_ALL || nic->is_busy || !occupy_ns)
        return start;
    nic->is_busy = true;
    tl_turn_wait(t, (struct tl_turn){.time_ns = nic->free_ns,
                                     .order = (uint64_t)r->lrank * TL_WAYS + way,
                                     .rank = r,
                                     .kind = TL_TURN_IDLE,
                                     .way = way});
    nic_changed(t, nic, before, now_ns);
    return start;
}

void tl_nic_idle(struct crystal_timeline *t, const struct tl_turn *turn)
{
    struct tl_nic *nic = &turn->rank->nics[turn->way];
    struct tl_turn again = *turn;
    uint64_t before = load_of(nic);

    if (nic->free_ns > turn->time_ns) {
        again.time_ns = nic->free_ns;
        tl_turn_wait(t, again);
        return;
    }
    nic->is_busy = false;
    nic_changed(t, nic, before, turn->time_ns);
}

/* --- collectives --- */

static struct tl_flow *flow_new(struct crystal_timeline *t, struct tl_comm *comm)
{
    struct tl_flow *flow = comm->flows;
    size_t each = sizeof flow->ends[0] + sizeof *flow->uses;

    if (flow) {
        comm->flows = flow->spare;
    } else if (!(flow = malloc(sizeof *flow + comm->nranks * each))) {
        t->code = -ENOMEM;
        return NULL;
    } else {
        flow->turn = 0;
        flow->comm = comm;
        flow->uses = (struct tl_use *)(void *)&flow->ends[comm->nranks];
    }
    flow->spare = NULL;
    return flow;
}

bool tl_flow_begins(struct crystal_timeline *t, struct tl_comm *comm,
                    struct tl_coll *coll)
{
    uint64_t last_ns = 0, end_ns = 0, nic_ns;
    struct tl_flow *flow;

    if (!coll->is_described || t->config.is_untimed || comm->nranks == 1)
        return false;
    for (uint32_t k = 0; k < comm->nranks; k++) {
        last_ns = coll->arrive[k] > last_ns ? coll->arrive[k] : last_ns;
        end_ns = t->ends[k] > end_ns ? t->ends[k] : end_ns;
    }
    nic_ns = crystal_transfer_plan_nic_ns(tl_coll_plan(t, comm, coll));
    if (!nic_ns || end_ns <= last_ns || !(flow = flow_new(t, comm)))
        return false;
    flow->coll = coll;
    flow->last_ns = flow->since_ns = last_ns;
    flow->alone_ns = flow->left_ns = end_ns - last_ns;
    flow->asks = nic_ns < flow->alone_ns
                     ? (uint32_t)((wide)nic_ns * TL_WHOLE / flow->alone_ns)
                     : TL_WHOLE;
    flow->load = TL_WHOLE;
    memcpy(flow->ends, t->ends, comm->nranks * sizeof *flow->ends);
    coll->flow = flow;
    tl_turn_wait(t, (struct tl_turn){.time_ns = last_ns,
                                     .order = comm->index,
                                     .flow = flow,
                                     .kind = TL_TURN_BEGIN});
    return true;
}

void tl_flow_begin(struct crystal_timeline *t, struct tl_flow *flow)
{
    const struct tl_comm *comm = flow->comm;

    for (uint32_t k = 0; k < comm->nranks; k++) {
        struct tl_nic *nic = nic_of(t, comm, k);
        uint64_t before = load_of(nic);

        nic->load += flow->asks;
        nic_changed(t, nic, before, flow->last_ns);
        flow->uses[k] = (struct tl_use){flow, nic->uses};
        nic->uses = &flow->uses[k];
    }
    speed(t, flow, flow->last_ns, fullest(t, flow));
}

/* Waits this lane for somebody else? Not where it is in a collective whose end is
 * known. */
static bool lane_waits(const struct tl_rank *r, const struct tl_lane *lane)
{
    const struct tl_local *local = &r->locals[lane->local];

    if (!lane->outstanding)
        return false;
    for (const struct tl_coll *coll = local->comm->colls; coll; coll = coll->next)
        if (coll->flow && coll->arrive[local->crank] != UINT64_MAX)
            return false;
    return true;
}

bool tl_flow_is_open(struct crystal_timeline *t, const struct tl_turn *turn)
{
    const struct tl_comm *comm = turn->flow->comm;

    if (turn->seq != turn->flow->turn)
        return false; /* it is no end any more */
    for (uint32_t k = 0; k < comm->nranks; k++) {
        const struct tl_rank *r = &t->ranks[comm->members[k]];

        if (!t->lists[crystal_graph_rep_of(t->config.graph, comm->members[k])].overlaps)
            continue;
        if (r->state == TL_OUTSIDE)
            return true;
        for (uint32_t i = 0; i < r->list->lane_count; i++)
            if (lane_waits(r, &r->lanes[i]))
                return true;
    }
    return false;
}

void tl_flow_end(struct crystal_timeline *t, const struct tl_turn *turn)
{
    struct tl_flow *flow = turn->flow;
    struct tl_comm *comm = flow->comm;
    struct tl_coll *coll = flow->coll;
    uint64_t held_ns;

    if (turn->seq != flow->turn)
        return; /* its speed has changed since */
    held_ns = turn->time_ns - flow->last_ns - flow->alone_ns;
    flow->turn++; /* what still waits is older */
    for (uint32_t k = 0; k < comm->nranks; k++) {
        struct tl_nic *nic = nic_of(t, comm, k);
        struct tl_use **place = &nic->uses;
        uint64_t before = load_of(nic);

        while (*place != &flow->uses[k])
            place = &(*place)->next;
        *place = flow->uses[k].next;
        nic->load -= flow->asks;
        nic_changed(t, nic, before, turn->time_ns);
    }
    coll->flow = NULL;
    tl_coll_end(t, comm, coll, flow->ends, held_ns);
    flow->spare = comm->flows;
    comm->flows = flow;
}
