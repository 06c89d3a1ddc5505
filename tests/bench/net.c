/* net.step_overhead_us: what one ring step with a virtual neighbour costs the process
 * in its own code: a message sent, one received, tests until both are done, events
 * included, with a wire that takes no time. An all-reduce of 8 ranks of which one is
 * real: the median over rounds of the time per message received.
 *
 * net.tcp_step_us, net.shared_step_us: the same between two real ranks of this machine
 * by the socket and by shared memory (CRYSTAL_SHARE=1), in threads that never sleep.
 *
 * net.tcp_gbs, net.shared_gbs: what each of these two ranks sends, and receives, at the
 * same time: messages of 512 KiB, eight on their way. net.copied_gbs: with two copying
 * threads in each (CRYSTAL_COPIERS).
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
        struct ring_run run = {.ring = ring,
                               .op = {CRYSTAL_FUNC_ALLREDUCE, (uint32_t)nranks, 0,
                                      COUNT, 4, 1, 0, CRYSTAL_PROTO_SIMPLE, NULL},
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

static const char *transport;

static void pair_open(struct ring *ring, int to_peer, int me)
{
    harness_spins = true;
    if (!rank_init(&ring->rank, COMM, 2, me))
        exit(1);
    if (me == 0)
        ring->from_prev = harness_accept(&ring->rank, to_peer);
    ring->to_next = harness_connect(&ring->rank, to_peer);
    if (me == 1)
        ring->from_prev = harness_accept(&ring->rank, to_peer);
}

static void steps_run(int to_peer, int me)
{
    struct ring ring = {.order = NULL};
    char name[64];

    pair_open(&ring, to_peer, me);
    (void)snprintf(name, sizeof name, "net.%s_step_us", transport);
    rounds_run(&ring, 2, me == 0 ? name : NULL);
}

static void steps_first(int to_peer)
{
    steps_run(to_peer, 0);
}

static void steps_second(int to_peer)
{
    steps_run(to_peer, 1);
}

#define STREAM_BYTES    524288U
#define STREAM_MESSAGES 1000U
#define STREAM_WINDOW   8U

/* What is not NULL, together: a send may need to be asked after to get on its way. */
static void finish_both(void **a, void **b)
{
    void **both[2] = {a, b};

    while (*a || *b) {
        for (unsigned i = 0; i < 2; i++) {
            int done = 0;

            if (*both[i] && NET->test(*both[i], &done, NULL) != ncclSuccess)
                exit(1);
            if (done)
                *both[i] = NULL;
        }
        harness_wait(0);
    }
}

static void stream_run(int to_peer, int me)
{
    static unsigned char in[STREAM_WINDOW][STREAM_BYTES],
        out[STREAM_WINDOW][STREAM_BYTES];
    void *sends[STREAM_WINDOW] = {NULL}, *receives[STREAM_WINDOW] = {NULL};
    struct ring ring = {.order = NULL};
    uint64_t start;

    pair_open(&ring, to_peer, me);
    memset(in, 1, sizeof in);
    memset(out, 2, sizeof out);
    start = crystal_now_ns();
    for (unsigned i = 0; i < STREAM_MESSAGES + STREAM_WINDOW; i++) {
        const unsigned at = i % STREAM_WINDOW;

        finish_both(&receives[at], &sends[at]);
        if (i >= STREAM_MESSAGES)
            continue;
        receives[at] = post_recv(ring.from_prev, out[at], STREAM_BYTES, NULL);
        sends[at] = post_send(ring.to_next, in[at], STREAM_BYTES, NULL);
    }
    if (me == 0)
        printf("net.%s_gbs %.2f GB/s\n", transport,
               (double)STREAM_MESSAGES * STREAM_BYTES /
                   (double)(crystal_now_ns() - start));
}

static void stream_first(int to_peer)
{
    stream_run(to_peer, 0);
}

static void stream_second(int to_peer)
{
    stream_run(to_peer, 1);
}

int main(void)
{
    check_ok = true;
    run_one(bench_virtual);
    transport = "tcp";
    run_two(steps_first, steps_second);
    run_two(stream_first, stream_second);
    (void)setenv("CRYSTAL_SHARE", "1", 1);
    (void)setenv("CRYSTAL_COPIERS", "0", 1);
    transport = "shared";
    run_two(steps_first, steps_second);
    run_two(stream_first, stream_second);
    (void)setenv("CRYSTAL_COPIERS", "2", 1);
    transport = "copied";
    run_two(stream_first, stream_second);
    return check_ok ? 0 : 1;
}
