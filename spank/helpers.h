/* The helper steps of an emulated step (coordinator, agents, assistants): children of
 * the user's srun, which lasts as long as the program's step.
 */
#ifndef CRYSTAL_SPANK_HELPERS_H
#define CRYSTAL_SPANK_HELPERS_H

#include <stdbool.h>
#include <sys/types.h>

/* A stage failed for a reason of ours; the same number as scrystal's. */
#define CRYSTAL_STEPS_FAILED 70

/* The running ones; 0 = none. */
struct crystal_helpers {
    pid_t coord, agent, assist;
};

/* What the agents of a job directory have written, node by node: the exit code of the
 * rank that began (*ret_own = true), or that something else was wrong; 0 = nothing of
 * that kind. */
int crystal_helpers_codes(const char *job_dir, bool *ret_own);
/* Tells the coordinator to finish and waits for all, 30 s at most, then ends them.
 * scrystal is an absolute path, or a name in PATH. Returns the agents' exit code; 0
 * where they were ended here, or there are none. */
int crystal_helpers_finish(const char *scrystal, const char *job_dir,
                           struct crystal_helpers *helpers);

#endif
