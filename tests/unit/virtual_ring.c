/* Collectives of real ranks in a ring that has virtual ones: every function, several
 * sizes and roots, 2 to 9 ranks, several patterns of real and virtual and orders of the
 * ring, each real rank a process of its own. Virtual ranks answer with stand-ins, so
 * the values are known.
 */
#include "config.h"

#include "replay/board.h"

#include "tests/net_ring.h"

#include <dirent.h>
#include <sys/stat.h>

#define COMM      UINT64_C(0xabcdef)
#define RANKS_MAX 9

static char directory[64];

struct pattern {
    int nranks;
    const char *real;  /* 'r' or 'v' by crank */
    const char *order; /* cranks by place; NULL: rank order */
};

static const struct pattern patterns[] = {
    {2, "rv", NULL},
    {2, "vr", NULL},
    {3, "rvv", NULL},
    {3, "vrv", NULL},
    {3, "rrv", NULL},
    {4, "rvvv", NULL},
    {4, "rvrv", NULL},
    {4, "vrrv", NULL},
    {4, "rvvr", NULL},
    {5, "vvrvv", NULL},
    {5, "rvrvv", NULL},
    {6, "rrvvrv", NULL},
    {7, "vvvvvvr", NULL},
    {8, "rrvvvvvv", NULL},
    {8, "rvvvrvvv", NULL},
    {9, "rvvvvvvvv", NULL},
    {9, "vrvvrvvrv", NULL},
    /* nodes of 2 and 4, gone through in another order; ranks that are not in node
     * order; the only real one in a ring that is */
    {4, "rrvv", "0321"},
    {6, "rrvvvv", "032541"},
    {6, "vvrrvv", "032541"},
    {8, "rrrrvvvv", "03217654"},
    {8, "rrrrvvvv", "02317564"},
    {8, "vvvvrrrr", "07645132"},
    {8, "rvrvrvrv", "02461357"},
    {5, "vvrvv", "04132"}};

static const uint64_t counts[] = {1, 1000, 300000};

/* Element i of a rank's input; sums of all ranks are exact as floats. */
static uint32_t value(int crank, uint64_t i)
{
    return (uint32_t)(crank * 1000 + 17 + i % 251);
}

static void element_put(unsigned char *at, uint32_t v, int is_float)
{
    float f = (float)v;

    memcpy(at, is_float ? (void *)&f : (void *)&v, 4);
}

static uint64_t
wrong_elements(const unsigned char *out, uint64_t count, int is_float,
               uint64_t (*want)(const struct pattern *p, int crank, uint32_t root,
                                uint64_t count, uint64_t i),
               const struct pattern *p, int crank, uint32_t root, uint64_t per_rank)
{
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < count; i++) {
        unsigned char expected[4];

        element_put(expected, (uint32_t)want(p, crank, root, per_rank, i), is_float);
        wrong += memcmp(out + 4 * i, expected, 4) != 0;
    }
    return wrong;
}

static void order_of(const struct pattern *p, uint32_t *order)
{
    for (int i = 0; i < p->nranks; i++)
        order[i] = p->order ? (uint32_t)(p->order[i] - '0') : (uint32_t)i;
}

static uint64_t sum_of_real(const struct pattern *p, uint64_t i)
{
    uint64_t sum = 0;

    for (int r = 0; r < p->nranks; r++)
        sum += p->real[r] == 'r' ? value(r, i) : 0;
    return sum;
}

static uint64_t want_sum(const struct pattern *p, int crank, uint32_t root,
                         uint64_t count, uint64_t i)
{
    (void)crank;
    (void)root;
    (void)count;
    return sum_of_real(p, i);
}

static uint64_t want_scatter(const struct pattern *p, int crank, uint32_t root,
                             uint64_t count, uint64_t i)
{
    (void)root;
    return sum_of_real(p, (uint64_t)crank * count + i);
}

