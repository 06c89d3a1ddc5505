/* Reading job.graph through mmap. graph_file.h draws the bytes; everything in them is
 * checked once, here, when the file is opened.
 */
#include "config.h"

#include "runtime/graph.h"

#include "runtime/filehead.h"
#include "runtime/graph_file.h"
#include "runtime/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A longer one than a day is a broken file, and must not overflow sums. */
#define KERNEL_NS_MAX UINT64_C(86400000000000)

struct crystal_graph {
    struct crystal_file_view view;
    const struct crystal_graph_head *head;
    const struct crystal_graph_rep *reps;
    const struct crystal_graph_rank *ranks;
    const struct crystal_graph_set *comms;
    const struct crystal_graph_local *locals;
    const struct crystal_graph_coll *colls;
    const struct crystal_graph_send *sends;
    const struct crystal_op *ops;
    const uint64_t *marks;
    const uint32_t *map;
    const uint32_t *members;
    const char *names;
    const unsigned char *payload;
};

static int bad(struct crystal_error *err, const char *what)
{
    return crystal_error_set(err, EINVAL, "%s; run 'scrystal graph' again", what);
}

/* --- sections --- */

struct cursor {
    const char *body;
    size_t body_bytes, used;
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

static int sections(struct crystal_graph *g, struct crystal_error *err)
{
    struct cursor c = {g->view.body, g->view.body_bytes, 0};
    const struct crystal_graph_head *h = section(&c, 1, sizeof *h);

    if (!h)
        return bad(err, "too short for its head");
    g->head = h;
    if (!h->lrank_count || !h->rep_count || !h->dp_size || !h->dp_stride)
        return bad(err, "its head has a zero where none can be");
    if (g->view.head->version == CRYSTAL_GRAPH_VERSION &&
        (h->ranks_per_node || h->bytes_per_s || h->latency_ns || h->node_bytes_per_s ||
         h->node_latency_ns))
        return bad(err, "its head tells a network, which version 1 has not");
    if (!(g->reps = section(&c, h->rep_count, sizeof *g->reps)) ||
        !(g->ranks = section(&c, h->lrank_count, sizeof *g->ranks)) ||
        !(g->comms = section(&c, h->comm_count, sizeof *g->comms)) ||
        !(g->locals = section(&c, h->local_count, sizeof *g->locals)) ||
        !(g->colls = section(&c, h->coll_count, sizeof *g->colls)) ||
        !(g->sends = section(&c, h->send_count, sizeof *g->sends)) ||
        !(g->ops = section(&c, h->op_count, sizeof *g->ops)) ||
        !(g->marks = section(&c, h->mark_count, sizeof *g->marks)) ||
        !(g->map = section(&c, h->map_count, sizeof *g->map)) ||
        !(g->members = section(&c, h->member_count, sizeof *g->members)) ||
        !(g->names = section(&c, h->name_bytes, 1)) ||
        !(g->payload = section(&c, h->payload_bytes, 1)))
        return bad(err, "its sections are longer than the file");
    if (c.used != c.body_bytes)
        return bad(err, "it has bytes behind its last section");
    return 0;
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
            (g->view.head->version == CRYSTAL_GRAPH_VERSION ||
             op->aux > g->head->name_bytes || op->value > KERNEL_NS_MAX))
            return bad(err, "a kernel has a value out of range");
        if (op->kind == CRYSTAL_OP_DONE && op->peer >= rep->op_count)
            return bad(err, "an operation's end names no operation");
        if (!is_comm_kind(op))
            continue;
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
    struct crystal_filehead head = {.version = 0};
    int fd = crystal_infile_open(path, NULL, NULL); /* mapping it says what is wrong */

    if (fd >= 0) {
        if (read(fd, &head, sizeof head) != (ssize_t)sizeof head)
            head.version = 0;
        (void)close(fd); /* only read */
    }
    return head.version == CRYSTAL_GRAPH_VERSION ? CRYSTAL_GRAPH_VERSION
                                                 : CRYSTAL_GRAPH_VERSION_DEVICE;
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
    if ((code = sections(g, err)) || (code = check_comms(g, err)) ||
        (code = check_ranks(g, err)) || (code = check_contributions(g, err)) ||
        (code = check_reps(g, err))) {
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
    free(g);
}

/* --- accessors --- */

uint32_t crystal_graph_lrank_count(const struct crystal_graph *g)
{
    return g->head->lrank_count;
}

uint64_t crystal_graph_fingerprint(const struct crystal_graph *g)
{
    return g->view.head->fingerprint;
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
