/* The ends of Slurm's tasks, as the plugin reports them to the node's agent: one line
 * "LRANK STATUS STEP" per task in DIR/agent.NODE.ends (spank/task.h). A rank that has
 * failed keeps those that go on waiting for ever, unless the agent stops them.
 */
#ifndef CRYSTAL_TASK_ENDS_H
#define CRYSTAL_TASK_ENDS_H

#include "commands/stage_cause.h"

#include <stdint.h>

struct task_ends {
    const char *job_dir;             /* borrowed */
    uint32_t node_count;             /* that have tasks */
    uint32_t all_task_count;         /* theirs together */
    uint32_t own_node;               /* this one's number */
    uint32_t task_count;             /* of this node */
    struct crystal_launch_end *list; /* [task_count], as they came; owned */
    uint32_t count;                  /* of list, when last read */
    struct crystal_node *node;       /* whose roll says who began; borrowed */
    uint64_t broken_ms; /* when the service was first seen to fail; 0: it has not */
    uint64_t failed_ms; /* when a failed task was first seen; 0: none */
    uint64_t finish_ms; /* when the agent failed; 0: it has not */
    int code;           /* exit code of the rank that began, once it was told */
    uint32_t step;      /* of the tasks, from the lines */
};

/* Nonzero with the sentence of the rank that began once a task has failed and others
 * have run on for the grace time. */
int task_ends_check(struct task_ends *ends, struct crystal_error *err);
/* The node's service has failed (code, err), perhaps because a rank has ended: 0 while
 * that end is awaited, else code, and the sentence of that rank if there is one. */
int task_ends_explain(struct task_ends *ends, int code, struct crystal_error *err);
/* Makes DIR/agent.NODE.code, by which srun learns how this agent ends; its room is
 * there from the beginning, should the disk be full at the end. */
int task_ends_code_begin(const char *path, struct crystal_error *err);
/* Writes "CODE OWN": own: it is the exit code of a rank of the program. */
void task_ends_code_end(const char *path, int code, int is_own);
/* All tasks have ended. The exit code of the rank that began, with its sentence; 0
 * where none has failed. */
int task_ends_result(struct task_ends *ends, struct crystal_error *err);
/* After the agent has failed and every plugin knows: 1 when no task needs this agent
 * any more, that is when all have ended, on the other nodes, too: one whose own agent
 * was killed has nobody else. Those of a failed job that do not listen end with their
 * step, as scancel does it. */
int task_ends_finish(struct task_ends *ends);

#endif
