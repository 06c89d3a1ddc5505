/* hostccl's streams, events and groups, between real processes over the real net
 * plugin: what goes on at the same time, what waits for what, and what a group takes
 * together.
 */
#include "config.h"

#include "runtime/clock.h"

#include "tests/check.h"
#include "tests/hostccl/ranks.h"

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
        RANK_CHECK(ranks_sum(other, 1, b) == n);
    if (rank == 0) {
        RANK_CHECK(crystal_event_query(event) == ncclInProgress);
        RANK_CHECK(crystal_stream_query(a) == ncclInProgress);
        RANK_CHECK(crystal_event_time(event, &reached_ns) == ncclInProgress);
        RANK_CHECK(reached_ns == 1);
        before_ns = crystal_now_ns();
        ranks_tell();
        RANK_CHECK(crystal_event_synchronize(event) == ncclSuccess);
        RANK_CHECK(crystal_event_time(event, &reached_ns) == ncclSuccess);
        RANK_CHECK(reached_ns >= before_ns && reached_ns <= crystal_now_ns());
        RANK_CHECK(value == 4711 && crystal_stream_query(a) == ncclSuccess);
    } else {
        ranks_wait_told();
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
        ranks_pause_ms(20);
        RANK_CHECK(ncclRecv(&in, 1, ncclInt32, other, comm, b) == ncclSuccess);
    } else {
        ranks_pause_ms(10);
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
    ranks_pause_ms(10);
    if (rank == 0) {
        RANK_CHECK(crystal_stream_query(b) == ncclInProgress);
        ranks_tell();
    }
    ranks_wait_told();
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

int main(void)
{
    check_begin();
    CHECK_RUN(posts_receives_early);
    CHECK_RUN(connects_half_way_round);
    CHECK_RUN(runs_two_communicators_at_once);
    CHECK_RUN(keeps_the_order_of_calls);
    CHECK_RUN(sums_scaled_values);
    CHECK_RUN(groups_calls);
    CHECK_RUN(moves_nothing);
    return check_end();
}
