/* job.graph: what is built from hand-made traces is read back exactly; anything wrong
 * in traces, tables or the file itself is refused with its place.
 */
#include "config.h"

#include "runtime/graph.h"

#include "tests/check.h"
#include "tests/folders.h"
#include "tests/job.h"

#include <errno.h>

/* Ranks of "tp=2,pp=2,dp=2" as rank = tp + 2 * pp + 4 * dp; replica 0 is live. */
static void replica(struct job *j)
{
    static const char *const tp[] = {"/g/tp0", "/g/tp1"};
    char flag;

    job_begin(j, 8, "tp=2,pp=2,dp=2", "0-3", "0-3");
    job_text(j, "comms.tab",
             "/default_pg/0//cpu//0\t8\t0-7\n"
             "/g/tp0\t2\t0,1\n/g/tp1\t2\t2,3\n"
             "/g/dp0\t2\t0,4\n/g/dp1\t2\t1,5\n/g/dp2\t2\t2,6\n/g/dp3\t2\t3,7\n");
    for (uint32_t r = 0; r < 4; r++) {
        char dp[16];

        (void)snprintf(dp, sizeof dp, "/g/dp%u", r);
        job_rank(j, "ranks", r);
        job_comm(j, "/default_pg/0//cpu//0", r, 8);
        job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 1);
        flag = (char)('a' + r);
        job_payload(j, &flag, 1);
        job_comm(j, tp[r / 2], r % 2, 2);
        job_comm(j, dp, 0, 2);
        for (int i = 0; i < 3; i++) {
            j->now_ns += 1000;
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 1, 64);
            job_p2p(j, r < 2, 0, (r + 2) % 4, 16);
            if (r < 2) {
                char text[4] = {'x', (char)('0' + r), (char)('0' + i), 0};

                job_payload(j, text, sizeof text);
            }
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 2, 256);
            job_sync(j, 2, 500);
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 0, 2);
            flag = (char)('A' + i);
            job_payload(j, &flag, 1);
            job_hint(j, (uint64_t)i + 1);
        }
        job_rank_end(j);
    }
}

static struct crystal_graph *built(const struct job *j)
{
    char path[160];
    struct crystal_graph *g;

    JOB_MUST(crystal_graph_build(j->dir, &job_err));
    job_path(j, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &job_err);
    JOB_MUST(!g);
    return g;
}

static void check_members(const struct crystal_graph *g, uint32_t lrank, uint32_t local,
                          const char *name, const char *members)
{
    struct crystal_graph_comm comm;
    char *text;

    crystal_graph_comm(g, crystal_graph_comm_of(g, lrank, local), &comm);
    text = crystal_ranks_format(comm.members, comm.nranks);
    CHECK_STR(text, members);
    if (name)
        CHECK_STR(comm.name, name);
    else
        CHECK(!comm.name);
    free(text);
}

static void reads_back(void)
{
    struct crystal_graph_stat stat;
    struct crystal_graph *g;
    const uint64_t *marks;
    uint64_t count;
    uint32_t mark_count;
    struct job j;

    replica(&j);
    g = built(&j);
    CHECK_EQ(crystal_graph_lrank_count(g), 8);
    CHECK_EQ(crystal_graph_fingerprint(g), 0x1234);
    CHECK_EQ(crystal_graph_rep_count(g), 4);
    for (uint32_t r = 0; r < 8; r++) {
        CHECK_EQ(crystal_graph_rep_of(g, r), r % 4);
        CHECK_EQ(crystal_graph_rep_lrank(g, r % 4), r % 4);
        CHECK_EQ(crystal_graph_local_count(g, r), 3);
    }
    (void)crystal_graph_ops(g, 1, &count);
    CHECK_EQ(count, 1 + 2 + 2 + 2 + 2 + 3 * 8 + 1);
    marks = crystal_graph_marks(g, 1, &mark_count);
    CHECK_EQ(mark_count, 4);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(marks[i], 9 + 8 * i);
    marks = crystal_graph_marks(g, 3, &mark_count);
    CHECK_EQ(mark_count, 4);
    CHECK_EQ(marks[3] - marks[2], 7);
    crystal_graph_stat(g, &stat);
    CHECK_EQ(stat.iteration_count, 3);
    CHECK_EQ(stat.payload_count, 4 + 2 * 3 + 4 * 3);
    CHECK_EQ(crystal_graph_check_parent(g, j.dir, NULL), 0);
    crystal_graph_close(g);
    job_end(&j);
}

