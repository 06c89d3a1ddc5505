/* Traces of the PyTorch profiler: what becomes of their events, and what is refused. */
#include "config.h"

#include "runtime/import.h"
#include "runtime/json_reader.h"
#include "runtime/verify.h"

#include "tests/check.h"
#include "tests/graph_edit.h"

#include <unistd.h>

static char graph_path[64], paths[2][80];
static const char *const path_list[] = {paths[0], paths[1]};

static void spill(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");

    EDIT_MUST(!out || fputs(text, out) < 0 || fclose(out) != 0);
}

/* Two ranks: a kernel, a reduction on another stream that waits for it, a message. */
#define TRACE(rank, p2p, func)                                                        \
    "{\"schemaVersion\": 1, \"distributedInfo\": {\"backend\": \"nccl\", "            \
    "\"rank\": " rank ", \"world_size\": 2},\n\"traceEvents\": [\n"                   \
    "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::mm [\\\"]\", \"ts\": "    \
    "0.5, "                                                                           \
    "\"dur\": 9, \"args\": {\"Input Dims\": [[2, 3], []], \"x\": NaN}},\n"            \
    "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"gemm<float>(int)\", \"ts\": "   \
    "100.25, \"dur\": 40.5, \"args\": {\"stream\": 7, \"correlation\": 3}},\n"        \
    "{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", "     \
    "\"ts\": "                                                                        \
    "10, \"dur\": 5, \"args\": {\"correlation\": 3}},\n"                              \
    "{\"ph\": \"X\", \"cat\": \"cuda_sync\", \"name\": \"Stream Wait Event\", "       \
    "\"ts\": 20, "                                                                    \
    "\"dur\": 0, \"args\": {\"stream\": 20, \"wait_on_stream\": 7}},\n"               \
    "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": "                                 \
    "\"ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)\", "                               \
    "\"ts\": "                                                                        \
    "150, \"dur\": 30, \"args\": {\"stream\": 20, \"correlation\": 4, "               \
    "\"Collective name\": \"allreduce\", \"In msg nelems\": 1000, \"Out msg "         \
    "nelems\": "                                                                      \
    "1000, \"Group size\": 2, \"dtype\": \"BFloat16\", \"Process Group Name\": "      \
    "\"0\", "                                                                         \
    "\"Process Group Ranks\": \"[0, 1]\"}},\n"                                        \
    "{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernelExC\", "  \
    "\"ts\": 30, \"dur\": 5, \"args\": {\"correlation\": 4}},\n"                      \
    "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"ncclDevKernel_SendRecv\", "     \
    "\"ts\": "                                                                        \
    "200, \"dur\": 3, \"args\": {\"stream\": 24, \"Collective name\": \"" func "\", " \
    "\"In msg nelems\": 64, \"Out msg nelems\": 64, \"dtype\": \"Float\", \"Src "     \
    "Rank\": "                                                                        \
    "0, \"Dst Rank\": 1, \"Process Group Name\": \"0\", \"Process Group Ranks\": "    \
    "\"[0, 1]\"}}" p2p "\n], \"traceName\": \"x\"}\n"

static struct crystal_graph *import(void)
{
    struct crystal_graph_network n = {8, 50000000000, 5000, 300000000000, 2000};
    struct crystal_graph *g;

    EDIT_MUST(crystal_import_traces(path_list, 2, NULL, &n, graph_path, &edit_err));
    g = crystal_graph_open(graph_path, &edit_err);
    EDIT_MUST(!g);
    return g;
}

static void events_become_records(void)
{
    static const struct {
        uint8_t kind, func, dtype;
        uint16_t stream;
        uint64_t value, t_ns;
    } want[] = {{CRYSTAL_OP_KERNEL, 0, 0, 0, 40500, 0},
                {CRYSTAL_OP_RECORD, 0, 0, 0, 0, 10000},
                {CRYSTAL_OP_SWAIT, 0, 0, 1, 0, 10000},
                {CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLREDUCE, 9, 1, 1000, 20000},
                {CRYSTAL_OP_SEND, CRYSTAL_FUNC_SEND, 7, 2, 64, 190000},
                {CRYSTAL_OP_SYNC, 0, 0, 0, 190000, 190000},
                {CRYSTAL_OP_SYNC, 0, 0, 1, 190000, 190000},
                {CRYSTAL_OP_SYNC, 0, 0, 2, 190000, 190000}};
    struct crystal_verdict verdict;
    const struct crystal_op *ops;
    struct crystal_graph *g;
    uint64_t count;

    spill(paths[0], TRACE("1", "", "recv")); /* in any order */
    spill(paths[1], TRACE("0", "", "send"));
    g = import();
    CHECK_EQ(crystal_graph_lrank_count(g), 2);
    CHECK_EQ(crystal_graph_comm_count(g), 1);
    ops = crystal_graph_ops(g, crystal_graph_rep_of(g, 0), &count);
    CHECK_EQ(count, sizeof want / sizeof want[0]);
    for (uint64_t i = 0; i < count && i < sizeof want / sizeof want[0]; i++) {
        CHECK_EQ(ops[i].kind, want[i].kind);
        CHECK_EQ(ops[i].func, want[i].func);
        CHECK_EQ(ops[i].dtype, want[i].dtype);
        CHECK_EQ(ops[i].stream, want[i].stream);
        CHECK_EQ(ops[i].value, want[i].value);
        CHECK_EQ(ops[i].t_ns, want[i].t_ns);
    }
    CHECK_STR(crystal_graph_label(g, &ops[0]), "gemm");
    CHECK_EQ(ops[4].peer, 1);
    /* all kernels are named LL, trees alone have their own */
    CHECK_EQ(ops[3].flags,
             CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_TREE, CRYSTAL_OP_PROTO_UNKNOWN));
    EDIT_MUST(crystal_verify(g, &verdict, &edit_err));
    CHECK(verdict.is_sound);
    CHECK_EQ(verdict.collective_count, 2);
    CHECK_EQ(verdict.message_count, 1);
    crystal_verdict_fini(&verdict);
    crystal_graph_close(g);
}

