/* The capture stage by hand: scrystal, coordinator, recorder and a real program, 4 live
 * of 16 ranks. Every record of a trace is compared; and however a rank or the command
 * itself ends, there is one sentence, traces that do not count as a capture and no
 * process left.
 */
#include "config.h"

#include "runtime/payload.h"

#include "tests/by_hand.h"

/* --- a capture that ends well --- */

/* Rank 0 is tp 0, pp 0: first stage. Times are not compared. */
#define A2A CRYSTAL_OP_SEND, CRYSTAL_FUNC_SEND, ncclFloat32
#define B2A CRYSTAL_OP_RECV, CRYSTAL_FUNC_RECV, ncclFloat32
#define INT(e)                                      \
    {CRYSTAL_OP_RECORD, 0, 0, 0, 1, 0, 0, e, 0, 0}, \
    {                                               \
        CRYSTAL_OP_WAIT, 0, 0, 0, 0, 0, 0, e, 0, 0  \
    }
/* kept1 .. 3: what follows the sends, nothing or the first payload of their shape. */
#define FIRST(offset) {CRYSTAL_OP_PAYLOAD, 0, 0, 0, 0, 0, 0, 32, offset, 0},
#define ITERATION(offset, kept1, kept2, kept3, event, number)                          \
    {CRYSTAL_OP_COLL,                                                                  \
     CRYSTAL_FUNC_ALLREDUCE,                                                           \
     ncclInt64,                                                                        \
     CRYSTAL_OP_FLAG_IN_PLACE,                                                         \
     1,                                                                                \
     0,                                                                                \
     ncclSum,                                                                          \
     0,                                                                                \
     4,                                                                                \
     0},                                                                               \
        {CRYSTAL_OP_PAYLOAD, 0, 0, 0, 0, 0, 0, 32, offset, 0}, INT(event),             \
        {B2A, 0, 2, 4, 0, 1, 8, 0}, {CRYSTAL_OP_RECORD, 0, 0, 0, 2, 0, 0, 2, 0, 0},    \
        {A2A, 0, 3, 3, 0, 1, 8, 0}, kept1{CRYSTAL_OP_WAIT, 0, 0, 0, 0, 0, 0, 2, 0, 0}, \
        {CRYSTAL_OP_SYNC, 0, 0, 0, 3, 0, 0, 0, 0, 0},                                  \
        {CRYSTAL_OP_SYNC, 0, 0, 0, 4, 0, 0, 0, 0, 0}, {CRYSTAL_OP_COLL,                \
                                                       CRYSTAL_FUNC_ALLGATHER,         \
                                                       ncclFloat32,                    \
                                                       0,                              \
                                                       1,                              \
                                                       1,                              \
                                                       ncclSum,                        \
                                                       0,                              \
                                                       8,                              \
                                                       0},                             \
        {CRYSTAL_OP_COLL,                                                              \
         CRYSTAL_FUNC_REDUCESCATTER,                                                   \
         ncclFloat32,                                                                  \
         0,                                                                            \
         1,                                                                            \
         1,                                                                            \
         ncclSum,                                                                      \
         0,                                                                            \
         8,                                                                            \
         0},                                                                           \
        {CRYSTAL_OP_SYNC, 0, 0, 0, 1, 0, 0, 0, 0, 0},                                  \
        {CRYSTAL_OP_GROUP, 0, 0, 0, 0, 0, 1, 0, 0, 0}, {A2A, 0, 1, 1, 0, 0, 8, 0},     \
        kept2{B2A, 0, 1, 1, 0, 0, 8, 0}, {A2A, 0, 1, 1, 0, 1, 8, 0},                   \
        kept3{B2A, 0, 1, 1, 0, 1, 8, 0},                                               \
        {CRYSTAL_OP_GROUP, 0, 0, 0, 0, 0, 0, 0, 0, 0},                                 \
        {CRYSTAL_OP_SYNC, 0, 0, 0, 1, 0, 0, 0, 0, 0},                                  \
    {                                                                                  \
        CRYSTAL_OP_HINT, 0, 0, 0, 0, 0, 0, 0, number, 0                                \
    }

