/* The core of libnccl-net-crystal.so, free of NCCL's ABI versions: what the process is
 * (module), its communicators, the ends of its connections and their requests. The
 * tables in plugin_net_v11.c and plugin_profiler_v5.c only translate.
 *
 * Threads: the module and the registry of communicators take a lock; an end and its
 * requests belong to one thread at a time, as NCCL's proxy uses them.
 */
#ifndef CRYSTAL_NET_H
#define CRYSTAL_NET_H

#include "replay/board.h"
#include "replay/net_handle.h"
#include "replay/net_ops.h"
#include "replay/roll.h"
#include "replay/wire.h"
#include "runtime/error.h"
#include "runtime/message.h"
#include "runtime/target.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define CRYSTAL_NET_REQUESTS 32 /* in flight per end; NCCL has 8 */
#define CRYSTAL_NET_COMMS    4096

struct crystal_backend;
struct crystal_copiers;
struct crystal_device;
struct crystal_graph;
struct crystal_prefetch;
struct crystal_run_writer;
struct crystal_lines;
struct crystal_messages;
struct crystal_pats;
struct crystal_records;
struct crystal_rings;
struct crystal_room;
struct crystal_rooms;
struct crystal_trees;

/* The process. Made at the first init of either plugin and kept to its end. */
struct crystal_net_module {
    struct crystal_board *board; /* NULL without CRYSTAL_BOARD */
    struct crystal_board_header *head;
    struct crystal_graph *graph;       /* NULL without recorded payload */
    struct crystal_prefetch *prefetch; /* NULL but with --crystal-payload=all */
    struct crystal_rooms *rooms;       /* of messages on their way */
    struct crystal_copiers *copiers;   /* NULL: nobody copies for us */
    int is_sharing;   /* payload between ranks of one host goes through memory */
    int is_valueless; /* contents of virtual ranks' floating-point messages are left out
                       */
    int repeats_last; /* integers that differ by iteration repeat behind the recording
                       */
    int has_device;   /* NCCL's buffers may be on a GPU */
    struct crystal_backend *backend; /* between real ranks; NULL: our own TCP */
    int has_assistant;               /* the wire is real, and this node carries it */
    struct crystal_msg_node assistant;
    uint8_t assistant_token[CRYSTAL_TOKEN_BYTES];
    struct crystal_wire wire;
    unsigned nic_count;                          /* 1 .. CRYSTAL_NICS_MAX */
    char *nic_paths[CRYSTAL_NICS_MAX];           /* in sysfs, NULL: none; owned */
    struct crystal_nic nics[CRYSTAL_NICS_MAX];   /* egress of each */
    struct crystal_link links[CRYSTAL_NICS_MAX]; /* ingress */
    uint32_t lrank;                              /* UINT32_MAX if unknown */
    int is_timed;                                /* arrivals come from the board */
    struct crystal_run_writer *run;
    struct crystal_messages *messages; /* NULL without CRYSTAL_MESSAGES */
    _Atomic uint64_t order;            /* API calls so far */
    _Atomic int abort_told;            /* the abort's sentence was logged */
    _Atomic int stop_noted;            /* it stands on the roll */
    _Atomic int repeat_told;           /* that a recording is used again */
    _Atomic int last_told;             /* the same, of what differs by iteration */
};

/* One communicator of this process, shared by the NET and PROFILER contexts. Objects
 * are reused, never freed, so that a handle of a dead event can be looked at. */
struct crystal_net_comm {
    struct crystal_net_module *module;
    uint64_t comm_id;
    uint32_t index;                             /* in the registry */
    uint32_t users;                             /* contexts; registry's lock */
    uint32_t nranks;                            /* 0 until known */
    uint32_t crank;                             /* CRYSTAL_CRANK_UNKNOWN until known */
    _Atomic(struct crystal_board_comm *) board; /* NULL: not on the board (yet) */
    _Atomic int is_plain; /* it was not on the board when its first operation began */
    _Atomic uint64_t
        missed_ns; /* since when a connection has missed it there; 0: none */
    struct crystal_ops ops;
    struct crystal_rings *rings; /* with board: places in the rings; owned */
    struct crystal_lines *lines; /* with board: delay lines that end here; owned */
    struct crystal_trees *trees; /* the same for trees; made when first needed; owned */
    struct crystal_pats *pats;   /* the same for PAT */
    struct crystal_records *records; /* with board and graph; owned */
    pthread_mutex_t lock;            /* making of pairs, trees and pats */
    _Atomic uint32_t *pairs; /* with board: per peer the pair for sends, then those for
                                receives, plus 1; 0 = none yet; owned */
};

/* NULL with err set where the environment is wrong; tried once. */
struct crystal_net_module *crystal_net_module_get(struct crystal_error *err);

/* The communicator with this id; made where there is none. Each get needs a put. crank
 * is this process's, CRYSTAL_CRANK_UNKNOWN for whatever it is. */
