/* What the files of the links between nodes share: node_links.c (making, sending,
 * state), node_links_read.c (the reading thread). Include node_links.h instead.
 */
#ifndef CRYSTAL_NODE_LINKS_INTERNAL_H
#define CRYSTAL_NODE_LINKS_INTERNAL_H

#include "replay/node_clock.h"
#include "replay/node_links.h"
#include "runtime/loop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define LINKS_STRANGERS 256U         /* connections that are nobody's yet */
#define LINKS_HELLO_NS  10000000000U /* a stranger may take so long for its HELLO */

/* The connection to another node. */
struct links_peer {
    struct crystal_links *links;
    uint32_t node;
    int fd;                    /* -1: not yet; set once, closed by destroy */
    pthread_mutex_t send_lock; /* one message at a time */
    /* the reading thread's */
    struct crystal_watch watch;
    struct crystal_message_head head;
    uint32_t head_got, body_got;
    uint8_t *body; /* owned; of the message being read */
    /* under links->lock */
    bool has_who, is_gone;
    uint64_t lost_ns; /* the connection broke then; 0: it did not */
    struct crystal_link_who who;
    uint32_t phase;
};

/* A connection that has not said who it is, or a feed that waits for its rank. */
struct links_stranger {
    struct crystal_links *links;
    int fd; /* -1: free */
    struct crystal_watch watch;
    struct crystal_timer timer; /* too late, or a feed's next try */
    uint8_t hello[CRYSTAL_LINK_HELLO_BYTES];
    uint32_t got;
    uint32_t lrank; /* of a feed */
};

struct crystal_links {
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    uint32_t node, node_count; /* count 0: not connected yet */
    uint32_t assistant_count;  /* of node_count, the last ones */
    uint32_t port;
    int listen_fd, stop_fd;
    struct crystal_msg_node *nodes; /* [node_count]; owned */
    struct links_peer *peers;       /* [node_count]; the own one unused; owned */
    struct links_stranger strangers[LINKS_STRANGERS];
    struct crystal_links_hooks hooks;
    struct crystal_link_who who;
    struct crystal_loop *loop;
    struct crystal_watch listener, stop;
    struct crystal_timer ping, beat;
    struct crystal_clock clock; /* the reading thread's */
    uint64_t ping_ns;           /* of the message under way; the same */
    pthread_t thread;
    bool has_thread;
    _Atomic int64_t clock_ns;

    pthread_mutex_t lock; /* everything below, and parts of the peers */
    pthread_cond_t changed;
    bool has_clock;
    pthread_mutex_t ask_lock; /* one question at a time */
    uint32_t ask_request, ask_left;
    int ask_code;
};

/* The reading thread. */
void *links_main(void *links);
/* Its watches, before it starts. */
int links_watch(struct crystal_links *links, struct crystal_error *err);
int links_send(struct links_peer *peer, unsigned type, uint32_t request,
               const void *body, uint32_t bytes);
/* To all others, assistants, too. */
void links_send_all(struct crystal_links *links, unsigned type, const void *body,
                    uint32_t bytes);

#endif
