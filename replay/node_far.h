/* A node's service and those of the other sandbox nodes: setting up together, and what
 * they tell each other. Used by node.c and, for setting up, by assistant.c.
 */
#ifndef CRYSTAL_NODE_FAR_H
#define CRYSTAL_NODE_FAR_H

#include "replay/node.h"

struct crystal_board;
struct crystal_driver;
struct crystal_links;
struct crystal_proxy;

/* Phases in which all nodes meet (crystal_links_meet). */
enum node_phase {
    NODE_PORT_KNOWN = 1,
    NODE_READY = 2,
    NODE_DONE = 3,
    NODE_RECORDS = 4
};

struct node_far {
    struct crystal_links *links; /* owned; NULL: this node is alone, all below unused */
    struct crystal_client *coord; /* borrowed; may be NULL */
    struct crystal_board *board;  /* the node's, borrowed, as the next ones */
    /* set before the nodes meet in NODE_READY; the driver is NULL unless timed */
    _Atomic(struct crystal_proxy *) proxy;
    _Atomic(struct crystal_driver *) driver;
    /* the bootstrap proxies' port, and this node's socket for it: -1 where a lower node
     * listens on the same host */
    uint16_t port;
    int listen_fd;
};

/* Connects to the other nodes, agrees on a port, and writes what the ranks need to find
 * those of other nodes. Takes config->links over, also on failure. */
int node_far_connect(struct node_far *far, const struct crystal_node_config *config,
                     struct crystal_board *board, struct crystal_error *err);
/* The links' message hook, context is a node_far: what another node says. Every byte is
 * checked. */
int node_far_message(void *context, uint32_t from, unsigned type, const void *body,
                     uint32_t bytes);
/* The links' alive hook, context is a node_far: the coordinator has not ended the
 * stage.
 */
int node_far_alive(void *context, struct crystal_error *err);
/* All nodes are in this phase. */
int node_far_meet(struct node_far *far, enum node_phase phase,
                  struct crystal_error *err);
/* node.c: an id that is to be made (forge) or was told, to the proxy of this node; name
 * is its key in the store. */
int node_comm_put(struct crystal_proxy *proxy, int forge,
                  uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name, uint32_t nranks,
                  const uint32_t *members, struct crystal_error *err);
/* Tells the other nodes of a communicator, and waits until all have it on their boards.
 */
int node_far_comm(struct node_far *far, const uint8_t id[NCCL_UNIQUE_ID_BYTES],
                  const char *name, uint32_t nranks, const uint32_t *members,
                  struct crystal_error *err);
/* No hook of the links runs from here on. */
void node_far_stop(struct node_far *far);
void node_far_fini(struct node_far *far);

#endif
