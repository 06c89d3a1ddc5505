/* Gaps and transfers out of a trace. See measure.h.
 *
 * A gap is the time from the end of one record of the host thread (the return of a
 * wait, else the moment of issue) to the next one's beginning. Communication calls,
 * groups and hints anchor the trace to the program. Between two anchors the other
 * records are matched one by one where both sides have the same kinds; where not, the
 * computation between the anchors goes to the second one. The device's work between two
 * anchors is matched by stream: one by one where both sides have as much, else all of
 * it is that of the last KERNEL there.
 */
#include "config.h"

#include "replay/measure.h"

#include "replay/spans.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_anchor(uint8_t kind)
{
    return kind == CRYSTAL_OP_COLL || kind == CRYSTAL_OP_SEND ||
           kind == CRYSTAL_OP_RECV || kind == CRYSTAL_OP_GROUP ||
           kind == CRYSTAL_OP_HINT;
}

/* One instruction of the trace. */
struct step {
    const struct crystal_op *op;
    uint64_t gap_ns;
};

/* The host's records from begin to end, with the computation before each. */
static uint32_t steps_of(const struct crystal_op *ops, uint64_t begin, uint64_t end,
                         struct step *steps)
{
    uint64_t last_ns = 0;
    uint32_t count = 0;

    for (uint64_t i = begin; i-- > 0;)
        if (crystal_program_is_instr(&ops[i]) || ops[i].kind == CRYSTAL_OP_START) {
            last_ns = crystal_op_end_ns(&ops[i]);
            break;
        }
    for (uint64_t i = begin; i < end; i++) {
        if (!crystal_program_is_instr(&ops[i]) || ops[i].kind == CRYSTAL_OP_KERNEL)
            continue;
        steps[count].op = &ops[i];
        steps[count].gap_ns = ops[i].t_ns > last_ns ? ops[i].t_ns - last_ns : 0;
        count++;
        if (crystal_op_end_ns(&ops[i]) > last_ns)
            last_ns = crystal_op_end_ns(&ops[i]);
    }
    return count;
}

static bool is_same_call(const struct crystal_instr *in, const struct crystal_op *op)
{
    if (in->kind != op->kind)
        return false;
    if (in->kind == CRYSTAL_OP_GROUP)
        return in->starts_group == (op->aux != 0);
    /* peers of messages differ between replicas */
    return in->kind == CRYSTAL_OP_HINT ||
           (in->func == op->func && in->local == op->comm &&
            (in->kind != CRYSTAL_OP_COLL || in->peer == op->peer));
}

/* Matches what lies between two anchors: instructions [a, a_end), steps [b, b_end). */
static void match_between(const struct crystal_program *p, uint32_t a, uint32_t a_end,
                          const struct step *steps, uint32_t b, uint32_t b_end,
                          uint64_t *gaps)
{
    uint64_t sum = 0;
    uint32_t k = b;
    bool is_same = true;

    for (uint32_t i = a; is_same && i < a_end; i++)
        if (p->instrs[i].kind != CRYSTAL_OP_KERNEL) {
            is_same = k < b_end && p->instrs[i].kind == steps[k].op->kind;
            gaps[i] = is_same ? steps[k].gap_ns : 0;
            k++;
        }
    if (is_same && k == b_end)
        return;
    for (uint32_t i = b; i < b_end; i++)
        sum += steps[i].gap_ns;
    for (uint32_t i = a; i < a_end; i++)
        gaps[i] = 0;
    /* computation in front of a wait and behind it differ only in what they overlap */
    if (a_end < p->instr_count)
        gaps[a_end] += sum;
    else if (a < a_end)
        gaps[a_end - 1] += sum;
}

/* Finds the program's instruction of each step that is an anchor, fills gaps. at[i] is
 * the step of instruction i, UINT32_MAX where none is known. */
static int match(const struct crystal_program *p, const struct step *steps,
                 uint32_t step_count, uint64_t *gaps, uint32_t *at,
                 struct crystal_error *err)
{
    uint32_t a = 0, b = 0;

