/* Traces: exact bytes, the golden file, truncation at every byte, sealing, lost
 * records. `tests/unit/trace --golden PATH` writes the golden file anew.
 */
#include "config.h"

#include "runtime/blockfile.h"
#include "runtime/payload.h"
#include "runtime/trace.h"

#include "tests/check.h"
#include "tests/folders.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const struct crystal_blockfile_kind kind = {"CRYTRACE", 2, 32, 1};
static char directory[64], path[128];

/* A rank of two communicators as it might have been written, in two blocks. */
static const struct crystal_op golden[] = {
    {CRYSTAL_OP_START, 0, 0, 0, 0, 0, 4711, 0, 1000000000, 0},
    {CRYSTAL_OP_COMM, 0, 0, 0, 0, 0, 0, 3, 16, 1000},
    {CRYSTAL_OP_COLL, CRYSTAL_FUNC_ALLREDUCE, ncclFloat32, CRYSTAL_OP_FLAG_IN_PLACE, 1,
     0, ncclSum, 0, 4096, 2000},
    {CRYSTAL_OP_RECORD, 0, 0, 0, 1, 0, 0, 7, 0, 2500},
    {CRYSTAL_OP_WAIT, 0, 0, 0, 0, 0, 0, 7, 9000, 3000},
    {CRYSTAL_OP_COLL, CRYSTAL_FUNC_BROADCAST, ncclInt64, 0, 0, 0, 0, 3, 8, 10000},
    {CRYSTAL_OP_PAYLOAD, 0, 0, 0, 0, 0, 0, 64, 128, 10000},
    {CRYSTAL_OP_DONE, 0, 0, 0, 0, 0, 0, 2, 2000, 8500},
    {CRYSTAL_OP_WORK, CRYSTAL_WORK_COPY, 0, 0, 1, 0, 3, 2, 700, 9500},
    {CRYSTAL_OP_HINT, 0, 0, 0, 0, 0, 0, 0, 1, 20000},
    {CRYSTAL_OP_END, 0, 0, 0, 0, 0, 1, 0, 123456789, 30000},
};
#define GOLDEN_COUNT (sizeof golden / sizeof golden[0])

static size_t slurp(const char *name, unsigned char *out, size_t out_bytes)
{
    FILE *file = fopen(name, "rb");
    size_t count;

    if (!file)
        return 0;
    count = fread(out, 1, out_bytes, file);
    (void)fclose(file); /* read-only */
    return count;
}

static void spill(const char *name, const unsigned char *bytes, size_t count)
{
    FILE *file = fopen(name, "wb");

    CHECK(file && fwrite(bytes, 1, count, file) == count);
    CHECK(file && fclose(file) == 0);
}

static int write_golden(const char *to)
{
    struct crystal_error err = {0};
    struct crystal_block_writer *w = crystal_block_create(to, &kind, 3, 0xfeed, &err);

    if (!w)
        return -1;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        struct crystal_op_ext name = {CRYSTAL_OP_EXT, "/default_pg/0//cpu//0"};

        crystal_block_append(w, &golden[i]);
        if (golden[i].kind == CRYSTAL_OP_COMM)
            crystal_block_append(w, &name);
        if (i == 4 && crystal_block_flush(w, &err))
            return -1;
    }
    if (crystal_block_close(w, &err))
        return -1;
    return crystal_trace_seal(to, &err);
}

static void golden_path(const char *file, char *out, size_t out_bytes)
{
    const char *source = source_folder();

    (void)snprintf(out, out_bytes, "%s/tests/data/%s", source, file);
}

static void golden_file_is_read(void)
{
    struct crystal_error err = {0};
    struct crystal_trace trace = {0};
    char name[512];

    golden_path("trace-v2", name, sizeof name);
    CHECK_EQ(crystal_trace_read(name, &trace, &err), 0);
    CHECK_EQ(trace.op_count, GOLDEN_COUNT + 1);
    CHECK_EQ(trace.head.lrank, 3);
    CHECK_EQ(trace.head.fingerprint, 0xfeed);
    CHECK_EQ(trace.head.file_bytes, 64 + 2 * 16 + 12 * 32);
    for (size_t i = 0; trace.op_count == GOLDEN_COUNT + 1 && i < GOLDEN_COUNT; i++)
        CHECK(memcmp(&trace.ops[i < 2 ? i : i + 1], &golden[i], 32) == 0);
    if (trace.op_count > 2)
        CHECK_STR((const char *)&trace.ops[2] + 1, "/default_pg/0//cpu//0");
    crystal_trace_fini(&trace);
}