static const struct crystal_op rank_0[] = {
    {CRYSTAL_OP_START, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {CRYSTAL_OP_COMM, 0, 0, 0, 0, 0, 0, 0, 16, 0},
    {CRYSTAL_OP_COMM, 0, 0, 0, 0, 1, 0, 0, 2, 0},
    {CRYSTAL_OP_COMM, 0, 0, 0, 0, 2, 0, 0, 4, 0},
    {CRYSTAL_OP_COMM, 0, 0, 0, 0, 3, 0, 0, 2, 0},
    {CRYSTAL_OP_COMM, 0, 0, 0, 0, 4, 0, 0, 2, 0},
    ITERATION(0, FIRST(32), FIRST(64), FIRST(96), 0, 1),
    ITERATION(128, , , , 3, 2),
    {CRYSTAL_OP_FREE, 0, 0, 0, 0, 4, 0, 0, 0, 0},
    {CRYSTAL_OP_FREE, 0, 0, 0, 0, 3, 0, 0, 0, 0},
    {CRYSTAL_OP_FREE, 0, 0, 0, 0, 2, 0, 0, 0, 0},
    {CRYSTAL_OP_FREE, 0, 0, 0, 0, 1, 0, 0, 0, 0},
    {CRYSTAL_OP_FREE, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {CRYSTAL_OP_END, 0, 0, 0, 0, 0, 0, 0, 0, 0},
};
#define RANK_0_COUNT (sizeof rank_0 / sizeof rank_0[0])

/* The record without what differs from run to run. */
static struct crystal_op timeless(const struct crystal_op *op)
{
    struct crystal_op copy = *op;

    copy.t_ns = 0;
    if (op->kind == CRYSTAL_OP_START)
        copy.aux = 0;
    if (op->kind == CRYSTAL_OP_START || op->kind == CRYSTAL_OP_WAIT ||
        op->kind == CRYSTAL_OP_SYNC || op->kind == CRYSTAL_OP_END)
        copy.value = 0;
    return copy;
}

static void operation_by_operation(void)
{
    static const char *const names[] = {
        "/default_pg/0//cpu//0", "/default_pg/1//cpu//0", "/default_pg/9//cpu//0",
        "/default_pg/13//cpu//0", "/default_pg/14//cpu//0"};
    struct crystal_trace trace = {0};
    uint64_t last_ns = 0;
    size_t at = 0, comms = 0;

    make_job("--iterations=3");
    CHECK_EQ(
        finish(start_stage("capture", "--iterations 2 --elements 8 --microbatches 1 "
                                      "--compute-us 100 "
                                      "--pattern int,1f1b,allgather,alltoall")),
        0);
    CHECK_HAS(output, "crystal: capture: 4 of 16 ranks\n");
    CHECK_HAS(output, "crystal: capture: recorded 4 of 16 ranks in ");
    all_traces_are_sealed("ranks");
    nothing_is_left();
    CHECK_EQ(read_trace("ranks", 0, &trace), 0);
    for (uint64_t i = 0; i < trace.op_count; i++) {
        struct crystal_op got = timeless(&trace.ops[i]);

        if (got.kind == CRYSTAL_OP_EXT) {
            CHECK(comms > 0 && comms <= 5);
            if (comms > 0 && comms <= 5)
                CHECK_STR((const char *)&trace.ops[i] + 1, names[comms - 1]);
            continue;
        }
        comms += got.kind == CRYSTAL_OP_COMM;
        if (at < RANK_0_COUNT && memcmp(&got, &rank_0[at], sizeof got) != 0) {
            printf("# record %zu: kind %u func %u stream %u comm %u aux %u peer %u "
                   "value %llu; want kind %u\n",
                   at, got.kind, got.func, got.stream, got.comm, got.aux, got.peer,
                   (unsigned long long)got.value, rank_0[at].kind);
            check_ok = false;
        }
        CHECK(trace.ops[i].t_ns >= last_ns);
        last_ns = trace.ops[i].t_ns;
        at++;
    }
    CHECK_EQ(at, RANK_0_COUNT);
    if (trace.op_count) {
        const struct crystal_op *end = &trace.ops[trace.op_count - 1];

        CHECK(end->value > 1000000 && end->value < 1000000000); /* peak memory */
    }
    crystal_trace_fini(&trace);
}

/* int contributes 1, iteration, tp, pp on each rank, and is kept in both iterations; of
 * the sends, the first of each shape is: one of 1f1b and two of alltoall. */
static void control_payloads_are_kept(void)
{
    for (unsigned r = 0; r < LIVE; r++) {
        struct crystal_error err = {0};
        struct crystal_file_view view = {0};
        int64_t want[2][4] = {{1, 0, r % 2, r / 2}, {1, 1, r % 2, r / 2}};
        float swapped[16];
        char path[PATH_MAX + 32];

        for (unsigned i = 0; i < 16; i++)
            swapped[i] = (float)((r % 2 + 3 * (r / 2) + i) % 17);
        (void)snprintf(path, sizeof path, "%s/ranks/%u.payload", job_dir, r);
        CHECK_EQ(crystal_file_map(path, CRYSTAL_PAYLOAD_MAGIC, CRYSTAL_PAYLOAD_VERSION,
                                  &view, &err),
                 0);
        CHECK_EQ(view.body_bytes, 160);
        if (view.body_bytes == 160) {
            const char *body = view.body;

            CHECK(memcmp(body, want[0], 32) == 0);
            CHECK(memcmp(body + 64, swapped, 64) == 0);
            CHECK(memcmp(body + 128, want[1], 32) == 0);
        }
        crystal_file_unmap(&view);
    }
}

/* Lines "rank R iteration I sum S" of one log. */
static void read_log(unsigned lrank, double sums[8], double times_us[8], int *ret_count)
{
    char path[PATH_MAX + 32], line[256];
    unsigned rank;
    int iteration;
    double sum, time_us;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/log/capture.%u.log", job_dir, lrank);
    file = fopen(path, "r");
    *ret_count = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "rank %u iteration %d sum %lf time_us %lf", &rank, &iteration,
                   &sum, &time_us) == 4 &&
            rank == lrank && iteration == *ret_count && iteration < 8) {
            times_us[iteration] = time_us;
            sums[(*ret_count)++] = sum;
        }
    if (file)
        (void)fclose(file); /* read-only */
}

