/* scrystal report: writes the reports of a job and prints the one for people. */
#include "config.h"

#include "commands/commands.h"

#include "replay/report.h"
#include "runtime/infile.h"
#include "runtime/log.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const struct option long_options[] = {
    {"job", required_argument, NULL, 'j'},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(FILE *out)
{
    fprintf(out, "usage: scrystal report --job=DIR [--quiet]\n\n"
                 "Compares the latest run of the job in DIR with its plan: writes\n"
                 "DIR/report.txt, .json and .html and DIR/trace.json (for Perfetto),\n"
                 "and prints the text.\n\n"
                 "  --job=DIR   the job directory\n"
                 "  --quiet     print nothing\n");
}

static int print(const char *job_dir)
{
    char path[PATH_MAX], part[4096];
    size_t count;
    FILE *in;

    if (snprintf(path, sizeof path, "%s/report.txt", job_dir) >= (int)sizeof path)
        return -ENAMETOOLONG;
    in = crystal_infile_stream(path, NULL);
    if (!in)
        return -EIO;
    while ((count = fread(part, 1, sizeof part, in)) > 0)
        (void)fwrite(part, 1, count, stdout); /* checked below */
    (void)fclose(in);                         /* only read */
    return fflush(stdout) != 0 || ferror(stdout) ? -EIO : 0;
}

CRYSTAL_COMMAND(report)
{
    struct crystal_error err = {0};
    const char *job_dir = NULL;
    int option, is_quiet = 0, code;

    optind = 1;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) >= 0) {
        switch (option) {
        case 'j':
            job_dir = optarg;
            break;
        case 'q':
            is_quiet = 1;
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
    if (crystal_report_write(job_dir, &err)) {
        crystal_log(CRYSTAL_LOG_ERROR, "report", "%s", crystal_error_text(&err));
        return CRYSTAL_EXIT_STAGE;
    }
    code = is_quiet ? 0 : print(job_dir);
    if (code) {
        crystal_log(CRYSTAL_LOG_ERROR, "report", "cannot print: %s", strerror(-code));
        return CRYSTAL_EXIT_STAGE;
    }
    return 0;
}
