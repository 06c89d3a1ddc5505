/* The bootstrap proxy and peers that die, lie or talk nonsense. */
#include "config.h"

#include "tests/unit/proxy_world.h"

static void expect_failure(struct place *p, const char *part)
{
    struct crystal_error err = {0};
    struct crystal_board_header *head = crystal_board_header(p->board);

    for (int i = 0; i < 6000 && !crystal_proxy_status(p->proxy, NULL); i++) {
        struct timespec t = {.tv_nsec = 10000000};

        (void)nanosleep(&t, NULL);
    }
    CHECK(crystal_proxy_status(p->proxy, &err) < 0);
    CHECK_HAS(err.text, part);
    CHECK_HAS(err.text, "communicator '/default_pg/7//cpu//0' (1 of 4 ranks real): ");
    CHECK_EQ(atomic_load(&head->abort_flag), 1);
    CHECK_HAS(head->abort_text, "communicator '/default_pg/7//cpu//0'");
}

static void fail_open(struct place *p, struct boot_rank *r, uint8_t id[128])
{
    static const uint32_t real[1] = {2};
    uint32_t members[4] = {0, 1, 2, 3};

    place_open(p, 4, 1, real, 1);
    CHECK_EQ(
        crystal_proxy_forge(p->proxy, "/default_pg/7//cpu//0", 4, members, id, NULL),
        0);
    CHECK_EQ(boot_open(r, id, 2, 4), 0);
}

static void fail_close(struct place *p, struct boot_rank *r)
{
    boot_close(r);
    place_close(p);
}

static void dies_in_bootstrap(void)
{
    uint8_t id[128], slices[4 * 120] = {0};
    struct boot_rank r;
    struct place p;

    fail_open(&p, &r, id); /* right after the ring */
    CHECK_EQ(boot_ring(&r, 1), 0);
    boot_close(&r);
    expect_failure(&p,
                   "logical rank 2 (rank 2) left in all-gather 0 of its set-up; see "
                   "that rank's log");
    fail_close(&p, &r);

    fail_open(&p, &r, id); /* between two all-gathers */
    CHECK_EQ(boot_ring(&r, 1), 0);
    memcpy(slices + 2 * 120, &r.peer_at, 28);
    CHECK_EQ(boot_gather(&r, slices, 120), 0);
    boot_close(&r);
    expect_failure(&p, "left in all-gather 1");
    fail_close(&p, &r);

    fail_open(&p, &r, id); /* its listener is gone when the proxy dials */
    close(r.ring_listener);
    r.ring_listener = -1;
    CHECK_EQ(boot_checkin(&r, 172, 1), 0);
    expect_failure(&p, "cannot connect to the next rank of virtual rank 1: Connection "
                       "refused; see that rank's log");
    fail_close(&p, &r);
}

/* A program that ends soon takes its root with it while virtual ranks still check in.
 */
static void root_leaves_after_set_up(void)
{
    static const uint32_t real[1] = {0};
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    uint32_t *members = identity(1024);
    struct crystal_proxy_counters counters;
    struct boot_root root;
    pthread_t thread;
    struct world w;
    struct place p;

    place_open(&p, 1024, 1, real, 1);
    w = (struct world){.place = &p, .n = 1024, .members = members, .is_regular = 1};
    CHECK_EQ(boot_root_open(&root, w.id, 1024), 0);
    root.is_brief = 1;
    CHECK_EQ(pthread_create(&thread, NULL, boot_root_run, &root), 0);
    CHECK_EQ(crystal_proxy_join(p.proxy, w.id, "early", 1024, members, NULL), 0);
    begin(&w, clients);
    (void)pthread_join(thread, NULL);
    end(&w, clients, "early");
    close(root.listener);
    wait_closed(&p);
    check_healthy(&p, "early");
    crystal_proxy_counters(p.proxy, &counters);
    CHECK(counters.checkin_count < 1023);
    place_close(&p);
    free(clients);
    free(members);
}

