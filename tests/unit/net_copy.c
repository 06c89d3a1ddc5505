/* Messages whose bytes are not worked on in the caller's buffer: those with flags on a
 * paced wire, which must not be seen before they are due; those whose contents are left
 * out (CRYSTAL_VALUES=off); and, with the argument "gpu", those of buffers on a GPU
 * (tests/t/gpu_buffers.t).
 */
#include "config.h"

#include "replay/board.h"

#include "runtime/clock.h"
#include "tests/net_ring.h"

#include <dlfcn.h>

#define COMM  UINT64_C(0xc0b1e5)
#define RANKS 4

static char directory[64];
static bool is_gpu;

static struct crystal_board *board_make(uint64_t bytes_per_s, uint64_t latency_ns)
{
    static const uint32_t members[RANKS] = {0, 1, 2, 3};
    static const uint8_t is_real[RANKS] = {1};
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = RANKS,
                                          .mode = CRYSTAL_BOARD_IMMEDIATE,
                                          .comm_capacity = 1,
                                          .wire_bytes_per_s = bytes_per_s,
                                          .wire_latency_ns = latency_ns};
    struct crystal_error err = {0};
    struct crystal_board *board = crystal_board_create(&config, &err);

    if (!board || crystal_board_comm_add(board, COMM, "/default_pg/0//cpu//0",
                                         UINT32_MAX, RANKS, members, is_real, &err)) {
        printf("# %s\n", crystal_error_text(&err));
        return NULL;
    }
    return board;
}

static bool ring_open(struct ring *ring)
{
    if (!rank_init(&ring->rank, COMM, RANKS, 0))
        return false;
    ring->from_prev = ring_accept_virtual(&ring->rank, RANKS - 1);
    ring->to_next = ring_connect_virtual(&ring->rank, 1);
    return ring->from_prev && ring->to_next;
}

/* Copies of the GPU so far. */
static uint64_t gpu_copies(uint64_t *ret_bytes)
{
    uint64_t (*count)(uint64_t *);
    void *library = is_gpu ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
    void *found = library ? dlsym(library, "fake_cuda_copies") : NULL;

    *ret_bytes = 0;
    if (!found)
        return 0;
    memcpy(&count, &found, sizeof count);
    return count(ret_bytes);
}

/* --- flags on a paced wire --- */

#define LATENCY_NS 30000000U

/* A broadcast from the virtual rank before this one: one message, a latency after it
 * was posted. It must not be seen in the buffer before. */
static void seen_when_due(int unused)
{
    static unsigned char buffer[65536];
    static const uint64_t flag_at[] = {0, 4, 120};
    struct ring ring = {0};

    (void)unused;
    CHECK(ring_open(&ring));
    for (int proto = CRYSTAL_PROTO_LL; proto <= CRYSTAL_PROTO_LL128 && check_ok;
         proto++) {
        const volatile unsigned char *flag = buffer + flag_at[proto];
        uint64_t posted_ns, seen_ns = 0, done_ns = 0;
        void *coll, *proxy, *request;
        struct step_handle h;
        int done = 0;

        memset(buffer, 0, sizeof buffer);
        harness_proto = proto == CRYSTAL_PROTO_LL ? "LL" : "LL128";
        coll = coll_start(&ring.rank, "Broadcast", "ncclFloat32", 100, RANKS - 1, 1);
        proxy = proxy_start(&ring.rank, coll, 0, RANKS - 1, 1, 0);
        h = step_start(&ring.rank, proxy, 0);
        posted_ns = crystal_now_ns();
        request = post_recv(ring.from_prev, buffer, sizeof buffer, &h);
        while (request && !done) {
            CHECK_EQ(NET->test(request, &done, NULL), ncclSuccess);
            done_ns = crystal_now_ns();
            if (*flag && !seen_ns)
                seen_ns = done_ns;
        }
        /* test() found it due and put it, or found the copy to the GPU over */
        CHECK(seen_ns - posted_ns >= LATENCY_NS - (is_gpu ? 6000U : 0U));
        CHECK(done_ns - posted_ns >= LATENCY_NS);
        CHECK_EQ(*flag, proto); /* the connection's step + 1 */
        (void)PROF->stopEvent(proxy);
        (void)PROF->stopEvent(coll);
    }
    (void)NET->closeSend(ring.to_next);
    (void)NET->closeRecv(ring.from_prev);
    rank_fini(&ring.rank);
}

