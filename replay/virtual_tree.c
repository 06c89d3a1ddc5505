/* Trees with virtual neighbours. See virtual_tree.h. Only what goes up to a virtual
 * parent is kept, from its first message to the last that comes down again. */
#include "config.h"

#include "replay/virtual_tree.h"

#include "replay/net.h"
#include "replay/net_payload.h"
#include "replay/net_wait.h"
#include "runtime/reduce.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NODE_NONE UINT32_MAX

enum side { SIDE_PARENT = 0, SIDE_CHILD0, SIDE_CHILD1, SIDE_OWN };

/* What this rank sent to its parent and has not got back. */
struct up_message {
    struct up_message *next;
    uint64_t index, started_ns;
    uint64_t wire_bytes;
    unsigned char data[]; /* as on the wire; none where it is not asked for */
};

struct tree_line {
    struct tree_line *next;
    uint64_t seq;
    uint32_t channel;
    struct up_message *first;
    uint64_t taken; /* messages that came back down */
};

/* Where every node stands as seen from here, in one of the trees. */
struct tree_view {
    uint32_t up, down[2]; /* nodes next to this one, NODE_NONE where there is none */
    uint8_t *side;        /* [nodes], owned */
    uint8_t *depth;       /* [nodes], owned */
};

struct crystal_trees {
    struct crystal_net_comm *comm;
    uint32_t nodes, node, graph_channels;
    uint32_t *node_of; /* by crank, owned */
    const uint8_t *is_real;
    struct tree_view views[2];
    pthread_mutex_t lock; /* the lines and what follows */
    struct tree_line *first;
    int is_waited;
    pthread_t waiter;
};

/* --- the tree as seen from here --- */

/* Nodes are numbered in the order in which their first rank stands. */
static int number_nodes(struct crystal_trees *t, const uint32_t *members,
                        uint32_t per_node, uint32_t lrank_count)
{
    uint32_t *known = calloc(lrank_count / per_node + 1, sizeof *known);

    if (!known)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->comm->nranks; i++) {
        uint32_t *number = &known[members[i] / per_node];

        if (!*number)
            *number = ++t->nodes;
        t->node_of[i] = *number - 1;
    }
    t->node = t->node_of[t->comm->crank];
    free(known);
    return 0;
}

/* The tree of nodes is a tree of ranks that are alone on theirs. */
static struct crystal_tree_op op_of_nodes(const struct crystal_trees *t, unsigned tree)
{
    return (struct crystal_tree_op){.nranks = t->nodes,
                                    .ranks_per_node = 1,
                                    .shape = CRYSTAL_TREE_SINGLE,
                                    .half = 1,
                                    .elt_bytes = 1,
                                    .channel_count = 2,
                                    .channel = tree};
}

static uint32_t node_or_none(int32_t node)
{
    return node < 0 ? NODE_NONE : (uint32_t)node;
}

static int view_init(struct crystal_trees *t, unsigned tree)
{
    const struct crystal_tree_op op = op_of_nodes(t, tree);
    struct tree_view *v = &t->views[tree];
    struct crystal_tree_place place;

    v->side = calloc(t->nodes, 1);
    v->depth = calloc(t->nodes, 1);
    if (!v->side || !v->depth)
        return -ENOMEM;
    crystal_tree_place(&op, t->node, &place);
    v->up = node_or_none(place.up);
    v->down[0] = node_or_none(place.down[0]);
    v->down[1] = node_or_none(place.down[1]);
    for (uint32_t node = 0; node < t->nodes; node++) {
        uint32_t at = node, below = NODE_NONE;

        for (;;) { /* up to the root; who stands below here comes by */
            crystal_tree_place(&op, at, &place);
            if (place.up < 0)
                break;
            if ((uint32_t)place.up == t->node && below == NODE_NONE)
                below = at;
            at = (uint32_t)place.up;
            v->depth[node]++;
        }
        v->side[node] = (uint8_t)(node == t->node       ? SIDE_OWN
                                  : below == NODE_NONE  ? SIDE_PARENT
                                  : below == v->down[0] ? SIDE_CHILD0
                                                        : SIDE_CHILD1);
    }
    return 0;
}

