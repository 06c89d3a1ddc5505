/* What the files of the bootstrap proxy share: connections (proxy_conn.c),
 * communicators (proxy_comm.c), whose slices virtual ranks take (proxy_template.c),
 * what a virtual rank says (proxy_clone.c), the ring of all-gathers (proxy_gather.c),
 * the root's part (proxy_root.c), the exchange of connection handles (proxy_connect.c),
 * communicators made of others (proxy_split.c), the order of NCCL's rings
 * (proxy_rings.c), what other nodes answer for (proxy_relay.c).
 *
 * Everything here is guarded by proxy->lock, which the thread holds except while it
 * waits for events.
 */
#ifndef CRYSTAL_PROXY_INTERNAL_H
#define CRYSTAL_PROXY_INTERNAL_H

#include "replay/proxy.h"
#include "replay/proxy_layout.h"
#include "replay/split_groups.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define PROXY_INPUT_MAX        (64U << 10) /* bytes of a connection not yet understood */
#define PROXY_OUTPUT_LOW       (64U << 10) /* a link makes more frames below this */
#define PROXY_SLICE_MAX        (32U << 10) /* a rank's part of an all-gather */
#define PROXY_SOCKET_BOOTSTRAP 1           /* NCCL's type of a bootstrap socket */
#define PROXY_NONE             UINT32_MAX
#define PROXY_TAG_SPLIT        (1U << 29) /* messages about the ring of a child */

struct proxy_comm;
struct proxy_link;

/* What an address 127.x.y.z stands for: role << 21 | crank in its low 24 bits. */
enum proxy_port {
    PROXY_PORT_ROOT = 1,   /* check-ins of real ranks */
    PROXY_PORT_ANSWER = 2, /* a real root's answer to a virtual rank */
    PROXY_PORT_RING = 3,   /* a real rank's ring connection to its virtual next */
    PROXY_PORT_PEER = 4    /* messages of bootstrapSend to a virtual rank */
};
#define PROXY_PORT_SHIFT 21
#define PROXY_CRANK_MAX  ((1U << PROXY_PORT_SHIFT) - 1)

enum proxy_conn_kind {
    PROXY_CONN_LISTEN,
    PROXY_CONN_WAKE,
    PROXY_CONN_NEW,     /* accepted, handshake not read yet */
    PROXY_CONN_CHECKIN, /* incoming: real rank -> our root */
    PROXY_CONN_ANSWER,  /* incoming: real root -> virtual rank */
    PROXY_CONN_LINK,    /* ring, either direction */
    PROXY_CONN_PEER,    /* incoming: real rank -> virtual rank */
    PROXY_CONN_ONCE,    /* outgoing: sends what it has and closes */
    PROXY_CONN_ATROOT,  /* outgoing: check-in; stays until the root has closed */
    PROXY_CONN_RELAY    /* both ends of what is handed on to another node */
};

struct proxy_bytes {
    uint8_t *data; /* owned */
    size_t begin, end, capacity;
};

struct proxy_conn {
    struct proxy_conn *prev, *next; /* all connections, oldest first */
    struct crystal_proxy *proxy;
    struct proxy_comm *comm; /* NULL until the handshake */
    struct proxy_link *link; /* LINK only */
    struct proxy_conn *pair; /* RELAY only: the other end, NULL where it is closed */
    int fd;
    enum proxy_conn_kind kind;
    uint32_t port;  /* enum proxy_port of an accepted connection */
    uint32_t crank; /* which virtual rank it addresses or comes from */
    uint32_t root;  /* CHECKIN, ANSWER, ATROOT: index */
    bool connecting;
    bool close_when_sent;
    bool is_parked; /* PEER: complete, but waits for the sender's address */
    bool is_dead;   /* closed; freed after the present round of events */
    uint32_t events;
    struct proxy_bytes in, out;
};

/* One side of the ring between a real and a virtual rank. */
struct proxy_link {
    struct proxy_conn *conn; /* NULL before and after */
    uint32_t real;           /* index of the real member */
    bool is_next;            /* the real rank's next is virtual (it dialled us) */
    bool is_closed;
    /* frames per all-gather, and where we are */
    uint32_t in_count, out_count;
    uint32_t in_gather, in_frame;
    uint32_t out_gather, out_frame;
    bool out_has_size; /* the size word of out_frame is sent already */
};

/* One all-gather that some link has not finished. */
struct proxy_gather {
    struct proxy_gather *next;
    uint32_t index; /* 0, 1, ... */
    uint32_t slice_bytes;
    uint8_t *has;    /* [real_count], owned */
    uint8_t *slices; /* [real_count][slice_bytes], owned */
    /* colours and keys of ncclCommSplit; owned; NULL where it is none */
    struct split_groups *split;
    uint32_t split_number, child_number; /* of the parent: from 1 and from 0 */
};

