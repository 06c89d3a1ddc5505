/* The recorder passing through to a library whose work takes 3 ms and moves nothing:
 * records, ends of operations, polling, the stop after the iterations; and the parts of
 * the recorder that need no library.
 */
#include "config.h"

#include "capture/pointer_map.h"
#include "capture/recorder.h"

#include "tests/check.h"
#include "tests/folders.h"
#include "tests/traces.h"

#include <errno.h>
#include <limits.h>
#include <sys/wait.h>

#define WORK_US 3000

static char directory[64], build[PATH_MAX];

/* Runs ncclprog with one rank; its exit code. */
static int run_program(const char *settings, const char *options)
{
    char line[8192];
    int status;

    (void)snprintf(line, sizeof line,
                   "CRYSTAL_NCCL_LIBRARY=%s/.libs/libcrystal-nccl.so "
                   "CRYSTAL_PASS_LIBRARY=%s/tests/fake/.libs/null_nccl.so "
                   "NULL_NCCL_DELAY_US=%d CRYSTAL_TRACE_DIR=%s CRYSTAL_LRANK=5 "
                   "CRYSTAL_FINGERPRINT=0x2a RANK=0 WORLD_SIZE=1 %s "
                   "exec %s/tests/programs/ncclprog --id-dir %s --elements 8 "
                   "--compute-us 0 %s >%s/out 2>&1",
                   build, build, WORK_US, directory, settings, build, directory,
                   options, directory);
    status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Every operation has one DONE; it began when issued or when the one before it on its
 * stream ended, and ended 3 ms after it was issued at the earliest. */
static void ends_are_recorded(void)
{
    struct crystal_trace trace = {0};
    uint64_t ended_ns[8] = {0}, least_ns = WORK_US * 1000ULL;
    int ops = 0, grouped = 0;

    CHECK_EQ(run_program("", "--iterations 2"), 0);
    CHECK_EQ(trace_read(directory, 5, &trace), 0);
    CHECK_EQ(trace.head.lrank, 5);
    CHECK_EQ(trace.head.fingerprint, 42);
    for (uint64_t i = 0; i < trace.op_count; i++) {
        const struct crystal_op *op = &trace.ops[i], *done;
        uint64_t from_ns;

        if (op->kind == CRYSTAL_OP_GROUP)
            grouped = (int)op->aux;
        if (op->kind != CRYSTAL_OP_COLL && op->kind != CRYSTAL_OP_SEND &&
            op->kind != CRYSTAL_OP_RECV)
            continue;
        ops++;
        done = trace_done(&trace, i);
        CHECK(done && op->stream < 8);
        if (!done || op->stream >= 8)
            continue;
        from_ns = op->t_ns > ended_ns[op->stream] ? op->t_ns : ended_ns[op->stream];
        if (grouped) {
            CHECK(done->value >= op->t_ns);
            if (op->kind == CRYSTAL_OP_RECV)
                ended_ns[op->stream] = done->t_ns;
            continue;
        }
        CHECK_EQ(done->value, from_ns);
        CHECK(done->t_ns > done->value);
        CHECK(done->t_ns - op->t_ns >= least_ns * 9 / 10);
        ended_ns[op->stream] = done->t_ns;
    }
    /* int, allgather, reducescatter, 2 allreduce, send, recv in each iteration */
    CHECK_EQ(ops, 14);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_DONE), ops);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_GROUP), 4);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_PAYLOAD), 0); /* kept in capture only */
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_HINT), 2);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_COMM), 3);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_FREE), 3);
    if (trace.op_count) {
        CHECK_EQ(trace.ops[trace.op_count - 1].kind, CRYSTAL_OP_END);
        CHECK_EQ(trace.ops[trace.op_count - 1].aux, 0);
    }
    crystal_trace_fini(&trace);
}

/* The program polls an event every 0.1 ms until two all-reduces have ended: one wait.
 */
static void a_row_of_polls_is_one_wait(void)
{
    struct crystal_trace trace = {0};
    int waits = 0;

    CHECK_EQ(run_program("", "--iterations 1 --pattern allreduce"), 0);
    CHECK_EQ(trace_read(directory, 5, &trace), 0);
    for (uint64_t i = 0; i < trace.op_count; i++)
        if (trace.ops[i].kind == CRYSTAL_OP_WAIT) {
            uint64_t waited_ns = trace.ops[i].value - trace.ops[i].t_ns;

            waits++;
            CHECK(waited_ns >= 2 * WORK_US * 1000ULL * 9 / 10);
        }
    CHECK_EQ(waits, 1);
    crystal_trace_fini(&trace);
}

