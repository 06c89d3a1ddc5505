/* Communicators that stock NCCL makes of another, one real rank on a GPU among virtual
 * ones: ncclCommInitRankConfig, ncclCommSplit by the grid's numbers and by PyTorch's
 * colours, without a colour, of a child, not blocking; ncclCommShrink.
 *
 * usage: split -n N -r RANK -t TP -i FILE
 * The grid is TP x N / TP; RANK's numbers in the two dimensions differ from each other
 * and from 0. FILE has two ids; the job has told the group of all ranks but 1 and 3.
 * TAP on standard output; a hang ends the process after 10 s with "Bail out!".
 */
#include "config.h"

#include "replay/split_groups.h"

#include "tests/gpu/stock.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_S 10
#define COUNT   10007
#define LISTED  4096

static int n, rank, tp, tests, failures;
static void *stream;
static float *device, *host;
static const char *doing = "start";

static void on_alarm(int number)
{
    static const char text[] = "Bail out! no end of ";

    (void)number;
    (void)!write(1, text, sizeof text - 1);
    (void)!write(1, doing, strlen(doing));
    (void)!write(1, "\n", 1);
    _exit(1);
}

static void begin(const char *what)
{
    doing = what;
    alarm(LIMIT_S);
}

static void check(bool ok, const char *what)
{
    tests++;
    failures += !ok;
    printf("%s %d - split: n=%d %s\n", ok ? "ok" : "not ok", tests, n, what);
    (void)fflush(stdout);
}

static ncclConfig_t configured(int blocking, int share)
{
    ncclConfig_t c = {.size = sizeof c,
                      .magic = NCCL_CONFIG_MAGIC,
                      .version = NCCL_VERSION_CODE,
                      .blocking = blocking,
                      .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                      .minCTAs = 1,
                      .maxCTAs = 4,
                      .splitShare = share,
                      .trafficClass = NCCL_CONFIG_UNDEF_INT,
                      .collnetEnable = NCCL_CONFIG_UNDEF_INT,
                      .CTAPolicy = NCCL_CONFIG_UNDEF_INT,
                      .shrinkShare = share,
                      .nvlsCTAs = NCCL_CONFIG_UNDEF_INT,
                      .nChannelsPerNetPeer = NCCL_CONFIG_UNDEF_INT,
                      .nvlinkCentricSched = NCCL_CONFIG_UNDEF_INT};

    return c;
}

/* Waits until what was asked of comm is done; returns its result. */
static int settle(ncclComm_t comm, int result)
{
    ncclResult_t state = (ncclResult_t)result;

    while (state == ncclInProgress)
        stock_must(comm, (int)stock_nccl.CommGetAsyncError(comm, &state),
                   "ncclCommGetAsyncError");
    return (int)state;
}

/* Sum and gather: the others put in zeros, and stand in with this rank's block. */
static bool works(ncclComm_t comm, int size, int crank)
{
    const size_t bytes = COUNT * sizeof *host;
    bool ok = true;

    for (int i = 0; i < COUNT; i++)
        host[i] = (float)(i % 31);
    stock_must(comm, stock_cuda.memcpy(device, host, bytes, 1), "cudaMemcpy");
    stock_must(
        comm,
        settle(comm, (int)stock_nccl.AllReduce(device, device, COUNT, ncclFloat32,
                                               ncclSum, comm, stream)),
        "ncclAllReduce");
    stock_must(comm,
               settle(comm, (int)stock_nccl.AllGather(device, device + COUNT, COUNT,
                                                      ncclFloat32, comm, stream)),
               "ncclAllGather");
    stock_must(comm, stock_cuda.stream_synchronize(stream), "cudaStreamSynchronize");
    stock_must(comm, stock_cuda.memcpy(host, device, bytes, 2), "cudaMemcpy");
    for (int i = 0; i < COUNT; i++)
        ok &= host[i] == (float)(i % 31);
    for (int r = 0; r<size; r += size - 1> crank ? size - 1 : 1) {
        stock_must(comm,
                   stock_cuda.memcpy(host, device + (size_t)(r + 1) * COUNT, bytes, 2),
                   "cudaMemcpy");
        for (int i = 0; i < COUNT; i++)
            ok &= host[i] == (float)(i % 31);
    }
    return ok;
}

/* The child is this one, and works. */
static void check_child(ncclComm_t child, int size, int crank, const char *what)
{
    int count = -1, own = -1;

    if (!child) {
        check(false, what);
        return;
    }
    stock_must(child, (int)stock_nccl.CommCount(child, &count), "ncclCommCount");
    stock_must(child, (int)stock_nccl.CommUserRank(child, &own), "ncclCommUserRank");
    if (count != size || own != crank)
        printf("#   rank %d of %d, want %d of %d\n", own, count, crank, size);
    check(count == size && own == crank && works(child, size, crank), what);
}