static void flags_are_seen_when_due(void)
{
    struct crystal_board *board = board_make(0, LATENCY_NS);

    CHECK(board != NULL);
    run_one(seen_when_due);
    crystal_board_destroy(board);
}

/* --- what a NIC takes in --- */

#define PART_BYTES  400000U
#define BYTES_PER_S UINT64_C(10000000)

/* Messages of two virtual ranks at once: the NIC takes in one after the other. */
static void two_senders(int unused)
{
    static float buffers[2][PART_BYTES / 4];
    void *requests[2], *ends[2], *events[4];
    struct rank rank;
    uint64_t began_ns, took_ns[2] = {0};

    (void)unused;
    CHECK(rank_init(&rank, COMM, RANKS, 0));
    for (int i = 0; i < 2; i++)
        ends[i] = ring_accept_virtual(&rank, i + 1);
    began_ns = crystal_now_ns();
    for (int i = 0; i < 2; i++) {
        struct step_handle h;

        events[2 * i] = p2p_start(&rank, "Recv", "ncclFloat32", PART_BYTES / 4, i + 1);
        events[2 * i + 1] = proxy_start(&rank, events[2 * i], 0, i + 1, 1, 0);
        h = step_start(&rank, events[2 * i + 1], 0);
        requests[i] = post_recv(ends[i], buffers[i], PART_BYTES, &h);
        CHECK(requests[i] != NULL);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(finish(requests[i], NULL), ncclSuccess);
        took_ns[i] = crystal_now_ns() - began_ns;
        (void)PROF->stopEvent(events[2 * i + 1]);
        (void)PROF->stopEvent(events[2 * i]);
        (void)NET->closeRecv(ends[i]);
    }
    CHECK(took_ns[0] >= 40000000);
    CHECK(took_ns[1] >= 80000000);
    rank_fini(&rank);
}

static void one_nic_takes_in_one_message(void)
{
    struct crystal_board *board = board_make(BYTES_PER_S, 0);

    CHECK(board != NULL);
    run_one(two_senders);
    crystal_board_destroy(board);
}

/* --- contents left out --- */

#define COUNT 300000

static void all_reduce(struct ring *ring, enum crystal_proto proto, int is_float,
                       uint64_t want_first, uint64_t want_last)
{
    unsigned char *in = malloc(4 * COUNT), *out = calloc(COUNT, 4);
    struct ring_run run = {.ring = ring,
                           .op = {.func = CRYSTAL_FUNC_ALLREDUCE,
                                  .nranks = RANKS,
                                  .count = COUNT,
                                  .elt_bytes = 4,
                                  .channel_count = 1,
                                  .proto = proto},
                           .is_float = is_float,
                           .in = in,
                           .out = out};
    uint32_t first, last;

    for (uint32_t i = 0; i < COUNT; i++)
        memcpy(in + (size_t)4 * i, &i, 4);
    CHECK(ring_collective(&run)); /* which checks the flags */
    memcpy(&first, out + 4, 4);
    memcpy(&last, out + (size_t)4 * (COUNT - 1), 4);
    if (!is_float) {
        CHECK_EQ(first, want_first);
        CHECK_EQ(last, want_last);
    }
    free(in);
    free(out);
}

static void valueless(int unused)
{
    uint64_t before, after, bytes, more;
    struct ring ring = {0};

    (void)unused;
    CHECK(ring_open(&ring));
    /* integers are whole whatever CRYSTAL_VALUES says */
    all_reduce(&ring, CRYSTAL_PROTO_SIMPLE, 0, 1, COUNT - 1);
    before = gpu_copies(&bytes);
    all_reduce(&ring, CRYSTAL_PROTO_SIMPLE, 1, 0, 0);
    after = gpu_copies(&more);
    CHECK_EQ(after, before); /* no byte of these was touched */
    CHECK_EQ(more, bytes);
    CHECK(!is_gpu || before > 0);
    for (int i = 0; i < 2; i++) {
        all_reduce(&ring, CRYSTAL_PROTO_LL, 1, 0, 0);
        all_reduce(&ring, CRYSTAL_PROTO_LL128, 1, 0, 0);
        all_reduce(&ring, CRYSTAL_PROTO_LL128, 0, 1, COUNT - 1);
    }
    (void)NET->closeSend(ring.to_next);
    (void)NET->closeRecv(ring.from_prev);
    rank_fini(&ring.rank);
}

/* PAT's first message over the shortest way: the neighbour's chunk, which is complete
 * without this rank's own, and of which no byte is written. */
