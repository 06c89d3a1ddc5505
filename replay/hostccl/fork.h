/* A process forked from one that uses the library (Python's multiprocessing does that)
 * has none of its threads and shares its sockets. There every call fails at once with a
 * sentence, and destroying and exiting touch nothing.
 */
#ifndef CRYSTAL_HOSTCCL_FORK_H
#define CRYSTAL_HOSTCCL_FORK_H

#include "runtime/error.h"

#include <stdbool.h>

/* From now on children are told. Called under the engine's lock. */
int hostccl_fork_watch(struct crystal_error *err);
/* Is this such a child? */
bool hostccl_fork_is_child(void);
/* Fails with -EPERM in such a child. */
int hostccl_fork_check(struct crystal_error *err);

#endif