/* A virtual rank's block is that of the real rank before its run. */
static uint64_t want_gather(const struct pattern *p, int crank, uint32_t root,
                            uint64_t count, uint64_t i)
{
    uint32_t order[RANKS_MAX];
    int at = 0;

    (void)crank;
    (void)root;
    order_of(p, order);
    while (order[at] != i / count)
        at++;
    while (p->real[order[at]] != 'r')
        at = (at + p->nranks - 1) % p->nranks;
    return value((int)order[at], i % count);
}

static uint64_t want_broadcast(const struct pattern *p, int crank, uint32_t root,
                               uint64_t count, uint64_t i)
{
    (void)crank;
    (void)count;
    return p->real[root] == 'r' ? value((int)root, i) : 0;
}

static enum crystal_proto proto; /* of what follows */

static void check_one(struct ring *ring, const struct pattern *p,
                      enum crystal_func func, uint32_t root, uint64_t count,
                      int is_float)
{
    const int me = ring->rank.crank;
    uint64_t n = (uint64_t)p->nranks;
    uint64_t in_count = func == CRYSTAL_FUNC_REDUCESCATTER ? n * count : count;
    uint64_t out_count = func == CRYSTAL_FUNC_ALLGATHER ? n * count : count, wrong = 0;
    unsigned char *in = malloc(4 * in_count), *out = calloc(out_count, 4);
    struct ring_run run = {.ring = ring,
                           .op = {.func = func,
                                  .nranks = (uint32_t)n,
                                  .root = root,
                                  .count = count,
                                  .elt_bytes = 4,
                                  .channel_count = 1,
                                  .proto = proto},
                           .is_float = is_float,
                           .in = in,
                           .out = out};

    for (uint64_t i = 0; i < in_count; i++)
        element_put(in + 4 * i, value(me, i), is_float);
    if (func == CRYSTAL_FUNC_ALLGATHER)
        memcpy(out + 4 * (uint64_t)me * count, in, 4 * count);
    if (func == CRYSTAL_FUNC_BROADCAST && me == (int)root)
        memcpy(out, in, 4 * count);
    CHECK(ring_collective(&run));
    if (func == CRYSTAL_FUNC_ALLREDUCE)
        wrong = wrong_elements(out, out_count, is_float, want_sum, p, me, root, count);
    else if (func == CRYSTAL_FUNC_REDUCESCATTER)
        wrong =
            wrong_elements(out, out_count, is_float, want_scatter, p, me, root, count);
    else if (func == CRYSTAL_FUNC_ALLGATHER)
        wrong =
            wrong_elements(out, out_count, is_float, want_gather, p, me, root, count);
    else if (func == CRYSTAL_FUNC_BROADCAST)
        wrong = wrong_elements(out, out_count, is_float, want_broadcast, p, me, root,
                               count);
    else if (me == (int)root)
        wrong = wrong_elements(out, out_count, is_float, want_sum, p, me, root, count);
    if (wrong)
        printf("# %s rank %d: protocol %d, %s root %u count %" PRIu64
               " float %d: %" PRIu64 " elements wrong\n",
               p->real, me, (int)proto, ring_func_name(func), root, count, is_float,
               wrong);
    CHECK_EQ(wrong, 0);
    free(in);
    free(out);
}

/* The forms with flags, one after the other on the same connections. */
static void check_flagged(struct ring *ring, const struct pattern *p)
{
    for (proto = CRYSTAL_PROTO_LL; proto <= CRYSTAL_PROTO_LL128; proto++) {
        check_one(ring, p, CRYSTAL_FUNC_ALLREDUCE, 0, 1000, 1);
        check_one(ring, p, CRYSTAL_FUNC_ALLREDUCE, 0, 70000, 0);
        check_one(ring, p, CRYSTAL_FUNC_ALLGATHER, 0, 9000, 1);
        check_one(ring, p, CRYSTAL_FUNC_REDUCESCATTER, 0, 1000, 1);
        check_one(ring, p, CRYSTAL_FUNC_BROADCAST, 0, 40001, 1);
        check_one(ring, p, CRYSTAL_FUNC_REDUCE, 1, 1000, 0);
    }
    proto = CRYSTAL_PROTO_SIMPLE;
    check_one(ring, p, CRYSTAL_FUNC_ALLREDUCE, 0, 1000, 1);
}

