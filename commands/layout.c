/* scrystal layout: options -> nodes, processes, GPUs, NICs, CPU sets, as YAML for
 * people or, with --request, as the key=value lines that the SPANK plugin reads (values
 * percent-encoded; the list of keys stands in doc/architecture.md).
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/layout_dir.h"
#include "commands/layout_print.h"
#include "commands/layout_request.h"
#include "commands/layout_stages.h"

#include "runtime/permit.h"
#include "runtime/filehead.h"
#include "runtime/jobdir.h"
#include "runtime/layout_make.h"
#include "runtime/log.h"
#include "runtime/outfile.h"
#include "runtime/space.h"
#include "runtime/topology.h"
#include "runtime/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct request {
    struct crystal_layout_options options;
    const char *stages, *job_dir, *config, *topology, *claim;
    struct crystal_permit_asker asker;
    const char *default_partition;
    int as_request, for_allocation, write, draw, help;
};

static const struct option long_options[] = {
    {"logical-ranks", required_argument, NULL, 'n'},
    {"ranks-per-node", required_argument, NULL, 'g'},
    {"gpus-per-node", required_argument, NULL, 'G'},
    {"sandbox", required_argument, NULL, 's'},
    {"parallel", required_argument, NULL, 'p'},
    {"live", required_argument, NULL, 'l'},
    {"iterations", required_argument, NULL, 'k'},
    {"payload", required_argument, NULL, 'P'},
    {"stages", required_argument, NULL, 'S'},
    {"job-dir", required_argument, NULL, 'd'},
    {"wire", required_argument, NULL, 'w'},
    {"assistants", required_argument, NULL, 'a'},
    {"slurm-env", required_argument, NULL, 'e'},
    {"job-name", required_argument, NULL, 'J'},
    {"account", required_argument, NULL, 'u'},
    {"partition", required_argument, NULL, 'q'},
    {"default-partition", required_argument, NULL, 'Q'},
    {"config", required_argument, NULL, 'c'},
    {"topology", required_argument, NULL, 't'},
    {"request", no_argument, NULL, 'r'},
    {"allocation", no_argument, NULL, 'A'},
    {"write", no_argument, NULL, 'W'},
    {"claim", required_argument, NULL, 'C'},
    {"draw", no_argument, NULL, 'D'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(void)
{
    printf(
        "usage: scrystal layout --logical-ranks=N [OPTION...] [-- PROGRAM ARG...]\n\n"
        "Shows which ranks run where; with --write it makes the job directory.\n\n"
        "  --logical-ranks=N    ranks of the job\n"
        "  --ranks-per-node=G   ranks of one target node (default --gpus-per-node, "
        "else "
        "8)\n"
        "  --gpus-per-node=G    GPUs of a node of the partition\n"
        "  --sandbox=LIST       ranks that run for real, rounded up to whole target "
        "nodes\n"
        "                       (default: the first)\n"
        "  --parallel=GRID      tp=2,pp=4,dp=8: sizes in the order of rank numbers\n"
        "  --live=replica|all|LIST\n"
        "                       ranks that run during capture (default replica, which\n"
        "                       needs --parallel); a LIST one after the other\n"
        "  --iterations=K       iterations to record, the first skipped (default 3)\n"
        "  --payload=control|all\n"
        "                       what is kept of the messages' contents: integers and\n"
        "                       first messages (default), or all\n"
        "  --stages=LIST        of capture,plan,emulate (default all three)\n"
        "  --job-dir=DIR        where the job keeps its files (default "
        "./crystal.NAME)\n"
        "  --job-name=NAME      names the default job directory, ./crystal.NAME\n"
        "  --wire=modelled|real how messages of virtual ranks arrive: at the computed\n"
        "                       time (default), or from assistants, by TCP\n"
        "  --assistants=K       nodes that send them on the real wire (default one "
        "for\n"
        "                       each sandbox node)\n"
        "  --slurm-env=WHICH    what SLURM_PROCID, SLURM_NTASKS, ... say in the "
        "program:\n"
        "                       logical ranks (default), physical tasks, or node\n"
        "  --account=NAME, --partition=NAME\n"
        "                       where the job runs, for allow.* of crystal.yaml\n"
        "  --config=FILE        crystal.yaml\n"
        "  --topology=XML       an hwloc file instead of this machine\n"
        "  --draw               the sandbox's ranks, CPUs, GPUs and NICs as a drawing\n"
        "  --request            key=value lines for the SPANK plugin\n"
        "  --allocation         the same where the steps come later: the job "
        "directory\n"
        "                       is not looked at\n"
        "  --write              make the job directory and its layout.yaml\n"
        "  --claim=WORDS        what a coordinator must have been started with to use "
        "it\n");
}

static int parse(int argc, char **argv, struct request *r, struct crystal_error *err)
{
    int c, index = 0;

    optind = 1;
    while ((c = getopt_long(argc, argv, "+", long_options, &index)) != -1) {
        const char **text = NULL;

        switch (c) {
        case 'n':
            text = &r->options.logical_ranks;
            break;
        case 'g':
            text = &r->options.ranks_per_node;
            break;
        case 'G':
            text = &r->options.gpus_per_node;
            break;
        case 's':
            text = &r->options.sandbox;
            break;
        case 'p':
            text = &r->options.parallel;
            break;
        case 'l':
            text = &r->options.live;
            break;
        case 'k':
            text = &r->options.iterations;
            break;
        case 'P':
            text = &r->options.payload;
            break;
        case 'S':
            text = &r->stages;
            break;
        case 'd':
            text = &r->job_dir;
            break;
        case 'w':
            text = &r->options.wire;
            break;
        case 'a':
            text = &r->options.assistants;
            break;
        case 'e':
            text = &r->options.slurm_env;
            break;
        case 'J':
            text = &r->options.job_name;
            break;
        case 'u':
            text = &r->asker.account;
            break;
        case 'q':
            text = &r->asker.partition;
            break;
        case 'Q':
            text = &r->default_partition;
            break;
        case 'c':
            text = &r->config;
            break;
        case 't':
            text = &r->topology;
            break;
        case 'r':
            r->as_request = 1;
            break;
        case 'A':
            r->for_allocation = 1;
            break;
        case 'W':
            r->write = 1;
            break;
        case 'C':
            text = &r->claim;
            break;
        case 'D':
            r->draw = 1;
            break;
        case 'h':
            r->help = 1;
            break;
        default:
            return -EINVAL;
        }
        if (text && !*optarg)
            return crystal_error_set(err, EINVAL,
                                     "--crystal-%s: is empty; give a value or leave it "
                                     "out",
                                     long_options[index].name);
        if (text)
            *text = optarg;
    }
    r->options.program = argv + optind;
    return 0;
}

/* Which coordinator may use the directory: NULL any (runtime/claim.h). */
static int write_claim(const struct crystal_jobdir *dir, const char *claim,
                       struct crystal_error *err)
{
    struct crystal_outfile f;
    char path[PATH_MAX];
    int code = crystal_jobdir_file(dir, path, sizeof path, err, "claim");

