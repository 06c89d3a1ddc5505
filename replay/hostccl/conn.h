/* One direction of one connection through the NET plugin, with its staging memory.
 *
 * Staging is 8 steps of 512 KiB, as NCCL's; a message takes one or two steps in the
 * order of the connection. An operation's messages on a connection are a lane; lanes
 * follow each other, and a lane of a sender may still be under way when its operation
 * is over (the data are in staging memory). Everything but request and mail belongs to
 * the driver (engine.h).
 */
#ifndef CRYSTAL_HOSTCCL_CONN_H
#define CRYSTAL_HOSTCCL_CONN_H

#include "replay/hostccl/profile.h"
#include "replay/hostccl/wire.h"
#include "runtime/error.h"

#include <stdbool.h>
#include <stdint.h>

#define HOSTCCL_STEPS      8
#define HOSTCCL_STEP_BYTES (512U << 10)

struct ncclComm;

struct hostccl_lane {
    struct hostccl_lane *next;
    struct hostccl_conn *conn;
    void *event;    /* ProxyOp */
    uint64_t total; /* messages */
    uint64_t begun; /* sender: filled; receiver: posted */
    uint64_t ended; /* sender: sent; receiver: taken and released */
    uint32_t steps; /* per message: 1 or 2 */
    bool is_open;   /* not all ended */
    /* receiver: bytes of message i, asked before it is posted */
    uint32_t (*bytes_of)(const struct hostccl_lane *lane, uint64_t i);
    void (*closed)(struct hostccl_lane *lane); /* all ended; may free the lane */
    void *owner;
};

enum hostccl_conn_state {
    HOSTCCL_CONN_NEW,     /* nothing asked of the peer */
    HOSTCCL_CONN_ASKED,   /* our entry is sent, the peer's not here */
    HOSTCCL_CONN_JOINING, /* connect or accept is to be called until it succeeds */
    HOSTCCL_CONN_READY,
    HOSTCCL_CONN_DEAD
};

struct hostccl_message { /* in staging memory */
    struct hostccl_lane *lane;
    void *request;
    uint64_t step; /* of the connection: its place is step % 8 */
    uint32_t bytes;
    struct hostccl_phandle phandle;
};

struct hostccl_conn {
    struct ncclComm *comm; /* borrowed */
    struct hostccl_conn *next_busy;
    uint32_t peer;
    bool is_send;
    bool is_busy;    /* in the communicator's list */
    bool needs_sync; /* the peer has not answered that it is connected */
    _Atomic enum hostccl_conn_state state; /* relaxed: its stages have their own order
                                              (locks of bootstrap and engine) */
    struct hostccl_entry mail;             /* what the peer told, once JOINING */
    void *listener, *net, *mr;             /* the plugin's */
    char *staging;                         /* [8 * 512 KiB], mapped */
    struct hostccl_lane *lanes, **last_lane;
    struct hostccl_message window[HOSTCCL_STEPS];
    /* Message numbers. first <= done <= posted <= end. Sender: [first, posted) is under
     * way, [posted, end) filled; done is not used. Receiver: [first, done) has arrived,
     * [done, posted) is under way. */
    uint64_t first, done, posted, end;
    uint64_t next_step;
};

struct hostccl_conn *hostccl_conn_create(struct ncclComm *comm, uint32_t peer,
                                         bool is_send, struct crystal_error *err);
/* Closes what the plugin has. NULL is fine. */
void hostccl_conn_destroy(struct hostccl_conn *conn);

/* Our entry for the peer; a receiver starts to listen. */
int hostccl_conn_entry(struct hostccl_conn *conn, struct hostccl_entry *ret_entry,
                       struct crystal_error *err);
/* JOINING: tries once more with the peer's entry. 1: now READY, 0: not yet. */
int hostccl_conn_join(struct hostccl_conn *conn, struct crystal_error *err);

void hostccl_lane_open(struct hostccl_lane *lane, struct hostccl_conn *conn,
                       uint64_t message_count, uint32_t steps, void *task_event,
                       uint32_t chunk_bytes);
/* Sender: staging memory for the next message, NULL where none is free. */
void *hostccl_lane_slot(struct hostccl_lane *lane);
void hostccl_lane_fill(struct hostccl_lane *lane, uint32_t bytes);
/* The connection's step at which that message stands; there is a slot. */
uint64_t hostccl_lane_step(struct hostccl_lane *lane);
/* Receiver: the oldest message that arrived, NULL if none; release gives it back. */
const void *hostccl_lane_message(struct hostccl_lane *lane, uint32_t *ret_bytes);
void hostccl_lane_release(struct hostccl_lane *lane);

/* Posts and tests. 1: something moved, 0: nothing, negative: failed (conn is DEAD). */
int hostccl_conn_progress(struct hostccl_conn *conn, struct crystal_error *err);
/* Forgets all lanes after a failure; what the plugin still holds stays untouched. */
void hostccl_conn_abandon(struct hostccl_conn *conn);

#endif
