/* What the files of the timeline share. Include timeline.h instead.
 *
 * timeline_code.c translates each representative's program once into records of 16
 * bytes. A rank is a host that goes through them and one lane for each of its streams:
 * a clock, and a queue of what the host has issued and the stream has not done. What an
 * idle lane is given it does at once; a lane stops in front of a collective or message
 * whose end is not known, and the rank behind it when its host waits or a queue is
 * full. Nothing is allocated for an operation.
 *
 * Completions are pulled by a stack of ranks, so that the ranks of one tensor-parallel
 * group run while they are in the cache. The result does not depend on this order: who
 * waits for whom is fixed by the programs, and the only things that are shared on a
 * first come first served basis, both sides of a NIC, are given away in order of time
 * when nothing else can go on (timeline_turns.c).
 */
#ifndef CRYSTAL_TIMELINE_INTERNAL_H
#define CRYSTAL_TIMELINE_INTERNAL_H

#include "runtime/ingress.h"
#include "runtime/timeline.h"

#include <stdbool.h>
#include <stddef.h>

#define TL_NONE     UINT32_MAX
#define TL_CODE_MAX (1U << 24)
#define TL_WIDE     UINT32_MAX /* a time that does not fit; look at the program */

/* --- code, shared by the ranks of a representative --- */

enum tl_kind {
    TL_END,     /* of the iteration, or of a group's operations */
    TL_NOTHING, /* only the computation before it */
    TL_KERNEL,  /* arg: ns */
    TL_COLL,    /* arg: index of its description */
    TL_BATCH,   /* arg: index of the batch; messages that begin together */
    TL_LAUNCH,  /* arg: the group's operations begin here, up to TL_END */
    TL_RECORD,  /* arg: slot */
    TL_SWAIT,   /* arg: slot */
    TL_WAIT,    /* arg: slot */
    TL_SYNC
};

struct tl_code {
    uint8_t kind;
    uint8_t lane;
    uint16_t local;
    uint32_t instr; /* in the program; of a batch: of its first message */
    uint32_t arg;
    uint32_t gap_ns; /* computation before it */
};
_Static_assert(sizeof(struct tl_code) == 16, "hot");

struct tl_batch {
    uint32_t first, count; /* in messages */
    uint32_t send_count;
};

struct tl_list {
    struct tl_code *code;
    uint32_t code_count, begin_count; /* the first ones are the iteration, with END */
    struct tl_batch *batches;
    uint32_t batch_count;
    uint32_t *messages; /* instructions */
    uint32_t message_count;
    uint32_t lane_count, slot_count;
    bool overlaps; /* operations of two lanes may be under way at once */
    const struct crystal_program *program;
    const uint64_t *gap_ns;
    struct crystal_timeline_samples samples; /* count 0: gap_ns */
    uint32_t rank_count;
    uint64_t tail_ns;
    double most_ns; /* computation of an iteration */
};

/* One way to call a collective; its cost for each wire is worked out on first use. */
struct tl_call {
    uint8_t func, dtype;
    uint8_t way; /* CRYSTAL_OP_WAY */
    uint32_t nranks, root;
    uint64_t count;
};

/* Software's cost of an operation, at its end. */
static inline uint64_t tl_cost_ns(const struct tl_list *list, uint32_t instr)
{
    return list->program->instrs[instr].cost_ns;
}

/* --- ranks --- */

struct tl_entry {
    uint64_t time_ns; /* of issue */
    uint32_t code;    /* and the iteration modulo 256 in the upper byte */
    uint32_t need; /* SWAIT: times its event must have been recorded, 0: no more; COLL,
                      BATCH: operations of its communicator that must have ended */
};

struct tl_lane {
    uint64_t clock_ns;
    struct tl_entry *ring;
    uint32_t head, tail, mask;
    uint32_t iteration;   /* of what it does or did last */
    uint32_t outstanding; /* messages under way, or 1 for a collective */
    uint64_t batch_end_ns;
    uint16_t local; /* of what is under way */
    bool is_dirty;  /* in its rank's list of lanes that may go on */
    bool is_held;   /* its first entry waits for another lane of the rank */
    bool is_beyond; /* its next kernel would begin behind the horizon */
    bool owns_ring;
    struct tl_lane *next_dirty;
};

