/* The connections between the services of a job's nodes, those of the sandbox and,
 * behind them, assistants: one TCP connection for each pair of nodes, and one listening
 * port of each node, which also takes connections for the bootstrap proxy
 * (proxy_relay.c), feeds for the node's ranks (virtual_feed.h), and the real wire's
 * (assist_message.h).
 *
 * Every connection begins with the HELLO of runtime/message.h and the job's token; what
 * does not is closed. Between nodes the same framing goes on in both directions. Behind
 * the HELLO of a bootstrap connection or a feed come their own bytes.
 *
 * A thread reads; its hooks must not wait for another node. Everything else may be
 * called from any thread.
 */
#ifndef CRYSTAL_NODE_LINKS_H
#define CRYSTAL_NODE_LINKS_H

#include "replay/link_dial.h"
#include "runtime/error.h"
#include "runtime/listen.h"
#include "runtime/message.h"

#include <stdint.h>

/* Messages between nodes. */
enum crystal_link_type {
    CRYSTAL_LINK_WHO = 64,     /* struct crystal_link_who; the first one, both ways */
    CRYSTAL_LINK_PING = 65,    /* u64: time at the sender -> PONG */
    CRYSTAL_LINK_PONG = 66,    /* the same u64, u64: time at the other */
    CRYSTAL_LINK_PHASE = 67,   /* u32: see crystal_links_meet */
    CRYSTAL_LINK_OK = 68,      /* u32: positive errno of the request's hook, 0 = well */
    CRYSTAL_LINK_BYE = 69,     /* the node leaves on purpose */
    CRYSTAL_LINK_PORT = 70,    /* u32: the bootstrap proxies' port -> OK */
    CRYSTAL_LINK_COMM = 71,    /* as CRYSTAL_MSG_COMM_ID -> OK */
    CRYSTAL_LINK_ARRIVAL = 72, /* struct crystal_far_arrival (driver_far.h) */
    CRYSTAL_LINK_START = 73,   /* struct crystal_far_start */
    CRYSTAL_LINK_FREE = 74,    /* u32: enum crystal_board_timeline */
    CRYSTAL_LINK_RINGS = 75,   /* struct crystal_link_rings */
    CRYSTAL_LINK_CHILD = 76    /* struct crystal_link_child */
};

struct crystal_link_who {
    uint64_t clock; /* equal where CLOCK_MONOTONIC is the same clock */
    uint64_t host;  /* equal where the network is the same */
};

/* Of a communicator, from its owner: channels of its trees (0: not known), whether its
 * members are alone on their nodes, and in which order its rings go through them;
 * ring_count x nranks cranks (u32) follow. */
struct crystal_link_rings {
    uint64_t comm_id;
    uint32_t graph_channels, ring_count, nranks, alone;
};

/* A communicator that was made of another, from its owner: the bytes of its name and
 * its members, logical ranks by crank (u32), follow. */
struct crystal_link_child {
    uint64_t comm_id;
    uint32_t name_bytes, member_count;
};

struct crystal_links;

struct crystal_links_hooks {
    void *context;
    /* A message of type PORT or above. Where a request asks for OK, the value goes
     * there. */
    int (*message)(void *context, uint32_t from, unsigned type, const void *body,
                   uint32_t bytes);
    /* Owns fd, whose next byte is the one behind the HELLO. */
    void (*bootstrap)(void *context, int fd, uint32_t where);
    /* 0: fd is gone; -EAGAIN: again in a few milliseconds. */
    int (*feed)(void *context, int fd, uint32_t lrank);
    /* Owns fd, as bootstrap does. NULL: this is no assistant. */
    void (*wire)(void *context, int fd);
    /* Asked while connect waits; nonzero with err set ends that. */
    int (*alive)(void *context, struct crystal_error *err);
    /* crystal_links_clock_ns has another value. */
    void (*clock)(void *context, int64_t clock_ns);
};

/* Listens on a port of ports on all addresses. NULL on failure. */
struct crystal_links *crystal_links_create(const uint8_t token[CRYSTAL_TOKEN_BYTES],
                                           const struct crystal_ports *ports,
                                           struct crystal_error *err);
uint32_t crystal_links_port(const struct crystal_links *links);
/* Connects to the nodes below `node`, waits for those above, at most 60 s; then the
 * clock is known. nodes has node_count entries (copied), of which the last
 * assistant_count are assistants. Hooks may be called from here to stop. */
int crystal_links_connect(struct crystal_links *links, uint32_t node,
                          const struct crystal_msg_node *nodes, uint32_t node_count,
                          uint32_t assistant_count,
                          const struct crystal_links_hooks *hooks,
                          struct crystal_error *err);
/* Says BYE and ends the thread; what is sent afterwards is lost. NULL is fine. */
void crystal_links_stop(struct crystal_links *links);
/* The same, and frees. */
void crystal_links_destroy(struct crystal_links *links);

/* 0 is this node where there are no others (links NULL, count 1). count: sandbox nodes,
 * the first ones. */
uint32_t crystal_links_node(const struct crystal_links *links);
uint32_t crystal_links_count(const struct crystal_links *links);
uint32_t crystal_links_assistants(const struct crystal_links *links);
/* [count + assistants] */
const struct crystal_msg_node *crystal_links_nodes(const struct crystal_links *links);
const uint8_t *crystal_links_token(const struct crystal_links *links);
/* Whether a lower node has the same network. */
int crystal_links_shares_host(const struct crystal_links *links);

/* To one node, or to all other sandbox nodes. A connection that is broken shows in
 * status. */
void crystal_links_send(struct crystal_links *links, uint32_t to, unsigned type,
                        const void *body, uint32_t bytes);
void crystal_links_tell(struct crystal_links *links, unsigned type, const void *body,
                        uint32_t bytes);
/* To all other sandbox nodes, and waits until all have said OK, at most 30 s; the first
 * nonzero code as negative errno. Not from a hook. */
int crystal_links_ask(struct crystal_links *links, unsigned type, const void *body,
                      uint32_t bytes, struct crystal_error *err);
/* Tells the others that this node has come to phase (1, 2, ...), and says whether all
 * have, assistants, too: 1, or 0 not yet. */
int crystal_links_meet(struct crystal_links *links, uint32_t phase);
/* 0 while every other node is there or has said BYE; else, 2 s later (who knows more is
 * to speak first), -ECONNRESET and a sentence. */
int crystal_links_status(struct crystal_links *links, struct crystal_error *err);
/* Add to CLOCK_MONOTONIC of this node for that of node 0. */
int64_t crystal_links_clock_ns(const struct crystal_links *links);

#endif
