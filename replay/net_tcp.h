/* What two ends of this plugin say on a TCP connection after the hello.
 *
 * share, sender to receiver, at first and only where CRYSTAL_SHARE=1 and both are on
 * one host: 32 bytes. From then on messages and answers go through the memory
 * (net_share.h); a byte of any value on the socket, either way, wakes the other side.
 *   offset bytes what
 *        0     4 0x53595243 ("CRYS")
 *        4     4 zero
 *        8    24 name of the memory
 * message, sender to receiver: 32 bytes, then its payload
 *        0     4 0x4d595243 ("CRYM")
 *        4     4 flags: 1 = rendezvous: the receiver answers with an ack
 *        8     8 bytes of payload
 *       16     8 when its first byte left the sender's NIC (CLOCK_MONOTONIC ns of node
 *                0, crystal_net_job_ns; without a board the ranks share a host)
 *       24     8 number of the message on this connection, from 0
 * ack, receiver to sender: 24 bytes
 *        0     4 0x41595243 ("CRYA")
 *        4     4 zero
 *        8     8 number of the message
 *       16     8 when the message could leave: not before a buffer was posted; as above
 * Byte order of the host.
 */
#ifndef CRYSTAL_NET_TCP_H
#define CRYSTAL_NET_TCP_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_TCP_MESSAGE    0x4d595243U
#define CRYSTAL_TCP_ACK        0x41595243U
#define CRYSTAL_TCP_SHARE      0x53595243U
#define CRYSTAL_TCP_RENDEZVOUS 1U

struct crystal_tcp_message {
    uint32_t magic;
    uint32_t flags;
    uint64_t bytes;
    uint64_t start_ns;
    uint64_t number;
};
_Static_assert(sizeof(struct crystal_tcp_message) == 32, "drawn above");

struct crystal_tcp_share {
    uint32_t magic;
    uint32_t zero;
    char name[24];
};
_Static_assert(sizeof(struct crystal_tcp_share) == sizeof(struct crystal_tcp_message),
               "read as one");

struct crystal_tcp_ack {
    uint32_t magic;
    uint32_t zero;
    uint64_t number;
    uint64_t start_ns;
};
_Static_assert(sizeof(struct crystal_tcp_ack) == 24, "drawn above");

/* A message header that is well formed, is the one that comes next, and fits room. */
int crystal_tcp_message_check(const struct crystal_tcp_message *message,
                              uint64_t number, uint64_t room,
                              struct crystal_error *err);

#endif