struct proxy_real {
    uint32_t crank;
    uint32_t reach;     /* step of an all-gather in which its slice is with us */
    bool is_checked_in; /* at a root of ours, which has to answer it */
    bool is_answered;
    bool has_ring_address; /* by its check-in, or as a real root told us */
    bool has_neighbour;    /* it has told the root before its own where its ring is */
    bool has_peer_address;
    uint8_t ring_address[PROXY_ADDRESS_BYTES];
    uint8_t root_address[PROXY_ADDRESS_BYTES];
    uint8_t peer_address[PROXY_ADDRESS_BYTES];
};

/* One of the roots of a communicator's bootstrap, and the block of ranks that check in
 * there; with several roots the first rank of the next block does, too, so that the
 * last of this one can be told where it is. */
struct proxy_root {
    uint8_t id[NCCL_UNIQUE_ID_BYTES];
    uint64_t magic;
    bool is_known, is_forged;
    uint32_t first, count; /* cranks */
    /* real root: how far the virtual ranks of the block have checked in there, those
     * next to a real rank in the first round, the others in the second */
    uint32_t edge, next;
};

/* The members of one target node, made when a clone of one of them is needed. */
struct proxy_node {
    uint32_t node;          /* PROXY_NONE: nothing here */
    uint32_t template_node; /* target node of the template of the present clone */
    uint32_t count;
    uint32_t *ranks;    /* cranks in crank order [ranks_per_node], owned */
    uint32_t *by_local; /* crank by local rank or PROXY_NONE [ranks_per_node], owned */
    bool is_alike;      /* can be cloned member by member */
};

struct proxy_comm {
    struct proxy_comm *next;
    struct crystal_proxy *proxy;
    char name[CRYSTAL_BOARD_NAME];
    struct proxy_root *roots; /* owned */
    uint32_t root_count;
    uint64_t magic; /* that of root 0; 0 until it is known */
    uint64_t comm_id;
    uint64_t members_hash;
    uint32_t nranks, real_count, link_count, open_count;
    uint32_t graph_channels; /* least of its real members so far; 0 = none has told */
    uint32_t owner;          /* node */
    bool is_open, is_failed;
    bool is_left; /* every link was closed by its real rank */
    const struct proxy_layout *layout;
    uint32_t *members; /* lrank by crank; owned, freed when closed */
    uint32_t *order;   /* cranks by ascending lrank; owned; NULL where members ascend */
    uint32_t *templates; /* real index by crank (its own for a real one); owned */
    uint32_t *wanted;    /* step of an all-gather that needs a virtual slice; owned */
    uint8_t *is_real;    /* owned */
    struct proxy_real *reals; /* by crank order; owned */
    struct proxy_link *links; /* owned */
    struct proxy_gather *gathers;
    uint32_t parked_count; /* PEER connections that are parked */
    uint32_t gather_next;  /* index of the next new all-gather */
    struct proxy_node node;
    uint32_t checkin_flying; /* check-ins at real roots on their way */
    /* ncclCommSplit and ncclCommShrink: how many there were, those of the former alone;
     * of a child: whose, and its members' cranks there (owned) */
    uint32_t child_count, split_count;
    struct proxy_comm *parent; /* NULL: made with an id */
    uint32_t *parent_cranks;
    uint64_t begin_ns, setup_ns, connect_count;
};

struct crystal_proxy {
    struct crystal_board *board;
    const struct crystal_layout *layout;
    const struct crystal_graph *graph;
    struct crystal_links *links;         /* NULL: this node alone */
    const struct proxy_layout *messages; /* those of the job's NCCL */
    pthread_mutex_t lock;
    pthread_t thread;
    bool has_thread, is_stopping;
    bool is_detached; /* no sockets: what is sent is lost (for the fuzzer) */
    int epoll_fd;
    uint16_t tcp_port; /* host order */
    struct proxy_conn *first, *last, *dead;
    uint32_t new_count; /* connections without a handshake */
    struct proxy_comm *comms, **comms_end;
    struct split_told told; /* groups that children may be */
    struct crystal_error failure;
    struct crystal_proxy_counters counters;
};

/* --- proxy_conn.c --- */

/* Bytes of an address of ours; port in it is the proxy's. */
void proxy_address(const struct crystal_proxy *proxy, enum proxy_port port,
                   uint32_t crank, uint8_t ret[PROXY_ADDRESS_BYTES]);
/* Starts to connect. The connection exists whatever happens to it (a failure is
 * reported through the communicator), NULL only when out of memory. */
struct proxy_conn *proxy_dial(struct proxy_comm *comm, enum proxy_conn_kind kind,
                              const uint8_t address[PROXY_ADDRESS_BYTES]);
