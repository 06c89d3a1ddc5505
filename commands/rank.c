/* scrystal rank: in front of the program of an emulated step that runs in a container.
 * What the container's start, or a plugin behind ours, has made of the environment that
 * the rank was given is put right; then this process becomes the program.
 */
#include "config.h"

#include "commands/commands.h"

#include "runtime/env.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void help(FILE *out)
{
    fprintf(out, "usage: scrystal rank PROGRAM ARG...\n\n"
                 "Sets the environment that this rank of an emulated step was given,\n"
                 "whatever a container's start has made of it, and becomes PROGRAM.\n"
                 "srun puts it there where a step has options of other plugins.\n");
}

/* text: NAME=VALUE lines, cut up in place. */
static int put_right(char *text)
{
    char *rest = text, *line;

    while ((line = strsep(&rest, "\n"))) {
        char *value = strchr(line, '=');

        if (!value)
            continue;
        *value++ = 0;
        if (setenv(line, value, 1) < 0)
            return -errno;
    }
    return 0;
}

CRYSTAL_COMMAND(rank)
{
    const char *settings = getenv(CRYSTAL_ENV_RANK_ENV);
    char *text = settings ? strdup(settings) : NULL;

    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        free(text);
        help(stdout);
        return 0;
    }
    if (argc < 2) {
        free(text);
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    if (!text || put_right(text) < 0) {
        crystal_log(CRYSTAL_LOG_ERROR, "rank",
                    "this task was not given the numbers of a rank "
                    "(" CRYSTAL_ENV_RANK_ENV "); the container's start must let "
                    "CRYSTAL_ variables pass");
        free(text);
        return CRYSTAL_EXIT_STAGE;
    }
    free(text);
    execvp(argv[1], argv + 1);
    crystal_log(CRYSTAL_LOG_ERROR, "rank", "%s: %s", argv[1], strerror(errno));
    return errno == ENOENT ? 127 : 126;
}
