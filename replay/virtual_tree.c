/* Trees with virtual neighbours. See virtual_tree.h. What goes up to a virtual parent
 * is kept until the same message comes down again, what other real ranks have sent
 * until the message that it is part of is made. */
#include "config.h"

#include "replay/virtual_tree_internal.h"

#include "replay/net.h"
#include "replay/net_wait.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
    if (crystal_tree_views_init(t, crystal_board_members(board, entry), per_node,
                                head->lrank_count))
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
        struct tree_up *up = line->first;

        line->first = up->next;
        free(up);
    }
    free(line);
}

void crystal_tree_fed_free(struct tree_fed *fed)
{
    free(fed->data);
    free(fed);
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
    while (t->fed) {
        struct tree_fed *fed = t->fed;

        t->fed = fed->next;
        crystal_tree_fed_free(fed);
    }
    crystal_tree_views_fini(t);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

uint32_t crystal_trees_count(struct crystal_trees *t)
{
    uint32_t count = 0;

    (void)pthread_mutex_lock(&t->lock);
    for (struct tree_line *line = t->first; line; line = line->next)
        count++;
    for (struct tree_fed *fed = t->fed; fed; fed = fed->next)
        count++;
    (void)pthread_mutex_unlock(&t->lock);
    return count;
}

struct tree_line *crystal_tree_line(struct crystal_trees *t, uint64_t seq,
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

void crystal_tree_line_drop(struct crystal_trees *t, struct tree_line *line)
{
    struct tree_line **at = &t->first;

    while (*at != line)
        at = &(*at)->next;
    *at = line->next;
    line_free(line);
}

/* --- a message --- */

static const struct tree_view *view_of(const struct crystal_trees *t, uint32_t channel)
{
    return &t->views[t->graph_channels ? channel / t->graph_channels % 2 : 0];
}

int crystal_tree_facts(const struct crystal_trees *t,
                       const struct crystal_tree_transfer *m, struct tree_facts *f,
                       struct crystal_error *err)
{
    const struct crystal_operation *op = m->op;
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
    f->view = view_of(t, m->channel);
    f->side = (enum tree_side)f->view->side[t->node_of[m->peer]];
    f->count = crystal_tree_message_count(&f->op);
    if (!t->graph_channels || f->side == TREE_OWN ||
        (f->side == TREE_PARENT && t->node_of[m->peer] != f->view->up) ||
        (f->side != TREE_PARENT &&
         t->node_of[m->peer] != f->view->down[f->side - TREE_CHILD0]))
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

int crystal_tree_needs_own(const struct tree_facts *f)
{
    return f->side == TREE_PARENT && !f->view->has_ancestor;
}

/* Something has come that a receive may wait for; with the lock held. */
static int wakes(struct crystal_trees *t)
{
    const int is_other = t->is_waited && !pthread_equal(t->waiter, pthread_self());

    t->is_waited = 0;
    return is_other;
}

static int up_keep(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                   const void *wire, uint64_t wire_bytes, struct crystal_error *err)
{
    struct tree_up *up = malloc(sizeof *up + (wire ? wire_bytes : 0)), **end;
    struct tree_line *line;
    int is_other;

    if (!up)
        return crystal_error_set(err, ENOMEM, "out of memory for a tree");
    up->next = NULL;
    up->index = m->index;
    up->started_ns = m->started_ns;
    up->wire_bytes = wire_bytes;
    if (wire && wire_bytes)
        memcpy(up->data, wire, wire_bytes);
    (void)pthread_mutex_lock(&t->lock);
    line = crystal_tree_line(t, m->op->seq, m->channel, err);
    if (line) {
        for (end = &line->first; *end; end = &(*end)->next)
            ;
        *end = up;
    }
    is_other = wakes(t);
    (void)pthread_mutex_unlock(&t->lock);
    if (is_other)
        crystal_net_wake();
    if (!line)
        free(up);
    return line ? 0 : -ENOMEM;
}

int crystal_trees_send(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                       const void *wire, uint64_t wire_bytes,
                       struct crystal_tree_hearers *ret, struct crystal_error *err)
{
    struct tree_facts f;
    int code = crystal_tree_facts(t, m, &f, err);

    if (code)
        return code;
    if (f.wire_bytes != wire_bytes)
        return crystal_error_set(err, EPROTO,
                                 "message %llu of a tree has %llu bytes where the "
                                 "schedule has %llu",
                                 (unsigned long long)m->index,
                                 (unsigned long long)wire_bytes,
                                 (unsigned long long)f.wire_bytes);
    *ret = (struct crystal_tree_hearers){f.view->near[f.side].cranks,
                                         f.view->near[f.side].count, f.count};
    return crystal_tree_needs_own(&f) ? up_keep(t, m, wire, wire_bytes, err) : 0;
}

int crystal_trees_fed(struct crystal_trees *t, const struct crystal_tree_feed *m,
                      void *data, struct crystal_error *err)
{
    const struct tree_view *v = view_of(t, m->channel);
    struct tree_fed *fed, **end;
    int is_near = 0, is_other;

    for (int side = 0; side < TREE_OWN; side++)
        for (uint32_t i = 0; i < v->near[side].count; i++)
            is_near |= v->near[side].cranks[i] == m->crank;
    fed = is_near ? calloc(1, sizeof *fed) : NULL;
    if (!fed) {
        free(data);
        return is_near
                   ? crystal_error_set(err, ENOMEM, "out of memory for a tree")
                   : crystal_error_set(err, EPROTO,
                                       "rank %u is not behind virtual ranks of this "
                                       "one's tree",
                                       m->crank);
    }
    *fed = (struct tree_fed){.seq = m->seq,
                             .index = m->index,
                             .started_ns = m->started_ns,
                             .wire_bytes = m->wire_bytes,
                             .channel = m->channel,
                             .crank = m->crank,
                             .data = data};
    (void)pthread_mutex_lock(&t->lock);
    for (end = &t->fed; *end; end = &(*end)->next)
        ;
    *end = fed;
    is_other = wakes(t);
    (void)pthread_mutex_unlock(&t->lock);
    if (is_other)
        crystal_net_wake();
    return 0;
}
