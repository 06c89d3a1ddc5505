/* What NCCL 2.28.9's bootstrap sends, byte for byte (host byte order).
 *
 *  - every connection begins with a handshake: the communicator's (or root's) magic and
 *    the kind of socket; a wrong one is dropped
 *  - every message is a size and that many bytes
 *  - a message from rank to rank has a connection of its own: an envelope, then data
 */
#ifndef CRYSTAL_HOSTCCL_WIRE_H
#define CRYSTAL_HOSTCCL_WIRE_H

#include "runtime/nccl_net_abi.h"

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#define HOSTCCL_SOCKET_BOOTSTRAP 1 /* kind in a handshake */
#define HOSTCCL_CHANNELS_MAX     64
#define HOSTCCL_ALGORITHMS       7
#define HOSTCCL_ENTRY_BYTES      256 /* of the exchange of connections */
#define HOSTCCL_TAG_SPLIT        (1 << 29)

union hostccl_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};
_Static_assert(sizeof(union hostccl_address) == 28, "NCCL 2.28.9");

struct hostccl_handshake {
    uint64_t magic;
    int32_t kind;
} __attribute__((packed));
_Static_assert(sizeof(struct hostccl_handshake) == 12, "NCCL 2.28.9");

/* The first bytes of an ncclUniqueId; the rest is zero. */
struct hostccl_id {
    uint64_t magic;
    union hostccl_address root;
};

/* Rank -> root. Answer: the next rank's connect, 128 bytes. */
struct hostccl_checkin {
    int32_t crank, nranks, iroot, nroots;
    union hostccl_address answer_at;
    union {
        union hostccl_address ring;
        char bytes[NCCL_NET_HANDLE_MAXSIZE];
    } connect;
};
_Static_assert(sizeof(struct hostccl_checkin) == 172, "NCCL 2.28.9");

struct hostccl_envelope {
    int32_t crank; /* of the sender */
    int32_t tag;
};

/* All-gather 0. */
struct hostccl_ring_data {
    union hostccl_address peer; /* messages from rank to rank */
    union hostccl_address proxy;
    uint64_t proxy_local;
    struct {
        union hostccl_address address; /* zero: no RAS */
        int32_t pid, device, nvml_device;
        uint64_t host_hash, pid_hash;
    } ras;
};
_Static_assert(sizeof(struct hostccl_ring_data) == 120, "NCCL 2.28.9");

/* All-gather 1. */
struct hostccl_peer_info {
    int32_t crank, device, nvml_device, gdr;
    uint64_t host_hash, pid_hash, shm_device;
    int64_t bus_id;
    uint64_t comm; /* a pointer; read only within one process */
    int32_t compute_capability;
    uint64_t memory_bytes;
    char fabric[36];
    int32_t cumem;
    int32_t version;
};
_Static_assert(sizeof(struct hostccl_peer_info) == 120, "NCCL 2.28.9");

/* All-gather 2. */
struct hostccl_graph_info {
    int32_t pattern, channel_count, same_channels;
    float bw_intra, bw_inter;
    int32_t type_intra, type_inter, cross_nic;
};
struct hostccl_topology {
    struct hostccl_graph_info graphs[HOSTCCL_ALGORITHMS];
    int32_t cross_nic_ring;
    int32_t ring_recv[HOSTCCL_CHANNELS_MAX], ring_send[HOSTCCL_CHANNELS_MAX];
    int32_t ring_prev[HOSTCCL_CHANNELS_MAX], ring_next[HOSTCCL_CHANNELS_MAX];
    int32_t tree_to_parent[HOSTCCL_CHANNELS_MAX];
    int32_t tree_to_child0[HOSTCCL_CHANNELS_MAX];
    int32_t tree_to_child1[HOSTCCL_CHANNELS_MAX];
    int32_t nvls_heads[HOSTCCL_CHANNELS_MAX];
    int32_t nvls_head_count;
    int32_t cpu_arch, cpu_vendor, local_ranks;
};
_Static_assert(sizeof(struct hostccl_topology) == 2292, "NCCL 2.28.9");

/* Exchange of connections: what a receiver (its listener's handle) or a sender (the
 * rank whose proxy sends) tells the other. */
struct hostccl_entry {
    union {
        char handle[NCCL_NET_HANDLE_MAXSIZE];
        int32_t proxy_crank;
    };
    int32_t gdr;
    char zero[HOSTCCL_ENTRY_BYTES - NCCL_NET_HANDLE_MAXSIZE - 4];
};
_Static_assert(sizeof(struct hostccl_entry) == HOSTCCL_ENTRY_BYTES, "NCCL 2.28.9");

#endif