bool proxy_address_is_usable(const uint8_t address[PROXY_ADDRESS_BYTES]);
/* Text of an address in a static-size buffer of the caller. */
const char *proxy_address_text(const uint8_t address[PROXY_ADDRESS_BYTES], char *text,
                               size_t text_bytes);
/* fd -1: detached. Owns fd on success. NULL when out of memory. */
struct proxy_conn *proxy_conn_create(struct crystal_proxy *proxy, int fd,
                                     enum proxy_conn_kind kind, uint32_t events);
/* Frees the connections that were closed. */
void proxy_bury(struct crystal_proxy *proxy);
/* As if these bytes had come (for the fuzzer). False where the connection is gone. */
bool proxy_conn_feed(struct proxy_conn *conn, const void *bytes, size_t count);
/* Queues bytes. Out of memory fails the communicator. Returns false then. */
bool proxy_conn_put(struct proxy_conn *conn, const void *bytes, size_t count);
/* Queues the handshake of a bootstrap socket: magic, type. */
bool proxy_conn_put_handshake(struct proxy_conn *conn, uint64_t magic);
/* Queues a message of the bootstrap: size, bytes. */
bool proxy_conn_put_frame(struct proxy_conn *conn, const void *bytes, uint32_t count);
void proxy_conn_flush(struct proxy_conn *conn);
void proxy_conn_close(struct proxy_conn *conn);
/* Unread input, and how much of it is understood. */
size_t proxy_conn_input(const struct proxy_conn *conn, const uint8_t **ret_bytes);
void proxy_conn_consume(struct proxy_conn *conn, size_t count);
/* Events to wait for (EPOLLIN, EPOLLOUT). */
void proxy_conn_watch(struct proxy_conn *conn, uint32_t events);
/* Reads what has come and has it handled. */
void proxy_conn_read(struct proxy_conn *conn);
/* The other side is gone (code: ECONNRESET) or the socket failed. */
void proxy_conn_broke(struct proxy_conn *conn, int code);
/* Closes one that is not what it should be. */
void proxy_conn_drop(struct proxy_conn *conn);

/* --- proxy_thread.c --- */

/* Understands what has come; closes where it is wrong. */
void proxy_conn_handle(struct proxy_conn *conn);
/* A new connection to a virtual rank; where: the low 24 bits of its address. Takes fd.
 */
void proxy_take(struct crystal_proxy *proxy, int fd, uint32_t where);
/* The thread; argument: the proxy. */
void *proxy_run(void *argument);

/* --- proxy_comm.c --- */

/* Without any id; in the proxy's list. */
struct proxy_comm *proxy_comm_create(struct crystal_proxy *proxy, const char *name,
                                     uint32_t root_count, uint32_t nranks,
                                     const uint32_t *members,
                                     struct crystal_error *err);
/* One that is made of another, without roots: its number names it. */
int proxy_comm_child(struct proxy_comm *comm, uint64_t comm_id,
                     struct crystal_error *err);
/* Takes it out of the list. */
void proxy_comm_remove(struct proxy_comm *comm);
/* A root's id is known; with that of root 0 the communicator comes on the board. */
int proxy_comm_root(struct proxy_comm *comm, uint32_t index,
                    const uint8_t id[NCCL_UNIQUE_ID_BYTES], bool is_forged,
                    struct crystal_error *err);
void proxy_comm_destroy(struct proxy_comm *comm);
/* Where every real member has left and every virtual one has checked in: closes its
 * connections and frees what only an open communicator needs. */
void proxy_comm_close_if_done(struct proxy_comm *comm);
struct proxy_comm *proxy_comm_find(struct crystal_proxy *proxy, uint64_t magic);
/* The one that has a root with this magic. */
struct proxy_comm *proxy_comm_find_root(struct crystal_proxy *proxy, uint64_t magic,
                                        uint32_t *ret_index);
