/* The tables of job.graph from the sources. See graph_file.h. */
#include "config.h"

#include "runtime/graph_build_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int graph_map_make(struct crystal_graph_build *b, struct crystal_error *err)
{
    uint32_t *rep_of = malloc(b->layout.lrank_count * sizeof *rep_of);
    uint64_t used = 0;
    int code = rep_of ? 0 : crystal_error_set(err, ENOMEM, "out of memory");

    for (uint32_t i = 0; !code && i < b->layout.live_count; i++)
        rep_of[b->layout.live[i]] = i;
    for (uint32_t r = 0; !code && r < b->layout.lrank_count; r++) {
        uint32_t rep = crystal_layout_representative(&b->layout, r);
        bool is_live = false;

        for (uint32_t low = 0, high = b->layout.live_count; low < high;) {
            uint32_t middle = low + (high - low) / 2;

            is_live = is_live || b->layout.live[middle] == rep;
            if (b->layout.live[middle] < rep)
                low = middle + 1;
            else
                high = middle;
        }
        if (rep >= b->layout.lrank_count || !is_live)
            code = crystal_error_set(err, EINVAL,
                                     "rank %u was not captured and no captured rank "
                                     "stands for it; capture with --crystal-live=all",
                                     r);
        else
            b->ranks[r].rep = rep_of[rep];
        b->ranks[r].map_first = used;
        if (!code)
            used += b->sources[rep_of[rep]].local_count;
    }
    free(rep_of);
    if (code)
        return code;
    b->head.map_count = used;
    b->map = malloc((used ? used : 1) * sizeof *b->map);
    if (!b->map)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t r = 0; !code && r < b->layout.lrank_count; r++) {
        const struct crystal_graph_source *s = &b->sources[b->ranks[r].rep];

        for (uint32_t i = 0; !code && i < s->local_count; i++)
            code = crystal_graph_comms_of(&b->comms, s->locals[i],
                                          b->layout.live[b->ranks[r].rep], r,
                                          &b->map[b->ranks[r].map_first + i], err);
    }
    return code;
}

int graph_sets_make(struct crystal_graph_build *b, struct crystal_error *err)
{
    uint64_t members = 0, names = 0;

    b->sets = calloc(b->comms.count ? b->comms.count : 1, sizeof *b->sets);
    if (!b->sets)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < b->comms.count; i++) {
        const struct crystal_graph_entry *e = &b->comms.entries[i];

        b->sets[i] = (struct crystal_graph_set){e->name ? names : CRYSTAL_GRAPH_NONE,
                                                members,
                                                e->nranks,
                                                e->dp.first,
                                                e->dp.step,
                                                e->dp.count};
        members += e->nranks;
        names += e->name ? strlen(e->name) + 1 : 0;
    }
    b->head.comm_count = b->comms.count;
    b->head.member_count = members;
    b->head.name_bytes = names;
    return 0;
}

static int send_compare(const void *a, const void *b)
{
    const struct crystal_graph_send *x = a, *y = b;

    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return x->zero < y->zero ? -1 : x->zero > y->zero; /* order of issue for now */
}

/* Contributions of one local communicator of one source, in order of issue. */
static void local_make(struct crystal_graph_build *b,
                       const struct crystal_graph_source *s, uint32_t local,
                       uint64_t payload_base, struct crystal_graph_local *l)
{
    uint64_t last_begin = s->mark_count ? s->marks[s->mark_count - 2] : UINT64_MAX;
    uint64_t last_end = s->mark_count ? s->marks[s->mark_count - 1] : UINT64_MAX;
    uint64_t *payload = NULL, *bytes = NULL;

    l->coll_first = b->head.coll_count;
    l->send_first = b->head.send_count;
    for (uint64_t i = 0; i < s->trace.op_count; i++) {
        const struct crystal_op *op = &s->trace.ops[i];

        if (graph_is_comm_kind(op))
            payload = bytes = NULL;
        if (op->kind == CRYSTAL_OP_PAYLOAD && payload) {
            *payload = payload_base + op->value;
            *bytes = op->peer;
        }
        if (op->comm != local)
            continue;
        if (op->kind == CRYSTAL_OP_COLL) {
            struct crystal_graph_coll *c = &b->colls[b->head.coll_count++];

            *c = (struct crystal_graph_coll){CRYSTAL_GRAPH_NONE, 0};
            payload = &c->payload;
            bytes = &c->bytes;
            l->last_first += i < last_begin && s->mark_count;
            l->last_count += i >= last_begin && i < last_end;
            l->coll_count++;
        } else if (op->kind == CRYSTAL_OP_SEND) {
            struct crystal_graph_send *e = &b->sends[b->head.send_count++];

            *e = (struct crystal_graph_send){op->peer, (uint32_t)l->send_count,
                                             CRYSTAL_GRAPH_NONE, 0};
            payload = &e->payload;
            bytes = &e->bytes;
            l->send_count++;
        }
    }
    qsort(b->sends + l->send_first, l->send_count, sizeof *b->sends, send_compare);
    for (uint64_t i = 0; i < l->send_count; i++)
        b->sends[l->send_first + i].zero = 0;
}

int graph_reps_make(struct crystal_graph_build *b, struct crystal_error *err)
{
    struct crystal_graph_head *h = &b->head;
    uint64_t colls = 0, sends = 0;

    for (uint32_t r = 0; r < b->layout.live_count; r++) {
        const struct crystal_graph_source *s = &b->sources[r];

        h->local_count += s->local_count;
        h->op_count += s->trace.op_count;
        h->mark_count += s->mark_count;
        for (uint64_t i = 0; i < s->trace.op_count; i++) {
            colls += s->trace.ops[i].kind == CRYSTAL_OP_COLL;
            sends += s->trace.ops[i].kind == CRYSTAL_OP_SEND;
        }
    }
    b->locals = calloc(h->local_count + 1, sizeof *b->locals);
    b->colls = malloc((colls + 1) * sizeof *b->colls);
    b->sends = malloc((sends + 1) * sizeof *b->sends);
    if (!b->locals || !b->colls || !b->sends)
        return crystal_error_set(err, ENOMEM, "out of memory");
    h->local_count = h->op_count = h->mark_count = 0;
    for (uint32_t r = 0; r < b->layout.live_count; r++) {
        const struct crystal_graph_source *s = &b->sources[r];

        b->reps[r] = (struct crystal_graph_rep){
            b->layout.live[r], s->local_count, h->local_count, h->op_count,
            s->trace.op_count, h->mark_count,  s->mark_count,  0};
        for (uint32_t i = 0; i < s->local_count; i++)
            local_make(b, s, i, h->payload_bytes, &b->locals[h->local_count + i]);
        h->local_count += s->local_count;
        h->op_count += s->trace.op_count;
        h->mark_count += s->mark_count;
        h->payload_bytes += graph_aligned(s->payload.body_bytes);
    }
    return 0;
}
