/* Iterations are found from the structure of a trace alone, exactly where they begin.
 */
#include "config.h"

#include "runtime/iteration.h"

#include "tests/check.h"

static struct crystal_op ops[20000];
static uint64_t count;

static void op(enum crystal_op_kind kind, unsigned comm, unsigned peer, uint64_t value)
{
    ops[count++] = (struct crystal_op){.kind = (uint8_t)kind,
                                       .func = 1,
                                       .dtype = 7,
                                       .comm = (uint16_t)comm,
                                       .peer = peer,
                                       .value = value};
}

static void expect(const uint64_t *want, uint32_t want_count)
{
    uint64_t *marks;
    uint32_t mark_count;

    CHECK_EQ(crystal_iteration_find(ops, count, &marks, &mark_count), 0);
    CHECK_EQ(mark_count, want_count);
    for (uint32_t i = 0; i < mark_count && i < want_count; i++)
        CHECK_EQ(marks[i], want[i]);
    free(marks);
}

static void stretch_of_text(const char *text, size_t start, size_t end, size_t period)
{
    struct crystal_stretch s = {9, 9, 9};
    uint64_t symbols[256];

    for (size_t i = 0; text[i]; i++)
        symbols[i] = (uint64_t)text[i] * UINT64_C(0x9e3779b97f4a7c15);
    CHECK_EQ(crystal_stretch_find(symbols, strlen(text), &s), 0);
    if (s.start != start || s.end != end || s.period != period)
        printf("# '%s'\n", text);
    CHECK_EQ(s.start, start);
    CHECK_EQ(s.end, end);
    CHECK_EQ(s.period, period);
}

static void finds_longest_stretch(void)
{
    stretch_of_text("", 0, 0, 0);
    stretch_of_text("a", 0, 0, 0);
    stretch_of_text("abc", 0, 0, 0);
    stretch_of_text("aa", 0, 2, 1);
    stretch_of_text("xyabab", 2, 6, 2);
    stretch_of_text("xyababz", 2, 6, 2);
    /* microbatches "ff" and "bb" inside an iteration "ffffbbbbr" */
    stretch_of_text("sffffbbbbrffffbbbbrffffbbbbr", 1, 28, 9);
    stretch_of_text("sffffbbbbrffffbbbbr", 1, 19, 9);
    /* the trace ends inside an iteration */
    stretch_of_text("sffffbbbbrffffbbbbrffff", 1, 23, 9);
    /* a longer stretch with a longer period wins over an early short one */
    stretch_of_text("aaaaaxyzxyzxyzxyz", 5, 17, 3);
}

static void bare_calls(void)
{
    const uint64_t want[] = {2, 5, 8, 11};

    count = 0;
    op(CRYSTAL_OP_START, 0, 0, 0);
    op(CRYSTAL_OP_COLL, 0, 1, 5);
    for (int i = 0; i < 3; i++) {
        op(CRYSTAL_OP_SEND, 1, 1, 100);
        op(CRYSTAL_OP_RECV, 1, 1, 100);
        op(CRYSTAL_OP_COLL, 2, 0, 7);
    }
    op(CRYSTAL_OP_END, 0, 0, 0);
    expect(want, 4);
}

static void waits_at_the_end_belong_to_the_last(void)
{
    const uint64_t want[] = {1, 4, 7};

    count = 0;
    op(CRYSTAL_OP_START, 0, 0, 0);
    for (int i = 0; i < 2; i++) {
        op(CRYSTAL_OP_COLL, 0, 0, 7);
        op(CRYSTAL_OP_COLL, 1, 0, 7);
        op(CRYSTAL_OP_SYNC, 1, 0, 7);
    }
    op(CRYSTAL_OP_END, 0, 0, 0);
    expect(want, 3);
}

static void hints_cut_equal_calls(void)
{
    const uint64_t want[] = {2, 6, 10, 14};

    count = 0;
    op(CRYSTAL_OP_START, 0, 0, 0);
    op(CRYSTAL_OP_COLL, 3, 0, 9);
    for (int i = 0; i < 3; i++) {
        op(CRYSTAL_OP_COLL, 0, 0, 7);
        op(CRYSTAL_OP_COLL, 0, 0, 7);
        op(CRYSTAL_OP_WAIT, 0, 0, 7);
        op(CRYSTAL_OP_HINT, 0, 0, (uint64_t)i);
    }
    op(CRYSTAL_OP_END, 0, 0, 0);
    expect(want, 4);
}

