/* What the files of the driver share: the board as the driver has seen it. Include
 * driver.h instead.
 */
#ifndef CRYSTAL_DRIVER_INTERNAL_H
#define CRYSTAL_DRIVER_INTERNAL_H

#include "replay/comm_calls.h"
#include "replay/driver.h"
#include "replay/driver_far.h"
#include "replay/node_links.h"
#include "runtime/graph.h"
#include "runtime/profile_file.h"
#include "runtime/program.h"
#include "runtime/timeline.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Arrivals that the timeline told before a sandbox rank came to the operation. */
struct dr_known {
    struct dr_known *next; /* in its bucket */
    struct dr_key {
        uint32_t comm; /* of the graph */
        bool is_p2p;
        uint32_t from, to; /* p2p */
        uint64_t seq;
    } key;
    uint64_t asked;       /* messages that have used it, of a collective made of them */
    uint64_t arrive_ns[]; /* by crank; p2p: the virtual side's */
};

/* All of them, found by their keys; owned. */
struct dr_knowns {
    struct dr_known **buckets; /* [bucket_count] */
    uint64_t bucket_count;     /* a power of 2, 0: none yet */
    uint64_t count;
};

enum dr_stage { DR_CLOSED, DR_OPEN, DR_TOLD, DR_FREED };

/* A walk through a rank's calls, and what operations of the board are by slot. */
struct dr_walk {
    struct crystal_calls_walk timed, recorded;
    struct crystal_calls_found found[CRYSTAL_BOARD_SLOTS];
    /* what was recorded in its place behind the last iteration; NULL: nothing */
    const struct crystal_comm_call *behind[CRYSTAL_BOARD_SLOTS];
};

/* One direction between a sandbox rank and a virtual one. */
struct dr_pair {
    bool is_seen;
    struct dr_walk walk;  /* through the virtual rank's calls */
    uint64_t first, next; /* oldest that is not freed; not open yet */
    uint8_t stage[CRYSTAL_BOARD_SLOTS];
    bool is_fed[CRYSTAL_BOARD_SLOTS];
};

/* A sandbox rank has come to a collective that is made of messages. */
struct dr_part {
    struct dr_part *next;
    uint32_t crank;
    bool is_looked_for; /* once more: another message of it may be earlier */
    uint64_t seq;
    uint64_t arrive_ns; /* the earliest of its messages that were seen */
};

/* One communicator of the board. */
struct dr_comm {
    struct crystal_board_comm *entry; /* NULL: not looked at yet */
    /* [nranks]: of members, as the timeline has them, and as they were recorded; made
     * when asked for; owned */
    struct crystal_comm_calls **calls, **recorded;
    uint32_t first_crank;  /* the virtual member whose iterations begin first;
                              UINT32_MAX:  the graph has none */
    struct dr_walk walk;   /* through its collectives */
    struct dr_part *parts; /* that the timeline is not told yet; owned */
    uint64_t *parts_told;  /* [nranks]: it was told all before this; owned */
    uint64_t first, next;  /* as in a pair */
    uint32_t *real;        /* cranks of members that run on this node; owned */
    uint32_t real_count;
    uint32_t *far;      /* those that run on other nodes; owned */
    uint64_t *far_next; /* [far_count]: they have told all before it; owned */
    uint32_t far_count;
    /* the last collective that another node has told, by slot; owned */
    struct crystal_far_arrival *told;
    const uint32_t *members; /* on the board, as is_real */
    const uint8_t *is_real;
    uint8_t stage[CRYSTAL_BOARD_SLOTS];
    uint8_t *is_fed;       /* [SLOTS][real_count]; owned */
    struct dr_pair *pairs; /* [pair_capacity]; owned; made when one comes */
};

/* A message of another node. */
struct dr_letter {
    unsigned type;
    union {
        struct crystal_far_arrival arrival;
        struct crystal_far_start start;
        uint32_t why;
    } body;
};

struct crystal_driver {
    struct crystal_links *links;       /* NULL: alone */
    uint8_t *has_local;                /* by graph communicator; NULL: alone */
    bool has_asked;                    /* node 0 to start */
    pthread_mutex_t inbox_lock;        /* the inbox */
    struct dr_letter *inbox, *letters; /* owned; the one that is filled, and the one
                                          that is read */
    size_t inbox_count, inbox_room, letters_room;
    struct crystal_board *board;
    struct crystal_board_header *head;
    const struct crystal_layout *layout;
    struct crystal_graph *graph; /* NULL without a profile, as all down to known */
    struct crystal_profile *profile;
    struct crystal_program **programs; /* by representative */
    uint64_t **gaps;
    uint8_t *is_outside; /* by lrank */
    uint32_t rep_count;
    struct crystal_timeline *timeline;
    struct dr_knowns known;
    struct dr_comm *comms; /* [comm_capacity] by the board's index */
    bool is_started;       /* the first iteration has begun */
    bool is_free; /* the program left its pattern: virtual ranks have always arrived */
    bool is_failed;
    uint64_t setup_end_ns; /* of the last set-up operation */
    uint64_t quiet_ns;     /* that long without news means that nothing can happen */
    uint64_t news_ns;      /* when the board last changed */
    uint32_t open_count;   /* operations under way at the last look */
    uint32_t stuck_count;  /* of those: all sandbox members there, virtual ones not */
    pthread_t thread;
    bool has_thread;
    _Atomic int stop; /* set by destroy */
};

