/* A rank's side of NCCL's bootstrap (2.28.9, also 2.28.3 and 2.29.3), written for tests
 * alone and independently of the proxy: check-in, ring, all-gathers, messages between
 * ranks, exchange of connections. Blocking; one struct per rank, used by one thread.
 * Functions return 0, or -1 with the reason in rank->error.
 */
#ifndef CRYSTAL_TESTS_BOOTSTRAP_H
#define CRYSTAL_TESTS_BOOTSTRAP_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

#define BOOT_RING_DATA_BYTES 120
#define BOOT_PEER_INFO_BYTES 120
#define BOOT_TOPOLOGY_BYTES  ((size_t)(boot_version >= 22902 ? 2300 : 2292))
#define BOOT_CHANNELS        64
#define BOOT_ENTRY_BYTES     256

/* The version that all ranks speak; change it while there are none. */
extern int boot_version;

union boot_address { /* NCCL's 28 bytes */
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};
_Static_assert(sizeof(union boot_address) == 28, "as in NCCL");

struct boot_pending { /* a message that came before anybody asked for it */
    struct boot_pending *next;
    int fd, peer, tag;
};

struct boot_rank {
    int crank, nranks;
    uint64_t magic;
    uint64_t root_magic;
    union boot_address root;
    int iroot;
    /* the first of a block: the root before its own, and what it is there */
    uint64_t before_magic;
    union boot_address before;
    int before_rank, before_iroot; /* rank 0: none */
    int ring_listener, root_listener, peer_listener, plugin_listener;
    union boot_address ring_at, root_at, peer_at, plugin_at;
    int next_fd, previous_fd;
    union boot_address *peers; /* by crank, after boot_gather_addresses */
    struct boot_pending *pending;
    char error[200];
};

/* Listeners at 127.0.0.1. */
int boot_open(struct boot_rank *r, const uint8_t id[128], int crank, int nranks);
void boot_close(struct boot_rank *r);
/* After boot_open with the first id: there are count roots. */
void boot_roots(struct boot_rank *r, const uint8_t (*ids)[128], int count);
/* The first rank of a root's block; index = count: nranks. */
int boot_block(int index, int count, int nranks);
/* Check-in, the root's answer, ring. */
int boot_ring(struct boot_rank *r, int nroots);
/* Steps of it, for tests that stop in between. */
int boot_checkin(struct boot_rank *r, uint32_t bytes, int nroots);
int boot_connect_ring(struct boot_rank *r);
/* data holds nranks slices; the own one is filled. */
int boot_gather(struct boot_rank *r, void *data, int size);
int boot_send(struct boot_rank *r, int peer, int tag, const void *data, int size);
int boot_receive(struct boot_rank *r, int peer, int tag, void *data, int size);

/* A root as ncclGetUniqueId makes it: listens, fills id. */
struct boot_root {
    int listener;
    int nranks;
    int index,
        count; /* which of how many roots; set after open where there are several */
    uint64_t magic;
    int is_brief;      /* serves rank 0, then takes no more check-ins but stays */
    int checkin_count; /* after run */
};
int boot_root_open(struct boot_root *root, uint8_t id[128], int nranks);
/* Thread function: takes the check-ins of its block, answers each. */
void *boot_root_run(void *root);

int boot_dial(const union boot_address *to);
int boot_write(int fd, const void *bytes, size_t count);
int boot_read(int fd, void *bytes, size_t count);

#endif
