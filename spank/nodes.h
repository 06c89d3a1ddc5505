/* Which nodes the sandbox gets, where the user has named some: --nodelist, --nodefile
 * and --exclude of a line that was written for the whole job.
 */
#ifndef CRYSTAL_SPANK_NODES_H
#define CRYSTAL_SPANK_NODES_H

#include "runtime/error.h"
#include "spank/argv.h"
#include "spank/srun_line.h"

#include <stdint.h>

/* The nodes that the line names, without those that it excludes, each once; empty where
 * it names none. 0, or a negative errno with a sentence. */
int crystal_nodes_named(const struct crystal_srun_line *line, struct crystal_argv *ret,
                        struct crystal_error *err);
/* The count nodes that the steps run on: those named, then others of the job (with
 * commas), without those that the line excludes. *ret "n1,n2", caller frees. -EINVAL
 * where there are not enough. */
int crystal_nodes_choose(const struct crystal_srun_line *line, const char *job_nodes,
                         uint32_t count, char **ret, struct crystal_error *err);
/* "n1,n2" of the first count of them; caller frees, NULL without memory. */
char *crystal_nodes_join(const struct crystal_argv *nodes, uint32_t count);

#endif
