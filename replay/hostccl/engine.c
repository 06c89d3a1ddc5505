/* The progress thread's loop, and launches. */
#include "config.h"

#include "replay/hostccl/engine.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/fork.h"
#include "replay/hostccl/result.h"
#include "replay/hostccl/service.h"
#include "runtime/log.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define WAIT_NS        100000000U /* longest sleep in the plugin */
#define JOIN_WAIT_NS   5000000U   /* while connections are being made */
#define DRAIN_WAIT_NS  200000U    /* while the program ends */
#define TIMER_SLACK_NS 1000UL
#define EXIT_DRAIN_NS  10000000000U /* for the last messages when the program ends */

/* What a communicator's round says. */
#define MOVED     1
#define TRANSFERS 2 /* the plugin has requests of ours */
#define JOINING   4

struct close_order {
    struct close_order *next;
    ncclComm_t comm;
    bool is_flush;    /* only wait until it is idle */
    uint64_t is_done; /* under the lock */
};

/* A thread in hostccl_wait_until, on its stack. */
struct waiter {
    struct waiter *next;
    const uint64_t *value;
    uint64_t until;
    sem_t is_told;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    /* under lock */
    struct waiter *waiters;
    struct waiter *told; /* to be woken by the unlock */
    bool is_wake_due;    /* so is the progress thread */
    struct hostccl_item *inbox, **inbox_end;
    struct close_order *orders;
    bool is_running, is_stopping;
    bool is_notified; /* something is new for the thread */
    bool is_in_plugin;
    pthread_t thread;
    /* the thread's */
    ncclComm_t active;
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

void hostccl_lock(void)
{
    pthread_mutex_lock(&engine.lock);
}

/* Nobody is woken under the lock, so that they need not wait for it. */
void hostccl_unlock(void)
{
    struct waiter *told = engine.told;
    bool is_wake_due = engine.is_wake_due, is_in_plugin = engine.is_in_plugin;

    engine.told = NULL;
    engine.is_wake_due = false;
    pthread_mutex_unlock(&engine.lock);
    while (told) {
        struct waiter *next = told->next; /* told goes away when it is woken */

        (void)sem_post(&told->is_told); /* cannot overflow: once per waiter */
        told = next;
    }
    if (!is_wake_due)
        return;
    if (is_in_plugin)
        hostccl_plugin_loaded()->wake();
    else
        pthread_cond_signal(&engine.work);
}

void hostccl_wait_until(const uint64_t *value, uint64_t until)
{
    struct waiter self = {.value = value, .until = until};

    if (*value >= until || hostccl_fork_is_child())
        return;
    (void)sem_init(&self.is_told, 0, 0); /* valid arguments */
    self.next = engine.waiters;
    engine.waiters = &self;
    hostccl_unlock();
    while (sem_wait(&self.is_told)) /* interrupted */
        ;
    (void)sem_destroy(&self.is_told);
    hostccl_lock();
}

void hostccl_tell(void)
{
    struct waiter **at = &engine.waiters, *waiter;

    while ((waiter = *at)) {
        if (*waiter->value < waiter->until) {
            at = &waiter->next;
            continue;
        }
        *at = waiter->next;
        waiter->next = engine.told;
        engine.told = waiter;
    }
}

/* Lock held. */
static void wake(void)
{
    if (!engine.is_notified)
        engine.is_wake_due = true;
    engine.is_notified = true;
}

void hostccl_engine_notify(void)
{
    hostccl_lock();
    wake();
    hostccl_unlock();
}

void hostccl_engine_push(struct hostccl_item *item)
{
    if (!engine.inbox)
        engine.inbox_end = &engine.inbox;
    item->next = NULL;
    *engine.inbox_end = item;
    engine.inbox_end = &item->next;
    wake();
}

void hostccl_launch_free(struct hostccl_launch *launch)
{
    struct hostccl_task *lists[2] = {launch->colls, launch->p2ps};

    for (int i = 0; i < 2; i++)
        while (lists[i]) {
            struct hostccl_task *task = lists[i];

            lists[i] = task->next;
            free(task);
        }
    free(launch);
}

static void free_if_done(struct hostccl_launch *launch)
{
    if (!launch->is_over || launch->open_lanes)
        return;
    if (launch->comm)
        launch->comm->draining_count--;
    hostccl_launch_free(launch);
}

static void lane_closed(struct hostccl_lane *lane)
{
    struct hostccl_launch *launch = ((struct hostccl_task *)lane->owner)->launch;

    launch->open_lanes--;
    free_if_done(launch);
}

void hostccl_launch_open_lane(struct hostccl_task *task, struct hostccl_lane *lane,
                              struct hostccl_conn *conn, uint64_t message_count,
                              uint32_t steps, uint32_t chunk_bytes)
{
    lane->owner = task;
    lane->closed = lane_closed;
    task->launch->open_lanes++;
    hostccl_lane_open(lane, conn, message_count, steps, task->event, chunk_bytes);
}

/* The launch at the head of comm's queue has ended. */
static void end_launch(ncclComm_t comm, ncclResult_t result)
{
    struct hostccl_launch *launch = comm->launches;

    comm->launches = launch->next;
    if (!comm->launches)
        comm->last_launch = &comm->launches;
    hostccl_streams_end(launch, result, comm->id);
    launch->is_over = true;
    comm->draining_count++;
    free_if_done(launch);
}

/* After a failure nothing of comm goes on: connections are dead, launches end with the
 * failure as they reach the heads of their streams. */
static void abandon(ncclComm_t comm)
{
    for (struct hostccl_conn *conn = comm->busy; conn; conn = conn->next_busy)
        hostccl_conn_abandon(conn);
    while (comm->busy) {
        struct hostccl_conn *conn = comm->busy;

        comm->busy = conn->next_busy;
        conn->is_busy = false;
    }
}

static void fail(ncclComm_t comm, const struct crystal_error *err)
{
    crystal_log(CRYSTAL_LOG_DEBUG, "hostccl", "rank %u of communicator %016llx: %s",
                comm->crank, (unsigned long long)comm->id, crystal_error_text(err));
    (void)hostccl_comm_fail(comm, err);
    abandon(comm);
}

void hostccl_comm_busy(ncclComm_t comm, struct hostccl_conn *conn)
{
    if (conn->is_busy)
        return;
    conn->is_busy = true;
    conn->next_busy = comm->busy;
    comm->busy = conn;
}

static void begin_task(struct hostccl_task *task)
{
    task->is_begun = true;
    if (task->comm->nranks == 1) {
        if (task->func == CRYSTAL_FUNC_SEND || task->func == CRYSTAL_FUNC_RECV)
            hostccl_p2p_begin(task);
        else
            hostccl_ring_alone(task);
        return;
    }
    task->event = hostccl_profile_task_start(&task->comm->profile, task);
    if (task->func == CRYSTAL_FUNC_SEND || task->func == CRYSTAL_FUNC_RECV)
        hostccl_p2p_begin(task);
    else if (task->func == CRYSTAL_FUNC_ALLREDUCE && task->comm->has_tree)
        hostccl_tree_begin(task);
    else
        hostccl_ring_begin(task);
}

static int task_progress(struct hostccl_task *task, bool *ret_done)
{
    int moved = !task->is_begun;

    if (!task->is_begun)
        begin_task(task);
    if (task->comm->nranks == 1)
        *ret_done = true;
    else if (task->func == CRYSTAL_FUNC_SEND || task->func == CRYSTAL_FUNC_RECV)
        moved |= hostccl_p2p_progress(task, ret_done);
    else if (task->func == CRYSTAL_FUNC_ALLREDUCE && task->comm->has_tree)
        moved |= hostccl_tree_progress(task, ret_done);
    else
        moved |= hostccl_ring_progress(task, ret_done);
    if (*ret_done) {
        hostccl_profile_stop(&task->comm->profile, task->event);
        task->event = NULL;
    }
    return moved;
}

/* Transfers all go on together; those that are done are skipped. */
static int p2ps_progress(struct hostccl_launch *launch, bool *ret_done)
{
    int moved = 0;

    *ret_done = true;
    for (struct hostccl_task *t = launch->p2ps; t; t = t->next)
        if (!t->is_begun) {
            begin_task(t);
            moved = 1;
        }
    for (struct hostccl_task *t = launch->p2ps; t; t = t->next) {
        bool done = t->is_ended;

        if (done)
            continue;
        moved |= task_progress(t, &done);
        t->is_ended = done;
        *ret_done &= done;
    }
    return moved;
}

static int launch_progress(ncclComm_t comm, struct hostccl_launch *launch)
{
    int moved = 0;
    bool done = false;

    if (!launch->is_running) {
        launch->is_running = true;
        launch->current = launch->colls;
        moved = 1;
    }
    while (launch->current) {
        moved |= task_progress(launch->current, &done);
        if (!done)
            return moved;
        launch->current = launch->current->next;
        done = false;
    }
    moved |= p2ps_progress(launch, &done);
    if (!done)
        return moved;
    end_launch(comm, ncclSuccess);
    return 1;
}

/* Ends the tasks' events of a launch that did not get to its end. */
static void cut_launch(ncclComm_t comm, struct hostccl_launch *launch)
{
    struct hostccl_task *lists[2] = {launch->colls, launch->p2ps};

    for (int i = 0; i < 2; i++)
        for (struct hostccl_task *t = lists[i]; t; t = t->next) {
            hostccl_profile_stop(&comm->profile, t->event);
            t->event = NULL;
        }
}

static int conns_progress(ncclComm_t comm, struct crystal_error *err)
{
    struct hostccl_conn **at = &comm->busy, *conn;
    int said = 0;

    while ((conn = *at)) {
        int result = conn->state == HOSTCCL_CONN_READY
                         ? hostccl_conn_progress(conn, err)
                         : hostccl_connect_progress(conn, err);

        if (result < 0)
            return result;
        if (result > 0)
            said |= MOVED;
        if (!conn->lanes) {
            *at = conn->next_busy;
            conn->is_busy = false;
            continue;
        }
        if (conn->state == HOSTCCL_CONN_JOINING)
            said |= JOINING;
        else if (conn->state == HOSTCCL_CONN_READY &&
                 (conn->is_send ? conn->first : conn->done) < conn->end)
            said |= TRANSFERS;
        at = &conn->next_busy;
    }
    return said;
}

static int comm_progress(ncclComm_t comm)
{
    struct crystal_error err = {0};
    struct hostccl_launch *launch;
    ncclResult_t failed = (ncclResult_t)atomic_load(&comm->async_result);
    int said = failed ? 0 : conns_progress(comm, &err);

    if (said < 0) {
        fail(comm, &err);
        return MOVED;
    }
    if (failed)
        abandon(comm); /* also where another thread said so */
    launch = comm->launches;
    if (!launch || launch->head_count < launch->stream_count)
        return said;
    if (failed) {
        cut_launch(comm, launch);
        end_launch(comm, failed);
        return MOVED;
    }
    return launch_progress(comm, launch) ? said | MOVED : said;
}

static void activate(ncclComm_t comm)
{
    if (comm->is_active)
        return;
    comm->is_active = true;
    comm->next_active = engine.active;
    engine.active = comm;
}

static int comms_progress(void)
{
    ncclComm_t *at = &engine.active, comm;
    int said = 0;

    while ((comm = *at)) {
        said |= comm_progress(comm);
        if (!comm->launches && !comm->busy && !comm->draining_count) {
            *at = comm->next_active;
            comm->is_active = false;
            continue;
        }
        at = &comm->next_active;
    }
    return said;
}

/* The communicator goes away at once: its launches end when their streams get there. */
static void let_go(ncclComm_t comm)
{
    ncclComm_t *at = &engine.active;

    abandon(comm);
    while (comm->launches) {
        struct hostccl_launch *launch = comm->launches;

        comm->launches = launch->next;
        cut_launch(comm, launch);
        launch->comm = NULL;
    }
    comm->last_launch = &comm->launches;
    if (!comm->is_active)
        return;
    while (*at != comm)
        at = &(*at)->next_active;
    *at = comm->next_active;
    comm->is_active = false;
}

/* Lock held. */
static bool run_orders(void)
{
    struct close_order **at = &engine.orders, *order;
    bool moved = false;

    while ((order = *at)) {
        ncclComm_t comm = order->comm;
        bool is_idle = !comm->launches && !comm->draining_count;

        if (!is_idle && (order->is_flush || !comm->is_aborting)) {
            at = &order->next;
            continue;
        }
        *at = order->next;
        order->is_done = 1;
        moved = true;
        if (!order->is_flush)
            let_go(comm);
    }
    if (moved)
        hostccl_tell();
    return moved;
}

/* Takes over what is new. Lock held. */
static void take_inbox(void)
{
    struct hostccl_item *item = engine.inbox;

    engine.inbox = NULL;
    engine.is_notified = false;
    while (item) {
        struct hostccl_item *next = item->next;
        struct hostccl_launch *launch = item->launch;

        if (item->kind == HOSTCCL_ITEM_LAUNCH && item == &launch->items[0]) {
            ncclComm_t comm = launch->comm;

            launch->next = NULL;
            *comm->last_launch = launch;
            comm->last_launch = &launch->next;
            activate(comm);
        }
        hostccl_stream_feed(item);
        item = next;
    }
}

/* Lock held; nothing moved in this round. */
static void sleep_until_news(int said)
{
    const struct hostccl_plugin *plugin = hostccl_plugin_loaded();

    if (engine.is_notified || engine.is_stopping)
        return;
    if (!(said & (TRANSFERS | JOINING)) || !plugin) {
        pthread_cond_wait(&engine.work, &engine.lock);
        return;
    }
    engine.is_in_plugin = true;
    hostccl_unlock();
    plugin->wait(said & JOINING ? JOIN_WAIT_NS : WAIT_NS);
    hostccl_lock();
    engine.is_in_plugin = false;
}

/* The program ends: what it still sends on to others must go out, as it may end as soon
 * as its own results are there. deadline_ns is set at the first question. */
static bool is_draining(uint64_t *deadline_ns)
{
    struct timespec now;
    uint64_t now_ns;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail with this clock */
    now_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
    if (!*deadline_ns)
        *deadline_ns = now_ns + EXIT_DRAIN_NS;
    if (now_ns >= *deadline_ns)
        return false;
    for (ncclComm_t c = engine.active; c; c = c->next_active)
        if (!c->launches && c->draining_count && !c->is_aborting)
            return true;
    return false;
}

static void *progress(void *context)
{
    uint64_t deadline_ns = 0;

    (void)context;
    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0); /* else later, no worse */
    (void)prctl(PR_SET_NAME, "crystal-hostccl", 0, 0, 0);
    hostccl_lock();
    while (!engine.is_stopping || is_draining(&deadline_ns)) {
        const struct hostccl_plugin *plugin = hostccl_plugin_loaded();
        int said;

        take_inbox();
        said = hostccl_streams_progress() ? MOVED : 0;
        hostccl_unlock();
        said |= comms_progress();
        hostccl_lock();
        if (!engine.inbox && run_orders())
            said |= MOVED;
        if (!(said & MOVED) && engine.is_stopping && plugin)
            plugin->wait(DRAIN_WAIT_NS);
        else if (!(said & MOVED))
            sleep_until_news(said);
    }
    hostccl_unlock();
    return NULL;
}