struct tl_local {
    uint64_t end_ns; /* of its last operation */
    uint64_t seq;    /* of the next collective */
    struct tl_comm *comm;
    uint32_t crank;
    uint32_t issued, done;
};

struct tl_slot {
    uint64_t value_ns;
    uint32_t issued, done;
    uint32_t readers; /* entries that wait for it: 1 + index of the first, 0: none */
};

/* An entry that waits for a slot. Few wait for one, so lists are gone through. */
struct tl_reader {
    uint32_t lane, at; /* place in the lane's queue, counted as head and tail */
    uint32_t next;     /* 1 + index, 0: none */
};

enum tl_state {
    TL_OUTSIDE,
    TL_RUNS,
    TL_WAITS_EVENT,
    TL_WAITS_LANE,
    TL_WAITS_ROOM, /* a queue is full */
    TL_BEYOND,
    TL_DONE
};

/* What messages to one rank share: those of one group of receives, or all of them. */
struct tl_inlet {
    struct crystal_ingress ingress;
    uint32_t refs; /* messages that will use it; 0: it is the rank's own, and stays */
    struct tl_inlet *next;
};

/* The two ways of a message, and what a rank has for each. */
enum tl_way { TL_BETWEEN_NODES, TL_ON_NODE, TL_WAYS };

/* One collective that uses a NIC. */
struct tl_use {
    struct tl_flow *flow;
    struct tl_use *next;
};

struct tl_nic {
    uint64_t free_ns;    /* of messages */
    uint64_t load;       /* what collectives ask for, of TL_WHOLE */
    bool is_busy;        /* with messages, and a turn will tell that it is not */
    struct tl_use *uses; /* those collectives */
};

struct tl_rank {
    const struct tl_list *list;
    struct tl_lane *lanes;
    struct tl_local *locals;
    struct tl_slot *slots;
    struct tl_pair **pair; /* by program pair */
    uint64_t *pair_seq;
    uint64_t host_ns, begin_ns, iteration;
    uint64_t seed, draws; /* of jitter, of samples */
    uint32_t lrank, scale_ppm;
    /* by way, where all messages of the rank share its NIC */
    struct tl_nic nics[TL_WAYS];
    struct tl_inlet *inlets[TL_WAYS]; /* owned; NULL: nothing has come yet */
    uint32_t held_count;              /* lanes */
    uint32_t code;                    /* where the host is */
    uint32_t launched;                /* of the group's operations */
    uint32_t wait_lane;               /* or slot */
    enum tl_state state;
    bool gap_done, is_queued;
    bool is_full; /* in the list of those whose host needs room */
    struct tl_rank *next_full;
    struct tl_lane *dirty;
    struct tl_rank *next; /* below it on the stack */
};

/* --- communication --- */

struct tl_seat { /* who sits there: a lane of an inside rank that waits */
    uint32_t code;
    uint32_t lane; /* NONE: nobody */
};

/* One collective under way. Only the first one of a communicator unless arrivals are
 * fed ahead. */
struct tl_coll {
    uint64_t seq;
    uint32_t arrived, inside_arrived;
    uint32_t call;
    bool is_described, is_ended, is_told;
    struct tl_flow *flow; /* NULL: its ends do not depend on what else uses NICs */
    struct tl_coll *next;
    struct tl_seat *seats; /* by crank */
    uint64_t arrive[];     /* by crank, UINT64_MAX: not yet; then the seats */
};

/* A collective that goes on as fast as the NICs of its members have time. */
struct tl_flow {
    struct tl_comm *comm;
    struct tl_coll *coll;
    uint64_t last_ns;           /* the last arrival: from then on it uses NICs */
    uint64_t alone_ns;          /* how long it takes from there, alone */
    uint64_t left_ns, since_ns; /* of that, at that time */
    uint32_t asks;              /* for so much of each NIC, of TL_WHOLE */
    uint64_t load;              /* what all ask for at the fullest one, at least the
                                   whole */
    uint64_t turn;              /* number of the turn at which it ends */
    struct tl_flow *spare;
    struct tl_use *uses; /* by crank */
    uint64_t ends[];     /* by crank, alone; then the uses */
};
#define TL_WHOLE (1U << 20)

