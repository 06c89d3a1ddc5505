/* The board: shared memory of one sandbox node. The node's agent creates it; the net
 * plugin of every sandbox rank maps it. It carries what virtual ranks need to know of
 * each operation: who arrived when. Payload does not go through it.
 *
 * A file of mode 0600 in a directory of mode 0700 (normally below /dev/shm); the path
 * is in CRYSTAL_BOARD. Sockets between the ranks of the node (delay lines from one
 * process to another) live in the same directory. Everything behind the header is found
 * through offsets from the file's start, which both sides check against its size.
 *
 *   header | comm table [comm_capacity] | heap: members, slots, pairs of each comm
 *
 * Who writes what: header and comm table by the agent, before state = READY; a cell's
 * arrive_ns of a virtual crank by the agent, of a real crank by that rank's plugin;
 * end_ns by the rank's plugin. Times are CLOCK_MONOTONIC ns of this node; 0 = not yet;
 * a time of 1 means "long ago" (arrived before anybody asked). Frozen: version 5 (1 had
 * no ranks_per_node and no graph_channels, 2 no rings, 3 no clock_ns and node, 4 no
 * pairs of two real ranks).
 */
#ifndef CRYSTAL_BOARD_H
#define CRYSTAL_BOARD_H

#include "runtime/error.h"
#include "runtime/nccl_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CRYSTAL_BOARD_MAGIC   "CRYBOARD"
#define CRYSTAL_BOARD_VERSION 5
#define CRYSTAL_BOARD_SLOTS   64 /* collectives in flight per communicator */
#define CRYSTAL_BOARD_NAME    128

enum crystal_board_mode {
    CRYSTAL_BOARD_IMMEDIATE =
        1,                  /* virtual ranks have always arrived (plan; no capture) */
    CRYSTAL_BOARD_TIMED = 2 /* arrivals come from the timeline (emulate) */
};

struct crystal_board_header {
    char magic[8];
    uint32_t version;
    uint32_t byte_order;
    uint64_t board_bytes;
    uint64_t job_hash;
    uint32_t lrank_count; /* N */
    uint32_t mode;        /* enum crystal_board_mode */
    uint64_t wire_bytes_per_s;
    uint64_t wire_latency_ns;
    uint64_t message_overhead_ns; /* software cost per network hop, calibrated; added to
                                     every virtual hop */
    uint32_t comm_capacity;
    _Atomic uint32_t comm_count; /* entries 0 .. comm_count-1 may be READY */
    uint64_t comms_offset;
    uint64_t heap_offset;
    _Atomic uint64_t heap_used;  /* agent only */
    _Atomic uint32_t abort_flag; /* anybody: stop; abort_text is set before */
    uint32_t payload_all;        /* --crystal-payload=all */
    char abort_text[256];
    char graph_path[256]; /* job.graph for recorded contributions; empty = none */
    _Atomic uint64_t standin_ops; /* operations answered by stand-ins */
    _Atomic uint64_t standin_bytes;
    _Atomic uint64_t late_count; /* arrivals published later than they were due */
    _Atomic uint64_t late_max_ns;
    _Atomic uint64_t abort_claim; /* whoever sets it from 0 to 1 writes abort_text */
    _Atomic uint32_t bell;        /* counts rings, see crystal_board_ring */
    _Atomic uint32_t bell_waits;  /* the agent sleeps: a ring has to wake it */
    _Atomic uint32_t timeline;    /* enum crystal_board_timeline; the driver */
    uint32_t ranks_per_node;      /* of the target; 0 counts as 1 */
    _Atomic uint64_t payload_late_count; /* operations whose recorded floats were not
                                            read ahead in time */
    _Atomic int64_t clock_ns;            /* several sandbox nodes: add to this node's
                                            CLOCK_MONOTONIC for node 0's, in which nodes tell each
                                            other times; the agent; 0 on one node */
    uint32_t node; /* this node, of those that have the sandbox; the agent */
    uint32_t zero;
    uint64_t reserved[10];
};

/* What virtual ranks do. */
enum crystal_board_timeline {
    CRYSTAL_BOARD_SETUP = 0,    /* before the iterations: they answer at once */
    CRYSTAL_BOARD_FOLLOWS = 1,  /* they keep the timeline's time */
    CRYSTAL_BOARD_FINISHED = 2, /* the program went on to something else: at once */
    CRYSTAL_BOARD_STUCK = 3     /* nothing could happen any more: at once since then */
};

enum crystal_board_state {
    CRYSTAL_BOARD_EMPTY = 0,
    CRYSTAL_BOARD_READY = 1,
    CRYSTAL_BOARD_GONE = 2
};

