/* The timeline: exact times of small jobs, pipelines against a recurrence, ranks from
 * outside, and what never ends.
 */
#include "config.h"

#include "tests/unit/timeline_bench.h"

#include <errno.h>

/* n ranks that compute, reduce and wait. */
static void data_parallel(struct job *j, uint32_t n)
{
    char table[64], live[16];

    (void)snprintf(live, sizeof live, "0-%u", n - 1);
    (void)snprintf(table, sizeof table, "w\t%u\t0-%u\n", n, n - 1);
    job_begin(j, n, NULL, live, live);
    job_text(j, "comms.tab", table);
    for (uint32_t r = 0; r < n; r++) {
        job_rank(j, "ranks", r);
        job_comm(j, "w", r, n);
        job_coll(j, CRYSTAL_FUNC_BROADCAST, 0, 7);
        for (int i = 0; i < 3; i++) {
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 1000);
            job_sync(j, 0, 10);
            job_hint(j, 1);
        }
        job_rank_end(j);
    }
}

static void slowest_rank_counts(void)
{
    struct bench b;
    struct job j;

    data_parallel(&j, 4);
    bench_open(&b, &j);
    for (uint32_t r = 0; r < 4; r++)
        gaps_of_kind(&b, r, CRYSTAL_OP_COLL, 1000 * (r + 1));
    gaps_of_kind(&b, 2, CRYSTAL_OP_HINT, 50);
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 8000);
    CHECK_EQ(b.end_ns[1], 8000);
    CHECK_EQ(b.end_ns[2], 8050);
    CHECK_EQ(b.begin_ns[2], 4050);
    /* one that is 20 % slower moves the iteration as far as it is the slowest */
    b.config.slow_ppm_of_one = 200000;
    b.config.slow_lrank = 3;
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 9600);
    b.config.slow_lrank = 0;
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 8000);
    bench_close(&b);
    job_end(&j);
}

/* Work given to a stream goes on while the host computes. */
static void transfer_overlaps_computation(void)
{
    struct bench b;
    struct job j;

    job_begin(&j, 2, NULL, "0-1", "0-1");
    job_text(&j, "comms.tab", "w\t2\t0-1\nx\t2\t0-1\n");
    for (uint32_t r = 0; r < 2; r++) {
        job_rank(&j, "ranks", r);
        job_comm(&j, "w", r, 2);
        job_comm(&j, "x", r, 2);
        for (int i = 0; i < 3; i++) {
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 32768); /* 2 * 65536 ns */
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 32768);
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 1, 32768);
            job_sync(&j, 1, 10);
            job_sync(&j, 0, 10);
            job_hint(&j, 1);
        }
        job_rank_end(&j);
    }
    bench_open(&b, &j);
    b.config.wire.bytes_per_s = 1000000000;
    b.config.iterations = 1;
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 2 * 131072); /* streams side by side */
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < b.programs[r]->instr_count; i++)
            if (b.programs[r]->instrs[i].kind == CRYSTAL_OP_SYNC)
                b.gaps[r][i] = 100000;
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 2 * 131072); /* 200000 of computation hidden */
    gaps_of_kind(&b, 0, CRYSTAL_OP_SYNC, 150000);
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 300000);
    CHECK_EQ(b.end_ns[1], 2 * 131072);
    bench_close(&b);
    job_end(&j);
}

static void event(struct job *j, enum crystal_op_kind kind, uint32_t index,
                  uint16_t stream)
{
    job_op(j, (struct crystal_op){.kind = (uint8_t)kind,
                                  .peer = index,
                                  .stream = stream,
                                  .value = j->now_ns});
}

static void events_order_streams(void)
{
    struct bench b;
    struct job j;

    job_begin(&j, 2, NULL, "0-1", "0-1");
    job_text(&j, "comms.tab", "w\t2\t0-1\nx\t2\t0-1\n");
    for (uint32_t r = 0; r < 2; r++) {
        job_rank(&j, "ranks", r);
        job_comm(&j, "w", r, 2);
        job_comm(&j, "x", r, 2);
        for (uint32_t i = 0; i < 3; i++) {
            /* new event numbers in every iteration; the first wait is for the event
             * of the iteration before */
            event(&j, CRYSTAL_OP_WAIT, 10 * (i - 1) + 2, 0);
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 32768);
            event(&j, CRYSTAL_OP_RECORD, 10 * i + 1, 1);
            event(&j, CRYSTAL_OP_SWAIT, 10 * i + 1, 2);
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 1, 32768);
            event(&j, CRYSTAL_OP_RECORD, 10 * i + 2, 2);
            job_hint(&j, 1);
        }
        job_rank_end(&j);
    }
    bench_open(&b, &j);
    b.config.wire.bytes_per_s = 1000000000;
    b.config.iterations = 2;
    bench_run(&b);
    CHECK_EQ(b.begin_ns[0], 0);        /* the host never waits in the first */
    CHECK_EQ(b.end_ns[0], 2 * 131072); /* the second begins behind both */
    bench_close(&b);
    job_end(&j);
}

