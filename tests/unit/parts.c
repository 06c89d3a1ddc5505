/* Which records a call leaves, against the sends and receives that the documentation of
 * all-to-all, gather and scatter spells out, and the one record that is made of them.
 */
#include "config.h"

#include "replay/parts.h"

#include "tests/check.h"

#include <errno.h>

#define N 3

static struct crystal_call call_of(uint8_t func, uint32_t crank, uint32_t root)
{
    return (struct crystal_call){.kind = CRYSTAL_OP_COLL,
                                 .func = func,
                                 .nranks = N,
                                 .crank = crank,
                                 .root = root,
                                 .count = 5};
}

/* "s" and "r": sends to and receives from others, "S" and "R" those with itself. */
static void spells(const struct crystal_call *call, const char *want)
{
    char got[2 * N + 2] = "";
    uint64_t numbers = crystal_call_numbers(call);

    CHECK_EQ(numbers, strlen(want));
    for (uint64_t i = 0; i < numbers && i <= 2 * N; i++) {
        struct crystal_part part = crystal_call_part(call, i);

        CHECK(part.func == CRYSTAL_FUNC_SEND || part.func == CRYSTAL_FUNC_RECV);
        CHECK_EQ(part.may_lack, call->is_in_place && !part.is_message);
        got[i] = part.func == CRYSTAL_FUNC_SEND ? (part.is_message ? 's' : 'S')
                                                : (part.is_message ? 'r' : 'R');
    }
    CHECK_STR(got, want);
}

