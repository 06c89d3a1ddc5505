/* What an open job.graph holds. See graph.h; graph_open.c has checked it all. */
#include "config.h"

#include "runtime/graph_internal.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

uint32_t crystal_graph_lrank_count(const struct crystal_graph *g)
{
    return g->head->lrank_count;
}

uint64_t crystal_graph_fingerprint(const struct crystal_graph *g)
{
    return g->view.head->fingerprint;
}

const void *crystal_graph_body(const struct crystal_graph *g, uint64_t *ret_bytes)
{
    *ret_bytes = g->view.body_bytes;
    return g->view.body;
}

uint64_t crystal_graph_hash(const struct crystal_graph *g)
{
    return g->view.head->body_hash;
}

uint64_t crystal_graph_parent(const struct crystal_graph *g)
{
    return g->view.head->parent_hash;
}

uint32_t crystal_graph_rep_count(const struct crystal_graph *g)
{
    return g->head->rep_count;
}

uint32_t crystal_graph_rep_lrank(const struct crystal_graph *g, uint32_t rep)
{
    return g->reps[rep].lrank;
}

uint32_t crystal_graph_rep_of(const struct crystal_graph *g, uint32_t lrank)
{
    return g->ranks[lrank].rep;
}

const struct crystal_op *crystal_graph_ops(const struct crystal_graph *g, uint32_t rep,
                                           uint64_t *ret_count)
{
    *ret_count = g->reps[rep].op_count;
    return g->ops + g->reps[rep].op_first;
}

const uint64_t *crystal_graph_marks(const struct crystal_graph *g, uint32_t rep,
                                    uint32_t *ret_count)
{
    *ret_count = g->reps[rep].mark_count;
    return g->marks + g->reps[rep].mark_first;
}

int crystal_graph_is_measured(const struct crystal_graph *g)
{
    return g->form == CRYSTAL_GRAPH_VERSION_DEVICE;
}

const char *crystal_graph_label(const struct crystal_graph *g,
                                const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_KERNEL && op->aux ? g->names + op->aux - 1 : NULL;
}

int crystal_graph_network(const struct crystal_graph *g,
                          struct crystal_graph_network *ret)
{
    const struct crystal_graph_head *h = g->head;

    if (!h->ranks_per_node)
        return 0;
    *ret =
        (struct crystal_graph_network){h->ranks_per_node, h->bytes_per_s, h->latency_ns,
                                       h->node_bytes_per_s, h->node_latency_ns};
    return 1;
}

uint32_t crystal_graph_comm_count(const struct crystal_graph *g)
{
    return g->head->comm_count;
}

void crystal_graph_comm(const struct crystal_graph *g, uint32_t comm,
                        struct crystal_graph_comm *ret)
{
    const struct crystal_graph_set *c = &g->comms[comm];

    ret->name = c->name == CRYSTAL_GRAPH_NONE ? NULL : g->names + c->name;
    ret->nranks = c->nranks;
    ret->members = g->members + c->member_first;
}

uint32_t crystal_graph_local_count(const struct crystal_graph *g, uint32_t lrank)
{
    return g->reps[g->ranks[lrank].rep].local_count;
}

uint32_t crystal_graph_comm_of(const struct crystal_graph *g, uint32_t lrank,
                               uint32_t local)
{
    return g->map[g->ranks[lrank].map_first + local];
}

uint32_t crystal_graph_crank_of(const struct crystal_graph *g, uint32_t comm,
                                uint32_t lrank)
{
    const struct crystal_graph_set *c = &g->comms[comm];
    const uint32_t *m = g->members + c->member_first;
    uint32_t low = 0, high = c->nranks;

    while (low < high) { /* members are nearly always in rank order */
        uint32_t middle = low + (high - low) / 2;

        if (m[middle] < lrank)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < c->nranks && m[low] == lrank)
        return low;
    for (uint32_t k = 0; k < c->nranks; k++)
        if (m[k] == lrank)
            return k;
    return UINT32_MAX;
}

static uint32_t dp_of(const struct crystal_graph *g, uint32_t lrank)
{
    return lrank / g->head->dp_stride % g->head->dp_size;
}

/* Crank of the member that stands in dp where crank stands, `by` replicas further on
 * among those that the communicator spans. */
static uint32_t rotate(const struct crystal_graph *g, uint32_t comm, uint32_t crank,
                       uint32_t by)
{
    const struct crystal_graph_set *c = &g->comms[comm];
    uint32_t lrank = g->members[c->member_first + crank], dp = dp_of(g, lrank);
    uint32_t index, to, moved;

    if (!by || c->dp_count < 2)
        return crank;
    index = (dp - c->dp_first) / c->dp_step;
    to = c->dp_first + (index + by) % c->dp_count * c->dp_step;
    moved = crystal_graph_crank_of(
        g, comm, lrank + to * g->head->dp_stride - dp * g->head->dp_stride);
    return moved == UINT32_MAX ? crank : moved;
}

/* How many replicas lrank stands behind its representative, counted in the replicas
 * that the communicator spans; 0 where the communicator was moved as a whole. */
static uint32_t distance(const struct crystal_graph *g, uint32_t comm, uint32_t lrank,
                         uint32_t rep_lrank)
{
    const struct crystal_graph_set *c = &g->comms[comm];

    if (c->dp_count < 2 || lrank == rep_lrank ||
        crystal_graph_crank_of(g, comm, rep_lrank) == UINT32_MAX)
        return 0;
    return ((dp_of(g, lrank) - c->dp_first) / c->dp_step + c->dp_count -
            (dp_of(g, rep_lrank) - c->dp_first) / c->dp_step) %
           c->dp_count;
}

