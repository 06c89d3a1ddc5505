/* Iterations by the program's ranges: exactly where they begin and end in a trace,
 * which of them count, and, through a job directory, what is said where ranks do not
 * agree.
 */
#include "config.h"

#include "runtime/graph.h"
#include "runtime/iteration_range.h"

#include "tests/check.h"
#include "tests/job.h"

#include <errno.h>

/* --- one trace, a letter each: S start, [ range, h hint, A B all-reduce of comm 0 and
 * 1, s r messages, w wait, ( ) group, d done, E end, ! another tool --- */

static struct crystal_op ops[256];
static uint64_t op_count;

static struct crystal_op op_of(char c)
{
    switch (c) {
    case '[':
        return (struct crystal_op){.kind = CRYSTAL_OP_HINT, .aux = CRYSTAL_HINT_RANGE};
    case 'h':
        return (struct crystal_op){.kind = CRYSTAL_OP_HINT};
    case '!':
        return (struct crystal_op){.kind = CRYSTAL_OP_HINT, .aux = CRYSTAL_HINT_HIDDEN};
    case 'A':
    case 'B':
        return (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                   .func = CRYSTAL_FUNC_ALLREDUCE,
                                   .comm = (uint16_t)(c - 'A')};
    case 's':
        return (struct crystal_op){.kind = CRYSTAL_OP_SEND, .func = CRYSTAL_FUNC_SEND};
    case 'r':
        return (struct crystal_op){.kind = CRYSTAL_OP_RECV, .func = CRYSTAL_FUNC_RECV};
    case 'w':
        return (struct crystal_op){.kind = CRYSTAL_OP_SYNC};
    case '(':
    case ')':
        return (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = c == '('};
    case 'd':
        return (struct crystal_op){.kind = CRYSTAL_OP_DONE};
    case 'E':
        return (struct crystal_op){.kind = CRYSTAL_OP_END};
    default:
        return (struct crystal_op){.kind = CRYSTAL_OP_START};
    }
}

static void trace_of(const char *text)
{
    for (op_count = 0; text[op_count]; op_count++)
        ops[op_count] = op_of(text[op_count]);
}

/* marks: the same text with a '|' in front of each marked record, or behind all. */
static void found(const char *marked, uint32_t left_count)
{
    struct crystal_range_marks m = {0};
    struct crystal_error err = {0};
    char text[256], got[512];
    size_t count = 0, used = 0;

    for (const char *c = marked; *c; c++)
        if (*c != '|')
            text[count++] = *c;
    text[count] = 0;
    trace_of(text);
    CHECK_EQ(crystal_range_find(ops, op_count, &m, &err), 0);
    for (uint64_t i = 0, k = 0; i <= op_count; i++) {
        if (k < m.count && m.marks[k] == i) {
            got[used++] = '|';
            k++;
        }
        got[used++] = text[i];
    }
    CHECK_STR(got, marked);
    CHECK_EQ(m.left_count, left_count);
    free(m.marks);
}

static void refused(const char *text, int code, const char *sentence)
{
    struct crystal_range_marks m = {0};
    struct crystal_error err = {0};

    trace_of(text);
    CHECK_EQ(crystal_range_find(ops, op_count, &m, &err), code);
    CHECK_STR(crystal_error_text(&err), sentence);
    CHECK(m.marks == NULL);
}

static void begins_where_the_range_does(void)
{
    /* stopped where the fourth range began: three iterations of two halves each */
    found("SA|[AwAw|[AwAw|[AwAw|[E", 0);
    /* waits and ends may come in any number and order */
    found("S|[AwdA|[AdAw|[AAddw|[E", 0);
    found("S|[(sr)wB|[(sr)B|[(sr)wB|[E", 0);
}

static void the_last_ends_with_its_calls(void)
{
    /* the program ended: what is behind the last iteration is none of it */
    found("S|[AwAw|[AwAw|AwE", 0);
    found("S|[AwAw|[AwdAw|E", 0);
    found("S|[AwA|[AwA|wwE", 0);
    /* a call is missing: no iteration */
    found("S|[AwAw|[AwE", 0);
    found("S|[AwAw|[", 0);
    found("S|[AA|[AA|[AB", 0);
}

static void a_warm_up_is_left_out(void)
{
    found("S[AAA|[AA|[AA|[AA|[E", 1);
    found("S[AAA[AAA|[AA|[AA|[E", 2);
    found("S[B|[AA|[E", 1);
}

static void other_calls_are_told(void)
{
    refused(
        "S[AB[AB[ABA[AB[E", -EINVAL,
        "iterations 3 and 4 of the range part at their call 3, which the latter has "
        "not");
    refused(
        "S[AB[A[A[AB[E", -EINVAL,
        "iterations 3 and 4 of the range part at their call 2, which the former has "
        "not");
    refused("S[A[A[A[B[E", -EINVAL,
            "iterations 3 and 4 of the range part at their call 1");
    refused("S[AAE", -ENODATA, "the range began once only");
    refused("SAAhAAhE", -ENODATA, "the range did not begin");
}

static void looks(void)
{
    trace_of("SAhAhE");
    CHECK_EQ(crystal_range_look(ops, op_count), CRYSTAL_RANGE_NEVER);
    trace_of("SAh[A[E");
    CHECK_EQ(crystal_range_look(ops, op_count), CRYSTAL_RANGE_BEGINS);
    trace_of("S!AhAhE");
    CHECK_EQ(crystal_range_look(ops, op_count), CRYSTAL_RANGE_HIDDEN);
}