static void iterations_end_the_program(void)
{
    struct crystal_trace trace = {0};

    CHECK_EQ(run_program("CRYSTAL_ITERATIONS=2", "--iterations 9 --pattern int"), 0);
    CHECK_EQ(trace_read(directory, 5, &trace), 0);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_HINT), 3);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_COLL), 3);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_DONE), 3);
    if (trace.op_count) {
        CHECK_EQ(trace.ops[trace.op_count - 1].kind, CRYSTAL_OP_END);
        CHECK_EQ(trace.ops[trace.op_count - 1].aux, 1);
    }
    crystal_trace_fini(&trace);
}

static void out_has(const char *text)
{
    char path[128], got[4096];
    FILE *file;
    size_t count;

    (void)snprintf(path, sizeof path, "%s/out", directory);
    file = fopen(path, "r");
    count = file ? fread(got, 1, sizeof got - 1, file) : 0;
    got[count] = 0;
    if (file)
        (void)fclose(file); /* read-only */
    CHECK_HAS(got, text);
}

static void bad_libraries_are_named(void)
{
    CHECK_EQ(run_program("CRYSTAL_PASS_LIBRARY=null_nccl.so", "--iterations 1"), 1);
    out_has("crystal: pass: recorder: CRYSTAL_PASS_LIBRARY='null_nccl.so' is no "
            "absolute path of a library\n");
    CHECK_EQ(run_program("CRYSTAL_TRACE_DIR=/nonexistent", "--iterations 1"), 1);
    out_has("recorder: /nonexistent/5.trace: No such file or directory\n");
    CHECK_EQ(run_program("CRYSTAL_PASS_LIBRARY=/nonexistent.so", "--iterations 1"), 1);
    out_has("/nonexistent.so: cannot open shared object file");
    CHECK_EQ(run_program("CRYSTAL_PASS_LIBRARY=", "--iterations 1"), 1);
    out_has("recorder: CRYSTAL_COORD_FILE is not set; start the program with scrystal "
            "capture\n");
    CHECK_EQ(run_program("CRYSTAL_PASS_LIBRARY= CRYSTAL_TRACE_DIR=/nonexistent",
                         "--iterations 1"),
             1);
    out_has("recorder: /nonexistent/5.trace: No such file or directory\n");
}

static void pointers_are_mapped(void)
{
    static char keys[5000];
    static int values[5000];
    struct pointer_map map = {0};

    CHECK(pointer_map_get(&map, keys) == NULL);
    CHECK(pointer_map_take(&map, keys) == NULL);
    for (int i = 0; i < 5000; i++)
        CHECK_EQ(pointer_map_put(&map, &keys[i], &values[i]), 0);
    CHECK_EQ(map.count, 5000);
    for (int i = 0; i < 5000; i += 2)
        CHECK(pointer_map_take(&map, &keys[i]) == &values[i]);
    for (int i = 0; i < 5000; i++)
        CHECK(pointer_map_get(&map, &keys[i]) == (i % 2 ? &values[i] : NULL));
    CHECK_EQ(pointer_map_put(&map, &keys[1], &values[0]), 0); /* replaces */
    CHECK(pointer_map_get(&map, &keys[1]) == &values[0]);
    CHECK_EQ(map.count, 2500);
    free(map.rows);
}

