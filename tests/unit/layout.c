/* Layout: every option checked against the others, layout.yaml there and back,
 * representatives from closed forms. */
#include "config.h"

#include "runtime/layout_make.h"

#include "tests/check.h"

#include <errno.h>
#include <sys/stat.h>

static struct crystal_conf conf;
static struct crystal_layout layout;
static struct crystal_error err;
static char notice[256];

static int make(const struct crystal_layout_options *options)
{
    memset(&err, 0, sizeof err);
    return crystal_layout_make(options, &conf, &layout, notice, sizeof notice, &err);
}

static void replica_of_a_grid(void)
{
    struct crystal_layout_options o = {.logical_ranks = "64",
                                       .parallel = "tp=2,pp=4,dp=8"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.ranks_per_node, 8);
    CHECK_EQ(layout.sandbox_count, 8);
    CHECK_EQ(layout.sandbox[7], 7);
    CHECK_EQ(layout.live_count, 8);
    for (uint32_t r = 0; r < 64; r++)
        CHECK_EQ(crystal_layout_representative(&layout, r), r % 8);
    CHECK_EQ(layout.iterations, 3);
    CHECK_STR(notice, "");
    CHECK_EQ(crystal_layout_is_sandbox(&layout, 7), 1);
    CHECK_EQ(crystal_layout_is_sandbox(&layout, 8), 0);
    crystal_layout_fini(&layout);
}

/* dp in the middle of the order: rank = tp + 2 * (dp + 4 * pp) */
static void dp_in_the_middle(void)
{
    struct crystal_layout_options o = {.logical_ranks = "24",
                                       .parallel = "tp=2,dp=4,pp=3"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.live_count, 6);
    for (uint32_t r = 0; r < 24; r++)
        CHECK_EQ(crystal_layout_representative(&layout, r), r % 2 + r / 8 * 8);
    crystal_layout_fini(&layout);
}

/* ep = 2 inside dp = 4: ranks with dp 0 and 1 are live, dp d stands like d % 2 */
static void ep_inside_dp(void)
{
    struct crystal_layout_options o = {.logical_ranks = "8",
                                       .parallel = "tp=2,ep=2,dp=4"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.grid.ep_inside, 2);
    CHECK_EQ(layout.live_count, 4);
    for (uint32_t r = 0; r < 8; r++)
        CHECK_EQ(crystal_layout_representative(&layout, r), r % 4);
    crystal_layout_fini(&layout);
}

static void ep_of_its_own(void)
{
    struct crystal_layout_options o = {.logical_ranks = "16",
                                       .parallel = "tp=2,ep=2,dp=4"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.grid.ep_inside, 1);
    CHECK_EQ(layout.live_count, 4);
    crystal_layout_fini(&layout);
}

static void sandbox_is_rounded_aloud(void)
{
    struct crystal_layout_options o = {
        .logical_ranks = "64", .sandbox = "9,14", .live = "all"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.sandbox_count, 8);
    CHECK_EQ(layout.sandbox[0], 8);
    CHECK_STR(notice, "sandbox 9,14 rounded up to whole target nodes: ranks 8-15");
    CHECK_EQ(layout.live_count, 64);
    crystal_layout_fini(&layout);
}

static void sandbox_of_several_nodes(void)
{
    struct crystal_layout_options o = {
        .logical_ranks = "64", .sandbox = "0-8,63", .live = "all"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.sandbox_count, 24);
    CHECK_EQ(layout.sandbox[15], 15);
    CHECK_EQ(layout.sandbox[16], 56);
    CHECK_STR(notice,
              "sandbox 0-8,63 rounded up to whole target nodes: ranks 0-15,56-63");
    crystal_layout_fini(&layout);
}