    memset(at, 0xff, p->instr_count * sizeof *at);
    memset(gaps, 0, p->instr_count * sizeof *gaps);
    for (;;) {
        uint32_t a_end = a, b_end = b;

        while (a_end < p->instr_count && !is_anchor(p->instrs[a_end].kind))
            a_end++;
        while (b_end < step_count && !is_anchor(steps[b_end].op->kind))
            b_end++;
        match_between(p, a, a_end, steps, b, b_end, gaps);
        if (a_end == p->instr_count && b_end == step_count)
            return 0;
        if (a_end == p->instr_count || b_end == step_count ||
            !is_same_call(&p->instrs[a_end], steps[b_end].op))
            return crystal_error_set(
                err, ESTALE,
                "the program did not call what it called during capture (record "
                "%" PRIu64 " of the capture); run 'scrystal capture' again",
                p->instrs[a_end < p->instr_count ? a_end : p->instr_count - 1].record);
        gaps[a_end] += steps[b_end].gap_ns;
        at[a_end] = b_end;
        a = a_end + 1;
        b = b_end + 1;
    }
}

static void transfers_of(const struct crystal_program *p, const struct crystal_op *ops,
                         const struct step *steps, const uint32_t *at,
                         const struct crystal_span *spans, uint64_t *transfers)
{
    for (uint32_t i = 0; i < p->instr_count; i++) {
        const struct crystal_span *span =
            at[i] != UINT32_MAX ? &spans[steps[at[i]].op - ops] : NULL;

        transfers[i] = span && span->end_ns != UINT64_MAX
                           ? span->end_ns - span->begin_ns
                           : UINT64_MAX;
    }
}

/* --- work of the device --- */

/* The streams of an iteration's records in the order of their first use, as programs
 * number them. */
struct dense {
    uint16_t index[UINT16_MAX + 1]; /* UINT16_MAX: not used */
};

static void dense_make(struct dense *d, const struct crystal_op *ops, uint64_t begin,
                       uint64_t end)
{
    uint16_t count = 0;

    memset(d, 0xff, sizeof *d);
    for (uint64_t i = begin; i < end; i++)
        if (crystal_program_is_instr(&ops[i]) && ops[i].kind != CRYSTAL_OP_GROUP &&
            d->index[ops[i].stream] == UINT16_MAX)
            d->index[ops[i].stream] = count++;
}

/* Of the work on a stream in records from .. to: how often, and in all or, nth not
 * NONE, that which comes nth. */
static uint32_t work_on(const struct dense *d, const struct crystal_op *ops,
                        uint64_t from, uint64_t to, uint16_t stream, uint32_t nth,
                        uint64_t *ret_ns)
{
    uint32_t count = 0;

    *ret_ns = 0;
    for (uint64_t i = from; i < to; i++) {
        if (ops[i].kind != CRYSTAL_OP_KERNEL || d->index[ops[i].stream] != stream)
            continue;
        if (nth == CRYSTAL_PROGRAM_NONE || nth == count)
            *ret_ns += ops[i].value;
        count++;
    }
    return count;
}

/* The KERNEL instructions [a, a_end) between two anchors, whose records in the trace
 * are from .. to. */
static void work_between(const struct crystal_program *p, uint32_t a, uint32_t a_end,
                         const struct dense *d, const struct crystal_op *ops,
                         uint64_t from, uint64_t to, uint64_t *transfers)
{
    for (uint32_t i = a; i < a_end; i++) {
        uint16_t stream = p->instrs[i].stream;
        uint32_t before = 0, behind = 0;
        uint64_t ns;

        if (p->instrs[i].kind != CRYSTAL_OP_KERNEL)
            continue;
        for (uint32_t k = a; k < a_end; k++)
            if (p->instrs[k].kind == CRYSTAL_OP_KERNEL &&
                p->instrs[k].stream == stream) {
                before += k < i;
                behind += k > i;
            }
        if (work_on(d, ops, from, to, stream, before, &ns) != before + behind + 1) {
            (void)work_on(d, ops, from, to, stream, CRYSTAL_PROGRAM_NONE, &ns);
            ns = behind ? 0 : ns;
        }
        transfers[i] = ns;
    }
}

