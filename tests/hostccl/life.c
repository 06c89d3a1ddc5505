/* hostccl's communicators, between real processes over the real net plugin: how they
 * are made, of ids and of others, and used by a process that forks or has several
 * ranks.
 */
#include "config.h"

#include "tests/check.h"
#include "tests/hostccl/ranks.h"

static void bootstrap(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    int count = 0, crank = -1;

    RANK_CHECK(ncclCommCount(comm, &count) == ncclSuccess && count == n);
    RANK_CHECK(ncclCommUserRank(comm, &crank) == ncclSuccess && crank == rank);
    RANK_CHECK(ranks_sum(comm, rank, NULL) == n * (n - 1) / 2);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void bootstraps_16_ranks(void)
{
    CHECK_EQ(ranks_run(16, bootstrap), 0);
    CHECK_EQ(ranks_run(13, bootstrap), 0);
}

static void with_three_roots(int rank, int n)
{
    ncclUniqueId ids[3];
    ncclComm_t comm = NULL;

    for (int i = 0; i < 3; i++)
        ids[i] = ranks_id(i, rank == i + 1);
    RANK_CHECK(ncclCommInitRankScalable(&comm, n, rank, 3, ids, NULL) == ncclSuccess);
    if (!comm)
        return;
    RANK_CHECK(ranks_sum(comm, 1, NULL) == n);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void checks_in_at_several_roots(void)
{
    CHECK_EQ(ranks_run(7, with_three_roots), 0);
}

static void split(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n), child = NULL, again = NULL;
    int color = rank == n - 1 ? NCCL_SPLIT_NOCOLOR : rank % 2, crank = -1, count = 0;

    RANK_CHECK(ncclCommSplit(comm, color, -rank, &child, NULL) == ncclSuccess);
    if (color < 0) {
        RANK_CHECK(child == NULL);
    } else {
        int want = color == 0 ? 0 + 2 + 4 : 1 + 3 + 5;

        RANK_CHECK(ncclCommCount(child, &count) == ncclSuccess && count == 3);
        RANK_CHECK(ncclCommUserRank(child, &crank) == ncclSuccess &&
                   crank == 2 - rank / 2);
        RANK_CHECK(ranks_sum(child, rank, NULL) == want);
        RANK_CHECK(ncclCommDestroy(child) == ncclSuccess);
    }
    RANK_CHECK(ncclCommSplit(comm, 7, 0, &again, NULL) == ncclSuccess);
    RANK_CHECK(ranks_sum(again, 1, NULL) == n);
    RANK_CHECK(ranks_sum(comm, 1, NULL) == n);
    RANK_CHECK(ncclCommDestroy(again) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void splits(void)
{
    CHECK_EQ(ranks_run(7, split), 0);
}

static void shrink(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n), child = NULL;
    int exclude[] = {4, 1}, crank = -1, count = 0;

    if (rank == 1 || rank == 4)
        return; /* dead to the others, whatever they wait for */
    RANK_CHECK(ncclAllReduce(&count, &count, 1, ncclInt32, ncclSum, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(ncclCommShrink(comm, exclude, 2, &child, NULL, 1) == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) != ncclSuccess);
    RANK_CHECK(ncclCommCount(child, &count) == ncclSuccess && count == 4);
    RANK_CHECK(ncclCommUserRank(child, &crank) == ncclSuccess &&
               crank == rank - (rank > 1) - (rank > 4));
    RANK_CHECK(ncclCommAbort(comm) == ncclSuccess);
    RANK_CHECK(ranks_sum(child, rank, NULL) == 0 + 2 + 3 + 5);
    RANK_CHECK(ncclCommDestroy(child) == ncclSuccess);
}

static void shrinks(void)
{
    CHECK_EQ(ranks_run(6, shrink), 0);
}

/* A child of a process with work under way: nothing waits, and it leaves through the
 * exit handlers. */
static void use_forked(ncclComm_t comm, ncclStream_t stream, crystal_event_t event)
{
    ncclUniqueId id;
    int value = 0;

    RANK_CHECK(crystal_event_synchronize(event) == ncclInvalidUsage);
    RANK_CHECK(crystal_stream_synchronize(stream) == ncclInvalidUsage);
    RANK_CHECK(strstr(ncclGetLastError(NULL), "forked") != NULL);
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, stream) !=
               ncclSuccess);
    RANK_CHECK(ncclGetUniqueId(&id) == ncclInvalidUsage);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
    (void)crystal_event_destroy(event);
    exit(ranks_failed ? 1 : 0);
}

static void fork_with_work(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    int late = 0, status = -1;
    ncclStream_t stream;
    crystal_event_t event;
    pid_t child = -1;

    RANK_CHECK(crystal_stream_create(&stream) == ncclSuccess);
    RANK_CHECK(crystal_event_create(&event) == ncclSuccess);
    if (rank == 0) {
        RANK_CHECK(ncclRecv(&late, 1, ncclInt32, 1, comm, stream) == ncclSuccess);
        RANK_CHECK(crystal_event_record(event, stream) == ncclSuccess);
        child = fork();
        if (child == 0)
            use_forked(comm, stream, event);
        RANK_CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        atomic_store(&ranks_shared->counter, 1);
    } else {
        while (!atomic_load(&ranks_shared->counter))
            usleep(1000);
        late = 5;
        RANK_CHECK(ncclSend(&late, 1, ncclInt32, 0, comm, stream) == ncclSuccess);
    }
    RANK_CHECK(crystal_stream_synchronize(stream) == ncclSuccess && late == 5);
    RANK_CHECK(ranks_sum(comm, 1, NULL) == n);
    RANK_CHECK(crystal_event_destroy(event) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void lets_the_program_fork(void)
{
    CHECK_EQ(ranks_run(2, fork_with_work), 0);
}

static ncclResult_t wait_ready(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;

    while (state == ncclInProgress) {
        RANK_CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
        usleep(1000);
    }
    return state;
}

static void without_blocking(int rank, int n)
{
    ncclConfig_t config;
    ncclUniqueId id = ranks_id(0, rank == 0), alone = {0};
    ncclComm_t comm = NULL, child = NULL, never = NULL;
    int value = 1;

    config = (ncclConfig_t){.size = sizeof config,
                            .magic = NCCL_CONFIG_MAGIC,
                            .version = NCCL_VERSION_CODE};
    RANK_CHECK(ncclCommInitRankConfig(&comm, n, id, rank, &config) == ncclInProgress);
    if (rank == 0) { /* the others wait for this */
        RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) ==
                       ncclInvalidUsage ||
                   wait_ready(comm) == ncclSuccess);
    }
    RANK_CHECK(wait_ready(comm) == ncclSuccess);
    RANK_CHECK(ranks_sum(comm, 1, NULL) == n);
    RANK_CHECK(ncclCommSplit(comm, rank % 2, 0, &child, &config) == ncclInProgress);
    RANK_CHECK(child && wait_ready(child) == ncclSuccess);
    RANK_CHECK(ranks_sum(child, 1, NULL) == 2);
    RANK_CHECK(ncclCommDestroy(child) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
    /* nobody else comes: abort ends it */
    RANK_CHECK(ncclGetUniqueId(&alone) == ncclSuccess);
    RANK_CHECK(ncclCommInitRankConfig(&never, 2, alone, 0, &config) == ncclInProgress);
    RANK_CHECK(ncclCommAbort(never) == ncclSuccess);
}

static void makes_communicators_without_blocking(void)
{
    CHECK_EQ(ranks_run(4, without_blocking), 0);
}

static void in_one_process(int rank, int n)
{
    ncclComm_t comms[4];
    ncclStream_t streams[4];
    int values[4];

    (void)rank;
    (void)n;
    RANK_CHECK(ncclCommInitAll(comms, 4, NULL) == ncclSuccess);
    RANK_CHECK(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 4; i++) {
        values[i] = i + 1;
        RANK_CHECK(crystal_stream_create(&streams[i]) == ncclSuccess);
        RANK_CHECK(ncclAllReduce(&values[i], &values[i], 1, ncclInt32, ncclProd,
                                 comms[i], streams[i]) == ncclSuccess);
    }
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    for (int i = 0; i < 4; i++) {
        RANK_CHECK(crystal_stream_synchronize(streams[i]) == ncclSuccess);
        RANK_CHECK(values[i] == 24);
        RANK_CHECK(ncclCommDestroy(comms[i]) == ncclSuccess);
    }
}

static void has_several_ranks_in_a_process(void)
{
    CHECK_EQ(ranks_run(1, in_one_process), 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(bootstraps_16_ranks);
    CHECK_RUN(checks_in_at_several_roots);
    CHECK_RUN(splits);
    CHECK_RUN(shrinks);
    CHECK_RUN(lets_the_program_fork);
    CHECK_RUN(makes_communicators_without_blocking);
    CHECK_RUN(has_several_ranks_in_a_process);
    return check_end();
}
