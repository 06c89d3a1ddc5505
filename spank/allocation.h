/* The shape of the allocation that an emulated job gets: what is put behind the user's
 * own options, what cannot be had, and what is said of what was overridden.
 */
#ifndef CRYSTAL_SPANK_ALLOCATION_H
#define CRYSTAL_SPANK_ALLOCATION_H

#include "runtime/error.h"
#include "spank/argv.h"
#include "spank/partition.h"
#include "spank/request.h"
#include "spank/srun_line.h"

#include <stdbool.h>

struct crystal_allocation {
    const struct crystal_request *request; /* all borrowed */
    const struct crystal_srun_line *line;  /* the user's, #SBATCH lines in front */
    const struct crystal_partition *partition;
    /* of assistants that are a component of their own, as it was asked for by name */
    const struct crystal_partition *assistants;
};

/* -EINVAL with a sentence where the partition never gives a job of that shape: Slurm
 * would leave it pending. */
int crystal_allocation_check(const struct crystal_allocation *a,
                             struct crystal_error *err);
/* Appends options for srun, sbatch or salloc alike, and to notices what was overridden,
 * a sentence each. 0, or negative with a sentence. */
int crystal_allocation_add(const struct crystal_allocation *a, struct crystal_argv *out,
                           struct crystal_argv *notices, struct crystal_error *err);
/* Appends what makes assistants a component of their own, where they are one: the last
 * options of the line, ":" in front. For sbatch and salloc. is_quiet: salloc shall tell
 * nothing but errors. */
void crystal_allocation_add_component(const struct crystal_allocation *a, bool is_quiet,
                                      struct crystal_argv *out);
/* The part of it where the line names more nodes than the sandbox takes. */
int crystal_allocation_add_nodelist(const struct crystal_allocation *a,
                                    struct crystal_argv *out,
                                    struct crystal_argv *notices,
                                    struct crystal_error *err);
/* Appends the step's shape: what crystal_allocation_add does without what only an
 * allocation has. */
void crystal_allocation_add_shape(const struct crystal_request *request,
                                  struct crystal_argv *out);

#endif
