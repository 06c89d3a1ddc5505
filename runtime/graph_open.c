/* Opening job.graph through mmap. graph_file.h draws the bytes; everything in them is
 * checked once, here.
 */
#include "config.h"

#include "runtime/graph_internal.h"

#include "runtime/graph_pack.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int bad(struct crystal_error *err, const char *what)
{
    return crystal_error_set(err, EINVAL, "%s; run 'scrystal graph' again", what);
}

/* --- sections --- */

struct cursor {
    const char *body;
    size_t body_bytes, used;
};

/* Records of version 3, in the file. */
struct packed {
    const struct crystal_op *shapes;
    uint64_t shape_count;
    const struct crystal_graph_packed *records;
};

/* The next section of count elements, or NULL where the file is too short for it. */
static const void *section(struct cursor *c, uint64_t count, size_t element_bytes)
{
    size_t start = (c->used + 15) & ~(size_t)15;
    size_t have = start <= c->body_bytes ? c->body_bytes - start : 0;

    if (start > c->body_bytes || count > have / element_bytes)
        return NULL;
    c->used = start + (size_t)count * element_bytes;
    return c->body + start;
}

/* The records as they stand, or the place of those that are packed. */
static int ops_section(struct crystal_graph *g, struct cursor *c, struct packed *p)
{
    const struct crystal_graph_pack_head *head;

    if (g->form < CRYSTAL_GRAPH_VERSION_PACKED) {
        g->ops = section(c, g->head->op_count, sizeof *g->ops);
        return g->ops ? 0 : -EINVAL;
    }
    head = section(c, 1, sizeof *head);
    p->shape_count = head ? head->shape_count : 0;
    p->shapes = head ? section(c, head->shape_count, sizeof *p->shapes) : NULL;
    p->records = p->shapes ? section(c, g->head->op_count, sizeof *p->records) : NULL;
    return p->records ? 0 : -EINVAL;
}

/* The mapped records are not looked at again: their pages may go. */
static int unpack(struct crystal_graph *g, const struct packed *p,
                  struct crystal_error *err)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)p->shapes + page - 1) & ~(page - 1);
    uintptr_t to = (uintptr_t)(p->records + g->head->op_count) & ~(page - 1);

    g->own_ops = malloc((g->head->op_count + 1) * sizeof *g->own_ops);
    if (!g->own_ops)
        return crystal_error_set(err, ENOMEM, "out of memory");
    if (crystal_graph_unpack(p->shapes, p->shape_count, p->records, g->head->op_count,
                             g->own_ops))
        return bad(err, "a record has no shape");
    g->ops = g->own_ops;
    if (to > from) /* a hint */
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
    return 0;
}

static int sections(struct crystal_graph *g, struct crystal_error *err)
{
    struct cursor c = {g->view.body, g->view.body_bytes, 0};
    struct packed packed = {NULL, 0, NULL};
    const struct crystal_graph_head *h = section(&c, 1, sizeof *h);

    if (!h)
        return bad(err, "too short for its head");
    g->head = h;
    if (!h->lrank_count || !h->rep_count || !h->dp_size || !h->dp_stride)
        return bad(err, "its head has a zero where none can be");
    if (g->form == CRYSTAL_GRAPH_VERSION &&
        (h->ranks_per_node || h->bytes_per_s || h->latency_ns || h->node_bytes_per_s ||
         h->node_latency_ns))
        return bad(err, "its head tells a network, which version 1 has not");
    if (!(g->reps = section(&c, h->rep_count, sizeof *g->reps)) ||
        !(g->ranks = section(&c, h->lrank_count, sizeof *g->ranks)) ||
        !(g->comms = section(&c, h->comm_count, sizeof *g->comms)) ||
        !(g->locals = section(&c, h->local_count, sizeof *g->locals)) ||
        !(g->colls = section(&c, h->coll_count, sizeof *g->colls)) ||
        !(g->sends = section(&c, h->send_count, sizeof *g->sends)) ||
        ops_section(g, &c, &packed) ||
        !(g->marks = section(&c, h->mark_count, sizeof *g->marks)) ||
        !(g->map = section(&c, h->map_count, sizeof *g->map)) ||
        !(g->members = section(&c, h->member_count, sizeof *g->members)) ||
        !(g->names = section(&c, h->name_bytes, 1)) ||
        !(g->payload = section(&c, h->payload_bytes, 1)))
        return bad(err, "its sections are longer than the file");
    if (c.used != c.body_bytes)
        return bad(err, "it has bytes behind its last section");
    return packed.records ? unpack(g, &packed, err) : 0;
}

static bool is_within(uint64_t first, uint64_t count, uint64_t limit)
{
    return first <= limit && count <= limit - first;
}

/* --- checks --- */

