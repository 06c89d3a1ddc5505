/* See salloc_line.h. */
#include "config.h"

#include "spank/salloc_line.h"

#include "spank/ask.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* "--name" or a longer one that it abbreviates stands in the text, as a word. */
static bool names(const char *help, const char *word)
{
    size_t bytes = strcspn(word, "=");

    for (const char *at = help; (at = strstr(at, "--")) != NULL; at += 2)
        if (strncmp(at, word, bytes) == 0 && (at == help || strchr(" \t\n,[", at[-1])))
            return true;
    return false;
}

void crystal_salloc_line_add(const struct crystal_srun_line *line,
                             struct crystal_argv *out)
{
    static const char *const words[] = {"--help", NULL};
    char *help = NULL;
    bool asked = false, takes = true;

    for (int i = 0; i < line->count; i++) {
        const struct crystal_srun_word *w = &line->words[i];

        if (crystal_srun_word_is_foreign(w)) {
            /* the separate value of an unknown option goes where that goes */
            if (w->text[0] == '-') {
                if (!asked)
                    help = crystal_ask_slurm("salloc", NULL, words);
                asked = true;
                takes = help && names(help, w->text);
            }
        } else {
            takes = crystal_srun_word_is_allocation(w);
        }
        if (takes)
            crystal_argv_add(out, "%s", w->text);
    }
    free(help);
}

void crystal_salloc_line_environment(void)
{
    static const char *const names[] = {
        "ACCOUNT",      "ACCTG_FREQ",   "BURST_BUFFER", "CLUSTERS",    "CONSTRAINT",
        "CORE_SPEC",    "CPUS_PER_GPU", "DEBUG",        "DELAY_BOOT",  "EXCLUSIVE",
        "GRES_FLAGS",   "HINT",         "IMMEDIATE",    "MEM_PER_CPU", "MEM_PER_GPU",
        "MEM_PER_NODE", "NETWORK",      "NO_KILL",      "PARTITION",   "POWER",
        "PROFILE",      "QOS",          "REQ_SWITCH",   "RESERVATION", "THREAD_SPEC",
        "TIMELIMIT",    "WAIT4SWITCH",  "WCKEY",
    };
    char from[64], to[64];

    for (char **e = environ; *e;) {
        size_t bytes = strcspn(*e, "=");

        if (strncmp(*e, "SALLOC_", 7) != 0 || bytes >= sizeof from) {
            e++;
            continue;
        }
        memcpy(from, *e, bytes);
        from[bytes] = '\0';
        e = unsetenv(from) == 0 ? environ : e + 1;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(from, sizeof from, "SLURM_%s", names[i]);
        snprintf(to, sizeof to, "SALLOC_%s", names[i]);
        if (getenv(from))
            (void)setenv(to, getenv(from), 1); /* without it salloc's default counts */
    }
}
