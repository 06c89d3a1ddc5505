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

/* The calls of one rank, and their records in the same order. */
struct calls {
    const struct crystal_graph *g;
    const struct crystal_trace *t;
    const struct crystal_run_record *recs;
    uint64_t count;
};

static uint64_t count_between(const struct calls *c, uint64_t begin, uint64_t end)
{
    uint64_t count = 0;

    for (uint64_t i = begin; i < end; i++)
        count +=
            is_recorded(c->g, c->t->head.lrank, c->t->ops[i].kind, c->t->ops[i].comm);
    return count;
}

/* The records of an iteration's calls, from number `before` on: do they fit the
 * program's? */
static bool fits(const struct calls *c, const struct crystal_program *p,
                 uint64_t before)
{
    uint64_t at = before;

    for (uint32_t i = 0; i < p->instr_count; i++) {
        const struct crystal_instr *in = &p->instrs[i];

        if (!is_recorded(c->g, c->t->head.lrank, in->kind, in->local))
            continue;
        if (at >= c->count || c->recs[at].func != in->func)
            return false;
        at++;
    }
    return true;
}

static void add(const struct calls *c, struct crystal_program *p, uint64_t before,
                uint64_t *waited_ns)
{
    const struct crystal_run_record *rec = c->recs + before;

    for (uint32_t i = 0; i < p->instr_count; i++) {
        if (!is_recorded(c->g, c->t->head.lrank, p->instrs[i].kind, p->instrs[i].local))
            continue;
        crystal_program_tell(&p->instrs[i], rec->way);
        waited_ns[i] += rec->waited_us * UINT64_C(1000);
        rec++;
    }
}

int crystal_ways_add(const char *path, const struct crystal_graph *g,
                     const struct crystal_trace *t, const uint64_t *marks,
                     uint32_t mark_count, uint32_t first, struct crystal_program *p,
                     uint64_t *waited_ns, struct crystal_error *err)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct calls c = {g, t, NULL, 0};
    struct crystal_filehead head;
    void *records = NULL;
    uint64_t before;
    int code = crystal_block_read(path, &kind, &head, &records, &c.count, err);

    if (code == -ENOENT || code == -ENODATA)
        return 0;
    if (code)
        return code;
    qsort(records, c.count, sizeof *c.recs, by_order);
    c.recs = records;
    before = count_between(&c, 0, marks[first]);
    for (uint32_t k = first; head.lrank == t->head.lrank && k + 1 < mark_count; k++) {
        if (fits(&c, p, before))
            add(&c, p, before, waited_ns);
        before += count_between(&c, marks[k], marks[k + 1]);
    }
    free(records);
    return 0;
}
