/* Taking command lines of srun apart and putting salloc's and stage steps' together. */
#include "config.h"

#include "spank/batch_script.h"
#include "spank/salloc_line.h"
#include "spank/srun_line.h"

#include "tests/check.h"

#include <sys/stat.h>

#include <errno.h>

static void parse(struct crystal_srun_line *line, const char *const *words)
{
    struct crystal_argv argv = {0};
    int program = 0;

    for (; *words; words++) {
        if (strcmp(*words, "PROGRAM") == 0)
            program = argv.count;
        crystal_argv_add(&argv, "%s", *words);
    }
    CHECK_EQ(crystal_srun_line_parse(&argv, program, line), 0);
    crystal_argv_fini(&argv);
}
#define PARSE(line, ...) parse(line, (const char *const[]){"srun", __VA_ARGS__, NULL})

/* The words joined by blanks. */
static char *joined(struct crystal_argv *argv)
{
    static char text[1024];

    text[0] = '\0';
    for (int i = 0; i < argv->count; i++) {
        strcat(text, i ? " " : "");
        strcat(text, argv->v[i]);
    }
    crystal_argv_fini(argv);
    return text;
}

static void words_are_normalised(void)
{
    struct crystal_srun_line line;

    PARSE(&line, "-lu", "-n", "72", "-N9", "-K", "-K1", "--time", "5", "--mem=3G",
          "--out", "f", "PROGRAM", "-n3");
    CHECK_EQ(line.count, 9);
    CHECK_STR(line.words[0].text, "-l");
    CHECK_STR(line.words[1].text, "-u");
    CHECK_STR(line.words[2].text, "-n72");
    CHECK_STR(line.words[3].text, "-N9");
    CHECK_STR(line.words[4].text, "-K");
    CHECK_STR(line.words[5].text, "-K1");
    CHECK_STR(line.words[6].text, "--time=5");
    CHECK_STR(line.words[7].text, "--mem=3G");
    CHECK_STR(line.words[8].text, "--output=f");
    CHECK_STR(crystal_srun_line_get(&line, "ntasks"), "72");
    CHECK_STR(crystal_srun_line_get(&line, "time"), "5");
    CHECK(crystal_srun_line_get(&line, "job-name") == NULL);
    crystal_srun_line_fini(&line);
}

/* A salloc that knows another plugin's --container-image, and not --srun-only. */
static void make_salloc(char *dir)
{
    char path[64], search[128];
    FILE *file;

    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/salloc", dir);
    file = fopen(path, "w");
    CHECK(file != NULL);
    fputs("#!/bin/sh\necho '      --container-image=[USER@]IMAGE   [other] image'\n",
          file);
    CHECK_EQ(fclose(file), 0);
    CHECK_EQ(chmod(path, 0700), 0);
    snprintf(search, sizeof search, "%s:/bin:/usr/bin", dir);
    CHECK_EQ(setenv("PATH", search, 1), 0);
}

static void salloc_gets_what_it_takes(void)
{
    char dir[] = "/tmp/crystal-salloc-XXXXXX", path[64];
    struct crystal_srun_line line;
    struct crystal_argv out = {0};

    make_salloc(dir);

    PARSE(&line, "-lu", "-n", "72", "-o", "f", "--mpi", "none", "-K1",
          "--cpu-bind=none", "-J", "a b", "--container-im", "x.sqsh", "--srun-only",
          "value", "--srun-only=value", "--crystal-logical-ranks", "64", "-t5",
          "PROGRAM");
    crystal_salloc_line_add(&line, &out);
    CHECK_STR(joined(&out),
              "-n72 -Ja b --container-im x.sqsh --crystal-logical-ranks 64 -t5");
    crystal_srun_line_fini(&line);
    snprintf(path, sizeof path, "%s/salloc", dir);
    unlink(path);
    rmdir(dir);
}

static void batch_script_has_options(void)
{
    char path[] = "/tmp/crystal-script-XXXXXX";
    static const char text[] = "#!/bin/bash\n"
                               "#SBATCH -N4 --comment=\"two words\" # no --option\n"
                               "\n# a comment\n#SBATCHED no\n"
                               "#SBATCH\t--gpus 'a b' c\\ d\r\n"
                               "srun true\n#SBATCH --late\n";
    struct crystal_argv out = {0};
    int fd = mkstemp(path);

    CHECK(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
    crystal_batch_script_options(path, &out);
    CHECK_EQ(out.count, 5);
    CHECK_STR(joined(&out), "-N4 --comment=two words --gpus a b c d");
    CHECK_EQ(write(fd, "\0", 1), 1); /* a program, say */
    crystal_batch_script_options(path, &out);
    CHECK_EQ(out.count, 0);
    crystal_batch_script_options("/nowhere", &out);
    CHECK_EQ(out.count, 0);
    crystal_argv_fini(&out);
    close(fd);
    unlink(path);
}

static void stage_keeps_containers_not_shape(void)
{
    struct crystal_srun_line line;
    struct crystal_argv out = {0};

    PARSE(&line, "-n72", "-o", "f", "--export=ALL,A=1", "-D", "/x", "--container-image",
          "x.sqsh", "--crystal-logical-ranks", "64", "--crystal-parallel=tp=2",
          "--gres=gpu:8", "--exclusive", "-wn1", "PROGRAM");
    crystal_srun_line_add_stage(&line, &out);
    CHECK_STR(joined(&out), "--export=ALL,A=1 -D/x --container-image x.sqsh -wn1");
    crystal_srun_line_fini(&line);
}

static void only_the_own_line_switches_on(void)
{
    struct crystal_srun_line line;

    PARSE(&line, "-n1", "PROGRAM", "--crystal-logical-ranks=64");
    CHECK(!crystal_srun_line_has_crystal(&line));
    crystal_srun_line_fini(&line);
    PARSE(&line, "-J", "--crystal-logical-ranks=64", "PROGRAM");
    CHECK(!crystal_srun_line_has_crystal(&line));
    crystal_srun_line_fini(&line);
    PARSE(&line, "-n1", "--crystal-stages=emulate", "--", "PROGRAM");
    CHECK(crystal_srun_line_has_crystal(&line));
    crystal_srun_line_fini(&line);
}

static void refused_options(void)
{
    static const struct {
        const char *words[4], *name;
    } cases[] = {
        {{"-G", "8", "PROGRAM"}, "--gpus "},
        {{"--gpus=8", "PROGRAM"}, "--gpus "},
        {{"--ntasks-per-gpu=1", "PROGRAM"}, "--ntasks-per-gpu "},
        {{"--multi-prog", "PROGRAM"}, "--multi-prog "},
        {{"-r1", "PROGRAM"}, "--relative "},
        {{"-Z", "PROGRAM"}, "--no-allocate "},
        {{"--het-group=1", "PROGRAM"}, "--het-group "},
        {{"--test-only", "PROGRAM"}, "--test-only "},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct crystal_srun_line line;
        struct crystal_error err = {0};
        const char *words[6] = {"srun"};

        memcpy(words + 1, cases[i].words, sizeof cases[i].words);
        parse(&line, words);
        CHECK_EQ(crystal_srun_line_check(&line, &err), -EINVAL);
        CHECK_HAS(err.text, cases[i].name);
        CHECK_HAS(err.text, "leave it out");
        crystal_srun_line_fini(&line);
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(words_are_normalised);
    CHECK_RUN(salloc_gets_what_it_takes);
    CHECK_RUN(batch_script_has_options);
    CHECK_RUN(stage_keeps_containers_not_shape);
    CHECK_RUN(only_the_own_line_switches_on);
    CHECK_RUN(refused_options);
    return check_end();
}