/* --- pipelines --- */

#define STAGES 4
#define MICRO  8

static void pipeline(struct job *j)
{
    job_begin(j, STAGES, NULL, "0-3", "0-3");
    job_text(j, "comms.tab", "w\t4\t0-3\n");
    for (uint32_t s = 0; s < STAGES; s++) {
        uint32_t ahead = STAGES - 1 - s;

        job_rank(j, "ranks", s);
        job_comm(j, "w", s, STAGES);
        for (int i = 0; i < 3; i++) {
            for (uint32_t m = 0; m < MICRO + ahead; m++) {
                if (m < MICRO) {
                    if (s > 0) {
                        job_p2p(j, 0, 0, s - 1, 100);
                        job_sync(j, 0, 1);
                    }
                    /* the forward pass is the gap in front of this */
                    event(j, CRYSTAL_OP_RECORD, 7, 0);
                    if (s < STAGES - 1)
                        job_p2p(j, 1, 0, s + 1, 100);
                }
                if (m >= ahead) {
                    if (s < STAGES - 1) {
                        job_p2p(j, 0, 0, s + 1, 100);
                        job_sync(j, 0, 1);
                    }
                    event(j, CRYSTAL_OP_RECORD, 8, 0);
                    if (s > 0)
                        job_p2p(j, 1, 0, s - 1, 100);
                }
            }
            job_sync(j, 0, 1);
            job_hint(j, 1);
        }
        job_rank_end(j);
    }
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When each stage has ended its iteration: forward takes f[s], backward b[s], messages
 * nothing; 1F1B order. */
static void recurrence(const uint64_t *f, const uint64_t *b, uint64_t *ends)
{
    uint64_t forward[STAGES][MICRO], backward[STAGES][MICRO], host[STAGES] = {0};
    uint32_t next[STAGES] = {0}, half[STAGES] = {0}, left = 2 * STAGES * MICRO;

    memset(forward, 0xff, sizeof forward);
    memset(backward, 0xff, sizeof backward);
    while (left)
        for (uint32_t s = 0; s < STAGES; s++) {
            uint32_t ahead = STAGES - 1 - s, m = next[s];

            if (half[s] == 0 && m < MICRO) {
                uint64_t in = s ? forward[s - 1][m] : 0;

                if (in == UINT64_MAX)
                    continue;
                forward[s][m] = host[s] = later(host[s], in) + f[s];
                left--;
            }
            half[s] = 1;
            if (m >= ahead && m - ahead < MICRO) {
                uint64_t in = s < STAGES - 1 ? backward[s + 1][m - ahead] : 0;

                if (in == UINT64_MAX)
                    continue;
                backward[s][m - ahead] = host[s] = later(host[s], in) + b[s];
                left--;
            }
            half[s] = 0;
            next[s]++;
        }
    /* a send ends when it is received */
    for (uint32_t s = 0; s < STAGES; s++)
        ends[s] = host[s];
}

static void pipeline_gaps(struct bench *b, const uint64_t *f, const uint64_t *w)
{
    for (uint32_t s = 0; s < STAGES; s++)
        for (uint32_t i = 0; i < b->programs[s]->instr_count; i++) {
            const struct crystal_instr *in = &b->programs[s]->instrs[i];
            uint64_t count;
            const struct crystal_op *ops = crystal_graph_ops(b->graph, s, &count);

            if (in->kind == CRYSTAL_OP_RECORD)
                b->gaps[s][i] = ops[in->record].peer == 7 ? f[s] : w[s];
        }
}

static void pipelines_follow_the_recurrence(void)
{
    uint64_t f[STAGES] = {100, 100, 100, 100}, w[STAGES] = {200, 200, 200, 200};
    uint64_t want[STAGES];
    struct bench b;
    struct job j;

    pipeline(&j);
    bench_open(&b, &j);
    b.config.iterations = 1;
    pipeline_gaps(&b, f, w);
    bench_run(&b);
    /* the classic: (microbatches + stages - 1) * (forward + backward) */
    CHECK_EQ(b.end_ns[0], (MICRO + STAGES - 1) * 300);
    for (uint32_t slow = 0; slow < STAGES; slow++)
        for (uint64_t by = 0; by < 5; by++) {
            f[slow] = 100 + 20 * by;
            w[slow] = 200 + 35 * by;
            recurrence(f, w, want);
            pipeline_gaps(&b, f, w);
            bench_run(&b);
            /* the last backward of stage 0 ends the pipeline in any case */
            CHECK_EQ(b.end_ns[0], want[0]);
        }
    bench_close(&b);
    job_end(&j);
}

/* --- ranks from outside --- */

static void outside_ranks_are_fed(void)
{
    struct bench b;
    struct job j;

    data_parallel(&j, 4);
    bench_open_without(&b, &j, 0);
    b.config.iterations = 0;
    b.config.wire.latency_ns = 10;
    for (uint32_t r = 0; r < 4; r++)
        gaps_of_kind(&b, r, CRYSTAL_OP_COLL, 1000 * r);
    bench_start(&b, 50000);
    bench_advance(&b, UINT64_MAX - 1);
    /* seq 0 was before the iterations; the others' arrivals at seq 1 are known */
    CHECK_EQ(b.coll_count, 1);
    CHECK_EQ(b.coll_ns[0], 0);
    CHECK_EQ(b.coll_ns[1], 51000);
    CHECK_EQ(b.coll_ns[3], 53000);
    /* rank 0 comes last: all end by it, three to six steps of 10 ns later */
    JOB_MUST(crystal_timeline_feed(b.timeline, 0, 1, 0, 60000, &job_err));
    JOB_MUST(crystal_timeline_feed(b.timeline, 0, 1, 0, 99999, &job_err)); /* again */
    bench_advance(&b, UINT64_MAX - 1);
    CHECK_EQ(b.coll_count, 2);
    CHECK_EQ(b.coll_ns[1], 60060 + 1000);
    CHECK_EQ(b.coll_ns[2], 60060 + 2000);
    CHECK_EQ(b.coll_ns[3], 60040 + 3000);
    /* what is beyond the horizon is not told yet */
    JOB_MUST(crystal_timeline_feed(b.timeline, 0, 2, 0, 60000, &job_err));
    bench_advance(&b, 63100);
    CHECK_EQ(b.coll_count, 2);
    bench_advance(&b, 80000);
    CHECK_EQ(b.coll_count, 3);
    CHECK_EQ(crystal_timeline_feed(b.timeline, 0, 3, 1, 60000, NULL), -EINVAL);
    CHECK_EQ(crystal_timeline_feed(b.timeline, 9, 3, 1, 60000, NULL), -EINVAL);
    bench_close(&b);
    job_end(&j);
}

static void outside_messages(void)
{
    struct bench b;
    struct job j;

    pipeline(&j);
    bench_open_without(&b, &j, 3);
    b.config.iterations = 0;
    bench_start(&b, 1000);
    bench_advance(&b, UINT64_MAX - 1);
    /* stage 2 has sent its two first forwards and asks for a backward */
    CHECK_EQ(b.p2p_count, 3);
    CHECK_EQ(b.p2p_ns, 1000);
    JOB_MUST(crystal_timeline_feed_p2p(b.timeline, 0, 2, 3, 0, 0, 1500, &job_err));
    bench_advance(&b, UINT64_MAX - 1);
    CHECK_EQ(b.p2p_count, 3);
    /* with it, it goes on to the third forward and asks for the second backward */
    JOB_MUST(crystal_timeline_feed_p2p(b.timeline, 0, 3, 2, 0, 1, 2500, &job_err));
    JOB_MUST(crystal_timeline_feed_p2p(b.timeline, 0, 3, 2, 0, 1, 9999, &job_err));
    bench_advance(&b, UINT64_MAX - 1);
    CHECK_EQ(b.p2p_count, 5);
    CHECK_EQ(b.p2p_ns, 2500);
    bench_close(&b);
    job_end(&j);
}

/* Ranks from outside that are not fed come behind those inside. */
static void outside_ranks_follow(void)
{
    const uint64_t *after[RANKS_MAX];
    uint64_t *late[RANKS_MAX];
    struct bench b;
    struct job j;

    data_parallel(&j, 4);
    bench_open_without(&b, &j, 0);
    b.config.outside_after_ns = after;
    b.config.wire.latency_ns = 10;
    for (uint32_t r = 0; r < 4; r++) {
        after[r] = b.gaps[0]; /* zeros */
        gaps_of_kind(&b, r, CRYSTAL_OP_COLL, 1000 * r);
    }
    bench_run(&b);
    /* as if rank 0 had arrived with rank 3: all end by that, five or six steps later */
    CHECK_EQ(b.coll_count, 2);
    CHECK_EQ(b.coll_ns[1], 3060 + 1000);
    CHECK_EQ(b.coll_ns[3], 3050 + 3000);
    /* rank 1 was held up by it for 500 ns, rank 3 for 200: the longest counts */
    for (uint32_t r = 1; r < 4; r += 2) {
        late[r] = calloc(b.programs[r]->instr_count, sizeof *late[r]);
        JOB_MUST(!late[r]);
        for (uint32_t i = 0; i < b.programs[r]->instr_count; i++)
            if (b.programs[r]->instrs[i].kind == CRYSTAL_OP_COLL)
                late[r][i] = r == 1 ? 500 : 200;
    }
    after[3] = late[3];
    bench_run(&b);
    CHECK_EQ(b.coll_ns[3], 3240 + 3000);
    after[1] = late[1];
    bench_run(&b);
    CHECK_EQ(b.coll_ns[3], 3540 + 3000);
    free(late[1]);
    free(late[3]);
    bench_close(&b);
    job_end(&j);
}

/* Software that one rank's operation costs holds up that rank, and the others as far as
 * they wait for it. */
static void a_cost_is_its_own_ranks(void)
{
    struct bench b;
    struct job j;

    data_parallel(&j, 4);
    bench_open(&b, &j);
    b.config.wire.latency_ns = 10;
    for (uint32_t r = 0; r < 4; r++)
        gaps_of_kind(&b, r, CRYSTAL_OP_COLL, 1000);
    bench_run(&b);
    CHECK_EQ(b.end_ns[0], 2 * (1000 + 60));
    CHECK_EQ(b.end_ns[2], 2 * (1000 + 60));
    for (uint32_t i = 0; i < b.programs[2]->instr_count; i++)
        crystal_program_cost(&b.programs[2]->instrs[i], 500);
    bench_run(&b);
    /* the second begins by rank 2, to which rank 1 cannot send before: what that sends
     * is in five steps back at rank 2, in four at itself */
    CHECK_EQ(b.begin_ns[2], 1000 + 60 + 500);
    CHECK_EQ(b.begin_ns[1], 1000 + 60);
    CHECK_EQ(b.end_ns[2], b.begin_ns[2] + 1000 + 50 + 500);
    CHECK_EQ(b.end_ns[1], b.begin_ns[2] + 1000 + 40);
    bench_close(&b);
    job_end(&j);
}

static void a_message_costs_its_own_side(void)
{
    struct bench b;
    struct job j;

    pipeline(&j);
    bench_open(&b, &j);
    bench_run(&b);
    CHECK_EQ(b.end_ns[3], 0);
    for (uint32_t i = 0; i < b.programs[3]->instr_count; i++)
        if (b.programs[3]->instrs[i].kind == CRYSTAL_OP_RECV)
            crystal_program_cost(&b.programs[3]->instrs[i], 700);
    bench_run(&b);
    /* of each iteration the last stage receives as many as there are microbatches */
    CHECK_EQ(b.begin_ns[3], 700 * MICRO);
    CHECK_EQ(b.end_ns[3], 2 * 700 * MICRO);
    bench_close(&b);
    job_end(&j);
}

static void outside_messages_follow(void)
{
    const uint64_t *after[RANKS_MAX];
    uint64_t *late;
    struct bench b;
    struct job j;

    pipeline(&j);
    bench_open_without(&b, &j, 3);
    b.config.outside_after_ns = after;
    for (uint32_t r = 0; r < STAGES; r++)
        after[r] = b.gaps[r];
    bench_run(&b);
    CHECK_EQ(b.end_ns[2], 0);
    late = calloc(b.programs[2]->instr_count, sizeof *late);
    JOB_MUST(!late);
    after[2] = late;
    for (uint32_t i = 0; i < b.programs[2]->instr_count; i++)
        if (b.programs[2]->instrs[i].kind == CRYSTAL_OP_RECV &&
            b.programs[2]->instrs[i].peer == 3)
            late[i] = 700;
    /* it asks for each backward when it has the one before */
    bench_run(&b);
    CHECK_EQ(b.begin_ns[2], 700 * MICRO);
    CHECK_EQ(b.end_ns[2], 2 * 700 * MICRO);
    free(late);
    bench_close(&b);
    job_end(&j);
}

static void feeding_order_does_not_matter(void)
{
    uint64_t ends[2][RANKS_MAX];
    struct bench b;
    struct job j;

    data_parallel(&j, 6);
    bench_open(&b, &j);
    b.outside[1] = b.outside[4] = 1;
    b.config.is_outside = b.outside;
    b.config.iterations = 3;
    b.config.wire.latency_ns = 17;
    for (uint32_t r = 0; r < 6; r++)
        gaps_of_kind(&b, r, CRYSTAL_OP_COLL, 100 + 77 * r);
    for (int order = 0; order < 2; order++) {
        bench_start(&b, 1000);
        for (uint64_t i = 0; i < 3; i++) {
            uint64_t seq = order ? 3 - i : 1 + i;

            JOB_MUST(crystal_timeline_feed(b.timeline, 0, seq, order ? 4 : 1,
                                           1000 + 900 * seq, &job_err));
            if (order)
                bench_advance(&b, 1200);
            JOB_MUST(crystal_timeline_feed(b.timeline, 0, seq, order ? 1 : 4,
                                           1000 + 900 * seq, &job_err));
        }
        bench_advance(&b, UINT64_MAX);
        CHECK(crystal_timeline_is_done(b.timeline));
        memcpy(ends[order], b.end_ns, sizeof b.end_ns);
        crystal_timeline_destroy(b.timeline);
        b.timeline = NULL;
    }
    CHECK(memcmp(ends[0], ends[1], sizeof ends[0]) == 0);
    CHECK(ends[0][0] > 3700);
    bench_close(&b);
    job_end(&j);
}

/* --- what cannot go on --- */

static void says_who_never_comes(void)
{
    struct crystal_error err = {0};
    struct bench b;
    struct job j;

    job_begin(&j, 2, NULL, "0-1", "0-1");
    job_text(&j, "comms.tab", "w\t2\t0-1\nx\t2\t0-1\n");
    for (uint32_t r = 0; r < 2; r++) {
        job_rank(&j, "ranks", r);
        job_comm(&j, "w", r, 2);
        job_comm(&j, "x", r, 2);
        for (int i = 0; i < 3; i++) { /* w then x here, x then w there: each waits */
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, (uint16_t)r, 1);
            job_sync(&j, (uint16_t)r, 1);
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, (uint16_t)(1 - r), 1);
            job_sync(&j, (uint16_t)(1 - r), 1);
        }
        job_rank_end(&j);
    }
    bench_open(&b, &j);
    bench_start(&b, 0);
    bench_advance(&b, UINT64_MAX);
    CHECK(!crystal_timeline_is_done(b.timeline));
    CHECK_EQ(crystal_timeline_explain(b.timeline, &err), -EDEADLK);
    CHECK_STR(err.text, "rank 0 waits in collective 0 of communicator 0 for rank 1, "
                        "which never arrives");
    bench_close(&b);
    job_end(&j);
}