/* Nothing where the trace has no work: it was not recorded. */
static int works_of(const struct crystal_program *p, const struct crystal_op *ops,
                    uint64_t begin, uint64_t end, const struct step *steps,
                    const uint32_t *at, uint64_t *transfers)
{
    struct dense *d = malloc(sizeof *d);
    uint64_t from = begin;
    uint32_t a = 0;
    bool has_work = false;

    if (!d)
        return -ENOMEM;
    for (uint64_t i = begin; i < end && !has_work; i++)
        has_work = ops[i].kind == CRYSTAL_OP_KERNEL;
    dense_make(d, ops, begin, end);
    for (uint32_t i = 0; has_work && i <= p->instr_count; i++) {
        if (i < p->instr_count && at[i] == UINT32_MAX)
            continue;
        work_between(p, a, i, d, ops, from,
                     i < p->instr_count ? (uint64_t)(steps[at[i]].op - ops) : end,
                     transfers);
        if (i < p->instr_count)
            from = (uint64_t)(steps[at[i]].op - ops);
        a = i;
    }
    free(d);
    return 0;
}

static int grow(struct crystal_measure *m, uint32_t more)
{
    size_t bytes = ((size_t)m->sample_count + more) * m->instr_count * sizeof(uint64_t);
    uint64_t *gaps = realloc(m->gap_ns, bytes ? bytes : 1), *transfers;

    if (!gaps)
        return -ENOMEM;
    m->gap_ns = gaps;
    transfers = realloc(m->transfer_ns, bytes ? bytes : 1);
    if (!transfers)
        return -ENOMEM;
    m->transfer_ns = transfers;
    return 0;
}

int crystal_measure_add(struct crystal_measure *m, const struct crystal_program *p,
                        const struct crystal_op *ops, uint64_t op_count,
                        const uint64_t *marks, uint32_t mark_count, uint32_t first,
                        struct crystal_error *err)
{
    uint32_t more = mark_count > first + 1 ? mark_count - first - 1 : 0;
    struct step *steps = malloc((op_count + 1) * sizeof *steps);
    struct crystal_span *spans = crystal_spans_find(ops, op_count, err);
    uint32_t *at = malloc((p->instr_count + 1) * sizeof *at);
    int code = 0;

    m->instr_count = p->instr_count;
    if (!steps || !spans || !at || grow(m, more)) {
        code = crystal_error_set(err, ENOMEM, "out of memory");
        goto out;
    }
    for (uint32_t k = 0; !code && k < more; k++) {
        size_t to = (size_t)m->sample_count * m->instr_count;
        uint32_t count = steps_of(ops, marks[first + k], marks[first + k + 1], steps);

        code = match(p, steps, count, m->gap_ns + to, at, err);
        if (code)
            break;
        transfers_of(p, ops, steps, at, spans, m->transfer_ns + to);
        if (works_of(p, ops, marks[first + k], marks[first + k + 1], steps, at,
                     m->transfer_ns + to))
            code = crystal_error_set(err, ENOMEM, "out of memory");
        m->sample_count++;
    }
out:
    free(steps);
    free(spans);
    free(at);
    return code;
}

void crystal_measure_fini(struct crystal_measure *m)
{
    free(m->gap_ns);
    free(m->transfer_ns);
    memset(m, 0, sizeof *m);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

uint32_t crystal_measure_spread(uint64_t *values, uint32_t count, uint64_t *ret_mean,
                                uint64_t *ret_p10, uint64_t *ret_p90)
{
    long double sum = 0;

    if (count)
        qsort(values, count, sizeof *values, compare);
    while (count && values[count - 1] == UINT64_MAX)
        count--;
    *ret_mean = *ret_p10 = *ret_p90 = 0;
    if (!count)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        sum += (long double)values[i];
    *ret_mean = (uint64_t)(sum / count + 0.5L);
    *ret_p10 = values[(count - 1) / 10];
    *ret_p90 = values[count - 1 - (count - 1) / 10];
    return count;
}