struct tl_comm {
    uint32_t index, nranks, inside_count, wire;
    enum tl_way way;
    const uint32_t *members;
    uint64_t *before; /* by crank: collectives before its iterations; NULL where all
                         have `first` */
    uint64_t first;   /* behind those that are over */
    struct tl_coll *colls, *spare;
    struct tl_flow *flows; /* to be used again */
};

/* One message under way: a place in its pair's ring. */
struct tl_message {
    uint64_t send_ns, recv_ns, bytes;
    uint64_t held_ns; /* its sender's NIC takes longer for it, because of collectives */
    uint64_t leave_ns;               /* the sender's NIC has time for it from then on */
    struct tl_inlet *inlet;          /* that it shares with others; NULL: none */
    uint32_t send_instr, recv_instr; /* NONE: outside, from before, or ended */
    uint32_t send_lane, recv_lane;
    uint64_t order; /* of equals: round, then instruction */
    bool is_begun;  /* one of its sides is known */
    bool has_send;  /* its sender's NIC has had its turn */
    bool has_recv, is_over;
};

/* All messages from one crank to another on one communicator. */
struct tl_pair {
    uint32_t comm, from, to, from_lrank, to_lrank;
    uint32_t wire;
    bool send_inside, recv_inside;
    enum tl_way way;
    uint64_t send_before, recv_before; /* before the iterations */
    uint64_t first;                    /* behind those that are over */
    uint64_t free_ns;                  /* the last one that has left had left by then */
    struct tl_message *ring;
    uint32_t capacity;    /* a power of 2 */
    struct tl_pair *next; /* in its bucket */
};

/* What waits for its turn. Of equal times the first kind comes first. */
enum tl_turn_kind {
    TL_TURN_IDLE,     /* a NIC may have no more messages */
    TL_TURN_END,      /* of a flow */
    TL_TURN_SENDER,   /* a message, at its sender's NIC, from when it is sent */
    TL_TURN_BEGIN,    /* of a flow */
    TL_TURN_RECEIVER, /* a message, at its receiver's, when both sides are ready */
};

struct tl_turn {
    uint64_t time_ns;
    uint64_t order; /* of equal times: of messages see tl_message, of flows the
                       communicator, of idle NICs lrank and way */
    uint64_t seq;   /* of a flow's end: the flow's turn */
    union {
        struct tl_pair *pair;
        struct tl_flow *flow;
        struct tl_rank *rank;
    };
    enum tl_turn_kind kind;
    enum tl_way way; /* of an idle NIC */
};

/* A send of a batch that is about to begin. */
struct tl_send {
    uint64_t order;
    uint32_t instr;
};

struct tl_beyond {
    uint64_t time_ns;
    uint32_t lrank;
};

struct crystal_timeline {
    struct crystal_timeline_config config;
    struct tl_list *lists; /* by representative */
    uint32_t list_count;
    struct tl_call *calls;
    uint32_t call_count, call_capacity;
    struct crystal_transfer_wire *wires;
    uint32_t wire_count, wire_capacity;
    struct crystal_transfer_plan **plans; /* by wire, then call; nranks 0: not yet */
    struct tl_rank *ranks;                /* by lrank */
    uint32_t lrank_count;
    char *arena; /* lanes, locals, slots and queues of all ranks */
    struct tl_comm *comms;
    uint32_t comm_count;
    struct tl_pair **buckets;
    uint32_t bucket_count;
    uint32_t ranks_per_node; /* 0: not known */
    int64_t jitter;          /* times 2^20 */
    bool is_started;
    uint64_t start_ns, until_ns;
    uint64_t settled_ns;      /* nothing that is fed from now on is earlier */
    struct tl_rank *stack;    /* ranks that may go on */
    struct tl_rank *full;     /* hosts that need room, if nothing else goes on */
    struct tl_beyond *beyond; /* heap by time: hosts and lanes */
    uint32_t beyond_count, beyond_capacity;
    struct tl_turn *turns; /* heap by time */
    uint32_t turn_count, turn_capacity;
    struct tl_inlet *free_inlets;
    struct tl_send *sends; /* room for the sends of one batch */
    uint32_t send_capacity;
    struct tl_reader *readers;
    uint32_t reader_count, reader_capacity, free_reader; /* 1 + index, 0: none */
    uint64_t *ends, *scratch; /* nranks and 2 nranks of the greatest communicator */
    uint64_t event_count;
    uint32_t inside_count, done_count;
    int code; /* first failure (out of memory, times too great): sticks */
};

