/* The timeline: who is when. From the graph, the computation between the records of
 * each rank, and what transfers cost, it computes when every rank reaches and ends
 * every operation. The same engine composes iteration times (all ranks inside), plays
 * the virtual ranks of an emulation (some ranks outside, whose arrivals are fed),
 * predicts, and shows what a deadlock waits for.
 *
 * Rules. The host thread of a rank issues its records in order, with computation
 * between them. Work of one stream runs in order, and so do the operations of one
 * communicator at one rank. The messages of one group run side by side, but share NICs:
 * a sender's sends one after the other as they were given to it, a receiver's takes in
 * as runtime/ingress.h says in the order in which both sides are ready, and what is
 * ready at once comes in NCCL's rounds: first to the next rank, then to the one behind
 * it. Messages between two ranks on one node go another way, and share that. A message
 * leaves when its sender's NIC has time for it, its receiver has posted it and the one
 * before it, of the same two ranks, has left: the plugin's rules. Where collectives
 * share NICs, too, each asks for the share of its time alone in which it uses them;
 * where the shares at the NIC of one of its members are more than the whole, it goes on
 * slower by as much (timeline_flow.c). KERNEL holds its stream for its duration; WAIT
 * and SYNC hold the host until the work behind the event or on the stream is done;
 * SWAIT holds a stream. When all members have arrived at a collective, transfer.h gives
 * its ends. Where its program says what software costs, an operation ends so much
 * later at that rank alone. An operation from before the iterations counts as ended at
 * the start. A collective of no elements is no operation: nobody waits in it.
 *
 * No rank is merged with another. Ranks of one representative share its list; what is
 * a rank's own is a clock and a queue for each of its streams (architecture.md,
 * "Timeline").
 *
 * Results do not depend on the order of calls, but for what is fed later than others
 * that share a NIC with it and came behind it: those keep their time. For collectives
 * of ranks that have operations of several streams under way at once that is only what
 * is fed later than crystal_timeline_settle says. Times are
 * CLOCK_MONOTONIC ns of whoever feeds them. One thread at a time per timeline.
 * Callbacks run inside start, feed and advance and may not call back.
 */
#ifndef CRYSTAL_TIMELINE_H
#define CRYSTAL_TIMELINE_H

#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/network.h"
#include "runtime/program.h"
#include "runtime/transfer.h"

#include <stdint.h>

/* One operation, the computation of one iteration, or a latency takes at most this
 * (31 years), and no time is later than four times as much: what exceeds it is -ERANGE,
 * so that no time wraps around. */
#define CRYSTAL_TIMELINE_LONGEST_NS UINT64_C(1000000000000000000)

struct crystal_timeline;

/* What shares a rank's NIC. */
enum crystal_timeline_nics {
    CRYSTAL_NICS_OF_GROUPS,   /* the messages of one group, each group by itself */
    CRYSTAL_NICS_OF_MESSAGES, /* all messages, whatever their communicators */
    CRYSTAL_NICS_OF_ALL       /* collectives, too */
};

/* Computation as it was in some iterations of a representative. */
struct crystal_timeline_samples {
    uint32_t count;         /* of ranks that draw together: as many */
    const uint64_t *gap_ns; /* [count][instr_count]; borrowed until destroy */
};

struct crystal_timeline_config {
    const struct crystal_graph *graph;       /* borrowed until destroy */
    struct crystal_program *const *programs; /* by representative; borrowed */
    const uint64_t *const *gap_ns;           /* by representative and instruction:
                                                computation before it; borrowed */
    const struct crystal_timeline_samples
        *samples; /* by representative: where count is not 0, its ranks draw one of
                     them for each iteration, evenly, in place of gap_ns. The first
                     ranks of all representatives draw the same number, as do the second
                     ones, and so on: what ranks measured together stays together.
                     Borrowed until create; may be NULL */
    int draws_together;      /* all ranks draw the same number */
    const uint64_t *tail_ns; /* by representative: computation behind the last
                                instruction of an iteration; borrowed; may be NULL */
    struct crystal_transfer_wire wire;
    const struct crystal_network *network; /* instead of wire; borrowed until create has
                                              returned; may be NULL */
    uint32_t jitter_ppm;       /* computation of every rank and instruction is longer or
                                  shorter by up to so much, evenly; at most 1000000 */
    uint64_t seed;             /* of jitter and samples: equal seeds give equal times */
    const uint32_t *scale_ppm; /* by lrank: its computation takes so many millionths of
                                  its time; borrowed until create; may be NULL */
    const uint8_t *is_outside; /* by lrank: its arrivals are fed; NULL: none is */
    const uint64_t *const *outside_after_ns; /* by representative and instruction:
                                  outside ranks are not fed, but come to an operation so
                                  long after the inside rank that does it (after the
                                  last one, by the longest of its members); borrowed;
                                  may be NULL */
    int one_queue; /* all streams of a rank share one hardware queue: work begins in the
                      order in which the host issues it */
    enum crystal_timeline_nics nics;
    int ignores_algos;   /* of records: all are as the wire says */
    int is_untimed;      /* only who waits for whom: transfers take no time */
    uint64_t iterations; /* to run; 0: for ever */
    uint64_t
        slow_ppm_of_one; /* computation of slow_lrank is longer by so much; 0: none */
    uint32_t slow_lrank;
    void *context; /* of the callbacks, each of which may be NULL */
    /* A collective with at least one outside member: all inside members' arrivals are
     * known, by crank (0 for outside members). */
    void (*on_coll)(void *context, uint32_t comm, uint64_t seq, const uint64_t *arrive);
    /* An inside rank has arrived at a message whose other side is outside; where it
       sends, arrive_ns is when its NIC has time for it. */
    void (*on_p2p)(void *context, uint32_t comm, uint32_t from, uint32_t to,
                   uint64_t seq, int inside_sends, uint64_t arrive_ns);
    /* The host of an inside rank went through an iteration, 0 is the first. */
    void (*on_iteration)(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns);
    /* An inside rank has ended an operation (COLL, SEND, RECV). */
    void (*on_end)(void *context, uint32_t lrank, uint64_t iteration, uint32_t instr,
                   uint64_t arrive_ns, uint64_t end_ns);
};

