/* Connections: joining, staging memory, messages in order. */
#include "config.h"

#include "replay/hostccl/conn.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/result.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STAGING_BYTES ((size_t)HOSTCCL_STEPS * HOSTCCL_STEP_BYTES)

struct hostccl_conn *hostccl_conn_create(struct ncclComm *comm, uint32_t peer,
                                         bool is_send, struct crystal_error *err)
{
    struct hostccl_conn *conn = calloc(1, sizeof *conn);

    if (conn)
        conn->staging = mmap(NULL, STAGING_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!conn || conn->staging == MAP_FAILED) {
        free(conn);
        (void)crystal_error_set(err, ENOMEM, "no memory to stage messages");
        return NULL;
    }
    conn->comm = comm;
    conn->peer = peer;
    conn->is_send = is_send;
    conn->last_lane = &conn->lanes;
    return conn;
}

void hostccl_conn_destroy(struct hostccl_conn *conn)
{
    const ncclNet_v11_t *net;

    if (!conn)
        return;
    net = conn->comm->plugin->net;
    /* results of closing: there is nothing left to be done about a failure */
    if (conn->mr)
        (void)net->deregMr(conn->net, conn->mr);
    if (conn->net)
        (void)(conn->is_send ? net->closeSend(conn->net) : net->closeRecv(conn->net));
    if (conn->listener)
        (void)net->closeListen(conn->listener);
    (void)munmap(conn->staging, STAGING_BYTES);
    free(conn);
}

static int fail(struct hostccl_conn *conn, struct crystal_error *err, const char *what,
                ncclResult_t result)
{
    conn->state = HOSTCCL_CONN_DEAD;
    return crystal_error_set(err, result == ncclRemoteError ? ECONNRESET : EIO,
                             "the net plugin cannot %s rank %u (%s)", what, conn->peer,
                             hostccl_result_text(result));
}

int hostccl_conn_entry(struct hostccl_conn *conn, struct hostccl_entry *ret_entry,
                       struct crystal_error *err)
{
    struct ncclComm *comm = conn->comm;
    ncclResult_t result;

    memset(ret_entry, 0, sizeof *ret_entry);
    conn->state = HOSTCCL_CONN_ASKED;
    if (conn->is_send) {
        ret_entry->proxy_crank = (int32_t)comm->crank;
        return 0;
    }
    result = comm->plugin->net->listen(comm->net_context, comm->net_device,
                                       ret_entry->handle, &conn->listener);
    if (result != ncclSuccess || !conn->listener)
        return fail(conn, err, "listen for", result);
    return 0;
}

int hostccl_conn_join(struct hostccl_conn *conn, struct crystal_error *err)
{
    struct ncclComm *comm = conn->comm;
    const ncclNet_v11_t *net = comm->plugin->net;
    void *device_comm = NULL;
    ncclResult_t result;

    if (conn->is_send)
        result = net->connect(comm->net_context, comm->net_device, conn->mail.handle,
                              &conn->net, &device_comm);
    else
        result = net->accept(conn->listener, &conn->net, &device_comm);
    if (result != ncclSuccess)
        return fail(conn, err, conn->is_send ? "connect to" : "accept", result);
    if (!conn->net)
        return 0;
    if (conn->listener) {
        (void)net->closeListen(conn->listener); /* it has served */
        conn->listener = NULL;
    }
    result =
        net->regMr(conn->net, conn->staging, STAGING_BYTES, NCCL_PTR_HOST, &conn->mr);
    if (result != ncclSuccess)
        return fail(conn, err, "register memory for", result);
    conn->state = HOSTCCL_CONN_READY;
    return 1;
}

void hostccl_lane_open(struct hostccl_lane *lane, struct hostccl_conn *conn,
                       uint64_t message_count, uint32_t steps, void *task_event,
                       uint32_t chunk_bytes)
{
    lane->next = NULL;
    lane->conn = conn;
    lane->total = message_count;
    lane->begun = lane->ended = 0;
    lane->steps = steps;
    lane->is_open = true;
    lane->event = hostccl_profile_op_start(&conn->comm->profile, task_event, conn->peer,
                                           conn->is_send, message_count, chunk_bytes);
    *conn->last_lane = lane;
    conn->last_lane = &lane->next;
    hostccl_comm_busy(conn->comm, conn);
}

