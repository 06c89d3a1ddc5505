/* Sends and receives: a transfer is a row of chunks of CRYSTAL_P2P_CHUNK_BYTES, at
 * least one (which may be empty). Transfers to the same peer follow each other. */
#include "config.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/launch.h"
#include "replay/hostccl/task.h"

#include <string.h>

static uint64_t total_bytes(const struct hostccl_task *task)
{
    return task->count * crystal_dtype_bytes(task->dtype);
}

static uint32_t chunk_bytes(const struct hostccl_task *task, uint64_t i)
{
    uint64_t left = total_bytes(task) - i * CRYSTAL_P2P_CHUNK_BYTES;

    return left < CRYSTAL_P2P_CHUNK_BYTES ? (uint32_t)left : CRYSTAL_P2P_CHUNK_BYTES;
}

static uint32_t in_bytes(const struct hostccl_lane *lane, uint64_t i)
{
    return chunk_bytes(lane->owner, i);
}

static uint64_t chunk_count(const struct hostccl_task *task)
{
    uint64_t bytes = total_bytes(task);

    return bytes ? (bytes - 1) / CRYSTAL_P2P_CHUNK_BYTES + 1 : 1;
}

void hostccl_p2p_begin(struct hostccl_task *task)
{
    struct ncclComm *comm = task->comm;
    bool is_send = task->func == CRYSTAL_FUNC_SEND;
    struct hostccl_lane *lane = is_send ? &task->out : &task->in;

    if (task->peer == comm->crank) {
        if (is_send && total_bytes(task))
            memmove(task->self->recv, task->send, total_bytes(task));
        return;
    }
    lane->bytes_of = in_bytes;
    hostccl_launch_open_lane(task, lane,
                             is_send ? comm->peers[task->peer].send
                                     : comm->peers[task->peer].recv,
                             chunk_count(task), 1, CRYSTAL_P2P_CHUNK_BYTES);
}

int hostccl_p2p_progress(struct hostccl_task *task, bool *ret_done)
{
    const char *in;
    char *out;
    uint32_t bytes;
    int moved = 0;

    if (task->peer == task->comm->crank) {
        *ret_done = true;
        return 0;
    }
    if (task->func == CRYSTAL_FUNC_SEND) {
        while (task->out.begun < task->out.total &&
               (out = hostccl_lane_slot(&task->out))) {
            bytes = chunk_bytes(task, task->out.begun);
            if (bytes)
                memcpy(out,
                       (const char *)task->send +
                           task->out.begun * CRYSTAL_P2P_CHUNK_BYTES,
                       bytes);
            hostccl_lane_fill(&task->out, bytes);
            moved = 1;
        }
        *ret_done = task->out.begun == task->out.total;
        return moved;
    }
    while (task->in.ended < task->in.total &&
           (in = hostccl_lane_message(&task->in, &bytes))) {
        if (bytes)
            memcpy((char *)task->recv + task->in.ended * CRYSTAL_P2P_CHUNK_BYTES, in,
                   bytes);
        hostccl_lane_release(&task->in);
        moved = 1;
    }
    *ret_done = task->in.ended == task->in.total;
    return moved;
}
