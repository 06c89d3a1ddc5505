/* scrystal coord: the coordinator of one job in the foreground, or, with --finish, the
 * call that ends it. */
#include "config.h"

#include "commands/commands.h"

#include "replay/report.h"
#include "runtime/claim.h"
#include "runtime/coord.h"
#include "runtime/coord_client.h"
#include "runtime/file_limit.h"
#include "runtime/infile.h"
#include "runtime/jobdir.h"
#include "runtime/layout.h"
#include "runtime/log.h"
#include "runtime/message.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    const char *job, *host, *allow, *claim;
    uint16_t port, store_port;
    char suffix[16]; /* ".NODE"; "": the job's */
    int finish, if_any, help;
};

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"port", required_argument, NULL, 'p'},
    {"store-port", required_argument, NULL, 's'},
    {"host", required_argument, NULL, 'H'},
    {"allow", required_argument, NULL, 'a'},
    {"node", required_argument, NULL, 'n'},
    {"claim", required_argument, NULL, 'c'},
    {"finish", no_argument, NULL, 'f'},
    {"if-any", no_argument, NULL, 'i'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(void)
{
    printf(
        "usage: scrystal coord --job=DIR [OPTION...]\n"
        "       scrystal coord --finish --job=DIR\n\n"
        "Serves the ranks and agents of the job in DIR until it is finished.\n\n"
        "  --job=DIR        the job directory, with its layout.yaml\n"
        "  --port=P         port for agents and recorders (default: any free one)\n"
        "  --store-port=P   port of PyTorch's store, the ranks' MASTER_PORT\n"
        "                   (default: any free one)\n"
        "  --host=NAME      under which the ranks reach this host (127.0.0.1)\n"
        "  --allow=HOSTS    hosts beside this one that may connect, with commas\n"
        "  --node=K         serve only what node K measures in plan, beside the job's\n"
        "  --claim=WORDS    refuse a job directory whose layout, or with --finish "
        "whose\n"
        "                   coordinator, has others\n"
        "  --finish         end the coordinator that serves DIR, wait for the "
        "report\n"
        "  --if-any         with --finish: no fault where none serves DIR\n");
}

static int parse_port(const char *name, const char *text, uint16_t *ret)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > 65535) {
        crystal_log(CRYSTAL_LOG_ERROR, "coordinator",
                    "%s: '%s' is no port; give a number from 0 to 65535", name, text);
        return -EINVAL;
    }
    *ret = (uint16_t)value;
    return 0;
}

static int parse_node(const char *text, char *suffix, size_t suffix_bytes)
{
    char *end;
    unsigned long node = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || node >= CRYSTAL_NODES_MAX) {
        crystal_log(CRYSTAL_LOG_ERROR, "coordinator",
                    "--node: '%s' is no node; give a number from 0 to %u", text,
                    CRYSTAL_NODES_MAX - 1);
        return -EINVAL;
    }
    (void)snprintf(suffix, suffix_bytes, ".%lu", node); /* at most four digits */
    return 0;
}

static int parse(int argc, char **argv, struct options *o)
{
    int c;

    while ((c = getopt_long(argc, argv, "h", long_options, NULL)) >= 0) {
        switch (c) {
        case 'j':
            o->job = optarg;
            break;
        case 'p':
            if (parse_port("--port", optarg, &o->port) < 0)
                return -EINVAL;
            break;
        case 's':
            if (parse_port("--store-port", optarg, &o->store_port) < 0)
                return -EINVAL;
            break;
        case 'H':
            o->host = optarg;
            break;
        case 'a':
            o->allow = optarg;
            break;
        case 'n':
            if (parse_node(optarg, o->suffix, sizeof o->suffix) < 0)
                return -EINVAL;
            break;
        case 'c':
            o->claim = optarg;
            break;
        case 'f':
            o->finish = 1;
            break;
        case 'i':
            o->if_any = 1;
            break;
        case 'h':
            o->help = 1;
            return 0;
        default:
            return -EINVAL;
        }
    }
    if (optind < argc) {
        crystal_log(CRYSTAL_LOG_ERROR, "coordinator",
                    "'%s' is no option; scrystal coord --help lists them",
                    argv[optind]);
        return -EINVAL;
    }
    if (!o->job) {
        crystal_log(CRYSTAL_LOG_ERROR, "coordinator",
                    "--job is missing; give the job directory");
        return -EINVAL;
    }
    return 0;
}