static int check_comms(const struct crystal_graph *g, struct crystal_error *err)
{
    const struct crystal_graph_head *h = g->head;
    size_t words = ((size_t)h->lrank_count + 63) / 64;
    uint64_t *seen = calloc(words, sizeof *seen);
    int code = 0;

    if (!seen)
        return crystal_error_set(err, ENOMEM, "out of memory");
    if (h->name_bytes && g->names[h->name_bytes - 1] != 0)
        code = bad(err, "its last name has no end");
    for (uint32_t i = 0; !code && i < h->comm_count; i++) {
        const struct crystal_graph_set *c = &g->comms[i];
        const uint32_t *m;

        if (!c->nranks || !is_within(c->member_first, c->nranks, h->member_count) ||
            (c->name != CRYSTAL_GRAPH_NONE && c->name >= h->name_bytes) ||
            (c->dp_count && !c->dp_step)) {
            code = bad(err, "a communicator has an index out of range");
            break;
        }
        m = g->members + c->member_first;
        for (uint32_t k = 0; !code && k < c->nranks; k++)
            if (m[k] >= h->lrank_count || (seen[m[k] / 64] >> (m[k] % 64) & 1))
                code = bad(err, "a communicator has a wrong member");
            else
                seen[m[k] / 64] |= UINT64_C(1) << (m[k] % 64);
        for (uint32_t k = 0; !code && k < c->nranks; k++)
            seen[m[k] / 64] = 0;
    }
    free(seen);
    return code;
}

static int check_locals(const struct crystal_graph *g,
                        const struct crystal_graph_rep *rep, struct crystal_error *err)
{
    const struct crystal_graph_head *h = g->head;

    for (uint32_t i = 0; i < rep->local_count; i++) {
        const struct crystal_graph_local *l = &g->locals[rep->local_first + i];

        if (!is_within(l->coll_first, l->coll_count, h->coll_count) ||
            !is_within(l->send_first, l->send_count, h->send_count) ||
            !is_within(l->last_first, l->last_count, l->coll_count))
            return bad(err, "a list of contributions is out of range");
    }
    return 0;
}

static bool is_comm_kind(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV;
}

static int check_ops(const struct crystal_graph *g, const struct crystal_graph_rep *rep,
                     struct crystal_error *err)
{
    const struct crystal_op *ops = g->ops + rep->op_first;
    uint64_t map_first = g->ranks[rep->lrank].map_first;

    for (uint64_t i = 0; i < rep->op_count; i++) {
        const struct crystal_op *op = &ops[i];
        size_t bytes = crystal_dtype_bytes(op->dtype);
        uint32_t nranks;

        if (op->kind == CRYSTAL_OP_KERNEL &&
            (g->form == CRYSTAL_GRAPH_VERSION || op->aux > g->head->name_bytes ||
             op->value > CRYSTAL_OP_NS_MAX))
            return bad(err, "a kernel has a value out of range");
        if (op->kind == CRYSTAL_OP_DONE && op->peer >= rep->op_count)
            return bad(err, "an operation's end names no operation");
        if (!is_comm_kind(op))
            continue;
        if (op->flags & CRYSTAL_OP_WAY_MASK &&
            (g->form < CRYSTAL_GRAPH_VERSION_WAYS || op->kind != CRYSTAL_OP_COLL))
            return bad(err, "an operation tells its algorithm, which this version or "
                            "kind has not");
        if (op->comm >= rep->local_count)
            return bad(err, "an operation names no communicator");
        nranks = g->comms[g->map[map_first + op->comm]].nranks;
        if (!bytes || op->func == CRYSTAL_FUNC_NONE || op->func >= CRYSTAL_FUNC_COUNT ||
            op->peer >= nranks || op->value > (UINT64_MAX >> 8) / bytes / nranks)
            return bad(err, "an operation has a value out of range");
    }
    return 0;
}

static int check_reps(const struct crystal_graph *g, struct crystal_error *err)
{
    const struct crystal_graph_head *h = g->head;
    uint32_t marks = 0;
    int code;

    for (uint32_t i = 0; i < h->rep_count; i++) {
        const struct crystal_graph_rep *rep = &g->reps[i];

        if (rep->lrank >= h->lrank_count || g->ranks[rep->lrank].rep != i ||
            !is_within(rep->local_first, rep->local_count, h->local_count) ||
            !is_within(rep->op_first, rep->op_count, h->op_count) ||
            !is_within(rep->mark_first, rep->mark_count, h->mark_count))
            return bad(err, "a representative has an index out of range");
        for (uint32_t k = 0; k < rep->mark_count; k++) {
            uint64_t mark = g->marks[rep->mark_first + k];

            if (mark > rep->op_count ||
                (k && mark <= g->marks[rep->mark_first + k - 1]))
                return bad(err, "its iteration marks are out of order");
        }
        if (rep->mark_count == 1 ||
            (rep->mark_count && marks && rep->mark_count != marks))
            return bad(err, "its representatives differ in iterations");
        if (rep->mark_count)
            marks = rep->mark_count;
        if ((code = check_locals(g, rep, err)) || (code = check_ops(g, rep, err)))
            return code;
    }
    return 0;
}