/* In which order a communicator's rings go through its members. */
enum crystal_board_rings {
    CRYSTAL_BOARD_RINGS_RANK = 0,    /* rank order, on every channel */
    CRYSTAL_BOARD_RINGS_AWAITED = 1, /* its real members have not told yet */
    CRYSTAL_BOARD_RINGS_LISTED = 2   /* as rings_offset says */
};

/* One communicator with at least one virtual member. Those of real members only need no
 * entry. */
struct crystal_board_comm {
    _Atomic uint32_t state;
    uint32_t nranks;
    uint64_t comm_id;    /* NCCL's commHash (getHash of the 128-byte id) */
    uint32_t graph_comm; /* index in job.graph, or UINT32_MAX */
    uint32_t real_count;
    uint64_t members_offset; /* uint32_t lrank[nranks] by crank */
    uint64_t real_offset;    /* uint8_t is_real[nranks] by crank */
    uint64_t slots_offset;   /* struct crystal_board_slot [CRYSTAL_BOARD_SLOTS] */
    uint64_t pairs_offset;   /* struct crystal_board_pair [pair_capacity] */
    uint32_t pair_capacity;
    _Atomic uint32_t pair_count; /* pairs are added by plugins: claim with fetch_add */
    _Atomic uint32_t graph_channels; /* of NCCL's tree and ring search; 0 = not known */
    _Atomic uint32_t rings;          /* enum crystal_board_rings; the agent */
    uint64_t rings_offset; /* LISTED: uint32_t crank[ring_count][nranks] by place in the
                              ring, whose place 0 is crank 0 */
    uint32_t ring_count;   /* channel c has ring c % ring_count */
    uint32_t alone; /* 1: each member is a node of its own, whatever its target node
                       (hostccl's ranks, or NCCL_HOSTID); told with the rings */
    char name[CRYSTAL_BOARD_NAME]; /* store key of the id, zero-terminated */
};

/* One member's times of one operation. */
struct crystal_board_cell {
    _Atomic uint64_t arrive_ns; /* reached the operation, ready to send */
    _Atomic uint64_t end_ns;    /* operation complete at that rank (real ranks) */
};

/* One collective of a communicator: the slot of operation number `seq` (0, 1, ... in
 * the order in which the communicator's collectives start, the same on all members) is
 * seq % CRYSTAL_BOARD_SLOTS. The first real rank that needs it claims it (seq_plus1 by
 * compare and exchange from 0); the agent frees it (all cells zeroed, then seq_plus1 =
 * 0) when all real members have ended and it has used the times. */
struct crystal_board_slot {
    _Atomic uint64_t seq_plus1;
    _Atomic uint32_t published;   /* agent: all virtual cells' arrive_ns are set */
    _Atomic uint32_t ended_count; /* real members that have set end_ns */
    uint64_t cells_offset;        /* struct crystal_board_cell [nranks] */
    /* facts of the operation, written by the claimer before `described` = 1, checked by
     * the others (a mismatch aborts with a sentence) */
    _Atomic uint32_t described;
    uint32_t func; /* enum crystal_func */
    uint32_t dtype;
    uint32_t root;
    uint64_t count;
};

/* Point-to-point between one real and one virtual crank, one direction. The other one
 * is real, too, where it is the root of a gather or a scatter with virtual members:
 * then only these are counted, and each cell says all when it is claimed, since
 * real_crank has nothing else to tell of when it came. `cells` is a ring of
 * CRYSTAL_BOARD_SLOTS by the pair's own sequence number; arrive_ns[real] is the time
 * its operation started, the virtual side's comes from the agent. */
struct crystal_board_pair_cell {
    _Atomic uint64_t
        seq_plus1; /* claimed by the real rank's plugin; freed by the agent */
    _Atomic uint64_t real_arrive_ns;    /* a sender's: when its NIC has time for it */
    _Atomic uint64_t virtual_arrive_ns; /* the same */
    _Atomic uint64_t end_ns;
    uint64_t bytes;
};

struct crystal_board_pair {
    _Atomic uint32_t state;
    uint32_t real_crank;
    uint32_t virtual_crank;
    uint32_t real_sends; /* 1: real -> virtual */
    struct crystal_board_pair_cell cells[CRYSTAL_BOARD_SLOTS];
};

struct crystal_board; /* a mapping of one board */

/* Pairs that one communicator has at most; it has room for every (real, other,
 * direction) where that is less. */
#define CRYSTAL_BOARD_PAIRS_MAX 4096U
#define CRYSTAL_BOARD_COMMS_MAX 65536U