static void refuses_unequal_counts(void)
{
    struct crystal_error err = {0};
    struct bench b;
    struct job j;

    job_begin(&j, 2, NULL, "0-1", "0-1");
    job_text(&j, "comms.tab", "w\t2\t0-1\n");
    for (uint32_t r = 0; r < 2; r++) {
        job_rank(&j, "ranks", r);
        job_comm(&j, "w", r, 2);
        for (int i = 0; i < 4; i++) {
            job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 1);
            if (r == 0 || i % 2)
                job_hint(&j, 1);
        }
        job_rank_end(&j);
    }
    bench_open(&b, &j);
    CHECK(!crystal_timeline_create(&b.config, &err));
    CHECK_STR(err.text, "ranks 0 and 1 do 1 and 2 collectives of communicator 0 ('w') "
                        "in an iteration; scrystal verify tells where they part, and a "
                        "capture may need more iterations");
    bench_close(&b);
    job_end(&j);
}

int main(void)
{
    check_begin();
    CHECK_RUN(slowest_rank_counts);
    CHECK_RUN(transfer_overlaps_computation);
    CHECK_RUN(events_order_streams);
    CHECK_RUN(pipelines_follow_the_recurrence);
    CHECK_RUN(outside_ranks_are_fed);
    CHECK_RUN(outside_messages);
    CHECK_RUN(outside_ranks_follow);
    CHECK_RUN(a_cost_is_its_own_ranks);
    CHECK_RUN(a_message_costs_its_own_side);
    CHECK_RUN(outside_messages_follow);
    CHECK_RUN(feeding_order_does_not_matter);
    CHECK_RUN(says_who_never_comes);
    CHECK_RUN(refuses_unequal_counts);
    return check_end();
}