struct crystal_trees *crystal_trees_create(struct crystal_net_comm *comm,
                                           struct crystal_board_comm *entry,
                                           struct crystal_error *err)
{
    struct crystal_board *board = comm->module->board;
    const struct crystal_board_header *head = crystal_board_header(board);
    struct crystal_trees *t = calloc(1, sizeof *t);
    uint32_t per_node =
        entry->alone || !head->ranks_per_node ? 1 : head->ranks_per_node;

    if (!t)
        goto err_memory;
    (void)pthread_mutex_init(&t->lock, NULL); /* cannot fail on Linux */
    t->comm = comm;
    t->is_real = crystal_board_is_real(board, entry);
    t->graph_channels = atomic_load(&entry->graph_channels);
    t->node_of = calloc(comm->nranks, sizeof *t->node_of);
    if (!t->node_of || number_nodes(t, crystal_board_members(board, entry), per_node,
                                    head->lrank_count))
        goto err_memory;
    if (view_init(t, 0) || view_init(t, 1))
        goto err_memory;
    return t;

err_memory:
    (void)crystal_error_set(err, ENOMEM, "out of memory for a tree");
    crystal_trees_destroy(t);
    return NULL;
}

static void line_free(struct tree_line *line)
{
    while (line->first) {
        struct up_message *up = line->first;

        line->first = up->next;
        free(up);
    }
    free(line);
}

void crystal_trees_destroy(struct crystal_trees *t)
{
    if (!t)
        return;
    while (t->first) {
        struct tree_line *line = t->first;

        t->first = line->next;
        line_free(line);
    }
    for (unsigned i = 0; i < 2; i++) {
        free(t->views[i].side);
        free(t->views[i].depth);
    }
    free(t->node_of);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

uint32_t crystal_trees_count(struct crystal_trees *t)
{
    uint32_t count = 0;

    (void)pthread_mutex_lock(&t->lock);
    for (struct tree_line *line = t->first; line; line = line->next)
        count++;
    (void)pthread_mutex_unlock(&t->lock);
    return count;
}

static struct tree_line *line_get(struct crystal_trees *t, uint64_t seq,
                                  uint32_t channel, struct crystal_error *err)
{
    struct tree_line *line;

    for (line = t->first; line; line = line->next)
        if (line->seq == seq && line->channel == channel)
            return line;
    line = calloc(1, sizeof *line);
    if (!line) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a tree");
        return NULL;
    }
    line->seq = seq;
    line->channel = channel;
    line->next = t->first;
    t->first = line;
    return line;
}

static void line_drop(struct crystal_trees *t, struct tree_line *line)
{
    struct tree_line **at = &t->first;

    while (*at != line)
        at = &(*at)->next;
    *at = line->next;
    line_free(line);
}

/* --- a message --- */

struct facts {
    struct crystal_tree_op op;
    const struct tree_view *view;
    enum side side;
    uint64_t count; /* messages per neighbour */
    uint64_t offset_elts;
    uint32_t elts;
    uint64_t bytes, wire_bytes;
};

static int facts_find(const struct crystal_trees *t,
                      const struct crystal_tree_transfer *m, struct facts *f,
                      struct crystal_error *err)
{
    const struct crystal_operation *op = m->op;
    const unsigned tree = t->graph_channels ? m->channel / t->graph_channels % 2 : 0;
    struct crystal_tree_message place;

    f->op = (struct crystal_tree_op){.proto = (enum crystal_proto)op->proto,
                                     .nranks = t->comm->nranks,
                                     .ranks_per_node = t->comm->nranks / t->nodes,
                                     .shape = CRYSTAL_TREE_SINGLE,
                                     .half = t->graph_channels,
                                     .count = op->count,
                                     .elt_bytes = (uint32_t)op->elt_bytes,
                                     .channel_count =
                                         op->channel_count ? op->channel_count : 1,
                                     .channel = m->channel};
    f->view = &t->views[tree];
    f->side = (enum side)f->view->side[t->node_of[m->peer]];
    f->count = crystal_tree_message_count(&f->op);
    if (!t->graph_channels || f->side == SIDE_OWN ||
        (f->side == SIDE_PARENT && t->node_of[m->peer] != f->view->up) ||
        (f->side != SIDE_PARENT &&
         t->node_of[m->peer] != f->view->down[f->side - SIDE_CHILD0]))
        return crystal_error_set(
            err, EPROTO,
            "channel %u: virtual rank %u is no neighbour in the tree of %u nodes; set "
            "NCCL_ALGO=Ring and report this",
            m->channel, m->peer, t->nodes);
    if (m->index >= f->count)
        return crystal_error_set(err, EPROTO, "message %llu of a tree that has %llu",
                                 (unsigned long long)m->index,
                                 (unsigned long long)f->count);
    crystal_tree_message(&f->op, m->index, &place);
    f->offset_elts = place.offset_elts;
    f->elts = place.elts;
    f->bytes = (uint64_t)f->elts * f->op.elt_bytes;
    f->wire_bytes = crystal_form_bytes(f->op.proto, f->bytes);
    return 0;
}

