/* How Slurm's tasks of the program's step on this node have ended, from the lines that
 * crystal.so writes to DIR/agent.NODE.ends (spank/task.h).
 */
#ifndef CRYSTAL_TASK_ENDS_H
#define CRYSTAL_TASK_ENDS_H

#include "runtime/error.h"

#include <limits.h>
#include <stdint.h>

struct task_ends {
    char path[PATH_MAX];
    uint32_t task_count; /* of the node */
    uint64_t failed_ms;  /* CLOCK_MONOTONIC when a failure was first seen, 0: none */
    uint64_t finish_ms;  /* the same after the communication has ended */
    uint32_t step;       /* the program's, known once a task has ended */
};

/* 0 where every task runs on, has ended well, or has company in its failure: all have
 * ended. -ECANCELED and a sentence about the first that failed, where others still run
 * 5 s later: they may wait for it for ever. */
int task_ends_check(struct task_ends *ends, struct crystal_error *err);
/* For an agent that has failed, called until it returns nonzero: every task has ended,
 * or one has failed 10 s ago and the others wait for the communication that the agent
 * has ended; then the program's step is cancelled. */
int task_ends_finish(struct task_ends *ends);

#endif
