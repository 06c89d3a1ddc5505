/* What hostccl says and does when things go wrong, between real processes over the real
 * net plugin: bad calls, ranks that die or leave, communicators that are given up.
 */
#include "config.h"

#include "replay/hostccl/bootstrap.h"

#include "tests/check.h"
#include "tests/hostccl/ranks.h"

#include <errno.h>

static void bad_calls(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n), none = NULL;
    ncclUniqueId id = {{0}};
    int value = 1;

    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, NULL, NULL) ==
               ncclInvalidArgument);
    RANK_CHECK(ncclAllReduce(&value, &value, 1, 99, ncclSum, comm, NULL) ==
               ncclInvalidArgument);
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, 99, comm, NULL) ==
               ncclInvalidArgument);
    RANK_CHECK(ncclAllReduce(NULL, &value, 1, ncclInt32, ncclSum, comm, NULL) ==
               ncclInvalidArgument);
    RANK_CHECK(ncclBcast(&value, 1, ncclInt32, n, comm, NULL) == ncclInvalidArgument);
    RANK_CHECK(ncclSend(&value, 1, ncclInt32, -1, comm, NULL) == ncclInvalidArgument);
    RANK_CHECK(ncclSend(&value, SIZE_MAX / 2, ncclInt64, 0, comm, NULL) ==
               ncclInvalidArgument);
    RANK_CHECK(ncclSend(&value, 1, ncclInt32, rank, comm, NULL) == ncclInvalidUsage);
    RANK_CHECK(strstr(ncclGetLastError(comm), "itself") != NULL);
    RANK_CHECK(ncclGroupEnd() == ncclInvalidUsage);
    RANK_CHECK(ncclCommInitRank(&none, 2, id, 2) == ncclInvalidArgument && !none);
    RANK_CHECK(ncclCommShrink(comm, &rank, 1, &none, NULL, 0) == ncclInvalidArgument);
    RANK_CHECK(strstr(ncclGetLastError(comm), "ncclCommShrink") != NULL);
    RANK_CHECK(crystal_stream_synchronize((ncclStream_t)&id) == ncclInvalidArgument);
    /* a group with a failing call does nothing */
    RANK_CHECK(ncclGroupStart() == ncclSuccess);
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(ncclBcast(&value, 1, ncclInt32, -3, comm, NULL) == ncclInvalidArgument);
    RANK_CHECK(ncclGroupEnd() == ncclInvalidArgument);
    RANK_CHECK(ranks_sum(comm, 1, NULL) == n && value == 1);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void refuses_bad_calls(void)
{
    CHECK_EQ(ranks_run(2, bad_calls), 0);
}

static void peer_dies(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    ncclResult_t result = ncclSuccess;
    int value = 1;

    RANK_CHECK(ranks_sum(comm, 1, NULL) == n);
    if (rank == 1) {
        ranks_wait_told();
        _exit(0);
    }
    ranks_tell();
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclRemoteError);
    RANK_CHECK(ncclCommGetAsyncError(comm, &result) == ncclSuccess &&
               result == ncclRemoteError);
    RANK_CHECK(strstr(ncclGetLastError(comm), "rank 1") != NULL);
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) ==
               ncclRemoteError);
    RANK_CHECK(ncclCommAbort(comm) == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess); /* forgotten */
}

static void tells_when_a_peer_dies(void)
{
    CHECK_EQ(ranks_run(2, peer_dies), 0);
}

/* A rank that dies while communicators are made fails those that wait for it. */
static void dies_in_bootstrap(int rank, int n)
{
    static const atomic_bool no_abort;
    ncclUniqueId id = ranks_id(0, rank == 0);
    struct crystal_error err = {0};
    struct hostccl_bootstrap *b = hostccl_bootstrap_create(
        &id, 1, (uint32_t)n, (uint32_t)rank, &no_abort, NULL, &err);
    uint32_t bytes;
    char byte;

    RANK_CHECK(b != NULL);
    if (rank == 1)
        _exit(0);
    RANK_CHECK(hostccl_bootstrap_recv(b, 1, 5, &byte, 1, &bytes, &err) == -ECONNRESET);
    RANK_CHECK(strstr(err.text, "a neighbour in the ring left") != NULL);
    hostccl_bootstrap_destroy(b);
}

