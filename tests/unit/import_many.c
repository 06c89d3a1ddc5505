/* Traces of many ranks: what comes out, and which failure is told, does not depend on
 * how many threads read them.
 */
#include "config.h"

#include "runtime/graph_export.h"
#include "runtime/import.h"
#include "runtime/verify.h"

#include "tests/check.h"
#include "tests/graph_edit.h"

#include <sched.h>
#include <unistd.h>

#define RANKS 16

static char prefix[64], graph_path[80], other_path[80], groups_path[80];
static char paths[RANKS][96];

static const struct crystal_graph_network network = {8, 50000000000, 5000, 300000000000,
                                                     2000};

static void synth(void)
{
    static const char text[] =
        "parallel: {tp: 2, dp: 2, pp: 4}\n"
        "model: {layers: 8, hidden: 1024, heads: 8, ffn: 4096, vocab: 32000}\n"
        "batch: {sequence: 1024, microbatches: 8}\n"
        "network: {bandwidth: 50GB/s, latency: 5us, node-bandwidth: 300GB/s, "
        "node-latency: 2us}\n";
    struct crystal_synth s;

    EDIT_MUST(crystal_synth_parse("job", text, sizeof text - 1, &s, &edit_err));
    EDIT_MUST(crystal_synth_write(&s, graph_path, &edit_err));
}

static FILE *opened(const char *path)
{
    FILE *out = fopen(path, "wb");

    EDIT_MUST(!out);
    return out;
}

static void traces_write(void)
{
    struct crystal_predict p;
    struct crystal_graph *g;
    FILE *out;

    synth();
    g = crystal_graph_open(graph_path, &edit_err);
    EDIT_MUST(!g || crystal_graph_lrank_count(g) != RANKS);
    EDIT_MUST(crystal_predict_init(&p, g, NULL, 1, &edit_err));
    for (uint32_t r = 0; r < RANKS; r++) {
        out = opened(paths[r]);
        EDIT_MUST(crystal_export_chakra(out, &p, r, &edit_err) || fclose(out) != 0);
    }
    out = opened(groups_path);
    crystal_export_groups(out, g);
    EDIT_MUST(fclose(out) != 0);
    crystal_predict_fini(&p);
    crystal_graph_close(g);
}

static int import(const char *path)
{
    const char *list[RANKS];

    for (int r = 0; r < RANKS; r++)
        list[r] = paths[r];
    edit_err.text[0] = 0;
    return crystal_import_traces(list, RANKS, NULL, &network, path, &edit_err);
}

/* The bytes of a file; caller frees. */
static char *bytes_of(const char *path, size_t *ret_count)
{
    FILE *in = fopen(path, "rb");
    char *bytes;
    long count;

    EDIT_MUST(!in || fseek(in, 0, SEEK_END) != 0 || (count = ftell(in)) < 1);
    rewind(in);
    bytes = malloc((size_t)count);
    EDIT_MUST(!bytes || fread(bytes, 1, (size_t)count, in) != (size_t)count);
    EDIT_MUST(fclose(in) != 0);
    *ret_count = (size_t)count;
    return bytes;
}

/* On one processor there is one thread. */
static void threads_change_nothing(void)
{
    struct crystal_verdict v;
    struct crystal_graph *g;
    cpu_set_t all, one;
    size_t count, other_count;
    char *bytes, *other;
    int cpu = 0;

    EDIT_MUST(sched_getaffinity(0, sizeof all, &all) != 0);
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    EDIT_MUST(sched_setaffinity(0, sizeof one, &one) != 0);
    EDIT_MUST(import(graph_path));
    EDIT_MUST(sched_setaffinity(0, sizeof all, &all) != 0);
    bytes = bytes_of(graph_path, &count);
    for (int i = 0; i < 5; i++) {
        EDIT_MUST(import(other_path));
        other = bytes_of(other_path, &other_count);
        CHECK_EQ(other_count, count);
        CHECK(other_count == count && memcmp(other, bytes, count) == 0);
        free(other);
    }
    free(bytes);
    g = crystal_graph_open(graph_path, &edit_err);
    EDIT_MUST(!g);
    EDIT_MUST(crystal_verify(g, &v, &edit_err));
    CHECK(v.is_sound);
    /* two ways over three borders of stages, of four ranks each, eight microbatches */
    CHECK_EQ(v.message_count, 2 * 3 * 4 * 8);
    crystal_verdict_fini(&v);
    crystal_graph_close(g);
}

/* The last byte of one is missing, which is only seen at its end; one behind it is bad
 * from its first byte on. */
static void the_first_failure_is_told(void)
{
    size_t count;
    char *bytes = bytes_of(paths[3], &count), want[200];
    FILE *out = opened(paths[3]);

    EDIT_MUST(fwrite(bytes, 1, count - 1, out) != count - 1 || fclose(out) != 0);
    free(bytes);
    out = opened(paths[4]);
    EDIT_MUST(fputs("x", out) < 0 || fclose(out) != 0);
    (void)snprintf(want, sizeof want,
                   "%s: neither a trace of the PyTorch profiler nor a Chakra execution "
                   "trace",
                   paths[3]);
    for (int i = 0; i < 20; i++) {
        CHECK(import(other_path) < 0);
        CHECK_STR(crystal_error_text(&edit_err), want);
    }
}

int main(void)
{
    (void)snprintf(prefix, sizeof prefix, "/tmp/crystal-import-many.%ld",
                   (long)getpid());
    (void)snprintf(graph_path, sizeof graph_path, "%s.graph", prefix);
    (void)snprintf(other_path, sizeof other_path, "%s.other", prefix);
    (void)snprintf(groups_path, sizeof groups_path, "%s.json", prefix);
    for (int r = 0; r < RANKS; r++)
        (void)snprintf(paths[r], sizeof paths[r], "%s.%d.et", prefix, r);
    check_begin();
    traces_write();
    CHECK_RUN(threads_change_nothing);
    CHECK_RUN(the_first_failure_is_told);
    for (int r = 0; r < RANKS; r++)
        (void)unlink(paths[r]); /* temporary files */
    (void)unlink(groups_path);
    (void)unlink(graph_path);
    (void)unlink(other_path);
    return check_end();
}