int crystal_trees_send(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                       const void *wire, uint64_t wire_bytes, struct crystal_error *err)
{
    struct up_message *up, **end;
    struct tree_line *line;
    struct facts f;
    int code = facts_find(t, m, &f, err), wakes;

    if (code)
        return code;
    if (f.wire_bytes != wire_bytes)
        return crystal_error_set(err, EPROTO,
                                 "message %llu of a tree has %llu bytes where the "
                                 "schedule has %llu",
                                 (unsigned long long)m->index,
                                 (unsigned long long)wire_bytes,
                                 (unsigned long long)f.wire_bytes);
    if (f.side != SIDE_PARENT)
        return 0; /* nobody here needs it back */
    up = malloc(sizeof *up + (wire ? wire_bytes : 0));
    if (!up)
        return crystal_error_set(err, ENOMEM, "out of memory for a tree");
    up->next = NULL;
    up->index = m->index;
    up->started_ns = m->started_ns;
    up->wire_bytes = wire_bytes;
    if (wire && wire_bytes)
        memcpy(up->data, wire, wire_bytes);
    (void)pthread_mutex_lock(&t->lock);
    line = line_get(t, m->op->seq, m->channel, err);
    if (line) {
        for (end = &line->first; *end; end = &(*end)->next)
            ;
        *end = up;
    }
    wakes = t->is_waited && !pthread_equal(t->waiter, pthread_self());
    t->is_waited = 0;
    (void)pthread_mutex_unlock(&t->lock);
    if (wakes)
        crystal_net_wake();
    if (!line)
        free(up);
    return line ? 0 : -ENOMEM;
}

/* --- what a virtual neighbour sends --- */

/* The contributions of all ranks on that side, into data or on top of it. */
static int side_put(const struct crystal_trees *t,
                    const struct crystal_tree_transfer *m, const struct facts *f,
                    int has_data, void *data, struct crystal_error *err)
{
    struct crystal_payload_plan plan;
    struct crystal_payload_sum sum = {.op = m->op,
                                      .plan = &plan,
                                      .data = data,
                                      .elts = f->elts,
                                      .is_started = has_data};
    int code = crystal_payload_plan(m->op, &plan, err);

    for (uint32_t i = 0; i < t->comm->nranks && !code; i++) {
        if (f->view->side[t->node_of[i]] != f->side)
            continue;
        if (t->is_real[i])
            return crystal_error_set(
                err, ENOTSUP,
                "ranks %u and %u are real and stand in a tree with virtual ranks "
                "between them, which is not there yet; set NCCL_ALGO=Ring",
                t->comm->crank, i);
        code = crystal_payload_add(&sum, i, f->offset_elts * f->op.elt_bytes, err);
    }
    if (code)
        return code;
    crystal_payload_end(&sum);
    if (plan.is_recorded && plan.redop == ncclAvg && f->side == SIDE_PARENT)
        (void)crystal_reduce_finish_avg(data, f->elts, plan.dtype, t->comm->nranks);
    return 0;
}

