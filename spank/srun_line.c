/* A command line of srun, sbatch or salloc, taken apart into its options.
 *
 * The table is srun's getopt table of Slurm 22.05, 24.11 and 26.05 as far as it matters
 * here; tests/slurm/options.t compares it with the installed srun and salloc. Limit: an
 * unknown option's separate value that begins with a dash is read as an option.
 */
#include "config.h"

#include "spank/srun_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NO_VALUE = 0, /* as getopt's has_arg */
    VALUE = 1,
    OPTIONAL_VALUE = 2,
};
enum {
    STEP = 1,   /* salloc does not take it */
    STAGE = 2,  /* a stage step keeps it */
    REFUSE = 4, /* cannot go with an emulated job; the reason is below */
};

struct crystal_srun_option {
    const char *name;
    char letter; /* 0 = none */
    unsigned char has_value;
    unsigned char flags;
};

static const char no_gpu_count[] =
    "the allocation is whole sandbox nodes; leave it out, --gres or --gpus-per-node "
    "say what a node has";
static const char no_placement[] =
    "the tasks of an emulated step are the sandbox ranks; leave it out";
static const struct {
    const char *name, *reason;
} reasons[] = {
    {"gpus", no_gpu_count},
    {"gpus-per-task", no_gpu_count},
    {"gpus-per-socket", no_gpu_count},
    {"ntasks-per-gpu", no_gpu_count},
    {"ntasks-per-tres", no_gpu_count},
    {"multi-prog", no_placement},
    {"relative", no_placement},
    {"het-group", "heterogeneous jobs are not emulated; leave it out"},
    {"pack-group", "heterogeneous jobs are not emulated; leave it out"},
    {"no-allocate", "stages need a job; leave it out"},
    {"test-only", "stages need a job; leave it out or use scrystal layout"},
};