/* Any name will do, but not silently: "pd" leaves no replica to capture. */
static void other_dimensions_are_told(void)
{
    struct crystal_layout_options o = {.logical_ranks = "16", .parallel = "tp=2,pd=8"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.live_count, 16);
    CHECK_STR(
        notice,
        "parallel: 'pd' is none of tp, pp, cp, sp, dp, ep and only names groups in "
        "the report; 16 of 16 ranks are captured");
    crystal_layout_fini(&layout);
    o.parallel = "t=2,dp=8";
    o.sandbox = "0,9";
    o.ranks_per_node = "2";
    CHECK_EQ(make(&o), 0);
    CHECK_STR(
        notice,
        "sandbox 0,9 rounded up to whole target nodes: ranks 0-1,8-9; parallel: 't' "
        "is none of tp, pp, cp, sp, dp, ep and only names groups in the report; 2 of "
        "16 ranks are captured");
    crystal_layout_fini(&layout);
    o.parallel = "tp=1,cp=1,sp=1,ep=2,pp=1,dp=16";
    o.sandbox = "0";
    o.ranks_per_node = "1";
    CHECK_EQ(make(&o), 0);
    CHECK_STR(notice, "");
    crystal_layout_fini(&layout);
}

static void small_job_fits_one_node(void)
{
    struct crystal_layout_options o = {.logical_ranks = "4"};

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(layout.ranks_per_node, 4);
    CHECK_EQ(layout.live_count, 4);
    crystal_layout_fini(&layout);
}

static void bad_options(void)
{
    static const struct {
        struct crystal_layout_options o;
        const char *want;
    } cases[] = {
        {{0}, "--crystal-logical-ranks is missing"},
        {{.logical_ranks = "x"}, "--crystal-logical-ranks: 'x' is no whole number"},
        {{.logical_ranks = "0"}, "is no whole number from 1"},
        {{.logical_ranks = "-8"}, "is no whole number from 1"},
        {{.logical_ranks = "8 "}, "is no whole number from 1"},
        {{.logical_ranks = ""}, "is no whole number from 1"},
        {{.logical_ranks = "18446744073709551617"}, "is no whole number from 1"},
        {{.logical_ranks = "1048577"}, "from 1 to 1048576"},
        {{.logical_ranks = "64", .ranks_per_node = "65"}, "--crystal-ranks-per-node"},
        {{.logical_ranks = "64", .ranks_per_node = "7"}, "no multiple of 7"},
        {{.logical_ranks = "64", .sandbox = "64"}, "beyond 63"},
        {{.logical_ranks = "64", .sandbox = "a"}, "--crystal-sandbox: 'a' is no rank"},
        {{.logical_ranks = "64", .parallel = "tp=3"}, "is 3, not the 64 logical"},
        {{.logical_ranks = "64", .parallel = "tp"}, "--crystal-parallel: 'tp' is no"},
        {{.logical_ranks = "64"}, "needs the parallel grid"},
        {{.logical_ranks = "64", .live = "some"}, "neither replica nor all"},
        {{.logical_ranks = "8", .iterations = "0"}, "--crystal-iterations"},
        {{.logical_ranks = "8", .payload = "x"}, "--crystal-payload"},
        {{.logical_ranks = "8", .wire = "radio"}, "neither modelled nor real"},
        {{.logical_ranks = "8", .wire = "real"}, "all ranks are in the sandbox"},
        {{.logical_ranks = "8", .assistants = "1"}, "add --crystal-wire=real"},
        {{.logical_ranks = "8", .wire = "modelled", .assistants = "1"},
         "add --crystal-wire=real"},
        {{.logical_ranks = "16", .wire = "real", .assistants = "0"},
         "--crystal-assistants: '0' is no whole number from 1 to 512"},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(make(&cases[i].o) < 0);
        CHECK_HAS(crystal_error_text(&err), cases[i].want);
    }
}

