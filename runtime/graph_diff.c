/* See graph_diff.h. */
#include "config.h"

#include "runtime/graph_diff.h"

#include "runtime/nccl_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* --- diff --- */

static bool is_call(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV;
}

/* The next call or, with_kernels, kernel at or behind *at, NULL: none. */
static const struct crystal_op *next_op(const struct crystal_op *ops, uint64_t count,
                                        bool with_kernels, uint64_t *at)
{
    while (*at < count && !is_call(&ops[*at]) &&
           (!with_kernels || ops[*at].kind != CRYSTAL_OP_KERNEL))
        (*at)++;
    return *at < count ? &ops[*at] : NULL;
}

static void print_op(FILE *out, char sign, const struct crystal_op *op, uint64_t at)
{
    if (!op)
        fprintf(out, "    %c nothing more\n", sign);
    else if (op->kind == CRYSTAL_OP_KERNEL)
        fprintf(out, "    %c record %" PRIu64 ": kernel of %" PRIu64 " ns\n", sign, at,
                op->value);
    else
        fprintf(out,
                "    %c record %" PRIu64 ": %s, %" PRIu64 " x %s, comm %u, peer %u\n",
                sign, at, crystal_func_name(op->func), op->value,
                crystal_dtype_name(op->dtype), op->comm, op->peer);
}

static bool is_same_op(const struct crystal_op *a, const struct crystal_op *b)
{
    if (!a || !b)
        return a == b;
    return a->kind == b->kind && a->func == b->func && a->dtype == b->dtype &&
           a->comm == b->comm && a->peer == b->peer && a->value == b->value &&
           a->stream == b->stream;
}

/* Prints the first difference between two lists; true where there is one. */
static bool lists_differ(FILE *out, const struct crystal_graph *a, uint32_t rep_a,
                         const struct crystal_graph *b, uint32_t rep_b)
{
    uint64_t count_a, count_b, at_a = 0, at_b = 0, nth = 0;
    const struct crystal_op *ops_a = crystal_graph_ops(a, rep_a, &count_a);
    const struct crystal_op *ops_b = crystal_graph_ops(b, rep_b, &count_b);
    /* measured ones never last as long twice */
    bool with_kernels = !crystal_graph_is_measured(a) && !crystal_graph_is_measured(b);

    for (;; nth++, at_a++, at_b++) {
        const struct crystal_op *x = next_op(ops_a, count_a, with_kernels, &at_a);
        const struct crystal_op *y = next_op(ops_b, count_b, with_kernels, &at_b);

        if (is_same_op(x, y)) {
            if (!x)
                return false;
            continue;
        }
        fprintf(out, "  operation %" PRIu64 " of ranks %u and %u:\n", nth,
                crystal_graph_rep_lrank(a, rep_a), crystal_graph_rep_lrank(b, rep_b));
        print_op(out, '-', x, at_a);
        print_op(out, '+', y, at_b);
        return true;
    }
}

/* Prints the first local communicator whose members differ. */
static bool comms_differ(FILE *out, const struct crystal_graph *a,
                         const struct crystal_graph *b, uint32_t lrank)
{
    uint32_t count_a = crystal_graph_local_count(a, lrank);
    uint32_t count_b = crystal_graph_local_count(b, lrank);

    if (count_a != count_b) {
        fprintf(out, "  rank %u has %u and %u communicators\n", lrank, count_a,
                count_b);
        return true;
    }
    for (uint32_t i = 0; i < count_a; i++) {
        struct crystal_graph_comm x, y;

        crystal_graph_comm(a, crystal_graph_comm_of(a, lrank, i), &x);
        crystal_graph_comm(b, crystal_graph_comm_of(b, lrank, i), &y);
        if (x.nranks == y.nranks &&
            memcmp(x.members, y.members, x.nranks * sizeof *x.members) == 0)
            continue;
        fprintf(out, "  rank %u: members of communicator %u differ\n", lrank, i);
        return true;
    }
    return false;
}

int crystal_graph_diff(FILE *out, const struct crystal_graph *a,
                       const struct crystal_graph *b, struct crystal_error *err)
{
    uint32_t n = crystal_graph_lrank_count(a), lists = 0, comms = 0;
    uint32_t *seen; /* by list of a: the list of b that it was compared with */

    if (n != crystal_graph_lrank_count(b)) {
        fprintf(out, "%u and %u ranks\n", n, crystal_graph_lrank_count(b));
        return 1;
    }
    seen = malloc(crystal_graph_rep_count(a) * sizeof *seen);
    if (!seen)
        return crystal_error_set(err, ENOMEM, "diff: out of memory");
    memset(seen, 0xff, crystal_graph_rep_count(a) * sizeof *seen);
    for (uint32_t r = 0; r < n && lists + comms < 10; r++) {
        uint32_t rep_a = crystal_graph_rep_of(a, r), rep_b = crystal_graph_rep_of(b, r);

        comms += comms_differ(out, a, b, r);
        if (seen[rep_a] == rep_b)
            continue;
        seen[rep_a] = rep_b;
        lists += lists_differ(out, a, rep_a, b, rep_b);
    }
    free(seen);
    if (lists + comms == 10)
        fprintf(out, "  and perhaps more\n");
    if (lists + comms == 0)
        fprintf(out, "%u ranks do the same in both\n", n);
    return lists + comms > 0;
}

