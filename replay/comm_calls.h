/* What one rank calls on one communicator, in order and for ever: either what its
 * recording has from before the iterations and then its last iteration again and again,
 * as the timeline has it; or the whole recording, with what comes behind the
 * iterations, and then the last iteration again and again, as recorded contributions
 * are found.
 *
 * The net plugin numbers what the library tells it: the collectives that are done over
 * rings or trees, and the messages of each pair of ranks and direction. The graph
 * numbers collectives of all kinds, and those messages that are calls of their own.
 * They differ because NCCL makes an all-to-all, a gather or a scatter of messages and
 * does not say so (2.28.9: its profiler events call each one a send or a receive), and
 * because it leaves out collectives of no elements (crystal_op_is_empty), as the
 * timeline does. A walk goes from one numbering to the others.
 *
 * Immutable after create: several threads may walk, each with a walk of its own.
 */
#ifndef CRYSTAL_COMM_CALLS_H
#define CRYSTAL_COMM_CALLS_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdbool.h>
#include <stdint.h>

struct crystal_comm_calls;

struct crystal_comm_call {
    uint8_t func; /* SEND and RECV are calls of their own */
    uint8_t dtype;
    bool is_empty;  /* a collective of no elements */
    uint32_t peer;  /* crank: who is sent to or received from; root of a collective */
    uint64_t count; /* elements */
};

/* What a walk looks for. */
enum crystal_calls_what {
    CRYSTAL_CALLS_COLLECTIVES, /* those that are not made of messages */
    CRYSTAL_CALLS_SENDS,       /* messages of this rank to the peer */
    CRYSTAL_CALLS_RECEIVES,    /* messages of the peer to this rank */
    CRYSTAL_CALLS_GATHERED,    /* those of SENDS that the peer gathers */
    CRYSTAL_CALLS_SCATTERED    /* those of RECEIVES that the peer scatters */
};

/* Where a walk stands; set what and peer, all else 0, to begin. */
struct crystal_calls_walk {
    enum crystal_calls_what what;
    uint32_t peer;
    uint64_t found;       /* so many of what it looks for */
    uint64_t next;        /* call, counted for ever */
    uint64_t collectives; /* before it, of all kinds */
    uint64_t empty;       /* of these, of no elements */
    uint64_t messages;    /* before it, with the peer, that are calls of their own */
};

struct crystal_calls_found {
    const struct crystal_comm_call *call; /* borrowed from the calls; NULL: none */
    uint64_t seq; /* as the graph counts: of the collective; of the message where it is
                     a call of its own */
    uint64_t timed_seq; /* the same as the timeline counts: without collectives of no
                           elements */
    bool is_timed; /* it belongs to an iteration, also to one that was only begun */
};

/* Calls of lrank, a member, on the graph's communicator comm, as the timeline has them.
 * NULL where memory ends; caller destroys, after which nothing found is valid. */
struct crystal_comm_calls *crystal_comm_calls_create(const struct crystal_graph *g,
                                                     uint32_t comm, uint32_t lrank,
                                                     struct crystal_error *err);
/* The same, as they were recorded to the end. A recording that was stopped within an
 * iteration goes on with the rest of it; where the program ended by itself, what is
 * behind its last iteration belongs to none. */
struct crystal_comm_calls *crystal_comm_calls_recorded(const struct crystal_graph *g,
                                                       uint32_t comm, uint32_t lrank,
                                                       struct crystal_error *err);
void crystal_comm_calls_destroy(struct crystal_comm_calls *calls); /* NULL is fine */

/* The next one of what the walk looks for; false where the iterations have none and
 * those before them are over. */
bool crystal_comm_calls_next(const struct crystal_comm_calls *calls,
                             struct crystal_calls_walk *walk,
                             struct crystal_calls_found *ret);

#endif
