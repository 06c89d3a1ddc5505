/* How late ranks that share CPUs go on behind a wait. See compose.h.
 *
 * Each slice is run by the timeline as plan has run it: alone, held up by virtual ranks
 * for as long as it was. What it really took longer than that is lateness, and all
 * waits have the same.
 */
#include "config.h"

#include "replay/compose_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRIALS 5
#define NEAR   0.001 /* near enough */

bool cp_is_contended(const struct compose *c)
{
    return c->pass->cpu_count && c->layout.ranks_per_node > c->pass->cpu_count;
}

bool cp_is_behind_wait(const struct crystal_program *p, uint32_t instr)
{
    uint8_t kind = p->instrs[(instr ? instr : p->instr_count) - 1].kind;

    return kind == CRYSTAL_OP_WAIT || kind == CRYSTAL_OP_SYNC;
}

/* Messages to one rank follow each other on its link, so of a group that virtual ranks
 * are late for only the first one waits as long as they are late. All messages of a
 * group, of either direction, come as much later as these waits are together. */
static void group_join(const struct crystal_program *p, uint64_t *waited,
                       uint32_t begin, uint32_t end, uint8_t kind)
{
    uint64_t sum_ns = 0;

    for (uint32_t i = begin; i < end; i++)
        sum_ns += p->instrs[i].kind == kind ? waited[i] : 0;
    for (uint32_t i = begin; i < end; i++)
        if (p->instrs[i].kind == kind)
            waited[i] = sum_ns;
}

static void groups_join(const struct crystal_program *p, uint64_t *waited)
{
    uint32_t begin = 0;

    for (uint32_t i = 0; i < p->instr_count; i++) {
        if (p->instrs[i].kind != CRYSTAL_OP_GROUP)
            continue;
        if (p->instrs[i].starts_group) {
            begin = i;
            continue;
        }
        group_join(p, waited, begin, i, CRYSTAL_OP_SEND);
        group_join(p, waited, begin, i, CRYSTAL_OP_RECV);
    }
}

/* Mean number of waits in an iteration of the measured ranks. */
static double wait_count(const struct compose *c)
{
    uint32_t rank_count = c->slices.first[c->slices.count];
    uint64_t count = 0;

    for (uint32_t i = 0; i < rank_count; i++) {
        uint32_t rep = crystal_graph_rep_of(c->graph, c->slices.ranks[i]);

        for (uint32_t k = 0; k < c->programs[rep]->instr_count; k++)
            count += cp_is_behind_wait(c->programs[rep], k);
    }
    return (double)count / rank_count;
}

/* An iteration as measured, mean of all slices. */
static double measured_ns(const struct compose *c)
{
    double sum_ns = 0;

    for (uint32_t s = 0; s < c->slices.count; s++)
        sum_ns += c->slice_ns[s];
    return sum_ns / c->slices.first[c->slices.count];
}

/* The same as the timeline has it. */
static int slices_ns(struct compose *c, uint64_t late_ns, uint8_t *is_outside,
                     double *ret_ns, struct crystal_error *err)
{
    uint64_t sum_ns = 0;
    int code = 0;

    for (uint32_t s = 0; !code && s < c->slices.count; s++) {
        const uint32_t *ranks = c->slices.ranks + c->slices.first[s];
        uint32_t count = c->slices.first[s + 1] - c->slices.first[s];

        memset(is_outside, 1, c->lrank_count);
        for (uint32_t i = 0; i < count; i++)
            is_outside[ranks[i]] = 0;
        code = cp_run(c, late_ns, is_outside, err);
        for (uint32_t i = 0; !code && i < count; i++)
            sum_ns += c->sum_ns[ranks[i]];
    }
    *ret_ns = (double)sum_ns / c->slices.first[c->slices.count];
    return code;
}

/* What a trial has shown; the iteration grows with lateness nearly in a straight line.
 */
struct trial {
    double late_ns, off_ns; /* how much the iteration is too long with so much */
};

/* The next lateness to try, by the line through the last two; negative: none. A wait
 * that is late by a whole iteration explains nothing. */
static double next_late(const struct trial *last, const struct trial *before,
                        double waits, double most_ns)
{
    double slope =
        before ? (last->off_ns - before->off_ns) / (last->late_ns - before->late_ns)
               : waits;
    double late_ns = slope > 0 ? last->late_ns - last->off_ns / slope : -1;

    if (late_ns > most_ns)
        late_ns = last->late_ns < most_ns ? most_ns : -1;
    return late_ns;
}

int cp_late_find(struct compose *c, uint64_t *ret_ns, struct crystal_error *err)
{
    const double real_ns = measured_ns(c), waits = wait_count(c);
    struct trial trials[TRIALS], *best = trials;
    uint8_t *is_outside;
    double late_ns = 0;
    int code = 0;

    *ret_ns = 0;
    if (!cp_is_contended(c) || !(waits > 0))
        return 0;
    is_outside = malloc(c->lrank_count);
    if (!is_outside)
        return cp_no_memory(err);
    for (uint32_t i = 0; i < c->rep_count; i++)
        groups_join(c->programs[i], c->waited[i]);
    for (int i = 0; i < TRIALS && late_ns >= 0; i++) {
        double mean_ns;

        code = slices_ns(c, (uint64_t)(late_ns + 0.5), is_outside, &mean_ns, err);
        if (code)
            break;
        trials[i] = (struct trial){late_ns, mean_ns - real_ns};
        if (fabs(trials[i].off_ns) < fabs(best->off_ns))
            best = &trials[i];
        if (fabs(trials[i].off_ns) < NEAR * real_ns || trials[0].off_ns > 0)
            break; /* near enough, or it took no longer */
        late_ns = next_late(&trials[i], i ? &trials[i - 1] : NULL, waits, real_ns);
    }
    free(is_outside);
    if (!code)
        *ret_ns = (uint64_t)(best->late_ns + 0.5);
    return code;
}