struct crystal_board_config {
    const char *directory; /* made with mode 0700 by the caller */
    uint64_t job_hash;
    uint32_t lrank_count;
    uint32_t ranks_per_node;
    enum crystal_board_mode mode;
    uint64_t wire_bytes_per_s;
    uint64_t wire_latency_ns;
    uint64_t message_overhead_ns;
    uint32_t comm_capacity;
    uint64_t heap_bytes; /* 0: a default that fits lrank_count; memory is taken only
                            as it is used */
    int payload_all;
    const char *graph_path; /* may be NULL */
};

/* Agent: creates directory/board. Returns NULL on failure; caller destroys. */
struct crystal_board *crystal_board_create(const struct crystal_board_config *config,
                                           struct crystal_error *err);
/* Plugin: maps the board at path, checks every offset. Caller destroys. */
struct crystal_board *crystal_board_open(const char *path, struct crystal_error *err);
/* Unmaps; the creator's destroy also removes the file. NULL is fine. */
void crystal_board_destroy(struct crystal_board *board);

struct crystal_board_header *crystal_board_header(struct crystal_board *board);
const char *crystal_board_directory(const struct crystal_board *board);

/* Agent: adds a communicator (members[crank] = lrank, is_real by crank) and makes it
 * READY. An entry with the same comm_id is an error. Thread-safe within the agent. */
int crystal_board_comm_add(struct crystal_board *board, uint64_t comm_id,
                           const char *name, uint32_t graph_comm, uint32_t nranks,
                           const uint32_t *members, const uint8_t *is_real,
                           struct crystal_error *err);
/* Agent: how many channels NCCL's search found, once its members have told. */
void crystal_board_comm_channels(struct crystal_board *board, uint64_t comm_id,
                                 uint32_t graph_channels);
/* Agent: its members will tell in which order their rings go; nobody uses them before
 * crystal_board_comm_rings: ranks = crank[ring_count][nranks] as above, ring_count 0
 * for rank order; alone as above. Thread-safe within the agent. */
void crystal_board_comm_await_rings(struct crystal_board *board, uint64_t comm_id);
int crystal_board_comm_rings(struct crystal_board *board, uint64_t comm_id,
                             uint32_t ring_count, const uint32_t *ranks, bool alone,
                             struct crystal_error *err);
/* Where the rings are LISTED: cranks by place of the ring of this channel; NULL where
 * that is broken. */
const uint32_t *crystal_board_ring_ranks(struct crystal_board *board,
                                         const struct crystal_board_comm *comm,
                                         uint32_t channel);
/* The READY entry with this id, or NULL. Lock-free; borrowed. */
struct crystal_board_comm *crystal_board_comm_find(struct crystal_board *board,
                                                   uint64_t comm_id);
/* Entry number index (below the header's comm_count), or NULL where it is not READY. */
struct crystal_board_comm *crystal_board_comm_at(struct crystal_board *board,
                                                 uint32_t index);
/* Plugin: something on the board has changed (a slot or cell was claimed, an arrival or
 * an end was set). A system call only where the agent sleeps. */
void crystal_board_ring(struct crystal_board *board);
/* Agent: sleeps until a ring after *bell (as last returned; 0 at first), at most
 * max_ns. One thread. */
void crystal_board_sleep(struct crystal_board *board, uint32_t *bell, uint64_t max_ns);
/* Typed pointers behind an entry; all bounds were checked when the board was opened or
 * the entry was found. */
const uint32_t *crystal_board_members(struct crystal_board *board,
                                      const struct crystal_board_comm *comm);
/* Which of the members lrank is; UINT32_MAX: none. */
uint32_t crystal_board_crank(struct crystal_board *board,
                             const struct crystal_board_comm *comm, uint32_t lrank);
const uint8_t *crystal_board_is_real(struct crystal_board *board,
                                     const struct crystal_board_comm *comm);
struct crystal_board_slot *crystal_board_slot(struct crystal_board *board,
                                              const struct crystal_board_comm *comm,
                                              uint64_t seq);
struct crystal_board_cell *crystal_board_cells(struct crystal_board *board,
                                               const struct crystal_board_comm *comm,
                                               const struct crystal_board_slot *slot);
struct crystal_board_pair *crystal_board_pairs(struct crystal_board *board,
                                               const struct crystal_board_comm *comm);
/* Sets abort_text and abort_flag once; later calls change nothing. */
void crystal_board_abort(struct crystal_board *board, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NCCL's getHash (2.28.9 src/include/bitops.h: eatHash and digestHash with both
 * accumulators 1). Over the 128 bytes of a unique id it gives the commHash that net and
 * profiler init receive as comm_id. */
uint64_t crystal_nccl_hash(const void *bytes, size_t count);
/* The commHash of a communicator that ncclCommSplit made: the split_count-th split of
 * parent (from 1), of this colour. */
uint64_t crystal_nccl_hash_split(uint64_t parent, int32_t split_count, int32_t color);

#endif
