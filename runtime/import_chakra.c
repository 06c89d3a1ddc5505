/* Reading a Chakra execution trace: a stream of protobuf messages, of which the first
 * is about the trace and each other one a node of a graph: what, how long, behind which
 * other nodes.
 *
 * The format tells no order but that of dependencies: a node begins when the last one
 * that it is behind has ended, however many are under way. It becomes work of a stream.
 * Streams are chains of nodes that depend on each other anyway, so they add no order of
 * their own; where a trace has more chains than IMPORT_STREAMS_MAX, a stream is given
 * on to a node that begins when all on it have ended, so they add none either as long
 * as no more nodes are under way at once. A node behind a node of another stream waits
 * for an event that is recorded there. The host issues all at once. Of PyTorch's
 * communication there are two nodes, the host's call (is_cpu_op) and behind it the
 * kernel, which communicates. A converter's control dependencies name who has called a
 * node, which may end behind it, so Chakra's own feeder leaves them out; here they
 * count where a trace has no data dependencies.
 */
#include "config.h"

#include "runtime/import_chakra.h"

#include "runtime/nccl_abi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE                                                           \
    UINT64_C(0x6d65737361676573) /* in place of the hash of a pair's name \
                                  */

/* Of the streams that are through when the node begins the last one; else the first one
 * that is. */
static uint32_t stream_through(const struct chakra *c, const struct chakra_node *n)
{
    uint32_t best = 0;

    for (uint32_t s = 1; s < c->stream_count; s++) {
        uint64_t end_us = c->nodes[c->last[s]].end_us;
        uint64_t best_us = c->nodes[c->last[best]].end_us;

        if (best_us <= n->begin_us ? end_us > best_us && end_us <= n->begin_us
                                   : end_us < best_us)
            best = s;
    }
    return best;
}

/* The stream that ends with something the node is behind anyway; else a new one, as far
 * as there are any. */
static uint32_t stream_for(struct chakra *c, const struct chakra_node *n)
{
    for (size_t k = n->dep_count; k-- > 0;) {
        uint32_t dep = (uint32_t)c->deps[n->dep_first + k].id;

        if (c->last[c->nodes[dep].stream] == dep)
            return c->nodes[dep].stream;
    }
    return c->stream_count < IMPORT_STREAMS_MAX ? c->stream_count++
                                                : stream_through(c, n);
}

static uint8_t func_of(uint64_t comm_type)
{
    static const uint8_t funcs[] = {
        CRYSTAL_FUNC_ALLREDUCE, CRYSTAL_FUNC_REDUCE,        CRYSTAL_FUNC_ALLGATHER,
        CRYSTAL_FUNC_GATHER,    CRYSTAL_FUNC_SCATTER,       CRYSTAL_FUNC_BROADCAST,
        CRYSTAL_FUNC_ALLTOALL,  CRYSTAL_FUNC_REDUCESCATTER, CRYSTAL_FUNC_REDUCESCATTER,
        CRYSTAL_FUNC_ALLREDUCE};

    return comm_type < sizeof funcs ? funcs[comm_type] : CRYSTAL_FUNC_NONE;
}

/* The pair of a message: both ends name the same one. */
static uint32_t pair_group(struct import_rank *r, const struct chakra_node *n)
{
    uint32_t low = (uint32_t)(n->src < n->dst ? n->src : n->dst);
    uint32_t high = (uint32_t)(n->src < n->dst ? n->dst : n->src);
    struct import_group group = {.count = low == high ? 1 : 2,
                                 .name = MESSAGE ^ n->tag,
                                 .list = (uint64_t)low << 32 | high,
                                 .is_owner = true};
    uint32_t index = import_group_find(&r->groups, group.name, group.list), *members;

    if (index != IMPORT_NONE)
        return index;
    members = malloc(2 * sizeof *members);
    if (!members)
        return IMPORT_NONE;
    members[0] = low;
    members[1] = high;
    group.members = members;
    return import_group_add(&r->groups, &group);
}

static int communication(const struct import *m, struct import_rank *r,
                         const struct chakra_node *n, struct import_event *e)
{
    e->in = e->out = n->comm_size;
    if (n->type == CHAKRA_COLL) {
        if (!n->has_comm_type)
            return -ENOTSUP;
        e->what = IMPORT_COLL;
        e->func = func_of(n->comm_type);
        if (e->func == CRYSTAL_FUNC_NONE)
            return -EINVAL;
        e->group = import_named_find(m, r, (const char *)n->group.at,
                                     (size_t)(n->group.end - n->group.at));
        if (e->group == IMPORT_NONE)
            return -EPROTO;
        if (e->func == CRYSTAL_FUNC_REDUCESCATTER)
            e->out = n->comm_size / r->groups.rows[e->group].count;
        return 0;
    }
    if (n->src >= m->rank_count || n->dst >= m->rank_count)
        return -EPROTO;
    if ((n->type == CHAKRA_SEND ? n->src : n->dst) != r->lrank)
        return IMPORT_OTHER_RANK;
    e->what = n->type == CHAKRA_SEND ? IMPORT_SEND : IMPORT_RECV;
    e->func = n->type == CHAKRA_SEND ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV;
    e->from = (uint32_t)n->src;
    e->to = (uint32_t)n->dst;
    e->group = pair_group(r, n);
    return e->group == IMPORT_NONE ? -ENOMEM : 0;
}

/* Its waits for other streams, itself, and its event. */
static int place(struct chakra *c, const struct import *m, struct import_rank *r,
                 uint32_t index)
{
    struct chakra_node *n = &c->nodes[index];
    struct import_event e = {.what = IMPORT_KERNEL,
                             .dtype = ncclUint8,
                             .root = IMPORT_NONE,
                             .from = IMPORT_NONE,
                             .to = IMPORT_NONE,
                             .ns = n->us * 1000,
                             .name = (const char *)n->name.at,
                             .name_bytes = (size_t)(n->name.end - n->name.at)};
    int code = 0;

    n->stream = stream_for(c, n);
    e.stream = n->stream;
    for (uint32_t k = 0; !code && k < n->dep_count; k++) {
        uint32_t dep = (uint32_t)c->deps[n->dep_first + k].id;

        if (c->nodes[dep].stream != n->stream)
            code = import_ops_event(r, CRYSTAL_OP_SWAIT, n->stream, dep, 0);
    }
    if (!code && chakra_communicates(n))
        code = communication(m, r, n, &e);
    if (!code)
        code = import_ops_put(r, &e, 0);
    if (!code && n->is_recorded)
        code = import_ops_event(r, CRYSTAL_OP_RECORD, n->stream, index, 0);
    c->last[n->stream] = index;
    return code;
}

int import_chakra_read(const struct import *m, struct import_rank *r)
{
    struct chakra c = {.nodes = NULL};
    int code = chakra_nodes_read(&c, r->text, r->bytes);

    if (!code)
        code = chakra_order(&c);
    for (size_t i = 0; !code && i < c.count; i++)
        code = place(&c, m, r, c.turns[i].node);
    if (!code)
        code = import_ops_end(r);
    free(c.nodes);
    free(c.deps);
    free(c.turns);
    return code;
}
