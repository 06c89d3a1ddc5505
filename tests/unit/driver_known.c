/* What the driver keeps of what the timeline told: each operation is found by what it
 * is, and those that nobody asks for do not stay.
 */
#include "config.h"

#include "replay/driver_internal.h"
#include "runtime/clock.h"

#include "tests/check.h"
#include "tests/graph_edit.h"

#define N       3
#define KEPT    1024 /* collectives of which nobody has asked */
#define UNASKED 3000
#define ROUNDS  2000

static struct crystal_driver driver;

/* Two communicators of three ranks that do nothing. */
static void open_driver(void)
{
    static const uint32_t members[N] = {0, 1, 2}, map[] = {0, 1};
    struct crystal_graph_writer *w = crystal_graph_writer_create(N);
    char path[64];

    EDIT_MUST(!w);
    (void)crystal_graph_writer_comm(w, "a", N, members);
    (void)crystal_graph_writer_comm(w, "b", N, members);
    (void)crystal_graph_writer_rep(w, 0, 2);
    for (uint32_t r = 0; r < N; r++)
        crystal_graph_writer_rank(w, r, 0, map);
    (void)snprintf(path, sizeof path, "/tmp/crystal-known.%ld", (long)getpid());
    EDIT_MUST(crystal_graph_writer_write(w, path, 0, &edit_err));
    crystal_graph_writer_destroy(w);
    memset(&driver, 0, sizeof driver);
    driver.graph = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!driver.graph);
    (void)unlink(path);
}

static void close_driver(void)
{
    dr_known_fini(&driver);
    crystal_graph_close(driver.graph);
}

static void tell(uint32_t comm, uint64_t seq)
{
    const uint64_t arrive[N] = {comm, seq + 1, seq + 2};

    dr_board_on_coll(&driver, comm, seq, arrive);
}

static void takes(uint32_t comm, uint64_t seq)
{
    struct dr_known *k = dr_known_take(&driver, comm, false, 0, 0, seq);

    CHECK(k);
    if (k) {
        CHECK_EQ(k->arrive_ns[0], comm);
        CHECK_EQ(k->arrive_ns[1], seq + 1);
        CHECK_EQ(k->arrive_ns[2], seq + 2);
    }
    free(k);
    CHECK(!dr_known_take(&driver, comm, false, 0, 0, seq));
}

static void each_is_found_by_what_it_is(void)
{
    struct dr_known *k;

    open_driver();
    CHECK(!dr_known_take(&driver, 0, false, 0, 0, 0));
    CHECK(!dr_known_ask(&driver, 0, 0));
    dr_known_asked(&driver, 0, 0, 0);
    for (uint64_t seq = 0; seq < KEPT; seq++) {
        tell(0, seq);
        tell(1, seq);
        dr_board_on_p2p(&driver, 0, 0, 1, seq, 1, 7 * seq);
        dr_board_on_p2p(&driver, 0, 1, 0, seq, 1, 11 * seq);
    }
    for (uint64_t seq = KEPT; seq-- > 0 && check_ok;) {
        takes(1, seq);
        takes(0, seq);
        k = dr_known_take(&driver, 0, true, 0, 1, seq);
        CHECK_EQ(k ? k->arrive_ns[0] : 1, 7 * seq);
        free(k);
        k = dr_known_take(&driver, 0, true, 1, 0, seq);
        CHECK_EQ(k ? k->arrive_ns[0] : 1, 11 * seq);
        free(k);
    }
    CHECK_EQ(driver.known.count, 0);
    close_driver();
}

/* A collective made of three messages is kept until all three have asked. */
static void parts_ask_for_one(void)
{
    open_driver();
    tell(0, 5);
    for (int i = 0; i < 3; i++) {
        CHECK(dr_known_ask(&driver, 0, 5));
        dr_known_asked(&driver, 0, 5, 3);
    }
    CHECK(!dr_known_ask(&driver, 0, 5));
    CHECK_EQ(driver.known.count, 0);
    close_driver();
}

/* Messages and collectives of one communicator that are asked for at once. */
static uint64_t rounds_ns(uint64_t seq)
{
    uint64_t begin = crystal_now_ns();

    for (uint64_t i = seq; i < seq + ROUNDS && check_ok; i++) {
        struct dr_known *k;

        dr_board_on_p2p(&driver, 0, 0, 1, i, 1, i);
        k = dr_known_take(&driver, 0, true, 0, 1, i);
        CHECK(k);
        free(k);
        tell(0, UNASKED + i);
        takes(0, UNASKED + i);
    }
    return crystal_now_ns() - begin;
}

static void what_nobody_asks_for_goes(void)
{
    uint64_t few_ns, many_ns;

    open_driver();
    few_ns = rounds_ns(0);
    for (uint64_t seq = 0; seq < UNASKED; seq++)
        tell(1, seq);
    CHECK_EQ(driver.known.count, KEPT + 1);
    CHECK(!dr_known_ask(&driver, 1, UNASKED - KEPT - 2));
    for (uint64_t seq = UNASKED - KEPT - 1; seq < UNASKED && check_ok; seq++)
        takes(1, seq);
    for (uint64_t seq = 0; seq < UNASKED; seq++)
        tell(0, seq);
    many_ns = rounds_ns(ROUNDS);
    printf("# an operation: %llu ns, beside %d that nobody asks for %llu ns\n",
           (unsigned long long)few_ns / (2 * ROUNDS), KEPT,
           (unsigned long long)many_ns / (2 * ROUNDS));
    close_driver();
}

int main(void)
{
    check_begin();
    CHECK_RUN(each_is_found_by_what_it_is);
    CHECK_RUN(parts_ask_for_one);
    CHECK_RUN(what_nobody_asks_for_goes);
    return check_end();
}