/* --- expand --- */

/* Needs the rank's crank to be its representative's? Peers are cranks of the list,
 * moved across replicas at most. */
static bool has_peers(const struct crystal_graph *g, uint32_t rep, uint32_t local)
{
    uint64_t count;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &count);

    for (uint64_t i = 0; i < count; i++)
        if (ops[i].comm == local &&
            (ops[i].kind == CRYSTAL_OP_SEND || ops[i].kind == CRYSTAL_OP_RECV))
            return true;
    return false;
}

static int check_rank(FILE *out, const struct crystal_graph *g, uint32_t r,
                      const uint8_t *needs_peers, uint32_t *uses)
{
    uint32_t rep = crystal_graph_rep_of(g, r);
    uint32_t stands = crystal_graph_rep_lrank(g, rep);

    for (uint32_t i = 0; i < crystal_graph_local_count(g, r); i++) {
        uint32_t comm = crystal_graph_comm_of(g, r, i);
        uint32_t model = crystal_graph_comm_of(g, stands, i);
        uint32_t own = crystal_graph_crank_of(g, comm, r);
        uint32_t there = crystal_graph_crank_of(g, model, stands);

        uses[comm]++;
        /* in the representative's own communicator peers move with the rank */
        if (needs_peers[i] && comm != model && own != there) {
            fprintf(out,
                    "rank %u does not fit rank %u, which stands for it: it is crank %u "
                    "of communicator %u, that one crank %u of communicator %u, and "
                    "messages name cranks\n",
                    r, stands, own, comm, there, model);
            return 1;
        }
    }
    return 0;
}

static int check_uses(FILE *out, const struct crystal_graph *g, const uint32_t *uses)
{
    for (uint32_t c = 0; c < crystal_graph_comm_count(g); c++) {
        struct crystal_graph_comm comm;

        crystal_graph_comm(g, c, &comm);
        if (!uses[c] || uses[c] == comm.nranks)
            continue;
        for (uint32_t k = 0; k < comm.nranks; k++) {
            bool has_it = false;
            uint32_t r = comm.members[k];

            for (uint32_t i = 0; i < crystal_graph_local_count(g, r); i++)
                has_it = has_it || crystal_graph_comm_of(g, r, i) == c;
            if (has_it)
                continue;
            fprintf(out,
                    "rank %u does not fit: it is a member of communicator %u, and what "
                    "rank %u does, who stands for it, never uses that\n",
                    r, c, crystal_graph_rep_lrank(g, crystal_graph_rep_of(g, r)));
            return 1;
        }
    }
    return 0;
}

int crystal_graph_expand_check(FILE *out, const struct crystal_graph *g,
                               struct crystal_error *err)
{
    uint32_t n = crystal_graph_lrank_count(g), reps = crystal_graph_rep_count(g);
    uint32_t *uses = calloc(crystal_graph_comm_count(g) + 1, sizeof *uses);
    uint8_t **peers = calloc(reps, sizeof(uint8_t *));
    int code = uses && peers ? 0 : -ENOMEM;

    for (uint32_t i = 0; !code && i < reps; i++) {
        uint32_t locals = crystal_graph_local_count(g, crystal_graph_rep_lrank(g, i));

        peers[i] = calloc(locals + 1, 1);
        if (!peers[i])
            code = -ENOMEM;
        for (uint32_t k = 0; !code && k < locals; k++)
            peers[i][k] = has_peers(g, i, k);
    }
    for (uint32_t r = 0; !code && r < n; r++)
        code = check_rank(out, g, r, peers[crystal_graph_rep_of(g, r)], uses);
    if (!code)
        code = check_uses(out, g, uses);
    if (!code)
        fprintf(out,
                "%u ranks fit the %u that stand for them, in %u communicators with all "
                "their members\n",
                n, reps, crystal_graph_comm_count(g));
    for (uint32_t i = 0; peers && i < reps; i++)
        free(peers[i]);
    free(peers);
    free(uses);
    return code < 0 ? crystal_error_set(err, ENOMEM, "expand: out of memory") : code;
}

/* --- memory --- */

int crystal_graph_memory(FILE *out, const struct crystal_graph *g, uint32_t rep,
                         struct crystal_graph_memory *ret)
{
    uint64_t count, now = 0;
    uint32_t mark_count;
    const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &count);

    memset(ret, 0, sizeof *ret);
    for (uint64_t i = 0; i < count; i++) {
        if (ops[i].kind != CRYSTAL_OP_ALLOC)
            continue;
        ret->allocation_count++;
        if (ops[i].aux)
            now -= ops[i].value < now ? ops[i].value : now;
        else
            now = ops[i].value > UINT64_MAX - now ? UINT64_MAX : now + ops[i].value;
        if (mark_count && i < marks[0])
            ret->start_bytes = now;
        if (now > ret->peak_bytes) {
            ret->peak_bytes = now;
            ret->peak_record = i;
        }
        if (out)
            fprintf(out, "%8" PRIu64 " %12.3f us %14" PRIu64 " bytes\n", i,
                    (double)ops[i].t_ns / 1e3, now);
    }
    ret->end_bytes = now;
    return ret->allocation_count > 0;
}
