/* scrystal: one command with subcommands, one per stage, so that any stage can be run
 * by hand from the files of the stage before it. This file only dispatches.
 */
#include "config.h"

#include "commands/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In pipeline order, as the help shows them; the row of a subcommand comes with its
 * file. */
static const struct crystal_command commands[] = {
    {"layout", crystal_command_layout, "which ranks run, and where"},
    {"capture", crystal_command_capture, "run the live ranks and record them"},
    {"graph", crystal_command_graph, "captured traces -> the graph of all ranks"},
    {"verify", crystal_command_verify, "do all ranks of a graph fit together?"},
    {"predict", crystal_command_predict, "an iteration of all ranks, and what if"},
    {"plan", crystal_command_plan, "measure the sandbox, compose all ranks' times"},
    {"emulate", crystal_command_emulate, "run the sandbox in the time of all ranks"},
    {"agent", crystal_command_agent, "one stage's work on one node, under Slurm"},
    {"rank", crystal_command_rank,
     "become a rank's program behind a container's start"},
    {"report", crystal_command_report,
     "what the latest run measured, against the plan"},
    {"show", crystal_command_show, "print a binary file of a job directory"},
    {"coord", crystal_command_coord, "the coordinator: store, capture's exchange, end"},
    {"doctor", crystal_command_doctor,
     "what this machine lacks, and crystal.yaml's keys"},
    {NULL, NULL, NULL},
};

static void usage(FILE *out)
{
    fprintf(out, "usage: scrystal COMMAND [OPTION...] (scrystal COMMAND --help)\n\n"
                 "Emulates huge training jobs on few GPUs, one stage per command:\n");
    for (const struct crystal_command *c = commands; c->name; c++)
        fprintf(out, "  %-9s %s\n", c->name, c->summary);
    fprintf(out, "\nscrystal --version prints the version.\n");
}

/* What whoever started us may have left in a way that children, sockets and files
 * cannot be used with. */
static void put_right(void)
{
    int fd;

    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error code */
    (void)signal(SIGCHLD, SIG_DFL); /* ignored, children end without a word */
    /* a socket of ours that got the number of a closed output would get its text */
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        (void)close(fd); /* all three are there */
}

int main(int argc, char **argv)
{
    static char place[32];

    put_right();
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? CRYSTAL_EXIT_USAGE : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("scrystal %s\n", PACKAGE_VERSION);
        return 0;
    }
    for (const struct crystal_command *c = commands; c->name; c++)
        if (strcmp(c->name, argv[1]) == 0) {
            (void)snprintf(place, sizeof place, "crystal: %s", c->name);
            argv[1] = place;
            return c->run(argc - 1, argv + 1);
        }
    fprintf(stderr,
            "crystal: '%s' is no scrystal command; scrystal --help lists them\n",
            argv[1]);
    return CRYSTAL_EXIT_USAGE;
}
