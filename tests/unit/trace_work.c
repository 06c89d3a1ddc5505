/* The device's work of a trace at its place, by hand. */
#include "config.h"

#include "runtime/trace_work.h"

#include "tests/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct crystal_trace trace;

static void take(const struct crystal_op *ops, size_t count)
{
    trace.ops = malloc(count * sizeof *ops);
    trace.op_count = trace.ops ? count : 0;
    CHECK(trace.ops != NULL);
    if (trace.ops)
        memcpy(trace.ops, ops, count * sizeof *ops);
}

static struct crystal_op work(uint8_t what, uint16_t stream, uint32_t record,
                              uint64_t ns)
{
    return (struct crystal_op){.kind = CRYSTAL_OP_WORK,
                               .func = what,
                               .stream = stream,
                               .aux = 1,
                               .peer = record,
                               .value = ns,
                               .t_ns = 99999};
}

static void is_kernel(uint64_t at, uint16_t stream, uint64_t ns, uint64_t t_ns)
{
    const struct crystal_op *op = &trace.ops[at];

    CHECK_EQ(op->kind, CRYSTAL_OP_KERNEL);
    CHECK_EQ(op->stream, stream);
    CHECK_EQ(op->value, ns);
    CHECK_EQ(op->t_ns, t_ns);
    CHECK_EQ(op->aux, 0);
}

static void stands_behind_its_record(void)
{
    struct crystal_error err = {0};
    const struct crystal_op ops[] = {
        {.kind = CRYSTAL_OP_START},
        {.kind = CRYSTAL_OP_COMM, .t_ns = 10, .value = 2},
        {.kind = CRYSTAL_OP_EXT},
        {.kind = CRYSTAL_OP_COLL, .t_ns = 100},
        {.kind = CRYSTAL_OP_PAYLOAD, .t_ns = 100},
        {.kind = CRYSTAL_OP_RECORD, .peer = 1, .t_ns = 200},
        {.kind = CRYSTAL_OP_WAIT, .peer = 1, .t_ns = 300, .value = 900},
        {.kind = CRYSTAL_OP_DONE, .peer = 3, .value = 100, .t_ns = 850},
        work(CRYSTAL_WORK_COPY, 1, 3, 50),
        work(CRYSTAL_WORK_KERNEL, 0, 3, 100),
        work(CRYSTAL_WORK_OWN, 0, 3, 7777),
        {.kind = CRYSTAL_OP_COLL, .t_ns = 1000},
        work(CRYSTAL_WORK_KERNEL, 0, 6, 20),
        work(CRYSTAL_WORK_MEMSET, 0, 6, 30),
        {.kind = CRYSTAL_OP_DONE, .peer = 11, .value = 1000, .t_ns = 1200},
        {.kind = CRYSTAL_OP_END, .t_ns = 2000},
    };
    static const uint8_t kinds[] = {
        CRYSTAL_OP_START,   CRYSTAL_OP_COMM,   CRYSTAL_OP_EXT,    CRYSTAL_OP_COLL,
        CRYSTAL_OP_PAYLOAD, CRYSTAL_OP_KERNEL, CRYSTAL_OP_KERNEL, CRYSTAL_OP_RECORD,
        CRYSTAL_OP_WAIT,    CRYSTAL_OP_KERNEL, CRYSTAL_OP_DONE,   CRYSTAL_OP_COLL,
        CRYSTAL_OP_DONE,    CRYSTAL_OP_END};

    take(ops, sizeof ops / sizeof ops[0]);
    CHECK_EQ(crystal_trace_place_work(&trace, &err), 0);
    CHECK_EQ(trace.op_count, sizeof kinds);
    for (size_t i = 0; trace.op_count == sizeof kinds && i < sizeof kinds; i++)
        CHECK_EQ(trace.ops[i].kind, kinds[i]);
    if (trace.op_count == sizeof kinds) {
        is_kernel(5, 0, 100, 100); /* behind the call's payload, by stream */
        is_kernel(6, 1, 50, 100);
        is_kernel(9, 0, 50, 900); /* the wait had returned */
        CHECK_EQ(trace.ops[10].peer, 3);
        CHECK_EQ(trace.ops[12].peer, 11); /* the same record, at its new place */
        CHECK_EQ(trace.ops[11].t_ns, 1000);
    }
    crystal_trace_fini(&trace);
}

static void without_work_nothing_moves(void)
{
    const struct crystal_op ops[] = {{.kind = CRYSTAL_OP_START},
                                     {.kind = CRYSTAL_OP_END, .t_ns = 5}};
    struct crystal_error err = {0};

    take(ops, 2);
    CHECK_EQ(crystal_trace_place_work(&trace, &err), 0);
    CHECK_EQ(trace.op_count, 2);
    CHECK(memcmp(trace.ops, ops, sizeof ops) == 0);
    crystal_trace_fini(&trace);
}

static void a_sum_has_its_bound(void)
{
    const uint64_t day = UINT64_C(86400000000000);
    const struct crystal_op ops[] = {{.kind = CRYSTAL_OP_START},
                                     work(CRYSTAL_WORK_KERNEL, 0, 0, day),
                                     work(CRYSTAL_WORK_KERNEL, 0, 0, day),
                                     {.kind = CRYSTAL_OP_END, .t_ns = 5}};
    struct crystal_error err = {0};

    take(ops, 4);
    CHECK_EQ(crystal_trace_place_work(&trace, &err), 0);
    CHECK_EQ(trace.op_count, 3);
    is_kernel(1, 0, day, 0);
    crystal_trace_fini(&trace);
}

static void what_names_nothing_is_refused(void)
{
    const struct crystal_op bad[] = {
        work(CRYSTAL_WORK_KERNEL, 0, 1, 5), /* itself */
        work(CRYSTAL_WORK_KERNEL, 0, UINT32_MAX, 5),
        work(CRYSTAL_WORK_COUNT, 0, 0, 5),
        work(CRYSTAL_WORK_KERNEL, 0, 0, UINT64_MAX),
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct crystal_op ops[] = {{.kind = CRYSTAL_OP_START}, bad[i]};
        struct crystal_error err = {0};

        take(ops, 2);
        CHECK_EQ(crystal_trace_place_work(&trace, &err), -EINVAL);
        CHECK_HAS(err.text, "record 1: work has a value out of range");
        CHECK_EQ(trace.op_count, 2);
        crystal_trace_fini(&trace);
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(stands_behind_its_record);
    CHECK_RUN(without_work_nothing_moves);
    CHECK_RUN(a_sum_has_its_bound);
    CHECK_RUN(what_names_nothing_is_refused);
    return check_end();
}