static void at_exit(void)
{
    hostccl_engine_stop();
    hostccl_service_stop();
}

/* Lock held. */
static int start(struct crystal_error *err)
{
    static bool is_registered; /* under lock */
    int result = hostccl_fork_check(err);

    if (result || engine.is_running)
        return result;
    result = hostccl_fork_watch(err);
    if (result)
        return result;
    if (!is_registered && atexit(at_exit))
        return crystal_error_set(err, ENOMEM, "cannot register an exit handler");
    is_registered = true;
    engine.is_stopping = false;
    result = pthread_create(&engine.thread, NULL, progress, NULL);
    if (result)
        return crystal_error_set(err, result, "cannot start the progress thread: %s",
                                 strerror(result));
    engine.is_running = true;
    return 0;
}

int hostccl_engine_start(struct crystal_error *err)
{
    int result;

    hostccl_lock();
    result = start(err);
    hostccl_unlock();
    return result;
}

void hostccl_engine_stop(void)
{
    bool is_running;

    if (hostccl_fork_is_child())
        return;
    hostccl_lock();
    is_running = engine.is_running;
    engine.is_stopping = true;
    wake();
    hostccl_unlock();
    if (!is_running)
        return;
    (void)pthread_join(engine.thread, NULL);
    hostccl_lock();
    engine.is_running = false;
    hostccl_unlock();
}

void hostccl_engine_submit(struct hostccl_launch *launches)
{
    hostccl_lock();
    while (launches) {
        struct hostccl_launch *launch = launches;

        launches = launch->next;
        for (uint32_t i = 0; i < launch->stream_count; i++) {
            hostccl_stream_announce(launch->items[i].stream);
            hostccl_engine_push(&launch->items[i]);
        }
    }
    hostccl_unlock();
}

static void have_closed(ncclComm_t comm, bool is_flush, bool is_abort)
{
    struct close_order order = {.comm = comm, .is_flush = is_flush};

    hostccl_lock();
    if (engine.is_running && !engine.is_stopping) {
        if (is_abort)
            comm->is_aborting = true;
        order.next = engine.orders;
        engine.orders = &order;
        wake();
        hostccl_wait_until(&order.is_done, 1);
    }
    if (!is_flush)
        hostccl_streams_forget(comm->id);
    hostccl_unlock();
}

void hostccl_engine_flush(ncclComm_t comm)
{
    have_closed(comm, true, false);
}

void hostccl_engine_close(ncclComm_t comm, bool is_abort)
{
    have_closed(comm, false, is_abort);
}
