/* Real ranks whose connections go over another net plugin (tests/fake/net_socket.c):
 * all of them real, and two that stand apart among virtual ones. Then what is said of a
 * plugin that is none, that only one rank has, or that fails.
 */
#include "config.h"

#include "tests/check.h"
#include "tests/folders.h"
#include "tests/hostccl/server.h"

#define COUNT 70001

static char log_path[64], plugin_path[4200];
static struct server server;
static int wants_failure; /* 1: of rank 1's plugin alone, 2: rank 1 has none */

static void reduce(ncclComm_t comm, int crank, float sum)
{
    float *data = malloc(COUNT * sizeof *data);
    int wrong = 0;

    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(crank + 1) * (float)(i % 7);
    RANK_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    for (int i = 0; i < COUNT; i++)
        wrong += data[i] != sum * (float)(i % 7);
    RANK_CHECK(wrong == 0);
    free(data);
}

/* Rank 0's value is everybody's; the last rank's goes to rank 0. */
static void copies(ncclComm_t comm, int crank, int n)
{
    int told[3] = {crank, crank, crank}, got = -1;

    RANK_CHECK(ncclBroadcast(told, told, 3, ncclInt32, 0, comm, NULL) == ncclSuccess);
    if (crank == n - 1)
        RANK_CHECK(ncclSend(&crank, 1, ncclInt32, 0, comm, NULL) == ncclSuccess);
    if (crank == 0)
        RANK_CHECK(ncclRecv(&got, 1, ncclInt32, n - 1, comm, NULL) == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    RANK_CHECK(told[0] == 0 && told[2] == 0);
    RANK_CHECK(crank || got == n - 1);
}

static void all_real(int rank, int n)
{
    ncclComm_t comm;

    if (wants_failure == 2 && rank == 1)
        (void)unsetenv(CRYSTAL_ENV_NET_BACKEND);
    comm = ranks_comm(0, rank, n);
    reduce(comm, rank, 10);
    copies(comm, rank, n);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void apart(int index, int count)
{
    const int crank = index * 7;
    ncclComm_t comm = NULL;

    (void)count;
    (void)setenv(CRYSTAL_ENV_LRANK, index ? "7" : "0", 1);
    RANK_CHECK(ncclCommInitRank(&comm, 8, server.world, crank) == ncclSuccess);
    if (!comm)
        return;
    reduce(comm, crank, 9);
    copies(comm, crank, 8);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static int lines_of(const char *word)
{
    FILE *log = fopen(log_path, "r");
    char line[200], kind[16];
    unsigned long long messages, bytes;
    int count = 0, regions;

    while (log && fgets(line, sizeof line, log))
        if (sscanf(line, "%15s %llu messages %llu bytes %d regions left", kind,
                   &messages, &bytes, &regions) == 4) {
            CHECK_EQ(regions, 0);
            count += strcmp(kind, word) == 0 && messages > 0 && bytes > 0;
        }
    if (log)
        (void)fclose(log);
    return count;
}

static void begin(void)
{
    (void)unlink(log_path);
    (void)setenv(CRYSTAL_ENV_NET_BACKEND, plugin_path, 1);
}

static void all_ranks_real(void)
{
    begin();
    CHECK_EQ(ranks_run(4, all_real), 0);
    CHECK_EQ(lines_of("send"), 5); /* a ring of four, and one message's connection */
    CHECK_EQ(lines_of("receive"), 5);
}

static void paced_like_the_wire(void)
{
    uint64_t began;

    begin();
    /* 4 MB/s: of 280,004 bytes in quarters each rank sends six, 105 ms */
    (void)setenv(CRYSTAL_ENV_WIRE, "4000000,1000", 1);
    began = ranks_now_ns();
    CHECK_EQ(ranks_run(4, all_real), 0);
    CHECK(ranks_now_ns() - began > 105000000);
    (void)unsetenv(CRYSTAL_ENV_WIRE);
    CHECK_EQ(lines_of("send"), 5);
}

static void two_apart(void)
{
    begin();
    if (server_start(&server, 8, 1, "0,7")) {
        printf("Bail out! no nodeserver\n");
        exit(1);
    }
    CHECK_EQ(ranks_run(2, apart), 0);
    CHECK_EQ(server_stop(&server), 0);
    CHECK_EQ(lines_of("send"), 2); /* 7 to 0 in the ring; that of the message */
}

/* --- what goes wrong --- */

static void fails(int rank, int n)
{
    ncclComm_t comm = NULL;
    ncclUniqueId id = ranks_id(0, rank == 0);
    float value = 1;
    ncclResult_t result;

    if (wants_failure == 2 && rank == 1)
        (void)unsetenv(CRYSTAL_ENV_NET_BACKEND);
    if (wants_failure == 1 && rank == 0)
        (void)unsetenv("NET_SOCKET_FAIL");
    result = ncclCommInitRank(&comm, n, id, rank);
    for (int i = 0; i < 4 && !result; i++) {
        result = ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, NULL);
        if (!result)
            result = crystal_stream_synchronize(NULL);
    }
    RANK_CHECK(result != ncclSuccess);
    if (comm)
        (void)ncclCommAbort(comm);
}

static void what_goes_wrong(void)
{
    begin();
    (void)setenv("NET_SOCKET_FAIL", "2", 1);
    CHECK_EQ(ranks_run(2, fails), 0);
    /* rank 1 goes before it is connected to rank 0, whose own plugin has no fault */
    wants_failure = 1;
    (void)setenv("NET_SOCKET_FAIL", "connect", 1);
    CHECK_EQ(ranks_run(2, fails), 0);
    wants_failure = 0;
    (void)unsetenv("NET_SOCKET_FAIL");
    (void)setenv(CRYSTAL_ENV_NET_BACKEND, "/nowhere/libnccl-net-none.so", 1);
    CHECK_EQ(ranks_run(2, fails), 0);
    begin();
    wants_failure = 2; /* one of them has none */
    CHECK_EQ(ranks_run(2, fails), 0);
    wants_failure = 0;
}

int main(void)
{
    const char *build = build_folder();

    check_begin();
    (void)snprintf(log_path, sizeof log_path, "/tmp/crystal-backend.%d", (int)getpid());
    (void)snprintf(plugin_path, sizeof plugin_path, "%s/tests/fake/.libs/net_socket.so",
                   build);
    (void)setenv("NET_SOCKET_LOG", log_path, 1);
    CHECK_RUN(all_ranks_real);
    CHECK_RUN(paced_like_the_wire);
    CHECK_RUN(two_apart);
    CHECK_RUN(what_goes_wrong);
    (void)unlink(log_path);
    return check_end();
}
