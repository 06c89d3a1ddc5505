/* What the driver does with launches, communicator by communicator. */
#include "config.h"

#include "replay/hostccl/launch.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/engine.h"
#include "replay/hostccl/result.h"
#include "runtime/log.h"

#include <stdlib.h>

static ncclComm_t active; /* those with work: the driver's */

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

/* Behind the others: connections send in the order in which they were given work. */
void hostccl_comm_busy(ncclComm_t comm, struct hostccl_conn *conn)
{
    if (conn->is_busy)
        return;
    conn->is_busy = true;
    conn->next_busy = NULL;
    if (!comm->busy)
        comm->last_busy = &comm->busy;
    *comm->last_busy = conn;
    comm->last_busy = &conn->next_busy;
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
            said |= HOSTCCL_MOVED;
        if (!conn->lanes) {
            *at = conn->next_busy;
            if (!*at)
                comm->last_busy = at;
            conn->is_busy = false;
            continue;
        }
        if (conn->state == HOSTCCL_CONN_JOINING)
            said |= HOSTCCL_JOINING;
        else if (conn->state == HOSTCCL_CONN_READY &&
                 (conn->is_send ? conn->first : conn->done) < conn->end)
            said |= HOSTCCL_TRANSFERS;
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
        return HOSTCCL_MOVED;
    }
    if (failed)
        abandon(comm); /* also where another thread said so */
    launch = comm->launches;
    if (!launch || launch->head_count < launch->stream_count)
        return said;
    if (failed) {
        cut_launch(comm, launch);
        end_launch(comm, failed);
        return HOSTCCL_MOVED;
    }
    return launch_progress(comm, launch) ? said | HOSTCCL_MOVED : said;
}

static void activate(ncclComm_t comm)
{
    if (comm->is_active)
        return;
    comm->is_active = true;
    comm->next_active = active;
    active = comm;
}

void hostccl_launch_add(struct hostccl_launch *launch)
{
    ncclComm_t comm = launch->comm;

    launch->next = NULL;
    *comm->last_launch = launch;
    comm->last_launch = &launch->next;
    activate(comm);
}

int hostccl_launches_progress(void)
{
    ncclComm_t *at = &active, comm;
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

void hostccl_launches_let_go(ncclComm_t comm)
{
    ncclComm_t *at = &active;

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

bool hostccl_launches_are_sending(void)
{
    for (ncclComm_t c = active; c; c = c->next_active)
        if (!c->launches && c->draining_count && !c->is_aborting)
            return true;
    return false;
}
