/* Collectives under way: who has arrived, and the ends when all have. */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct tl_coll *tl_coll_new(uint32_t nranks)
{
    struct tl_coll *coll =
        malloc(sizeof *coll + nranks * (sizeof coll->arrive[0] + sizeof *coll->seats));

    if (!coll)
        return NULL;
    memset(coll, 0, sizeof *coll);
    coll->seats = (struct tl_seat *)(void *)&coll->arrive[nranks];
    for (uint32_t k = 0; k < nranks; k++) {
        coll->arrive[k] = UINT64_MAX;
        coll->seats[k].lane = TL_NONE;
    }
    return coll;
}

static bool is_inside(const struct crystal_timeline *t, const struct tl_comm *comm,
                      uint32_t crank)
{
    return t->ranks[comm->members[crank]].state != TL_OUTSIDE;
}

struct tl_coll *tl_coll_get(struct crystal_timeline *t, struct tl_comm *comm,
                            uint64_t seq)
{
    struct tl_coll **place = &comm->colls, *coll;

    if (seq < comm->first)
        return NULL; /* over, or from before the iterations */
    while (*place && (*place)->seq < seq)
        place = &(*place)->next;
    if (*place && (*place)->seq == seq)
        return *place;
    coll = comm->spare;
    if (coll)
        comm->spare = coll->next;
    else if (!(coll = tl_coll_new(comm->nranks))) {
        t->code = -ENOMEM;
        return NULL;
    }
    coll->seq = seq;
    coll->arrived = coll->inside_arrived = 0;
    coll->is_described = coll->is_ended = coll->is_told = false;
    coll->flow = NULL;
    coll->next = *place;
    *place = coll;
    /* for some members this one was before the iterations: they have arrived */
    for (uint32_t k = 0; comm->before && k < comm->nranks; k++)
        if (seq < comm->before[k] && is_inside(t, comm, k))
            tl_coll_arrive(t, comm, coll, k, t->start_ns ? t->start_ns : 1);
    return coll;
}

const struct crystal_transfer_plan *tl_coll_plan(struct crystal_timeline *t,
                                                 const struct tl_comm *comm,
                                                 const struct tl_coll *coll)
{
    const uint32_t wire = comm->wire, call = coll->call;
    struct crystal_transfer_plan *plan = &t->plans[wire][call];

    if (!plan->nranks) {
        const struct tl_call *c = &t->calls[call];
        struct crystal_transfer_op op = {.func = c->func,
                                         .nranks = c->nranks,
                                         .root = c->root,
                                         .count = c->count,
                                         .way = c->way,
                                         .elt_bytes =
                                             (uint32_t)crystal_dtype_bytes(c->dtype)};

        crystal_transfer_plan_init(plan, &t->wires[wire], &op);
        if (crystal_transfer_plan_most_ns(plan) > CRYSTAL_TIMELINE_LONGEST_NS)
            t->code = -ERANGE;
    }
    return plan;
}

/* Puts away those at the front that are over. */
static void trim(struct tl_comm *comm)
{
    while (comm->colls && comm->colls->is_ended && comm->colls->seq == comm->first) {
        struct tl_coll *coll = comm->colls;

        comm->colls = coll->next;
        coll->next = comm->spare;
        comm->spare = coll;
        comm->first++;
    }
}

/* Takes the seats, and leaves the collective as a new one. */
void tl_coll_end(struct crystal_timeline *t, struct tl_comm *comm, struct tl_coll *coll,
                 const uint64_t *ends, uint64_t held_ns)
{
    coll->is_ended = true;
    /* ranks are put on the stack from behind, so that the first one runs first */
    for (uint32_t k = comm->nranks; k-- > 0;) {
        struct tl_seat seat = coll->seats[k];
        uint64_t arrive_ns = coll->arrive[k], end_ns = ends[k] + held_ns;
        struct tl_rank *r;
        uint32_t instr;

        coll->arrive[k] = UINT64_MAX;
        if (seat.lane == TL_NONE)
            continue;
        coll->seats[k].lane = TL_NONE;
        r = &t->ranks[comm->members[k]];
        instr = r->list->code[seat.code].instr;
        if (!t->config.is_untimed)
            end_ns += tl_cost_ns(r->list, instr);
        t->event_count++;
        if (t->config.on_end)
            t->config.on_end(t->config.context, r->lrank, r->lanes[seat.lane].iteration,
                             instr, arrive_ns, end_ns);
        tl_lane_end(t, r, &r->lanes[seat.lane], end_ns);
    }
    trim(comm);
}

/* All have arrived. */
static void coll_move(struct crystal_timeline *t, struct tl_comm *comm,
                      struct tl_coll *coll)
{
    if (t->config.is_untimed)
        memset(t->ends, 0, comm->nranks * sizeof *t->ends);
    if (coll->is_described && !t->config.is_untimed)
        crystal_transfer_plan_ends(tl_coll_plan(t, comm, coll), coll->arrive, t->ends,
                                   t->scratch);
    if (t->config.nics != CRYSTAL_NICS_OF_ALL || !tl_flow_begins(t, comm, coll))
        tl_coll_end(t, comm, coll, t->ends, 0);
}

static void tell(struct crystal_timeline *t, struct tl_comm *comm, struct tl_coll *coll)
{
    coll->is_told = true;
    if (!t->config.on_coll)
        return;
    for (uint32_t k = 0; k < comm->nranks; k++)
        t->ends[k] = is_inside(t, comm, k) ? coll->arrive[k] : 0;
    t->config.on_coll(t->config.context, comm->index, coll->seq, t->ends);
}

/* All inside members are there, and those from outside follow them. */
static void outside_follow(struct crystal_timeline *t, const struct tl_comm *comm,
                           struct tl_coll *coll)
{
    uint64_t last_ns = 0, after_ns = 0;

    for (uint32_t k = 0; k < comm->nranks; k++) {
        const struct tl_list *list = t->ranks[comm->members[k]].list;
        uint64_t ns;

        if (!is_inside(t, comm, k))
            continue;
        if (coll->arrive[k] > last_ns)
            last_ns = coll->arrive[k];
        if (coll->seats[k].lane == TL_NONE)
            continue;
        ns = t->config.outside_after_ns[list->program->rep]
                                       [list->code[coll->seats[k].code].instr];
        if (ns > after_ns)
            after_ns = ns;
    }
    for (uint32_t k = 0; k < comm->nranks; k++)
        if (!is_inside(t, comm, k))
            coll->arrive[k] = last_ns + after_ns;
    coll->arrived = comm->nranks;
}

void tl_coll_arrive(struct crystal_timeline *t, struct tl_comm *comm,
                    struct tl_coll *coll, uint32_t crank, uint64_t time_ns)
{
    coll->arrive[crank] = time_ns;
    coll->arrived++;
    if (comm->inside_count < comm->nranks) {
        coll->inside_arrived += is_inside(t, comm, crank);
        if (!coll->is_told && coll->inside_arrived == comm->inside_count)
            tell(t, comm, coll);
        if (t->config.outside_after_ns && coll->inside_arrived == comm->inside_count)
            outside_follow(t, comm, coll);
    }
    if (coll->arrived < comm->nranks)
        return;
    coll_move(t, comm, coll);
}
