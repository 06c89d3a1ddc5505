/* hostccl's communicators, groups, streams and events, and what happens when things go
 * wrong: between real processes over the real net plugin.
 */
#include "config.h"

#include "replay/hostccl/bootstrap.h"
#include "runtime/clock.h"

#include "tests/check.h"
#include "tests/hostccl/ranks.h"

#include <errno.h>

static void pause_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* Waits until another rank has told (rank 0 of most tests). */
static void tell(void)
{
    atomic_store(&ranks_shared->counter, 1);
}

static void wait_told(void)
{
    while (!atomic_load(&ranks_shared->counter))
        pause_ms(1);
}

static int sum_of_ranks(ncclComm_t comm, int value, ncclStream_t stream)
{
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, stream) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(stream) == ncclSuccess);
    return value;
}

/* --- making communicators --- */

static void bootstrap(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    int count = 0, crank = -1;

    RANK_CHECK(ncclCommCount(comm, &count) == ncclSuccess && count == n);
    RANK_CHECK(ncclCommUserRank(comm, &crank) == ncclSuccess && crank == rank);
    RANK_CHECK(sum_of_ranks(comm, rank, NULL) == n * (n - 1) / 2);
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
    RANK_CHECK(sum_of_ranks(comm, 1, NULL) == n);
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
        RANK_CHECK(sum_of_ranks(child, rank, NULL) == want);
        RANK_CHECK(ncclCommDestroy(child) == ncclSuccess);
    }
    RANK_CHECK(ncclCommSplit(comm, 7, 0, &again, NULL) == ncclSuccess);
    RANK_CHECK(sum_of_ranks(again, 1, NULL) == n);
    RANK_CHECK(sum_of_ranks(comm, 1, NULL) == n);
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
    RANK_CHECK(sum_of_ranks(child, rank, NULL) == 0 + 2 + 3 + 5);
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
    RANK_CHECK(sum_of_ranks(comm, 1, NULL) == n);
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
    RANK_CHECK(sum_of_ranks(comm, 1, NULL) == n);
    RANK_CHECK(ncclCommSplit(comm, rank % 2, 0, &child, &config) == ncclInProgress);
    RANK_CHECK(child && wait_ready(child) == ncclSuccess);
    RANK_CHECK(sum_of_ranks(child, 1, NULL) == 2);
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

/* --- order --- */

/* Rank 0 posts its receive long before rank 1 sends, and works on in between. */
static void early_receive(int rank, int n)
{
    ncclComm_t pair = ranks_comm(0, rank, n), other = ranks_comm(1, rank, n);
    ncclStream_t a, b;
    crystal_event_t event;
    uint64_t before_ns, reached_ns = 1;
    int value = rank ? 4711 : 0;

    RANK_CHECK(crystal_stream_create(&a) == ncclSuccess);
    RANK_CHECK(crystal_stream_create(&b) == ncclSuccess);
    RANK_CHECK(crystal_event_create(&event) == ncclSuccess);
    if (rank == 0) {
        RANK_CHECK(ncclRecv(&value, 1, ncclInt32, 1, pair, a) == ncclSuccess);
        RANK_CHECK(crystal_event_record(event, a) == ncclSuccess);
    }
    for (int i = 0; i < 5; i++)
        RANK_CHECK(sum_of_ranks(other, 1, b) == n);
    if (rank == 0) {
        RANK_CHECK(crystal_event_query(event) == ncclInProgress);
        RANK_CHECK(crystal_stream_query(a) == ncclInProgress);
        RANK_CHECK(crystal_event_time(event, &reached_ns) == ncclInProgress);
        RANK_CHECK(reached_ns == 1);
        before_ns = crystal_now_ns();
        tell();
        RANK_CHECK(crystal_event_synchronize(event) == ncclSuccess);
        RANK_CHECK(crystal_event_time(event, &reached_ns) == ncclSuccess);
        RANK_CHECK(reached_ns >= before_ns && reached_ns <= crystal_now_ns());
        RANK_CHECK(value == 4711 && crystal_stream_query(a) == ncclSuccess);
    } else {
        wait_told();
        RANK_CHECK(ncclSend(&value, 1, ncclInt32, 0, pair, a) == ncclSuccess);
        RANK_CHECK(crystal_stream_synchronize(a) == ncclSuccess);
    }
    RANK_CHECK(crystal_event_destroy(event) == ncclSuccess);
    RANK_CHECK(crystal_stream_destroy(a) == ncclSuccess);
    RANK_CHECK(crystal_stream_destroy(b) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(pair) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(other) == ncclSuccess);
}

