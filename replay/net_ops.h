/* The operations of a communicator, as the PROFILER interface tells them, and which
 * operation a network message belongs to.
 *
 * NCCL names an event by a pointer that we choose. Ours is a number: generation, kind,
 * communicator and place in a pool. An event that is over gives its place back and the
 * next one there has another generation, so a late handle never finds a wrong event; it
 * counts as a loss. Pools are made at init; nothing is allocated afterwards.
 */
#ifndef CRYSTAL_NET_OPS_H
#define CRYSTAL_NET_OPS_H

#include "replay/board.h"
#include "runtime/wire_form.h"

#include <stdatomic.h>
#include <stdint.h>

#define CRYSTAL_NET_STEPS    16 /* steps of one proxy operation in flight; NCCL has 8 */
#define CRYSTAL_NET_CHANNELS 64

struct crystal_net_comm;

/* NCCL's algorithm of a collective. */
enum crystal_algo {
    CRYSTAL_ALGO_RING = 0,
    CRYSTAL_ALGO_TREE,
    CRYSTAL_ALGO_PAT,
    CRYSTAL_ALGO_OTHER /* one that virtual ranks cannot take part in */
};

/* What NCCL says of a collective when it starts. */
struct crystal_coll_facts {
    uint32_t func; /* enum crystal_func */
    uint32_t dtype;
    uint64_t count;
    uint32_t root;
    uint32_t channel_count;
    enum crystal_algo algo;
    enum crystal_proto proto;
};

/* What the API call said; absent where the caller sends no API events. */
struct crystal_api_call {
    _Atomic uint32_t generation;
    uint8_t func;
    uint8_t dtype;
    uint64_t count;
    uint64_t order;
    uint64_t api_ns;
    uint64_t seq; /* ring collectives */
};

/* One collective or point-to-point transfer. Filled before its handle is given out. */
struct crystal_operation {
    _Atomic uint32_t generation;
    _Atomic uint32_t live; /* start + proxy operations that have not stopped; 0: free */
    struct crystal_net_comm *comm; /* from here on zeroed for the next user */
    _Atomic uint32_t proxies;      /* proxy operations seen */
    _Atomic uint32_t finished;     /* 1: the end was recorded */
    _Atomic uint32_t has_stopped;
    uint8_t is_p2p;
    uint8_t func;     /* enum crystal_func; SEND or RECV for p2p */
    uint8_t api_func; /* p2p: the call it is a part of, as far as that is known */
    uint8_t dtype;
    uint8_t algo;  /* enum crystal_algo */
    uint8_t proto; /* enum crystal_proto */
    uint32_t peer; /* p2p */
    uint32_t root;
    uint32_t channel_count;
    _Atomic uint64_t channels; /* p2p: a bit for each whose part has begun */
    uint64_t count;            /* as the API call has it */
    uint64_t elt_bytes;
    uint64_t seq; /* coll: of the communicator; p2p: of pair and direction */
    uint64_t
        graph_seq; /* of the call, as the graph counts: among collectives of all
                      kinds, or among the sends of that pair; until has_call as seq */
    _Atomic uint32_t is_noted; /* net_board.c: between real ranks, and dealt with */
    _Atomic uint32_t has_call; /* graph_seq and api_func are what the graph says */
    uint64_t order;
    uint64_t api_ns;
    uint64_t start_ns;
    _Atomic uint64_t arrive_ns; /* 0 until the first send */
    _Atomic uint64_t leave_ns;  /* the same: when this rank's NIC had time for it */
    /* waiting for virtual ranks: until when counted, and how long */
    _Atomic uint64_t waited_until_ns;
    _Atomic uint64_t waited_ns;
    _Atomic uint32_t standin;   /* a contribution was a stand-in */
    _Atomic uint32_t is_late;   /* counted in late_count */
    _Atomic uint32_t described; /* the slot's facts were checked or written */
    /* what the board has of it; NULL until claimed */
    _Atomic(struct crystal_board_slot *) slot;
    _Atomic(struct crystal_board_pair_cell *) pair_cell;
    _Atomic(struct crystal_board_pair *) pair;
};

/* The part of an operation on one channel in one direction. */
struct crystal_proxy_op {
    _Atomic uint32_t generation; /* 0: free */
    _Atomic uint32_t in_use;
    struct crystal_operation *operation; /* alive as long as this is */
    uint32_t channel;
    uint32_t peer;
    uint32_t message_count;
    uint32_t is_send;
    uint32_t steps[CRYSTAL_NET_STEPS];
};