static void file_there_and_back(void)
{
    static char *program[] = {"python", "a \"b\"\\\n.py", "--x", NULL};
    struct crystal_layout_options o = {.logical_ranks = "64",
                                       .parallel = "tp=2,pp=4,dp=8",
                                       .sandbox = "8-15",
                                       .job_name = "gpt \"x\"",
                                       .program = program};
    struct crystal_layout back;
    char path[] = "/tmp/crystal-layout-XXXXXX";
    struct stat st;
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    CHECK_EQ(make(&o), 0);
    CHECK(layout.iteration_range == NULL);
    layout.iteration_range = strdup("step \"\\ *");
    CHECK_EQ(crystal_layout_write(path, &layout, &err), 0);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK_EQ(crystal_layout_read(path, &back, &err), 0);
    CHECK_EQ(back.lrank_count, 64);
    CHECK_EQ(back.sandbox_count, 8);
    CHECK_EQ(back.sandbox[0], 8);
    CHECK_EQ(back.live_count, 8);
    CHECK_EQ(back.grid.count, 3);
    CHECK_STR(back.grid.dim[2].name, "dp");
    CHECK(back.fingerprint == layout.fingerprint);
    CHECK_EQ(back.wire_latency_ns, 50000);
    CHECK_EQ(back.wire_bytes_per_s, 1250000000);
    CHECK_STR(back.job_name, "gpt \"x\"");
    CHECK_STR(back.iteration_range, "step \"\\ *");
    CHECK_STR(back.program[1], "a \"b\"\\\n.py");
    CHECK(back.program[3] == NULL);
    crystal_layout_fini(&back);
    crystal_layout_fini(&layout);
    close(fd);
    unlink(path);
}

/* What YAML has no character for, or takes for a line break, arrives as it is. */
static void characters_there_and_back(void)
{
    static char *program[] = {
        "python",
        "\xc2\x80 \xc2\x85 \xc2\x9f \xc2\xa0", /* U+0080 ... U+00A0 */
        "\xe2\x80\xa8 \xe2\x80\xa9",           /* U+2028, U+2029 */
        "\xef\xbb\xbf \xef\xbf\xbd",           /* U+FEFF, U+FFFD */
        "\xef\xbf\xbe \xef\xbf\xbf",           /* U+FFFE, U+FFFF */
        "\xf0\x9f\xbf\xbe \xf4\x8f\xbf\xbf",   /* U+1FFFE, U+10FFFF */
        " \t\r\n\x7f ",
        NULL};
    static char *latin[] = {"python", "x", "caf\xe9", NULL};
    char name[80], want[80];
    struct crystal_layout_options o = {
        .logical_ranks = "8", .live = "all", .job_name = name, .program = program};
    struct crystal_layout back = {0};
    char path[] = "/tmp/crystal-layout-XXXXXX";
    int fd = mkstemp(path);

    /* 63 bytes end inside the last of 32 characters of two bytes */
    for (size_t i = 0; i < 32; i++)
        memcpy(name + 2 * i, "\xc3\xa9", 3);
    memcpy(want, name, 62);
    want[62] = 0;
    CHECK_EQ(make(&o), 0);
    CHECK_STR(layout.job_name, want);
    CHECK_EQ(crystal_layout_write(path, &layout, &err), 0);
    CHECK_EQ(crystal_layout_read(path, &back, &err), 0);
    CHECK_STR(back.job_name, want);
    for (size_t i = 0; back.program && i < sizeof program / sizeof program[0] - 1; i++)
        CHECK_STR(back.program[i], program[i]);
    crystal_layout_fini(&back);
    crystal_layout_fini(&layout);

    o.job_name = "caf\xe9";
    CHECK_EQ(make(&o), 0);
    CHECK_STR(layout.job_name, "caf?");
    crystal_layout_fini(&layout);
    o.program = latin;
    CHECK_EQ(make(&o), -EINVAL);
    CHECK_HAS(err.text, "argument 2 of the program is not UTF-8");
    (void)close(fd);
    (void)unlink(path);
}

/* The real wire has one assistant per sandbox node, or as many as are asked for; then
 * the file is of a version that older programs refuse. */
