/* Synthetic jobs: descriptions that do not fit, and pipelines whose iteration time is
 * known in closed form, to the nanosecond.
 */
#include "config.h"

#include "runtime/graph_pack.h"
#include "runtime/predict.h"
#include "runtime/synth.h"

#include "tests/check.h"
#include "tests/folders.h"
#include "tests/must.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct crystal_error err;
static char path[64];

#define MODEL "model: {layers: 16, hidden: 1024, heads: 16, ffn: 4096}\n"
#define FREE  "network: {bandwidth: 0, latency: 0, node-bandwidth: 0, node-latency: 0}\n"

static void refuses(void)
{
    static const struct {
        const char *text, *want;
    } bad[] = {
        {MODEL "batch: {sequence: 128}\n",
         "t: batch.microbatches is missing: microbatches of an iteration, for each "
         "replica"},
        {MODEL "batch: {sequence: 128, microbatches: 4, size: 1}\n",
         "t:2:47: unknown key 'batch.size'; scrystal graph synth --keys lists them"},
        {MODEL "batch: {sequence: 128, microbatches: many}\n",
         "t:2:38: batch.microbatches: bad value 'many'"},
        {MODEL "batch: {sequence: 128, microbatches: 0}\n",
         "t: batch.microbatches 0 must be from 1 to 65536"},
        {MODEL "batch: {sequence: 128, microbatches: 6}\n"
               "parallel: {pp: 4, interleave: 2}\n",
         "t: batch.microbatches 6 must be a multiple of parallel.pp, 4"},
        {MODEL "batch: {sequence: 128, microbatches: 4}\nparallel: {pp: 3}\n",
         "t: model.layers (with embedding and head, if any) must divide evenly: 16 on "
         "chunks 3"},
        {MODEL "batch: {sequence: 128, microbatches: 4}\nparallel: {dp: 4, ep: 3}\n",
         "t: parallel.ep 3 must divide parallel.dp, 4"},
        {MODEL "batch: {sequence: 128, microbatches: 4}\nparallel: {dp: 4, ep: 2}\n",
         "t: parallel.ep 2 must divide model.experts, 0"},
    };
    struct crystal_synth s;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(crystal_synth_parse("t", bad[i].text, strlen(bad[i].text), &s, &err) < 0);
        CHECK_STR(crystal_error_text(&err), bad[i].want);
    }
}

static struct crystal_graph *synth(struct crystal_synth *s)
{
    struct crystal_graph *g;

    MUST(crystal_synth_write(s, path, &err));
    g = crystal_graph_open(path, &err);
    MUST(!g);
    return g;
}

static void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns)
{
    uint64_t *latest = context;

    (void)lrank, (void)iteration, (void)begin_ns;
    if (end_ns > *latest)
        *latest = end_ns;
}

static uint64_t iteration_ns(const struct crystal_graph *g)
{
    struct crystal_timeline_config config;
    struct crystal_timeline *t;
    struct crystal_predict p;
    uint64_t latest = 0;

    MUST(crystal_predict_init(&p, g, NULL, 2, &err));
    config = crystal_predict_config(&p);
    config.context = &latest;
    config.on_iteration = on_iteration;
    t = crystal_timeline_create(&config, &err);
    MUST(!t);
    MUST(crystal_timeline_start(t, 0, &err));
    MUST(crystal_timeline_advance(t, UINT64_MAX, &err));
    MUST(crystal_timeline_explain(t, &err));
    crystal_timeline_destroy(t);
    crystal_predict_fini(&p);
    return latest;
}

/* Time of all kernels of a representative, and of its optimizer. */
static uint64_t kernels_ns(const struct crystal_graph *g, uint32_t rep,
                           uint64_t *ret_optimizer_ns)
{
    uint64_t count, sum = 0;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &count);

    for (uint64_t i = 0; i < count; i++)
        if (ops[i].kind == CRYSTAL_OP_KERNEL) {
            if (strcmp(crystal_graph_label(g, &ops[i]), "optimizer") == 0)
                *ret_optimizer_ns = ops[i].value;
            else
                sum += ops[i].value;
        }
    return sum;
}

/* p stages, v chunks, m microbatches of F + B on each stage: m (F + B) and a bubble of
 * (p - 1) (F + B) / v. */
