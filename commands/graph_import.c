/* scrystal graph import: traces of other tools as a graph. */
#include "config.h"

#include "commands/commands.h"
#include "commands/graph_verbs.h"

#include "runtime/heap.h"
#include "runtime/conf.h"
#include "runtime/import.h"
#include "runtime/log.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const struct option long_options[] = {
    {"ranks-per-node", required_argument, NULL, 'r'},
    {"bandwidth", required_argument, NULL, 'b'},
    {"latency", required_argument, NULL, 'l'},
    {"node-bandwidth", required_argument, NULL, 'B'},
    {"node-latency", required_argument, NULL, 'L'},
    {"groups", required_argument, NULL, 'g'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(FILE *out)
{
    fprintf(
        out,
        "usage: scrystal graph import [OPTION...] GRAPH TRACE...\n\n"
        "Makes a graph of PyTorch profiler traces (JSON) or Chakra execution traces\n"
        "(PREFIX.RANK.et), one for each rank, of one step.\n\n"
        "  --groups=FILE   process groups of Chakra traces (PREFIX.json):\n"
        "  {\"NAME\": [RANK, ...], ...}\n"
        "  --ranks-per-node=N (8), --bandwidth (50GB/s), --latency (5us) between\n"
        "  nodes, --node-bandwidth (300GB/s), --node-latency (2us) inside: the\n"
        "  network for scrystal predict\n");
}

static int ranks_per_node_read(const char *text, uint32_t *ret)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    if (*text < '1' || *text > '9' || *end || value > 65536)
        return -EINVAL;
    *ret = (uint32_t)value;
    return 0;
}

int crystal_graph_import_verb(int argc, char **argv)
{
    struct crystal_graph_network n = {8, 50000000000, 5000, 300000000000, 2000};
    struct crystal_error err = {0};
    const char *groups = NULL;
    int option, index, bad = 0;

    crystal_heap_prepare();
    optind = 1;
    while (!bad && (option = getopt_long(argc, argv, "+", long_options, &index)) >= 0) {
        switch (option) {
        case 'r':
            bad = ranks_per_node_read(optarg, &n.ranks_per_node);
            break;
        case 'b':
            bad = crystal_bandwidth_parse(optarg, &n.bytes_per_s) != 0;
            break;
        case 'l':
            bad = crystal_duration_parse(optarg, &n.latency_ns) != 0;
            break;
        case 'B':
            bad = crystal_bandwidth_parse(optarg, &n.node_bytes_per_s) != 0;
            break;
        case 'L':
            bad = crystal_duration_parse(optarg, &n.node_latency_ns) != 0;
            break;
        case 'g':
            groups = optarg;
            break;
        default:
            help(option == 'h' ? stdout : stderr);
            return option == 'h' ? 0 : CRYSTAL_EXIT_USAGE;
        }
    }
    if (bad) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph",
                    "--%s: bad value '%s'; see scrystal graph import --help",
                    long_options[index].name, optarg);
        return CRYSTAL_EXIT_USAGE;
    }
    if (argc - optind < 2) {
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    if (crystal_graph_verb_may_write(argv[optind], &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_USAGE;
    }
    if (crystal_import_traces((const char *const *)argv + optind + 1,
                              (uint32_t)(argc - optind - 1), groups, &n, argv[optind],
                              &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "graph", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_STAGE;
    }
    return 0;
}