static void bytes_of_calls(void)
{
    static const struct {
        uint8_t func;
        uint32_t root, send, recv; /* in elements; 4 ranks, own crank 1, 3 elements */
    } rows[] = {
        {CRYSTAL_FUNC_BROADCAST, 1, 3, 3},  {CRYSTAL_FUNC_BROADCAST, 0, 0, 3},
        {CRYSTAL_FUNC_REDUCE, 1, 3, 3},     {CRYSTAL_FUNC_REDUCE, 2, 3, 0},
        {CRYSTAL_FUNC_ALLGATHER, 0, 3, 12}, {CRYSTAL_FUNC_REDUCESCATTER, 0, 12, 3},
        {CRYSTAL_FUNC_ALLREDUCE, 0, 3, 3},  {CRYSTAL_FUNC_SEND, 2, 3, 0},
        {CRYSTAL_FUNC_RECV, 2, 0, 3},       {CRYSTAL_FUNC_ALLTOALL, 0, 12, 12},
        {CRYSTAL_FUNC_GATHER, 1, 3, 12},    {CRYSTAL_FUNC_GATHER, 0, 3, 0},
        {CRYSTAL_FUNC_SCATTER, 1, 12, 3},   {CRYSTAL_FUNC_SCATTER, 3, 0, 3},
    };
    struct recorder_call call = {.dtype = ncclFloat64, .count = 3};
    uint64_t send, recv;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        call.func = rows[i].func;
        call.peer = rows[i].root;
        CHECK_EQ(recorder_call_bytes(&call, 4, 1, &send, &recv), 0);
        CHECK_EQ(send, 8 * rows[i].send);
        CHECK_EQ(recv, 8 * rows[i].recv);
    }
    call.count = UINT64_MAX / 16;
    CHECK_EQ(recorder_call_bytes(&call, 4, 1, &send, &recv), -EOVERFLOW);
    call.count = UINT64_MAX / 4;
    CHECK_EQ(recorder_call_bytes(&call, 1, 0, &send, &recv), -EOVERFLOW);
    call.count = 1;
    call.func = CRYSTAL_FUNC_COUNT;
    CHECK_EQ(recorder_call_bytes(&call, 4, 1, &send, &recv), -EINVAL);
}

/* Which contributions are kept: all integers up to 1 MiB, all there is where asked for,
 * else the first of each shape that one rank sends. */
static void first_of_each_shape_is_kept(void)
{
    static struct keep control, all = {.is_all = 1};
    struct recorder_call call = {.func = CRYSTAL_FUNC_SEND,
                                 .dtype = ncclFloat32,
                                 .comm = 2,
                                 .peer = 3,
                                 .count = 5};
    uint64_t total = 0;

    CHECK_EQ(keep_bytes(&control, &call, 20), 20);
    CHECK_EQ(keep_bytes(&control, &call, 20), 0);
    call.peer = 4;
    CHECK_EQ(keep_bytes(&control, &call, 20), 20);
    call.func = CRYSTAL_FUNC_BROADCAST;
    CHECK_EQ(keep_bytes(&control, &call, 0), 0); /* not its root: nothing to remember */
    CHECK_EQ(keep_bytes(&control, &call, 20), 20);
    call.dtype = ncclBfloat16;
    CHECK_EQ(keep_bytes(&control, &call, 10), 10);
    call.func = CRYSTAL_FUNC_ALLREDUCE; /* has the neutral element */
    CHECK_EQ(keep_bytes(&control, &call, 10), 0);
    CHECK_EQ(keep_bytes(&all, &call, 10), 10);
    CHECK_EQ(keep_bytes(&all, &call, UINT64_C(1) << 32), 0);
    call.dtype = ncclInt8;
    CHECK_EQ(keep_bytes(&control, &call, 1 << 20), 1 << 20);
    CHECK_EQ(keep_bytes(&control, &call, 1 << 20), 1 << 20);
    CHECK_EQ(keep_bytes(&control, &call, (1 << 20) + 1), 0);
    /* bounds: of one, of all, of their number */
    call.func = CRYSTAL_FUNC_ALLTOALL;
    call.dtype = ncclFloat32;
    CHECK_EQ(keep_bytes(&control, &call, KEEP_FIRST_BYTES + 1), 0);
    for (call.count = 100; call.count < 110; call.count++)
        total += keep_bytes(&control, &call, KEEP_FIRST_BYTES);
    CHECK_EQ(total, 3 * KEEP_FIRST_BYTES); /* a fourth would be over the total */
    total = 0;
    for (call.count = 1000; call.count < 3000; call.count++)
        total += keep_bytes(&control, &call, 4);
    CHECK_EQ(total, 4 * (KEEP_FIRST_SHAPES / 4 * 3 - 4 - 3));
    call.count = 1000;
    CHECK_EQ(keep_bytes(&control, &call, 4), 0);
}

int main(void)
{
    const char *from = build_folder();
    char line[128];

    check_begin();
    (void)snprintf(directory, sizeof directory, "/tmp/crystal-recorder.XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(build, sizeof build, "%s", from);
    CHECK_RUN(first_of_each_shape_is_kept);
    CHECK_RUN(pointers_are_mapped);
    CHECK_RUN(bytes_of_calls);
    CHECK_RUN(ends_are_recorded);
    CHECK_RUN(a_row_of_polls_is_one_wait);
    CHECK_RUN(iterations_end_the_program);
    CHECK_RUN(bad_libraries_are_named);
    (void)snprintf(line, sizeof line, "rm -r %s", directory);
    CHECK_EQ(system(line), 0);
    return check_end();
}
