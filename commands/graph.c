/* scrystal graph: builds job.graph from the captured traces, or shows it; its verbs
 * have files of their own (graph_verbs.h).
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/graph_verbs.h"
#include "commands/show.h"

#include "runtime/filehead.h"
#include "runtime/graph_build.h"
#include "runtime/infile.h"
#include "runtime/iteration_range.h"
#include "runtime/jobdir.h"
#include "runtime/layout.h"
#include "runtime/log.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"stat", no_argument, NULL, 's'},
    {"show", no_argument, NULL, 'S'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const struct crystal_command verbs[] = {
    {"synth", crystal_graph_synth, "write the graph of a described job"},
    {"stat", crystal_graph_stat_verb, "ranks, lists, sizes, memory peaks"},
    {"show", crystal_graph_show_verb, "everything, record by record"},
    {"diff", crystal_graph_diff_verb, "what ranks of two graphs do otherwise"},
    {"expand", crystal_graph_expand_verb,
     "do all ranks fit those that stand for them?"},
    {"import", crystal_graph_import_verb, "a graph of PyTorch or Chakra traces"},
    {"export", crystal_graph_export_verb, "Chakra traces, Perfetto's trace events"},
    {"memory", crystal_graph_memory_verb, "allocations of each list, one by one"},
    {NULL, NULL, NULL},
};

static void help(FILE *out)
{
    fprintf(out,
            "usage: scrystal graph --job=DIR [--stat | --show]\n"
            "       scrystal graph VERB [OPTION...] (scrystal graph VERB --help)\n\n"
            "Builds job.graph from the traces that capture left in DIR: what every\n"
            "logical rank does, and where its iterations begin.\n\n"
            "  --job=DIR   the job directory\n"
            "  --stat      only say what the present job.graph holds\n"
            "  --show      print all of the present job.graph\n\n"
            "verbs, for any graph file:\n");
    for (const struct crystal_command *v = verbs; v->name; v++)
        fprintf(out, "  %-9s %s\n", v->name, v->summary);
}

static int show(const char *job_dir, int with_ops)
{
    struct crystal_error err = {0};
    struct crystal_graph *g;
    char path[PATH_MAX];
    int code;

    if (snprintf(path, sizeof path, "%s/job.graph", job_dir) >= (int)sizeof path) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s: path too long", job_dir);
        return CRYSTAL_EXIT_USAGE;
    }
    g = crystal_graph_open(path, &err);
    if (!g) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_STAGE;
    }
    code = crystal_show_graph(stdout, g, with_ops);
    crystal_graph_close(g);
    if (code || fflush(stdout) != 0 || ferror(stdout)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "cannot print");
        return CRYSTAL_EXIT_STAGE;
    }
    return 0;
}

/* Whether a live rank's trace is still written, or was left by a rank that died. */
static int has_open_trace(const char *job_dir, const struct crystal_layout *layout)
{
    for (uint32_t i = 0; i < layout->live_count; i++) {
        struct crystal_filehead head = {.file_bytes = 1};
        char path[PATH_MAX];
        FILE *file;

        if (snprintf(path, sizeof path, "%s/ranks/%u.trace", job_dir,
                     layout->live[i]) >= (int)sizeof path)
            continue;
        file = crystal_infile_stream(path, NULL);
        if (file && fread(&head, sizeof head, 1, file) != 1)
            head.file_bytes = 0;
        if (file)
            (void)fclose(file); /* only read */
        if (head.file_bytes == 0)
            return 1;
    }
    return 0;
}

/* Under Slurm the coordinator goes on while the graph is made, so a job in use is one
 * only while its traces are written. */