/* Version 1 had no WORK records. */
static void an_older_file_is_read(void)
{
    struct crystal_error err = {0};
    struct crystal_trace trace = {0};
    unsigned char whole[1024];
    char name[512];

    golden_path("trace-v1", name, sizeof name);
    spill(path, whole, slurp(name, whole, sizeof whole));
    CHECK_EQ(crystal_trace_seal(path, &err), 0);
    CHECK_EQ(crystal_trace_read(path, &trace, &err), 0);
    CHECK_EQ(trace.head.version, 1);
    CHECK_EQ(trace.op_count, GOLDEN_COUNT);
    for (size_t i = 0, k = 0; trace.op_count == GOLDEN_COUNT && i < GOLDEN_COUNT; i++) {
        if (golden[i].kind == CRYSTAL_OP_WORK)
            continue;
        CHECK(memcmp(&trace.ops[k < 2 ? k : k + 1], &golden[i], 32) == 0);
        k++;
    }
    crystal_trace_fini(&trace);
}

static void writer_makes_the_golden_bytes(void)
{
    unsigned char want[1024], got[1024];
    char name[512];
    size_t count;

    golden_path("trace-v2", name, sizeof name);
    count = slurp(name, want, sizeof want);
    CHECK_EQ(count, 480);
    CHECK_EQ(write_golden(path), 0);
    CHECK_EQ(slurp(path, got, sizeof got), count);
    CHECK(memcmp(got, want, count) == 0);
}

static void start_record_and_mode(void)
{
    struct crystal_error err = {0};
    struct crystal_trace trace = {0};
    struct crystal_op op = {.kind = CRYSTAL_OP_HINT, .value = 1, .t_ns = 5};
    struct crystal_trace_writer *w = crystal_trace_create(path, 9, 77, &err);
    struct stat st;

    CHECK(w != NULL);
    if (!w)
        return;
    CHECK_EQ(crystal_trace_count(w), 1);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK_EQ(st.st_size, 64 + 16 + 32); /* START is there at once */
    crystal_trace_append(w, &op);
    CHECK_EQ(crystal_trace_count(w), 2);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_size, 64 + 16 + 32);
    CHECK_EQ(crystal_trace_read(path, &trace, &err), 0); /* unsealed */
    CHECK_EQ(trace.op_count, 1);
    CHECK_EQ(trace.head.file_bytes, 0);
    CHECK_EQ(trace.ops[0].kind, CRYSTAL_OP_START);
    CHECK_EQ(trace.ops[0].aux, getpid());
    CHECK_EQ(trace.ops[0].value, crystal_trace_start_ns(w));
    crystal_trace_fini(&trace);
    CHECK_EQ(crystal_trace_flush(w, &err), 0);
    CHECK_EQ(crystal_trace_close(w, &err), 0);
    CHECK_EQ(crystal_trace_read(path, &trace, &err), 0);
    CHECK_EQ(trace.op_count, 2);
    CHECK_EQ(trace.head.lrank, 9);
    CHECK_EQ(trace.head.fingerprint, 77);
    CHECK(memcmp(&trace.ops[1], &op, sizeof op) == 0);
    crystal_trace_fini(&trace);
}

static void old_records_reach_the_file(void)
{
    struct crystal_error err = {0};
    struct crystal_op op = {.kind = CRYSTAL_OP_SYNC};
    struct crystal_trace_writer *w = crystal_trace_create(path, 0, 0, &err);
    struct stat st;

    if (!w) {
        CHECK_STR(crystal_error_text(&err), "");
        return;
    }
    op.t_ns = 199999999;
    crystal_trace_append(w, &op);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_size, 112);
    op.t_ns = 200000000; /* 200 ms after the last write: what is there goes out first */
    crystal_trace_append(w, &op);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_size, 112 + 48);
    for (int i = 0; i < 3000; i++) /* a full buffer goes out as one block */
        crystal_trace_append(w, &op);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_size, 112 + 48 + 16 + (2048 - 15) * 32);
    CHECK_EQ(crystal_trace_close(w, &err), 0);
}