    if (!code)
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);
    if (code)
        return code;
    (void)fputs(claim ? claim : "", f.stream); /* close tells */
    return crystal_outfile_close(&f, 0, err);
}

static int write_layout(const char *path, const struct crystal_layout *l,
                        const char *claim, struct crystal_error *err)
{
    struct crystal_jobdir *dir = crystal_jobdir_open(path, 1, err);
    char file[PATH_MAX];
    int code;

    if (!dir)
        return -EINVAL;
    code = crystal_space_check(crystal_jobdir_path(dir), err);
    if (!code)
        code = crystal_jobdir_lock(dir, err); /* not under a running job */
    if (!code)
        code = crystal_jobdir_file(dir, file, sizeof file, err, "layout.yaml");
    if (!code)
        code = crystal_layout_write(file, l, err);
    if (!code)
        code = write_claim(dir, claim, err);
    crystal_jobdir_close(dir);
    return code;
}

static int set_spill_dir(const struct request *r, const struct crystal_conf *conf,
                         const char *job_dir, struct crystal_layout *l,
                         struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = layout_spill_dir(conf->spill_dir, r->options.job_name, job_dir, path,
                                sizeof path, err);

    if (!code && !(l->spill_dir = strdup(path)))
        code = crystal_error_set(err, ENOMEM, "layout: out of memory");
    return code;
}

