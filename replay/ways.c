/* See ways.h. Records and traces have the same calls in the same order (parts.h). */
#include "config.h"

#include "replay/ways.h"

#include "replay/parts.h"
#include "replay/run_record.h"
#include "runtime/blockfile.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* The calls of one rank, and their records, sorted. */
struct calls {
    const struct crystal_graph *g;
    const struct crystal_trace *t;
    const struct crystal_run_record *recs;
    uint64_t count;
};

static uint64_t numbers_between(const struct calls *c, uint64_t begin, uint64_t end)
{
    return crystal_ops_numbers(c->g, (uint32_t)c->t->head.lrank, c->t->ops + begin,
                               end - begin);
}

/* Goes through the records of an iteration's calls, from `number` on: do they fit the
 * program's? Adds what they tell where waited_ns is not NULL. */
static bool go_through(const struct calls *c, struct crystal_program *p,
                       uint64_t number, uint64_t *waited_ns)
{
    uint64_t at = crystal_run_find(c->recs, c->count, number);

    for (uint32_t i = 0; i < p->instr_count; i++) {
        struct crystal_call call =
            crystal_call_of_instr(c->g, (uint32_t)c->t->head.lrank, &p->instrs[i]);
        uint64_t numbers = crystal_call_numbers(&call);
        struct crystal_run_record rec;
        int64_t taken;

        if (!numbers)
            continue;
        taken = crystal_call_take(&call, number, c->recs + at, c->count - at, &rec);
        if (taken < 0)
            return false;
        at += (uint64_t)taken;
        number += numbers;
        if (!waited_ns)
            continue;
        crystal_program_tell(&p->instrs[i], rec.way);
        waited_ns[i] += rec.waited_us * UINT64_C(1000);
    }
    return true;
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
    uint64_t number;
    int code = crystal_block_read(path, &kind, &head, &records, &c.count, err);

    if (code == -ENOENT || code == -ENODATA)
        return 0;
    if (code)
        return code;
    qsort(records, c.count, sizeof *c.recs, crystal_run_by_order);
    c.recs = records;
    number = numbers_between(&c, 0, marks[first]);
    for (uint32_t k = first; head.lrank == t->head.lrank && k + 1 < mark_count; k++) {
        if (go_through(&c, p, number, NULL))
            (void)go_through(&c, p, number, waited_ns);
        number += numbers_between(&c, marks[k], marks[k + 1]);
    }
    free(records);
    return 0;
}