/* Checks that the members of each communicator agree in how many collectives they do.
 * The config's own struct is copied. NULL on failure. */
struct crystal_timeline *
crystal_timeline_create(const struct crystal_timeline_config *config,
                        struct crystal_error *err);
void crystal_timeline_destroy(struct crystal_timeline *t);

/* Lets all inside ranks begin their first iteration at now_ns. Once. */
int crystal_timeline_start(struct crystal_timeline *t, uint64_t now_ns,
                           struct crystal_error *err);
/* An outside rank has arrived at a collective. seq counts from the communicator's first
 * collective, without those of no elements. A second time for the same is ignored. */
int crystal_timeline_feed(struct crystal_timeline *t, uint32_t comm, uint64_t seq,
                          uint32_t crank, uint64_t time_ns, struct crystal_error *err);
/* The same for the seq-th message between two cranks, of which the outside one is the
 * sender or not. A sender's time is when its NIC has time for the message. */
int crystal_timeline_feed_p2p(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                              uint32_t to, uint64_t seq, int outside_sends,
                              uint64_t time_ns, struct crystal_error *err);
/* Goes on until nothing can happen without being fed, or only beyond until_ns: hosts
 * stop there, and streams in front of kernels. */
int crystal_timeline_advance(struct crystal_timeline *t, uint64_t until_ns,
                             struct crystal_error *err);

/* What is fed from now on is not earlier than settled_ns; UINT64_MAX, as create has it:
 * nothing is fed that could share a NIC with what is under way. advance leaves the end
 * of a collective behind that alone as long as something may be fed that makes it
 * later. */
void crystal_timeline_settle(struct crystal_timeline *t, uint64_t settled_ns);
/* When the earliest one of these ends as far as is known; UINT64_MAX: there is none. */
uint64_t crystal_timeline_held_ns(struct crystal_timeline *t);

/* 1 where every inside rank has gone through config.iterations. */
int crystal_timeline_is_done(const struct crystal_timeline *t);
/* What holds up the first rank that has not: a sentence for err, returns -EDEADLK; 0
 * where all are done. */
int crystal_timeline_explain(const struct crystal_timeline *t,
                             struct crystal_error *err);
/* Why nothing goes on, once advance has come back: rank after rank, each waits for the
 * next. The last one either waits for one before it, which closes a cycle, or has ended
 * its iterations, or waits for a rank from outside. */
struct crystal_timeline_wait {
    uint32_t lrank;
    uint32_t instr; /* what it waits in, NONE (UINT32_MAX): it has ended */
    uint32_t comm;
    uint64_t seq;       /* of the collective, or of the message of this pair */
    uint32_t for_lrank; /* who has not arrived there; UINT32_MAX: nobody is missing */
    uint32_t missing_count; /* members of a collective that have not */
};
/* At most capacity steps from the first rank that is not done. Returns how many, 0
 * where all are done; *ret_cycle is the step with which the cycle begins, capacity
 * where there is none. */
uint32_t crystal_timeline_witness(const struct crystal_timeline *t,
                                  struct crystal_timeline_wait *steps,
                                  uint32_t capacity, uint32_t *ret_cycle);
/* Operations of inside ranks that have ended so far: collectives, sends, receives and
 * kernels. */
uint64_t crystal_timeline_event_count(const struct crystal_timeline *t);

#endif