/* A call that does not block returns 0 while it is in progress, too. */
static ncclComm_t split(ncclComm_t parent, int color, int key, ncclConfig_t *config,
                        const char *what)
{
    ncclComm_t child = NULL;
    int result;

    begin(what);
    result = (int)stock_nccl.CommSplit(parent, color, key, &child, config);
    stock_must(parent,
               result && result != ncclInProgress ? result
                                                  : settle(parent, ncclInProgress),
               what);
    if (child)
        stock_must(child, settle(child, ncclInProgress), what);
    return child;
}

static void drop(ncclComm_t comm)
{
    begin("ncclCommDestroy");
    if (comm)
        stock_must(comm, (int)stock_nccl.CommDestroy(comm), "ncclCommDestroy");
}

static void splits(ncclComm_t world)
{
    static uint32_t members[LISTED], all[LISTED];
    ncclConfig_t sharing = configured(1, 1);
    const int dp = n / tp, in_tp = rank % tp, in_dp = rank / tp;
    ncclComm_t a, b, c;

    for (int i = 0; i < dp; i++)
        members[i] = (uint32_t)(in_tp + i * tp);
    for (int i = 0; i < n; i++)
        all[i] = (uint32_t)i;
    a = split(world, in_dp, rank, NULL, "a split by the number in dp");
    check_child(a, tp, in_tp, doing);
    b = split(world, in_tp, rank, NULL, "a split by the number in tp");
    check_child(b, dp, in_dp, doing);
    a = split(world, -1, 0, NULL, "a split without a colour");
    check(!a, doing);
    c = split(b, 0, 7, NULL, "a split of a child, all of it");
    check_child(c, dp, in_dp, doing);
    drop(a);
    drop(b);
    check(works(c, dp, in_dp), "a child whose parent is gone");
    drop(c);
    c = split(world, split_color_python((uint32_t)dp, members), in_dp, NULL,
              "a split by new_group's colour");
    check_child(c, dp, in_dp, doing);
    drop(c);
    c = split(world, split_color_c10((uint32_t)n, all), rank, NULL,
              "a split by split_group's colour");
    check_child(c, n, rank, doing);
    drop(c);
    c = split(world, in_tp, 0, &sharing, "a split that asks to share resources");
    check_child(c, dp, in_dp, doing);
    drop(c);
}

/* The same where calls return at once. */
static void not_blocking(FILE *ids)
{
    ncclConfig_t config = configured(0, 0);
    ncclComm_t world = NULL, child;
    ncclUniqueId id;
    int result;

    stock_id(ids, &id);
    begin("ncclCommInitRankConfig that does not block");
    result = (int)stock_nccl.CommInitRankConfig(&world, n, id, rank, &config);
    stock_must(world, result == ncclInProgress ? settle(world, result) : result, doing);
    check_child(world, n, rank, doing);
    child = split(world, rank % tp, rank, NULL, "a split that does not block");
    check_child(child, n / tp, rank / tp, doing);
    begin("ncclCommFinalize");
    stock_must(child, settle(child, (int)stock_nccl.CommFinalize(child)), doing);
    stock_must(world, settle(world, (int)stock_nccl.CommFinalize(world)), doing);
    drop(child);
    drop(world);
}

int main(int argc, char **argv)
{
    ncclComm_t world = NULL, child = NULL;
    ncclConfig_t config = configured(1, 0);
    int excluded[2] = {3, 1}, option;
    ncclUniqueId id;
    FILE *ids = NULL;

    while ((option = getopt(argc, argv, "n:r:t:i:")) != -1)
        switch (option) {
        case 'n':
            n = atoi(optarg);
            break;
        case 'r':
            rank = atoi(optarg);
            break;
        case 't':
            tp = atoi(optarg);
            break;
        case 'i':
            ids = fopen(optarg, "r");
            break;
        default:
            return 2;
        }
    if (tp < 2 || n % tp || n > LISTED || rank < 4 || rank >= n || !ids)
        return 2;
    (void)signal(SIGALRM, on_alarm);
    begin("CUDA's start");
    stock_open();
    stock_must(NULL, stock_cuda.set_device(0), "cudaSetDevice");
    stock_must(NULL, stock_cuda.stream_create(&stream, 1), "cudaStreamCreate");
    stock_must(
        NULL,
        stock_cuda.malloc((void **)&device, (size_t)(n + 1) * COUNT * sizeof *device),
        "cudaMalloc");
    host = malloc(COUNT * sizeof *host);
    if (!host)
        return 1;
    stock_id(ids, &id);
    begin("ncclCommInitRankConfig");
    stock_must(NULL, (int)stock_nccl.CommInitRankConfig(&world, n, id, rank, &config),
               doing);
    check_child(world, n, rank, doing);
    splits(world);
    begin("ncclCommShrink without ranks 1 and 3");
    stock_must(world, (int)stock_nccl.CommShrink(world, excluded, 2, &child, NULL, 0),
               doing);
    check_child(child, n - 2, rank - 2, doing);
    drop(child);
    begin("the parent behind it all");
    check(works(world, n, rank), doing);
    drop(world);
    not_blocking(ids);
    (void)fclose(ids);
    printf("1..%d\n", tests);
    return failures ? 1 : 0;
}
