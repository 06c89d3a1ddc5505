/* Events of the PROFILER interface: which message is which, lives and losses. A handle
 * whose event is over never finds another one.
 */
#include "config.h"

#include "replay/net.h"
#include "replay/run_record.h"
#include "replay/run_writer.h"
#include "runtime/blockfile.h"

#include "tests/check.h"

#include <errno.h>
#include <pthread.h>

static struct crystal_net_comm *comm_make(uint32_t nranks, uint32_t crank, uint64_t id)
{
    struct crystal_error err = {0};
    struct crystal_net_module *module = crystal_net_module_get(&err);
    struct crystal_net_comm *comm = crystal_net_comm_get(module, id, crank, &err);

    CHECK(comm && crystal_net_comm_set(comm, nranks, crank, &err) == 0);
    return comm;
}

static crystal_event_handle coll(struct crystal_net_comm *comm)
{
    const struct crystal_coll_facts facts = {.func = CRYSTAL_FUNC_ALLREDUCE,
                                             .dtype = ncclFloat32,
                                             .count = 100,
                                             .channel_count = 1};

    return crystal_ops_coll(comm, 0, &facts);
}

static void identifies_messages(void)
{
    struct crystal_net_comm *comm = comm_make(4, 1, 1);
    crystal_event_handle first = coll(comm), second = coll(comm);
    crystal_event_handle send = crystal_ops_proxy(second, 3, 2, 12, 1);
    crystal_event_handle p2p =
        crystal_ops_p2p(comm, 0, CRYSTAL_FUNC_RECV, ncclInt64, 7, 3, 1);
    crystal_event_handle recv = crystal_ops_proxy(p2p, 0, 3, 1, 0);
    crystal_event_handle steps[CRYSTAL_NET_STEPS];
    struct crystal_message_id id;

    CHECK(first && second && send && p2p && recv);
    for (uint32_t i = 0; i < CRYSTAL_NET_STEPS; i++)
        steps[i] = crystal_ops_step(send, 40 + i);
    for (uint32_t i = 0; i < CRYSTAL_NET_STEPS; i++) {
        crystal_ops_identify(steps[i], &id);
        CHECK(id.operation != NULL);
        if (!id.operation)
            return;
        CHECK_EQ(id.step, 40 + i);
        CHECK_EQ(id.channel, 3);
        CHECK_EQ(id.message_count, 12);
        CHECK_EQ(id.operation->seq, 1);
        CHECK_EQ(id.operation->func, CRYSTAL_FUNC_ALLREDUCE);
        CHECK_EQ(id.operation->elt_bytes, 4);
    }
    crystal_ops_identify(crystal_ops_step(recv, 0), &id);
    CHECK(id.operation && id.operation->is_p2p);
    CHECK_EQ(id.operation->func, CRYSTAL_FUNC_RECV);
    CHECK_EQ(id.operation->peer, 3);
    CHECK_EQ(id.operation->seq, 0);
    CHECK_EQ(id.operation->elt_bytes, 8);
    CHECK_EQ(comm->ops.lost, 0);
    crystal_net_comm_put(comm);
}

/* With API events the call's order and exact type count, whatever starts first. */
/* A transfer on these channels: the part of each; -1: that cannot be told. */
static void parts_on(struct crystal_net_comm *comm, const uint32_t *channels,
                     const int *want, uint32_t count)
{
    crystal_event_handle op =
        crystal_ops_p2p(comm, 0, CRYSTAL_FUNC_RECV, ncclInt64, 7, 3, count);
    crystal_event_handle proxies[8], step;
    struct crystal_message_id id;

    for (uint32_t i = 0; i < count; i++) {
        proxies[i] = crystal_ops_proxy(op, channels[i], 3, 1, 0);
        step = crystal_ops_step(proxies[i], 0);
        crystal_ops_identify(step, &id);
        CHECK(id.operation != NULL);
        if (id.operation && i + 1 < count)
            CHECK_EQ(crystal_operation_part(id.operation, channels[i]), -EAGAIN);
        crystal_ops_stop(step);
    }
    for (uint32_t i = 0; id.operation && i < count; i++)
        CHECK_EQ(crystal_operation_part(id.operation, channels[i]),
                 want[i] < 0 ? -ENOTSUP : want[i]);
    for (uint32_t i = 0; i < count; i++)
        crystal_ops_stop(proxies[i]);
    crystal_ops_stop(op);
}