static void assistants_there_and_back(void)
{
    static const char *const asked[] = {NULL, "1", "5"};
    static const uint32_t want[] = {2, 1, 5};
    char path[] = "/tmp/crystal-layout-XXXXXX", version[128] = "";
    int fd = mkstemp(path);

    for (int i = 0; i < 3; i++) {
        struct crystal_layout_options o = {.logical_ranks = "64",
                                           .live = "all",
                                           .sandbox = "0,63",
                                           .wire = "real",
                                           .assistants = asked[i]};
        struct crystal_layout back;
        FILE *file;

        CHECK_EQ(make(&o), 0);
        CHECK_EQ(layout.assistant_count, want[i]);
        CHECK_EQ(crystal_layout_write(path, &layout, &err), 0);
        CHECK_EQ(crystal_layout_read(path, &back, &err), 0);
        CHECK_EQ(back.assistant_count, want[i]);
        file = fopen(path, "r");
        for (int line = 0; file && line < 2; line++)
            CHECK(fgets(version, sizeof version, file));
        CHECK_STR(version, "version: 2\n");
        if (file)
            (void)fclose(file); /* read-only */
        crystal_layout_fini(&back);
        crystal_layout_fini(&layout);
    }
    (void)close(fd);
    (void)unlink(path);
}

/* Every file cut short is refused or, cut inside its program, shorter there. */
static void file_cut_anywhere(void)
{
    struct crystal_layout_options o = {.logical_ranks = "8", .parallel = "dp=8"};
    char path[] = "/tmp/crystal-layout-XXXXXX";
    struct stat st;
    int fd = mkstemp(path);

    CHECK_EQ(make(&o), 0);
    CHECK_EQ(crystal_layout_write(path, &layout, &err), 0);
    CHECK_EQ(stat(path, &st), 0);
    for (off_t bytes = st.st_size - 20; bytes >= 0; bytes--) {
        struct crystal_layout back = {0};

        CHECK_EQ(truncate(path, bytes), 0);
        memset(&err, 0, sizeof err);
        CHECK(crystal_layout_read(path, &back, &err) < 0);
        CHECK(err.code != 0);
    }
    crystal_layout_fini(&layout);
    close(fd);
    unlink(path);
}

static void fingerprint_follows_the_program(void)
{
    char path[] = "/tmp/crystal-program-XXXXXX";
    int fd = mkstemp(path);
    char *program[] = {"python", path, NULL};
    struct crystal_layout_options o = {.logical_ranks = "8", .program = program};
    uint64_t first;

    CHECK_EQ(make(&o), 0);
    first = layout.fingerprint;
    crystal_layout_fini(&layout);
    CHECK_EQ(make(&o), 0);
    CHECK(layout.fingerprint == first);
    crystal_layout_fini(&layout);
    CHECK_EQ(write(fd, "x", 1), 1);
    CHECK_EQ(make(&o), 0);
    CHECK(layout.fingerprint != first);
    crystal_layout_fini(&layout);
    close(fd);
    unlink(path);
}

int main(void)
{
    check_begin();
    if (crystal_conf_read(NULL, &conf, &err)) {
        printf("Bail out! %s\n", crystal_error_text(&err));
        return 1;
    }
    CHECK_RUN(replica_of_a_grid);
    CHECK_RUN(dp_in_the_middle);
    CHECK_RUN(ep_inside_dp);
    CHECK_RUN(ep_of_its_own);
    CHECK_RUN(sandbox_is_rounded_aloud);
    CHECK_RUN(other_dimensions_are_told);
    CHECK_RUN(sandbox_of_several_nodes);
    CHECK_RUN(small_job_fits_one_node);
    CHECK_RUN(bad_options);
    CHECK_RUN(file_there_and_back);
    CHECK_RUN(characters_there_and_back);
    CHECK_RUN(assistants_there_and_back);
    CHECK_RUN(file_cut_anywhere);
    CHECK_RUN(fingerprint_follows_the_program);
    crystal_conf_fini(&conf);
    return check_end();
}
