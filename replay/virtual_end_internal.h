/* Shared by the files that make ends whose other side is a virtual rank.
 */
#ifndef CRYSTAL_VIRTUAL_END_INTERNAL_H
#define CRYSTAL_VIRTUAL_END_INTERNAL_H

#include "replay/assist_recipe.h"
#include "replay/net.h"
#include "replay/net_assist.h"
#include "replay/net_rings.h"
#include "replay/virtual_feed.h"
#include "replay/virtual_time.h"
#include "replay/virtual_tree.h"
#include "runtime/ring_schedule.h"

/* What is the same for all messages of a ring's operation on an end. */
struct virtual_ring {
    const struct crystal_operation *of; /* with this generation; NULL: none yet */
    uint32_t generation;
    struct crystal_ring_op op;
    const struct crystal_ring_place *place;
    uint64_t count; /* of messages at this end */
    /* sender: the way to the real rank behind the run, which hears of the first ones */
    struct crystal_vt_path path;
    uint64_t heard;
};

/* The real wire at an end. The last CRYSTAL_NET_REQUESTS of something are kept. */
struct virtual_wire {
    struct crystal_assist *assist; /* NULL: the wire is modelled; owned */
    /* receiver: what the message that is being made is made of */
    struct crystal_recipe *recipe; /* owned; a sender has none */
    /* the real rank on the other side of the run, and whether its assistant is ours */
    uint32_t partner;
    int is_shared; /* -1: not asked yet */
    /* receiver: requests whose bytes are under way, oldest first */
    struct crystal_net_request *asked[CRYSTAL_NET_REQUESTS];
    void *places[CRYSTAL_NET_REQUESTS]; /* of those: where messages with flags arrive;
                                           owned, NULL: in the request's own place */
    uint64_t ask_head, ask_tail;
    /* sender, places in the end's queue: up to which requests were begun, given and
     * taken, and when */
    uint64_t begun, given, taken;
    uint64_t begin_ns[CRYSTAL_NET_REQUESTS], taken_ns[CRYSTAL_NET_REQUESTS];
};

struct virtual_end {
    struct crystal_net_end base;
    struct virtual_ring ring; /* of the last operation */
    uint64_t link_free_ns;    /* receiver: the messages before have left */
    /* receiver: crystal_lines_news + 1 when the oldest request's message was not there;
     * 0: it has not been asked for */
    uint64_t wanted;
    /* receiver: steps of NCCL's connection, for flags: up to the present operation and
     * with all that were announced */
    uint64_t base_step, next_step;
    /* sender: the feeds to the processes behind virtual ranks, in a ring there is one
     */
    struct crystal_tree_hearers hearers; /* tree: of the message that is being fed */
    int *feed_fds;                       /* by hearer, -1: not connected; owned */
    uint32_t feed_count, fed;            /* hearers that have this message */
    int is_feeding;
    uint64_t written;
    struct crystal_feed_message out;
    struct virtual_wire wire;
};

extern const struct crystal_net_end_ops crystal_virtual_send_ops;

/* Stops everybody with the sentence; returns the code. */
int crystal_virtual_stop(const struct crystal_net_end *end, int code,
                         struct crystal_error *err);
/* Whether the request's operation is known and of the end's communicator. */
int crystal_virtual_check(const struct crystal_net_end *end,
                          const struct crystal_net_request *r,
                          struct crystal_error *err);
/* Fills v->ring for the request. 1 done, 0 the rings are not known yet (noted on the
 * wait list), negative errno. */
int crystal_virtual_ring(struct virtual_end *v, const struct crystal_net_request *r,
                         struct crystal_error *err);
/* What the communicator keeps for trees and PAT, made when it is first needed. */
struct crystal_trees *crystal_virtual_trees(struct crystal_net_comm *comm,
                                            struct crystal_error *err);
struct crystal_pats *crystal_virtual_pats(struct crystal_net_comm *comm,
                                          struct crystal_error *err);
/* Receiver: takes the oldest request, a message of a transfer, off the queue once it is
 * there. 1 done, 0 wait, negative errno. */
int crystal_virtual_transfer(struct virtual_end *v, struct crystal_net_request *r,
                             struct crystal_error *err);
/* Receiver: completes the oldest request, which could be complete at arrive_ns, at
 * free_ns had all virtual ranks come long ago, and tells what of it was waiting for
 * virtual ranks. 1, negative errno. */
int crystal_virtual_done(struct virtual_end *v, struct crystal_net_request *r,
                         uint64_t arrive_ns, uint64_t free_ns, uint64_t bytes,
                         struct crystal_error *err);
void crystal_virtual_close(struct crystal_net_end *end); /* frees the end */
/* On the real wire: whether this communicator's rank `crank`, a real one, has the same
 * assistant. */
int crystal_virtual_is_shared(struct virtual_end *v, uint32_t crank);
/* Receiver, on the real wire: the message could be here at arrive_ns on the modelled
 * one, at free_ns had all virtual ranks come long ago; its bytes are asked for. The
 * request is the end's oldest. */
int crystal_virtual_ask(struct virtual_end *v, struct crystal_net_request *r,
                        uint64_t arrive_ns, uint64_t free_ns, uint64_t bytes,
                        struct crystal_error *err);
/* Completes requests whose bytes are here. */
int crystal_virtual_asked(struct virtual_end *v, struct crystal_error *err);
/* Sender: moves bytes to the assistant. 1: the oldest request has been taken, its
 * start_ns and due_ns say when; 0: not yet; negative errno. */
int crystal_virtual_give(struct virtual_end *v, struct crystal_error *err);
/* The sentence for another algorithm. */
int crystal_virtual_refuse(const struct crystal_operation *op,
                           struct crystal_error *err);

#endif