static void parts_of_a_transfer(void)
{
    struct crystal_net_comm *comm = comm_make(4, 1, 6);

    parts_on(comm, (uint32_t[]){5}, (int[]){0}, 1);
    comm->ops.p2p_channels = 0;
    parts_on(comm, (uint32_t[]){1, 0}, (int[]){-1, -1}, 2); /* two of two? */
    parts_on(comm, (uint32_t[]){0, 1, 2}, (int[]){0, 1, 2}, 3);
    parts_on(comm, (uint32_t[]){1, 0}, (int[]){1, 0}, 2); /* there are more */
    parts_on(comm, (uint32_t[]){6, 4, 5}, (int[]){2, 0, 1}, 3);
    parts_on(comm, (uint32_t[]){0, 7}, (int[]){1, 0}, 2);
    parts_on(comm, (uint32_t[]){1, 0, 6, 7}, (int[]){3, 2, 0, 1}, 4);
    parts_on(comm, (uint32_t[]){63, 62}, (int[]){1, 0}, 2);
    crystal_net_comm_put(comm);
}

static void takes_over_the_call(void)
{
    struct crystal_net_comm *comm = comm_make(4, 1, 2);
    crystal_event_handle a =
        crystal_ops_call(comm, CRYSTAL_FUNC_ALLGATHER, ncclFloat32, 25);
    crystal_event_handle b =
        crystal_ops_call(comm, CRYSTAL_FUNC_ALLTOALL, ncclInt32, 6);
    crystal_event_handle c =
        crystal_ops_call(comm, CRYSTAL_FUNC_BROADCAST, ncclInt8, 9);
    crystal_event_handle third = crystal_ops_coll(
        comm, c,
        &(struct crystal_coll_facts){
            .func = CRYSTAL_FUNC_BROADCAST, .count = 9, .root = 2, .channel_count = 1});
    crystal_event_handle first = crystal_ops_coll(
        comm, a,
        &(struct crystal_coll_facts){
            .func = CRYSTAL_FUNC_ALLGATHER, .count = 100, .channel_count = 1});
    crystal_event_handle part =
        crystal_ops_p2p(comm, b, CRYSTAL_FUNC_SEND, ncclInt32, 6, 0, 1);
    struct crystal_message_id id;

    crystal_ops_identify(crystal_ops_step(crystal_ops_proxy(third, 0, 2, 1, 1), 0),
                         &id);
    CHECK(id.operation != NULL);
    CHECK_EQ(id.operation->seq, 1);
    CHECK_EQ(id.operation->graph_seq, 1); /* until the graph says more */
    crystal_ops_identify(crystal_ops_step(crystal_ops_proxy(first, 0, 2, 1, 1), 0),
                         &id);
    CHECK_EQ(id.operation->seq, 0);
    CHECK_EQ(id.operation->graph_seq, 0);
    CHECK_EQ(id.operation->dtype, ncclFloat32);
    CHECK_EQ(id.operation->count, 25);
    crystal_ops_identify(crystal_ops_step(crystal_ops_proxy(part, 0, 0, 1, 1), 0), &id);
    CHECK_EQ(id.operation->api_func, CRYSTAL_FUNC_ALLTOALL);
    CHECK_EQ(id.operation->graph_seq, 0);
    /* a collective without its call would get a wrong number */
    CHECK(coll(comm) == 0);
    CHECK_EQ(comm->ops.lost, 1);
    crystal_net_comm_put(comm);
}

static void stale_handles_find_nothing(void)
{
    struct crystal_net_comm *comm = comm_make(2, 0, 3);
    crystal_event_handle old = coll(comm), proxy = crystal_ops_proxy(old, 0, 1, 4, 1);
    crystal_event_handle step = crystal_ops_step(proxy, 2);
    struct crystal_message_id id;

    crystal_ops_stop(old);
    crystal_ops_identify(step, &id);
    CHECK(id.operation != NULL); /* alive through its proxy operation */
    crystal_ops_stop(proxy);
    crystal_ops_identify(step, &id);
    CHECK(id.operation == NULL);
    CHECK(crystal_ops_step(proxy, 3) == 0);
    crystal_ops_stop(proxy); /* again: nothing happens */
    crystal_ops_stop(old);
    /* a caller may start messages after the stop, as long as the place is not reused */
    proxy = crystal_ops_proxy(old, 0, 1, 4, 1);
    CHECK(proxy != 0);
    crystal_ops_stop(proxy);
    for (uint32_t i = 0; i < comm->ops.operation_count; i++)
        crystal_ops_stop(coll(comm));
    CHECK(crystal_ops_proxy(old, 0, 1, 4, 1) == 0);
    CHECK_EQ(comm->ops.lost, 1);
    /* of another communicator, of no kind, of no communicator */
    CHECK(crystal_ops_proxy(UINT64_MAX, 0, 1, 4, 1) == 0);
    crystal_ops_stop(UINT64_MAX);
    crystal_ops_identify(1, &id);
    CHECK(id.operation == NULL);
    crystal_net_comm_put(comm);
    crystal_ops_identify(step, &id); /* its communicator is gone */
    CHECK(id.operation == NULL);
}