static void pipelines_in_closed_form(void)
{
    static const struct {
        uint32_t p, v, m;
    } rows[] = {{1, 1, 1}, {2, 1, 4}, {4, 1, 4},  {4, 1, 9},  {8, 1, 32}, {2, 2, 4},
                {4, 2, 4}, {4, 2, 8}, {4, 4, 12}, {8, 2, 16}, {16, 1, 7}};
    static const char text[] = MODEL FREE "batch: {sequence: 128, microbatches: 1}\n"
                                          "hardware: {launch: 0}\n";
    struct crystal_synth s;

    MUST(crystal_synth_parse("t", text, sizeof text - 1, &s, &err));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_graph *g;
        uint64_t optimizer = 0, stage, bubble;

        s.pp = rows[i].p;
        s.interleave = rows[i].v;
        s.microbatches = rows[i].m;
        g = synth(&s);
        stage = kernels_ns(g, 0, &optimizer);
        bubble = (rows[i].p - 1) * (stage / rows[i].m) / rows[i].v;
        CHECK_EQ(iteration_ns(g), stage + bubble + optimizer);
        crystal_graph_close(g);
    }
}

/* Everything at once: what each rank belongs to, and that it ends. */
static void all_dimensions(void)
{
    static const char text[] =
        "parallel: {tp: 2, cp: 2, dp: 4, pp: 2, ep: 2, interleave: 2}\n"
        "model: {layers: 8, hidden: 512, heads: 8, kv-heads: 2, ffn: 1, experts: 8,\n"
        "  experts-per-token: 2, expert-ffn: 256, vocab: 0}\n"
        "batch: {sequence: 1024, microbatches: 4}\n";
    static const struct {
        uint32_t local, nranks, members[4];
    } rank_13[] = {
        {0, 2, {12, 13}},       /* tp */
        {1, 2, {13, 15}},       /* cp */
        {2, 8, {1, 3, 5, 7}},   /* dp and cp */
        {3, 2, {9, 13}},        /* ep */
        {4, 4, {5, 7, 13, 15}}, /* dp and cp of equal experts */
        {5, 2, {29, 13}},       /* from the last stage, of the chunk before */
        {6, 2, {13, 29}},
    };
    struct crystal_graph *g;
    struct crystal_synth s;

    MUST(crystal_synth_parse("t", text, sizeof text - 1, &s, &err));
    g = synth(&s);
    CHECK_EQ(crystal_graph_lrank_count(g), 32);
    CHECK_EQ(crystal_graph_rep_count(g), 2);
    CHECK_EQ(crystal_graph_rep_of(g, 13), 0);
    CHECK_EQ(crystal_graph_rep_of(g, 16), 1);
    for (size_t i = 0; i < sizeof rank_13 / sizeof rank_13[0]; i++) {
        struct crystal_graph_comm c;

        crystal_graph_comm(g, crystal_graph_comm_of(g, 13, rank_13[i].local), &c);
        CHECK_EQ(c.nranks, rank_13[i].nranks);
        for (uint32_t k = 0; k < c.nranks && k < 4; k++)
            CHECK_EQ(c.members[k], rank_13[i].members[k]);
    }
    CHECK(iteration_ns(g) > 1000000);
    crystal_graph_close(g);
}

static size_t slurp(const char *name, unsigned char *bytes, size_t most)
{
    FILE *in = fopen(name, "rb");
    size_t count;

    MUST(!in);
    count = fread(bytes, 1, most, in);
    (void)fclose(in); /* only read */
    return count;
}

static const char golden_text[] = "parallel: {tp: 2, dp: 2, pp: 2}\nmodel: {layers: 2, "
                                  "hidden: 256, heads: 4, ffn: "
                                  "512}\nbatch: {sequence: 256, microbatches: 2}\n";

static void golden_path(char *to, size_t bytes, const char *name)
{
    const char *srcdir = source_folder();

    (void)snprintf(to, bytes, "%s/tests/data/%s", srcdir, name);
}

/* The bytes of version 8 are frozen: this description still makes the golden file.
 * CRYSTAL_TEST_UPDATE=1 writes it anew. */