struct crystal_net_comm *crystal_net_comm_get(struct crystal_net_module *module,
                                              uint64_t comm_id, uint32_t crank,
                                              struct crystal_error *err);
/* Tells its size and this process's crank, and makes the pools of events. */
int crystal_net_comm_set(struct crystal_net_comm *comm, uint32_t nranks, uint32_t crank,
                         struct crystal_error *err);
void crystal_net_comm_put(struct crystal_net_comm *comm);
/* Writes on the node's roll; nothing without a board. */
void crystal_net_note(const struct crystal_net_comm *comm, enum crystal_roll_kind kind,
                      uint32_t crank);
/* Does something with the communicator that has this id and is on the board, which
 * cannot go away meanwhile; -ENOENT where there is none. */
int crystal_net_comm_with(uint64_t comm_id,
                          int (*action)(struct crystal_net_comm *comm, void *user,
                                        struct crystal_error *err),
                          void *user, struct crystal_error *err);
/* By index, for event handles; NULL if out of range or never used. */
struct crystal_net_comm *crystal_net_comm_at(uint32_t index);
/* Finds the communicator on the board, its size and this process's crank. 1 found, 0
 * not on the board (yet), negative errno. */
int crystal_net_comm_resolve(struct crystal_net_comm *comm, struct crystal_error *err);

/* From this node's clock to the one in which nodes tell each other times, and back. */
static inline uint64_t crystal_net_job_ns(const struct crystal_net_module *module,
                                          uint64_t own_ns)
{
    return own_ns + (module->head ? (uint64_t)atomic_load_explicit(
                                        &module->head->clock_ns, memory_order_relaxed)
                                  : 0);
}

static inline uint64_t crystal_net_own_ns(const struct crystal_net_module *module,
                                          uint64_t job_ns)
{
    return job_ns - (module->head ? (uint64_t)atomic_load_explicit(
                                        &module->head->clock_ns, memory_order_relaxed)
                                  : 0);
}

/* The board's abort flag as an error; logged once per process. */
int crystal_net_abort_check(struct crystal_net_module *module);
/* Stops the job (crystal_board_abort) for what this rank has found. That stands on the
 * roll before anybody can see it: a program that gets the error may end at once, and
 * its end is not what began it. */