/* The sentence names options as srun has them; by hand they are shorter. */
static void say_fault(const struct request *r, const char *sentence)
{
    static const char srun[] = "--crystal-";
    char text[CRYSTAL_ERROR_TEXT_BYTES];
    char *place = text;

    (void)snprintf(text, sizeof text, "%s", sentence);
    while (!r->as_request && (place = strstr(place, srun)) != NULL) {
        place += 2;
        memmove(place, place + sizeof srun - 3, strlen(place + sizeof srun - 3) + 1);
    }
    crystal_log(CRYSTAL_LOG_ERROR, "layout", "%s", text);
}

CRYSTAL_COMMAND(layout)
{
    struct request r = {0};
    struct crystal_error err = {0};
    struct crystal_conf conf = {0};
    struct crystal_layout l = {0};
    struct layout_stages asked;
    char dir[PATH_MAX], run_stages[64], rounded[512], skipped[128];
    const char *const notices[2] = {rounded, skipped};
    int code, dir_is_known = 1;

    if (parse(argc, argv, &r, &err)) {
        if (err.code)
            say_fault(&r, crystal_error_text(&err));
        return CRYSTAL_EXIT_USAGE;
    }
    if (r.help) {
        help();
        return 0;
    }
    code = crystal_conf_read(r.config, &conf, &err);
    if (!code)
        code =
            crystal_layout_make(&r.options, &conf, &l, rounded, sizeof rounded, &err);
    if (!r.asker.partition)
        r.asker.partition =
            conf.partition && conf.partition[0] ? conf.partition : r.default_partition;
    if (!code)
        code = crystal_permit(&conf, &r.asker, &l, &err);
    if (!code)
        code = layout_dir(r.job_dir ? r.job_dir : conf.job_dir, r.options.job_name, dir,
                          sizeof dir, &dir_is_known, &err);
    if (!code)
        code = crystal_jobdir_check_name("--crystal-job-dir", dir, &err);
    if (!code && conf.spill_dir[0])
        code = set_spill_dir(&r, &conf, dir, &l, &err);
    asked.asked = r.stages;
    asked.dir = r.for_allocation || !dir_is_known ? NULL : dir;
    asked.needs_capture = r.as_request;
    if (!code)
        code = layout_stages(&asked, &l, run_stages, sizeof run_stages, skipped,
                             sizeof skipped, &err);
    if (!code && r.write)
        code = crystal_permit_bytes(&conf, dir, &err);
    if (!code && r.write)
        code = write_layout(dir, &l, r.claim, &err);
    if (!code && r.as_request)
        layout_request(&l, &conf, dir, run_stages, notices);
    else if (!code)
        code = (r.draw ? layout_draw : layout_print)(&l, r.topology, &err);
    if (code)
        say_fault(&r, crystal_error_text(&err));
    else if (!r.as_request && rounded[0])
        crystal_log(CRYSTAL_LOG_INFO, "layout", "%s", rounded);
    if (!code && (fflush(stdout) != 0 || ferror(stdout))) {
        crystal_log(CRYSTAL_LOG_ERROR, "layout", "cannot print: %s", strerror(errno));
        code = -EIO;
    }
    crystal_layout_fini(&l);
    crystal_conf_fini(&conf);
    return code ? CRYSTAL_EXIT_USAGE : 0;
}