static void wrong_sizes(void)
{
    uint8_t id[128], slices[4 * 160] = {0};
    struct boot_rank r;
    struct place p;

    fail_open(&p, &r, id);
    CHECK_EQ(boot_checkin(&r, 176, 1), 0);
    expect_failure(&p, "a check-in of 176 bytes is that of NCCL 2.29.2 to 2.29.3, but "
                       "the job is set up for NCCL 2.28.7 to 2.28.9 (nccl.version in "
                       "crystal.yaml)");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    CHECK_EQ(boot_checkin(&r, 180, 1), 0);
    expect_failure(&p, "a check-in of 180 bytes is that of NCCL of an unknown version");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    CHECK_EQ(boot_checkin(&r, 172, 2), 0);
    expect_failure(&p, "leave TORCH_NCCL_RANKS_PER_ROOT unset");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    r.nranks = 8;
    CHECK_EQ(boot_checkin(&r, 172, 1), 0);
    expect_failure(&p, "rank 2 says it has 8 ranks");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    r.crank = 1;
    CHECK_EQ(boot_checkin(&r, 172, 1), 0);
    expect_failure(&p, "rank 1 checks in, but it is not a real rank");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    CHECK_EQ(boot_ring(&r, 1), 0);
    CHECK(boot_gather(&r, slices, 160) < 0);
    expect_failure(&p, "all-gather 0 of its set-up has 160 bytes per rank, NCCL 2.28.7 "
                       "to 2.28.9 has 120");
    fail_close(&p, &r);

    fail_open(&p, &r, id);
    CHECK_EQ(boot_ring(&r, 1), 0);
    memcpy(slices + 2 * 120, &r.peer_at, 28);
    CHECK_EQ(boot_gather(&r, slices, 120), 0);
    slices[2 * 120] = 2;
    CHECK(boot_gather(&r, slices, 120) < 0);
    expect_failure(&p, "logical rank 2 runs NCCL code 0, but the job is set up for "
                       "NCCL 2.28.7 to 2.28.9; set nccl.version in crystal.yaml to it");
    fail_close(&p, &r);
}

static void wrong_arguments(void)
{
    static const uint32_t real[1] = {2};
    uint32_t members[4] = {0, 1, 2, 3};
    struct crystal_error err = {0};
    uint8_t id[128] = {0};
    struct place p;

    place_open(&p, 4, 1, real, 1);
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 1, members, id, &err), -EINVAL);
    CHECK_STR(err.text, "communicator 'a': 1 members in a job of 4 ranks");
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 5, members, id, &err), -EINVAL);
    members[3] = 4;
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 4, members, id, &err), -EINVAL);
    CHECK_STR(err.text, "communicator 'a': member 4 of a job of 4 ranks");
    members[3] = 1;
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 4, members, id, &err), -EINVAL);
    CHECK_STR(err.text, "communicator 'a': member 1 stands in it twice");
    CHECK_EQ(crystal_proxy_forge(p.proxy, "a", 2, members, id, &err), -EINVAL);
    CHECK_HAS(err.text, "0 of its 2 members are real");
    members[3] = 3;
    CHECK_EQ(crystal_proxy_join(p.proxy, id, "a", 4, members, &err), -EINVAL);
    CHECK_HAS(err.text, "its id holds no address of a root");
    CHECK_EQ(crystal_proxy_status(p.proxy, NULL), 0);
    place_close(&p);
}

/* Nonsense on every role of every address never reaches a communicator. */
static void garbage(void)
{
    static const uint32_t real[1] = {2};
    uint32_t members[4] = {0, 1, 2, 3};
    struct crystal_proxy_counters counters = {0};
    struct crystal_error err = {0};
    struct client *clients = calloc(REAL_MAX, sizeof *clients);
    uint8_t id[128], noise[4096];
    struct world w;
    struct place p;
    int fds[16];

    place_open(&p, 4, 1, real, 1);
    CHECK_EQ(
        crystal_proxy_forge(p.proxy, "/default_pg/7//cpu//0", 4, members, id, &err), 0);
    for (uint32_t role = 0; role < 8; role++) {
        union boot_address to;
        uint32_t address = 0x7f000000u | role << 21 | 1;

        memcpy(&to, id + 8, sizeof to);
        to.in.sin_addr.s_addr = htonl(address);
        CHECK_EQ(getrandom(noise, sizeof noise, 0), (ssize_t)sizeof noise);
        fds[2 * role] = boot_dial(&to);
        CHECK(fds[2 * role] >= 0);
        (void)boot_write(fds[2 * role], noise, sizeof noise);
        fds[2 * role + 1] = boot_dial(&to); /* says nothing */
    }
    for (int i = 0; i < 6000 && counters.dropped_count < 8; i++) {
        struct timespec t = {.tv_nsec = 10000000};

        (void)nanosleep(&t, NULL);
        crystal_proxy_counters(p.proxy, &counters);
    }
    CHECK(counters.dropped_count >= 8);
    for (int i = 0; i < 16; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    check_healthy(&p, "garbage");
    w = (struct world){.place = &p, .n = 4, .members = members, .is_regular = 1};
    memcpy(w.id, id, sizeof w.id);
    begin(&w, clients);
    end(&w, clients, "after garbage");
    wait_closed(&p);
    check_healthy(&p, "after garbage");
    place_close(&p);
    free(clients);
}

int main(void)
{
    check_begin();
    CHECK_RUN(dies_in_bootstrap);
    CHECK_RUN(root_leaves_after_set_up);
    CHECK_RUN(wrong_sizes);
    CHECK_RUN(wrong_arguments);
    CHECK_RUN(garbage);
    return check_end();
}
