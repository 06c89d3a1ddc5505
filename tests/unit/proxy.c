/* The bootstrap proxy against an independent client of NCCL's bootstrap: real ranks in
 * every position, ids of both origins, several communicators at once. */
#include "config.h"

#include "replay/proxy_layout.h"
#include "runtime/nccl_names.h"

#include "tests/unit/proxy_world.h"

/* One communicator from forge or join to its end. */
static void one_crossed(struct place *p, uint32_t n, uint32_t *members, int is_regular,
                        int is_forged, int32_t cross_nic, const char *what)
{
    struct world w = {.place = p,
                      .n = n,
                      .members = members,
                      .is_regular = is_regular,
                      .cross_nic = cross_nic};
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    struct crystal_board_comm *entry;
    struct crystal_error err = {0};
    struct boot_root root;
    pthread_t root_thread;

    if (is_forged) {
        CHECK_EQ(crystal_proxy_forge(p->proxy, "/default_pg/0//cpu//0", n, members,
                                     w.id, &err),
                 0);
    } else {
        CHECK_EQ(boot_root_open(&root, w.id, (int)n), 0);
        CHECK_EQ(pthread_create(&root_thread, NULL, boot_root_run, &root), 0);
        CHECK_EQ(crystal_proxy_join(p->proxy, w.id, "/default_pg/0//cpu//0", n, members,
                                    &err),
                 0);
    }
    CHECK_STR(err.text, "");
    entry = crystal_board_comm_find(p->board, crystal_nccl_hash(w.id, 128));
    CHECK(entry != NULL);
    if (entry) {
        CHECK_EQ(entry->nranks, n);
        CHECK_EQ(entry->graph_comm, UINT32_MAX);
        CHECK_STR(entry->name, "/default_pg/0//cpu//0");
    }
    begin(&w, clients);
    end(&w, clients, what);
    if (!is_forged) {
        (void)pthread_join(root_thread, NULL);
        CHECK_EQ(root.checkin_count, n);
    }
    wait_closed(p);
    check_healthy(p, what);
    free(clients);
}

static void one(struct place *p, uint32_t n, uint32_t *members, int is_regular,
                int is_forged, const char *what)
{
    one_crossed(p, n, members, is_regular, is_forged, 0, what);
}

static void world_of(uint32_t n, uint32_t per_node, uint32_t first, uint32_t count,
                     int is_forged)
{
    uint32_t real[REAL_MAX], *members = identity(n);
    struct place p;
    char what[80];

    for (uint32_t i = 0; i < count; i++)
        real[i] = first + i;
    snprintf(what, sizeof what, "real %u-%u, %u per node, %s", first, first + count - 1,
             per_node, is_forged ? "forged" : "joined");
    place_open(&p, n, per_node, real, count);
    one(&p, n, members, count % per_node == 0 && first % per_node == 0, is_forged,
        what);
    place_close(&p);
    free(members);
}

/* A communicator of several roots: those of virtual ranks are made by the proxy. With
 * is_late the real ranks begin before the proxy knows the id that a real rank 0 made.
 */
