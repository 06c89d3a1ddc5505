/* The environment of one task of the program's step: it is a sandbox rank and sees the
 * whole job, as if all logical ranks ran.
 */
#ifndef CRYSTAL_SPANK_TASK_ENV_H
#define CRYSTAL_SPANK_TASK_ENV_H

#include "runtime/error.h"
#include "runtime/slurm_view.h"
#include "spank/argv.h"

#include <stdbool.h>
#include <stdint.h>

/* Waits at most timeout_ms for the agent's file and appends its NAME=VALUE lines. 0 or
 * negative errno with a sentence. */
int crystal_task_env_read(const char *path, uint32_t timeout_ms,
                          struct crystal_argv *out, struct crystal_error *err);

struct crystal_task {
    uint32_t lrank;
    uint32_t logical_rank_count;
    uint32_t ranks_per_node;
    enum crystal_slurm_view view; /* PHYSICAL: Slurm's own variables stay */
};
/* Appends the rank's own variables: RANK, LOCAL_RANK, SLURM_PROCID, ... */
void crystal_task_env_add(const struct crystal_task *task, struct crystal_argv *out);

#endif
