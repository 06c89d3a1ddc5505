/* Messages between the coordinator and its clients (live ranks' recorders, agents, the
 * SPANK plugin's finish call) over TCP.
 *
 *   offset bytes
 *        0     4 magic "CRM2"
 *        4     2 type (enum crystal_message_type)
 *        6     2 zero
 *        8     4 request number chosen by the client, echoed in the answer
 *       12     4 bytes of body, at most CRYSTAL_MESSAGE_BODY_MAX
 *       16     body: by type, fixed struct first, then variable bytes; host byte order
 *
 * The first message of a connection is HELLO with the job's token; anything else, a
 * wrong token or a bad length closes it. Every length is checked against what is there.
 * Frozen: version 2 (in the magic); in version 1 STOP had a text alone. A new type is
 * no new version: who does not know it closes the connection.
 */
#ifndef CRYSTAL_MESSAGE_H
#define CRYSTAL_MESSAGE_H

#include "runtime/error.h"
#include "runtime/nccl_abi.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define CRYSTAL_MESSAGE_MAGIC "CRM2"
/* 64 KiB less than the field can say. */
#define CRYSTAL_MESSAGE_BODY_MAX 0xffff0000U
#define CRYSTAL_TOKEN_BYTES      32

#define CRYSTAL_NOTICE_WARNING "warning: "

enum crystal_message_type {
    CRYSTAL_MSG_HELLO = 1,   /* struct crystal_msg_hello -> WELCOME */
    CRYSTAL_MSG_WELCOME = 2, /* struct crystal_msg_welcome */
    CRYSTAL_MSG_ERROR = 3,   /* text: the coordinator's sentence; it then closes */
    CRYSTAL_MSG_BEGIN = 4,   /* agent: a stage begins (struct crystal_msg_begin); the
                                store is emptied, ranks of the old stage forgotten */
    CRYSTAL_MSG_OK = 5,
    CRYSTAL_MSG_COMM_INIT = 6, /* rank: struct crystal_msg_comm_init -> COMM_READY when
                                  all live members have asked */
    CRYSTAL_MSG_COMM_READY = 7,
    CRYSTAL_MSG_OPS = 8,    /* rank: deposits of one call or one ncclGroup, atomic:
                               u32 count, then count x (struct crystal_msg_op, send
                               bytes) -> RESULT with the same request number */
    CRYSTAL_MSG_RESULT = 9, /* u32 count, then count x (u64 bytes, bytes) */
    CRYSTAL_MSG_HINT = 10,  /* rank: u64 iterations so far -> HINT_ANSWER u32 stop */
    CRYSTAL_MSG_HINT_ANSWER = 11,
    CRYSTAL_MSG_COMM_ID = 12, /* coordinator -> agents in emulate and plan: a unique id
                                 was set or asked for (struct crystal_msg_comm_id) */
    CRYSTAL_MSG_COMM_FORGE = 13, /* coordinator -> agent: a rank asks for the id of a
                                  communicator whose root is virtual; body as COMM_ID
                                  with a zero id -> FORGED with the id filled in */
    CRYSTAL_MSG_FORGED = 14,
    CRYSTAL_MSG_FINISH = 15, /* plugin: end; OK when done */
    CRYSTAL_MSG_FAIL = 16,   /* agent or rank: text; the coordinator stops the stage */
    CRYSTAL_MSG_STOP = 17,   /* coordinator -> all: struct crystal_msg_stop, text; stop
                                now, exit code 70. An empty text (to agents): the job
                                is over, finish well */
    CRYSTAL_MSG_BYE = 18,    /* client: it leaves on purpose; no answer. A connection
                                that ends without is a dead client */
    CRYSTAL_MSG_NOTICE = 20, /* coordinator -> agents: text that the user should see, a
                               warning where it begins with CRYSTAL_NOTICE_WARNING */
    CRYSTAL_MSG_NODE = 21,   /* agent of a stage on several nodes: struct
                                crystal_msg_node -> NODES when all have asked */
    CRYSTAL_MSG_NODES = 22,  /* node_count x struct crystal_msg_node, by node */
    CRYSTAL_MSG_MEET = 23,   /* agent of a stage on several nodes, as often as it
                                likes: struct crystal_msg_meet -> MET when all have
                                come */
    CRYSTAL_MSG_MET = 24,    /* struct crystal_msg_meet of node 0 */
    CRYSTAL_MSG_WAITING = 19 /* rank: it can do nothing before the RESULT of the request
                                number of this message; no answer. What tells a rank
                                that computes from one that waits for ever */
};

/* What stands in front of every body. */
struct crystal_message_head {
    char magic[4];
    uint16_t type; /* enum crystal_message_type */
    uint16_t zero;
    uint32_t request;
    uint32_t body_bytes;
};
_Static_assert(sizeof(struct crystal_message_head) == 16, "frozen");

enum crystal_role {
    CRYSTAL_ROLE_RANK = 1,
    CRYSTAL_ROLE_AGENT = 2,
    CRYSTAL_ROLE_CONTROL = 3
};