static void read_sums(unsigned lrank, double sums[8], int *ret_count)
{
    double times_us[8];

    read_log(lrank, sums, times_us, ret_count);
}

/* What the representatives alone compute is what all 16 ranks compute. */
static void replica_computes_what_all_compute(void)
{
    double replica[LIVE][8], all[8];
    int counts[LIVE], count;

    make_job("--iterations=3");
    CHECK_EQ(
        finish(start_stage("capture", "--iterations 3 --elements 100 --compute-us 0")),
        0);
    for (unsigned r = 0; r < LIVE; r++) {
        read_sums(r, replica[r], &counts[r]);
        CHECK_EQ(counts[r], 3);
    }
    make_job("--iterations=3 --live=all");
    CHECK_EQ(
        finish(start_stage("capture", "--iterations 3 --elements 100 --compute-us 0")),
        0);
    for (unsigned r = 0; r < 16; r++) {
        read_sums(r, all, &count);
        CHECK_EQ(count, 3);
        for (int i = 0; i < count; i++)
            CHECK_EQ(all[i], replica[r % LIVE][i]);
    }
}

/* The records without times, payload and what polling adds; caller frees. */
static struct crystal_op *structure(unsigned lrank, uint64_t *ret_count)
{
    struct crystal_trace trace = {0};
    struct crystal_op *ops;