static void valueless_pat(int unused)
{
    unsigned char buffer[4096], old[4096];
    void *end, *coll, *proxy, *request;
    struct step_handle h;
    struct rank rank;
    int bytes = 0;

    (void)unused;
    CHECK(rank_init(&rank, COMM, RANKS, 0));
    end = ring_accept_virtual(&rank, 1);
    harness_algo = "PAT";
    coll = coll_start(&rank, "AllGather", "ncclFloat32", 100, 0, 1);
    proxy = proxy_start(&rank, coll, 0, 1, 1, 0);
    h = step_start(&rank, proxy, 0);
    memset(buffer, 0xa5, sizeof buffer);
    memcpy(old, buffer, sizeof old);
    request = post_recv(end, buffer, sizeof buffer, &h);
    CHECK(request && finish(request, &bytes) == ncclSuccess);
    CHECK(bytes > 0 && bytes % 400 == 0);
    CHECK(memcmp(buffer, old, sizeof old) == 0);
    (void)PROF->stopEvent(proxy);
    (void)PROF->stopEvent(coll);
    (void)NET->closeRecv(end);
    rank_fini(&rank);
}

static void contents_are_left_out(void)
{
    struct crystal_board *board = board_make(0, 0);

    CHECK(board != NULL);
    (void)setenv("CRYSTAL_VALUES", "off", 1);
    run_one(valueless);
    run_one(valueless_pat);
    (void)unsetenv("CRYSTAL_VALUES");
    CHECK_EQ(crystal_board_header(board)->abort_flag, 0);
    crystal_board_destroy(board);
}

/* --- closing --- */

/* An end that closes at once: no copy may touch the buffer afterwards. */
static void closed_at_once(int unused)
{
    unsigned char *data = malloc(100000);
    void *coll, *proxy, *request;
    struct ring ring = {0};
    struct step_handle h;

    (void)unused;
    CHECK(ring_open(&ring));
    harness_proto = "SIMPLE";
    coll = coll_start(&ring.rank, "AllReduce", "ncclInt32", 4 * 25000, 0, 1);
    proxy = proxy_start(&ring.rank, coll, 0, 1, 12, 1);
    h = step_start(&ring.rank, proxy, 0);
    memset(data, 1, 100000);
    request = post_send(ring.to_next, data, 50048, &h);
    CHECK(request != NULL);
    (void)NET->closeSend(ring.to_next);
    free(data);
    (void)NET->closeRecv(ring.from_prev);
    (void)PROF->stopEvent(proxy);
    (void)PROF->stopEvent(coll);
    rank_fini(&ring.rank);
    (void)usleep(20000); /* a copy that was left behind would read what is freed */
}

static void copies_end_before_their_buffers(void)
{
    struct crystal_board *board = board_make(0, 0);

    CHECK(board != NULL);
    run_one(closed_at_once);
    CHECK_EQ(crystal_board_header(board)->abort_flag, 0);
    crystal_board_destroy(board);
}

/* --- environment and memory --- */

static void refused(int unused)
{
    (void)unused;
    CHECK(!rank_init(&(struct rank){0}, COMM, RANKS, 0));
}

static void wrong_words_are_refused(void)
{
    struct crystal_board *board = board_make(0, 0);

    (void)setenv("CRYSTAL_VALUES", "none", 1);
    run_one(refused);
    (void)unsetenv("CRYSTAL_VALUES");
    crystal_board_destroy(board);
}

static void foreign_memory_is_refused(void)
{
    struct crystal_board *board = board_make(0, 0);

    run_one(refused);
    crystal_board_destroy(board);
}

int main(int argc, char **argv)
{
    char path[80];

    (void)snprintf(directory, sizeof directory, "/tmp/crystal-copy.XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(path, sizeof path, "%s/board", directory);
    (void)setenv("CRYSTAL_BOARD", path, 1);
    (void)setenv("CRYSTAL_LRANK", "0", 1);
    is_gpu = argc > 1;
    check_begin();
    if (is_gpu && strcmp(argv[1], "foreign") == 0) {
        CHECK_RUN(foreign_memory_is_refused);
    } else {
        CHECK_RUN(flags_are_seen_when_due);
        CHECK_RUN(one_nic_takes_in_one_message);
        CHECK_RUN(contents_are_left_out);
        CHECK_RUN(copies_end_before_their_buffers);
        CHECK_RUN(wrong_words_are_refused);
    }
    (void)rmdir(directory);
    return check_end();
}
