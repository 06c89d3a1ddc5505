/* The bootstrap proxy of a node without the node, and one communicator of real threads
 * and virtual ranks on it. For the tests of the proxy.
 */
#ifndef CRYSTAL_TESTS_PROXY_PLACE_H
#define CRYSTAL_TESTS_PROXY_PLACE_H

#include "replay/net_handle.h"
#include "replay/proxy.h"

#include "tests/bootstrap.h"
#include "tests/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>

#define REAL_MAX  64
#define ROOTS_MAX 8

/* A node's service without the node: board, layout, proxy. */
struct place {
    char directory[64];
    struct crystal_layout layout;
    struct crystal_board *board;
    struct crystal_proxy *proxy;
};

static inline void place_open(struct place *p, uint32_t n, uint32_t per_node,
                              const uint32_t *real, uint32_t real_count)
{
    struct crystal_error err = {0};
    struct crystal_board_config board = {
        .lrank_count = n, .mode = CRYSTAL_BOARD_IMMEDIATE, .comm_capacity = 64};
    struct crystal_proxy_config proxy = {.layout = &p->layout};

    memset(p, 0, sizeof *p);
    strcpy(p->directory, "/tmp/crystal-proxy-XXXXXX");
    if (!mkdtemp(p->directory)) {
        printf("Bail out! no directory\n");
        exit(1);
    }
    p->layout.lrank_count = n;
    p->layout.ranks_per_node = per_node;
    p->layout.sandbox_count = real_count;
    p->layout.sandbox = malloc(4 * real_count);
    memcpy(p->layout.sandbox, real, 4 * real_count);
    p->layout.target.nccl_version = (uint32_t)boot_version;
    p->layout.target.nccl_untested = 1;
    board.directory = p->directory;
    p->board = crystal_board_create(&board, &err);
    proxy.board = p->board;
    p->proxy = p->board ? crystal_proxy_create(&proxy, &err) : NULL;
    if (!p->proxy) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
}

static inline void place_close(struct place *p)
{
    crystal_proxy_destroy(p->proxy);
    crystal_board_destroy(p->board);
    CHECK_EQ(rmdir(p->directory), 0);
    free(p->layout.sandbox);
}

/* --- one communicator of real threads and virtual ranks --- */

struct world {
    struct place *place;
    uint32_t n;
    uint32_t *members; /* lrank by crank */
    uint8_t id[128];
    const uint8_t (*ids)[128]; /* where there are several roots; id is the first */
    uint32_t root_count;
    pthread_barrier_t barrier; /* all real ranks */
    uint32_t real_count;
    int is_regular;    /* every target node has the same local ranks */
    int32_t cross_nic; /* 2: the rings of odd nodes change places in pairs */
};

struct client {
    struct world *world;
    struct boot_rank rank;
    pthread_t thread;
    int code;
};

static inline uint32_t node_of(const struct world *w, uint32_t crank)
{
    return w->members[crank] / w->place->layout.ranks_per_node;
}

static inline int is_real(const struct world *w, uint32_t crank)
{
    return crystal_layout_is_sandbox(&w->place->layout, w->members[crank]);
}

#define WRONG(c, ...) \
    (snprintf((c)->rank.error, sizeof(c)->rank.error, __VA_ARGS__), -1)

static inline int32_t i32(const uint8_t *slice, size_t at)
{
    int32_t v;

    memcpy(&v, slice + at, sizeof v);
    return v;
}

static inline uint64_t u64(const uint8_t *slice, size_t at)
{
    uint64_t v;

    memcpy(&v, slice + at, sizeof v);
    return v;
}

#endif