static int build(const char *job_dir, struct crystal_error *err)
{
    struct crystal_jobdir *dir = crystal_jobdir_open(job_dir, 0, err);
    struct crystal_layout layout;
    struct crystal_error busy = {0};
    char path[PATH_MAX];
    int code;

    if (!dir)
        return -EINVAL;
    code = crystal_jobdir_lock(dir, &busy) == 0
               ? 0
               : crystal_jobdir_file(dir, path, sizeof path, err, "layout.yaml");
    if (!code && busy.code) {
        code = crystal_layout_read(path, &layout, err);
        if (!code) {
            if (has_open_trace(job_dir, &layout))
                code = crystal_error_set(err, EBUSY, "%s", busy.text);
            crystal_layout_fini(&layout);
        }
    }
    if (!code)
        code = crystal_graph_build(job_dir, err);
    crystal_jobdir_close(dir);
    return code;
}

static uint32_t hint_count(const struct crystal_op *ops, uint64_t begin, uint64_t end)
{
    uint32_t count = 0;

    for (uint64_t i = begin; i < end; i++)
        count += ops[i].kind == CRYSTAL_OP_HINT && ops[i].aux != CRYSTAL_HINT_HIDDEN;
    return count;
}

/* A program that says where its iterations end, and yet what was found lies between two
 * of these places: its iterations are not alike. */
static int is_part(const struct crystal_graph *g, uint32_t rep)
{
    uint32_t mark_count;
    uint64_t op_count;
    const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &op_count);

    return mark_count > 1 && hint_count(ops, 0, op_count) > 1 &&
           !hint_count(ops, marks[mark_count - 2], marks[mark_count - 1]);
}

static int is_hidden(const struct crystal_graph *g, uint32_t rep)
{
    uint64_t op_count;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &op_count);

    return crystal_range_look(ops, op_count) == CRYSTAL_RANGE_HIDDEN;
}

/* The first representative of which that is so, or their number. */
static uint32_t first_that(const struct crystal_graph *g,
                           int (*is_so)(const struct crystal_graph *g, uint32_t rep))
{
    uint32_t rep = 0;

    while (rep < crystal_graph_rep_count(g) && !is_so(g, rep))
        rep++;
    return rep;
}

static void look_at_iterations(const char *job_dir)
{
    struct crystal_graph *g = NULL;
    char path[PATH_MAX];
    uint32_t rep;

    if (snprintf(path, sizeof path, "%s/job.graph", job_dir) < (int)sizeof path)
        g = crystal_graph_open(path, NULL);
    if (!g)
        return; /* the next stage says why */
    rep = first_that(g, is_hidden);
    if (rep < crystal_graph_rep_count(g))
        crystal_log(CRYSTAL_LOG_WARNING, "graph",
                    "rank %u had another tool behind NVTX (NVTX_INJECTION64_PATH), so "
                    "that its ranges are not known, using what repeats in all ranks",
                    crystal_graph_rep_lrank(g, rep));
    rep = first_that(g, is_part);
    if (rep < crystal_graph_rep_count(g))
        crystal_log(
            CRYSTAL_LOG_WARNING, "graph",
            "rank %u calls something else in each iteration (an all-to-all that "
            "leaves out who gets nothing does), so iteration times mean "
            "nothing; payloads are right, using a part that repeats",
            crystal_graph_rep_lrank(g, rep));
    crystal_graph_close(g);
}

CRYSTAL_COMMAND(graph)
{
    struct crystal_error err = {0};
    const char *job_dir = NULL;
    int option, as_stat = 0, as_text = 0;

    for (const struct crystal_command *v = verbs; argc > 1 && v->name; v++)
        if (strcmp(v->name, argv[1]) == 0) {
            argv[1] = argv[0]; /* sentences of verbs are of graph, too */
            return v->run(argc - 1, argv + 1);
        }
    optind = 1;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) >= 0) {
        switch (option) {
        case 'j':
            job_dir = optarg;
            break;
        case 's':
            as_stat = 1;
            break;
        case 'S':
            as_text = 1;
            break;
        case 'h':
            help(stdout);
            return 0;
        default:
            help(stderr);
            return CRYSTAL_EXIT_USAGE;
        }
    }
    if (!job_dir || optind < argc) {
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    if (as_stat || as_text)
        return show(job_dir, as_text);
    if (build(job_dir, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_STAGE;
    }
    look_at_iterations(job_dir);
    return 0;
}
