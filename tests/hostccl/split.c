/* ncclCommSplit and ncclCommShrink of a communicator with virtual members: hostccl's
 * side of the protocol and the bootstrap proxy's. What makes a group known: the grid,
 * PyTorch's colours, groups that the job has told.
 */
#include "config.h"

#include "replay/split_groups.h"

#include "tests/check.h"
#include "tests/hostccl/server.h"

#define N     16
#define COUNT 1000

static struct server server;

static int crank_of(ncclComm_t comm)
{
    int crank = -1;

    RANK_CHECK(ncclCommUserRank(comm, &crank) == ncclSuccess);
    return crank;
}

/* Sum of what the real members put in. */
static void reduce(ncclComm_t comm, float own, float sum)
{
    float data[COUNT];
    int wrong = 0;

    for (int i = 0; i < COUNT; i++)
        data[i] = own * (float)(i % 5);
    RANK_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    for (int i = 0; i < COUNT; i++)
        wrong += data[i] != sum * (float)(i % 5);
    RANK_CHECK(wrong == 0);
}

static ncclComm_t world(int rank)
{
    ncclComm_t comm = NULL;
    char text[16];

    (void)snprintf(text, sizeof text, "%d", rank);
    (void)setenv(CRYSTAL_ENV_LRANK, text, 1);
    RANK_CHECK(ncclCommInitRank(&comm, N, server.world, rank) == ncclSuccess);
    if (!comm)
        exit(1);
    return comm;
}

static ncclComm_t split(ncclComm_t parent, int color, int key, int size, int crank)
{
    ncclComm_t child = NULL;
    int count = 0;

    RANK_CHECK(ncclCommSplit(parent, color, key, &child, NULL) == ncclSuccess);
    RANK_CHECK((child != NULL) == (color >= 0));
    if (!child)
        return NULL;
    RANK_CHECK(ncclCommCount(child, &count) == ncclSuccess);
    RANK_CHECK(count == size && crank_of(child) == crank);
    return child;
}