static void posts_receives_early(void)
{
    CHECK_EQ(ranks_run(2, early_receive), 0);
}

/* Both directions of a pair are asked for one after the other, in opposite orders. */
static void crossed(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    ncclStream_t a, b;
    int out = rank + 100, in = 0;
    int other = (rank + n / 2) % n;

    RANK_CHECK(crystal_stream_create(&a) == ncclSuccess);
    RANK_CHECK(crystal_stream_create(&b) == ncclSuccess);
    if (rank < n / 2) {
        RANK_CHECK(ncclSend(&out, 1, ncclInt32, other, comm, a) == ncclSuccess);
        pause_ms(20);
        RANK_CHECK(ncclRecv(&in, 1, ncclInt32, other, comm, b) == ncclSuccess);
    } else {
        pause_ms(10);
        RANK_CHECK(ncclRecv(&in, 1, ncclInt32, other, comm, a) == ncclSuccess);
        RANK_CHECK(ncclSend(&out, 1, ncclInt32, other, comm, b) == ncclSuccess);
    }
    RANK_CHECK(crystal_stream_synchronize(a) == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(b) == ncclSuccess);
    RANK_CHECK(in == other + 100);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void connects_half_way_round(void)
{
    CHECK_EQ(ranks_run(2, crossed), 0);
    CHECK_EQ(ranks_run(4, crossed), 0);
}

/* Two communicators on two streams; the ranks issue them in different orders. */
static void two_streams(int rank, int n)
{
    enum { N = 20, COUNT = 50000 };
    ncclComm_t comms[2] = {ranks_comm(0, rank, n), ranks_comm(1, (rank + 1) % n, n)};
    ncclStream_t streams[2];
    int *values[2] = {calloc(COUNT, sizeof(int)), calloc(COUNT, sizeof(int))};

    for (int k = 0; k < 2; k++) {
        RANK_CHECK(crystal_stream_create(&streams[k]) == ncclSuccess);
        for (int i = 0; i < COUNT; i++)
            values[k][i] = 1;
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 2; k++) {
            int which = (k + rank) % 2;

            RANK_CHECK(ncclAllReduce(values[which], values[which], COUNT, ncclInt32,
                                     ncclMax, comms[which],
                                     streams[which]) == ncclSuccess);
        }
    for (int k = 0; k < 2; k++) {
        RANK_CHECK(ncclAllReduce(values[k], values[k], COUNT, ncclInt32, ncclSum,
                                 comms[k], streams[k]) == ncclSuccess);
        RANK_CHECK(crystal_stream_synchronize(streams[k]) == ncclSuccess);
        for (int i = 0; i < COUNT; i++)
            if (values[k][i] != n) {
                RANK_CHECK(values[k][i] == n);
                break;
            }
        free(values[k]);
        RANK_CHECK(ncclCommDestroy(comms[k]) == ncclSuccess);
    }
}

static void runs_two_communicators_at_once(void)
{
    CHECK_EQ(ranks_run(3, two_streams), 0);
}

/* One communicator on two streams keeps the order of the calls; a stream that waits for
 * an event holds its communicator's later work back. */
static void launch_order(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n), slow = ranks_comm(1, rank, n);
    ncclStream_t a, b, c;
    crystal_event_t event;
    uint64_t reached_ns;
    int first = 1, second = 0, gate = rank;

    RANK_CHECK(crystal_stream_create(&a) == ncclSuccess);
    RANK_CHECK(crystal_stream_create(&b) == ncclSuccess);
    RANK_CHECK(crystal_stream_create(&c) == ncclSuccess);
    RANK_CHECK(crystal_event_create(&event) == ncclSuccess);
    RANK_CHECK(crystal_event_query(event) == ncclSuccess); /* never recorded */
    RANK_CHECK(crystal_event_time(event, &reached_ns) == ncclInvalidUsage);
    if (rank == 0)
        RANK_CHECK(ncclRecv(&gate, 1, ncclInt32, 1, slow, c) == ncclSuccess);
    RANK_CHECK(crystal_event_record(event, c) == ncclSuccess);
    RANK_CHECK(crystal_stream_wait_event(a, event) == ncclSuccess);
    RANK_CHECK(ncclAllReduce(&first, &first, 1, ncclInt32, ncclSum, comm, a) ==
               ncclSuccess);
    RANK_CHECK(ncclAllReduce(&first, &second, 1, ncclInt32, ncclSum, comm, b) ==
               ncclSuccess);
    pause_ms(10);
    if (rank == 0) {
        RANK_CHECK(crystal_stream_query(b) == ncclInProgress);
        tell();
    }
    wait_told();
    if (rank == 1)
        RANK_CHECK(ncclSend(&gate, 1, ncclInt32, 0, slow, c) == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(b) == ncclSuccess);
    RANK_CHECK(second == n * n); /* the first was done before */
    RANK_CHECK(crystal_event_destroy(event) == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(c) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(slow) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void keeps_the_order_of_calls(void)
{
    CHECK_EQ(ranks_run(2, launch_order), 0);
}

/* --- operations --- */

static void scaled(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    float factor = 0.5f * (float)(rank + 1), value = 8;
    ncclRedOp_t op;

    RANK_CHECK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32,
                                        ncclScalarHostImmediate, comm) == ncclSuccess);
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclFloat32, op, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(ncclRedOpDestroy(op, comm) == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    RANK_CHECK(value == 4 * n * (n + 1) / 2);
    RANK_CHECK(ncclAllReduce(&value, &value, 1, ncclFloat32, op, comm, NULL) ==
               ncclInvalidArgument);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void sums_scaled_values(void)
{
    CHECK_EQ(ranks_run(3, scaled), 0);
}

static void grouped(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    int a = 1, b = rank, c = 0, next = 0;

    RANK_CHECK(ncclGroupStart() == ncclSuccess);
    RANK_CHECK(ncclAllReduce(&a, &a, 1, ncclInt32, ncclSum, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclGroupStart() == ncclSuccess);
    RANK_CHECK(ncclSend(&b, 1, ncclInt32, (rank + 1) % n, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    RANK_CHECK(ncclBroadcast(&b, &c, 1, ncclInt32, 1, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclRecv(&next, 1, ncclInt32, (rank + n - 1) % n, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    RANK_CHECK(a == n && c == 1 && next == (rank + n - 1) % n);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void groups_calls(void)
{
    CHECK_EQ(ranks_run(4, grouped), 0);
}

/* Nothing is a fine thing to reduce; an empty transfer is one message. */
static void empty(int rank, int n)
{
    ncclComm_t comm = ranks_comm(0, rank, n);
    int next = (rank + 1) % n, prev = (rank + n - 1) % n;

    RANK_CHECK(ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(ncclAllGather(NULL, NULL, 0, ncclInt8, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclReduceScatter(NULL, NULL, 0, ncclFloat16, ncclAvg, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(ncclBcast(NULL, 0, ncclFloat64, n - 1, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclAlltoAll(NULL, NULL, 0, ncclInt64, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclGroupStart() == ncclSuccess);
    RANK_CHECK(ncclSend(NULL, 0, ncclInt32, next, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclRecv(NULL, 0, ncclInt32, prev, comm, NULL) == ncclSuccess);
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    RANK_CHECK(ncclGroupStart() == ncclSuccess);
    RANK_CHECK(ncclGroupEnd() == ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void moves_nothing(void)
{
    CHECK_EQ(ranks_run(1, empty), 0);
    CHECK_EQ(ranks_run(3, empty), 0);
}

/* --- what goes wrong --- */

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
    RANK_CHECK(sum_of_ranks(comm, 1, NULL) == n && value == 1);
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

    RANK_CHECK(sum_of_ranks(comm, 1, NULL) == n);
    if (rank == 1) {
        wait_told();
        _exit(0);
    }
    tell();
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
        pause_ms(20);
        RANK_CHECK(crystal_event_query(event) == ncclInProgress);
        tell();
    }
    wait_told();
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
        pause_ms(50);
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
        pause_ms(20);
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
    CHECK_RUN(bootstraps_16_ranks);
    CHECK_RUN(checks_in_at_several_roots);
    CHECK_RUN(splits);
    CHECK_RUN(shrinks);
    CHECK_RUN(lets_the_program_fork);
    CHECK_RUN(makes_communicators_without_blocking);
    CHECK_RUN(has_several_ranks_in_a_process);
    CHECK_RUN(posts_receives_early);
    CHECK_RUN(connects_half_way_round);
    CHECK_RUN(runs_two_communicators_at_once);
    CHECK_RUN(keeps_the_order_of_calls);
    CHECK_RUN(sums_scaled_values);
    CHECK_RUN(groups_calls);
    CHECK_RUN(moves_nothing);
    CHECK_RUN(refuses_bad_calls);
    CHECK_RUN(tells_when_a_peer_dies);
    CHECK_RUN(ends_waits_of_the_bootstrap);
    CHECK_RUN(aborts);
    CHECK_RUN(tells_other_counts);
    CHECK_RUN(exits_with_work_left);
    CHECK_RUN(sends_before_it_exits);
    return check_end();
}