static void expands_replicas(void)
{
    struct crystal_graph *g;
    struct job j;
    const uint32_t members[] = {4, 5};
    uint32_t tp;

    replica(&j);
    g = built(&j);
    check_members(g, 0, 0, "/default_pg/0//cpu//0", "0-7");
    check_members(g, 7, 0, "/default_pg/0//cpu//0", "0-7");
    check_members(g, 1, 1, "/g/tp0", "0-1");
    check_members(g, 4, 1, NULL, "4-5");
    check_members(g, 5, 1, NULL, "4-5");
    check_members(g, 7, 1, NULL, "6-7");
    check_members(g, 2, 2, "/g/dp2", "2,6");
    check_members(g, 6, 2, "/g/dp2", "2,6");
    CHECK_EQ(crystal_graph_comm_count(g), 7 + 2);
    tp = crystal_graph_comm_of(g, 4, 1);
    CHECK_EQ(crystal_graph_comm_of(g, 5, 1), tp);
    CHECK_EQ(crystal_graph_comm_find(g, "/g/tp9", 2, members, 0), tp);
    CHECK_EQ(crystal_graph_comm_find(g, NULL, 2, members, 0), tp);
    CHECK_EQ(crystal_graph_comm_find(g, NULL, 2, members, 1), UINT32_MAX);
    /* a name that stands for other members is not taken */
    CHECK_EQ(crystal_graph_comm_find(g, "/g/tp0", 2, members, 0), tp);
    CHECK_EQ(crystal_graph_crank_of(g, tp, 5), 1);
    CHECK_EQ(crystal_graph_crank_of(g, tp, 6), UINT32_MAX);
    /* rank 1 sends to rank 3 of the world, so 5 sends to 7 */
    CHECK_EQ(crystal_graph_peer_of(g, 1, 0, 3), 3);
    CHECK_EQ(crystal_graph_peer_of(g, 5, 0, 3), 7);
    CHECK_EQ(crystal_graph_peer_of(g, 5, 0, 7), 3);
    CHECK_EQ(crystal_graph_peer_of(g, 5, 1, 0), 0);
    crystal_graph_close(g);
    job_end(&j);
}

static void check_payload(const struct crystal_graph *g, uint32_t comm, uint64_t seq,
                          uint32_t crank, const char *want)
{
    const void *bytes = NULL;
    uint64_t count = 0;
    int code = crystal_graph_payload(g, comm, seq, crank, &bytes, &count);

    CHECK_EQ(code, 1);
    CHECK_EQ(count, strlen(want));
    CHECK(code == 1 && count == strlen(want) && memcmp(bytes, want, count) == 0);
}