static void drop(ncclComm_t comm)
{
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void start(const char *real, const char *grid)
{
    if (server_start_grid(&server, N, 4, real, grid)) {
        printf("Bail out! no nodeserver\n");
        exit(1);
    }
}

/* --- ranks 4 to 7 of TP 4, DP 4 --- */

static void by_number(int index, int count)
{
    const int rank = 4 + index;
    ncclComm_t all = world(rank), tp, dp, pair;

    (void)count;
    tp = split(all, rank / 4, rank, 4, index);
    dp = split(all, rank % 4, rank, 4, 1);
    reduce(all, (float)rank, 22);
    reduce(tp, (float)rank, 22);
    reduce(dp, (float)rank, (float)rank); /* alone among virtual ranks */
    (void)split(all, -1, 0, 0, 0);
    /* the parent again, and children of children */
    pair = split(dp, 0, 1, 4, 1);
    reduce(pair, 3, 3);
    drop(pair);
    drop(dp);
    drop(tp);
    reduce(all, (float)rank, 22);
    drop(all);
}

static void the_grid_and_numbers(void)
{
    start("4-7", "tp=4,dp=4");
    CHECK_EQ(ranks_run(4, by_number), 0);
    CHECK_EQ(server_stop(&server), 0);
}

/* --- colours of PyTorch --- */

static const uint32_t strided[4] = {2, 6, 10, 14},
                      block[8] = {8, 9, 10, 11, 12, 13, 14, 15};

/* Groups one after the other; who is not in one has no colour. */
static void by_color(int index, int count)
{
    const int rank = 8 + index;
    ncclComm_t all = world(rank), child;

    (void)count;
    child = split(all, rank == 10 ? split_color_python(4, strided) : -1,
                  rank == 10 ? 2 : 0, 4, 2);
    if (child) {
        reduce(child, 7, 7);
        drop(child);
    }
    child = split(all, split_color_c10(8, block), index, 8, index);
    reduce(child, (float)rank, 38);
    drop(child);
    drop(all);
}

static void the_colours_of_pytorch(void)
{
    char answer[200];

    start("8-11", "tp=4,dp=4");
    server_ask(&server, "group 8-15", answer, sizeof answer);
    CHECK_STR(answer, "ok");
    CHECK_EQ(ranks_run(4, by_color), 0);
    CHECK_EQ(server_stop(&server), 0);
}

/* --- shrink --- */

static void shrunk(int index, int count)
{
    const int rank = index ? 12 + index - 1 : 0; /* 0, 12, 13, 14 and 15 */
    int excluded[3] = {5, 3, 13};
    ncclComm_t all, child = NULL;
    int size = 0;

    (void)count;
    if (rank && rank < 12)
        return;
    all = world(rank);
    if (rank != 13) {
        RANK_CHECK(ncclCommShrink(all, excluded, 3, &child, NULL, 0) == ncclSuccess);
        RANK_CHECK(child && ncclCommCount(child, &size) == ncclSuccess && size == 13);
        if (child) {
            RANK_CHECK(crank_of(child) == (rank ? rank - 2 - (rank > 13) : 0));
            reduce(child, (float)rank + 1, 1 + 13 + 15 + 16);
            drop(child);
        }
    }
    drop(all);
}

static void a_shrink(void)
{
    char answer[200];

    if (server_start_grid(&server, N, 1, "0,12-15", NULL)) {
        printf("Bail out! no nodeserver\n");
        exit(1);
    }
    server_ask(&server, "group 0-2,4,6-12,14-15", answer, sizeof answer);
    CHECK_STR(answer, "ok");
    CHECK_EQ(ranks_run(5, shrunk), 0);
    CHECK_EQ(server_stop(&server), 0);
}

/* --- refusals --- */

static int bad_colors[3];
static const int bad_ranks[3] = {5, 6, 9};

static void refused(int index, int count)
{
    ncclComm_t all = world(bad_ranks[index]), child = NULL;

    (void)count;
    RANK_CHECK(ncclCommSplit(all, bad_colors[index], index, &child, NULL) !=
               ncclSuccess);
    RANK_CHECK(ncclCommAbort(all) == ncclSuccess);
}

/* Ranks 5, or 5, 6 and 9, each on a node of its own, with these colours. */
static void refuse(int reals, const int *colors, const char *sentence)
{
    char answer[1000];
    int status;

    if (server_start_grid(&server, N, 1, reals > 1 ? "5,6,9" : "5", "tp=2,dp=8")) {
        printf("Bail out! no nodeserver\n");
        exit(1);
    }
    memcpy(bad_colors, colors, sizeof *colors * (size_t)reals);
    CHECK_EQ(ranks_run(reals, refused), 0);
    server_ask(&server, "status", answer, sizeof answer);
    if (!strstr(answer, sentence))
        CHECK_STR(answer, sentence);
    (void)fclose(server.to);
    (void)fclose(server.from);
    CHECK(waitpid(server.pid, &status, 0) == server.pid);
    CHECK_EQ(WEXITSTATUS(status), 1);
    (void)unsetenv(CRYSTAL_ENV_BOARD);
}

static void what_is_not_known(void)
{
    static const int one[1] = {99}, three[3] = {99, 99, 98};

    refuse(1, one,
           "communicator 'world' (1 of 16 ranks real): ncclCommSplit: several groups "
           "of rank 5 may have colour 99; give a group its number as colour, or "
           "capture the job");
    refuse(3, three,
           "communicator 'world' (3 of 16 ranks real): ncclCommSplit: no group that is "
           "known of rank ");
}

int main(void)
{
    check_begin();
    CHECK_RUN(the_grid_and_numbers);
    CHECK_RUN(the_colours_of_pytorch);
    CHECK_RUN(a_shrink);
    CHECK_RUN(what_is_not_known);
    return check_end();
}