/* Cut anywhere: sealed files are refused, unsealed ones give their whole blocks. */
static void truncation_at_every_byte(void)
{
    unsigned char whole[1024];
    struct crystal_error err = {0};
    struct crystal_trace trace;
    struct stat st;
    size_t count;
    char name[512];

    golden_path("trace-v2", name, sizeof name);
    count = slurp(name, whole, sizeof whole);
    CHECK_EQ(count, 480);
    for (size_t cut = 0; cut < count; cut++) {
        spill(path, whole, cut);
        CHECK_EQ(crystal_trace_read(path, &trace, &err), -EINVAL);
        CHECK_EQ(crystal_trace_seal(path, &err), -EINVAL);
    }
    memset(whole + 16, 0, 16); /* file_bytes and body_hash of an unsealed file */
    for (size_t cut = 64; cut <= count; cut++) {
        /* block 1: 6 records, block 2: 6 records */
        uint64_t want = cut < 64 + 16 + 192 ? 0 : cut < count ? 6 : 12;

        spill(path, whole, cut);
        if (!want) {
            CHECK_EQ(crystal_trace_read(path, &trace, &err), -ENODATA);
            CHECK_HAS(err.text, "rank 3 ended before it wrote anything; see its log");
            CHECK_EQ(crystal_trace_seal(path, &err), -ENODATA);
            continue;
        }
        CHECK_EQ(crystal_trace_read(path, &trace, &err), 0);
        CHECK_EQ(trace.op_count, want);
        crystal_trace_fini(&trace);
        CHECK_EQ(crystal_trace_seal(path, &err), 0);
        CHECK_EQ(crystal_trace_seal(path, &err), 0);
        CHECK_EQ(stat(path, &st), 0);
        CHECK_EQ(st.st_size, want == 6 ? 272 : 480);
        CHECK_EQ(crystal_trace_read(path, &trace, &err), 0);
        CHECK_EQ(trace.op_count, want);
        CHECK_EQ(trace.head.file_bytes, want == 6 ? 272 : 480);
        crystal_trace_fini(&trace);
    }
}

/* A wrong byte anywhere in a sealed file is found; lrank, parent and fingerprint (bytes
 * 32 to 63 of the header) have no checksum of their own. */
static void every_wrong_byte_is_found(void)
{
    unsigned char whole[1024];
    struct crystal_error err = {0};
    struct crystal_trace trace;
    char name[512];
    size_t count;

    golden_path("trace-v2", name, sizeof name);
    count = slurp(name, whole, sizeof whole);
    CHECK_EQ(count, 480);
    for (size_t at = 0; at < count; at++) {
        if (at >= 32 && at < 64)
            continue;
        whole[at] ^= 0x10;
        spill(path, whole, count);
        CHECK(crystal_trace_read(path, &trace, &err) < 0);
        whole[at] ^= 0x10;
    }
}

static void full_disk_is_counted(void)
{
    struct crystal_error err = {0};
    struct crystal_op op = {.kind = CRYSTAL_OP_SYNC, .t_ns = 1};
    struct crystal_trace trace = {0};
    struct rlimit limit, small;
    struct crystal_trace_writer *w = crystal_trace_create(path, 0, 0, &err);

    if (!w) {
        CHECK_STR(crystal_error_text(&err), "");
        return;
    }
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 112 + 100; /* not enough for the next block */
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 10; i++)
        crystal_trace_append(w, &op);
    CHECK_EQ(crystal_trace_flush(w, &err), -EFBIG);
    CHECK_HAS(err.text, "File too large, 10 records lost");
    crystal_trace_append(w, &op);
    CHECK_EQ(crystal_trace_count(w), 12);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(crystal_trace_close(w, &err), -EFBIG);
    CHECK_EQ(crystal_trace_read(path, &trace, &err), 0);
    CHECK_EQ(trace.op_count, 2);
    CHECK_EQ(trace.ops[1].kind, CRYSTAL_OP_LOST);
    CHECK_EQ(trace.ops[1].value, 11);
    crystal_trace_fini(&trace);
}

static void unwritable_places(void)
{
    struct crystal_error err = {0};
    char long_path[5000];

    CHECK(crystal_trace_create("/nonexistent/0.trace", 0, 0, &err) == NULL);
    CHECK_EQ(err.code, ENOENT);
    CHECK_HAS(err.text, "/nonexistent/0.trace: No such file or directory");
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    CHECK(crystal_trace_create(long_path, 0, 0, &err) == NULL);
    CHECK_EQ(err.code, ENAMETOOLONG);
    CHECK_EQ(crystal_trace_seal("/nonexistent/0.trace", &err), -ENOENT);
    CHECK_EQ(crystal_trace_close(NULL, &err), 0);
    crystal_trace_fini(NULL);
}