static void refuses(void)
{
    static const struct {
        const char *first, *want;
    } rows[] = {
        {TRACE("0", ",", "send"),
         "%s: neither a trace of the PyTorch profiler nor a Chakra execution trace"},
        {"[1, 2]",
         "%s: neither a trace of the PyTorch profiler nor a Chakra execution trace"},
        {"{\n  \"schema\": \"1.1.1-chakra.0.0.4\", \"pid\": 17099, \"nodes\": []}",
         "%s: of PyTorch's ExecutionTraceObserver, which tells no times; give the "
         "profiler's trace of the same step, or what chakra_converter makes of both"},
        {TRACE("5", "", "send"),
         "%s: is of rank 5, but there are only 2 traces; give those of all ranks"},
    };
    char want[256];

    spill(paths[1], TRACE("1", "", "recv"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        spill(paths[0], rows[i].first);
        CHECK(crystal_import_traces(path_list, 2, NULL, NULL, graph_path, &edit_err) <
              0);
        (void)snprintf(want, sizeof want, rows[i].want, paths[0]);
        CHECK_STR(crystal_error_text(&edit_err), want);
    }
    CHECK(crystal_import_traces(path_list + 1, 1, NULL, NULL, graph_path, &edit_err) <
          0);
    CHECK(strstr(crystal_error_text(&edit_err), "is not among the ranks given") !=
          NULL);
    spill(paths[0], TRACE("1", "", "recv"));
    CHECK(crystal_import_traces(path_list, 2, NULL, NULL, graph_path, &edit_err) < 0);
    (void)snprintf(want, sizeof want, "%s and %s: both are of rank 1", paths[0],
                   paths[1]);
    CHECK_STR(crystal_error_text(&edit_err), want);
}

/* Good and bad JSON, by the number of tokens; -1: an error. */
static void json(void)
{
    static const struct {
        const char *text;
        int count;
    } rows[] = {{"{}", 2},
                {"[]", 2},
                {"{\"a\": [1, -2.5e3, \"x\\\"\\\\\"], \"b\": {\"c\": null}}", 13},
                {"[true, false, null, NaN]", 6},
                {"3", 1},
                {"\"a\"", 1},
                {"", -1},
                {"[1 2]", -1},
                {"[1,]", -1},
                {"[]x", -1},
                {"{\"a\"}", -1},
                {"{\"a\" 1}", -1},
                {"{1: 2}", -1},
                {"[}", -1},
                {"[\"a]", -1},
                {"[\"a\\\"]", -1},
                {"[yes]", -1},
                {"[] []", -1},
                {"]", -1}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_json_token t;
        struct crystal_json j;
        int count = 0;

        crystal_json_init(&j, rows[i].text, strlen(rows[i].text));
        while ((t = crystal_json_next(&j)).kind > CRYSTAL_JSON_END)
            count++;
        CHECK_EQ(t.kind == CRYSTAL_JSON_END ? count : -1, rows[i].count);
    }
}

/* Equal to strtod's to the bit, whichever way they go. */
static void numbers(void)
{
    static const char *const texts[] = {"0",
                                        "7",
                                        "1999990.999",
                                        "12.5",
                                        "0.1",
                                        "123456789012345",
                                        ".5",
                                        "5.",
                                        "12345678901.234",
                                        "1e3",
                                        "-2.75",
                                        "0.00000000000001",
                                        "999999999999.99",
                                        "1234567890123.456",
                                        "4.9e-3",
                                        "000.250"};
    uint64_t state = 1;

    for (int i = 0; i < 20000; i++) {
        char text[32];
        struct crystal_json_token t = {CRYSTAL_JSON_NUMBER, text, 0};
        double got, want;

        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        if ((size_t)i < sizeof texts / sizeof texts[0])
            (void)snprintf(text, sizeof text, "%s", texts[i]);
        else
            (void)snprintf(text, sizeof text, "%.*f", (int)(state >> 60),
                           (double)(state >> 40) / 1000.0);
        t.bytes = strlen(text);
        got = crystal_json_number(t, -1);
        want = strtod(text, NULL);
        CHECK(memcmp(&got, &want, sizeof got) == 0);
    }
}

int main(void)
{
    (void)snprintf(graph_path, sizeof graph_path, "/tmp/crystal-import.%ld",
                   (long)getpid());
    (void)snprintf(paths[0], sizeof paths[0], "%s.0.json", graph_path);
    (void)snprintf(paths[1], sizeof paths[1], "%s.1.json", graph_path);
    check_begin();
    CHECK_RUN(json);
    CHECK_RUN(numbers);
    CHECK_RUN(events_become_records);
    CHECK_RUN(refuses);
    (void)unlink(graph_path); /* temporary files */
    (void)unlink(paths[0]);
    (void)unlink(paths[1]);
    return check_end();
}
