/* What NCCL's bootstrap messages look like, one row of data per range of versions, and
 * the changes that turn a real rank's message into a virtual rank's.
 *
 * Pure functions on bytes; no sockets. All offsets of a row lie within its sizes.
 */
#ifndef CRYSTAL_PROXY_LAYOUT_H
#define CRYSTAL_PROXY_LAYOUT_H

#include "runtime/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The all-gathers of a communicator's set-up, in order. */
enum proxy_gather_kind {
    PROXY_GATHER_RING_DATA = 0, /* addresses */
    PROXY_GATHER_PEER_INFO = 1, /* device, host, process, version */
    PROXY_GATHER_TOPOLOGY = 2,  /* graphs, and which ranks they begin and end with */
    PROXY_GATHER_KINDS = 3      /* any later one is cloned as it is */
};

#define PROXY_ADDRESS_BYTES                                                            \
    28                          /* NCCL's union of sockaddr, sockaddr_in, sockaddr_in6 \
                                 */
#define PROXY_CONNECT_BYTES 128 /* ring address as the root passes it on */

struct proxy_layout {
    const char *versions; /* for sentences */
    int version_min;      /* NCCL_VERSION_CODE, both inclusive */
    int version_max;
    const char *source; /* how we know, and from where */
    bool is_tested;     /* against the library; else only read */
    bool is_one_way;    /* all-gathers go to the next rank only, in n - 1 steps */
    /* check-in at the root */
    uint32_t checkin_bytes, checkin_rank, checkin_nranks, checkin_iroot, checkin_nroots,
        checkin_listen, checkin_connect;
    uint32_t gather_bytes[PROXY_GATHER_KINDS];
    /* ring data */
    uint32_t ring_peer, ring_proxy, ring_uds, ring_ras, ring_ras_bytes;
    /* peer info */
    uint32_t peer_rank, peer_host, peer_pid, peer_bus, peer_fabric_uuid, peer_version;
    /* topology: arrays of channel_count int, one after the other: ring receive, send,
     * previous, next; tree to parent, to child 0, to child 1; NVLS heads; before them
     * whether rings change the NIC from node to node */
    uint32_t topology_cross_nic, topology_ranks, channel_count;
    uint32_t topology_tree_channels, topology_ring_channels; /* that the search found */
    /* connection exchange */
    uint32_t entry_bytes, entry_gdr;
};

#define PROXY_TOPOLOGY_ARRAYS 8
enum { PROXY_TOPOLOGY_RECEIVE = 0, PROXY_TOPOLOGY_NEXT = 3 }; /* which array */

/* The row of this version (0: the newest tested one), one that was only read where
 * allow_untested says so. NULL with a sentence that says what to do. */
const struct proxy_layout *proxy_layout_find(int version, bool allow_untested,
                                             struct crystal_error *err);
/* The versions whose check-in has this size, "of an unknown version" if none. */
const char *proxy_layout_of_checkin(uint32_t checkin_bytes);

/* Who a virtual rank is, for the clone of a message. */
struct proxy_identity {
    uint64_t salt; /* random, the same for all of the communicator */
    uint32_t crank;
    uint32_t node;         /* target node of the virtual rank */
    uint32_t node_index;   /* how many members of its node stand before it */
    uint32_t node_count;   /* members of its node */
    const uint32_t *ranks; /* the node's members' cranks [node_count] */
    /* where the virtual node has the same local ranks as the template's node, map takes
     * a crank of that node (or anything else, which stays); else NULL */
    int32_t (*map)(const void *context, int32_t crank);
    const void *context;
    uint8_t address[PROXY_ADDRESS_BYTES]; /* where it is reached */
};

/* Rewrites slice, a copy of the template's slice of that all-gather, in place. */
void proxy_layout_clone(const struct proxy_layout *layout, uint32_t gather,
                        const struct proxy_identity *who, uint8_t *slice);

int32_t proxy_get_i32(const uint8_t *bytes, uint32_t offset);
uint32_t proxy_get_u32(const uint8_t *bytes, uint32_t offset);
uint64_t proxy_get_u64(const uint8_t *bytes, uint32_t offset);
void proxy_put_i32(uint8_t *bytes, uint32_t offset, int32_t value);
void proxy_put_u64(uint8_t *bytes, uint32_t offset, uint64_t value);

#endif
