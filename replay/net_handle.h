/* What the ends of a network connection tell each other before the first message.
 *
 * handle: the 128 bytes that ncclNet listen() fills and NCCL carries to the peer that
 * connects. The bootstrap proxy makes the same handle for a virtual rank.
 *   offset bytes what
 *        0     8 magic "CRYNETH1"
 *        8     8 id: unique per listening end (random)
 *       16     4 kind: 1 a real rank listens at addr; 2 a virtual rank, no address
 *       20     4 crank of the listening rank if known, else 0xffffffff
 *       24    28 address (family, port, IPv4 or IPv6 as in sockaddr_in/in6), zero for 2
 *       56     8 NCCL's commHash of the communicator, 0 if unknown
 *       64    64 zero; a plugin's connect() may keep its own state there in the
 *                caller's copy between two calls
 *
 * hello: the first 64 bytes on a TCP connection to a real rank's listener, sent by the
 * connecting (= sending) side. From the proxy, kind 2: "crank virtual_crank will send
 * to you": the proxy then closes, and the accepting plugin makes a virtual receive end.
 *        0     8 magic "CRYHELO1"
 *        8     8 id of the handle
 *       16     4 kind: 1 real sender, 2 virtual sender, 3 real sender that goes on by
 *                another net plugin (replay/net_backend.h)
 *       20     4 crank of the sender, else 0xffffffff
 *       24     8 commHash
 *       32    32 zero
 * Byte order of the host; both ends check magic, kind and id and drop anything else.
 * Frozen: version 1 (the digit in the magic).
 */
#ifndef CRYSTAL_NET_HANDLE_H
#define CRYSTAL_NET_HANDLE_H

#include <stdint.h>

#define CRYSTAL_NET_HANDLE_MAGIC "CRYNETH1"
#define CRYSTAL_NET_HELLO_MAGIC  "CRYHELO1"
#define CRYSTAL_NET_REAL         1U
#define CRYSTAL_NET_VIRTUAL      2U
#define CRYSTAL_NET_BACKEND      3U /* hello only */
#define CRYSTAL_CRANK_UNKNOWN    0xffffffffU

struct crystal_net_handle {
    char magic[8];
    uint64_t id;
    uint32_t kind;
    uint32_t crank;
    unsigned char addr[28];
    uint32_t zero0;
    uint64_t comm_id;
    unsigned char zero[64];
};
_Static_assert(sizeof(struct crystal_net_handle) == 128, "frozen");

struct crystal_net_hello {
    char magic[8];
    uint64_t id;
    uint32_t kind;
    uint32_t crank;
    uint64_t comm_id;
    unsigned char zero[32];
};
_Static_assert(sizeof(struct crystal_net_hello) == 64, "frozen");

#endif
