/* Ring collectives with the steps of NCCL's ring kernels.
 *
 * A loop of the schedule (runtime/ring_schedule.h) is a row of primitives, one per
 * chunk step and one more: the first only sends, the last only receives, those between
 * receive and send. They are done in order, slice by slice, each when its message has
 * arrived and staging memory for the next hop is free:
 *
 *   AllReduce      send | receive, reduce, send (n-2) | receive, reduce, keep, send |
 *                  receive, keep, send (n-2) | receive, keep
 *   AllGather      send own block (and keep it) | receive, keep, send (n-2) | receive,
 *                  keep
 *   ReduceScatter  send | receive, reduce, send (n-2) | receive, reduce, keep
 *   Broadcast      the root sends; the others receive, keep, send; the last only keeps
 *   Reduce         the first sends; the others receive, reduce, send; the root keeps
 *
 * An average of integers is a sum that the keeper of the complete value divides. With
 * NCCL_PROTO=LL messages are packed (runtime/wire_form.h) and a chunk is one message.
 */
#include "config.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/launch.h"
#include "replay/hostccl/task.h"
#include "runtime/reduce.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What a primitive does with its slice. */
struct primitive {
    bool has_recv, has_send;
    bool has_input; /* takes part of the user's send buffer */
    bool is_final;  /* the value is complete: finish and keep it */
    bool is_kept;
};

static uint32_t primitive_count(const struct crystal_ring_op *op)
{
    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        return 2 * op->nranks - 1;
    case CRYSTAL_FUNC_ALLGATHER:
    case CRYSTAL_FUNC_REDUCESCATTER:
        return op->nranks;
    default:
        return 1;
    }
}

static bool is_chain(const struct crystal_ring_op *op)
{
    return op->func == CRYSTAL_FUNC_BROADCAST || op->func == CRYSTAL_FUNC_REDUCE;
}

/* Messages per chunk. */
static uint32_t slices_of(const struct crystal_ring_op *op)
{
    return is_chain(op) || op->proto != CRYSTAL_PROTO_SIMPLE ? 1 : 2;
}

bool hostccl_ring_is_ll(void)
{
    const char *proto = getenv("NCCL_PROTO");

    return proto && strcasecmp(proto, "ll") == 0;
}

static struct primitive primitive_of(const struct hostccl_task *task, uint32_t p)
{
    const struct crystal_ring_op *op = &task->ring;
    uint32_t last = primitive_count(op) - 1, n = op->nranks;
    struct primitive prim = {.has_recv = p > 0, .has_send = p < last};

    if (is_chain(op)) {
        prim.has_recv = task->in.total > 0;
        prim.has_send = task->out.total > 0;
    }
    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        prim.has_input = p < n;
        prim.is_final = p == n - 1;
        prim.is_kept = p >= n - 1;
        break;
    case CRYSTAL_FUNC_ALLGATHER:
        prim.has_input = p == 0;
        prim.is_kept = true;
        break;
    case CRYSTAL_FUNC_REDUCESCATTER:
        prim.has_input = true;
        prim.is_final = prim.is_kept = p == last;
        break;
    case CRYSTAL_FUNC_BROADCAST:
        prim.has_input = !prim.has_recv;
        prim.is_kept = true;
        break;
    default:
        prim.has_input = true;
        prim.is_final = prim.is_kept = !prim.has_send;
    }
    return prim;
}

static uint32_t message_bytes(const struct hostccl_task *task, int is_send, uint64_t i)
{
    struct crystal_ring_message m;

    crystal_ring_message(&task->ring, task->comm->crank, is_send, i, &m);
    return (uint32_t)crystal_form_bytes(task->ring.proto,
                                        (uint64_t)m.elts * task->ring.elt_bytes);
}

static uint32_t in_bytes(const struct hostccl_lane *lane, uint64_t i)
{
    return message_bytes(lane->owner, 0, i);
}

void hostccl_ring_begin(struct hostccl_task *task)
{
    struct ncclComm *comm = task->comm;
    struct crystal_ring_op *op = &task->ring;
    uint64_t in, out, per_loop;
    uint32_t slices, chunk;

    *op = (struct crystal_ring_op){.func = task->func,
                                   .nranks = comm->nranks,
                                   .root = task->peer,
                                   .count = task->count,
                                   .elt_bytes =
                                       (uint32_t)crystal_dtype_bytes(task->dtype),
                                   .channel_count = 1,
                                   .proto = comm->proto};
    slices = slices_of(op);
    chunk = CRYSTAL_RING_STEP_BYTES * (is_chain(op) ? 1 : 8); /* as NCCL reports it */
    in = crystal_ring_message_count(op, comm->crank, 0);
    out = crystal_ring_message_count(op, comm->crank, 1);
    per_loop = is_chain(op) ? 1 : (uint64_t)(primitive_count(op) - 1) * slices;
    task->step_count = (in > out ? in : out) / per_loop * primitive_count(op) * slices;
    task->in.bytes_of = in_bytes;
    if (out)
        hostccl_launch_open_lane(task, &task->out, comm->ring_next, out, slices, chunk);
    if (in)
        hostccl_launch_open_lane(task, &task->in, comm->ring_prev, in, slices, chunk);
}