#define DR_LONG_AGO 1U /* as an arrival on the board */

/* driver_board.c: one look at the board; returns whether anything was new. */
bool dr_board_look(struct crystal_driver *d, uint64_t now_ns);
void dr_board_fini(struct crystal_driver *d);
/* Tells the timeline, here and elsewhere, that a rank of this node has come to a
 * collective. func and what follows it are compared elsewhere unless func is 0. */
int dr_coll_arrive(struct crystal_driver *d, const struct dr_comm *dc,
                   struct crystal_far_arrival *arrival, uint64_t arrive_ns);

/* driver_calls.c: what the operations of a communicator are. dr_calls_open finds the
 * virtual member whose iterations begin first; dc->calls and recorded are there. */
void dr_calls_open(struct crystal_driver *d, struct dr_comm *dc);
void dr_calls_close(struct dr_comm *dc);
/* Takes the next step of a walk through the member's calls: sets what operation seq of
 * the board is. crank UINT32_MAX: not known. */
void dr_calls_find(struct crystal_driver *d, struct dr_comm *dc, uint32_t crank,
                   struct dr_walk *walk, uint64_t seq);
/* Whether collective seq, which is timed and described, is the iteration's, and not
 * another one that was recorded in its place behind the last iteration. */
bool dr_calls_follows(const struct dr_comm *dc, const struct crystal_board_slot *slot,
                      uint64_t seq);
/* The same of a message. */
bool dr_calls_message_follows(const struct dr_walk *walk, uint64_t bytes, uint64_t seq);

/* driver_pairs.c: the same as dr_board_look of a communicator's messages. */
bool dr_pairs_look(struct crystal_driver *d, struct dr_comm *dc, uint64_t now_ns);
void dr_pairs_fini(struct dr_comm *dc);

/* driver_known.c. Takes what is known of one operation; NULL: nothing yet; caller
 * frees. */
struct dr_known *dr_known_take(struct crystal_driver *d, uint32_t comm, bool is_p2p,
                               uint32_t from, uint32_t to, uint64_t seq);
/* The same of a collective for one of its messages; borrowed until dr_known_asked,
 * which says how many ask in all. */
const struct dr_known *dr_known_ask(struct crystal_driver *d, uint32_t comm,
                                    uint64_t seq);
void dr_known_asked(struct crystal_driver *d, uint32_t comm, uint64_t seq,
                    uint64_t count);
void dr_known_fini(struct crystal_driver *d);
void dr_no_memory(struct crystal_driver *d);
/* Callbacks of the timeline. */
void dr_board_on_coll(void *context, uint32_t comm, uint64_t seq,
                      const uint64_t *arrive);
void dr_board_on_p2p(void *context, uint32_t comm, uint32_t from, uint32_t to,
                     uint64_t seq, int inside_sends, uint64_t arrive_ns);

/* driver_far.c: what other nodes have told; returns whether anything was new. */
bool dr_far_look(struct crystal_driver *d);
void dr_far_fini(struct crystal_driver *d);
/* Tells the other nodes of an arrival at this one, if there are any. */
void dr_far_tell(struct crystal_driver *d, struct crystal_far_arrival *arrival);
/* Fails where another node's rank calls something else. */
void dr_far_compare(struct crystal_driver *d, struct dr_comm *dc,
                    struct crystal_board_slot *slot, uint64_t seq);
/* Whether ranks of other nodes have yet to arrive. */
bool dr_far_is_missing(const struct dr_comm *dc, uint64_t seq);
/* Which communicators have a member here. */
int dr_far_init(struct crystal_driver *d, struct crystal_error *err);
bool dr_is_local(const struct crystal_driver *d, uint32_t lrank);
/* From this node's clock to the timeline's, and back; 0 and 1 stay what they are. */
uint64_t dr_job_ns(const struct crystal_driver *d, uint64_t own_ns);
uint64_t dr_own_ns(const struct crystal_driver *d, uint64_t job_ns);

/* driver.c */
void dr_fail(struct crystal_driver *d, const struct crystal_error *err);
/* The program does something else than its iterations: from now on virtual ranks have
 * always arrived. why is FINISHED or STUCK. */
void dr_set_free(struct crystal_driver *d, enum crystal_board_timeline why);
/* Lets the virtual ranks begin their iterations, once, on all nodes. */
void dr_start(struct crystal_driver *d, uint64_t now_ns);
/* The same at this time of the timeline, here. */
void dr_start_at(struct crystal_driver *d, uint64_t job_ns);

#endif