static void payload_is_sealed(void)
{
    struct crystal_error err = {0};
    struct crystal_file_view view = {0};
    struct crystal_payload_writer *w = crystal_payload_create(path, 5, 6, &err);

    CHECK(w != NULL);
    if (!w)
        return;
    CHECK_EQ(crystal_payload_reserve(w, 4), 0);
    CHECK_EQ(crystal_payload_reserve(w, 3), 4);
    CHECK_EQ(crystal_payload_reserve(w, 2), 7); /* never filled */
    CHECK_EQ(crystal_payload_write(w, 4, "efg", 3, &err), 0);
    CHECK_EQ(crystal_payload_write(w, 0, "abcd", 4, &err), 0);
    CHECK_EQ(crystal_payload_close(w, &err), 0);
    CHECK_EQ(crystal_file_map(path, "CRYPAYLD", 1, &view, &err), -EINVAL);
    CHECK_HAS(err.text, "never finished");
    CHECK_EQ(crystal_payload_seal(path, &err), 0);
    CHECK_EQ(crystal_payload_seal(path, &err), 0);
    CHECK_EQ(crystal_file_map(path, "CRYPAYLD", 1, &view, &err), 0);
    CHECK_EQ(view.body_bytes, 9);
    if (view.body_bytes == 9)
        CHECK(memcmp(view.body, "abcdefg\0\0", 9) == 0);
    CHECK_EQ(view.head ? view.head->lrank : 0, 5);
    crystal_file_unmap(&view);
    spill(path, (const unsigned char *)"CRYPAYLD", 8);
    CHECK_EQ(crystal_payload_seal(path, &err), -EINVAL);
}

/* Room that was never filled is a hole. Where the file system is full (a tmpfs of 1
 * MiB) a mapping of it cannot be read: SIGBUS. */
static void holes_on_a_full_disk(void)
{
    static char zeros[1 << 20];
    const uint64_t body_bytes = (2 << 20) - 64;
    struct crystal_error err = {0};
    struct crystal_file_view view = {0};
    struct crystal_payload_writer *w;
    uint64_t all_zero = 1;
    char full[80], name[96], fill[96];
    FILE *file;

    (void)snprintf(full, sizeof full, "%s/full", directory);
    (void)snprintf(name, sizeof name, "%s/5.payload", full);
    (void)snprintf(fill, sizeof fill, "%s/fill", full);
    CHECK_EQ(mkdir(full, 0700), 0);
    if (unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", full, "tmpfs", 0, "size=1m,mode=700") < 0) {
        printf("# holes on a full disk: SKIP needs root and tmpfs\n");
        CHECK_EQ(rmdir(full), 0);
        return;
    }
    w = crystal_payload_create(name, 5, 6, &err);
    CHECK_EQ(w ? crystal_payload_reserve(w, body_bytes) : 1, 0);
    CHECK_EQ(crystal_payload_close(w, &err), 0);
    file = fopen(fill, "wb");
    CHECK(file && fwrite(zeros, 1, sizeof zeros, file) < sizeof zeros);
    if (file)
        (void)fclose(file); /* it is full */
    CHECK_EQ(crystal_payload_seal(name, &err), 0);
    CHECK_EQ(crystal_file_map(name, "CRYPAYLD", 1, &view, &err), 0);
    CHECK_EQ(view.body_bytes, body_bytes);
    for (size_t i = 0; i < view.body_bytes; i++)
        all_zero &= ((const char *)view.body)[i] == 0;
    CHECK_EQ(all_zero, 1);
    crystal_file_unmap(&view);
    CHECK_EQ(umount(full), 0);
    CHECK_EQ(rmdir(full), 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--golden") == 0)
        return write_golden(argv[2]) ? 1 : 0;
    check_begin();
    (void)signal(SIGXFSZ, SIG_IGN); /* a full disk is an error code, not a signal */
    (void)snprintf(directory, sizeof directory, "/tmp/crystal-trace.XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(path, sizeof path, "%s/3.trace", directory);
    CHECK_RUN(golden_file_is_read);
    CHECK_RUN(an_older_file_is_read);
    CHECK_RUN(writer_makes_the_golden_bytes);
    CHECK_RUN(start_record_and_mode);
    CHECK_RUN(old_records_reach_the_file);
    CHECK_RUN(truncation_at_every_byte);
    CHECK_RUN(every_wrong_byte_is_found);
    CHECK_RUN(full_disk_is_counted);
    CHECK_RUN(unwritable_places);
    CHECK_RUN(payload_is_sealed);
    CHECK_RUN(holes_on_a_full_disk);
    (void)unlink(path);
    (void)rmdir(directory);
    return check_end();
}