/* Where message m's elements lie in the user's buffers. */
static const char *input_at(const struct hostccl_task *task,
                            const struct crystal_ring_message *m)
{
    uint64_t at = m->offset_elts;

    if (task->func == CRYSTAL_FUNC_ALLGATHER)
        at -= m->block * task->count;
    return (const char *)task->send + at * task->ring.elt_bytes;
}

static char *output_at(const struct hostccl_task *task,
                       const struct crystal_ring_message *m)
{
    uint64_t at = m->offset_elts;

    if (task->func == CRYSTAL_FUNC_REDUCESCATTER)
        at -= m->block * task->count;
    return (char *)task->recv + at * task->ring.elt_bytes;
}

static void copy(char *to, const char *from, size_t bytes)
{
    if (to != from && bytes)
        memcpy(to, from, bytes);
}

/* The arithmetic of one primitive; in or out may be NULL where it has none. */
static void compute(const struct hostccl_task *task, const struct primitive *prim,
                    const struct crystal_ring_message *m, const char *in, char *out)
{
    size_t bytes = (size_t)m->elts * task->ring.elt_bytes;
    char *kept = prim->is_kept ? output_at(task, m) : NULL;
    char *value = out ? out : kept;
    unsigned op = task->redop.op;

    if (!bytes)
        return;
    if (!prim->has_input) {
        copy(value, in, bytes);
    } else {
        copy(value, input_at(task, m), bytes);
        /* results: dtype and operation were checked when the task was made */
        if (op == CRYSTAL_REDOP_PREMULSUM)
            (void)crystal_reduce_scale(value, m->elts, task->dtype, task->redop.scalar);
        if (in)
            (void)crystal_reduce(value, in, m->elts, task->dtype, op);
        if (prim->is_final && op == ncclAvg)
            (void)crystal_reduce_finish_avg(value, m->elts, task->dtype,
                                            task->ring.nranks);
    }
    if (kept && kept != value)
        copy(kept, value, bytes);
}

/* The same for messages in another form than Simple: in room that the communicator has
 * for it. */
static void compute_packed(struct hostccl_task *task, const struct primitive *prim,
                           const struct crystal_ring_message *m, const char *in,
                           char *out)
{
    const struct crystal_ring_op *op = &task->ring;
    uint64_t bytes = (uint64_t)m->elts * op->elt_bytes;
    char *in_room = task->comm->room;
    char *out_room = in_room + crystal_form_step_bytes(op->proto);

    if (in)
        crystal_form_unpack(op->proto, in, bytes, in_room);
    compute(task, prim, m, in ? in_room : NULL, out ? out_room : NULL);
    if (out)
        crystal_form_pack(op->proto, hostccl_lane_step(&task->out), out_room, bytes,
                          out);
}

/* One slice of one primitive, if it can be done now. */
static bool do_step(struct hostccl_task *task)
{
    uint32_t slices = slices_of(&task->ring);
    uint32_t p = (uint32_t)(task->step / slices % primitive_count(&task->ring));
    struct primitive prim = primitive_of(task, p);
    struct crystal_ring_message m;
    const char *in = NULL;
    char *out = NULL;
    uint32_t bytes;

    if (prim.has_recv && !(in = hostccl_lane_message(&task->in, &bytes)))
        return false;
    if (prim.has_send && !(out = hostccl_lane_slot(&task->out)))
        return false;
    if (prim.has_recv)
        crystal_ring_message(&task->ring, task->comm->crank, 0, task->in.ended, &m);
    else
        crystal_ring_message(&task->ring, task->comm->crank, 1, task->out.begun, &m);
    bytes = m.elts * task->ring.elt_bytes;
    if (task->ring.proto)
        compute_packed(task, &prim, &m, in, out);
    else
        compute(task, &prim, &m, in, out);
    if (prim.has_send)
        hostccl_lane_fill(&task->out,
                          (uint32_t)crystal_form_bytes(task->ring.proto, bytes));
    if (prim.has_recv)
        hostccl_lane_release(&task->in);
    task->step++;
    return true;
}

int hostccl_ring_progress(struct hostccl_task *task, bool *ret_done)
{
    int moved = 0;

    while (task->step < task->step_count && do_step(task))
        moved = 1;
    *ret_done = task->step == task->step_count;
    return moved;
}

void hostccl_ring_alone(struct hostccl_task *task)
{
    size_t bytes = task->count * crystal_dtype_bytes(task->dtype);

    if (!bytes)
        return;
    if (task->recv != task->send)
        memmove(task->recv, task->send, bytes);
    if (task->redop.op == CRYSTAL_REDOP_PREMULSUM &&
        task->func != CRYSTAL_FUNC_ALLGATHER && task->func != CRYSTAL_FUNC_BROADCAST)
        (void)crystal_reduce_scale(task->recv, task->count, task->dtype,
                                   task->redop.scalar);
}
