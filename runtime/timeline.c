/* The timeline's frame: start, what is fed, the loop that lets ranks go on, and why it
 * does not. See timeline.h for the rules, timeline_internal.h for how it works.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* Hosts may have to run further ahead of their lanes for anything to go on. A lane that
 * only waits for the horizon has time. */
static void rooms_make(struct crystal_timeline *t)
{
    struct tl_rank *r = t->full;

    t->full = NULL;
    while (r && !t->code) {
        struct tl_rank *next = r->next_full;

        r->is_full = false;
        if (r->state == TL_WAITS_ROOM && !r->lanes[r->wait_lane].is_beyond)
            tl_rank_room(t, r);
        r = next;
    }
}

/* A turn of which what is fed later may change the time has to wait for that. */
static bool first_is_held(struct crystal_timeline *t)
{
    const struct tl_turn *turn = t->turns;

    return t->turn_count && turn->time_ns > t->settled_ns &&
           turn->kind == TL_TURN_END && tl_flow_is_open(t, turn);
}

static void go_on(struct crystal_timeline *t)
{
    while (!t->code) {
        if (t->stack) {
            struct tl_rank *r = t->stack;

            t->stack = r->next;
            tl_rank_run(t, r);
        } else if (t->full) {
            rooms_make(t);
        } else if (t->turn_count && t->turns[0].time_ns <= t->until_ns &&
                   !first_is_held(t)) {
            tl_turn_next(t);
        } else {
            return;
        }
    }
}

int tl_error(int code, struct crystal_error *err)
{
    if (code == -ERANGE)
        return crystal_error_set(err, ERANGE,
                                 "an operation or an iteration takes longer than 31 "
                                 "years, more than is counted; make latencies or "
                                 "durations smaller, or bandwidths greater");
    return crystal_error_set(err, -code, "timeline: %s",
                             code == -ENOMEM ? "out of memory"
                                             : "an operation that is over again");
}

static int outcome(const struct crystal_timeline *t, struct crystal_error *err)
{
    return t->code ? tl_error(t->code, err) : 0;
}

/* The rank with the earliest time among those beyond the horizon. */
static void beyond_pop(struct crystal_timeline *t)
{
    struct tl_rank *r = &t->ranks[t->beyond[0].lrank];
    struct tl_beyond last = t->beyond[--t->beyond_count];
    uint32_t i = 0, child;

    while ((child = 2 * i + 1) < t->beyond_count) {
        if (child + 1 < t->beyond_count &&
            t->beyond[child + 1].time_ns < t->beyond[child].time_ns)
            child++;
        if (t->beyond[child].time_ns >= last.time_ns)
            break;
        t->beyond[i] = t->beyond[child];
        i = child;
    }
    t->beyond[i] = last;
    tl_rank_within(t, r);
}

int crystal_timeline_advance(struct crystal_timeline *t, uint64_t until_ns,
                             struct crystal_error *err)
{
    t->until_ns = until_ns;
    while (t->beyond_count && t->beyond[0].time_ns <= until_ns)
        beyond_pop(t);
    if (t->is_started)
        go_on(t);
    return outcome(t, err);
}

void crystal_timeline_settle(struct crystal_timeline *t, uint64_t settled_ns)
{
    t->settled_ns = settled_ns;
}

uint64_t crystal_timeline_held_ns(struct crystal_timeline *t)
{
    return first_is_held(t) ? t->turns[0].time_ns : UINT64_MAX;
}

int crystal_timeline_start(struct crystal_timeline *t, uint64_t now_ns,
                           struct crystal_error *err)
{
    if (t->is_started)
        return crystal_error_set(err, EALREADY, "timeline: started twice");
    t->is_started = true;
    t->start_ns = now_ns;
    for (uint32_t i = t->lrank_count; i-- > 0;)
        if (t->ranks[i].state != TL_OUTSIDE) {
            t->ranks[i].host_ns = t->ranks[i].begin_ns = now_ns;
            tl_rank_queue(t, &t->ranks[i]);
        }
    return outcome(t, err);
}

/* What comes from outside comes at most so many operations before it is its turn, and
 * leaves room for what follows. */
#define FED_AHEAD     65536U
#define FED_LATEST_NS (4 * CRYSTAL_TIMELINE_LONGEST_NS)

static int too_late(struct crystal_error *err)
{
    return crystal_error_set(err, ERANGE,
                             "timeline: fed with a time later than 124 years");
}

static int too_far(struct crystal_error *err)
{
    return crystal_error_set(
        err, EINVAL, "timeline: fed with an operation more than %u before its turn",
        FED_AHEAD);
}

