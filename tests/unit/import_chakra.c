/* A Chakra trace by another writer (tests/tool/chakra-trace, with protobuf's own
 * library): what becomes of its nodes, and that the job takes the time that its
 * durations and the closed forms of its communication make.
 */
#include "config.h"

#include "runtime/import.h"
#include "runtime/predict_run.h"
#include "runtime/verify.h"

#include "tests/check.h"
#include "tests/folders.h"
#include "tests/graph_edit.h"

#include <unistd.h>

#define RANKS 2

static char directory[64], graph_path[80], groups_path[80], trace_path[80];

static void spill(const char *path, const void *bytes, size_t count)
{
    FILE *out = fopen(path, "wb");

    EDIT_MUST(!out || fwrite(bytes, 1, count, out) != count || fclose(out) != 0);
}

static const struct crystal_graph_network network = {1, 50000000000, 5000, 300000000000,
                                                     2000};

static struct crystal_graph *import(void)
{
    char path[RANKS][256];
    const char *list[RANKS] = {path[0], path[1]};
    struct crystal_graph *g;

    for (int r = 0; r < RANKS; r++)
        (void)snprintf(path[r], sizeof path[r], "%s/tests/data/import-others.%d.et",
                       source_folder(), r);
    spill(groups_path, "{\"both\": [0, 1]}", 16);
    EDIT_MUST(crystal_import_traces(list, RANKS, groups_path, &network, graph_path,
                                    &edit_err));
    g = crystal_graph_open(graph_path, &edit_err);
    EDIT_MUST(!g);
    return g;
}

/* Nodes in the order of their dependencies; a collective's value is what NCCL's count
 * is, in bytes. */
