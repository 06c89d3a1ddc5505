/* A node's service without a coordinator, for tests and benchmarks of what runs beside
 * it: virtual ranks that answer at once, ids on request.
 *
 * usage: nodeserver -n N [-g RANKS_PER_NODE] [-r REAL] [-b BYTES_PER_S] [-l LATENCY_NS]
 *                   [-j GRAPH] [-p PARALLEL] [-v NCCL]
 * N logical ranks, REAL of them real (a list like 0-7,16; default 0), the others
 * virtual. -b and -l pace the wire (default: not); -p has the form of
 * --crystal-parallel, -v that of nccl.version. It prints
 *   board PATH                  the value of CRYSTAL_BOARD
 *   id world HEX                256 digits: the unique id of all N ranks, made here
 * and then obeys lines on its standard input, one answer line each:
 *   forge NAME MEMBERS          -> id NAME HEX
 *   join NAME HEX MEMBERS       -> ok          (an id that real crank 0 made)
 *   group MEMBERS               -> ok          (a group of the job: a child may be it)
 *   status                      -> ok, or error SENTENCE
 *   rss                         -> rss KIB     (the most it ever was)
 *   yaml PATH                   -> ok          (writes run.yaml)
 * A command that fails is answered with error SENTENCE. MEMBERS is a rank list in the
 * order of the communicator. Ends with the input: 0, or 1 after a failure of the node.
 */
#include "config.h"

#include "replay/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEX_DIGITS (2 * NCCL_UNIQUE_ID_BYTES)

static struct crystal_node *node;
static struct crystal_layout layout;

static void say_error(const struct crystal_error *err)
{
    printf("error %s\n", crystal_error_text(err));
}

static void say_id(const char *name, const uint8_t *id)
{
    printf("id %s ", name);
    for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++)
        printf("%02x", id[i]);
    printf("\n");
}

static int from_hex(const char *text, uint8_t *id)
{
    if (strlen(text) != HEX_DIGITS)
        return -1;
    for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) {
        unsigned byte;

        if (sscanf(text + 2 * (size_t)i, "%2x", &byte) != 1)
            return -1;
        id[i] = (uint8_t)byte;
    }
    return 0;
}

static void make(int forge, const char *name, const char *hex, const char *list)
{
    uint8_t id[NCCL_UNIQUE_ID_BYTES] = {0};
    struct crystal_error err = {0};
    uint32_t *members, count;

    if (!forge && from_hex(hex, id)) {
        printf("error an id has %d hexadecimal digits\n", HEX_DIGITS);
        return;
    }
    if (crystal_ranks_parse(list, layout.lrank_count, 1, &members, &count, &err)) {
        say_error(&err);
        return;
    }
    if (crystal_node_comm(node, forge, id, name, count, members, &err))
        say_error(&err);
    else if (forge)
        say_id(name, id);
    else
        printf("ok\n");
    free(members);
}

static void make_group(const char *list)
{
    struct crystal_error err = {0};
    uint32_t *members, count;

    if (crystal_ranks_parse(list, layout.lrank_count, 1, &members, &count, &err)) {
        say_error(&err);
        return;
    }
    if (crystal_node_group(node, count, members, &err))
        say_error(&err);
    else
        printf("ok\n");
    free(members);
}

static void say_rss(void)
{
    unsigned long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/self/status", "r");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lu", &kib) == 1)
            break;
    if (f)
        (void)fclose(f);
    printf("rss %lu\n", kib);
}

static void obey(char *line)
{
    struct crystal_error err = {0};
    char *word[4] = {NULL}, *rest = line;

    for (int i = 0; i < 4; i++)
        word[i] = strtok_r(rest, " \n", &rest);
    if (!word[0])
        return;
    if (!strcmp(word[0], "forge") && word[2])
        make(1, word[1], NULL, word[2]);
    else if (!strcmp(word[0], "join") && word[3])
        make(0, word[1], word[2], word[3]);
    else if (!strcmp(word[0], "group") && word[1])
        make_group(word[1]);
    else if (!strcmp(word[0], "rss"))
        say_rss();
    else if (!strcmp(word[0], "status") || (!strcmp(word[0], "yaml") && word[1])) {
        int code = *word[0] == 's' ? crystal_node_status(node, &err)
                                   : crystal_node_run_yaml(node, word[1], &err);

        if (code)
            say_error(&err);
        else
            printf("ok\n");
    } else
        printf("error no such command: '%s'\n", word[0]);
}

static int parse_options(int argc, char **argv, struct crystal_node_config *config)
{
    const char *real = "0";
    struct crystal_error err = {0};
    int option;

    layout.ranks_per_node = 1;
    while ((option = getopt(argc, argv, "n:g:r:b:l:j:p:v:")) != -1) {
        unsigned long long value = optarg ? strtoull(optarg, NULL, 10) : 0;

        switch (option) {
        case 'n':
            layout.lrank_count = (uint32_t)value;
            break;
        case 'g':
            layout.ranks_per_node = (uint32_t)value;
            break;
        case 'r':
            real = optarg;
            break;
        case 'b':
            layout.wire_bytes_per_s = value;
            break;
        case 'l':
            layout.wire_latency_ns = value;
            break;
        case 'p':
            if (crystal_grid_parse(optarg, &layout.grid, &err)) {
                (void)fprintf(stderr, "nodeserver: %s\n", err.text);
                return -1;
            }
            break;
        case 'v':
            layout.target.nccl_untested = 1;
            if (crystal_target_version_parse(optarg, &layout.target.nccl_version))
                return -1;
            break;
        case 'j':
            config->graph_path = optarg;
            break;
        default:
            return -1;
        }
    }
    if (!layout.lrank_count || !layout.ranks_per_node || optind != argc)
        return -1;
    if (crystal_ranks_parse(real, layout.lrank_count, 0, &layout.sandbox,
                            &layout.sandbox_count, &err)) {
        (void)fprintf(stderr, "nodeserver: %s\n", err.text);
        return -1;
    }
    return 0;
}

/* The communicator of everybody, where some are virtual. */
static void make_world(void)
{
    char list[32];

    (void)snprintf(list, sizeof list, "0-%u", layout.lrank_count - 1);
    if (layout.lrank_count > 1 && layout.sandbox_count < layout.lrank_count)
        make(1, "world", NULL, list);
}

int main(int argc, char **argv)
{
    struct crystal_node_config config = {.job_dir = ".", .layout = &layout};
    struct crystal_error err = {0};
    char *line = NULL;
    size_t capacity = 0;
    int code;

    if (parse_options(argc, argv, &config)) {
        (void)fprintf(stderr, "usage: nodeserver -n N [-g RANKS_PER_NODE] [-r REAL] "
                              "[-b BYTES_PER_S] [-l LATENCY_NS] [-j GRAPH] "
                              "[-p PARALLEL] [-v NCCL]\n");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* whole lines to a pipe */
    node = crystal_node_create(&config, &err);
    if (!node) {
        (void)fprintf(stderr, "nodeserver: %s\n", err.text);
        return 1;
    }
    printf("board %s\n", crystal_node_board_path(node));
    make_world();
    while (getline(&line, &capacity, stdin) > 0)
        obey(line);
    code = crystal_node_status(node, NULL) ? 1 : 0;
    crystal_node_destroy(node);
    free(line);
    free(layout.sandbox);
    return code;
}