struct crystal_msg_hello {
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    uint32_t role;  /* enum crystal_role */
    uint32_t lrank; /* of a rank; node number of an agent */
    uint32_t pid;
    uint32_t zero;
};

struct crystal_msg_welcome {
    uint32_t lrank_count;
    uint32_t live_count;
    uint32_t iterations;
    uint32_t zero;
};

struct crystal_msg_begin {
    uint32_t stage; /* 1 capture, 2 plan, 3 emulate */
    uint32_t slice; /* plan: 1 + the target node whose ranks run; 0: the sandbox runs.
                       Capture of a list: 1 + the rank that runs by itself */
};

struct crystal_msg_stop {
    uint32_t lost; /* 1 + the rank whose connection ended without a word, where that is
                      why; else 0 */
    uint32_t zero;
};

struct crystal_msg_comm_init {
    uint8_t id[NCCL_UNIQUE_ID_BYTES];
    uint32_t nranks;
    uint32_t crank;
};

struct crystal_msg_comm_ready {
    uint32_t comm;       /* number by which OPS name it */
    uint32_t name_bytes; /* the name follows, without a zero */
};

struct crystal_msg_op {
    uint32_t comm;
    uint8_t func;  /* enum crystal_func */
    uint8_t dtype; /* ncclDataType_t */
    uint8_t redop; /* ncclRedOp_t 0..4; 5 = pre-multiplied sum, scalar below */
    uint8_t zero;
    uint32_t peer; /* root or peer crank */
    uint32_t zero2;
    uint64_t count;      /* elements as in the API call */
    uint64_t send_bytes; /* that follow */
    uint64_t recv_bytes; /* expected in the result */
    uint64_t scalar;     /* bits of the factor in the operation's own type */
    uint64_t call_site;  /* return address in the program, for diagnoses; or
                            CRYSTAL_SITE_TOLD and a line of ranks/LRANK.sites */
};
/* No address of a program has this bit. */
#define CRYSTAL_SITE_TOLD (UINT64_C(1) << 63)

struct crystal_msg_comm_id {
    uint8_t id[NCCL_UNIQUE_ID_BYTES];
    uint32_t name_bytes;   /* the store key follows, without a zero */
    uint32_t member_count; /* then this many u32: logical ranks by crank; 0 = unknown */
};

#define CRYSTAL_NODES_MAX 1024U /* nodes of a stage */

/* Where the service of a sandbox node is (replay/node_links.h). */
struct crystal_msg_node {
    uint32_t node;
    uint32_t node_count; /* the same for all; 2 to CRYSTAL_NODES_MAX */
    uint32_t port;       /* host order */
    uint32_t run;        /* node 0: number of the run's directory; else 0 */
    uint8_t address[16]; /* IPv6, or ::ffff:a.b.c.d. From an agent: all zero where the
                            coordinator is to say how the others reach it */
};

/* The nodes of a stage wait for each other. */
struct crystal_msg_meet {
    uint32_t node;
    uint32_t node_count; /* the same for all; 2 to CRYSTAL_NODES_MAX */
    uint32_t value;      /* node 0: what it tells the others; else 0 */
    uint32_t zero;
};

/* --- framing, for both ends --- */

/* body_bytes at most CRYSTAL_MESSAGE_BODY_MAX. */
void crystal_message_head_init(struct crystal_message_head *head, unsigned type,
                               uint32_t request, size_t body_bytes);
/* Checks magic, zero and length; the type is the reader's business. -EBADMSG. */
int crystal_message_head_check(const struct crystal_message_head *head,
                               struct crystal_error *err);

/* Small messages leave at once, a peer whose host has died is noticed within half a
 * minute. */
void crystal_message_socket(int fd);

/* Blocking: the whole message or an error. The entries of body are used up. A message
 * beyond CRYSTAL_MESSAGE_BODY_MAX is -EMSGSIZE. */
int crystal_message_send(int fd, unsigned type, uint32_t request, struct iovec *body,
                         size_t body_count, struct crystal_error *err);
/* Blocking: exactly this many bytes; -ECONNRESET where the stream ends before. */
int crystal_message_receive(int fd, void *out, size_t bytes, struct crystal_error *err);

/* What stands in front of the text of ERROR (nothing: *ret_stop is zero) and STOP,
 * whose head was received; head->body_bytes is then what follows. -EBADMSG where STOP
 * is too short. */
int crystal_message_stop(int fd, struct crystal_message_head *head,
                         struct crystal_msg_stop *ret_stop, struct crystal_error *err);

/* The unread rest of a body. Every read is checked against it. */
struct crystal_message_cursor {
    const uint8_t *at;
    size_t left_bytes;
};
/* Copies the next bytes to out; -EBADMSG where there are fewer. */
int crystal_message_take(struct crystal_message_cursor *cursor, void *out,
                         size_t bytes);
/* The next bytes where they stand (any alignment); NULL where there are fewer. */
const void *crystal_message_view(struct crystal_message_cursor *cursor, uint64_t bytes);

#endif
