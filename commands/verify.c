/* scrystal verify: proves that a graph's communication fits together. */
#include "config.h"

#include "commands/commands.h"

#include "runtime/heap.h"
#include "runtime/log.h"
#include "runtime/verify.h"

#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(FILE *out)
{
    fprintf(
        out,
        "usage: scrystal verify GRAPH | --job=DIR\n\n"
        "Proves, on the graph alone and for all ranks, that the members of every\n"
        "communicator call the same collectives in the same order with equal type,\n"
        "count, reduction and root, that what is sent is received, and that nothing\n"
        "waits for ever. Exit code 0 where that is so; 3, and what does not fit,\n"
        "where it is not.\n\n"
        "  --job=DIR   DIR/job.graph\n");
}

static int verify(const char *path)
{
    struct crystal_error err = {0};
    struct crystal_graph *g;
    struct crystal_verdict v;
    int code = 0;

    crystal_heap_prepare();
    g = crystal_graph_open(path, &err);
    if (!g || crystal_verify(g, &v, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "verify", "%s", crystal_error_text(&err));
        crystal_graph_close(g);
        return CRYSTAL_EXIT_STAGE;
    }
    if (v.is_sound) {
        printf("sound: %u ranks, %u communicators, %" PRIu64
               " calls of collectives and %" PRIu64 " messages agree, nothing waits "
               "for ever\n",
               crystal_graph_lrank_count(g), crystal_graph_comm_count(g),
               v.collective_count, v.message_count);
    } else {
        printf("%s", v.witness);
        code = CRYSTAL_EXIT_VERIFY;
    }
    crystal_verdict_fini(&v);
    crystal_graph_close(g);
    return fflush(stdout) == 0 ? code : CRYSTAL_EXIT_STAGE;
}

CRYSTAL_COMMAND(verify)
{
    char path[PATH_MAX] = "";
    int option, used = 0;

    optind = 1;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) >= 0) {
        if (option == 'j') {
            used = snprintf(path, sizeof path, "%s/job.graph", optarg);
            continue;
        }
        help(option == 'h' ? stdout : stderr);
        return option == 'h' ? 0 : CRYSTAL_EXIT_USAGE;
    }
    if (!path[0] && argc - optind == 1)
        used = snprintf(path, sizeof path, "%s", argv[optind++]);
    if (!path[0] || optind != argc || used >= (int)sizeof path) {
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    return verify(path);
}