static void nodes_become_records(void)
{
    static const struct {
        uint8_t kind, func;
        uint64_t value;
    } want[] = {{CRYSTAL_OP_KERNEL, 0, 0},
                {CRYSTAL_OP_KERNEL, 0, 100000},
                {CRYSTAL_OP_KERNEL, 0, 7000}, /* the host's call */
                {CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLREDUCE, 1000000},
                {CRYSTAL_OP_KERNEL, 0, 50000},
                {CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLGATHER, 250000},
                {CRYSTAL_OP_COLL, CRYSTAL_FUNC_REDUCESCATTER, 250000},
                {CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLTOALL, 150000},
                {CRYSTAL_OP_COLL, CRYSTAL_FUNC_BROADCAST, 200000},
                {CRYSTAL_OP_KERNEL, 0, 2000},
                {CRYSTAL_OP_RECV, CRYSTAL_FUNC_RECV, 100000},
                {CRYSTAL_OP_KERNEL, 0, 11000}};
    const size_t want_count = sizeof want / sizeof want[0];
    struct crystal_graph *g = import();
    struct crystal_verdict verdict;
    const struct crystal_op *ops;
    uint64_t count;
    size_t at = 0;

    CHECK_EQ(crystal_graph_lrank_count(g), RANKS);
    ops = crystal_graph_ops(g, crystal_graph_rep_of(g, 0), &count);
    for (uint64_t i = 0; i < count; i++) {
        if (ops[i].kind != CRYSTAL_OP_KERNEL && ops[i].kind != CRYSTAL_OP_COLL &&
            ops[i].kind != CRYSTAL_OP_SEND && ops[i].kind != CRYSTAL_OP_RECV)
            continue;
        if (at < want_count) {
            CHECK_EQ(ops[i].kind, want[at].kind);
            CHECK_EQ(ops[i].func, want[at].func);
            CHECK_EQ(ops[i].value, want[at].value);
        }
        at++;
    }
    CHECK_EQ(at, want_count);
    EDIT_MUST(crystal_verify(g, &verdict, &edit_err));
    CHECK(verdict.is_sound);
    CHECK_EQ(verdict.collective_count, RANKS * 5);
    CHECK_EQ(verdict.message_count, 1);
    crystal_verdict_fini(&verdict);
    crystal_graph_close(g);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* at: when the ranks arrive, then when they end. */
static void collective(const struct crystal_transfer_wire *wire, enum crystal_func func,
                       uint64_t count, uint64_t at[RANKS])
{
    const struct crystal_transfer_op op = {func, RANKS, 0, count, 1, 0};
    uint64_t ends[RANKS], scratch[2 * RANKS];

    crystal_transfer_coll(wire, &op, at, ends, scratch);
    memcpy(at, ends, sizeof ends);
}

static void takes_the_time_of_its_parts(void)
{
    uint64_t load[RANKS], at[RANKS] = {107000, 117000}, both;
    struct crystal_graph *g = import();
    struct crystal_prediction *pr;
    struct crystal_what_if what;
    struct crystal_predict p;
    const struct crystal_transfer_wire *wire = &p.network.wire;

    EDIT_MUST(crystal_predict_init(&p, g, NULL, 1, &edit_err));
    crystal_what_if_init(&what);
    pr = crystal_predict_run(&p, &what, 0, &edit_err);
    EDIT_MUST(!pr);
    for (int r = 0; r < RANKS; r++)
        load[r] = at[r] + 50000;
    collective(wire, CRYSTAL_FUNC_ALLREDUCE, 1000000, at);
    for (int r = 0; r < RANKS; r++)
        at[r] = later(at[r], load[r]);
    collective(wire, CRYSTAL_FUNC_ALLGATHER, 250000, at);
    collective(wire, CRYSTAL_FUNC_REDUCESCATTER, 250000, at);
    collective(wire, CRYSTAL_FUNC_ALLTOALL, 150000, at);
    collective(wire, CRYSTAL_FUNC_BROADCAST, 200000, at);
    both = later(at[0], at[1]) + 2000; /* rank 1 sends, and is done at once */
    CHECK_EQ(pr->end_ns[0], both + crystal_transfer_recv_ns(wire, 100000) + 11000);
    CHECK_EQ(pr->end_ns[1], at[1] + 2000 + 11000);
    crystal_prediction_destroy(pr);
    crystal_predict_fini(&p);
    crystal_graph_close(g);
}

/* How long the job of the one trace at trace_path takes. */
static uint64_t time_of_trace(void)
{
    const char *list[] = {trace_path};
    struct crystal_prediction *pr;
    struct crystal_what_if what;
    struct crystal_predict p;
    struct crystal_graph *g;
    uint64_t ns;

    EDIT_MUST(crystal_import_traces(list, 1, NULL, &network, graph_path, &edit_err));
    g = crystal_graph_open(graph_path, &edit_err);
    EDIT_MUST(!g);
    EDIT_MUST(crystal_predict_init(&p, g, NULL, 1, &edit_err));
    crystal_what_if_init(&what);
    pr = crystal_predict_run(&p, &what, 0, &edit_err);
    EDIT_MUST(!pr);
    ns = pr->iteration_ns;
    crystal_prediction_destroy(pr);
    crystal_predict_fini(&p);
    crystal_graph_close(g);
    return ns;
}

/* Nodes of 5 and 7 us of which one is behind the other by control alone. */
static void control_counts_alone(void)
{
    static const char bytes[] = "\7\12\5"
                                "0.0.4\6\10\1\30\4\70\5\11\10\2\30\4\42\1\1\70\7";

    spill(trace_path, bytes, sizeof bytes - 1);
    CHECK_EQ(time_of_trace(), 12000);
}

#define LOW(number)  (unsigned char)(((number)&127) | 128) /* a varint of two bytes */
#define HIGH(number) (unsigned char)((number) >> 7)

#define NODE_BYTES 12

static const unsigned char about[8] = "\7\12\5"
                                      "0.0.4";

/* A node of the device behind another one, which need not be there. */
static void node_put(unsigned char *at, unsigned id, unsigned dep, unsigned us)
{
    const unsigned char node[NODE_BYTES] = {
        NODE_BYTES - 1, 8,         LOW(id), HIGH(id), 24,      4, 40,
        LOW(dep),       HIGH(dep), 56,      LOW(us),  HIGH(us)};

    memcpy(at, node, sizeof node);
}

/* A chain of nodes of 100 us, behind each of which is a leaf of 150: more leaves than
 * there are streams, but few at once. */
static void streams_are_used_again(void)
{
    enum { COUNT = 300 };
    static unsigned char bytes[sizeof about + (size_t)2 * COUNT * NODE_BYTES];

    memcpy(bytes, about, sizeof about);
    for (unsigned i = 0; i < 2 * COUNT; i++) { /* chain and leaf in turn */
        const unsigned id = 1000 + i, dep = i % 2 ? id - 1 : id - 2;

        node_put(bytes + sizeof about + (size_t)i * NODE_BYTES, id, dep,
                 i % 2 ? 150 : 100);
    }
    spill(trace_path, bytes, sizeof bytes);
    CHECK_EQ(time_of_trace(), COUNT * 100000 + 150000);
}

/* The same, but the leaves follow the whole chain in the file, the last one first, and
 * that of the chain's first node lasts as long as all: it would be late on the stream
 * of a leaf that begins after it. */
static void the_files_order_is_none(void)
{
    enum { COUNT = 300, LONG_US = COUNT * 10 };
    static unsigned char bytes[sizeof about + (size_t)2 * COUNT * NODE_BYTES];
    unsigned char *at = bytes + sizeof about;

    memcpy(bytes, about, sizeof about);
    for (unsigned i = 0; i < COUNT; i++, at += NODE_BYTES)
        node_put(at, 1000 + i, 999 + i, 10);
    for (unsigned i = COUNT; i-- > 0; at += NODE_BYTES)
        node_put(at, 2000 + i, 1000 + i, i ? 15 : LONG_US);
    spill(trace_path, bytes, sizeof bytes);
    CHECK_EQ(time_of_trace(), COUNT * 10000 + 15000); /* the last leaf ends last */
}

/* Node 0, of type 7, without attributes. */
static void refuses_what_tells_no_type(void)
{
    static const char bytes[] = "\7\12\5"
                                "0.0.4\4\10\0\30\7";
    const char *list[] = {trace_path};
    char want[256];

    spill(trace_path, bytes, sizeof bytes - 1);
    CHECK(crystal_import_traces(list, 1, NULL, NULL, graph_path, &edit_err) < 0);
    (void)snprintf(
        want, sizeof want,
        "%s: a collective does not tell its comm_type; convert the trace with "
        "a chakra_converter that writes it",
        trace_path);
    CHECK_STR(crystal_error_text(&edit_err), want);
}

int main(void)
{
    strcpy(directory, "/tmp/crystal-import-XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(graph_path, sizeof graph_path, "%s/graph", directory);
    (void)snprintf(groups_path, sizeof groups_path, "%s/groups.json", directory);
    (void)snprintf(trace_path, sizeof trace_path, "%s/one.0.et", directory);
    check_begin();
    CHECK_RUN(nodes_become_records);
    CHECK_RUN(takes_the_time_of_its_parts);
    CHECK_RUN(control_counts_alone);
    CHECK_RUN(streams_are_used_again);
    CHECK_RUN(the_files_order_is_none);
    CHECK_RUN(refuses_what_tells_no_type);
    (void)unlink(graph_path);
    (void)unlink(groups_path);
    (void)unlink(trace_path);
    CHECK(rmdir(directory) == 0);
    return check_end();
}