/* --- a job of two ranks --- */

static void write_rank(struct job *j, uint32_t lrank, const char *text)
{
    job_rank(j, "ranks", lrank);
    job_comm(j, "/g/0", lrank, 2);
    job_comm(j, "/g/1", lrank, 2);
    for (; *text; text++) {
        struct crystal_op op = op_of(*text);

        op.dtype = ncclFloat32;
        op.value = 16;
        job_op(j, op);
    }
    job_rank_end(j);
}

/* A job whose ranks do that; its graph, or NULL and what is said. */
static struct crystal_graph *built(struct job *j, const char *range, const char *first,
                                   const char *second, struct crystal_error *err)
{
    char path[160];
    int code;

    job_begin(j, 2, NULL, "0-1", "0-1");
    j->layout.iteration_range = range ? strdup(range) : NULL;
    job_path(j, path, sizeof path, "layout.yaml");
    JOB_MUST(crystal_layout_write(path, &j->layout, &job_err));
    job_text(j, "comms.tab", "/g/0\t2\t0-1\n/g/1\t2\t0-1\n");
    write_rank(j, 0, first);
    write_rank(j, 1, second);
    memset(err, 0, sizeof *err);
    code = crystal_graph_build(j->dir, err);
    job_path(j, path, sizeof path, "job.graph");
    return code ? NULL : crystal_graph_open(path, err);
}

static void graph_has(const char *range, const char *first, const char *second,
                      uint32_t iteration_count, uint64_t call_count)
{
    struct crystal_graph *g;
    struct crystal_error err;
    struct job j;

    g = built(&j, range, first, second, &err);
    CHECK_STR(err.text, "");
    for (uint32_t rep = 0; g && rep < 2; rep++) {
        uint64_t count, calls = 0;
        uint32_t mark_count;
        const struct crystal_op *all = crystal_graph_ops(g, rep, &count);
        const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);

        CHECK_EQ(mark_count, iteration_count + 1);
        for (uint64_t i = mark_count ? marks[mark_count - 2] : 0;
             mark_count && i < marks[mark_count - 1]; i++)
            calls += all[i].kind == CRYSTAL_OP_COLL;
        CHECK_EQ(calls, call_count);
    }
    crystal_graph_close(g);
    job_end(&j);
}

static void graph_says(const char *first, const char *second, const char *sentence)
{
    struct crystal_error err;
    struct job j;

    CHECK(built(&j, "step", first, second, &err) == NULL);
    CHECK_HAS(crystal_error_text(&err), sentence);
    CHECK_HAS(crystal_error_text(&err), "capture");
    job_end(&j);
}

static void halves_are_two_iterations_without_it(void)
{
    static const char halves[] = "A[AwAw[AwAw[AwAw[AwAw";

    graph_has("step", halves, halves, 4, 2);
    graph_has(NULL, halves, halves, 3, 2); /* as other hints, it ends one */
    graph_has(NULL, "AAwAwAwAwAwAwAwAw", "AAwAwAwAwAwAwAwAw", 9, 1);
}

/* Iteration n of one rank is iteration n of the other. */
static void ranks_agree_by_number(void)
{
    graph_has("step", "[B[AA[AA[AA[", "[BB[BA[AA[AA[", 2, 2);
    graph_has("step", "[AA[AA[AA[AA[", "[AA[AA[AA[", 3, 2);
    graph_says("[B[AA[AA[", "[B[AA", "no iteration of the NVTX range 'step' is whole");
}

static void ranks_that_do_not_are_told(void)
{
    graph_says("AhAhAhAh", "AhAhAhAh", "no rank has begun the NVTX range 'step'");
    graph_says("[A[A[A[", "AhAhAh",
               "rank 0 has begun the NVTX range 'step', rank 1 never");
    graph_says("AhAhAh", "[A[A[A[",
               "rank 1 has begun the NVTX range 'step', rank 0 never");
    graph_says("[A[A[A[", "[A[A[AB[",
               "NVTX range 'step' of rank 1: iterations 2 and 3 of the range part at "
               "their call 2, which the former has not");
    graph_says("[AA[AA[AA[", "[A[A[A[A[A[A[",
               "in an iteration of the NVTX range 'step' rank 0 makes 2 collectives in "
               "'/g/0' and rank 1 1");
}

/* Another tool in one rank: what repeats, in all. */
static void hidden_ranges_leave_it_to_structure(void)
{
    graph_has("step", "!AhAhAhAh", "!AhAhAhAh", 4, 1);
    graph_has("step", "!AwhAwhAwhAwh", "[Aw[Aw[Aw[Aw", 3, 1);
}

int main(void)
{
    check_begin();
    CHECK_RUN(begins_where_the_range_does);
    CHECK_RUN(the_last_ends_with_its_calls);
    CHECK_RUN(a_warm_up_is_left_out);
    CHECK_RUN(other_calls_are_told);
    CHECK_RUN(looks);
    CHECK_RUN(halves_are_two_iterations_without_it);
    CHECK_RUN(ranks_agree_by_number);
    CHECK_RUN(ranks_that_do_not_are_told);
    CHECK_RUN(hidden_ranges_leave_it_to_structure);
    return check_end();
}