/* A transfer of `count` floats from the virtual rank before this one: one channel's
 * messages, `room` posted for each, have these bytes. */
static void check_transfer(struct ring *ring, int prev, size_t count, int channels,
                           size_t room, const int *want, int messages)
{
    struct rank *r = &ring->rank;
    void *op = p2p_start_on(r, "Recv", "ncclFloat32", count, prev, channels);
    void *proxy = proxy_start(r, op, 0, prev, messages, 0);
    unsigned char *data = malloc(room + 1);
    int bytes = -1;

    for (int i = 0; i < messages; i++) {
        struct step_handle h = step_start(r, proxy, i);
        void *request = post_recv(ring->from_prev, data, room, &h);

        CHECK(request && finish(request, &bytes) == ncclSuccess);
        CHECK_EQ(bytes, want[i]);
    }
    (void)PROF->stopEvent(proxy);
    (void)PROF->stopEvent(op);
    free(data);
}

/* As NCCL 2.28.9 cuts transfers between nodes. */
static void check_transfers(struct ring *ring, int prev)
{
    /* one channel: whole; chunks of 512 KiB; of 256 KiB */
    check_transfer(ring, prev, 32768, 1, 131072, (int[]){131072}, 1);
    check_transfer(ring, prev, 150000, 1, 524288, (int[]){524288, 75712}, 2);
    check_transfer(ring, prev, 150000, 1, 262144, (int[]){262144, 262144, 75712}, 3);
    /* two: halves; rounded up to 4 KiB; in chunks */
    check_transfer(ring, prev, 32768, 2, 65536, (int[]){65536}, 1);
    check_transfer(ring, prev, 30000, 2, 61440, (int[]){61440}, 1);
    check_transfer(ring, prev, 262144, 2, 262144, (int[]){262144, 262144}, 2);
    check_transfer(ring, prev, 0, 1, 0, (int[]){0}, 1);
}

static void check_all(struct ring *ring, const struct pattern *p)
{
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (int is_float = 0; is_float < 2; is_float++) {
            check_one(ring, p, CRYSTAL_FUNC_ALLREDUCE, 0, counts[c], is_float);
            check_one(ring, p, CRYSTAL_FUNC_ALLGATHER, 0, counts[c], is_float);
            check_one(ring, p, CRYSTAL_FUNC_REDUCESCATTER, 0, counts[c], is_float);
            for (int root = 0; root < p->nranks && c < 2; root++) {
                check_one(ring, p, CRYSTAL_FUNC_BROADCAST, (uint32_t)root, counts[c],
                          is_float);
                check_one(ring, p, CRYSTAL_FUNC_REDUCE, (uint32_t)root, counts[c],
                          is_float);
            }
        }
    /* several loops */
    check_one(ring, p, CRYSTAL_FUNC_ALLGATHER, 0, 1200000, 1);
    check_one(ring, p, CRYSTAL_FUNC_BROADCAST, 0, 1200000, 1);
}

/* pairs[i]: between rank i and the next, where both are real. Every second place
 * accepts first. */
static void rank_main(const struct pattern *p, int me, int pairs[][2])
{
    uint32_t order[RANKS_MAX], place;
    int next, prev;
    char lrank[16];
    struct ring ring = {.rank.nranks = p->nranks};

    order_of(p, order);
    ring.order = p->order ? order : NULL;
    place = ring_place(&ring, (uint32_t)me);
    next = ring_crank(&ring, place + 1);
    prev = ring_crank(&ring, place + (uint32_t)p->nranks - 1);

    (void)snprintf(lrank, sizeof lrank, "%d", 10 + me);
    (void)setenv("CRYSTAL_LRANK", lrank, 1);
    if (!rank_init(&ring.rank, COMM, p->nranks, me)) {
        CHECK(!"init");
        return;
    }
    /* a listener does not block, so everybody first tells where it listens */
    if (p->real[prev] == 'v')
        ring.from_prev = ring_accept_virtual(&ring.rank, prev);
    if (p->real[next] == 'v')
        ring.to_next = ring_connect_virtual(&ring.rank, next);
    if (p->real[prev] == 'r' && place % 2 == 0)
        ring.from_prev = harness_accept(&ring.rank, pairs[prev][1]);
    if (p->real[next] == 'r')
        ring.to_next = harness_connect(&ring.rank, pairs[me][0]);
    if (p->real[prev] == 'r' && place % 2 == 1)
        ring.from_prev = harness_accept(&ring.rank, pairs[prev][1]);
    CHECK(ring.from_prev && ring.to_next);
    if (ring.from_prev && ring.to_next) {
        check_all(&ring, p);
        check_flagged(&ring, p);
    }
    if (ring.from_prev && p->real[prev] == 'v')
        check_transfers(&ring, prev);
    (void)NET->closeSend(ring.to_next);
    (void)NET->closeRecv(ring.from_prev);
    rank_fini(&ring.rank);
}