static const struct crystal_srun_option table[] = {
    {"accel-bind", 0, VALUE, STEP},
    {"account", 'A', VALUE, 0},
    {"acctg-freq", 0, VALUE, STAGE},
    {"array", 'a', VALUE, 0},
    {"async", 0, NO_VALUE, STEP},
    {"autocomplete", 0, VALUE, 0},
    {"batch", 0, VALUE, 0},
    {"bb", 0, VALUE, 0},
    {"bbf", 0, VALUE, 0},
    {"bcast", 0, OPTIONAL_VALUE, STEP},
    {"bcast-exclude", 0, VALUE, STEP},
    {"begin", 'b', VALUE, 0},
    {"chdir", 'D', VALUE, STAGE},
    {"cluster", 0, VALUE, STAGE},
    {"cluster-constraint", 0, VALUE, 0},
    {"clusters", 'M', VALUE, STAGE},
    {"comment", 0, VALUE, 0},
    {"compress", 0, OPTIONAL_VALUE, STEP},
    {"consolidate-segments", 0, NO_VALUE, 0},
    {"constraint", 'C', VALUE, 0},
    {"container", 0, VALUE, STAGE},
    {"container-id", 0, VALUE, STAGE},
    {"container-type", 0, VALUE, STAGE},
    {"context", 0, VALUE, 0},
    {"contiguous", 0, NO_VALUE, 0},
    {"core-spec", 'S', VALUE, 0},
    {"cores-per-socket", 0, VALUE, 0},
    {"cpu-bind", 0, VALUE, STEP},
    {"cpu-freq", 0, VALUE, 0},
    {"cpu_bind", 0, VALUE, STEP},
    {"cpus-per-gpu", 0, VALUE, 0},
    {"cpus-per-task", 'c', VALUE, 0},
    {"deadline", 0, VALUE, 0},
    {"debugger-test", 0, NO_VALUE, STEP},
    {"delay-boot", 0, VALUE, 0},
    {"dependency", 'd', VALUE, 0},
    {"disable-status", 'X', NO_VALUE, STEP},
    {"distribution", 'm', VALUE, 0},
    {"epilog", 0, VALUE, STEP | STAGE},
    {"error", 'e', VALUE, STEP},
    {"exact", 0, NO_VALUE, STEP},
    {"exclude", 'x', VALUE, STAGE},
    {"exclusive", 0, OPTIONAL_VALUE, 0},
    {"export", 0, VALUE, STEP | STAGE},
    {"export-file", 0, VALUE, 0},
    {"external-launcher", 0, OPTIONAL_VALUE, STEP},
    {"extra", 0, VALUE, 0},
    {"extra-node-info", 'B', VALUE, 0},
    {"get-user-env", 0, OPTIONAL_VALUE, 0},
    {"gid", 0, VALUE, 0},
    {"gpu-bind", 0, VALUE, 0},
    {"gpu-freq", 0, VALUE, 0},
    {"gpus", 'G', VALUE, REFUSE},
    {"gpus-per-node", 0, VALUE, 0},
    {"gpus-per-socket", 0, VALUE, REFUSE},
    {"gpus-per-task", 0, VALUE, REFUSE},
    {"gres", 0, VALUE, 0},
    {"gres-flags", 0, VALUE, 0},
    {"help", 'h', NO_VALUE, 0},
    {"het-group", 0, VALUE, STEP | REFUSE},
    {"hint", 0, VALUE, 0},
    {"hold", 'H', NO_VALUE, 0},
    {"ignore-pbs", 0, NO_VALUE, 0},
    {"ignore-signals", 0, VALUE, STEP},
    {"immediate", 'I', OPTIONAL_VALUE, 0},
    {"input", 'i', VALUE, STEP},
    {"interactive", 0, NO_VALUE, STEP},
    {"job-name", 'J', VALUE, 0},
    {"jobid", 0, VALUE, STEP | STAGE},
    {"kill-on-bad-exit", 'K', OPTIONAL_VALUE, STEP},
    {"kill-on-invalid-dep", 0, VALUE, 0},
    {"label", 'l', NO_VALUE, STEP},
    {"licenses", 'L', VALUE, 0},
    {"mail-type", 0, VALUE, 0},
    {"mail-user", 0, VALUE, 0},
    {"mcs-label", 0, VALUE, 0},
    {"mem", 0, VALUE, STAGE},
    {"mem-bind", 0, VALUE, 0},
    {"mem-per-cpu", 0, VALUE, STAGE},
    {"mem-per-gpu", 0, VALUE, 0},
    {"mem-update", 0, VALUE, 0},
    {"mincpus", 0, VALUE, 0},
    {"mpi", 0, VALUE, STEP},
    {"msg-timeout", 0, VALUE, STEP | STAGE},
    {"multi-prog", 0, NO_VALUE, STEP | REFUSE},
    {"network", 0, VALUE, STAGE},
    {"nice", 0, OPTIONAL_VALUE, 0},
    {"no-allocate", 'Z', NO_VALUE, STEP | REFUSE},
    {"no-kill", 'k', OPTIONAL_VALUE, 0},
    {"no-requeue", 0, NO_VALUE, 0},
    {"nodefile", 'F', VALUE, STAGE},
    {"nodelist", 'w', VALUE, STAGE},
    {"nodes", 'N', VALUE, 0},
    {"ntasks", 'n', VALUE, 0},
    {"ntasks-per-core", 0, VALUE, 0},
    {"ntasks-per-gpu", 0, VALUE, REFUSE},
    {"ntasks-per-node", 0, VALUE, 0},
    {"ntasks-per-socket", 0, VALUE, 0},
    {"ntasks-per-tres", 0, VALUE, REFUSE},
    {"oom-kill-step", 0, OPTIONAL_VALUE, 0},
    {"open-mode", 0, VALUE, STEP},
    {"output", 'o', VALUE, STEP},
    {"overcommit", 'O', NO_VALUE, 0},
    {"overlap", 0, OPTIONAL_VALUE, STEP},
    {"oversubscribe", 's', NO_VALUE, 0},
    {"pack-group", 0, VALUE, STEP | REFUSE},
    {"parsable", 0, NO_VALUE, STEP},
    {"partition", 'p', VALUE, 0},
    {"power", 0, VALUE, 0},
    {"prefer", 0, VALUE, 0},
    {"preserve-env", 'E', NO_VALUE, STEP},
    {"priority", 0, VALUE, 0},
    {"profile", 0, VALUE, 0},
    {"prolog", 0, VALUE, STEP | STAGE},
    {"propagate", 0, OPTIONAL_VALUE, STEP | STAGE},
    {"pty", 0, OPTIONAL_VALUE, STEP},
    {"qos", 'q', VALUE, 0},
    {"quiet", 'Q', NO_VALUE, STAGE},
    {"quit-on-interrupt", 0, NO_VALUE, STEP},
    {"reboot", 0, NO_VALUE, 0},
    {"relative", 'r', VALUE, STEP | REFUSE},
    {"requeue", 0, NO_VALUE, 0},
    {"reservation", 0, VALUE, 0},
    {"resources", 0, VALUE, 0},
    {"resv-ports", 0, OPTIONAL_VALUE, STEP},
    {"segment", 0, VALUE, 0},
    {"send-libs", 0, OPTIONAL_VALUE, STEP},
    {"signal", 0, VALUE, 0},
    {"slurmd-debug", 0, VALUE, STEP},
    {"sockets-per-node", 0, VALUE, 0},
    {"spread-job", 0, NO_VALUE, 0},
    {"spread-segments", 0, NO_VALUE, 0},
    {"stepmgr", 0, NO_VALUE, 0},
    {"switches", 0, VALUE, 0},
    {"task-epilog", 0, VALUE, STEP | STAGE},
    {"task-prolog", 0, VALUE, STEP | STAGE},
    {"tasks-per-node", 0, VALUE, 0},
    {"test-only", 0, NO_VALUE, STEP | REFUSE},
    {"thread-spec", 0, VALUE, 0},
    {"threads", 'T', VALUE, STEP},
    {"threads-per-core", 0, VALUE, 0},
    {"time", 't', VALUE, 0},
    {"time-min", 0, VALUE, 0},
    {"tmp", 0, VALUE, 0},
    {"treewidth", 0, VALUE, STEP},
    {"tres-bind", 0, VALUE, 0},
    {"tres-per-task", 0, VALUE, 0},
    {"uid", 0, VALUE, 0},
    {"unbuffered", 'u', NO_VALUE, STEP},
    {"usage", 0, NO_VALUE, 0},
    {"use-min-nodes", 0, NO_VALUE, 0},
    {"verbose", 'v', NO_VALUE, 0},
    {"version", 'V', NO_VALUE, 0},
    {"wait", 'W', VALUE, STEP},
    {"wait-all-nodes", 0, VALUE, 0},
    {"wait-for-children", 0, NO_VALUE, STEP},
    {"wckey", 0, VALUE, 0},
    {"whole", 0, NO_VALUE, STEP},
    {"wrap", 0, VALUE, 0},
    {"x11", 0, OPTIONAL_VALUE, 0},
};
enum { TABLE_COUNT = sizeof table / sizeof table[0] };