/* Which message a transfer is; operation = NULL: not known. Valid while its step
 * event lives. */
struct crystal_message_id {
    struct crystal_operation *operation;
    uint32_t channel;
    uint32_t message_count;
    uint32_t step;
};

/* plugin_id by which our own NET part is known to our PROFILER part */
#define CRYSTAL_NET_PLUGIN_ID INT64_C(0x4352595354414c)

struct crystal_ops {
    struct crystal_api_call *calls;
    struct crystal_operation *operations;
    struct crystal_proxy_op *proxies;
    uint32_t call_count, operation_count, proxy_count; /* sizes of the pools */
    _Atomic uint32_t generation;                       /* the last one given */
    _Atomic uint64_t call_next, operation_next, proxy_next;
    _Atomic uint64_t coll_seq;
    _Atomic uint32_t has_calls;    /* the caller sends API events */
    _Atomic uint64_t p2p_channels; /* a bit for each that had a part of a transfer */
    uint32_t nranks;
    _Atomic uint64_t *peer_seq; /* sends per peer, receives per peer; and the same of
                                   those that are noted on the board */
    _Atomic uint64_t lost;      /* events without a place or with a dead parent */
};

/* Handles; 0 = none. */
typedef uint64_t crystal_event_handle;

int crystal_ops_init(struct crystal_ops *ops, uint32_t nranks);
void crystal_ops_fini(struct crystal_ops *ops);

crystal_event_handle crystal_ops_call(struct crystal_net_comm *comm, uint32_t func,
                                      uint32_t dtype, uint64_t count);
crystal_event_handle crystal_ops_coll(struct crystal_net_comm *comm,
                                      crystal_event_handle call,
                                      const struct crystal_coll_facts *facts);
crystal_event_handle crystal_ops_p2p(struct crystal_net_comm *comm,
                                     crystal_event_handle call, uint32_t func,
                                     uint32_t dtype, uint64_t count, uint32_t peer,
                                     uint32_t channel_count);
crystal_event_handle crystal_ops_proxy(crystal_event_handle operation, uint32_t channel,
                                       uint32_t peer, uint32_t message_count,
                                       int is_send);
crystal_event_handle crystal_ops_step(crystal_event_handle proxy, uint32_t step);
/* Which part of a transfer this channel has: 0 .. channel_count - 1; -EAGAIN while not
 * all of its channels have begun, -ENOTSUP where that cannot be told. */
int crystal_operation_part(const struct crystal_operation *op, uint32_t channel);
/* The event is over. */
void crystal_ops_stop(crystal_event_handle event);
/* Fills ret from a step's handle; operation = NULL if it is not alive. */
void crystal_ops_identify(crystal_event_handle step, struct crystal_message_id *ret);

/* --- what an operation does on the board (net_board.c) --- */

/* It starts now: claims its place on the board if there is one. */
void crystal_operation_begin(struct crystal_operation *op);
/* Whether its messages may go: it has its place on the board or needs none. Else the
 * agent has not freed the place of an older one yet: try again. */
int crystal_operation_is_ready(struct crystal_operation *op);
/* It sends its first message now, which leaves the NIC from leave_ns on (later calls
 * change nothing). */
void crystal_operation_arrive(struct crystal_operation *op, uint64_t now_ns,
                              uint64_t leave_ns);
/* It is over: board and run record. */
void crystal_operation_finish(struct crystal_operation *op);
/* The arrivals of all members once the agent has published them, or NULL: wait for the
 * board. Timed mode, collectives of communicators on the board only. */
const struct crystal_board_cell *
crystal_operation_arrivals(struct crystal_operation *op);
/* When the virtual partner of a transfer arrived; 0: wait for the board. */
uint64_t crystal_operation_partner_ns(struct crystal_operation *op);
/* A transfer was held up by virtual ranks from from_ns to to_ns. */
void crystal_operation_waited(struct crystal_operation *op, uint64_t from_ns,
                              uint64_t to_ns);
/* What a virtual rank should have put was answered by a stand-in. */
void crystal_operation_standin(struct crystal_operation *op, uint64_t bytes);
/* An arrival became known at now_ns that was needed at due_ns. */
void crystal_operation_late(struct crystal_operation *op, uint64_t due_ns,
                            uint64_t now_ns);

#endif
