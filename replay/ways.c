/* See ways.h. Records and traces have the same calls in the same order, those of
 * communicators of one rank excepted, which have no records. */
#include "config.h"

#include "replay/ways.h"

#include "replay/run_record.h"
#include "runtime/blockfile.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

static bool is_call(uint8_t kind)
{
    return kind == CRYSTAL_OP_COLL || kind == CRYSTAL_OP_SEND ||
           kind == CRYSTAL_OP_RECV;
}

static bool is_recorded(const struct crystal_graph *g, uint64_t lrank, uint8_t kind,
                        uint16_t local)
{
    struct crystal_graph_comm c;

    if (!is_call(kind))
        return false;
    crystal_graph_comm(g, crystal_graph_comm_of(g, (uint32_t)lrank, local), &c);
    return c.nranks > 1;
}

static int by_order(const void *a, const void *b)
{
    const struct crystal_run_record *x = a, *y = b;

    return x->order < y->order ? -1 : x->order > y->order;
}

/* The calls of the iteration, first of all recs: do they fit the program's? */
static bool fits(const struct crystal_graph *g, uint64_t lrank,
                 const struct crystal_program *p, const struct crystal_run_record *recs,
                 uint64_t count)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < p->instr_count; i++) {
        const struct crystal_instr *in = &p->instrs[i];

        if (!is_recorded(g, lrank, in->kind, in->local))
            continue;
        if (at >= count || recs[at].func != in->func)
            return false;
        at++;
    }
    return true;
}

int crystal_ways_add(const char *path, const struct crystal_graph *g,
                     const struct crystal_trace *t, uint64_t begin, uint64_t end,
                     struct crystal_program *p, struct crystal_error *err)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct crystal_filehead head;
    struct crystal_run_record *recs;
    uint64_t count, before = 0;
    void *records = NULL;
    int code = crystal_block_read(path, &kind, &head, &records, &count, err);

    if (code == -ENOENT || code == -ENODATA)
        return 0;
    if (code)
        return code;
    recs = records;
    qsort(recs, count, sizeof *recs, by_order);
    for (uint64_t i = 0; i < begin && i < end; i++)
        before += is_recorded(g, t->head.lrank, t->ops[i].kind, t->ops[i].comm);
    if (head.lrank == t->head.lrank && before < count &&
        fits(g, t->head.lrank, p, recs + before, count - before)) {
        recs += before;
        for (uint32_t i = 0; i < p->instr_count; i++)
            if (is_recorded(g, t->head.lrank, p->instrs[i].kind, p->instrs[i].local)) {
                crystal_program_tell(&p->instrs[i], recs->way);
                recs++;
            }
    }
    free(records);
    return 0;
}
