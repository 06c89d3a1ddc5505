/* When operations began and ended, from hand-made records. */
#include "config.h"

#include "replay/spans.h"

#include "tests/check.h"

#include <stdlib.h>

static struct crystal_op coll(uint16_t stream, uint64_t t_ns)
{
    return (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                               .func = CRYSTAL_FUNC_ALLREDUCE,
                               .stream = stream,
                               .t_ns = t_ns};
}

static struct crystal_op done(uint32_t record, uint64_t begin_ns, uint64_t end_ns)
{
    return (struct crystal_op){
        .kind = CRYSTAL_OP_DONE, .peer = record, .value = begin_ns, .t_ns = end_ns};
}

static struct crystal_op mark(uint32_t event, uint16_t stream, uint64_t t_ns)
{
    return (struct crystal_op){
        .kind = CRYSTAL_OP_RECORD, .peer = event, .stream = stream, .t_ns = t_ns};
}

static struct crystal_op waited(uint32_t event, uint64_t t_ns, uint64_t until_ns)
{
    return (struct crystal_op){
        .kind = CRYSTAL_OP_WAIT, .peer = event, .t_ns = t_ns, .value = until_ns};
}

static struct crystal_op synchronised(uint16_t stream, uint64_t t_ns, uint64_t until_ns)
{
    return (struct crystal_op){
        .kind = CRYSTAL_OP_SYNC, .stream = stream, .t_ns = t_ns, .value = until_ns};
}

static void check_span(const struct crystal_span *s, uint64_t begin_ns, uint64_t end_ns)
{
    CHECK_EQ(s->begin_ns, begin_ns);
    CHECK_EQ(s->end_ns, end_ns);
}

/* Whoever of the observer and the program was quicker has seen the end. */
static void the_earlier_look_counts(void)
{
    const struct crystal_op ops[] = {
        coll(1, 100),        mark(0, 1, 110),
        waited(0, 120, 300), done(0, 100, 900),
        coll(1, 1000),       mark(1, 1, 1010),
        done(4, 1000, 1200), waited(1, 1020, 1500),
        coll(2, 2000),       synchronised(2, 2010, 2100),
        done(8, 2000, 2050), coll(2, 3000), /* nobody has seen its end */
    };
    struct crystal_span *s = crystal_spans_find(ops, sizeof ops / sizeof *ops, NULL);

    CHECK(s != NULL);
    if (!s)
        return;
    check_span(&s[0], 100, 300);
    check_span(&s[4], 1000, 1200);
    check_span(&s[8], 2000, 2050);
    CHECK_EQ(s[11].end_ns, UINT64_MAX);
    CHECK_EQ(s[1].end_ns, UINT64_MAX); /* no communication */
    free(s);
}

/* One wait is for all in front of the event, on its stream alone; what began when the
 * one before it was seen to end began earlier, but not before it was issued. */
static void streams_are_in_order(void)
{
    const struct crystal_op ops[] = {
        coll(1, 100),       coll(1, 150),          coll(2, 160),
        mark(0, 1, 170),    coll(1, 180),          waited(0, 200, 400),
        done(0, 100, 800),  done(1, 800, 820),     done(2, 160, 5000),
        done(4, 820, 1000), waited(7, 1100, 1200), /* an event never recorded */
    };
    struct crystal_span *s = crystal_spans_find(ops, sizeof ops / sizeof *ops, NULL);

    CHECK(s != NULL);
    if (!s)
        return;
    check_span(&s[0], 100, 400);
    check_span(&s[1], 400, 400);
    check_span(&s[2], 160, 5000);
    check_span(&s[4], 400, 1000);
    free(s);
}

static void nothing_is_fine(void)
{
    struct crystal_span *s = crystal_spans_find(NULL, 0, NULL);

    CHECK(s != NULL);
    free(s);
}

int main(void)
{
    check_begin();
    CHECK_RUN(the_earlier_look_counts);
    CHECK_RUN(streams_are_in_order);
    CHECK_RUN(nothing_is_fine);
    return check_end();
}
