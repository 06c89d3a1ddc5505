/* Plan on a GPU: what an operation took longer than the wire's arithmetic is its own
 * cost, of the rank that had it; time that it waited for virtual ranks is not; and the
 * composed iteration has the costs.
 */
#include "config.h"

#include "tests/check.h"
#include "tests/composed.h"

#include <stddef.h>

#define FLOATS      32768
#define ALONE_NS    132072 /* their all-reduce by two: 2 * 65536 + 1000 ns */
#define FLOAT_COUNT 1000
#define MESSAGE_NS  5000 /* of so many: 4000 bytes and 1000 ns */
#define FIRST_NS    500000
#define SECOND_NS   300000
#define ROUNDS      4
#define REDUCES     2

static const struct crystal_compose_pass on_gpu = {.has_device = 1};

/* Rank 0 of dp=2: two all-reduces, which take ... */
static void reducer(struct job *j, const char *folder, const uint64_t took_ns[REDUCES])
{
    job_rank(j, folder, 0);
    job_comm(j, "dp", 0, 2);
    job_synchronise(j);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        job_hint(j, i);
        for (uint32_t k = 0; k < REDUCES; k++) {
            uint64_t record;

            j->now_ns += k ? SECOND_NS : FIRST_NS;
            record = crystal_trace_count(j->trace);
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, FLOATS);
            job_done(j, record, j->now_ns, j->now_ns + took_ns[k]);
            job_sync(j, 0, took_ns[k]);
        }
    }
    job_hint(j, ROUNDS);
    job_rank_end(j);
}

static void reduces(struct job *j, const uint64_t took_ns[REDUCES])
{
    static const uint64_t captured_ns[REDUCES] = {5, 5};

    job_begin(j, 2, "dp=2", "0", "0");
    job_text(j, "comms.tab", "dp\t2\t0-1\n");
    reducer(j, "ranks", captured_ns);
    JOB_MUST(crystal_graph_build(j->dir, &job_err));
    reducer(j, "plan", took_ns);
}

/* The costs of rank 0's operations of a kind, in the program's order. */
static uint32_t costs_of(const struct job *j, const struct crystal_profile *p,
                         enum crystal_op_kind kind, uint32_t *costs, uint32_t most)
{
    struct crystal_program *programs[2] = {NULL, NULL}, *program;
    struct crystal_graph *g;
    uint32_t count = 0;
    char path[160];