/* Index of a real member, PROXY_NONE for a virtual one or none. */
uint32_t proxy_comm_real(const struct proxy_comm *comm, uint32_t crank);
bool proxy_comm_is_virtual(const struct proxy_comm *comm, uint32_t crank);
/* Ends the communicator with a sentence, the node's status and the board with it. */
void proxy_comm_fail(struct proxy_comm *comm, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same with ECONNRESET: a real rank is gone, whose own end says more. */
void proxy_comm_lose(struct proxy_comm *comm, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The link on that side of a real member; NULL where its neighbour is real. */
struct proxy_link *proxy_comm_link(struct proxy_comm *comm, uint32_t real,
                                   bool is_next);

/* --- proxy_template.c --- */

/* Fills reals, links, templates and wanted of a communicator whose members are known.
 * -ENOMEM. */
int proxy_comm_choose_templates(struct proxy_comm *comm);

/* --- proxy_relay.c --- */

/* Another node answers for this communicator. */
bool proxy_comm_is_far(const struct proxy_comm *comm);
/* Hands conn, whose handshake is in its input, on to the communicator's owner. */
void proxy_relay_begin(struct proxy_comm *comm, struct proxy_conn *conn);
void proxy_relay_read(struct proxy_conn *conn);
/* Whether the other end has too much to send already. */
bool proxy_relay_is_full(const struct proxy_conn *conn);
/* Has sent something. */
void proxy_relay_sent(struct proxy_conn *conn);
/* Closes; the other end does when what it has is sent. */
void proxy_relay_closed(struct proxy_conn *conn);

/* Puts the order of the rings on this node's board and on those of the others. */
int proxy_relay_rings(struct proxy_comm *comm, uint32_t ring_count,
                      const uint32_t *ranks, bool alone, struct crystal_error *err);

/* --- proxy_gather.c --- */

/* conn is from now on the link's connection. */
void proxy_link_open(struct proxy_comm *comm, struct proxy_link *link,
                     struct proxy_conn *conn);
void proxy_link_read(struct proxy_conn *conn);
void proxy_link_eof(struct proxy_conn *conn);
/* Queues frames for a link as far as they are known and wanted. */
void proxy_link_fill(struct proxy_comm *comm, struct proxy_link *link);
void proxy_gathers_free(struct proxy_comm *comm);

/* --- proxy_clone.c --- */

/* Writes virtual rank crank's slice: the template's, rewritten. */
void proxy_comm_clone(struct proxy_comm *comm, const struct proxy_gather *gather,
                      uint32_t crank, uint8_t *slice);

/* --- proxy_split.c --- */

/* Whether conn, whose magic nobody knows, may be for a child of which another node will
 * tell: that and the real rank's connection come by different ways. */
bool proxy_split_may_come(const struct proxy_conn *conn);
/* The all-gather of colours and keys begins. False where memory is short. */
bool proxy_split_begin(struct proxy_comm *comm, struct proxy_gather *gather);
/* A real rank's slice has come; behind the last one the children are there. */
void proxy_split_learn(struct proxy_comm *comm, struct proxy_gather *gather,
                       uint32_t crank, const uint8_t *slice);
/* A virtual rank's slice. False where it is too early, or the communicator failed. */
bool proxy_split_slice(struct proxy_comm *comm, struct proxy_gather *gather,
                       uint32_t crank, uint8_t *slice);
/* Whether a real rank's message about a child's ring has to wait for the others. */
bool proxy_split_is_early(const struct proxy_comm *comm, uint32_t from);
/* Real rank `from` tells virtual rank `to`, behind which it stands in a child, where
 * its ring listener is. */
void proxy_split_meet(struct proxy_comm *comm, uint32_t from, uint32_t to,
                      const uint8_t address[PROXY_ADDRESS_BYTES]);

/* --- proxy_rings.c --- */

/* A real rank's topology has come: once that of all has, the board gets the order of
 * the rings. */
void proxy_rings_learn(struct proxy_comm *comm, const struct proxy_gather *gather);

/* --- proxy_root.c --- */

void proxy_root_checkin(struct proxy_conn *conn); /* incoming, we are the root */
void proxy_root_answer(struct proxy_conn *conn);  /* incoming, from a real root */
/* Checks in more virtual ranks at real roots. */
void proxy_root_pump(struct proxy_comm *comm);
/* Root 0 is known: answers who has checked in before. */
void proxy_root_settle(struct proxy_comm *comm);
/* The same for what is known of one real member. */
void proxy_root_settle_one(struct proxy_comm *comm, uint32_t real);
/* No virtual rank has to check in any more. */
bool proxy_root_is_done(const struct proxy_comm *comm);
/* The real root is gone. Once the real ranks are set up nobody needs it: the check-ins
 * that are left are given up, false. */
bool proxy_root_is_missed(struct proxy_comm *comm);
/* A connection of a check-in is gone. */
void proxy_root_left(struct proxy_comm *comm);

/* --- proxy_connect.c --- */

void proxy_connect_read(struct proxy_conn *conn);
/* Virtual rank `from` sends to real member `real`, whose address is known. */
void proxy_connect_send(struct proxy_comm *comm, uint32_t from, uint32_t real,
                        uint32_t tag, const void *data, uint32_t bytes);
/* Its message is complete and waits for the sender's address. */
bool proxy_connect_is_early(const struct proxy_conn *conn);
/* A real rank's address for such messages is known now: go on with those that came
 * before. */
void proxy_connect_retry(struct proxy_comm *comm);

#endif
