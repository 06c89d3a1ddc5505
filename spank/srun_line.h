/* A command line of srun, sbatch or salloc, taken apart into its options.
 *
 * Only the words before the program count ("getopt's optind"). Every option becomes one
 * word of its own: "-lu" is -l and -u, "-n 72" is -n72, "--time 5" is --time=5, and an
 * abbreviation is written out. What our table does not know (an option of another
 * plugin or of a newer Slurm) stays as it is, its separate value behind it.
 */
#ifndef CRYSTAL_SPANK_SRUN_LINE_H
#define CRYSTAL_SPANK_SRUN_LINE_H

#include "runtime/error.h"
#include "spank/argv.h"

#include <stdbool.h>

struct crystal_srun_option; /* a row of the table in srun_line.c */

struct crystal_srun_word {
    const struct crystal_srun_option *option; /* NULL = unknown or a value of such */
    char *text;                               /* owned */
    const char *value;                        /* within text; NULL = none */
};

struct crystal_srun_line {
    struct crystal_srun_word *words; /* owned */
    int count;
};

/* argv[1] .. argv[program - 1]. 0 or -ENOMEM. */
int crystal_srun_line_parse(const struct crystal_argv *argv, int program,
                            struct crystal_srun_line *ret_line);
void crystal_srun_line_fini(struct crystal_srun_line *line);

/* The value of the last option of that long name; NULL = not given. Borrowed. */
const char *crystal_srun_line_get(const struct crystal_srun_line *line,
                                  const char *name);
/* The value of the last option that has either long name, NULL = none; *ret_is_second
 * says which. Borrowed. */
const char *crystal_srun_line_get_last(const struct crystal_srun_line *line,
                                       const char *first, const char *second,
                                       bool *ret_is_second);
/* An option that begins with "--crystal-" stands on the line. */
bool crystal_srun_line_has_crystal(const struct crystal_srun_line *line);
/* An option of another plugin, or the separate value of an option of one (of ours too:
 * it follows that). */
bool crystal_srun_word_is_foreign(const struct crystal_srun_word *word);
/* Of those that are not foreign: salloc takes it, too. */
bool crystal_srun_word_is_allocation(const struct crystal_srun_word *word);
/* Appends what a stage step shares with the program's step: environment, working
 * directory, memory, prologs, other plugins' options; neither geometry nor output nor
 * ours. */
void crystal_srun_line_add_stage(const struct crystal_srun_line *line,
                                 struct crystal_argv *out);
/* -EINVAL with a sentence where an option cannot go with an emulated job. */
int crystal_srun_line_check(const struct crystal_srun_line *line,
                            struct crystal_error *err);

/* For the drift test: every row as "name has_arg step_only\n" on file descriptor fd. */
void crystal_srun_line_print_table(int fd);

#endif
