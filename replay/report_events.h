/* What one run did, call by call: for the drawings of a report. */
#ifndef CRYSTAL_REPORT_EVENTS_H
#define CRYSTAL_REPORT_EVENTS_H

#include <stddef.h>
#include <stdint.h>

/* Most calls that are kept, of the first iterations. */
#define RP_EVENTS_MAX 400000U

struct rp_event {
    uint32_t rank;      /* index in the sandbox */
    uint32_t iteration; /* of the run, from 0 */
    uint32_t comm;      /* of the graph */
    uint32_t peer;      /* lrank of a send or receive, else UINT32_MAX */
    uint8_t kind;       /* CRYSTAL_OP_COLL, SEND or RECV */
    uint8_t func;
    uint64_t seq; /* collectives of one communicator, or messages of one pair and way */
    uint32_t track; /* alike for events of one communicator, way and pair; from 1 */
    uint64_t bytes;
    uint64_t api_ns, arrive_ns, end_ns; /* MEASURED */
    uint64_t virtual_ns; /* of these waited for virtual ranks; MEASURED */
    uint64_t plan_ns;    /* arrive to end; COMPOSED; 0 = none */
    uint32_t waits_for;  /* event of the sandbox rank that came last, or of the sender;
                            UINT32_MAX: none, or itself */
};

/* One iteration of one rank. */
struct rp_mark {
    uint32_t rank, iteration;
    uint64_t begin_ns, end_ns;
};

struct rp_events {
    struct rp_event *list;
    size_t count, capacity;
    uint64_t left_out;
    struct rp_mark *marks;
    size_t mark_count, mark_capacity;
};

/* Return -ENOMEM where there is no memory. Events of one rank come in the order of its
 * calls; seq, track and waits_for are not looked at. */
int rp_events_add(struct rp_events *e, const struct rp_event *event);
int rp_events_mark(struct rp_events *e, const struct rp_mark *mark);
/* Numbers the events (seq, track) and finds whom each waited for. Sorts them by
 * communicator, operation and rank. */
void rp_events_link(struct rp_events *e, const uint32_t *lranks);
void rp_events_fini(struct rp_events *e);

#endif
