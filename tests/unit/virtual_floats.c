/* Floating-point contributions of virtual ranks, recorded ones and stand-ins: one of
 * four ranks is real.
 */
#include "config.h"

#include "tests/unit/payload_stage.h"

/* Their bits are small integers, too: sums are exact. */
static float weight(uint32_t rank, int iteration, uint64_t i)
{
    return (float)((rank + 1) * (3 + (uint32_t)iteration) + i % 5);
}

enum { F_SUM, F_BROADCAST, F_OPS };
#define F_COUNT 3000

/* What of it was kept: every contribution, or the first of each shape
 * that one rank sends. */
static bool keeps_all;
static uint32_t f_redop = ncclSum; /* or ncclAvg: every rank puts in a quarter */

static void record_floats(uint32_t rank)
{
    float *in = malloc(F_COUNT * sizeof *in);

    job_rank(&job, "ranks", rank);
    job_comm(&job, "world", rank, N);
    for (int it = 0; it < ITERATIONS; it++) {
        for (uint64_t i = 0; i < F_COUNT; i++)
            in[i] = weight(rank, it, i);
        job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                         .func = CRYSTAL_FUNC_ALLREDUCE,
                                         .dtype = ncclFloat32,
                                         .aux = f_redop,
                                         .value = F_COUNT});
        if (keeps_all)
            job_payload(&job, in, F_COUNT * sizeof *in);
        job_op(&job, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                         .func = CRYSTAL_FUNC_BROADCAST,
                                         .dtype = ncclFloat32,
                                         .peer = 2,
                                         .value = F_COUNT});
        if (rank == 2 && (keeps_all || it == 0))
            job_payload(&job, in, F_COUNT * sizeof *in);
        if (rank == 3) {
            job_p2p(&job, 1, 0, 0, F_COUNT);
            if (keeps_all || it == 0)
                job_payload(&job, in, F_COUNT * sizeof *in);
        } else if (rank == 0) {
            job_p2p(&job, 0, 0, 3, F_COUNT);
        }
        job_hint(&job, (uint64_t)it + 1);
    }
    job_rank_end(&job);
    free(in);
}

/* Real rank 0 among virtual ones: what it gets in iteration `it`. as: the iteration
 * whose values come from virtual senders; sum_all: virtual ranks take part in sums. */
static void floats_check(struct ring *ring, int it, int as, bool sum_all)
{
    float *in = malloc(F_COUNT * sizeof *in), *out = calloc(F_COUNT, sizeof *out);
    struct ring_run run = {.ring = ring,
                           .op = {CRYSTAL_FUNC_ALLREDUCE, N, 0, F_COUNT, 4, 1, 0,
                                  CRYSTAL_PROTO_SIMPLE, NULL},
                           .is_float = 1,
                           .in = (unsigned char *)in,
                           .out = (unsigned char *)out};
    struct step_handle h;
    void *op, *proxy, *request;
    const float share = f_redop == ncclAvg ? 1.0F / N : 1;
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < F_COUNT; i++)
        in[i] = share * weight(0, it, i);
    CHECK(ring_collective(&run));
    for (uint64_t i = 0; i < F_COUNT; i++) {
        float sum = in[i];

        for (uint32_t r = 1; sum_all && r < N; r++)
            sum += share * weight(r, it, i);
        wrong += out[i] != sum;
    }
    CHECK_EQ(wrong, 0);
    run.op = (struct crystal_ring_op){CRYSTAL_FUNC_BROADCAST, N,   2, F_COUNT, 4, 1, 0,
                                      CRYSTAL_PROTO_SIMPLE,   NULL};
    CHECK(ring_collective(&run));
    for (uint64_t i = 0; i < F_COUNT; i++)
        wrong += out[i] != weight(2, as, i);
    CHECK_EQ(wrong, 0);
    op = p2p_start(&ring->rank, "Recv", "ncclFloat32", F_COUNT, 3);
    proxy = proxy_start(&ring->rank, op, 0, 3, 1, 0);
    h = step_start(&ring->rank, proxy, 0);
    request = post_recv(ring->from_prev, out, F_COUNT * sizeof *out, &h);
    CHECK(request && finish(request, NULL) == ncclSuccess);
    for (uint64_t i = 0; i < F_COUNT; i++)
        wrong += out[i] != weight(3, as, i);
    CHECK_EQ(wrong, 0);
    (void)PROF->stopEvent(proxy);
    (void)PROF->stopEvent(op);
    free(in);
    free(out);
}

static void emulate_floats(uint64_t standin_ops)
{
    struct crystal_board *board;
    int status;
    pid_t pid;

    job_make(record_floats);
    board = board_make("rvvv");
    crystal_board_header(board)->payload_all = keeps_all;
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        struct ring ring = {.order = NULL};

        rank_open(&ring, "rvvv", 0, NULL);
        for (int it = 0; it < ITERATIONS + 1 && check_ok; it++)
            floats_check(&ring, it, keeps_all && it < ITERATIONS ? it : 0,
                         keeps_all && it < ITERATIONS);
        fflush(stdout);
        exit(check_ok ? 0 : 1);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_STR(crystal_board_header(board)->abort_text, "");
    CHECK_EQ(crystal_board_header(board)->standin_ops, standin_ops);
    crystal_board_destroy(board);
    feeds_remove();
    job_end(&job);
}

/* Behind the recording, and without one, virtual ranks add nothing to a sum; who
 * receives gets the first payload of that shape. */
static void floats_are_recorded(void)
{
    keeps_all = true;
    emulate_floats(3);
}

/* What was recorded is what the program gave to its call. */
static void averages_are_of_recorded_floats(void)
{
    f_redop = ncclAvg;
    keeps_all = true;
    emulate_floats(3);
    f_redop = ncclSum;
}

static void floats_have_stand_ins(void)
{
    keeps_all = false;
    emulate_floats(4 + 3 + 3); /* all sums, all but the first of the others */
}

int main(void)
{
    stage_begin();
    CHECK_RUN(floats_are_recorded);
    CHECK_RUN(averages_are_of_recorded_floats);
    CHECK_RUN(floats_have_stand_ins);
    return stage_end();
}