/* The lane whose messages come next, NULL where none has any left. */
static struct hostccl_lane *beginning_lane(const struct hostccl_conn *conn)
{
    struct hostccl_lane *lane = conn->lanes;

    while (lane && lane->begun == lane->total)
        lane = lane->next;
    return lane;
}

static struct hostccl_message *message_at(struct hostccl_conn *conn, uint64_t number)
{
    return &conn->window[number % HOSTCCL_STEPS];
}

static char *place_of(const struct hostccl_conn *conn, uint64_t step)
{
    return conn->staging + (step % HOSTCCL_STEPS) * HOSTCCL_STEP_BYTES;
}

/* The step at which the next message of lane would stand, or UINT64_MAX where it has no
 * room yet. */
static uint64_t free_step(struct hostccl_conn *conn, const struct hostccl_lane *lane)
{
    uint64_t step = (conn->next_step + lane->steps - 1) / lane->steps * lane->steps;

    if (conn->first == conn->end)
        return step;
    if (conn->end - conn->first == HOSTCCL_STEPS ||
        step + lane->steps - message_at(conn, conn->first)->step > HOSTCCL_STEPS)
        return UINT64_MAX;
    return step;
}

static struct hostccl_message *begin_message(struct hostccl_conn *conn,
                                             struct hostccl_lane *lane, uint64_t step,
                                             uint32_t bytes)
{
    struct hostccl_message *m = message_at(conn, conn->end);

    *m = (struct hostccl_message){.lane = lane, .step = step, .bytes = bytes};
    m->phandle.profile = &conn->comm->profile;
    m->phandle.step =
        hostccl_profile_step_start(&conn->comm->profile, lane->event, lane->begun);
    conn->end++;
    conn->next_step = step + lane->steps;
    lane->begun++;
    return m;
}

static void end_message(struct hostccl_conn *conn)
{
    struct hostccl_message *m = message_at(conn, conn->first);
    struct hostccl_lane *lane = m->lane;
    const struct hostccl_profile *profile = &conn->comm->profile;

    hostccl_profile_stop(profile, m->phandle.step);
    conn->first++;
    if (++lane->ended < lane->total)
        return;
    conn->lanes = lane->next;
    if (!conn->lanes)
        conn->last_lane = &conn->lanes;
    hostccl_profile_stop(profile, lane->event);
    lane->is_open = false;
    if (lane->closed)
        lane->closed(lane);
}

void *hostccl_lane_slot(struct hostccl_lane *lane)
{
    struct hostccl_conn *conn = lane->conn;
    uint64_t step;

    if (beginning_lane(conn) != lane)
        return NULL;
    step = free_step(conn, lane);
    return step == UINT64_MAX ? NULL : place_of(conn, step);
}

uint64_t hostccl_lane_step(struct hostccl_lane *lane)
{
    return free_step(lane->conn, lane);
}

void hostccl_lane_fill(struct hostccl_lane *lane, uint32_t bytes)
{
    (void)begin_message(lane->conn, lane, free_step(lane->conn, lane), bytes);
}

const void *hostccl_lane_message(struct hostccl_lane *lane, uint32_t *ret_bytes)
{
    struct hostccl_conn *conn = lane->conn;
    const struct hostccl_message *m = message_at(conn, conn->first);

    if (conn->first == conn->done || m->lane != lane)
        return NULL;
    *ret_bytes = m->bytes;
    return place_of(conn, m->step);
}

void hostccl_lane_release(struct hostccl_lane *lane)
{
    end_message(lane->conn);
}

/* 1 posted, 0 the plugin is busy. */
static int post_send(struct hostccl_conn *conn, struct hostccl_message *m,
                     struct crystal_error *err)
{
    const struct ncclComm *comm = conn->comm;
    ncclResult_t result =
        comm->plugin->net->isend(conn->net, place_of(conn, m->step), m->bytes,
                                 (int)comm->crank, conn->mr, &m->phandle, &m->request);