/* When the contributions of that side could be here; 0: they decide nothing. */
static uint64_t side_ns(const struct crystal_trees *t,
                        const struct crystal_tree_transfer *m, const struct facts *f,
                        uint64_t hop_ns, uint64_t occupy_ns)
{
    const uint8_t *depth = f->view->depth;
    const uint32_t own = depth[t->node];
    uint64_t most_ns = 0;

    if (!m->cells)
        return 0;
    for (uint32_t i = 0; i < t->comm->nranks; i++) {
        uint32_t node = t->node_of[i];
        uint64_t at_ns, hops;

        if (f->view->side[node] != f->side)
            continue;
        at_ns = atomic_load_explicit(&m->cells[i].arrive_ns, memory_order_relaxed);
        hops = f->side == SIDE_PARENT ? depth[node] + own : depth[node] - own;
        if (at_ns > 1 && at_ns + hops * hop_ns > most_ns)
            most_ns = at_ns + hops * hop_ns;
    }
    return most_ns ? most_ns + m->index * occupy_ns : 0;
}

/* Starts with this rank's own message up. 1 put, 0 wait. */
static int own_put(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                   const struct facts *f, void *data, uint64_t *ret_started_ns,
                   struct crystal_error *err)
{
    struct tree_line *line = line_get(t, m->op->seq, m->channel, err);
    struct up_message *up = line ? line->first : NULL;

    if (!line)
        return -ENOMEM;
    if (!up) {
        t->is_waited = 1;
        t->waiter = pthread_self();
        return 0;
    }
    if (up->index != m->index || up->wire_bytes != f->wire_bytes)
        return crystal_error_set(err, EPROTO,
                                 "message %llu of a tree came down when %llu was sent "
                                 "up",
                                 (unsigned long long)m->index,
                                 (unsigned long long)up->index);
    if (data)
        crystal_form_unpack(f->op.proto, up->data, f->bytes, data);
    *ret_started_ns = up->started_ns;
    line->first = up->next;
    free(up);
    if (++line->taken == f->count)
        line_drop(t, line);
    return 1;
}

static int message_put(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                       const struct facts *f, void *data, uint64_t *ret_ns,
                       uint64_t *ret_free_ns, struct crystal_error *err)
{
    const struct crystal_wire *wire = &t->comm->module->wire;
    uint64_t hop_ns = crystal_vt_hop_ns(wire, f->wire_bytes), held_ns, up_ns = 0;
    int code;

    if (f->side == SIDE_PARENT) {
        (void)pthread_mutex_lock(&t->lock);
        code = own_put(t, m, f, data, &up_ns, err);
        (void)pthread_mutex_unlock(&t->lock);
        if (code <= 0)
            return code;
        up_ns += 2ULL * f->view->depth[t->node] * hop_ns;
    }
    if (data)
        code = side_put(t, m, f, f->side == SIDE_PARENT, data, err);
    else
        crystal_operation_standin(m->op, f->bytes);
    if (data && code)
        return code;
    held_ns = side_ns(t, m, f, hop_ns, crystal_wire_occupy_ns(wire, f->wire_bytes));
    *ret_free_ns = up_ns;
    *ret_ns = held_ns > up_ns ? held_ns : up_ns;
    return 1;
}

int crystal_trees_take(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                       void *wire, uint64_t room, uint64_t *ret_bytes, uint64_t *ret_ns,
                       uint64_t *ret_free_ns, struct crystal_error *err)
{
    const int is_valued = crystal_payload_is_valued(m->op);
    struct facts f;
    void *data = is_valued ? wire : NULL;
    int code = facts_find(t, m, &f, err);

    if (code)
        return code;
    if (f.wire_bytes > room)
        return crystal_error_set(err, EMSGSIZE,
                                 "a message of %llu bytes of a tree does not fit the "
                                 "%llu that were posted",
                                 (unsigned long long)f.wire_bytes,
                                 (unsigned long long)room);
    if (is_valued && f.op.proto != CRYSTAL_PROTO_SIMPLE)
        data = malloc(f.bytes ? f.bytes : 1);
    if (is_valued && !data)
        return crystal_error_set(err, ENOMEM, "out of memory for a tree");
    code = message_put(t, m, &f, data, ret_ns, ret_free_ns, err);
    if (code > 0) {
        if (is_valued)
            crystal_form_pack(f.op.proto, m->step, data, f.bytes, wire);
        else if (wire)
            crystal_form_flags(f.op.proto, m->step, f.wire_bytes, wire);
        *ret_bytes = f.wire_bytes;
    }
    if (data != wire)
        free(data);
    return code;
}
