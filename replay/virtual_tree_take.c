/* What a virtual neighbour in a tree sends. See virtual_tree.h. */
#include "config.h"

#include "replay/virtual_tree_internal.h"

#include "replay/assist_recipe.h"
#include "replay/net.h"
#include "replay/net_payload.h"
#include "runtime/reduce.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Messages of near ranks, into data or on top of it. */
static int fed_put(const struct tree_facts *f, const struct crystal_payload_plan *plan,
                   const struct tree_fed *fed, int has_data, void *data,
                   struct crystal_error *err)
{
    const unsigned redop =
        plan->redop < CRYSTAL_REDOP_COUNT ? plan->redop : (unsigned)ncclSum;
    void *part = malloc(f->bytes ? f->bytes : 1);
    int code = part ? 0 : crystal_error_set(err, ENOMEM, "out of memory for a tree");

    for (; fed && !code; fed = fed->next, has_data = 1) {
        crystal_form_unpack(f->op.proto, fed->data, f->bytes, has_data ? part : data);
        if (has_data && crystal_reduce(data, part, f->elts, plan->dtype, redop))
            code = crystal_error_set(err, EINVAL, "cannot reduce type %u by %u",
                                     plan->dtype, plan->redop);
    }
    free(part);
    return code;
}

/* What came from near ranks, and the contributions of all others on that side, into
 * data or on top of it. */
static int side_put(const struct crystal_trees *t,
                    const struct crystal_tree_transfer *m, const struct tree_facts *f,
                    const struct tree_fed *fed, int has_data, void *data,
                    struct crystal_error *err)
{
    struct crystal_payload_plan plan;
    struct crystal_payload_sum sum = {.op = m->op,
                                      .plan = &plan,
                                      .data = data,
                                      .elts = f->elts,
                                      .is_started = has_data || fed,
                                      .recipe = m->recipe};
    int code = crystal_payload_plan(m->op, &plan, err);

    if (!sum.is_started)
        crystal_recipe_open(m->recipe, f->bytes);
    if (!code && fed)
        code = fed_put(f, &plan, fed, has_data, data, err);
    for (uint32_t i = 0; i < t->comm->nranks && !code; i++) {
        const uint32_t node = t->node_of[i];

        if (f->view->side[node] != f->side || f->view->is_covered[node])
            continue;
        if (t->is_real[i])
            return crystal_error_set(
                err, ENOTSUP,
                "ranks %u and %u are real and stand in a tree with virtual ranks "
                "between them, which is there only for nodes of one rank; set "
                "NCCL_ALGO=Ring",
                t->comm->crank, i);
        code = crystal_payload_add(&sum, i, f->offset_elts * f->op.elt_bytes, err);
    }
    if (code)
        return code;
    crystal_payload_end(&sum);
    if (crystal_tree_needs_own(f))
        crystal_payload_complete(&sum);
    return 0;
}

/* When the contributions of that side could be here; 0: they decide nothing. */
static uint64_t side_ns(const struct crystal_trees *t,
                        const struct crystal_tree_transfer *m,
                        const struct tree_facts *f, uint64_t hop_ns, uint64_t occupy_ns)
{
    const uint8_t *depth = f->view->depth;
    const uint32_t own = depth[t->node];
    uint64_t most_ns = 0;

    if (!m->cells)
        return 0;
    for (uint32_t i = 0; i < t->comm->nranks; i++) {
        uint32_t node = t->node_of[i];
        uint64_t at_ns, hops;

        if (f->view->side[node] != f->side || f->view->is_covered[node])
            continue;
        at_ns = atomic_load_explicit(&m->cells[i].arrive_ns, memory_order_relaxed);
        hops = f->side == TREE_PARENT ? depth[node] + own : depth[node] - own;
        if (at_ns > 1 && at_ns + hops * hop_ns > most_ns)
            most_ns = at_ns + hops * hop_ns;
    }
    return most_ns ? most_ns + m->index * occupy_ns : 0;
}

/* When messages of near ranks are here: they go up to where the ways meet, and down. */
static uint64_t fed_ns(const struct crystal_trees *t, const struct tree_facts *f,
                       const struct tree_fed *fed, uint64_t hop_ns)
{
    const uint8_t *depth = f->view->depth;
    const uint32_t own = depth[t->node];
    uint64_t most_ns = 0;

    for (; fed; fed = fed->next) {
        const uint32_t far = depth[fed->crank]; /* a node of one rank */
        const uint64_t hops = f->side != TREE_PARENT  ? far - own
                              : f->view->has_ancestor ? own - far
                                                      : far + own;

        if (fed->started_ns + hops * hop_ns > most_ns)
            most_ns = fed->started_ns + hops * hop_ns;
    }
    return most_ns;
}

/* What a message is made of besides recorded contributions; owned. */
struct inputs {
    struct tree_up *own;
    struct tree_fed *fed;
};

static void inputs_fini(struct inputs *in)
{
    free(in->own);
    while (in->fed) {
        struct tree_fed *gone = in->fed;

        in->fed = gone->next;
        crystal_tree_fed_free(gone);
    }
}

