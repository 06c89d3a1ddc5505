/* An srun without an allocation becomes a salloc around the same srun: what of its line
 * and its environment goes to salloc.
 */
#ifndef CRYSTAL_SPANK_SALLOC_LINE_H
#define CRYSTAL_SPANK_SALLOC_LINE_H

#include "spank/argv.h"
#include "spank/srun_line.h"

/* Appends the line's options that this salloc takes: of Slurm's own those that are not
 * srun's alone, of other plugins those that salloc's help names (some are registered in
 * srun only). */
void crystal_salloc_line_add(const struct crystal_srun_line *line,
                             struct crystal_argv *out);
/* srun's variables for an allocation become salloc's, and those of salloc, which srun
 * would not have read, go. */
void crystal_salloc_line_environment(void);

#endif