static void sizes_cut_equal_calls(void)
{
    const uint64_t want[] = {1, 4, 7, 10};

    count = 0;
    op(CRYSTAL_OP_START, 0, 0, 0);
    for (int i = 0; i < 3; i++)
        for (uint64_t size = 5; size < 8; size++)
            op(CRYSTAL_OP_COLL, 0, 0, size);
    expect(want, 4);
}

static void sizes_may_change(void)
{
    const uint64_t want[] = {1, 3, 5, 7};

    count = 0;
    op(CRYSTAL_OP_START, 0, 0, 0);
    for (int i = 0; i < 3; i++) {
        op(CRYSTAL_OP_SEND, 0, 1, (uint64_t)(1000 + 7 * i));
        op(CRYSTAL_OP_COLL, 1, 0, 5);
    }
    expect(want, 4);
}

static void groups_begin_an_iteration(void)
{
    const uint64_t want[] = {1, 6, 11};

    count = 0;
    op(CRYSTAL_OP_START, 0, 0, 0);
    for (int i = 0; i < 2; i++) {
        op(CRYSTAL_OP_GROUP, 0, 0, 0);
        ops[count - 1].aux = 1;
        op(CRYSTAL_OP_SEND, 0, 1, 5);
        op(CRYSTAL_OP_RECV, 0, 2, 5);
        op(CRYSTAL_OP_GROUP, 0, 0, 0);
        op(CRYSTAL_OP_COLL, 1, 0, 5);
    }
    expect(want, 3);
}

/* A 1F1B pipeline stage: warm-up forwards, then one forward one backward, then the
 * backwards that are left, then gradients. */
static void pipeline_iteration(unsigned stage, unsigned stages, unsigned microbatches)
{
    unsigned ahead = stages - 1 - stage;

    for (unsigned m = 0; m < microbatches + ahead; m++) {
        if (m < microbatches) { /* forward */
            if (stage > 0)
                op(CRYSTAL_OP_RECV, 0, stage - 1, 64);
            op(CRYSTAL_OP_COLL, 1, 0, 64);
            op(CRYSTAL_OP_COLL, 1, 0, 64);
            if (stage < stages - 1)
                op(CRYSTAL_OP_SEND, 0, stage + 1, 64);
        }
        if (m >= ahead) { /* backward */
            if (stage < stages - 1)
                op(CRYSTAL_OP_RECV, 0, stage + 1, 64);
            op(CRYSTAL_OP_COLL, 1, 0, 64);
            op(CRYSTAL_OP_COLL, 1, 0, 64);
            if (stage > 0)
                op(CRYSTAL_OP_SEND, 0, stage - 1, 64);
        }
    }
    op(CRYSTAL_OP_COLL, 2, 0, 4096);
    op(CRYSTAL_OP_COLL, 2, 0, 4096);
}

static void microbatches_are_no_iterations(void)
{
    for (unsigned stages = 1; stages <= 4; stages++)
        for (unsigned stage = 0; stage < stages; stage++)
            for (unsigned iterations = 2; iterations <= 4; iterations++)
                for (unsigned microbatches = 1; microbatches <= 64; microbatches *= 4) {
                    uint64_t want[8];

                    if (stages == 1 && microbatches == 1)
                        continue; /* fine too, but only two calls */
                    count = 0;
                    op(CRYSTAL_OP_START, 0, 0, 0);
                    op(CRYSTAL_OP_COLL, 3, 0, 1);
                    op(CRYSTAL_OP_COLL, 3, 0, 1);
                    for (unsigned i = 0; i < iterations; i++) {
                        want[i] = count;
                        pipeline_iteration(stage, stages, microbatches);
                    }
                    want[iterations] = count;
                    op(CRYSTAL_OP_END, 0, 0, 0);
                    expect(want, iterations + 1);
                }
}

static void nothing_repeats(void)
{
    count = 0;
    op(CRYSTAL_OP_START, 0, 0, 0);
    expect(NULL, 0);
    op(CRYSTAL_OP_COLL, 0, 0, 1);
    op(CRYSTAL_OP_COLL, 1, 0, 1);
    expect(NULL, 0);
    count = 0;
    expect(NULL, 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(finds_longest_stretch);
    CHECK_RUN(bare_calls);
    CHECK_RUN(waits_at_the_end_belong_to_the_last);
    CHECK_RUN(hints_cut_equal_calls);
    CHECK_RUN(sizes_cut_equal_calls);
    CHECK_RUN(sizes_may_change);
    CHECK_RUN(groups_begin_an_iteration);
    CHECK_RUN(microbatches_are_no_iterations);
    CHECK_RUN(nothing_repeats);
    return check_end();
}