static int check_ranks(const struct crystal_graph *g, struct crystal_error *err)
{
    const struct crystal_graph_head *h = g->head;

    for (uint32_t r = 0; r < h->lrank_count; r++) {
        const struct crystal_graph_rank *rank = &g->ranks[r];
        const struct crystal_graph_rep *rep;
        uint64_t rep_map;

        if (rank->rep >= h->rep_count || g->reps[rank->rep].lrank >= h->lrank_count)
            return bad(err, "its rank map names no representative");
        rep = &g->reps[rank->rep];
        rep_map = g->ranks[rep->lrank].map_first;
        if (!is_within(rank->map_first, rep->local_count, h->map_count) ||
            !is_within(rep_map, rep->local_count, h->map_count))
            return bad(err, "its rank map is out of range");
        for (uint32_t i = 0; i < rep->local_count; i++) {
            uint32_t comm = g->map[rank->map_first + i], model = g->map[rep_map + i];

            if (comm >= h->comm_count || model >= h->comm_count ||
                g->comms[comm].nranks != g->comms[model].nranks ||
                crystal_graph_crank_of(g, comm, r) == UINT32_MAX)
                return bad(err, "a rank has a communicator that is not its own");
        }
    }
    return 0;
}

static int check_contributions(const struct crystal_graph *g, struct crystal_error *err)
{
    const struct crystal_graph_head *h = g->head;

    for (uint64_t i = 0; i < h->coll_count; i++)
        if (g->colls[i].payload != CRYSTAL_GRAPH_NONE &&
            !is_within(g->colls[i].payload, g->colls[i].bytes, h->payload_bytes))
            return bad(err, "a contribution lies outside the file");
    for (uint64_t i = 0; i < h->send_count; i++)
        if (g->sends[i].payload != CRYSTAL_GRAPH_NONE &&
            !is_within(g->sends[i].payload, g->sends[i].bytes, h->payload_bytes))
            return bad(err, "a contribution lies outside the file");
    for (uint64_t i = 0; i < h->local_count; i++) {
        const struct crystal_graph_local *l = &g->locals[i];

        if (!is_within(l->send_first, l->send_count, h->send_count))
            return bad(err, "a list of contributions is out of range");
        for (uint64_t k = 1; k < l->send_count; k++)
            if (g->sends[l->send_first + k].peer < g->sends[l->send_first + k - 1].peer)
                return bad(err, "a list of sends is out of order");
    }
    return 0;
}

/* The version to ask for: that of the file where it is one of ours. */
static uint32_t version_of(const char *path)
{
    const uint32_t newest = CRYSTAL_GRAPH_VERSION_WAYS + CRYSTAL_GRAPH_VERSION_HASHED;
    uint32_t version = crystal_filehead_version(path);

    return version >= CRYSTAL_GRAPH_VERSION && version < newest ? version : newest;
}

/* Which body the file has. */
static int find_form(struct crystal_graph *g, struct crystal_error *err)
{
    uint32_t version = g->view.head->version;
    bool is_hashed = version > CRYSTAL_GRAPH_VERSION_HASHED;

    if (is_hashed != (g->view.head->head_hash != 0))
        return bad(err, is_hashed ? "its header has no checksum"
                                  : "its header has a checksum, which this version has "
                                    "not");
    g->form = is_hashed ? version - CRYSTAL_GRAPH_VERSION_HASHED : version;
    return 0;
}

struct crystal_graph *crystal_graph_open(const char *path, struct crystal_error *err)
{
    struct crystal_graph *g = calloc(1, sizeof *g);
    int code;

    if (!g) {
        (void)crystal_error_set(err, ENOMEM, "%s: out of memory", path);
        return NULL;
    }
    if (crystal_file_map(path, CRYSTAL_GRAPH_MAGIC, version_of(path), &g->view, err)) {
        if (err && err->code == ENOENT)
            (void)crystal_error_set(
                err, ENOENT, "%s: not there yet; run 'scrystal graph' first", path);
        free(g);
        return NULL;
    }
    /* the order matters: ranks need comms, operations need both */
    if ((code = find_form(g, err)) || (code = sections(g, err)) ||
        (code = check_comms(g, err)) || (code = check_ranks(g, err)) ||
        (code = check_contributions(g, err)) || (code = check_reps(g, err))) {
        crystal_error_prefix(err, "%s", path);
        crystal_graph_close(g);
        return NULL;
    }
    return g;
}

void crystal_graph_close(struct crystal_graph *g)
{
    if (!g)
        return;
    crystal_file_unmap(&g->view);
    free(g->own_ops);
    free(g);
}
