/* Memory that two processes of a host share for one connection: messages from sender to
 * receiver with their payload, answers back. The connection's socket then only says
 * that the other side is alive, and wakes it where it sleeps (net_tcp.h).
 *
 * A file of mode 0600 in /dev/shm, which the sender makes, and the receiver maps and
 * removes. Offset, bytes, what (byte order of the host):
 *        0    64 the receiver's: u64 taken: places of payload before it are free;
 *                u64 opened; u64 received: messages; u64 sleeps
 *       64    64 the sender's: u64 sleeps
 *      128  4096 64 messages of 64 bytes, message n at n % 64: u64 n + 1, written last;
 *                struct crystal_share_message; zero
 *     4224  1024 64 answers of 16 bytes, to message n at n % 64: u64 n + 1, written
 *                last; u64 time
 *     5248   ... zero, and from 8192 on the payload: a ring of CRYSTAL_SHARE_BYTES
 * Messages are numbered by pieces: one larger than CRYSTAL_SHARE_PIECE takes several.
 *
 * Each side belongs to one thread at a time. The receiver trusts nothing that it is
 * told, the sender none of the counts.
 */
#ifndef CRYSTAL_NET_SHARE_H
#define CRYSTAL_NET_SHARE_H

#include "runtime/error.h"

#include <stdint.h>

/* Of messages that are on their way: as many as NCCL has in flight (8 of 512 KiB), so
 * that a sender does not run ahead of its receiver by more than with a NIC. */
#define CRYSTAL_SHARE_BYTES (4U << 20)
#define CRYSTAL_SHARE_PIECE (CRYSTAL_SHARE_BYTES / 4)
#define CRYSTAL_SHARE_NAME  24 /* with its end */

struct crystal_share;

/* A message, or a piece of one. */
struct crystal_share_message {
    uint64_t bytes;    /* of the whole message */
    uint64_t start_ns; /* see struct crystal_tcp_message */
    uint64_t number;   /* of the message, from 0 */
    uint64_t at;       /* place of this piece's payload */
    uint32_t piece;    /* its bytes */
    uint32_t flags;    /* see struct crystal_tcp_message */
};

/* The sender's side; the name is for the receiver. NULL with err set. */
struct crystal_share *crystal_share_create(char ret_name[CRYSTAL_SHARE_NAME],
                                           struct crystal_error *err);
/* The receiver's side. The name is as it came. NULL with err set. */
struct crystal_share *crystal_share_open(const char name[CRYSTAL_SHARE_NAME],
                                         struct crystal_error *err);
/* The sender may be through before the receiver has opened it: then the file stays for
 * that, unless the receiver is gone. */
void crystal_share_destroy(struct crystal_share *share, int is_peer_gone);

/* Where the payload lies in this process: CRYSTAL_SHARE_BYTES, aligned to pages. */
unsigned char *crystal_share_payload(struct crystal_share *share);

/* Sender: a place for a piece of at most CRYSTAL_SHARE_PIECE, behind the ones before;
 * NULL: there is no room until the receiver has taken some. */
unsigned char *crystal_share_place(struct crystal_share *share, uint64_t bytes,
                                   uint64_t *ret_at);
/* Sender: the receiver may have it. 0: there is no room for it, try again. */
int crystal_share_send(struct crystal_share *share,
                       const struct crystal_share_message *message);
/* Receiver: the next message or piece. 0: none is there. */
int crystal_share_receive(struct crystal_share *share,
                          struct crystal_share_message *ret);
/* Receiver: where a piece lies; NULL: nowhere in the ring. */
unsigned char *crystal_share_at(const struct crystal_share *share, uint64_t at,
                                uint64_t bytes);
/* Receiver: it and all before it have been taken. */
void crystal_share_taken(struct crystal_share *share, uint64_t at, uint64_t bytes);

/* An answer to a message, in the order of messages; at most 64 of them may be without
 * one that they wait for. */
void crystal_share_answer(struct crystal_share *share, uint64_t ns);
/* Sender: the next answer. 0: none is there. */
int crystal_share_answered(struct crystal_share *share, uint64_t *ret_ns);

/* This side is going to sleep; whoever says so looks once more before it does. */
void crystal_share_sleep(struct crystal_share *share);
/* Whether it said so and nobody has woken it since. */
int crystal_share_sleeps(const struct crystal_share *share);
/* This side has sent, answered or taken something: whether the other one said that it
 * sleeps (asked once). */
int crystal_share_wakes(struct crystal_share *share);

#endif
