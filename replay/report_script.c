/* See report_script.h. */
#include "config.h"

#include "replay/report_script.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Fills parts with those of the calls among the first op_count records. */
static void parts_fill(const struct report *r, uint32_t lrank,
                       const struct crystal_op *ops, uint64_t op_count,
                       struct crystal_part *parts)
{
    for (uint64_t i = 0; i < op_count; i++) {
        struct crystal_call call = crystal_call_of_op(r->graph, lrank, &ops[i]);
        uint64_t numbers = crystal_call_numbers(&call);

        for (uint64_t k = 0; k < numbers; k++)
            *parts++ = crystal_call_part(&call, k);
    }
}

int rp_script_make(const struct report *r, uint32_t lrank, struct rp_script *s)
{
    uint32_t rep = crystal_graph_rep_of(r->graph, lrank), mark_count;
    const uint64_t *marks = crystal_graph_marks(r->graph, rep, &mark_count);
    uint64_t op_count;
    const struct crystal_op *ops = crystal_graph_ops(r->graph, rep, &op_count);
    const struct crystal_program *p = r->programs[rep];

    memset(s, 0, sizeof *s);
    s->program = p;
    s->part_count = crystal_ops_numbers(r->graph, lrank, ops, marks[0]);
    s->parts = calloc(s->part_count + 1, sizeof *s->parts);
    s->calls = calloc((size_t)p->instr_count + 1, sizeof *s->calls);
    s->instrs = calloc((size_t)p->instr_count + 1, sizeof *s->instrs);
    if (!s->parts || !s->calls || !s->instrs)
        return -ENOMEM;
    parts_fill(r, lrank, ops, marks[0], s->parts);
    for (uint32_t i = 0; i < p->instr_count; i++) {
        struct crystal_call call =
            crystal_call_of_instr(r->graph, lrank, &p->instrs[i]);

        if (!crystal_call_numbers(&call))
            continue;
        s->calls[s->each] = call;
        s->instrs[s->each++] = i;
    }
    return 0;
}

void rp_script_fini(struct rp_script *s)
{
    free(s->parts);
    free(s->calls);
    free(s->instrs);
}

/* Do the first records fit those before the iterations, in any order? Threads make the
 * communicators of pairs and what was asked of them meanwhile, so that the first calls
 * of a pair have no order among others. None may be missing but where the run ends. */
static bool begins_alike(const struct rp_script *s,
                         const struct crystal_run_record *recs, uint64_t before,
                         bool is_whole)
{
    uint64_t left[UINT8_MAX + 1] = {0}, least = 0;

    for (uint64_t i = 0; i < s->part_count; i++) {
        left[s->parts[i].func]++;
        least += !s->parts[i].may_lack;
    }
    for (uint64_t i = 0; i < before; i++)
        if ((i && recs[i].order == recs[i - 1].order) || !left[recs[i].func]--)
            return false;
    return !is_whole || before >= least;
}

/* The first record before the iterations that is not in its place. */
static uint64_t first_other(const struct rp_script *s,
                            const struct crystal_run_record *recs, uint64_t before)
{
    uint64_t number = 0;

    for (uint64_t i = 0; i < before; i++, number++) {
        while (number < recs[i].order && s->parts[number].may_lack)
            number++;
        if (recs[i].order != number || recs[i].func != s->parts[number].func)
            return i;
    }
    return before;
}

void rp_script_read(const struct rp_script *s, struct crystal_run_record *recs,
                    uint64_t count, struct rp_reading *ret)
{
    uint64_t number = s->part_count, at, to, call = 0;
    int64_t taken = 0;

    qsort(recs, count, sizeof *recs, crystal_run_by_order);
    at = to = ret->before = crystal_run_find(recs, count, number);
    ret->count = count;
    if (!begins_alike(s, recs, at, at < count)) {
        ret->left_at = first_other(s, recs, at);
        return;
    }
    while (at < count) {
        taken = crystal_call_take(&s->calls[call], number, &recs[at], count - at,
                                  &recs[to]);
        if (taken < 0)
            break;
        at += (uint64_t)taken;
        to++;
        number += crystal_call_numbers(&s->calls[call]);
        call = (call + 1) % s->each;
    }
    ret->left_at = to;
    ret->count = taken == -EAGAIN ? to : to + (count - at);
}
