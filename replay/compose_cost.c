/* What software costs an operation on a GPU. See compose.h.
 *
 * A slice is run by the timeline as plan has run it: alone, held up by virtual ranks
 * for as long as it was. What an operation of it really took longer than that is its
 * cost: launches, the library's proxy thread, copies of contents, and computation that
 * uses the same memory. Costs move operations, which then share a NIC with others, so
 * it is done twice: the second time corrects the first.
 */
#include "config.h"

#include "replay/compose_internal.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 2

static bool is_communication(uint8_t kind)
{
    return kind == CRYSTAL_OP_COLL || kind == CRYSTAL_OP_SEND ||
           kind == CRYSTAL_OP_RECV;
}

void cp_cost_on_end(struct compose *c, uint32_t lrank, uint32_t instr, uint64_t ns)
{
    uint64_t at = c->reps[crystal_graph_rep_of(c->graph, lrank)].op_first + instr;

    if (c->is_outside[lrank])
        return;
    c->alone_ns[at] += ns;
    c->alone_count[at]++;
}

/* Each slice by itself, with the costs that are known. */
static int slices_run(struct compose *c, uint8_t *is_outside, struct crystal_error *err)
{
    uint64_t op_count = c->image.head.op_count;
    int code = 0;

    memset(c->alone_ns, 0, op_count * sizeof *c->alone_ns);
    memset(c->alone_count, 0, op_count * sizeof *c->alone_count);
    c->is_outside = is_outside;
    for (uint32_t s = 0; !code && s < c->slices.count; s++) {
        memset(is_outside, 1, c->lrank_count);
        for (uint32_t i = c->slices.first[s]; i < c->slices.first[s + 1]; i++)
            is_outside[c->slices.ranks[i]] = 0;
        code = cp_run(c, 0, is_outside, err);
    }
    c->is_outside = NULL;
    return code;
}

/* What op's cost is too small by; negative: too great. */
static int64_t missing_ns(const struct compose *c, uint64_t at)
{
    return (int64_t)c->ops[at].transfer_ns -
           (int64_t)(c->alone_ns[at] / c->alone_count[at]);
}

static void costs_correct(struct compose *c)
{
    for (uint32_t r = 0; r < c->rep_count; r++)
        for (uint32_t k = 0; k < c->programs[r]->instr_count; k++) {
            struct crystal_instr *in = &c->programs[r]->instrs[k];
            uint64_t at = c->reps[r].op_first + k;
            int64_t ns;

            if (!is_communication(in->kind) || !c->alone_count[at] ||
                !c->ops[at].transfer_ns)
                continue;
            ns = in->cost_ns + missing_ns(c, at);
            ns = ns < 0 ? 0 : ns > UINT32_MAX ? UINT32_MAX : ns;
            crystal_program_cost(in, (uint32_t)ns);
            c->ops[at].cost_ns = (uint32_t)ns;
        }
}

int cp_cost_find(struct compose *c, struct crystal_error *err)
{
    uint64_t op_count = c->image.head.op_count;
    uint8_t *is_outside;
    int code = 0;

    if (!c->pass->has_device)
        return 0;
    is_outside = malloc(c->lrank_count);
    c->alone_ns = malloc((op_count + 1) * sizeof *c->alone_ns);
    c->alone_count = malloc((op_count + 1) * sizeof *c->alone_count);
    if (!is_outside || !c->alone_ns || !c->alone_count)
        code = cp_no_memory(err);
    for (int i = 0; !code && i < ROUNDS; i++) {
        code = slices_run(c, is_outside, err);
        if (!code)
            costs_correct(c);
    }
    free(is_outside);
    free(c->alone_ns);
    free(c->alone_count);
    c->alone_ns = c->alone_count = NULL;
    return code;
}