static void ends_waits_of_the_bootstrap(void)
{
    CHECK_EQ(ranks_run(3, dies_in_bootstrap), 0);
}

static void aborted(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    ncclStream_t a;
    crystal_event_t event;
    uint64_t reached_ns;
    int value = 1;

    RANK_CHECK(crystal_stream_create(&a) == ncclSuccess);
    RANK_CHECK(crystal_event_create(&event) == ncclSuccess);
    if (rank == 0) { /* nobody sends that */
        RANK_CHECK(ncclRecv(&value, 1, ncclInt32, 1, comm, a) == ncclSuccess);
        RANK_CHECK(crystal_event_record(event, a) == ncclSuccess);
        ranks_pause_ms(20);
        RANK_CHECK(crystal_event_query(event) == ncclInProgress);
        ranks_tell();
    }
    ranks_wait_told();
    RANK_CHECK(ncclCommAbort(comm) == ncclSuccess);
    if (rank == 0) {
        RANK_CHECK(crystal_event_synchronize(event) != ncclSuccess);
        RANK_CHECK(crystal_event_time(event, &reached_ns) != ncclSuccess);
    }
    RANK_CHECK(crystal_event_destroy(event) == ncclSuccess);
    RANK_CHECK(crystal_stream_destroy(a) == ncclSuccess);
}

static void aborts(void)
{
    CHECK_EQ(ranks_run(2, aborted), 0);
}

static void mismatch(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    int values[4] = {0};

    RANK_CHECK(ncclAllGather(&values[0], &values[0], rank ? 1 : 2, ncclInt32, comm,
                             NULL) == ncclSuccess);
    if (crystal_stream_synchronize(NULL) == ncclSuccess)
        atomic_fetch_add(&ranks_shared->counter, 1);
    RANK_CHECK(atomic_load(&ranks_shared->counter) < n); /* one of them tells */
    RANK_CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static void tells_other_counts(void)
{
    CHECK_EQ(ranks_run(2, mismatch), 0);
}

static void leaves_work(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    static int value;

    if (rank == 0)
        RANK_CHECK(ncclRecv(&value, 1, ncclInt32, 1, comm, NULL) == ncclSuccess);
    else
        ranks_pause_ms(50);
    /* and ends, with a thread in the middle of it */
}

/* What a rank has given away arrives, though it leaves at once. */
static void leaves_at_once(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    static char big[3 << 20];

    if (rank == 0) {
        memset(big, 7, sizeof big);
        RANK_CHECK(ncclSend(big, sizeof big, ncclInt8, 1, comm, NULL) == ncclSuccess);
    } else {
        ranks_pause_ms(20);
        RANK_CHECK(ncclRecv(big, sizeof big, ncclInt8, 0, comm, NULL) == ncclSuccess);
    }
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    if (rank == 1)
        RANK_CHECK(big[0] == 7 && big[sizeof big - 1] == 7);
}

static void sends_before_it_exits(void)
{
    CHECK_EQ(ranks_run(2, leaves_at_once), 0);
}

static void exits_with_work_left(void)
{
    CHECK_EQ(ranks_run(2, leaves_work), 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(refuses_bad_calls);
    CHECK_RUN(tells_when_a_peer_dies);
    CHECK_RUN(ends_waits_of_the_bootstrap);
    CHECK_RUN(aborts);
    CHECK_RUN(tells_other_counts);
    CHECK_RUN(exits_with_work_left);
    CHECK_RUN(sends_before_it_exits);
    return check_end();
}
