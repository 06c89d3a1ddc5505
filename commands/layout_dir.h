/* Where a job directory lies. */
#ifndef CRYSTAL_LAYOUT_DIR_H
#define CRYSTAL_LAYOUT_DIR_H

#include "runtime/error.h"

#include <stddef.h>

/* A template such as "./crystal.%x" as an absolute path: %x is job_name (NULL: "job"),
 * %u the user; %j, %A and %a the number of the Slurm job, its array's and its task's,
 * as Slurm's file names have them. A task of a job array whose template has neither %j
 * nor %a gets ".TASK" behind. *ret_is_known is 0 where a number is used that there is
 * none of yet, outside of a job; it stands as 0 in the path then. */
int layout_dir(const char *template, const char *job_name, char *out, size_t out_bytes,
               int *ret_is_known, struct crystal_error *err);

/* The same for spill_dir; a directory of this job directory alone, below it. */
int layout_spill_dir(const char *template, const char *job_name, const char *job_dir,
                     char *out, size_t out_bytes, struct crystal_error *err);

#endif