static void full_pools_lose_and_recover(void)
{
    struct crystal_net_comm *comm = comm_make(2, 0, 4);
    uint32_t room = comm->ops.operation_count, proxies = comm->ops.proxy_count;
    crystal_event_handle *held = calloc(room, sizeof *held), extra, proxy = 0;

    for (uint32_t i = 0; i < room; i++)
        CHECK((held[i] = coll(comm)) != 0);
    CHECK(coll(comm) == 0);
    CHECK_EQ(comm->ops.lost, 1);
    crystal_ops_stop(held[17]);
    extra = coll(comm);
    CHECK(extra != 0);
    CHECK(crystal_ops_proxy(held[17], 0, 1, 1, 1) == 0);
    for (uint32_t i = 0; i < proxies; i++)
        CHECK((proxy = crystal_ops_proxy(extra, 0, 1, 1, 1)) != 0);
    CHECK(crystal_ops_proxy(extra, 0, 1, 1, 1) == 0);
    crystal_ops_stop(proxy);
    CHECK(crystal_ops_proxy(extra, 0, 1, 1, 1) != 0);
    free(held);
    crystal_net_comm_put(comm);
}

/* --- several threads: every operation ends once --- */

#define THREADS 4
#define EACH    20000

static void *worker(void *argument)
{
    struct crystal_net_comm *comm = argument;

    for (int i = 0; i < EACH; i++) {
        crystal_event_handle op = coll(comm), send, recv;
        struct crystal_message_id id;

        send = crystal_ops_proxy(op, 0, 1, 1, 1);
        recv = crystal_ops_proxy(op, 0, 1, 1, 0);
        crystal_ops_identify(crystal_ops_step(send, (uint32_t)i), &id);
        if (!id.operation || id.step != (uint32_t)i || id.operation->comm != comm)
            return argument;
        crystal_ops_stop(i % 2 ? op : send);
        crystal_ops_stop(recv);
        crystal_ops_stop(i % 2 ? send : op);
    }
    return NULL;
}

static uint64_t records_read(const char *path)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct crystal_filehead head;
    void *records = NULL;
    uint64_t count = 0;

    if (crystal_block_read(path, &kind, &head, &records, &count, NULL))
        return 0;
    free(records);
    return count;
}

static void threads_share_a_communicator(const char *path)
{
    struct crystal_net_comm *comm = comm_make(2, 0, 5);
    uint64_t before, lost;
    pthread_t threads[THREADS];

    CHECK_EQ(crystal_run_flush(comm->module->run, NULL), 0);
    before = records_read(path);

    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, worker, comm), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;

        CHECK_EQ(pthread_join(threads[i], &failed), 0);
        CHECK(failed == NULL);
    }
    CHECK_EQ(comm->ops.lost, 0);
    CHECK_EQ(comm->ops.coll_seq, THREADS * EACH);
    CHECK_EQ(crystal_run_flush(comm->module->run, NULL), 0);
    lost = crystal_run_lost(comm->module->run);
    CHECK_EQ(records_read(path) - before + lost, THREADS * EACH);
    crystal_net_comm_put(comm);
}

static char record_path[96];

static void every_operation_ends_once(void)
{
    threads_share_a_communicator(record_path);
}

int main(void)
{
    char directory[] = "/tmp/crystal-ops.XXXXXX";

    if (!mkdtemp(directory))
        return 1;
    (void)setenv("CRYSTAL_RUN_DIR", directory, 1);
    (void)setenv("CRYSTAL_LRANK", "3", 1);
    (void)snprintf(record_path, sizeof record_path, "%s/3.run", directory);
    check_begin();
    CHECK_RUN(identifies_messages);
    CHECK_RUN(parts_of_a_transfer);
    CHECK_RUN(takes_over_the_call);
    CHECK_RUN(stale_handles_find_nothing);
    CHECK_RUN(full_pools_lose_and_recover);
    CHECK_RUN(every_operation_ends_once);
    (void)unlink(record_path);
    (void)rmdir(directory);
    return check_end();
}