static void finds_contributions(void)
{
    const void *bytes = NULL;
    uint64_t count = 0;
    struct crystal_graph *g;
    struct job j;
    uint32_t world, tp;

    replica(&j);
    g = built(&j);
    world = crystal_graph_comm_of(g, 0, 0);
    tp = crystal_graph_comm_of(g, 0, 1);
    check_payload(g, world, 0, 2, "c");
    check_payload(g, world, 0, 6, "c");
    check_payload(g, world, 3, 7, "C");
    CHECK_EQ(crystal_graph_payload(g, world, 4, 7, &bytes, &count), -ERANGE);
    CHECK_EQ(crystal_graph_payload(g, tp, 0, 1, &bytes, &count), 0);
    CHECK_EQ(crystal_graph_payload(g, tp, 3, 1, &bytes, &count), -ERANGE);
    CHECK_EQ(crystal_graph_payload(g, tp, 0, 2, &bytes, &count), -ERANGE);
    CHECK_EQ(crystal_graph_payload(g, 99, 0, 2, &bytes, &count), -ERANGE);
    /* what repeats behind the recording is its last iteration */
    CHECK_EQ(crystal_graph_seq_repeat(g, world, 3, 7), 3);
    CHECK_EQ(crystal_graph_seq_repeat(g, world, 4, 7), 3);
    CHECK_EQ(crystal_graph_seq_repeat(g, world, 400, 7), 3);
    CHECK_EQ(crystal_graph_seq_repeat(g, tp, 0, 0), 0);
    CHECK_EQ(crystal_graph_seq_repeat(g, tp, 17, 0), 2);
    /* sends: rank 1 to 3, so 5 to 7, and nobody else */
    CHECK_EQ(crystal_graph_p2p_payload(g, world, 1, 3, 2, &bytes, &count), 1);
    CHECK_EQ(count, 4);
    CHECK_STR((const char *)bytes, "x12");
    CHECK_EQ(crystal_graph_p2p_payload(g, world, 5, 7, 0, &bytes, &count), 1);
    CHECK_STR((const char *)bytes, "x10");
    CHECK_EQ(crystal_graph_p2p_payload(g, world, 5, 3, 0, &bytes, &count), -ERANGE);
    CHECK_EQ(crystal_graph_p2p_payload(g, world, 5, 7, 3, &bytes, &count), -ERANGE);
    CHECK_EQ(crystal_graph_p2p_payload(g, world, 3, 1, 0, &bytes, &count), -ERANGE);
    crystal_graph_close(g);
    job_end(&j);
}

static void everybody_live(void)
{
    struct crystal_graph *g;
    struct job j;

    job_begin(&j, 3, NULL, "0-2", "0-2");
    job_text(&j, "comms.tab", "w\t3\t2,0,1\n");
    for (uint32_t r = 0; r < 3; r++) {
        job_rank(&j, "ranks", r);
        job_comm(&j, "w", (r + 1) % 3, 3);
        for (int i = 0; i < 4; i++)
            job_p2p(&j, r != 1, 0, (r + 2) % 3, 1 + r);
        job_rank_end(&j);
    }
    g = built(&j);
    for (uint32_t r = 0; r < 3; r++) {
        struct crystal_graph_comm comm;

        CHECK_EQ(crystal_graph_rep_of(g, r), r);
        CHECK_EQ(crystal_graph_peer_of(g, r, 0, 1), 1);
        crystal_graph_comm(g, crystal_graph_comm_of(g, r, 0), &comm);
        CHECK_EQ(comm.members[(r + 1) % 3], r);
    }
    crystal_graph_close(g);
    job_end(&j);
}

static void refuse(struct job *j, const char *part)
{
    struct crystal_error err = {0};

    CHECK(crystal_graph_build(j->dir, &err) < 0);
    CHECK_HAS(err.text, part);
}

