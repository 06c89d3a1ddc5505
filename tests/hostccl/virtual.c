/* hostccl among virtual ranks that answer at once: set-up through the bootstrap proxy,
 * operations through the net plugin's virtual ends. Virtual contributions are
 * stand-ins: neutral in reductions.
 */
#include "config.h"

#include "replay/board.h"

#include "tests/check.h"
#include "tests/hostccl/server.h"

#define REAL_MAX 16
#define COUNT    70001

static struct {
    ncclUniqueId id;
    int n, real_count, reals[REAL_MAX];
} world;

static void expect(const float *got, size_t count, float want, const char *what)
{
    if (getenv(CRYSTAL_ENV_VALUES)) /* "off" */
        return;
    for (size_t i = 0; i < count; i++)
        if (got[i] != want) {
            printf("# %s: element %zu is %g, want %g\n", what, i, (double)got[i],
                   (double)want);
            ranks_failed++;
            return;
        }
}

static void set(float *at, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        at[i] = value;
}

static void finish(void)
{
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
}

static int is_real(int crank)
{
    for (int i = 0; i < world.real_count; i++)
        if (world.reals[i] == crank)
            return 1;
    return 0;
}

static void reductions(ncclComm_t comm, int crank)
{
    int n = world.n, last = world.reals[world.real_count - 1];
    float *in = malloc((size_t)n * COUNT * sizeof *in),
          *out = malloc(COUNT * sizeof *out);
    float sum = 0;

    for (int i = 0; i < world.real_count; i++)
        sum += (float)(world.reals[i] + 1);
    for (size_t count = 1; count <= COUNT; count = count * 400 + 1) {
        set(in, count, (float)crank + 1);
        RANK_CHECK(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, comm, NULL) ==
                   ncclSuccess);
        finish();
        expect(out, count, sum, "all-reduce");
        RANK_CHECK(ncclAllReduce(in, out, count, ncclFloat32, ncclMax, comm, NULL) ==
                   ncclSuccess);
        finish();
        set(in, (size_t)n * count, (float)crank + 1);
        RANK_CHECK(ncclReduceScatter(in, out, count, ncclFloat32, ncclSum, comm,
                                     NULL) == ncclSuccess);
        finish();
        expect(out, count, sum, "reduce-scatter");
        RANK_CHECK(ncclReduce(in, out, count, ncclFloat32, ncclSum, last, comm, NULL) ==
                   ncclSuccess);
        finish();
        if (crank == last)
            expect(out, count, sum, "reduce");
    }
    free(in);
    free(out);
}

/* Integers are whole whatever CRYSTAL_VALUES says. */
static void integers(ncclComm_t comm, int crank)
{
    int32_t *data = malloc(COUNT * sizeof *data), sum = 0, wrong = 0;

    for (int i = 0; i < world.real_count; i++)
        sum += world.reals[i] + 1;
    for (int i = 0; i < COUNT; i++)
        data[i] = crank + 1;
    RANK_CHECK(ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, NULL) ==
               ncclSuccess);
    finish();
    for (int i = 0; i < COUNT; i++)
        wrong += data[i] != sum;
    RANK_CHECK(wrong == 0);
    free(data);
}

static void copies(ncclComm_t comm, int crank)
{
    size_t count = 9999;
    int n = world.n, root = world.reals[0];
    float *in = malloc(count * sizeof *in);
    float *out = malloc((size_t)n * count * sizeof *out);

    set(in, count, (float)crank + 1);
    RANK_CHECK(ncclAllGather(in, out, count, ncclFloat32, comm, NULL) == ncclSuccess);
    finish();
    for (int i = 0; i < world.real_count; i++)
        expect(out + (size_t)world.reals[i] * count, count, (float)world.reals[i] + 1,
               "all-gather");
    set(out, count, crank == root ? 5 : 0);
    RANK_CHECK(ncclBcast(out, count, ncclFloat32, root, comm, NULL) == ncclSuccess);
    finish();
    expect(out, count, 5, "broadcast");
    for (root = 0; root < n; root++)
        if (!is_real(root))
            break;
    RANK_CHECK(ncclBcast(out, count, ncclFloat32, root, comm, NULL) == ncclSuccess);
    finish();
    free(in);
    free(out);
}

/* With every other rank, virtual ones included; the real ones see each other's data. */
static void point_to_point(ncclComm_t comm, int crank)
{
    size_t count = 200000; /* two messages */
    float *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
    int n = world.n;

    set(in, count, (float)crank + 1);
    for (int d = 1; d < n && d < 5; d++) {
        int to = (crank + d) % n, from = (crank + n - d) % n;

        RANK_CHECK(ncclGroupStart() == ncclSuccess);
        RANK_CHECK(ncclRecv(out, count, ncclFloat32, from, comm, NULL) == ncclSuccess);
        RANK_CHECK(ncclSend(in, count, ncclFloat32, to, comm, NULL) == ncclSuccess);
        RANK_CHECK(ncclGroupEnd() == ncclSuccess);
        finish();
        if (is_real(from))
            expect(out, count, (float)from + 1, "receive");
    }
    free(in);
    free(out);
}

static ncclComm_t world_comm(int crank)
{
    ncclComm_t comm = NULL;
    char text[16];

    (void)snprintf(text, sizeof text, "%d", crank);
    (void)setenv(CRYSTAL_ENV_LRANK, text, 1);
    RANK_CHECK(ncclCommInitRank(&comm, world.n, world.id, crank) == ncclSuccess);
    if (!comm)
        exit(1);
    return comm;
}