static struct tree_fed **fed_find(struct crystal_trees *t,
                                  const struct crystal_tree_transfer *m, uint32_t crank)
{
    struct tree_fed **at = &t->fed;

    while (*at && ((*at)->crank != crank || (*at)->index != m->index ||
                   (*at)->seq != m->op->seq || (*at)->channel != m->channel))
        at = &(*at)->next;
    return at;
}

/* 1 all are there and taken, 0 wait; with the lock held. */
static int inputs_take(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                       const struct tree_facts *f, struct inputs *ret,
                       struct crystal_error *err)
{
    const struct tree_near *near = &f->view->near[f->side];
    struct tree_line *line = NULL;

    if (crystal_tree_needs_own(f) &&
        !(line = crystal_tree_line(t, m->op->seq, m->channel, err)))
        return -ENOMEM;
    if (line && !line->first)
        return 0;
    for (uint32_t i = 0; i < near->count; i++)
        if (!*fed_find(t, m, near->cranks[i]))
            return 0;
    for (uint32_t i = near->count; i-- > 0;) {
        struct tree_fed **at = fed_find(t, m, near->cranks[i]), *fed = *at;

        *at = fed->next;
        fed->next = ret->fed;
        ret->fed = fed;
    }
    if (!line)
        return 1;
    ret->own = line->first;
    line->first = ret->own->next;
    if (++line->taken == f->count)
        crystal_tree_line_drop(t, line);
    return 1;
}

/* Messages that others have made fit this one. */
static int inputs_check(const struct crystal_tree_transfer *m,
                        const struct tree_facts *f, const struct inputs *in,
                        int is_valued, struct crystal_error *err)
{
    if (in->own && (in->own->index != m->index || in->own->wire_bytes != f->wire_bytes))
        return crystal_error_set(err, EPROTO,
                                 "message %llu of a tree came down when %llu was sent "
                                 "up",
                                 (unsigned long long)m->index,
                                 (unsigned long long)in->own->index);
    for (const struct tree_fed *fed = in->fed; fed; fed = fed->next)
        if (fed->wire_bytes != f->wire_bytes ||
            (is_valued && f->wire_bytes && !fed->data))
            return crystal_error_set(err, EPROTO,
                                     "message %llu of a tree has %llu bytes at rank %u "
                                     "where the schedule has %llu",
                                     (unsigned long long)m->index,
                                     (unsigned long long)fed->wire_bytes, fed->crank,
                                     (unsigned long long)f->wire_bytes);
    return 0;
}

static int message_make(const struct crystal_trees *t,
                        const struct crystal_tree_transfer *m,
                        const struct tree_facts *f, const struct inputs *in, void *data,
                        uint64_t *ret_ns, uint64_t *ret_free_ns,
                        struct crystal_error *err)
{
    const struct crystal_wire *wire = &t->comm->module->wire;
    const uint64_t hop_ns = crystal_vt_hop_ns(wire, f->wire_bytes);
    uint64_t real_ns = fed_ns(t, f, in->fed, hop_ns), held_ns;
    int code = inputs_check(m, f, in, data != NULL, err);

    if (code)
        return code;
    if (in->own) {
        const uint64_t own_ns =
            in->own->started_ns + 2ULL * f->view->depth[t->node] * hop_ns;

        if (own_ns > real_ns)
            real_ns = own_ns;
        if (data)
            crystal_form_unpack(f->op.proto, in->own->data, f->bytes, data);
    }
    if (data)
        code = side_put(t, m, f, in->fed, in->own != NULL, data, err);
    else
        crystal_operation_standin(m->op, f->bytes);
    if (code)
        return code;
    held_ns = side_ns(t, m, f, hop_ns, crystal_wire_occupy_ns(wire, f->wire_bytes));
    *ret_free_ns = real_ns;
    *ret_ns = held_ns > real_ns ? held_ns : real_ns;
    return 1;
}

static int message_put(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                       const struct tree_facts *f, void *data, uint64_t *ret_ns,
                       uint64_t *ret_free_ns, struct crystal_error *err)
{
    struct inputs in = {0};
    int code;

    (void)pthread_mutex_lock(&t->lock);
    code = inputs_take(t, m, f, &in, err);
    if (!code) {
        t->is_waited = 1;
        t->waiter = pthread_self();
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (code > 0)
        code = message_make(t, m, f, &in, data, ret_ns, ret_free_ns, err);
    inputs_fini(&in);
    return code;
}

int crystal_trees_take(struct crystal_trees *t, const struct crystal_tree_transfer *m,
                       void *wire, uint64_t room, uint64_t *ret_bytes, uint64_t *ret_ns,
                       uint64_t *ret_free_ns, struct crystal_error *err)
{
    const int is_valued = crystal_payload_is_valued(m->op);
    struct tree_facts f;
    void *data = is_valued ? wire : NULL;
    int code = crystal_tree_facts(t, m, &f, err);

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