static void spells_out_parts(void)
{
    static const struct {
        uint8_t func;
        uint32_t crank, root;
        const char *want;
    } cases[] = {
        {CRYSTAL_FUNC_ALLTOALL, 0, 0, "SRsrsr"},
        {CRYSTAL_FUNC_ALLTOALL, 1, 0, "srSRsr"},
        {CRYSTAL_FUNC_ALLTOALL, 2, 0, "srsrSR"},
        {CRYSTAL_FUNC_GATHER, 1, 1, "SrRr"},
        {CRYSTAL_FUNC_GATHER, 0, 1, "s"},
        {CRYSTAL_FUNC_SCATTER, 2, 2, "ssSR"},
        {CRYSTAL_FUNC_SCATTER, 0, 2, "r"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct crystal_call call =
            call_of(cases[i].func, cases[i].crank, cases[i].root);

        spells(&call, cases[i].want);
        call.is_in_place = true;
        spells(&call, cases[i].want);
    }
}

static void counts_others(void)
{
    struct crystal_call call = call_of(CRYSTAL_FUNC_ALLREDUCE, 0, 0);

    CHECK_EQ(crystal_call_numbers(&call), 1);
    CHECK_EQ(crystal_call_part(&call, 0).func, CRYSTAL_FUNC_ALLREDUCE);
    call.count = 0; /* nothing to do */
    CHECK_EQ(crystal_call_numbers(&call), 0);
    call.func = CRYSTAL_FUNC_ALLTOALL;
    CHECK_EQ(crystal_call_numbers(&call), 0);
    call.kind = CRYSTAL_OP_SEND; /* of no bytes: a message all the same */
    call.func = CRYSTAL_FUNC_SEND;
    CHECK_EQ(crystal_call_numbers(&call), 1);
    call.nranks = 1;
    CHECK_EQ(crystal_call_numbers(&call), 0);
}

/* What crank 1 of an all-to-all leaves, from number 10 on. Part i is called at 100 + i,
 * begins at 1000 - 10 i, ends at 2000 + 100 i (the receive from 0: at 9000) and waits
 * i us. */
static void record(struct crystal_run_record recs[2 * N])
{
    for (uint32_t i = 0; i < 2 * N; i++)
        recs[i] = (struct crystal_run_record){.comm_id = 77,
                                              .order = 10 + i,
                                              .api_ns = 100 + i,
                                              .arrive_ns = 1000 - 10 * i,
                                              .end_ns = i == 1 ? 9000 : 2000 + 100 * i,
                                              .bytes = 20,
                                              .nranks = N,
                                              .crank = 1,
                                              .func = i % 2 ? CRYSTAL_FUNC_RECV
                                                            : CRYSTAL_FUNC_SEND,
                                              .flags = i == 5 ? CRYSTAL_RUN_VIRTUAL : 0,
                                              .waited_us = i};
}

static void joins(void)
{
    struct crystal_call call = call_of(CRYSTAL_FUNC_ALLTOALL, 1, 0);
    struct crystal_run_record recs[2 * N], sum;

    record(recs);
    CHECK_EQ(crystal_call_take(&call, 10, recs, 2 * N, &sum), 2 * N);
    CHECK_EQ(sum.comm_id, 77);
    CHECK_EQ(sum.order, 10);
    CHECK_EQ(sum.func, CRYSTAL_FUNC_ALLTOALL);
    CHECK_EQ(sum.api_ns, 100);
    CHECK_EQ(sum.arrive_ns, 960); /* of the sends to others, 1000 and 960 */
    CHECK_EQ(sum.end_ns, 9000);
    CHECK_EQ(sum.bytes, 20);
    CHECK_EQ(sum.waited_us, 5);
    CHECK_EQ(sum.flags, CRYSTAL_RUN_VIRTUAL);
    CHECK_EQ(sum.way, 0);

    /* the result may stand in the place of its first part */
    CHECK_EQ(crystal_call_take(&call, 10, recs, 2 * N, &recs[0]), 2 * N);
    CHECK_EQ(recs[0].func, CRYSTAL_FUNC_ALLTOALL);
    CHECK_EQ(recs[0].arrive_ns, 960);

    /* a root of a gather sends to none: its first receive from another */
    record(recs);
    call = call_of(CRYSTAL_FUNC_GATHER, 1, 1);
    for (uint32_t i = 1; i < 4; i++)
        recs[i].func = CRYSTAL_FUNC_RECV;
    CHECK_EQ(crystal_call_take(&call, 10, recs, 4, &sum), 4);
    CHECK_EQ(sum.func, CRYSTAL_FUNC_GATHER);
    CHECK_EQ(sum.arrive_ns, 970);

    /* any other call keeps its record */
    call = call_of(CRYSTAL_FUNC_ALLREDUCE, 1, 0);
    recs[0].func = CRYSTAL_FUNC_ALLREDUCE;
    recs[0].way = 0x24;
    CHECK_EQ(crystal_call_take(&call, 10, recs, 4, &sum), 1);
    CHECK_EQ(memcmp(&sum, &recs[0], sizeof sum), 0);
}

static void refuses_others(void)
{
    struct crystal_call call = call_of(CRYSTAL_FUNC_ALLTOALL, 1, 0);
    struct crystal_run_record recs[2 * N], sum = {.order = 1};

    record(recs);
    CHECK_EQ(crystal_call_take(&call, 10, recs, 2 * N - 1, &sum), -EAGAIN);
    CHECK_EQ(crystal_call_take(&call, 10, recs, 0, &sum), -EAGAIN);
    CHECK_EQ(crystal_call_take(&call, 9, recs, 2 * N, &sum), -ESTALE);
    recs[4].func = CRYSTAL_FUNC_RECV;
    CHECK_EQ(crystal_call_take(&call, 10, recs, 2 * N, &sum), -ESTALE);
    record(recs);
    recs[5].order++; /* one is missing */
    CHECK_EQ(crystal_call_take(&call, 10, recs, 2 * N, &sum), -ESTALE);
    CHECK_EQ(sum.order, 1);
}

/* In place NCCL moves nothing from a rank to itself: parts 2 and 3 of crank 1. */
static void in_place_may_lack(void)
{
    struct crystal_call call = call_of(CRYSTAL_FUNC_ALLTOALL, 1, 0);
    struct crystal_run_record recs[2 * N], sum;

    record(recs);
    recs[2] = recs[4];
    recs[3] = recs[5];
    CHECK_EQ(crystal_call_take(&call, 10, recs, 4, &sum), -ESTALE);
    call.is_in_place = true;
    CHECK_EQ(crystal_call_take(&call, 10, recs, 4, &sum), 4);
    CHECK_EQ(sum.arrive_ns, 960);
    record(recs);
    CHECK_EQ(crystal_call_take(&call, 10, recs, 2 * N, &sum), 2 * N);
    /* the last ones of crank 2 */
    call.crank = 2;
    CHECK_EQ(crystal_call_take(&call, 10, recs, 4, &sum), 4);
    CHECK_EQ(crystal_call_take(&call, 10, recs, 3, &sum), -EAGAIN);
}

static void finds_by_number(void)
{
    struct crystal_run_record recs[] = {{.order = 1}, {.order = 3}, {.order = 4}};

    CHECK_EQ(crystal_run_find(recs, 0, 7), 0);
    CHECK_EQ(crystal_run_find(recs, 3, 0), 0);
    CHECK_EQ(crystal_run_find(recs, 3, 2), 1);
    CHECK_EQ(crystal_run_find(recs, 3, 3), 1);
    CHECK_EQ(crystal_run_find(recs, 3, 5), 3);
}

int main(void)
{
    CHECK_RUN(spells_out_parts);
    CHECK_RUN(counts_others);
    CHECK_RUN(joins);
    CHECK_RUN(refuses_others);
    CHECK_RUN(in_place_may_lack);
    CHECK_RUN(finds_by_number);
    return check_end();
}