    *ret_count = 0;
    if (read_trace("ranks", lrank, &trace))
        return NULL;
    ops = calloc(trace.op_count, sizeof *ops);
    for (uint64_t i = 0; ops && i < trace.op_count; i++) {
        if (trace.ops[i].kind == CRYSTAL_OP_PAYLOAD)
            continue;
        ops[*ret_count] = timeless(&trace.ops[i]);
        if (trace.ops[i].kind == CRYSTAL_OP_EXT) /* of names: as they are */
            ops[*ret_count] = trace.ops[i];
        ++*ret_count;
    }
    crystal_trace_fini(&trace);
    return ops;
}

/* Sixteen ranks one after the other do, operation by operation, what all do at once. */
static void one_by_one_records_what_all_record(void)
{
    struct crystal_op *all[16], *one;
    uint64_t counts[16], count;

    make_job("--iterations=3 --live=all");
    CHECK_EQ(
        finish(start_stage("capture", "--iterations 3 --elements 100 --compute-us 0")),
        0);
    for (unsigned r = 0; r < 16; r++)
        all[r] = structure(r, &counts[r]);
    make_job("--iterations=3 --live=0-15");
    CHECK_EQ(
        finish(start_stage("capture", "--iterations 3 --elements 100 --compute-us 0")),
        0);
    CHECK_HAS(output, "crystal: capture: rank 15 by itself (16 of 16)\n");
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
    for (unsigned r = 0; r < 16; r++) {
        one = structure(r, &count);
        CHECK(count > 50);
        CHECK_EQ(count, counts[r]);
        CHECK(one && all[r] && count == counts[r] &&
              memcmp(one, all[r], count * sizeof *one) == 0);
        free(one);
        free(all[r]);
    }
    nothing_is_left();
}

/* A list that is no replica, and ranks that nobody in it stands for. */
static void lists_are_checked(void)
{
    CHECK(finish(start("exec %s layout --logical-ranks=8 --ranks-per-node=4 "
                       "--live=1-9 --job-dir=%s",
                       scrystal, job_dir)) != 0);
    CHECK_HAS(output, "-live: rank list '1-9'");
    CHECK(finish(start("exec %s layout --logical-ranks=8 --ranks-per-node=4 "
                       "--parallel=tp=2,dp=4 --live=1-3 --job-dir=%s",
                       scrystal, job_dir)) != 0);
    CHECK_HAS(output, "-live: '1-3' leaves out rank 0, and nobody in it stands "
                      "for it; name a whole replica");
}

/* An operation whose input is the output of one under way goes out when that has ended,
 * whatever the program does meanwhile. */
static void held_operations_go_out(void)
{
    double sums[8], times_us[8];
    int count;

    make_job("--iterations=3");
    CHECK_EQ(
        finish(start_stage("capture", "--iterations 1 --elements 10 --pattern held "
                                      "--compute-us 800000")),
        0);
    read_log(0, sums, times_us, &count);
    CHECK_EQ(count, 1);
    CHECK(times_us[0] >= 800000);
    CHECK_EQ(sums[0], 190); /* gathered 45 + 55, scattered 2 x 45 */
    read_log(1, sums, times_us, &count);
    CHECK_EQ(count, 1);
    CHECK(times_us[0] < 400000);
}

static void iterations_end_the_program(void)
{
    struct crystal_trace trace = {0};
    double sums[8];
    int count;

    make_job("--iterations=1");
    CHECK_EQ(
        finish(start_stage("capture", "--iterations 7 --elements 10 --compute-us 0")),
        0);
    for (unsigned r = 0; r < LIVE; r++) {
        read_sums(r, sums, &count);
        CHECK_EQ(count, 2); /* the one skipped and the one asked for */
        CHECK_EQ(read_trace("ranks", r, &trace), 0);
        if (trace.op_count > 2) {
            CHECK_EQ(trace.ops[trace.op_count - 2].kind, CRYSTAL_OP_HINT);
            CHECK_EQ(trace.ops[trace.op_count - 2].value, 2);
            CHECK_EQ(trace.ops[trace.op_count - 1].kind, CRYSTAL_OP_END);
            CHECK_EQ(trace.ops[trace.op_count - 1].aux, 1);
        }
        crystal_trace_fini(&trace);
    }
    nothing_is_left();
}