/* --- computation --- */

static inline uint64_t tl_scaled(uint64_t ns, uint32_t ppm)
{
    return ns / 1000000 * ppm + ns % 1000000 * ppm / 1000000;
}

/* Evenly over 32 bits, by seed and what is drawn. */
static inline uint32_t tl_draw(uint64_t seed, uint64_t what)
{
    uint64_t x = seed ^ what * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)((x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93) >> 32);
}

/* Evenly within the jitter, by rank, iteration and instruction. */
static inline uint64_t tl_jittered(const struct crystal_timeline *t,
                                   const struct tl_rank *r, uint64_t ns,
                                   uint32_t iteration, uint32_t instr, uint32_t what)
{
    uint32_t drawn =
        tl_draw(r->seed, (uint64_t)iteration << 33 ^ (uint64_t)instr << 1 ^ what);
    int64_t factor = (int64_t)(int32_t)drawn * t->jitter >> 31;

    return ns >> 40 ? ns : (uint64_t)((int64_t)ns + ((int64_t)ns * factor >> 20));
}

/* Computation before an instruction whose code does not say it. */
static inline uint64_t tl_gap(const struct tl_rank *r, uint64_t iteration,
                              uint32_t instr)
{
    const struct crystal_timeline_samples *s = &r->list->samples;
    uint64_t at;

    if (s->count == 0)
        return r->list->gap_ns[instr];
    at = (uint64_t)tl_draw(r->draws, iteration) * s->count >>
         32; /* evenly below count */
    return s->gap_ns[at * r->list->program->instr_count + instr];
}

/* How long computation of ns takes this rank there. what: 0 host, 1 kernel. */
static inline uint64_t tl_computation(const struct crystal_timeline *t,
                                      const struct tl_rank *r, uint64_t ns,
                                      uint32_t iteration, uint32_t instr, uint32_t what)
{
    if (r->scale_ppm != 1000000)
        ns = tl_scaled(ns, r->scale_ppm);
    return t->jitter ? tl_jittered(t, r, ns, iteration, instr, what) : ns;
}

/* timeline.c: the sentence of t->code; returns code. */
int tl_error(int code, struct crystal_error *err);

/* timeline_code.c */
/* The longest computation before an instruction. */
uint64_t tl_longest_gap(const struct tl_list *list, uint32_t instr);
int tl_list_init(struct crystal_timeline *t, uint32_t rep, struct crystal_error *err);
void tl_list_fini(struct tl_list *list);

/* timeline_overlap.c: sets list->overlaps; -ENOMEM. */
int tl_list_find_overlap(struct tl_list *list);

/* timeline_make.c */
uint32_t tl_wire(struct crystal_timeline *t, const uint32_t *members, uint32_t nranks);
int tl_make(struct crystal_timeline *t, struct crystal_error *err);
void tl_unmake(struct crystal_timeline *t);

/* timeline_rank.c: hosts and lanes */
void tl_rank_run(struct crystal_timeline *t, struct tl_rank *r);
void tl_rank_queue(struct crystal_timeline *t, struct tl_rank *r);
/* The horizon has come to where something of this rank stood. */
void tl_rank_within(struct crystal_timeline *t, struct tl_rank *r);
/* What is under way on the lane has ended. */
void tl_lane_end(struct crystal_timeline *t, struct tl_rank *r, struct tl_lane *lane,
                 uint64_t end_ns);