static void refuses_bad_tables(void)
{
    static const struct {
        const char *table, *sentence;
    } cases[] = {
        {"w\t2\n", "comms.tab:1: not name, number and members between tabs"},
        {"w\tx\t0,1\n", "comms.tab:1: 'x' is no number of ranks"},
        {"w\t3\t0,1\n", "comms.tab:1: 3 ranks but 2 members"},
        {"v\t1\t0\nw\t2\t0,9\n", "comms.tab:2: "},
        {"w\t2\t0,1", "comms.tab:1: cut off in the middle of a line"},
        {"v\t2\t0,1\n", "record 1: communicator 'w' is not in comms.tab"},
        {"w\t2\t1,0\n", "record 1: communicator 'w' differs from comms.tab"},
    };
    struct job j;

    job_begin(&j, 2, NULL, "0-1", "0-1");
    refuse(&j, "comms.tab: No such file or directory; run 'scrystal capture' first");
    job_text(&j, "comms.tab", "w\t2\t0,1\n");
    refuse(&j, "ranks/0.trace");
    for (uint32_t r = 0; r < 2; r++) {
        job_rank(&j, "ranks", r);
        job_comm(&j, "w", r, 2);
        job_rank_end(&j);
    }
    CHECK_EQ(crystal_graph_build(j.dir, NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job_text(&j, "comms.tab", cases[i].table);
        refuse(&j, cases[i].sentence);
    }
    job_end(&j);
}

static void refuses_bad_traces(void)
{
    struct job j;

    job_begin(&j, 2, NULL, "0-1", "0-1");
    job_text(&j, "comms.tab", "w\t2\t0,1\n");
    job_rank(&j, "ranks", 0);
    job_comm(&j, "w", 0, 2);
    job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 8);
    job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 8);
    job_rank_end(&j);
    job_rank(&j, "ranks", 1);
    job_comm(&j, "w", 1, 2);
    job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 8);
    job_coll(&j, CRYSTAL_FUNC_BROADCAST, 0, 8);
    job_rank_end(&j);
    refuse(&j, "collective 1 of 'w' differs between ranks 0 and 1; capture again");

    job_rank(&j, "ranks", 1);
    job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 8);
    job_rank_end(&j);
    refuse(&j, "1.trace: record 1: an operation names no communicator");

    job_rank(&j, "ranks", 1);
    job_comm(&j, "w", 1, 2);
    job_p2p(&j, 1, 0, 2, 8);
    job_rank_end(&j);
    refuse(&j, "1.trace: record 3: an operation has a value out of range");

    job_rank(&j, "ranks", 1);
    job_comm(&j, "w", 1, 2);
    job_op(&j, (struct crystal_op){.kind = CRYSTAL_OP_LOST, .value = 7});
    job_rank_end(&j);
    refuse(&j, "1.trace: record 3: 7 records were lost");

    job_rank(&j, "ranks", 1);
    job_comm(&j, "w", 1, 2);
    job_coll(&j, CRYSTAL_FUNC_ALLREDUCE, 0, 8);
    job_op(&j, (struct crystal_op){.kind = CRYSTAL_OP_PAYLOAD, .peer = 4});
    job_rank_end(&j);
    refuse(&j, "its payload file is missing");

    j.layout.fingerprint = 0x999;
    job_rank(&j, "ranks", 1);
    job_rank_end(&j);
    refuse(&j, "captured from another program or layout; run 'scrystal capture' again");
    job_end(&j);
}

static void notices_other_traces(void)
{
    struct crystal_error err = {0};
    struct crystal_graph *g;
    struct job j;

    replica(&j);
    g = built(&j);
    job_rank(&j, "ranks", 3);
    job_rank_end(&j);
    CHECK_EQ(crystal_graph_check_parent(g, j.dir, &err), -ESTALE);
    CHECK_HAS(err.text, "job.graph: made from other traces than those in ranks/; "
                        "run 'scrystal graph' and 'scrystal plan' again");
    crystal_graph_close(g);
    job_end(&j);
}

static void spill(const char *path, const unsigned char *bytes, size_t count)
{
    FILE *out = fopen(path, "wb");

    JOB_MUST(!out || fwrite(bytes, 1, count, out) != count || fclose(out) != 0);
}

static size_t slurp(const char *path, unsigned char *bytes, size_t capacity)
{
    FILE *in = fopen(path, "rb");
    size_t count;

    JOB_MUST(!in);
    count = fread(bytes, 1, capacity, in);
    JOB_MUST(fclose(in) != 0 || count == capacity);
    return count;
}

/* A graph, whose bytes a test changes. */
struct image {
    struct job job;
    char path[160];
    unsigned char bytes[1 << 16];
    size_t count;
};

static void image_make(struct image *i)
{
    replica(&i->job);
    crystal_graph_close(built(&i->job));
    job_path(&i->job, i->path, sizeof i->path, "job.graph");
    i->count = slurp(i->path, i->bytes, sizeof i->bytes);
}

