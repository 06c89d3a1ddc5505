/* scrystal graph export: a graph for other tools. */
#include "config.h"

#include "commands/commands.h"
#include "commands/graph_verbs.h"

#include "runtime/graph_export.h"
#include "runtime/layout.h"
#include "runtime/log.h"
#include "runtime/outfile.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const struct option long_options[] = {
    {"chakra", required_argument, NULL, 'c'},
    {"perfetto", required_argument, NULL, 'p'},
    {"ranks", required_argument, NULL, 'r'},
    {"profile", required_argument, NULL, 'P'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

struct export_args {
    const char *chakra, *perfetto, *ranks, *profile, *graph;
    int is_usage; /* what failed is how the command was called */
};

static void help(FILE *out)
{
    fprintf(
        out,
        "usage: scrystal graph export --chakra=PREFIX | --perfetto=FILE [OPTION...] "
        "GRAPH\n\n"
        "  --chakra=PREFIX   a Chakra execution trace for each rank, PREFIX.RANK.et,\n"
        "                    and its process groups, PREFIX.json\n"
        "  --perfetto=FILE   a predicted iteration as trace events (ui.perfetto.dev)\n"
        "  --ranks=LIST      of these ranks (0-7,64); else of one for each list with\n"
        "                    --perfetto, of all with --chakra\n"
        "  --profile=FILE    durations of a captured job\n");
}

static int chakra(const char *prefix, const struct crystal_predict *p,
                  const uint32_t *lranks, uint32_t count, struct crystal_error *err)
{
    struct crystal_outfile f;
    char path[PATH_MAX];
    int code = 0;

    for (uint32_t i = 0; !code && i <= count; i++) {
        if (i < count)
            (void)snprintf(path, sizeof path, "%s.%u.et", prefix, lranks[i]);
        else
            (void)snprintf(path, sizeof path, "%s.json", prefix);
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_SHOWN, err);
        if (code)
            break;
        if (i < count)
            code = crystal_export_chakra(f.stream, p, lranks[i], err);
        else
            crystal_export_groups(f.stream, p->graph);
        code = crystal_outfile_close(&f, code, err);
    }
    return code;
}

static int perfetto(const char *path, const struct crystal_predict *p,
                    const uint32_t *lranks, uint32_t count, struct crystal_error *err)
{
    struct crystal_prediction *pr;
    struct crystal_what_if what;
    struct crystal_outfile f;
    int code;

    crystal_what_if_init(&what);
    pr = crystal_predict_run(p, &what, 1, err);
    if (!pr)
        return -EINVAL;
    if (pr->stuck_count)
        code = crystal_error_set(err, EDEADLK,
                                 "%u ranks never end the iteration; scrystal verify "
                                 "says why",
                                 pr->stuck_count);
    else
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_SHOWN, err);
    if (!code)
        code = crystal_outfile_close(
            &f, crystal_export_events(f.stream, pr, lranks, count, err), err);
    crystal_prediction_destroy(pr);
    return code;
}

/* The ranks asked for, or those that have lists, or all. */
static int ranks_of(const struct export_args *a, const struct crystal_graph *g,
                    uint32_t **ret, uint32_t *ret_count, struct crystal_error *err)
{
    uint32_t n = crystal_graph_lrank_count(g);

    if (a->ranks)
        return crystal_ranks_parse(a->ranks, n, 0, ret, ret_count, err);
    *ret_count = a->chakra ? n : crystal_graph_rep_count(g);
    *ret = malloc(*ret_count * sizeof **ret);
    if (!*ret)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < *ret_count; i++)
        (*ret)[i] = a->chakra ? i : crystal_graph_rep_lrank(g, i);
    return 0;
}

static int export_graph(struct export_args *a, struct crystal_error *err)
{
    struct crystal_graph *g = crystal_graph_open(a->graph, err);
    struct crystal_profile *profile = NULL;
    struct crystal_predict p;
    uint32_t *lranks = NULL, count = 0;
    int code;

    if (!g)
        return -EINVAL;
    if (a->profile && !(profile = crystal_profile_open(a->profile, err))) {
        crystal_graph_close(g);
        return -EINVAL;
    }
    code = crystal_predict_init(&p, g, profile, 1, err);
    if (!code) {
        code = ranks_of(a, g, &lranks, &count, err);
        a->is_usage = code && code != -ENOMEM; /* the list */
    }
    if (!code)
        code = a->chakra ? chakra(a->chakra, &p, lranks, count, err)
                         : perfetto(a->perfetto, &p, lranks, count, err);
    free(lranks);
    crystal_predict_fini(&p);
    crystal_profile_close(profile);
    crystal_graph_close(g);
    return code;
}

int crystal_graph_export_verb(int argc, char **argv)
{
    struct crystal_error err = {0};
    struct export_args a = {0};
    int option;

    optind = 1;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) >= 0) {
        switch (option) {
        case 'c':
            a.chakra = optarg;
            break;
        case 'p':
            a.perfetto = optarg;
            break;
        case 'r':
            a.ranks = optarg;
            break;
        case 'P':
            a.profile = optarg;
            break;
        default:
            help(option == 'h' ? stdout : stderr);
            return option == 'h' ? 0 : CRYSTAL_EXIT_USAGE;
        }
    }
    if (!a.chakra == !a.perfetto || argc - optind != 1 ||
        (a.chakra && strlen(a.chakra) > PATH_MAX - 32)) {
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    if (a.chakra && (!*a.chakra || a.chakra[strlen(a.chakra) - 1] == '/')) {
        crystal_log(
            CRYSTAL_LOG_ERROR, "graph",
            "--chakra='%s': names no file; give what the names begin with, such "
            "as '%strace'",
            a.chakra, a.chakra);
        return CRYSTAL_EXIT_USAGE;
    }
    a.graph = argv[optind];
    if (export_graph(&a, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return a.is_usage ? CRYSTAL_EXIT_USAGE : CRYSTAL_EXIT_STAGE;
    }
    return 0;
}
