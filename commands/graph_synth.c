/* scrystal graph synth: the graph of a job that was never run. */
#include "config.h"

#include "commands/commands.h"
#include "commands/graph_verbs.h"

#include "runtime/log.h"
#include "runtime/synth.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>

static const struct option long_options[] = {
    {"keys", no_argument, NULL, 'k'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(FILE *out)
{
    fprintf(out,
            "usage: scrystal graph synth DESCRIPTION.yaml GRAPH\n\n"
            "Writes the job.graph of one training iteration of a job that was never\n"
            "run, from its model, parallel layout, schedule and hardware. Examples:\n"
            "contrib/examples/synth/.\n\n"
            "  --keys   list the keys of a description\n");
}

static void print_keys(void)
{
    for (const struct crystal_synth_key *k = crystal_synth_keys(); k->name; k++)
        printf("%-28s %-10s %s\n", k->name,
               k->default_text ? k->default_text : "needed", k->doc);
}

static int synth(const char *yaml, const char *path)
{
    struct crystal_error err = {0};
    struct crystal_graph_stat stat;
    struct crystal_graph *g = NULL;
    struct crystal_synth s;

    if (crystal_synth_read(yaml, &s, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_USAGE;
    }
    if (crystal_graph_verb_may_write(path, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_USAGE;
    }
    if (crystal_synth_write(&s, path, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return err.code == ERANGE ? CRYSTAL_EXIT_USAGE : CRYSTAL_EXIT_STAGE;
    }
    if (!(g = crystal_graph_open(path, &err))) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_STAGE;
    }
    crystal_graph_stat(g, &stat);
    printf("%s: %u ranks through %u lists, %u communicators, %" PRIu64
           " records, %.1f MB\n",
           path, crystal_graph_lrank_count(g), crystal_graph_rep_count(g),
           crystal_graph_comm_count(g), stat.op_count, (double)stat.file_bytes / 1e6);
    crystal_graph_close(g);
    return fflush(stdout) == 0 ? 0 : CRYSTAL_EXIT_STAGE;
}

int crystal_graph_synth(int argc, char **argv)
{
    int option;

    optind = 1;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) >= 0) {
        if (option == 'k') {
            print_keys();
            return fflush(stdout) == 0 ? 0 : CRYSTAL_EXIT_STAGE;
        }
        help(option == 'h' ? stdout : stderr);
        return option == 'h' ? 0 : CRYSTAL_EXIT_USAGE;
    }
    if (argc - optind != 2) {
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    return synth(argv[optind], argv[optind + 1]);
}