/* --- captures that end badly --- */

/* What was recorded is there, but is no capture. */
static void no_trace_is_sealed(void)
{
    for (unsigned r = 0; r < LIVE; r++) {
        struct crystal_trace trace = {0};

        CHECK_EQ(read_trace("ranks", r, &trace), 0);
        CHECK_EQ(trace.head.file_bytes, 0);
        CHECK(trace.op_count >= 1);
        crystal_trace_fini(&trace);
    }
}

static void rank_fails(const char *how, const char *sentence)
{
    char options[128];

    (void)snprintf(
        options, sizeof options,
        "--iterations 4 --elements 10 --compute-us 0 --fail %s --fail-rank 2", how);
    CHECK_EQ(finish(start_stage("capture", options)), 70);
    CHECK_HAS(output, sentence);
    no_trace_is_sealed();
    nothing_is_left();
}

static void rank_exits_with_an_error(void)
{
    make_job("--iterations=3");
    rank_fails("exit", "crystal: capture: rank 2 ended with code 7; see ");
    CHECK_HAS(output, "rank 2 gives up\n"); /* its last lines */
}

static void rank_segfaults(void)
{
    rank_fails("segv", "crystal: capture: rank 2 was ended by signal 11 (Segmentation "
                       "fault); see ");
}

static void rank_is_killed(void)
{
    struct crystal_trace trace = {0};

    rank_fails("kill", "crystal: capture: rank 2 was ended by signal 9 (Killed); see ");
    /* what it wrote before the last flush, which was its first iteration's mark */
    CHECK_EQ(read_trace("ranks", 2, &trace), 0);
    if (trace.op_count)
        CHECK_EQ(trace.ops[trace.op_count - 1].kind, CRYSTAL_OP_HINT);
    crystal_trace_fini(&trace);
}

static void rank_ends_early(void)
{
    rank_fails("early", "crystal: capture: the live ranks wait for ever: "
                        "rank 0 waits in allreduce 1 of '/default_pg/0//cpu//0'");
    CHECK_HAS(output, "for rank 2, which has ended");
}

static void ranks_disagree(void)
{
    rank_fails("mismatch", "crystal: capture: mismatch in operation 1 of communicator "
                           "'/default_pg/0//cpu//0'");
    CHECK_HAS(output, "rank 2 calls allreduce of 1 x float32 (sum) at ncclprog+0x");
}

static void program_that_cannot_run(void)
{
    CHECK_EQ(finish(start("exec %s capture --job %s -- /nonexistent/program", scrystal,
                          job_dir)),
             70);
    CHECK_HAS(output, "crystal: capture: launch: cannot run '/nonexistent/program': No "
                      "such file or directory\n");
    nothing_is_left();
}

static void program_without_nccl(void)
{
    CHECK_EQ(finish(start("exec %s capture --job %s -- true", scrystal, job_dir)), 70);
    CHECK_HAS(output,
              "crystal: capture: rank 0 recorded nothing, it made no NCCL call");
}

static void job_without_program(void)
{
    make_job("");
    CHECK_EQ(finish(start("exec %s capture --job %s", scrystal, job_dir)), 70);
    CHECK_HAS(output, "no program is known; give it behind --");
}

/* A file that may not grow is an error, no signal. */
static void files_may_not_grow(void)
{
    make_job("");
    CHECK_EQ(finish(start("ulimit -f 1; exec %s capture --job %s -- %s --tp 2 --pp 2",
                          scrystal, job_dir, program)),
             70);
    nothing_is_left();
}