    if (result != ncclSuccess)
        return fail(conn, err, "send to", result);
    return m->request != NULL;
}

static int progress_send(struct hostccl_conn *conn, struct crystal_error *err)
{
    const ncclNet_v11_t *net = conn->comm->plugin->net;
    int moved = 0;

    while (conn->posted < conn->end) {
        int result;

        conn->comm->plugin->more(conn->posted + 1 < conn->end);
        result = post_send(conn, message_at(conn, conn->posted), err);
        if (result < 0)
            return result;
        if (!result)
            break;
        conn->posted++;
        moved = 1;
    }
    while (conn->first < conn->posted) {
        int done = 0, bytes = 0;
        ncclResult_t result =
            net->test(message_at(conn, conn->first)->request, &done, &bytes);

        if (result != ncclSuccess)
            return fail(conn, err, "send to", result);
        if (!done)
            break;
        end_message(conn);
        moved = 1;
    }
    return moved;
}

static int post_recv(struct hostccl_conn *conn, struct hostccl_message *m,
                     struct crystal_error *err)
{
    void *data = place_of(conn, m->step), *phandle = &m->phandle;
    size_t bytes = m->bytes;
    int tag = (int)conn->peer;
    ncclResult_t result = conn->comm->plugin->net->irecv(
        conn->net, 1, &data, &bytes, &tag, &conn->mr, &phandle, &m->request);

    if (result != ncclSuccess)
        return fail(conn, err, "receive from", result);
    return m->request != NULL;
}

/* Receives are begun and posted in one go; a busy plugin leaves one begun: it is
 * [posted, end). */
static int post_recvs(struct hostccl_conn *conn, struct crystal_error *err)
{
    int moved = 0;

    for (;;) {
        struct hostccl_lane *lane;
        int result;

        if (conn->posted == conn->end) {
            uint64_t step;

            lane = beginning_lane(conn);
            if (!lane)
                return moved;
            step = free_step(conn, lane);
            if (step == UINT64_MAX)
                return moved;
            (void)begin_message(conn, lane, step, lane->bytes_of(lane, lane->begun));
        }
        result = post_recv(conn, message_at(conn, conn->posted), err);
        if (result <= 0)
            return result < 0 ? result : moved;
        conn->posted++;
        moved = 1;
    }
}

static int progress_recv(struct hostccl_conn *conn, struct crystal_error *err)
{
    const ncclNet_v11_t *net = conn->comm->plugin->net;
    int moved = post_recvs(conn, err);

    if (moved < 0)
        return moved;
    while (conn->done < conn->posted) {
        struct hostccl_message *m = message_at(conn, conn->done);
        int done = 0, bytes = 0;
        ncclResult_t result = net->test(m->request, &done, &bytes);

        if (result != ncclSuccess)
            return fail(conn, err, "receive from", result);
        if (!done)
            break;
        if ((uint32_t)bytes != m->bytes) {
            conn->state = HOSTCCL_CONN_DEAD;
            return crystal_error_set(err, EPROTO,
                                     "rank %u sent %d bytes where %u were due; all "
                                     "ranks must call with the same count and type",
                                     conn->peer, bytes, m->bytes);
        }
        conn->done++;
        moved = 1;
    }
    return moved;
}

int hostccl_conn_progress(struct hostccl_conn *conn, struct crystal_error *err)
{
    if (conn->state != HOSTCCL_CONN_READY)
        return 0;
    return conn->is_send ? progress_send(conn, err) : progress_recv(conn, err);
}

void hostccl_conn_abandon(struct hostccl_conn *conn)
{
    conn->state = HOSTCCL_CONN_DEAD;
    while (conn->first < conn->end) {
        hostccl_profile_stop(&conn->comm->profile,
                             message_at(conn, conn->first)->phandle.step);
        conn->first++;
    }
    while (conn->lanes) {
        struct hostccl_lane *lane = conn->lanes;

        conn->lanes = lane->next;
        hostccl_profile_stop(&conn->comm->profile, lane->event);
        lane->is_open = false;
        if (lane->closed)
            lane->closed(lane);
    }
    conn->last_lane = &conn->lanes;
}
