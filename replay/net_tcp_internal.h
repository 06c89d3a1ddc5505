/* Shared by the files that make the ends of a connection between two real ranks: by the
 * socket (net_tcp_socket.c) or by memory of one host (net_tcp_shared.c), which an end
 * goes over to when it has the memory.
 */
#ifndef CRYSTAL_NET_TCP_INTERNAL_H
#define CRYSTAL_NET_TCP_INTERNAL_H

#include "replay/net.h"
#include "replay/net_share.h"
#include "replay/net_tcp.h"

#define TCP_IN_BYTES 16384U
#define TCP_PLACES   64U

/* Payload in the shared memory that this receiver has been told of; a place is free
 * again when it and all before it are. */
struct tcp_place {
    uint64_t at, bytes;
    int is_held; /* by a request that puts it into the caller's buffer */
};

struct tcp_end {
    struct crystal_net_end base;
    int fd;
    struct crystal_share *share;   /* NULL: by the socket */
    int is_pin_refused;            /* for good */
    struct crystal_device *pinned; /* knows the shared memory; NULL: none */
    int is_gone;                   /* the other side's socket is closed */
    unsigned idle;                 /* rounds since the socket was looked at */
    /* sender */
    uint64_t written;           /* of the oldest request: header, then payload */
    struct crystal_tcp_ack ack; /* being read */
    uint32_t ack_got;
    uint64_t placed;     /* requests before this one have places in the shared memory */
    unsigned char *next; /* place of the message that is being posted; NULL: none */
    uint64_t next_at;
    uint64_t piece_at; /* place of a piece that is there and not sent */
    uint32_t piece;    /* its bytes; 0: none */
    struct crystal_net_request *unacked[CRYSTAL_NET_REQUESTS];
    unsigned unacked_head, unacked_tail;
    /* receiver */
    int has_message; /* in is the header of the oldest request */
    struct crystal_tcp_message in;
    uint64_t number;       /* of the next message */
    uint64_t leave_ns;     /* when the message of `in` could leave the sender */
    uint64_t wire_free_ns; /* when the ones before it have left */
    struct tcp_place places[TCP_PLACES];
    unsigned place_head, place_tail; /* tail <= head; modulo their number */
    unsigned char answers[CRYSTAL_NET_REQUESTS * sizeof(struct crystal_tcp_ack)];
    uint32_t answer_bytes;
    uint32_t at, end; /* of buffer: read and not used yet */
    unsigned char buffer[TCP_IN_BYTES];
};

extern const struct crystal_net_end_ops crystal_tcp_send_ops, crystal_tcp_recv_ops;
extern const struct crystal_net_end_ops crystal_shared_send_ops,
    crystal_shared_recv_ops;

/* The connection is lost; error: errno or 0. Returns the code. */
int crystal_tcp_gone(const struct tcp_end *t, int error, struct crystal_error *err);
void crystal_tcp_close(struct crystal_net_end *end); /* frees the end */

/* A message takes its time on the sender's NIC. */
int crystal_tcp_send_start(struct crystal_net_end *end, struct crystal_net_request *r,
                           struct crystal_error *err);
/* The other side has all of the oldest request. */
void crystal_tcp_sent(struct tcp_end *t, struct crystal_net_request *r);
/* The receiver says when the oldest request without an answer could leave. */
void crystal_tcp_answered(struct tcp_end *t, uint64_t job_ns);

int crystal_tcp_recv_start(struct crystal_net_end *end, struct crystal_net_request *r,
                           struct crystal_error *err);
/* t->in is the header of the oldest request's message: when could it leave? 1: the
 * sender waits for the answer t->leave_ns. */
int crystal_tcp_message_begin(struct tcp_end *t, struct crystal_net_request *r,
                              struct crystal_error *err);
/* All of the oldest request is here. */
void crystal_tcp_received(struct tcp_end *t, struct crystal_net_request *r);

/* The receiver is offered memory: it opens it and goes over to it. */
int crystal_tcp_share_begin(struct tcp_end *t, const struct crystal_tcp_share *said,
                            struct crystal_error *err);

#endif
