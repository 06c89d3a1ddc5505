/* Collectives of no elements, which NCCL leaves out: nobody waits in one, and they have
 * no number. Messages of no elements are sent.
 */
#include "config.h"

#include "tests/unit/timeline_bench.h"

#include "runtime/verify.h"

/* Two ranks: an empty broadcast and one of 7 before the iterations; in each an empty
 * all-reduce, one of 1000, a group of an empty gather and an empty all-gather, and a
 * message of nothing. */
static void make(struct job *j)
{
    job_begin(j, 2, NULL, "0-1", "0-1");
    job_text(j, "comms.tab", "w\t2\t0-1\n");
    for (uint32_t r = 0; r < 2; r++) {
        job_rank(j, "ranks", r);
        job_comm(j, "w", r, 2);
        job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 0);
        job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 7);
        for (int i = 0; i < 3; i++) {
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 0);
            job_sync(j, 0, 10);
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 1000);
            job_sync(j, 0, 10);
            job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = 1});
            job_coll(j, CRYSTAL_FUNC_GATHER, 0, 0);
            job_coll(j, CRYSTAL_FUNC_ALLGATHER, 0, 0);
            job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_GROUP});
            job_p2p(j, !r, 0, !r, 0);
            job_sync(j, 0, 10);
            job_hint(j, 1);
        }
        job_rank_end(j);
    }
}

/* Sets the computation before the nth instruction of a kind. */
static void gap(struct bench *b, uint32_t rep, enum crystal_op_kind kind, uint32_t nth,
                uint64_t gap_ns)
{
    for (uint32_t i = 0; i < b->programs[rep]->instr_count; i++)
        if (b->programs[rep]->instrs[i].kind == kind && nth-- == 0) {
            b->gaps[rep][i] = gap_ns;
            return;
        }
    JOB_MUST(1);
}

/* Rank 0 computes 5000 before the empty call, rank 1 as long behind it: they meet after
 * 5000, where who waits in the empty call too has 10000. Rank 1 waits for the message
 * of nothing, which rank 0 sends 700 later; then comes the next iteration. */
static void gaps_set(struct bench *b)
{
    gap(b, 0, CRYSTAL_OP_COLL, 0, 5000);
    gap(b, 1, CRYSTAL_OP_COLL, 1, 5000);
    gap(b, 0, CRYSTAL_OP_SEND, 0, 700);
    gap(b, 1, CRYSTAL_OP_COLL, 2, 30); /* of an empty call: computation counts */
}

static void nobody_waits_in_one(void)
{
    struct bench b;
    struct job j;

    make(&j);
    bench_open(&b, &j);
    gaps_set(&b);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_EQ(b.programs[r]->coll_before[0], 1);
        CHECK_EQ(b.programs[r]->coll_each[0], 1);
    }
    b.config.iterations = 3;
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 3 * 5700);
    CHECK_EQ(b.end_ns[1], 3 * 5700);
    gap(&b, 1, CRYSTAL_OP_COLL, 2, 900);
    bench_run(&b);
    CHECK_EQ(b.end_ns[1], 3 * 5900);
    bench_close(&b);
    job_end(&j);
}

/* Rank 0 is from outside: it is told of rank 1's arrivals and says when it comes. */
static void they_have_no_number(void)
{
    struct bench b;
    struct job j;

    make(&j);
    bench_open_without(&b, &j, 0);
    gaps_set(&b);
    b.config.iterations = 0;
    bench_start(&b, 1000);
    for (uint64_t i = 0; i < 5 && check_ok; i++) {
        bench_advance(&b, UINT64_MAX - 1);
        CHECK_EQ(b.coll_count, i + 1);
        CHECK_EQ(b.coll_seq, i + 1);
        CHECK_EQ(b.coll_ns[1], 1000 + 5000 + 6000 * i);
        JOB_MUST(crystal_timeline_feed(b.timeline, 0, i + 1, 0, 1000, &job_err));
        bench_advance(&b, UINT64_MAX - 1);
        CHECK_EQ(b.p2p_count, i + 1);
        CHECK_EQ(b.p2p_ns, 1000 + 5030 + 6000 * i);
        JOB_MUST(crystal_timeline_feed_p2p(b.timeline, 0, 0, 1, i, 1,
                                           1000 + 6000 * (i + 1), &job_err));
    }
    bench_close(&b);
    job_end(&j);
}

static void verify_leaves_them_out(void)
{
    struct crystal_verdict v;
    struct bench b;
    struct job j;

    make(&j);
    bench_open(&b, &j);
    JOB_MUST(crystal_verify(b.graph, &v, &job_err));
    CHECK(v.is_sound);
    CHECK_EQ(v.collective_count, 2 * (1 + 3));
    CHECK_EQ(v.message_count, 3);
    crystal_verdict_fini(&v);
    bench_close(&b);
    job_end(&j);
}

int main(void)
{
    check_begin();
    CHECK_RUN(nobody_waits_in_one);
    CHECK_RUN(they_have_no_number);
    CHECK_RUN(verify_leaves_them_out);
    return check_end();
}