int crystal_timeline_feed(struct crystal_timeline *t, uint32_t comm, uint64_t seq,
                          uint32_t crank, uint64_t time_ns, struct crystal_error *err)
{
    struct tl_coll *coll;

    if (time_ns > FED_LATEST_NS)
        return too_late(err);
    if (comm >= t->comm_count || crank >= t->comms[comm].nranks ||
        t->ranks[t->comms[comm].members[crank]].state != TL_OUTSIDE)
        return crystal_error_set(err, EINVAL, "timeline: fed for no outside rank");
    if (seq > t->comms[comm].first && seq - t->comms[comm].first > FED_AHEAD)
        return too_far(err);
    coll = tl_coll_get(t, &t->comms[comm], seq);
    if (coll && !coll->is_ended && coll->arrive[crank] == UINT64_MAX)
        tl_coll_arrive(t, &t->comms[comm], coll, crank, time_ns);
    return outcome(t, err);
}

int crystal_timeline_feed_p2p(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                              uint32_t to, uint64_t seq, int outside_sends,
                              uint64_t time_ns, struct crystal_error *err)
{
    struct tl_message *m = NULL;
    struct tl_pair *pair;

    if (time_ns > FED_LATEST_NS)
        return too_late(err);
    if (comm >= t->comm_count || from >= t->comms[comm].nranks ||
        to >= t->comms[comm].nranks ||
        t->ranks[t->comms[comm].members[outside_sends ? from : to]].state != TL_OUTSIDE)
        return crystal_error_set(err, EINVAL, "timeline: fed for no outside rank");
    pair = tl_pair_find(t, comm, from, to);
    if (!pair)
        return crystal_error_set(err, EINVAL,
                                 "timeline: fed a message that no rank expects");
    if (seq > pair->first && seq - pair->first > FED_AHEAD)
        return too_far(err);
    m = tl_message_get(t, pair, seq);
    if (m && outside_sends && !m->has_send) {
        m->send_ns = time_ns;
        tl_message_sent(t, pair, seq, time_ns, 0);
    } else if (m && !outside_sends && !m->has_recv) {
        tl_message_posted(t, pair, seq, time_ns);
    }
    return outcome(t, err);
}

uint64_t crystal_timeline_event_count(const struct crystal_timeline *t)
{
    return t->event_count;
}

int crystal_timeline_is_done(const struct crystal_timeline *t)
{
    return t->done_count == t->inside_count;
}

/* --- why nothing happens --- */

/* A crank that has not arrived, or NONE. */
static uint32_t missing(const struct tl_comm *comm, const struct tl_coll *coll)
{
    for (uint32_t k = 0; !coll->is_ended && k < comm->nranks; k++)
        if (coll->arrive[k] == UINT64_MAX)
            return k;
    return TL_NONE;
}

/* Waits the rank in a collective of this communicator? */
static int explain_comm(const struct crystal_timeline *t, uint32_t lrank, uint32_t c,
                        struct crystal_error *err)
{
    const struct tl_comm *comm = &t->comms[c];
    uint32_t own = crystal_graph_crank_of(t->config.graph, c, lrank);

    for (const struct tl_coll *coll = comm->colls; own != TL_NONE && coll;
         coll = coll->next) {
        uint32_t crank = missing(comm, coll);

        if (crank != TL_NONE && coll->arrive[own] != UINT64_MAX)
            return crystal_error_set(
                err, EDEADLK,
                "rank %u waits in collective %" PRIu64
                " of communicator %u for rank %u, which never arrives",
                lrank, coll->seq, c, comm->members[crank]);
    }
    return 0;
}

int crystal_timeline_explain(const struct crystal_timeline *t,
                             struct crystal_error *err)
{
    for (uint32_t i = 0; i < t->lrank_count; i++) {
        const struct tl_rank *r = &t->ranks[i];
        int code = 0;

        if (r->state == TL_OUTSIDE || r->state == TL_DONE)
            continue;
        for (uint32_t c = 0; !code && c < t->comm_count; c++)
            code = explain_comm(t, i, c, err);
        if (code)
            return code;
        return crystal_error_set(
            err, EDEADLK,
            "rank %u waits in iteration %" PRIu64 " (record %" PRIu64
            ") for a message that is never sent or received",
            i, r->iteration,
            r->list->program->instrs[r->list->code[r->code].instr].record);
    }
    return 0;
}

/* --- making --- */

struct crystal_timeline *
crystal_timeline_create(const struct crystal_timeline_config *config,
                        struct crystal_error *err)
{
    struct crystal_timeline *t = calloc(1, sizeof *t);

    if (!t) {
        (void)crystal_error_set(err, ENOMEM, "timeline: out of memory");
        return NULL;
    }
    t->config = *config;
    t->settled_ns = UINT64_MAX;
    if (tl_make(t, err)) {
        crystal_timeline_destroy(t);
        return NULL;
    }
    t->config.network = NULL; /* borrowed until here only */
    t->config.scale_ppm = NULL;
    t->config.samples = NULL;
    return t;
}

void crystal_timeline_destroy(struct crystal_timeline *t)
{
    if (!t)
        return;
    tl_unmake(t);
    free(t);
}
