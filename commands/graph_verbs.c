/* scrystal graph stat, show, diff, expand and memory: a graph file as text. */
#include "config.h"

#include "commands/graph_verbs.h"

#include "commands/commands.h"
#include "commands/show.h"

#include "runtime/graph.h"
#include "runtime/graph_diff.h"
#include "runtime/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int usage(const char *line, int argc, char **argv, int want)
{
    int asks = argc == 2 && strcmp(argv[1], "--help") == 0;

    if (argc == want + 1 && argv[1][0] != '-')
        return 0;
    fprintf(asks ? stdout : stderr, "usage: scrystal graph %s\n", line);
    return asks ? 1 : -1;
}

static struct crystal_graph *graph_open(const char *path)
{
    struct crystal_error err = {0};
    struct crystal_graph *g = crystal_graph_open(path, &err);

    if (!g)
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
    return g;
}

int crystal_graph_verb_may_write(const char *path, struct crystal_error *err)
{
    static const char magic[] = CRYSTAL_GRAPH_MAGIC;
    char begin[sizeof magic - 1];
    size_t count;
    struct stat st;
    FILE *in;

    if (stat(path, &st) || !S_ISREG(st.st_mode) || !st.st_size)
        return 0; /* new, or what crystal_outfile has a word for */
    in = fopen(path, "rb");
    if (!in)
        return 0; /* so does it */
    count = fread(begin, 1, sizeof begin, in);
    (void)fclose(in); /* only read */
    if (count == sizeof begin && memcmp(begin, magic, count) == 0)
        return 0;
    return crystal_error_set(
        err, EEXIST,
        "%s: is there and is no graph; name the graph to write, or remove this file",
        path);
}

static int printed(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "cannot print");
        return CRYSTAL_EXIT_STAGE;
    }
    return code;
}

static void print_memory(const struct crystal_graph *g)
{
    for (uint32_t i = 0; i < crystal_graph_rep_count(g); i++) {
        struct crystal_graph_memory m;

        if (crystal_graph_memory(NULL, g, i, &m))
            printf("memory of rank %u: %.3f GB before the iterations, peak %.3f GB at "
                   "record %" PRIu64 ", %.3f GB at the end\n",
                   crystal_graph_rep_lrank(g, i), (double)m.start_bytes / 1e9,
                   (double)m.peak_bytes / 1e9, m.peak_record,
                   (double)m.end_bytes / 1e9);
    }
}

static int print_graph(const char *path, int with_ops)
{
    struct crystal_graph *g = graph_open(path);
    int code;

    if (!g)
        return CRYSTAL_EXIT_STAGE;
    code = crystal_show_graph(stdout, g, with_ops);
    if (!code)
        print_memory(g);
    crystal_graph_close(g);
    return printed(code ? CRYSTAL_EXIT_STAGE : 0);
}

int crystal_graph_stat_verb(int argc, char **argv)
{
    int code = usage("stat GRAPH: ranks, lists, sizes, memory peaks", argc, argv, 1);

    return code ? code < 0 ? CRYSTAL_EXIT_USAGE : 0 : print_graph(argv[1], 0);
}

int crystal_graph_show_verb(int argc, char **argv)
{
    int code = usage("show GRAPH: everything, record by record", argc, argv, 1);

    return code ? code < 0 ? CRYSTAL_EXIT_USAGE : 0 : print_graph(argv[1], 1);
}

int crystal_graph_memory_verb(int argc, char **argv)
{
    int code = usage("memory GRAPH: what each list has allocated, allocation by "
                     "allocation",
                     argc, argv, 1);
    struct crystal_graph *g;

    if (code)
        return code < 0 ? CRYSTAL_EXIT_USAGE : 0;
    g = graph_open(argv[1]);
    if (!g)
        return CRYSTAL_EXIT_STAGE;
    for (uint32_t i = 0; i < crystal_graph_rep_count(g); i++) {
        struct crystal_graph_memory m;

        printf("rank %u: record, time of issue, bytes\n",
               crystal_graph_rep_lrank(g, i));
        (void)crystal_graph_memory(stdout, g, i, &m); /* nothing: no lines */
    }
    print_memory(g);
    crystal_graph_close(g);
    return printed(0);
}

int crystal_graph_diff_verb(int argc, char **argv)
{
    int code =
        usage("diff GRAPH GRAPH: what ranks do otherwise; exit code 1 where they "
              "do",
              argc, argv, 2);
    struct crystal_error err = {0};
    struct crystal_graph *a, *b;

    if (code)
        return code < 0 ? CRYSTAL_EXIT_USAGE : 0;
    a = graph_open(argv[1]);
    b = a ? graph_open(argv[2]) : NULL;
    code = b ? crystal_graph_diff(stdout, a, b, &err) : CRYSTAL_EXIT_STAGE;
    if (code < 0) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        code = CRYSTAL_EXIT_STAGE;
    }
    crystal_graph_close(a);
    crystal_graph_close(b);
    return printed(code);
}

int crystal_graph_expand_verb(int argc, char **argv)
{
    int code =
        usage("expand GRAPH: proves that all ranks fit those that stand for them; "
              "exit code 3 where one does not",
              argc, argv, 1);
    struct crystal_error err = {0};
    struct crystal_graph *g;

    if (code)
        return code < 0 ? CRYSTAL_EXIT_USAGE : 0;
    g = graph_open(argv[1]);
    if (!g)
        return CRYSTAL_EXIT_STAGE;
    code = crystal_graph_expand_check(stdout, g, &err);
    if (code < 0)
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
    crystal_graph_close(g);
    return printed(code < 0 ? CRYSTAL_EXIT_STAGE : code ? CRYSTAL_EXIT_VERIFY : 0);
}