uint32_t crystal_graph_peer_of(const struct crystal_graph *g, uint32_t lrank,
                               uint32_t local, uint32_t peer)
{
    uint32_t comm = crystal_graph_comm_of(g, lrank, local);
    uint32_t rep_lrank = g->reps[g->ranks[lrank].rep].lrank;

    return rotate(g, comm, peer, distance(g, comm, lrank, rep_lrank));
}

static bool is_comm(const struct crystal_graph *g, uint32_t comm, uint32_t nranks,
                    const uint32_t *members)
{
    const struct crystal_graph_set *c = &g->comms[comm];

    return c->nranks == nranks &&
           memcmp(g->members + c->member_first, members, nranks * sizeof *members) == 0;
}

uint32_t crystal_graph_comm_find(const struct crystal_graph *g, const char *name,
                                 uint32_t nranks, const uint32_t *members, uint32_t nth)
{
    for (uint32_t i = 0; name && i < g->head->comm_count; i++)
        if (g->comms[i].name != CRYSTAL_GRAPH_NONE &&
            strcmp(g->names + g->comms[i].name, name) == 0 &&
            is_comm(g, i, nranks, members))
            return i;
    for (uint32_t i = 0; i < g->head->comm_count; i++)
        if (is_comm(g, i, nranks, members) && nth-- == 0)
            return i;
    return UINT32_MAX;
}

/* The representative's local communicator behind (comm, lrank), or NULL. */
static const struct crystal_graph_local *local_of(const struct crystal_graph *g,
                                                  uint32_t comm, uint32_t lrank)
{
    const struct crystal_graph_rank *rank = &g->ranks[lrank];
    const struct crystal_graph_rep *rep = &g->reps[rank->rep];

    for (uint32_t i = 0; i < rep->local_count; i++)
        if (g->map[rank->map_first + i] == comm)
            return &g->locals[rep->local_first + i];
    return NULL;
}

static int contribution(const struct crystal_graph *g, uint64_t payload, uint64_t bytes,
                        const void **ret, uint64_t *ret_bytes)
{
    if (payload == CRYSTAL_GRAPH_NONE)
        return 0;
    *ret = g->payload + payload;
    *ret_bytes = bytes;
    return 1;
}

int crystal_graph_payload(const struct crystal_graph *g, uint32_t comm, uint64_t seq,
                          uint32_t crank, const void **ret, uint64_t *ret_bytes)
{
    const struct crystal_graph_local *l;
    const struct crystal_graph_coll *coll;

    if (comm >= g->head->comm_count || crank >= g->comms[comm].nranks)
        return -ERANGE;
    l = local_of(g, comm, g->members[g->comms[comm].member_first + crank]);
    if (!l || seq >= l->coll_count)
        return -ERANGE;
    coll = &g->colls[l->coll_first + seq];
    return contribution(g, coll->payload, coll->bytes, ret, ret_bytes);
}

uint64_t crystal_graph_seq_repeat(const struct crystal_graph *g, uint32_t comm,
                                  uint64_t seq, uint32_t crank)
{
    const struct crystal_graph_local *l;

    if (comm >= g->head->comm_count || crank >= g->comms[comm].nranks)
        return seq;
    l = local_of(g, comm, g->members[g->comms[comm].member_first + crank]);
    if (!l || !l->last_count || seq < l->last_first + l->last_count)
        return seq;
    return l->last_first + (seq - l->last_first) % l->last_count;
}

int crystal_graph_p2p_payload(const struct crystal_graph *g, uint32_t comm,
                              uint32_t from, uint32_t to, uint64_t seq,
                              const void **ret, uint64_t *ret_bytes)
{
    const struct crystal_graph_local *l;
    const struct crystal_graph_send *sends;
    uint32_t lrank, by, peer;
    uint64_t low = 0, high;

    if (comm >= g->head->comm_count || from >= g->comms[comm].nranks ||
        to >= g->comms[comm].nranks)
        return -ERANGE;
    lrank = g->members[g->comms[comm].member_first + from];
    l = local_of(g, comm, lrank);
    if (!l)
        return -ERANGE;
    by = distance(g, comm, lrank, g->reps[g->ranks[lrank].rep].lrank);
    peer = by ? rotate(g, comm, to, g->comms[comm].dp_count - by) : to;
    sends = g->sends + l->send_first;
    for (high = l->send_count; low < high;) {
        uint64_t middle = low + (high - low) / 2;

        if (sends[middle].peer < peer)
            low = middle + 1;
        else
            high = middle;
    }
    if (seq >= l->send_count - low || sends[low + seq].peer != peer)
        return -ERANGE;
    return contribution(g, sends[low + seq].payload, sends[low + seq].bytes, ret,
                        ret_bytes);
}

void crystal_graph_stat(const struct crystal_graph *g, struct crystal_graph_stat *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->file_bytes = g->view.head->file_bytes;
    ret->op_count = g->head->op_count;
    ret->payload_bytes = g->head->payload_bytes;
    for (uint64_t i = 0; i < g->head->coll_count; i++)
        ret->payload_count += g->colls[i].payload != CRYSTAL_GRAPH_NONE;
    for (uint64_t i = 0; i < g->head->send_count; i++)
        ret->payload_count += g->sends[i].payload != CRYSTAL_GRAPH_NONE;
    for (uint32_t i = 0; i < g->head->rep_count; i++)
        if (g->reps[i].mark_count)
            ret->iteration_count = g->reps[i].mark_count - 1;
}
