/* The subcommands of scrystal. Each is one function in commands/<name>.c with its own
 * getopt table and help text; argv[0] is "crystal: " and the subcommand's name, which
 * getopt puts in front of its sentences as crystal_log does. The value is the exit
 * code: 0 done, 2 bad usage or configuration, 3 verify found a fault, 5 what was
 * emulated is not the captured job, 70 a stage failed, else as the subcommand's help
 * says. Results go to standard output, all messages to standard error by crystal_log.
 */
#ifndef CRYSTAL_COMMANDS_H
#define CRYSTAL_COMMANDS_H

#define CRYSTAL_EXIT_USAGE  2
#define CRYSTAL_EXIT_VERIFY 3
#define CRYSTAL_EXIT_OTHER  5 /* the program did well, but is not the captured job */
#define CRYSTAL_EXIT_STAGE  70

typedef int (*crystal_command_fn)(int argc, char **argv);

struct crystal_command {
    const char *name;
    crystal_command_fn run;
    const char *summary; /* one line, lower case, no full stop */
};

/* CRYSTAL_COMMAND(name) { ... } defines one; each has a row in commands/scrystal.c. */
#define CRYSTAL_COMMAND(name) int crystal_command_##name(int argc, char **argv)

CRYSTAL_COMMAND(layout);
CRYSTAL_COMMAND(capture);
CRYSTAL_COMMAND(graph);
CRYSTAL_COMMAND(plan);
CRYSTAL_COMMAND(emulate);
CRYSTAL_COMMAND(report);
CRYSTAL_COMMAND(show);
CRYSTAL_COMMAND(doctor);
CRYSTAL_COMMAND(coord);
CRYSTAL_COMMAND(agent);
CRYSTAL_COMMAND(rank);
CRYSTAL_COMMAND(verify);
CRYSTAL_COMMAND(predict);

#endif
