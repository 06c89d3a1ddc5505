/* All-reduce over NCCL's double binary tree (runtime/tree_schedule.h), where NCCL_ALGO
 * asks for it.
 *
 * Chunk by chunk, two movements that follow each other: up, a rank reduces its own
 * chunk with those of its children, in the order of the schedule, for its parent; down,
 * it keeps the parent's chunk and passes it to its children. The root turns one into
 * the other. A communicator has one channel here, which is of the first tree; the
 * second one needs a second.
 */
#include "config.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/launch.h"
#include "replay/hostccl/task.h"
#include "runtime/reduce.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool hostccl_tree_is_wanted(void)
{
    const char *algo = getenv("NCCL_ALGO");

    return algo && strcasecmp(algo, "tree") == 0;
}

struct crystal_tree_op hostccl_tree_op(const struct ncclComm *comm)
{
    return (struct crystal_tree_op){.nranks = comm->nranks,
                                    .ranks_per_node = 1,
                                    .shape = CRYSTAL_TREE_SINGLE,
                                    .half = 1,
                                    .elt_bytes = 1,
                                    .channel_count = 1,
                                    .proto = CRYSTAL_PROTO_SIMPLE};
}

static struct crystal_tree_op op_of(const struct hostccl_task *task)
{
    struct crystal_tree_op op = hostccl_tree_op(task->comm);

    op.count = task->count;
    op.elt_bytes = (uint32_t)crystal_dtype_bytes(task->dtype);
    return op;
}

static uint32_t chunk_bytes(const struct hostccl_lane *lane, uint64_t i)
{
    const struct hostccl_task *task = lane->owner;
    struct crystal_tree_op op = op_of(task);
    struct crystal_tree_message m;

    crystal_tree_message(&op, i, &m);
    return m.elts * op.elt_bytes;
}

void hostccl_tree_begin(struct hostccl_task *task)
{
    struct ncclComm *comm = task->comm;
    struct crystal_tree_op op = op_of(task);
    struct hostccl_tree *tree = &task->tree;

    tree->total = crystal_tree_message_count(&op);
    tree->up = tree->down = 0;
    tree->has_parent = comm->tree[0].send != NULL;
    tree->child_count = 0;
    while (tree->child_count < CRYSTAL_TREE_ARITY &&
           comm->tree[1 + tree->child_count].send)
        tree->child_count++;
    for (uint32_t i = tree->has_parent ? 0 : 1; i <= tree->child_count; i++) {
        tree->in[i].bytes_of = chunk_bytes;
        hostccl_launch_open_lane(task, &tree->out[i], comm->tree[i].send, tree->total,
                                 1, CRYSTAL_RING_STEP_BYTES);
        hostccl_launch_open_lane(task, &tree->in[i], comm->tree[i].recv, tree->total, 1,
                                 CRYSTAL_RING_STEP_BYTES);
    }
}

/* The chunk of every child is there (up), or there is room for every child (down). */
static bool are_children_ready(struct hostccl_tree *tree, bool is_up)
{
    uint32_t bytes;

    for (uint32_t i = 1; i <= tree->child_count; i++)
        if (is_up ? !hostccl_lane_message(&tree->in[i], &bytes)
                  : !hostccl_lane_slot(&tree->out[i]))
            return false;
    return true;
}

/* Own chunk and the children's, into value. */
static void reduce(struct hostccl_task *task, const struct crystal_tree_message *m,
                   char *value)
{
    size_t element = crystal_dtype_bytes(task->dtype), bytes = m->elts * element;
    const char *own = (const char *)task->send + m->offset_elts * element;
    unsigned op = task->redop.op;
    uint32_t got;

    if (value != own)
        memcpy(value, own, bytes);
    /* results: dtype and operation were checked when the task was made */
    if (op == CRYSTAL_REDOP_PREMULSUM)
        (void)crystal_reduce_scale(value, m->elts, task->dtype, task->redop.scalar);
    for (uint32_t i = 1; i <= task->tree.child_count; i++) {
        (void)crystal_reduce(value, hostccl_lane_message(&task->tree.in[i], &got),
                             m->elts, task->dtype, op);
        hostccl_lane_release(&task->tree.in[i]);
    }
}

/* Gives a complete chunk to the children. */
static void pass_down(struct hostccl_tree *tree, const char *value, uint32_t bytes)
{
    for (uint32_t i = 1; i <= tree->child_count; i++) {
        memcpy(hostccl_lane_slot(&tree->out[i]), value, bytes);
        hostccl_lane_fill(&tree->out[i], bytes);
    }
}

/* The next chunk up, at the root up and down. */
static bool do_up(struct hostccl_task *task)
{
    struct hostccl_tree *tree = &task->tree;
    struct crystal_tree_op op = op_of(task);
    struct crystal_tree_message m;
    char *slot = NULL, *kept;
    uint32_t bytes;

    if (tree->up == tree->total || !are_children_ready(tree, true))
        return false;
    if (tree->has_parent ? !(slot = hostccl_lane_slot(&tree->out[0]))
                         : !are_children_ready(tree, false))
        return false;
    crystal_tree_message(&op, tree->up, &m);
    bytes = m.elts * op.elt_bytes;
    if (slot) {
        reduce(task, &m, slot);
        hostccl_lane_fill(&tree->out[0], bytes);
        tree->up++;
        return true;
    }
    kept = (char *)task->recv + m.offset_elts * op.elt_bytes;
    reduce(task, &m, kept);
    if (task->redop.op == ncclAvg)
        (void)crystal_reduce_finish_avg(kept, m.elts, task->dtype, task->comm->nranks);
    pass_down(tree, kept, bytes);
    tree->up++;
    tree->down++;
    return true;
}

static bool do_down(struct hostccl_task *task)
{
    struct hostccl_tree *tree = &task->tree;
    struct crystal_tree_op op = op_of(task);
    struct crystal_tree_message m;
    const char *value;
    uint32_t bytes;

    if (!tree->has_parent || tree->down == tree->total ||
        !(value = hostccl_lane_message(&tree->in[0], &bytes)) ||
        !are_children_ready(tree, false))
        return false;
    crystal_tree_message(&op, tree->down, &m);
    memcpy((char *)task->recv + m.offset_elts * op.elt_bytes, value, bytes);
    pass_down(tree, value, bytes);
    hostccl_lane_release(&tree->in[0]);
    tree->down++;
    return true;
}

int hostccl_tree_progress(struct hostccl_task *task, bool *ret_done)
{
    int moved = 0;
    bool is_up = true, is_down = true;

    while (is_up || is_down) {
        is_up = do_up(task);
        is_down = do_down(task);
        moved |= is_up || is_down;
    }
    *ret_done = task->tree.down == task->tree.total;
    return moved;
}