static void work(int rank, int n)
{
    int crank = world.reals[rank];
    ncclComm_t comm = world_comm(crank);

    (void)n;
    reductions(comm, crank);
    integers(comm, crank);
    copies(comm, crank);
    point_to_point(comm, crank);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void run_nodes(int n, int per_node, const char *list)
{
    struct server server;
    char *copy = strdup(list), *rest = copy, *word;

    world.n = n;
    world.real_count = 0;
    while ((word = strtok_r(rest, ",", &rest)))
        world.reals[world.real_count++] = atoi(word);
    free(copy);
    if (server_start(&server, n, per_node, list)) {
        CHECK(!"nodeserver");
        return;
    }
    world.id = server.world;
    CHECK_EQ(ranks_run(world.real_count, work), 0);
    CHECK_EQ(server_stop(&server), 0);
}

static void run_world(int n, const char *list)
{
    run_nodes(n, 1, list);
}

/* One waits for a peer that never sends, the other for one who never comes; then the
 * job is stopped. */
static void stopped(int rank, int n)
{
    struct timespec pause = {.tv_nsec = 50000000};
    ncclComm_t comm = world_comm(world.reals[rank]), other = NULL;
    struct crystal_board *board;
    ncclUniqueId id;
    int value = 0;
    uint64_t begin;

    if (rank == 0) {
        RANK_CHECK(ncclRecv(&value, 1, ncclInt32, world.reals[1], comm, NULL) ==
                   ncclSuccess);
        atomic_store(&ranks_shared->counter, 1);
        RANK_CHECK(crystal_stream_synchronize(NULL) == ncclRemoteError);
    } else if (rank == 1) {
        while (!atomic_load(&ranks_shared->counter))
            nanosleep(&pause, NULL);
        nanosleep(&pause, NULL);
        board = crystal_board_open(getenv(CRYSTAL_ENV_BOARD), NULL);
        RANK_CHECK(board != NULL);
        begin = ranks_now_ns();
        crystal_board_abort(board, "rank %d has had enough", rank);
        crystal_board_destroy(board);
        RANK_CHECK(ncclGetUniqueId(&id) == ncclSuccess);
        RANK_CHECK(ncclCommInitRank(&other, 2, id, 0) == ncclRemoteError && !other);
        RANK_CHECK(ranks_now_ns() - begin < 60000000000U);
    }
    RANK_CHECK(strstr(ncclGetLastError(NULL), "has had enough") != NULL);
    RANK_CHECK(ncclCommAbort(comm) == ncclSuccess);
    (void)n;
}

static void ends_when_the_job_is_stopped(void)
{
    struct server server;

    world.n = 4;
    world.real_count = 2;
    world.reals[0] = 1;
    world.reals[1] = 2;
    if (server_start(&server, 4, 1, "1,2")) {
        CHECK(!"nodeserver");
        return;
    }
    world.id = server.world;
    CHECK_EQ(ranks_run(2, stopped), 0);
    CHECK(server_stop(&server) != 0); /* it says that it was stopped */
}

static void one_of_two(void)
{
    run_world(2, "0");
    run_world(2, "1");
}

static void one_of_many(void)
{
    run_world(4, "2");
    run_world(64, "17");
}

static void a_node_of_many(void)
{
    run_world(16, "4,5,6,7");
    run_nodes(16, 4, "4,5,6,7");
    run_world(9, "0,1,2");
}

static void scattered_ones(void)
{
    run_world(12, "0,5,6,11");
}

static void over_the_tree(void)
{
    (void)setenv("NCCL_ALGO", "Tree", 1);
    run_world(2, "1");
    run_world(13, "6");
    run_world(16, "4,5,6,7");
    run_nodes(16, 4, "4,5,6,7"); /* hostccl's ranks are alone on theirs all the same */
    /* real ranks with virtual ones between: two without any above; one far above the
     * other; a virtual child between two real ones, all at once */
    run_world(13, "3,9");
    run_world(16, "0,6");
    run_world(16, "0,1,2,3,12,13,14,15");
    run_world(12, "0,5,6,11");
    (void)unsetenv("NCCL_ALGO");
}

static void in_the_ll_protocol(void)
{
    (void)setenv("NCCL_PROTO", "LL", 1);
    run_world(2, "1");
    run_world(13, "6");
    run_world(12, "0,5,6,11");
    (void)unsetenv("NCCL_PROTO");
}

static void without_contents(void)
{
    (void)setenv(CRYSTAL_ENV_VALUES, "off", 1);
    run_world(2, "1");
    run_world(12, "0,5,6,11");
    (void)setenv("NCCL_PROTO", "LL", 1);
    run_world(13, "6");
    (void)unsetenv("NCCL_PROTO");
    (void)setenv("NCCL_ALGO", "Tree", 1);
    run_world(13, "6");
    (void)unsetenv("NCCL_ALGO");
    (void)unsetenv(CRYSTAL_ENV_VALUES);
}

int main(void)
{
    check_begin();
    CHECK_RUN(one_of_two);
    CHECK_RUN(one_of_many);
    CHECK_RUN(a_node_of_many);
    CHECK_RUN(scattered_ones);
    CHECK_RUN(over_the_tree);
    CHECK_RUN(in_the_ll_protocol);
    CHECK_RUN(without_contents);
    CHECK_RUN(ends_when_the_job_is_stopped);
    return check_end();
}