static void roots_of(uint32_t n, uint32_t roots, uint32_t first, uint32_t count,
                     int is_late)
{
    uint32_t real[REAL_MAX], *members = identity(n);
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    static uint8_t ids[ROOTS_MAX][128];
    struct boot_root own[ROOTS_MAX];
    pthread_t threads[ROOTS_MAX];
    int is_own[ROOTS_MAX] = {0};
    struct timespec pause = {.tv_nsec = 50000000};
    struct place p;
    struct world w = {.place = &p,
                      .n = n,
                      .members = members,
                      .ids = (const uint8_t(*)[128])ids,
                      .root_count = roots};
    char what[80];

    for (uint32_t i = 0; i < count; i++)
        real[i] = first + i;
    snprintf(what, sizeof what, "%u roots, real %u-%u%s", roots, first,
             first + count - 1, is_late ? ", late" : "");
    place_open(&p, n, 1, real, count);
    for (uint32_t i = roots; i-- > 0;) { /* root 0 comes last */
        uint32_t maker = (uint32_t)boot_block((int)i, (int)roots, (int)n);

        is_own[i] = maker >= first && maker < first + count;
        if (is_own[i]) {
            CHECK_EQ(boot_root_open(&own[i], ids[i], (int)n), 0);
            own[i].index = (int)i;
            own[i].count = (int)roots;
            CHECK_EQ(pthread_create(&threads[i], NULL, boot_root_run, &own[i]), 0);
        } else {
            CHECK_EQ(crystal_proxy_forge_root(p.proxy, "several", i, roots, n, members,
                                              ids[i], NULL),
                     0);
        }
        if (is_own[i] && !(is_late && i == 0))
            CHECK_EQ(crystal_proxy_join_root(p.proxy, ids[i], "several", i, roots, n,
                                             members, NULL),
                     0);
    }
    memcpy(w.id, ids[0], sizeof w.id);
    begin(&w, clients);
    if (is_late && is_own[0]) {
        (void)nanosleep(&pause, NULL);
        CHECK_EQ(crystal_proxy_join_root(p.proxy, ids[0], "several", 0, roots, n,
                                         members, NULL),
                 0);
    }
    end(&w, clients, what);
    for (uint32_t i = 0; i < roots; i++)
        if (is_own[i]) {
            (void)pthread_join(threads[i], NULL);
            CHECK_EQ(own[i].checkin_count, boot_block((int)i + 1, (int)roots, (int)n) -
                                               boot_block((int)i, (int)roots, (int)n) +
                                               1);
        }
    wait_closed(&p);
    check_healthy(&p, what);
    place_close(&p);
    free(clients);
    free(members);
}

static void several_roots(void)
{
    roots_of(64, 4, 0, 1, 0); /* rank 0 real: root 0 is */
    roots_of(64, 4, 0, 1, 1);
    roots_of(64, 4, 5, 1, 0);  /* no root is real */
    roots_of(64, 4, 16, 1, 0); /* root 1 */
    roots_of(64, 4, 15, 1, 0); /* the last of a block */
    roots_of(64, 4, 63, 1, 0);
    roots_of(64, 4, 14, 4, 0); /* over the border of two blocks */
    roots_of(64, 4, 0, 16, 1); /* a whole block */
    roots_of(64, 4, 8, 32, 0);
    roots_of(67, 5, 0, 2, 0); /* blocks of 14 and 13 */
    roots_of(67, 5, 26, 3, 0);
    roots_of(1024, 8, 0, 8, 0);
    roots_of(3, 3, 0, 1, 0); /* a root each */
    roots_of(3, 3, 1, 2, 0);
}

static void rings_that_cross_nics(void)
{
    static const uint32_t blocks[] = {1, 2, 4};

    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        uint32_t real[REAL_MAX], *members = identity(32);
        struct place p;

        for (uint32_t k = 0; k < blocks[i]; k++)
            real[k] = k;
        place_open(&p, 32, blocks[i], real, blocks[i]);
        one_crossed(&p, 32, members, 1, 1, 2, "crossed NICs");
        place_close(&p);
        free(members);
    }
}

static void one_real_rank(void)
{
    static const uint32_t sizes[] = {2, 3, 4, 5, 8, 16, 63, 64, 1024};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t n = sizes[i];

        world_of(n, 1, 0, 1, 1);
        world_of(n, 1, n - 1, 1, 1);
        world_of(n, 1, n / 2, 1, 1);
        world_of(n, 1, 0, 1, 0);
    }
}