/* The row of a long name: the exact one, else the only one that begins with it (srun
 * has accepted the line, so an abbreviation is not ambiguous). Names of other plugins
 * match nothing, or srun would have called them ambiguous. */
static const struct crystal_srun_option *find_long(const char *name, size_t bytes)
{
    const struct crystal_srun_option *found = NULL;

    for (int i = 0; i < TABLE_COUNT; i++) {
        if (strncmp(table[i].name, name, bytes) != 0)
            continue;
        if (table[i].name[bytes] == '\0')
            return &table[i];
        if (!found)
            found = &table[i];
    }
    return found;
}

static const struct crystal_srun_option *find_letter(char letter)
{
    for (int i = 0; i < TABLE_COUNT; i++)
        if (table[i].letter == letter)
            return &table[i];
    return NULL;
}

/* Appends "head" or "head=value" as one word. 0 or -ENOMEM. */
static int add_word(struct crystal_srun_line *line,
                    const struct crystal_srun_option *option, const char *head,
                    const char *joint, const char *value)
{
    struct crystal_srun_word *words;
    char *text = NULL;

    if (asprintf(&text, "%s%s%s", head, value ? joint : "", value ? value : "") < 0)
        return -ENOMEM;
    words = realloc(line->words, (size_t)(line->count + 1) * sizeof *words);
    if (!words) {
        free(text);
        return -ENOMEM;
    }
    words[line->count] = (struct crystal_srun_word){
        .option = option,
        .text = text,
        .value = value ? text + strlen(head) + strlen(joint) : NULL,
    };
    line->words = words;
    line->count++;
    return 0;
}

/* "--name", "--name=value" or "--name" "value". */
static int parse_long(struct crystal_srun_line *line, const struct crystal_argv *argv,
                      int program, int *i)
{
    const char *word = argv->v[*i], *value = strchr(word, '=');
    size_t bytes = value ? (size_t)(value - word) : strlen(word);
    const struct crystal_srun_option *option = find_long(word + 2, bytes - 2);
    char head[64];

    if (!option)
        return add_word(line, NULL, word, "", NULL);
    if (value)
        value++;
    else if (option->has_value == VALUE && *i + 1 < program)
        value = argv->v[++*i];
    snprintf(head, sizeof head, "--%s", option->name);
    return add_word(line, option, head, "=", value);
}