static void refuses_every_cut(void)
{
    static struct image i;

    image_make(&i);
    for (size_t cut = 0; cut < i.count; cut++) {
        struct crystal_graph *g;

        spill(i.path, i.bytes, cut);
        g = crystal_graph_open(i.path, NULL);
        if (g)
            printf("# opened with %zu of %zu bytes\n", cut, i.count);
        CHECK(!g);
        crystal_graph_close(g);
    }
    job_end(&i.job);
}

/* No bit of the file may be another one, its header's included. */
static void refuses_every_flip(void)
{
    static struct image i;

    image_make(&i);
    for (size_t bit = 0; bit < 8 * i.count; bit += bit < 8 * 64 ? 1 : 9) {
        struct crystal_graph *g;

        i.bytes[bit / 8] ^= 1U << bit % 8;
        spill(i.path, i.bytes, i.count);
        i.bytes[bit / 8] ^= 1U << bit % 8;
        g = crystal_graph_open(i.path, NULL);
        if (g)
            printf("# opened with bit %zu of byte %zu flipped\n", bit % 8, bit / 8);
        CHECK(!g);
        crystal_graph_close(g);
    }
    memset(i.bytes + 56, 0, 8);
    spill(i.path, i.bytes, i.count);
    CHECK(!crystal_graph_open(i.path, &job_err));
    CHECK_STR(strstr(crystal_error_text(&job_err), ": "),
              ": its header has no checksum; run 'scrystal graph' again");
    job_end(&i.job);
}

/* What the golden files of captures hold. */
static void reads_golden(const char *path)
{
    struct crystal_graph *g = crystal_graph_open(path, &job_err);
    const void *bytes;
    uint64_t payload_count;

    JOB_MUST(!g);
    CHECK_EQ(crystal_graph_lrank_count(g), 8);
    CHECK_EQ(crystal_graph_p2p_payload(g, crystal_graph_comm_of(g, 5, 0), 5, 7, 2,
                                       &bytes, &payload_count),
             1);
    CHECK_STR((const char *)bytes, "x12");
    crystal_graph_close(g);
}

/* The bytes of versions 1 and 5 are frozen: the golden files are still read, and the
 * same job still makes one of the same form (its START records tell when it ran).
 * CRYSTAL_TEST_UPDATE=1 writes it anew. */
static void golden(void)
{
    static unsigned char want[1 << 16], got[1 << 16];
    const char *srcdir = source_folder();
    char path[160], golden_path[4096];
    struct job j;
    size_t count, want_count;

    (void)snprintf(golden_path, sizeof golden_path, "%s/tests/data/graph-v5", srcdir);
    replica(&j);
    crystal_graph_close(built(&j));
    job_path(&j, path, sizeof path, "job.graph");
    count = slurp(path, got, sizeof got);
    if (getenv("CRYSTAL_TEST_UPDATE"))
        spill(golden_path, got, count);
    want_count = slurp(golden_path, want, sizeof want);
    CHECK_EQ(count, want_count);
    CHECK(memcmp(got, want, 16) == 0);
    CHECK(memcmp(got + 64, want + 64, 128) == 0);
    reads_golden(golden_path);
    (void)snprintf(golden_path, sizeof golden_path, "%s/tests/data/graph-v1", srcdir);
    reads_golden(golden_path);
    job_end(&j);
}

int main(void)
{
    check_begin();
    CHECK_RUN(reads_back);
    CHECK_RUN(expands_replicas);
    CHECK_RUN(finds_contributions);
    CHECK_RUN(everybody_live);
    CHECK_RUN(refuses_bad_tables);
    CHECK_RUN(refuses_bad_traces);
    CHECK_RUN(notices_other_traces);
    CHECK_RUN(refuses_every_cut);
    CHECK_RUN(refuses_every_flip);
    CHECK_RUN(golden);
    return check_end();
}