static void blocks_of_real_ranks(void)
{
    static const uint32_t blocks[] = {2, 4, 8};

    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        for (uint32_t first = 0; first < 32; first += blocks[i]) {
            world_of(32, blocks[i], first, blocks[i], 1);
            if (first == 0)
                world_of(32, blocks[i], first, blocks[i], 0);
        }
    world_of(64, 8, 16, 16, 1); /* two nodes side by side */
    world_of(9, 3, 3, 6, 1);    /* all but one node */
    world_of(17, 8, 3, 8, 1);   /* a block that is no node; the end is no node either */
    world_of(13, 1, 5, 7, 0 + 1);
}

/* Real ranks in several runs, members in any order. */
static void runs_of_real_ranks(void)
{
    static const struct {
        uint32_t n, per_node, count, real[16];
        int is_regular;
    } rows[] = {
        {8, 2, 4, {0, 1, 4, 5}, 1},
        {64, 8, 16, {0, 1, 2, 3, 4, 5, 6, 7, 56, 57, 58, 59, 60, 61, 62, 63}, 1},
        {64, 8, 16, {8, 9, 10, 11, 12, 13, 14, 15, 40, 41, 42, 43, 44, 45, 46, 47}, 1},
        {6, 1, 3, {0, 2, 4}, 1},
        {7, 1, 6, {0, 1, 2, 3, 4, 5}, 1},
        {10, 8, 3, {0, 1, 2}, 0}, /* the rest of a node, and an odd node */
        {12, 4, 5, {1, 2, 3, 7, 11}, 0},
        {33, 4, 7, {0, 5, 6, 7, 8, 20, 32}, 0},
        {4, 8, 3, {0, 1, 2}, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int is_forged = 0; is_forged < 2; is_forged++) {
            uint32_t *members;
            struct place p;
            char what[40];

            if (!is_forged && rows[i].real[0])
                continue;
            members = identity(rows[i].n);
            snprintf(what, sizeof what, "row %zu", i);
            place_open(&p, rows[i].n, rows[i].per_node, rows[i].real, rows[i].count);
            one(&p, rows[i].n, members, rows[i].is_regular, is_forged, what);
            place_close(&p);
            free(members);
        }
}

static void any_subset_in_any_order(void)
{
    uint32_t state = 12345;

    for (int round = 0; round < 40; round++) {
        uint32_t n = 2 + round % 19, count = 0, real[REAL_MAX], *members = identity(n);
        struct place p;
        char what[40];

#define NEXT() (state = state * 1664525u + 1013904223u, state >> 16)
        for (uint32_t i = 0; i < n; i++)
            if (NEXT() % 3 == 0)
                real[count++] = i;
        if (count == 0)
            real[count++] = NEXT() % n;
        if (count == n)
            count--;
        for (uint32_t i = n - 1; i > 0; i--) {
            uint32_t k = NEXT() % (i + 1), t = members[i];

            members[i] = members[k];
            members[k] = t;
        }
#undef NEXT
        snprintf(what, sizeof what, "round %d", round);
        place_open(&p, n, 1 + (uint32_t)round % 4, real, count);
        one(&p, n, members, 0, 1, what);
        place_close(&p);
        free(members);
    }
}

static void several_at_once(void)
{
    static const uint32_t real[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    enum { COUNT = 12 };
    struct world w[COUNT];
    struct client *clients = calloc(COUNT * 8, sizeof *clients);
    struct boot_root roots[COUNT];
    pthread_t root_threads[COUNT];
    struct crystal_proxy_counters counters;
    uint32_t *world = identity(64), strided[8] = {3, 11, 19, 27, 35, 43, 51, 59};
    uint32_t inside[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct place p;

    place_open(&p, 64, 8, real, 8);
    for (int i = 0; i < COUNT; i++) {
        struct crystal_error err = {0};
        char name[40];

        w[i] = (struct world){.place = &p,
                              .n = i % 3 ? 64 : 8,
                              .members = i % 3 ? world : strided,
                              .is_regular = i % 3 != 0};
        snprintf(name, sizeof name, "/default_pg/%d//cpu//0", i);
        if (i % 2) {
            CHECK_EQ(boot_root_open(&roots[i], w[i].id, (int)w[i].n), 0);
            CHECK_EQ(pthread_create(&root_threads[i], NULL, boot_root_run, &roots[i]),
                     0);
            CHECK_EQ(
                crystal_proxy_join(p.proxy, w[i].id, name, w[i].n, w[i].members, &err),
                0);
        } else {
            CHECK_EQ(
                crystal_proxy_forge(p.proxy, name, w[i].n, w[i].members, w[i].id, &err),
                0);
            /* the coordinator may tell us what we forged */
            CHECK_EQ(
                crystal_proxy_join(p.proxy, w[i].id, name, w[i].n, w[i].members, &err),
                0);
        }
        CHECK_STR(err.text, "");
    }
    for (int i = 0; i < COUNT; i++)
        begin(&w[i], clients + 8 * i);
    for (int i = 0; i < COUNT; i++) {
        end(&w[i], clients + 8 * i, "several");
        if (i % 2)
            (void)pthread_join(root_threads[i], NULL);
    }
    wait_closed(&p);
    CHECK_EQ(crystal_proxy_join(p.proxy, w[1].id, "again", 64, world, NULL), 0);
    w[1].id[0] ^= 1;
    CHECK_EQ(crystal_proxy_join(p.proxy, w[1].id, "inside", 8, inside, NULL), 0);
    crystal_proxy_counters(p.proxy, &counters);
    CHECK_EQ(counters.real_only_count, 1);
    CHECK_EQ(counters.dropped_count, 0);
    check_healthy(&p, "several");
    place_close(&p);
    free(clients);
    free(world);
}

/* The same with the messages and rules of other versions. */
static void version_2_28_3(void)
{
    boot_version = 22803;
    one_real_rank();
    blocks_of_real_ranks();
    any_subset_in_any_order();
    boot_version = 22809;
}

static void version_2_29_3(void)
{
    boot_version = 22903;
    one_real_rank();
    blocks_of_real_ranks();
    several_roots();
    boot_version = 22809;
}

static void versions(void)
{
    struct crystal_error err = {0};
    char text[CRYSTAL_NCCL_VERSION_TEXT];

    CHECK_EQ(proxy_layout_find(0, false, &err)->version_max, 22809);
    CHECK_EQ(proxy_layout_find(22803, false, &err)->is_one_way, 1);
    CHECK(proxy_layout_find(22902, false, &err) == NULL);
    CHECK_STR(err.text,
              "the messages of NCCL 2.29.2 were read from its sources, but not "
              "tested; set nccl.untested to yes in crystal.yaml to try them");
    CHECK_EQ(proxy_layout_find(22902, true, &err)->checkin_bytes, 176);
    CHECK(proxy_layout_find(22805, true, &err) == NULL);
    CHECK_STR(err.text, "the messages of NCCL 2.28.5 are not known; use NCCL 2.28.7 to "
                        "2.28.9, 2.28.3, 2.29.2 to 2.29.3");
    CHECK(proxy_layout_find(23007, false, &err) == NULL);
    CHECK_STR(err.text, "the messages of NCCL 2.30.7 are not known; use NCCL 2.28.7 to "
                        "2.28.9, 2.28.3");
    CHECK_STR(crystal_nccl_version_text(2708, text), "code 2708");
}

int main(void)
{
    check_begin();
    CHECK_RUN(versions);
    CHECK_RUN(one_real_rank);
    CHECK_RUN(blocks_of_real_ranks);
    CHECK_RUN(several_roots);
    CHECK_RUN(rings_that_cross_nics);
    CHECK_RUN(runs_of_real_ranks);
    CHECK_RUN(any_subset_in_any_order);
    CHECK_RUN(several_at_once);
    CHECK_RUN(version_2_28_3);
    CHECK_RUN(version_2_29_3);
    return check_end();
}
