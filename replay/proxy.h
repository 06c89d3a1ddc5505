/* The bootstrap proxy: one thread of the node's service that answers NCCL's bootstrap
 * for every virtual member of any number of communicators at once.
 *
 * A communicator becomes known in one of two ways. forge: its crank 0 is virtual, the
 * proxy makes the unique id, which points at the proxy, and plays the root. join: a
 * real crank 0 made the id, the proxy checks in at that root once for every virtual
 * rank. From then on the proxy takes part in the ring of all-gathers wherever a virtual
 * rank stands next to a real one, answers the exchange of connection handles, and
 * forgets the communicator when its real members have closed it. Communicators that
 * real ranks make of another by ncclCommSplit and ncclCommShrink it finds by itself.
 *
 * All virtual ranks have addresses 127.x.y.z of this machine behind one port; role and
 * crank stand in the address, the communicator in the magic of NCCL's socket handshake.
 * On several nodes the port is the same everywhere. One node's proxy, the lowest that
 * runs a member, answers for a communicator (its owner); what real ranks elsewhere say
 * to their own machine is handed on to it (proxy_relay.c). The others only put the
 * communicator on their boards.
 * All functions are thread-safe.
 */
#ifndef CRYSTAL_PROXY_H
#define CRYSTAL_PROXY_H

#include "replay/board.h"
#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/layout.h"

#include <stdint.h>

struct crystal_proxy;

struct crystal_links;

struct crystal_proxy_config {
    struct crystal_board *board;         /* borrowed until destroy */
    const struct crystal_layout *layout; /* borrowed: N, ranks per node, sandbox */
    const struct crystal_graph *graph;   /* borrowed; NULL where there is none */
    /* Several nodes: the links, and the socket of crystal_proxy_listen, owned from here
     * on success (-1: a lower node listens on this host), with its port. */
    struct crystal_links *links; /* borrowed; NULL: this node alone */
    int listen_fd;
    uint16_t port;
};

/* The socket at which virtual ranks are reached; *port 0 takes any. -EADDRINUSE. */
int crystal_proxy_listen(uint16_t *port, int *ret_fd, struct crystal_error *err);

/* Listens and starts the thread. NULL on failure. */
struct crystal_proxy *crystal_proxy_create(const struct crystal_proxy_config *config,
                                           struct crystal_error *err);
/* Closes every connection and ends the thread. NULL is fine. */
void crystal_proxy_destroy(struct crystal_proxy *proxy);

/* Makes the id of a communicator and answers for its virtual members from now on; its
 * entry is on the board when this returns. members[crank] = lrank. */
int crystal_proxy_forge(struct crystal_proxy *proxy, const char *name, uint32_t nranks,
                        const uint32_t *members, uint8_t ret_id[NCCL_UNIQUE_ID_BYTES],
                        struct crystal_error *err);
/* The same for an id that a real crank 0 made, or another node's proxy. An id that is
 * known already (forged here or told before) is fine and changes nothing; a
 * communicator without virtual or without real members is counted and otherwise left
 * alone. */
int crystal_proxy_join(struct crystal_proxy *proxy,
                       const uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name,
                       uint32_t nranks, const uint32_t *members,
                       struct crystal_error *err);

/* The same for a communicator of several roots (ncclCommInitRankScalable): its ranks
 * are divided among them in blocks, as even as can be, the larger ones first; root
 * number `index` of `count` is the first rank of its block, and makes that id. All ids
 * have one name, and become known in any order; until that of root 0 is, real ranks
 * wait. */
int crystal_proxy_forge_root(struct crystal_proxy *proxy, const char *name,
                             uint32_t index, uint32_t count, uint32_t nranks,
                             const uint32_t *members,
                             uint8_t ret_id[NCCL_UNIQUE_ID_BYTES],
                             struct crystal_error *err);
int crystal_proxy_join_root(struct crystal_proxy *proxy,
                            const uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name,
                            uint32_t index, uint32_t count, uint32_t nranks,
                            const uint32_t *members, struct crystal_error *err);
/* A group of the job, logical ranks by crank: ncclCommSplit and ncclCommShrink may make
 * a communicator of its members (replay/split_groups.h). */
int crystal_proxy_group(struct crystal_proxy *proxy, uint32_t nranks,
                        const uint32_t *members, struct crystal_error *err);
/* A connection to a virtual rank that came to another node; where: the low 24 bits of
 * the address that was dialled. Owns fd. */
void crystal_proxy_adopt(struct crystal_proxy *proxy, int fd, uint32_t where);
/* CRYSTAL_LINK_RINGS: what the owner of a communicator has learned of it, for this
 * node's board. -EBADMSG where it is nonsense. */
int crystal_proxy_rings(struct crystal_board *board, const void *body, uint32_t bytes);
/* CRYSTAL_LINK_CHILD of node `owner`: a communicator that was made of another there.
 * Sets err where the job has to end; -EBADMSG without where it is nonsense. */
int crystal_proxy_child(struct crystal_proxy *proxy, uint32_t owner, const void *body,
                        uint32_t bytes, struct crystal_error *err);
/* The node whose proxy answers for these members' communicator; UINT32_MAX where none
 * has to: all are real, or all virtual. */
uint32_t crystal_proxy_owner(const struct crystal_proxy *proxy, uint32_t nranks,
                             const uint32_t *members);

/* The first failure since create, 0 if none. A failure also aborts the board. */
int crystal_proxy_status(struct crystal_proxy *proxy, struct crystal_error *err);

struct crystal_proxy_counters {
    uint64_t real_only_count; /* communicators without a virtual member */
    uint64_t dropped_count;   /* connections with a wrong magic, type or address */
    uint64_t checkin_count;   /* virtual ranks checked in at real roots */
    uint64_t bytes_in;
    uint64_t bytes_out;
};
void crystal_proxy_counters(struct crystal_proxy *proxy,
                            struct crystal_proxy_counters *ret);

struct crystal_proxy_comm_info {
    const char *name; /* borrowed during the call */
    uint64_t comm_id;
    uint32_t nranks;
    uint32_t real_count;
    int is_forged;
    int is_child;      /* made of another one; is_forged, too */
    int is_open;       /* some real member has not closed it */
    uint64_t setup_ns; /* first connection until the bootstrap was complete; 0 = not */
    uint64_t connect_count; /* handles exchanged with virtual peers */
};
/* Calls fn for every communicator with a virtual member that this node owns, in the
 * order in which they became known. fn must not call the proxy. */
void crystal_proxy_each(struct crystal_proxy *proxy,
                        void (*fn)(void *context,
                                   const struct crystal_proxy_comm_info *info),
                        void *context);

#endif