static int failed(const struct crystal_error *err, int code)
{
    const char *text = crystal_error_text(err);

    if (strncmp(text, "coordinator: ", 13) == 0)
        text += 13; /* the line says so already */
    crystal_log(CRYSTAL_LOG_ERROR, "coordinator", "%s", text);
    return code;
}

static int finish(const struct options *o)
{
    struct crystal_error err = {0};
    struct crystal_jobdir *dir = crystal_jobdir_open(o->job, 0, &err);
    struct crystal_client *client = NULL;
    char coord[PATH_MAX], token[PATH_MAX];
    int code = CRYSTAL_EXIT_STAGE;

    if (!dir ||
        crystal_jobdir_file(dir, coord, sizeof coord, &err, "coord%s", o->suffix) < 0 ||
        crystal_jobdir_file(dir, token, sizeof token, &err, "token%s", o->suffix) < 0)
        goto out;
    if (access(coord, F_OK) < 0 || (o->claim && !crystal_claim_has(coord, o->claim))) {
        (void)crystal_error_set(&err, ENOENT, "no coordinator serves %s",
                                crystal_jobdir_path(dir));
        code = o->if_any ? 0 : code;
        goto out;
    }
    client = crystal_client_open(coord, token, CRYSTAL_ROLE_CONTROL, 0, NULL, &err);
    if (client && crystal_client_finish(client, &err) == 0)
        code = 0;
out:
    if (code)
        (void)failed(&err, code);
    crystal_client_close(client);
    crystal_jobdir_close(dir);
    return code;
}

/* -EBUSY where the layout was written for another one (runtime/claim.h). */
static int check_claim(const struct crystal_jobdir *dir, const char *claim,
                       struct crystal_error *err)
{
    char path[PATH_MAX], *found = NULL;
    size_t bytes = 0;
    int code = crystal_jobdir_file(dir, path, sizeof path, err, "claim");

    if (!code)
        code = crystal_infile_read(path, CRYSTAL_CLAIM_BYTES, &found, &bytes, err);
    if (!code && (bytes != strlen(claim) || memcmp(found, claim, bytes) != 0))
        code =
            crystal_error_set(err, EBUSY,
                              "job directory %s: another job has begun in it just "
                              "now; wait for it or give another --crystal-job-dir or "
                              "--job-name",
                              crystal_jobdir_path(dir));
    free(found);
    return code;
}

/* Locks the job directory, but where it is the job's coordinator beside us that has it,
 * and reads its layout. */
static int take(const struct options *o, struct crystal_jobdir *dir,
                struct crystal_layout *layout, struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = o->suffix[0] ? 0 : crystal_jobdir_lock(dir, err);

    if (!code && o->claim)
        code = check_claim(dir, o->claim, err);
    if (!code)
        code = crystal_jobdir_file(dir, path, sizeof path, err, "layout.yaml");
    return code ? code : crystal_layout_read(path, layout, err);
}

static int serve(const struct options *o)
{
    struct crystal_error err = {0};
    struct crystal_layout layout;
    struct crystal_jobdir *dir = crystal_jobdir_open(o->job, 0, &err);
    struct crystal_coord *coord = NULL;
    int rc, code = CRYSTAL_EXIT_USAGE;

    if (!dir || take(o, dir, &layout, &err)) {
        (void)failed(&err, code);
        goto out_dir;
    }
    if (crystal_file_limit_raise(&err) == 0) {
        /* Without virtual ranks there is no plan to report against. */
        int is_real = layout.sandbox_count == layout.lrank_count;
        const struct crystal_coord_config config = {
            .dir = dir,
            .suffix = o->suffix,
            .report = is_real ? NULL : crystal_report_write,
            .layout = &layout,
            .port = o->port,
            .store_port = o->store_port,
            .host = o->host,
            .allow = o->allow,
            .claim = o->claim,
            .handle_signals = 1};

        coord = crystal_coord_create(&config, &err);
    }
    if (!coord) {
        (void)failed(&err, code);
        goto out_layout;
    }
    rc = crystal_coord_run(coord, &err);
    code = rc < 0 ? CRYSTAL_EXIT_STAGE : 0;
    crystal_coord_destroy(coord);
out_layout:
    crystal_layout_fini(&layout);
out_dir:
    crystal_jobdir_close(dir);
    return code;
}

CRYSTAL_COMMAND(coord)
{
    struct options o = {0};

    if (parse(argc, argv, &o) < 0)
        return CRYSTAL_EXIT_USAGE;
    if (o.help) {
        help();
        return 0;
    }
    return o.finish ? finish(&o) : serve(&o);
}
