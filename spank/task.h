/* What slurmstepd does for one task of ours: in its task_init hook as the user, in the
 * process that becomes the task, and in its task_exit hook.
 */
#ifndef CRYSTAL_SPANK_TASK_H
#define CRYSTAL_SPANK_TASK_H

#include "runtime/error.h"
#include "spank/options.h"

#include <stdint.h>
#include <sys/types.h>

/* The exit code of a task that could not be made a logical rank. */
#define CRYSTAL_TASK_EXIT 70

/* Sets one variable of the task; 0 or negative. */
typedef int (*crystal_task_setenv_fn)(void *context, const char *name,
                                      const char *value);

/* An agent's task: leaves the mark DIR/agent.NODE.spank, which says that this node
 * loads the plugin. 0 or negative errno. */
int crystal_task_mark_agent(const struct crystal_options *options, uint32_t node,
                            struct crystal_error *err);
/* A task of the program's step becomes the sandbox rank of its number: waits up to 30 s
 * for the agent's DIR/agent.NODE.env, sets its variables and the rank's own. 0 or
 * negative errno. */
int crystal_task_enter(const struct crystal_options *options, uint32_t node,
                       uint32_t task, crystal_task_setenv_fn set, void *context,
                       struct crystal_error *err);
/* How a task has ended. */
struct crystal_task_end {
    uint32_t node, task, step; /* Slurm's numbers: of the step, of the job */
    int status;                /* as from waitpid */
    uid_t uid;                 /* the job's */
    gid_t gid;
};
/* A task of the program's step has ended: adds the line "LRANK STATUS STEP" to
 * DIR/agent.NODE.ends for the node's agent. slurmstepd is root here: a child writes it
 * as the user. Best effort, in vain where the job directory is full. */
void crystal_task_leave(const struct crystal_options *options,
                        const struct crystal_task_end *end);
/* An agent's task has ended: where a signal ended it, perhaps with all processes of its
 * step, what it shared with the ranks of this node (CRYSTAL_BOARD) is removed, by a
 * child as above. */
void crystal_task_clear_agent(const struct crystal_options *options,
                              const struct crystal_task_end *end);

#endif