static void job_without_layout(void)
{
    CHECK_EQ(finish(start("rm %s/layout.yaml; exec %s capture --job %s -- true",
                          job_dir, scrystal, job_dir)),
             2);
    CHECK_HAS(output, "layout.yaml");
}

static void wait_for_output(unsigned lrank)
{
    double sums[8];
    int count = 0;

    for (int i = 0; i < 3000 && !count; i++) {
        pause_ms(20);
        read_sums(lrank, sums, &count);
    }
    CHECK(count > 0);
}

static void command_is_killed(void)
{
    pid_t pid;

    make_job("--iterations=1000");
    pid = start_stage("capture", "--iterations 1000 --elements 10 --compute-us 20000");
    wait_for_output(0);
    CHECK(rank_processes() >= LIVE);
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(finish(pid), 128 + SIGKILL);
    nothing_is_left();
    no_trace_is_sealed();
}

static void command_is_told_to_stop(void)
{
    pid_t pid;

    make_job("--iterations=1000");
    pid = start_stage("capture", "--iterations 1000 --elements 10 --compute-us 20000");
    wait_for_output(0);
    CHECK_EQ(kill(pid, SIGTERM), 0);
    CHECK_EQ(finish(pid), 128 + SIGTERM);
    CHECK_HAS(output, "crystal: capture: stopped by signal 15 (Terminated)\n");
    no_trace_is_sealed();
    nothing_is_left();
}

static void job_is_in_use(void)
{
    pid_t pid;
    char path[PATH_MAX + 16];

    make_job("--iterations=1000");
    pid = start_stage("capture", "--iterations 1000 --elements 10 --compute-us 20000");
    wait_for_output(0);
    (void)snprintf(path, sizeof path, "%s.second", job_dir);
    (void)snprintf(output, sizeof output, "%s capture --job %s -- true >%s 2>&1",
                   scrystal, job_dir, path);
    CHECK_EQ(WEXITSTATUS(system(output)), 70);
    (void)snprintf(output, sizeof output, "grep -q 'in use' %s", path);
    CHECK_EQ(system(output), 0);
    (void)snprintf(output, sizeof output, "%s graph --job %s >%s 2>&1", scrystal,
                   job_dir, path);
    CHECK_EQ(WEXITSTATUS(system(output)), 70); /* not under the recorder's pen */
    (void)snprintf(output, sizeof output, "grep -q 'in use' %s", path);
    CHECK_EQ(system(output), 0);
    (void)unlink(path);
    CHECK_EQ(kill(pid, SIGINT), 0);
    CHECK_EQ(finish(pid), 128 + SIGINT);
    nothing_is_left();
}

int main(void)
{
    char parent[] = "/tmp/crystal-capture.XXXXXX";

    check_begin();
    if (by_hand_begin(parent))
        return 1;
    CHECK_RUN(operation_by_operation);
    CHECK_RUN(control_payloads_are_kept);
    CHECK_RUN(replica_computes_what_all_compute);
    CHECK_RUN(one_by_one_records_what_all_record);
    CHECK_RUN(lists_are_checked);
    CHECK_RUN(held_operations_go_out);
    CHECK_RUN(iterations_end_the_program);
    CHECK_RUN(rank_exits_with_an_error);
    CHECK_RUN(rank_segfaults);
    CHECK_RUN(rank_is_killed);
    CHECK_RUN(rank_ends_early);
    CHECK_RUN(ranks_disagree);
    CHECK_RUN(program_that_cannot_run);
    CHECK_RUN(program_without_nccl);
    CHECK_RUN(job_without_program);
    CHECK_RUN(files_may_not_grow);
    CHECK_RUN(job_without_layout);
    CHECK_RUN(command_is_killed);
    CHECK_RUN(command_is_told_to_stop);
    CHECK_RUN(job_is_in_use);
    by_hand_end(parent);
    return check_end();
}
