/* What the files of the timeline share: nodes (work with an end that may not be known
 * yet), ranks, collectives and messages under way. Include timeline.h instead.
 */
#ifndef CRYSTAL_TIMELINE_INTERNAL_H
#define CRYSTAL_TIMELINE_INTERNAL_H

#include "runtime/timeline.h"

#include <stdbool.h>
#include <stddef.h>

struct tl_node;
struct tl_rank;
struct tl_coll;
struct tl_message;

struct tl_edge { /* to a node that waits for the one that has the list */
    struct tl_node *to;
    struct tl_edge *next;
};

enum tl_kind { TL_JOIN, TL_COLL, TL_SEND, TL_RECV };

/* One piece of work of one rank. Counted references: stream and communicator ends,
 * events, the host that waits, and one until its end is known. */
struct tl_node {
    uint32_t refs;
    uint32_t
        waits; /* nodes without an end that it waits for, and one while it is made */
    enum tl_kind kind;
    bool is_ended;
    uint64_t ready_ns; /* the latest end it has seen so far */
    uint64_t end_ns;
    struct tl_edge *dependents;
    struct tl_rank *waiter; /* whose host waits for it */
    struct tl_rank *rank;
    struct tl_node *next; /* in the list of ended or of free ones */
    uint64_t iteration;
    uint32_t instr;
    uint32_t crank;
    struct tl_coll *coll;       /* COLL */
    struct tl_message *message; /* SEND, RECV */
    uint64_t egress_ns;         /* JOIN: when the sender's NIC is free again */
};

/* One collective under way. */
struct tl_coll {
    uint64_t *arrive;       /* by crank */
    struct tl_node **nodes; /* by crank; NULL for outside members and old ones */
    uint8_t *has_arrived;   /* by crank */
    uint32_t arrived, inside_arrived;
    bool is_described, is_ended, is_told;
    uint8_t func, dtype;
    uint32_t root;
    uint64_t count;
    uint64_t seq;
    struct tl_comm *comm;
};

struct tl_comm {
    uint32_t index, nranks, inside_count;
    const uint32_t *members;
    uint64_t *before; /* by crank: collectives before its iterations */
    struct tl_coll *
        *colls;          /* ring by seq, NULL where not begun; capacity a power of 2 */
    uint64_t first, end; /* seqs in the ring */
    uint32_t capacity;
};

/* One message under way. */
struct tl_message {
    struct tl_pair *pair;
    struct tl_message *next;     /* of its pair, by seq */
    struct tl_node *send, *recv; /* NULL: outside, ended or not there yet */
    struct tl_node *batch; /* join of the sender's group, whose egress_ns counts */
    uint64_t seq, send_ns, recv_ns, bytes;
    bool has_send, has_recv;
};

/* All messages from one crank to another on one communicator. */
struct tl_pair {
    uint32_t comm, from, to;
    bool send_inside, recv_inside;
    uint64_t send_before, recv_before; /* before the iterations */
    uint64_t over;                     /* behind the last one that has ended */
    struct tl_message *messages;
    struct tl_pair *next; /* in its bucket */
};

enum tl_state { TL_OUTSIDE, TL_RUNS, TL_WAITS, TL_BEYOND, TL_DONE };

struct tl_rank {
    uint32_t lrank;
    enum tl_state state;
    const struct crystal_program *program;
    const uint64_t *gap_ns;
    uint64_t tail_ns;
    uint32_t pc;
    bool gap_done; /* the computation before instruction pc is in host_ns */
    bool in_group;
    uint32_t group_begin;
    uint64_t iteration, begin_ns, host_ns;
    struct tl_node *awaited;
    struct tl_node **stream_end; /* by stream; NULL: nothing under way */
    struct tl_node **comm_end;   /* by local communicator */
    struct tl_node **event;      /* by slot */
    uint64_t *coll_seq;          /* by local: of the next collective */
    struct tl_comm **comm;       /* by local */
    struct tl_pair **pair;       /* by program pair */
    uint64_t *pair_seq;
    struct tl_rank *next; /* in the queue of those that can run, or of those beyond */
};

struct crystal_timeline {
    struct crystal_timeline_config config;
    struct tl_rank *ranks; /* by lrank */
    uint32_t lrank_count;
    struct tl_comm *comms;
    uint32_t comm_count;
    struct tl_pair **buckets;
    uint32_t bucket_count;
    bool is_started;
    uint64_t start_ns, until_ns;
    struct tl_rank *run_head, *run_tail; /* queue of ranks that can go on */
    struct tl_rank *beyond;
    struct tl_node *ended_head, *ended_tail; /* queue of nodes whose end is news */
    struct tl_node *free_nodes;
    struct tl_edge *free_edges;
    struct tl_message *free_messages;
    void **slabs; /* every block of memory for the three above */
    size_t slab_count, slab_capacity;
    uint64_t *ends, *scratch; /* nranks and 2 nranks of the greatest communicator */
    uint64_t event_count;
    uint32_t inside_count, done_count;
    int code; /* first failure (out of memory): sticks */
};

/* timeline.c: nodes */
struct tl_node *tl_node_new(struct crystal_timeline *t, enum tl_kind kind,
                            struct tl_rank *rank, uint64_t issue_ns);
void tl_node_put(struct crystal_timeline *t, struct tl_node *node);
/* node waits for other, which may be NULL. */
void tl_node_wait(struct crystal_timeline *t, struct tl_node *node,
                  struct tl_node *other);
/* All its waits were added. */
void tl_node_made(struct crystal_timeline *t, struct tl_node *node);
void tl_node_end(struct crystal_timeline *t, struct tl_node *node, uint64_t end_ns);
/* *place = node, with references. */
void tl_node_set(struct crystal_timeline *t, struct tl_node **place,
                 struct tl_node *node);
struct tl_message *tl_message_new(struct crystal_timeline *t);

/* timeline_coll.c: collectives and messages */
struct tl_coll *tl_coll_get(struct crystal_timeline *t, struct tl_comm *comm,
                            uint64_t seq);
void tl_coll_arrive(struct crystal_timeline *t, struct tl_coll *coll, uint32_t crank,
                    uint64_t time_ns);
struct tl_pair *tl_pair_get(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                            uint32_t to);
/* NULL: it is over already. */
struct tl_message *tl_message_get(struct crystal_timeline *t, struct tl_pair *pair,
                                  uint64_t seq);
void tl_message_arrive(struct crystal_timeline *t, struct tl_message *m, bool sends,
                       uint64_t time_ns);
void tl_coll_free(struct tl_coll *coll);

/* timeline_rank.c: the host thread of a rank */
void tl_rank_run(struct crystal_timeline *t, struct tl_rank *r);
void tl_rank_queue(struct crystal_timeline *t, struct tl_rank *r);

#endif