/* "-l", "-lu", "-n72", "-n" "72". */
static int parse_short(struct crystal_srun_line *line, const struct crystal_argv *argv,
                       int program, int *i)
{
    int rc = 0;

    for (const char *c = argv->v[*i] + 1; *c && rc == 0; c++) {
        const struct crystal_srun_option *option = find_letter(*c);
        const char *value = NULL;
        char head[3] = {'-', *c, '\0'};

        if (option && option->has_value != NO_VALUE) {
            if (c[1])
                value = c + 1;
            else if (option->has_value == VALUE && *i + 1 < program)
                value = argv->v[++*i];
            return add_word(line, option, head, "", value);
        }
        rc = add_word(line, option, head, "", NULL);
    }
    return rc;
}

int crystal_srun_line_parse(const struct crystal_argv *argv, int program,
                            struct crystal_srun_line *ret_line)
{
    struct crystal_srun_line line = {0};
    int rc = 0;

    if (program > argv->count)
        program = argv->count;
    for (int i = 1; i < program && rc == 0; i++) {
        const char *word = argv->v[i];

        if (strcmp(word, "--") == 0)
            continue;
        if (strncmp(word, "--", 2) == 0)
            rc = parse_long(&line, argv, program, &i);
        else if (word[0] == '-' && word[1])
            rc = parse_short(&line, argv, program, &i);
        else
            rc = add_word(&line, NULL, word, "", NULL);
    }
    if (rc < 0) {
        crystal_srun_line_fini(&line);
        return rc;
    }
    *ret_line = line;
    return 0;
}

void crystal_srun_line_fini(struct crystal_srun_line *line)
{
    for (int i = 0; i < line->count; i++)
        free(line->words[i].text);
    free(line->words);
    memset(line, 0, sizeof *line);
}

const char *crystal_srun_line_get_last(const struct crystal_srun_line *line,
                                       const char *first, const char *second,
                                       bool *ret_is_second)
{
    const char *value = NULL;

    *ret_is_second = false;
    for (int i = 0; i < line->count; i++) {
        const struct crystal_srun_word *w = &line->words[i];
        bool is_second = w->option && strcmp(w->option->name, second) == 0;

        if (!is_second && (!w->option || strcmp(w->option->name, first) != 0))
            continue;
        value = w->value ? w->value : "";
        *ret_is_second = is_second;
    }
    return value;
}

const char *crystal_srun_line_get(const struct crystal_srun_line *line,
                                  const char *name)
{
    bool is_second;

    return crystal_srun_line_get_last(line, name, name, &is_second);
}

static bool is_crystal(const struct crystal_srun_word *word)
{
    return !word->option && strncmp(word->text, "--crystal-", 10) == 0;
}

bool crystal_srun_line_has_crystal(const struct crystal_srun_line *line)
{
    for (int i = 0; i < line->count; i++)
        if (is_crystal(&line->words[i]))
            return true;
    return false;
}

bool crystal_srun_word_is_foreign(const struct crystal_srun_word *word)
{
    return !word->option && !is_crystal(word);
}

bool crystal_srun_word_is_allocation(const struct crystal_srun_word *word)
{
    return !word->option || !(word->option->flags & STEP);
}

void crystal_srun_line_add_stage(const struct crystal_srun_line *line,
                                 struct crystal_argv *out)
{
    bool ours = false;

    for (int i = 0; i < line->count; i++) {
        const struct crystal_srun_word *w = &line->words[i];

        if (is_crystal(w)) {
            ours = strchr(w->text, '=') == NULL; /* its value is the next word */
            continue;
        }
        if (!ours && (w->option ? w->option->flags & STAGE : 1))
            crystal_argv_add(out, "%s", w->text);
        ours = false;
    }
}

int crystal_srun_line_check(const struct crystal_srun_line *line,
                            struct crystal_error *err)
{
    for (int i = 0; i < line->count; i++) {
        const struct crystal_srun_option *option = line->words[i].option;

        if (!option || !(option->flags & REFUSE))
            continue;
        for (size_t k = 0; k < sizeof reasons / sizeof reasons[0]; k++)
            if (strcmp(reasons[k].name, option->name) == 0)
                return crystal_error_set(
                    err, EINVAL,
                    "--%s does not go with --crystal-logical-ranks: "
                    "%s",
                    option->name, reasons[k].reason);
    }
    return 0;
}

void crystal_srun_line_print_table(int fd)
{
    for (int i = 0; i < TABLE_COUNT; i++)
        dprintf(fd, "%s %d %d\n", table[i].name, table[i].has_value,
                (table[i].flags & STEP) != 0);
}
