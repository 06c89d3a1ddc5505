/* See launcher.h. */
#include "config.h"

#include "runtime/launcher.h"

#include <string.h>

static const char *const launchers[] = {
    "mpirun",    "mpiexec", "mpiexec.hydra", "orterun", "prterun",    "prun", "srun",
    "deepspeed", "aprun",   "jsrun",         "pdsh",    "horovodrun", "ray",  "flux",
};
static const char *const shells[] = {"sh", "bash", "dash", "zsh", "ksh"};
/* They run the command behind their own words. */
static const char *const prefixes[] = {"env",     "exec",   "nice",  "numactl", "time",
                                       "taskset", "stdbuf", "nohup", "command"};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* The row that is the last component of word's bytes. */
static const char *find(const char *const *table, size_t count, const char *word,
                        size_t bytes)
{
    for (size_t i = bytes; i > 0; i--)
        if (word[i - 1] == '/') {
            word += i;
            bytes -= i;
            break;
        }
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i]) == bytes && strncmp(table[i], word, bytes) == 0)
            return table[i];
    return NULL;
}

/* A word in front of a command, not the command itself: an option, A=1, a prefix. */
static int is_before(const char *word, size_t bytes)
{
    return bytes == 0 || word[0] == '-' || memchr(word, '=', bytes) ||
           find(prefixes, COUNT(prefixes), word, bytes);
}

/* The commands of a shell's text: the first words behind ; & | ( ) { } and line ends.
 */
static const char *find_in_text(const char *text)
{
    int at_command = 1;

    while (*text) {
        size_t bytes = strcspn(text, " \t\n;&|(){}\"'`$");
        const char *found =
            at_command ? find(launchers, COUNT(launchers), text, bytes) : NULL;

        if (found)
            return found;
        at_command = at_command && is_before(text, bytes);
        text += bytes;
        if (*text && strchr("\n;&|(){}`", *text))
            at_command = 1;
        text += *text != 0;
    }
    return NULL;
}

const char *crystal_launcher_find(char *const *argv)
{
    while (*argv && is_before(*argv, strlen(*argv)))
        argv++;
    if (!*argv)
        return NULL;
    if (find(shells, COUNT(shells), *argv, strlen(*argv))) {
        while (*++argv && (*argv)[0] == '-')
            if (strchr(*argv, 'c'))
                return argv[1] ? find_in_text(argv[1]) : NULL;
        return NULL;
    }
    return find(launchers, COUNT(launchers), *argv, strlen(*argv));
}