void crystal_net_stop(struct crystal_net_module *module, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* --- ends and requests --- */

/* Starts a profiler event for a transfer (ncclProfilerCallback_t); NULL: none. */
typedef int (*crystal_net_identify)(void **event, int type, void *parent,
                                    int64_t plugin_id, void *data);

/* A NET context: one init. */
struct crystal_net_context {
    struct crystal_net_comm *comm;
    void *identify; /* ncclProfilerCallback_t, called by the table */
};

enum crystal_request_state {
    CRYSTAL_REQUEST_FREE = 0,
    CRYSTAL_REQUEST_BUSY,
    CRYSTAL_REQUEST_MOVED /* bytes are where they belong; done when due */
};

struct crystal_net_end;

/* A request's bytes are copied to or from where the caller has them. */
enum crystal_request_copy {
    CRYSTAL_COPY_NONE = 0,
    CRYSTAL_COPY_FETCH, /* to send: from the GPU into room, before it can move */
    CRYSTAL_COPY_PUT    /* received: from room to the GPU */
};

struct crystal_net_request {
    struct crystal_net_end *end;
    enum crystal_request_state state;
    enum crystal_request_copy copy; /* on its way */
    int needs_ack; /* sender: rendezvous, due comes from the receiver */
    int asked;     /* virtual ends: what it needs of the board was not there once */
    int told;      /* that it waits */
    int is_own;    /* what this rank puts into a gather, and stands in for others */
    unsigned char *data; /* the bytes or their place: the caller's, or in room; NULL:
                            nobody asks for them */
    void *buffer;        /* the caller's */
    struct crystal_device *device; /* whose memory that is; NULL: this process's */
    struct crystal_room *room;     /* owned; NULL: none */
    struct crystal_room *flags;    /* owned; words on their way to the GPU */
    uint64_t ticket;               /* of the copy on its way */
    uint64_t place;                /* in the end's queue */
    uint64_t bytes;                /* to send, or room to receive */
    uint64_t got;                  /* bytes moved */
    uint64_t posted_ns;            /* when the caller gave it */
    uint64_t start_ns;             /* when its first byte left the NIC */
    uint64_t due_ns;               /* not done before; 0 at once */
    uint64_t number;               /* of this end, from 0 */
    uint64_t step;      /* virtual receive: of the connection, for its flags */
    uint64_t shared_at; /* its place in shared memory */
    int is_placed;      /* it has one, and data is there */
    struct crystal_message_id id;
};

struct crystal_net_end_ops {
    const char *name;
    int has_rooms; /* bytes may be anywhere until they move, and when they have */
    /* 0, or negative errno with err set; the request is in the end's queue */
    int (*start)(struct crystal_net_end *end, struct crystal_net_request *request,
                 struct crystal_error *err);
    /* moves what can be moved; notes on the wait list what it waits for */
    int (*progress)(struct crystal_net_end *end, struct crystal_error *err);
    void (*close)(struct crystal_net_end *end); /* frees the end */
    /* whether anybody asks for the request's bytes; NULL: always */
    int (*needs)(struct crystal_net_end *end, const struct crystal_net_request *r);
    /* 1: a request of so many bytes may be posted, 0: not yet, negative errno; NULL:
     * always */
    int (*has_place)(struct crystal_net_end *end, uint64_t bytes,
                     struct crystal_error *err);
    /* where the bytes of a request that is being posted are to be for the other side;
     * NULL: nowhere yet */
    unsigned char *(*place)(struct crystal_net_end *end, struct crystal_net_request *r);
    /* the request's bytes are in the caller's buffer; NULL: nobody needs to know */
    void (*release)(struct crystal_net_end *end, struct crystal_net_request *r);
    /* the caller's messages will be in this host memory; NULL: of no interest */
    int (*region)(struct crystal_net_end *end, void *data, uint64_t bytes,
                  struct crystal_error *err);
};

/* What all ends have; the first member of each kind's own struct. */
struct crystal_net_end {
    const struct crystal_net_end_ops *ops;
    struct crystal_net_context *context;
    struct crystal_net_comm *comm;
    uint32_t peer_crank;
    unsigned nic; /* below the module's nic_count */
    int is_send;
    int failed;       /* positive errno: every further call fails */
    unsigned waiting; /* requests that have waited long, as the roll says */
    unsigned polls;   /* of requests that were not done */
    uint64_t number;
    uint32_t taken; /* a bit for each request that is not free */
    struct crystal_net_request requests[CRYSTAL_NET_REQUESTS];
    /* requests that are not moved yet, oldest first */
    struct crystal_net_request *queue[CRYSTAL_NET_REQUESTS];
    uint64_t head, tail; /* tail <= head; of queue, modulo its size */
    uint64_t put; /* <= tail: from here on received bytes are not put into the callers'
                     buffers yet */
};

/* The i-th request that is not moved yet, where its bytes are there; else NULL. */
static inline struct crystal_net_request *
crystal_net_queue_at(struct crystal_net_end *end, unsigned i)
{
    struct crystal_net_request *request =
        end->queue[(end->tail + i) % CRYSTAL_NET_REQUESTS];

    return end->head - end->tail <= i || request->copy == CRYSTAL_COPY_FETCH ? NULL
                                                                             : request;
}

static inline struct crystal_net_request *
crystal_net_queue_first(struct crystal_net_end *end)
{
    return crystal_net_queue_at(end, 0);
}

/* The oldest request, whose bytes were there, has been moved; it is done at due_ns. */
static inline void crystal_net_queue_pop(struct crystal_net_end *end, uint64_t due_ns)
{
    struct crystal_net_request *request = end->queue[end->tail % CRYSTAL_NET_REQUESTS];

    request->due_ns = due_ns;
    request->state = CRYSTAL_REQUEST_MOVED;
    end->tail++;
}

/* A listening end. */
struct crystal_net_listener;
int crystal_net_listen(struct crystal_net_context *context,
                       struct crystal_net_handle *handle,
                       struct crystal_net_listener **ret, struct crystal_error *err);
/* Ends that come from here use this NIC, not the first. */
void crystal_net_listener_set_nic(struct crystal_net_listener *listener, unsigned nic);
void crystal_net_listener_close(struct crystal_net_listener *listener);
/* *ret stays NULL while there is nobody: call again. */
int crystal_net_accept(struct crystal_net_listener *listener,
                       struct crystal_net_end **ret, struct crystal_error *err);
int crystal_net_connect(struct crystal_net_context *context, unsigned nic,
                        struct crystal_net_handle *handle, struct crystal_net_end **ret,
                        struct crystal_error *err);

/* Posts a transfer. *ret stays NULL while no request is free: call again. device: whose
 * memory data is in; NULL: this process's. */
int crystal_net_post(struct crystal_net_end *end, void *data, uint64_t bytes,
                     struct crystal_device *device, const struct crystal_message_id *id,
                     struct crystal_net_request **ret, struct crystal_error *err);
/* *ret_done says whether the request is complete (and free again). */
int crystal_net_test(struct crystal_net_request *request, int *ret_done,
                     uint64_t *ret_bytes, struct crystal_error *err);

/* --- the kinds of ends; each takes over what it is given, also on failure --- */

struct crystal_net_end *crystal_tcp_end_create(struct crystal_net_context *context,
                                               int fd, int is_send, uint32_t peer_crank,
                                               struct crystal_error *err);
struct crystal_net_end *crystal_virtual_end_create(struct crystal_net_context *context,
                                                   int is_send, uint32_t peer_crank,
                                                   struct crystal_error *err);

#endif