static void golden(void)
{
    static unsigned char want[1 << 16], got[1 << 16];
    char golden_file[4096];
    struct crystal_synth s;
    size_t count;

    golden_path(golden_file, sizeof golden_file, "graph-v8");
    MUST(crystal_synth_parse("t", golden_text, sizeof golden_text - 1, &s, &err));
    if (getenv("CRYSTAL_TEST_UPDATE"))
        MUST(crystal_synth_write(&s, golden_file, &err));
    crystal_graph_close(synth(&s));
    count = slurp(path, got, sizeof got);
    CHECK_EQ(slurp(golden_file, want, sizeof want), count);
    CHECK(memcmp(got, want, count) == 0);
}

/* The same job as an older version kept it holds the same records. */
static void reads_version(const char *name)
{
    struct crystal_graph *old, *new;
    char golden_file[4096];
    struct crystal_synth s;

    golden_path(golden_file, sizeof golden_file, name);
    MUST(crystal_synth_parse("t", golden_text, sizeof golden_text - 1, &s, &err));
    new = synth(&s);
    old = crystal_graph_open(golden_file, &err);
    MUST(!old);
    CHECK_EQ(crystal_graph_rep_count(old), 2);
    for (uint32_t rep = 0; rep < 2; rep++) {
        uint64_t old_count, new_count;
        const struct crystal_op *x = crystal_graph_ops(old, rep, &old_count);
        const struct crystal_op *y = crystal_graph_ops(new, rep, &new_count);

        CHECK_EQ(new_count, old_count);
        CHECK(memcmp(x, y, old_count * sizeof *x) == 0);
    }
    for (uint32_t r = 0; r < 8; r++)
        CHECK_EQ(crystal_graph_comm_of(old, r, 0), crystal_graph_comm_of(new, r, 0));
    crystal_graph_close(old);
    crystal_graph_close(new);
}

static void reads_older_versions(void)
{
    reads_version("graph-v2");
    reads_version("graph-v3");
    reads_version("graph-v4");
}

/* Any records come back as they were, in any order of times. */
static void packs_anything(void)
{
    enum { COUNT = 5000 };
    static struct crystal_op ops[COUNT], back[COUNT];
    struct crystal_graph_packer p = {0};
    uint64_t state = 1;

    for (size_t i = 0; i < COUNT; i++) {
        uint64_t x = state = state * UINT64_C(6364136223846793005) + 1;

        ops[i] = (struct crystal_op){
            .kind = (uint8_t)(1 + (x >> 60) * 9 % 19),
            .stream = (uint16_t)(x >> 58 & 1),
            .peer = x >> 50 & 3 ? (uint32_t)(x >> 20) : 0,
            .value = x >> 57 & 1 ? (uint64_t)(x >> (x >> 40 & 63)) : 7,
            .t_ns = (i ? ops[i - 1].t_ns : 0) + (x >> 55 & 1 ? x >> 30 : x >> 60)};
        if (i % 50 == 0)
            ops[i].t_ns = 0; /* another list */
        if (ops[i].kind == 19)
            memset(&ops[i], (int)(x >> 40), sizeof ops[i]),
                ops[i].kind = CRYSTAL_OP_EXT;
        if (ops[i].kind == CRYSTAL_OP_WAIT && x >> 56 & 1)
            ops[i].value = ops[i].t_ns + (x >> 35);
    }
    for (uint64_t i = 0; i < COUNT; i += 300)
        CHECK_EQ(
            crystal_graph_packer_put(&p, ops + i, COUNT - i < 300 ? COUNT - i : 300),
            0);
    CHECK_EQ(p.count, COUNT);
    CHECK(p.shape_count > 20 && p.shape_count < COUNT);
    CHECK_EQ(crystal_graph_unpack(p.shapes, p.shape_count, p.rows, COUNT, back), 0);
    CHECK(memcmp(ops, back, sizeof ops) == 0);
    p.rows[COUNT / 2].shape = (uint32_t)p.shape_count;
    CHECK_EQ(crystal_graph_unpack(p.shapes, p.shape_count, p.rows, COUNT, back),
             -EINVAL);
    crystal_graph_packer_fini(&p);
}

int main(void)
{
    (void)snprintf(path, sizeof path, "/tmp/crystal-synth.%ld", (long)getpid());
    check_begin();
    CHECK_RUN(refuses);
    CHECK_RUN(pipelines_in_closed_form);
    CHECK_RUN(all_dimensions);
    CHECK_RUN(golden);
    CHECK_RUN(reads_older_versions);
    CHECK_RUN(packs_anything);
    (void)unlink(path); /* a temporary file */
    return check_end();
}