/* Makes room in the full queue of a host that waits for it. */
void tl_rank_room(struct crystal_timeline *t, struct tl_rank *r);

/* timeline_coll.c */
/* NULL: it is over, or memory is. */
struct tl_coll *tl_coll_get(struct crystal_timeline *t, struct tl_comm *comm,
                            uint64_t seq);
void tl_coll_arrive(struct crystal_timeline *t, struct tl_comm *comm,
                    struct tl_coll *coll, uint32_t crank, uint64_t time_ns);
struct tl_coll *tl_coll_new(uint32_t nranks);
/* How its call is made on its communicator's wire. */
const struct crystal_transfer_plan *tl_coll_plan(struct crystal_timeline *t,
                                                 const struct tl_comm *comm,
                                                 const struct tl_coll *coll);
/* Tells its members their ends, which are in `ends` and alone were not later than
 * held_ns before, and puts it away. */
void tl_coll_end(struct crystal_timeline *t, struct tl_comm *comm, struct tl_coll *coll,
                 const uint64_t *ends, uint64_t held_ns);

/* timeline_p2p.c */
/* NULL: there is none. */
struct tl_pair *tl_pair_find(const struct crystal_timeline *t, uint32_t comm,
                             uint32_t from, uint32_t to);
/* Made where there is none; NULL: out of memory, t->code. */
struct tl_pair *tl_pair_get(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                            uint32_t to);
/* NULL: it is over, or memory is. */
struct tl_message *tl_message_get(struct crystal_timeline *t, struct tl_pair *pair,
                                  uint64_t seq);
/* The messages of a batch begin at time_ns. */
void tl_batch_begin(struct crystal_timeline *t, struct tl_rank *r, struct tl_lane *lane,
                    const struct tl_code *code, uint64_t time_ns);
/* The message of this place has its NIC's time from leave_ns on. */
void tl_message_sent(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq,
                     uint64_t leave_ns, uint64_t held_ns);
/* Its receiver has posted it. */
void tl_message_posted(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq,
                       uint64_t time_ns);
/* Both sides are there, and it is its turn: it goes on the wire. */
void tl_message_leave(struct crystal_timeline *t, struct tl_pair *pair, uint64_t seq);

/* timeline_flow.c: collectives that share NICs */
/* All members of the collective have arrived, its ends alone are in t->ends: true where
 * they have to wait for its turns. */
bool tl_flow_begins(struct crystal_timeline *t, struct tl_comm *comm,
                    struct tl_coll *coll);
/* Turns. */
void tl_flow_begin(struct crystal_timeline *t, struct tl_flow *flow);
void tl_flow_end(struct crystal_timeline *t, const struct tl_turn *turn);
/* Whether what is fed later may still change when the flow ends. */
bool tl_flow_is_open(struct crystal_timeline *t, const struct tl_turn *turn);
/* A message of `occupy_ns` is given to the NIC at now_ns. Returns when that has time
 * for it; *ret_held_ns: by how much longer it takes. */
uint64_t tl_nic_take(struct crystal_timeline *t, struct tl_rank *r, enum tl_way way,
                     uint64_t now_ns, uint64_t occupy_ns, uint64_t *ret_held_ns);
void tl_nic_idle(struct crystal_timeline *t, const struct tl_turn *turn);
/* Time at a NIC of what has it alone, beside the collectives that use it now. */
uint64_t tl_flow_slowed(const struct tl_nic *nic, uint64_t ns);

/* timeline_turns.c */
void tl_turn_wait(struct crystal_timeline *t, struct tl_turn turn);
/* Gives the earliest of those that wait its turn. */
void tl_turn_next(struct crystal_timeline *t);
/* NULL: out of memory, t->code. refs: messages that will use it. */
struct tl_inlet *tl_inlet_new(struct crystal_timeline *t, uint32_t refs);
/* One message has used it. */
void tl_inlet_put(struct crystal_timeline *t, struct tl_inlet *inlet);

#endif