    job_path(j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    for (uint32_t r = 0; r < crystal_graph_rep_count(g); r++) {
        programs[r] = crystal_program_create(g, r, &job_err);
        JOB_MUST(!programs[r]);
    }
    crystal_profile_tell(p, programs);
    program = programs[0];
    for (uint32_t i = 0; i < program->instr_count; i++) {
        CHECK_EQ(program->instrs[i].cost_ns, crystal_profile_ops(p, 0)[i].cost_ns);
        if (program->instrs[i].kind != kind)
            CHECK_EQ(program->instrs[i].cost_ns, 0);
        else if (count < most)
            costs[count++] = program->instrs[i].cost_ns;
    }
    for (uint32_t r = 0; r < 2; r++)
        crystal_program_destroy(programs[r]);
    crystal_graph_close(g);
    return count;
}

static void check_reduces(const struct job *j, uint32_t first_ns, uint32_t second_ns)
{
    struct crystal_profile *p = job_composed(j, &on_gpu);
    uint32_t costs[REDUCES];

    CHECK_EQ(costs_of(j, p, CRYSTAL_OP_COLL, costs, REDUCES), REDUCES);
    CHECK_EQ(costs[0], first_ns);
    CHECK_EQ(costs[1], second_ns);
    for (uint32_t r = 0; r < 2; r++)
        CHECK_EQ(crystal_profile_iteration(p, r)->mean_ns,
                 FIRST_NS + SECOND_NS + 2 * ALONE_NS + first_ns + second_ns);
    CHECK_EQ(crystal_profile_head(p)->overhead_ns, 0);
    CHECK_EQ(crystal_profile_head(p)->op_overhead_ns, 0);
    crystal_profile_close(p);
}

static void each_operation_has_its_own(void)
{
    _Static_assert(offsetof(struct crystal_profile_op, cost_ns) == 60, "frozen");
    static const uint64_t took_ns[REDUCES] = {ALONE_NS + 700000, ALONE_NS + 20000};
    struct job j;

    reduces(&j, took_ns);
    check_reduces(&j, 700000, 20000);
    job_end(&j);
}

/* One that took less than its bytes need costs nothing. */
static void none_is_negative(void)
{
    static const uint64_t took_ns[REDUCES] = {ALONE_NS - 30000, ALONE_NS + 20000};
    struct job j;

    reduces(&j, took_ns);
    check_reduces(&j, 0, 20000);
    job_end(&j);
}

/* On host memory the head tells it, as before. */
static void without_a_gpu_there_are_none(void)
{
    static const uint64_t took_ns[REDUCES] = {ALONE_NS + 700000, ALONE_NS + 20000};
    static const struct crystal_compose_pass on_host;
    struct crystal_profile *p;
    uint32_t costs[REDUCES];
    struct job j;

    reduces(&j, took_ns);
    p = job_composed(&j, &on_host);
    CHECK_EQ(costs_of(&j, p, CRYSTAL_OP_COLL, costs, REDUCES), REDUCES);
    CHECK_EQ(costs[0], 0);
    CHECK_EQ(costs[1], 0);
    crystal_profile_close(p);
    job_end(&j);
}

/* A pass in the time of the one before: the virtual rank came 160 us after the second
 * all-reduce, which is no cost. */
static void waiting_for_virtual_ranks_is_no_cost(void)
{
    static const uint64_t took_ns[REDUCES] = {ALONE_NS + 9000,
                                              ALONE_NS + 160000 + 20000};
    struct crystal_run_record records[ROUNDS * REDUCES];
    struct job j;

    reduces(&j, took_ns);
    for (uint64_t i = 0; i < ROUNDS * REDUCES; i++)
        records[i] = (struct crystal_run_record){.order = i,
                                                 .func = CRYSTAL_FUNC_ALLREDUCE,
                                                 .nranks = 2,
                                                 .waited_us = i % 2 ? 160 : 0};
    job_saw(&j, 0, records, ROUNDS * REDUCES);
    check_reduces(&j, 9000, 20000);
    job_end(&j);
}

/* Rank 0 of pp=2, which receives what rank 1 sends. */
static void receiver(struct job *j, const char *folder, uint64_t took_ns)
{
    job_rank(j, folder, 0);
    job_comm(j, "pp", 0, 2);
    job_synchronise(j);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t record;

        job_hint(j, i);
        j->now_ns += FIRST_NS;
        record = crystal_trace_count(j->trace);
        job_p2p(j, 0, 0, 1, FLOAT_COUNT);
        job_done(j, record, j->now_ns, j->now_ns + took_ns);
        job_sync(j, 0, took_ns);
    }
    job_hint(j, ROUNDS);
    job_rank_end(j);
}

/* Rank 1, whose sends are in staging memory at once. */
static void sender(struct job *j, const char *folder)
{
    job_rank(j, folder, 1);
    job_comm(j, "pp", 1, 2);
    job_synchronise(j);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t record;

        job_hint(j, i);
        j->now_ns += FIRST_NS;
        record = crystal_trace_count(j->trace);
        job_p2p(j, 1, 0, 0, FLOAT_COUNT);
        job_done(j, record, j->now_ns, j->now_ns);
    }
    job_hint(j, ROUNDS);
    job_rank_end(j);
}

/* Both stages are measured, rank 1 as one that the sandbox does not stand for. */
static void a_message_costs_its_receiver(void)
{
    struct crystal_profile *p;
    uint32_t cost = 0;
    struct job j;

    job_begin(&j, 2, "pp=2", "0-1", "0");
    job_text(&j, "comms.tab", "pp\t2\t0-1\n");
    receiver(&j, "ranks", 5);
    sender(&j, "ranks");
    JOB_MUST(crystal_graph_build(j.dir, &job_err));
    receiver(&j, "plan", MESSAGE_NS + 12000);
    sender(&j, "plan");
    p = job_composed(&j, &on_gpu);
    CHECK_EQ(costs_of(&j, p, CRYSTAL_OP_RECV, &cost, 1), 1);
    CHECK_EQ(cost, 12000);
    /* the sender is ahead by a message after the first iteration */
    CHECK_EQ(crystal_profile_iteration(p, 0)->mean_ns, FIRST_NS + MESSAGE_NS + 12000);
    CHECK_EQ(crystal_profile_iteration(p, 1)->mean_ns, FIRST_NS);
    crystal_profile_close(p);
    job_end(&j);
}

int main(void)
{
    check_begin();
    CHECK_RUN(each_operation_has_its_own);
    CHECK_RUN(none_is_negative);
    CHECK_RUN(without_a_gpu_there_are_none);
    CHECK_RUN(waiting_for_virtual_ranks_is_no_cost);
    CHECK_RUN(a_message_costs_its_receiver);
    return check_end();
}
