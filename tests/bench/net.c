/* net.step_overhead_us: what one ring step with a virtual neighbour costs the process
 * in its own code: a message sent, one received, tests until both are done, events
 * included, with a wire that takes no time. An all-reduce of 8 ranks of which one is
 * real: the median over rounds of the time per message received.
 *
 * net.tcp_step_us: the same between two real ranks over TCP, both on this machine.
 */
#include "config.h"

#include "replay/board.h"

#include "runtime/clock.h"
#include "tests/net_ring.h"

#define ROUNDS 41
#define RANKS  8
#define COUNT  2048 /* floats: 1 KiB per message */
#define COMM   UINT64_C(0xbe7c4)

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void rounds_run(struct ring *ring, int nranks, const char *name)
{
    static unsigned char in[4 * COUNT], out[4 * COUNT];
    double us[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        struct ring_run run = {
            .ring = ring,
            .op = {CRYSTAL_FUNC_ALLREDUCE, (uint32_t)nranks, 0, COUNT, 4, 1, 0},
            .is_float = 1,
            .in = in,
            .out = out};
        uint64_t start = crystal_now_ns();

        if (!ring_collective(&run))
            exit(1);
        us[i] = (double)(crystal_now_ns() - start) / 1000.0 / (double)run.receives;
    }
    qsort(us, ROUNDS, sizeof us[0], compare);
    if (name)
        printf("%s %.3f us\n", name, us[ROUNDS / 2]);
}

static void bench_virtual(int unused)
{
    char directory[] = "/tmp/crystal-bench.XXXXXX", path[64];
    struct crystal_board_config config = {
        .lrank_count = RANKS, .mode = CRYSTAL_BOARD_IMMEDIATE, .comm_capacity = 1};
    static const uint32_t members[RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const uint8_t is_real[RANKS] = {1};
    struct crystal_board *board;
    struct ring ring = {.order = NULL};

    (void)unused;
    config.directory = mkdtemp(directory);
    board = crystal_board_create(&config, NULL);
    if (!board || crystal_board_comm_add(board, COMM, "bench", UINT32_MAX, RANKS,
                                         members, is_real, NULL))
        exit(1);
    (void)snprintf(path, sizeof path, "%s/board", directory);
    (void)setenv("CRYSTAL_BOARD", path, 1);
    (void)setenv("CRYSTAL_LRANK", "0", 1);
    if (!rank_init(&ring.rank, COMM, RANKS, 0))
        exit(1);
    ring.from_prev = ring_accept_virtual(&ring.rank, RANKS - 1);
    ring.to_next = ring_connect_virtual(&ring.rank, 1);
    rounds_run(&ring, RANKS, "net.step_overhead_us");
    crystal_board_destroy(board);
    (void)rmdir(directory);
}

static void tcp_rank(int to_peer, int me)
{
    struct ring ring = {.order = NULL};

    if (!rank_init(&ring.rank, COMM, 2, me))
        exit(1);
    if (me == 0)
        ring.from_prev = harness_accept(&ring.rank, to_peer);
    ring.to_next = harness_connect(&ring.rank, to_peer);
    if (me == 1)
        ring.from_prev = harness_accept(&ring.rank, to_peer);
    rounds_run(&ring, 2, me == 0 ? "net.tcp_step_us" : NULL);
}

static void tcp_first(int to_peer)
{
    tcp_rank(to_peer, 0);
}

static void tcp_second(int to_peer)
{
    tcp_rank(to_peer, 1);
}

int main(void)
{
    check_ok = true;
    run_one(bench_virtual);
    run_two(tcp_first, tcp_second);
    return check_ok ? 0 : 1;
}