static struct crystal_board *board_make(const struct pattern *p)
{
    struct crystal_error err = {0};
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = 64,
                                          .mode = CRYSTAL_BOARD_IMMEDIATE,
                                          .comm_capacity = 2,
                                          .heap_bytes = 4 << 20};
    struct crystal_board *board = crystal_board_create(&config, &err);
    uint32_t members[RANKS_MAX], orders[2 * RANKS_MAX];
    uint8_t is_real[RANKS_MAX];

    for (int r = 0; r < p->nranks; r++) {
        members[r] = (uint32_t)(10 + r);
        is_real[r] = p->real[r] == 'r';
    }
    if (!board ||
        crystal_board_comm_add(board, COMM, "/default_pg/0//cpu//0", UINT32_MAX,
                               (uint32_t)p->nranks, members, is_real, &err)) {
        printf("# %s\n", crystal_error_text(&err));
        return NULL;
    }
    if (p->order) { /* that of channel 0; channel 1 has rank order */
        order_of(p, orders);
        for (int r = 0; r < p->nranks; r++)
            orders[p->nranks + r] = (uint32_t)r;
        CHECK_EQ(crystal_board_comm_rings(board, COMM, 2, orders, false, &err), 0);
    }
    return board;
}

static void feeds_remove(const struct pattern *p)
{
    char path[128];

    for (int r = 0; r < p->nranks; r++) {
        (void)snprintf(path, sizeof path, "%s/feed.%d", directory, 10 + r);
        (void)unlink(path);
    }
}

static void run_pattern(const struct pattern *p)
{
    struct crystal_board *board = board_make(p);
    int pairs[RANKS_MAX][2], status;
    pid_t pids[RANKS_MAX] = {0};

    CHECK(board != NULL);
    if (!board)
        return;
    fflush(stdout);
    for (int r = 0; r < p->nranks; r++)
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[r]), 0);
    for (int r = 0; r < p->nranks; r++) {
        if (p->real[r] != 'r')
            continue;
        pids[r] = fork();
        if (pids[r] == 0) {
            check_begin_child();
            rank_main(p, r, pairs);
            fflush(stdout);
            exit(check_ok ? 0 : 1);
        }
    }
    for (int r = 0; r < p->nranks; r++) {
        (void)close(pairs[r][0]);
        (void)close(pairs[r][1]);
        if (!pids[r])
            continue;
        CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        if (status)
            printf("# %s: rank %d ended with status %#x\n", p->real, r,
                   (unsigned)status);
        CHECK_EQ(status, 0);
    }
    CHECK_EQ(crystal_board_header(board)->abort_flag, 0);
    CHECK_STR(crystal_board_header(board)->abort_text, "");
    CHECK(crystal_board_header(board)->standin_ops > 0);
    crystal_board_destroy(board);
    feeds_remove(p);
}

static void values_of_every_pattern(void)
{
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        run_pattern(&patterns[i]);
}

int main(void)
{
    char path[80];

    (void)snprintf(directory, sizeof directory, "/tmp/crystal-ring.XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(path, sizeof path, "%s/board", directory);
    (void)setenv("CRYSTAL_BOARD", path, 1);
    check_begin();
    CHECK_RUN(values_of_every_pattern);
    (void)rmdir(directory);
    return check_end();
}
