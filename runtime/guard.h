/* A guard: a process that waits for its maker's death, however it dies, and then ends
 * the process groups and removes the directory that it was told of. SIGPIPE must be
 * blocked or ignored in the maker. One thread.
 */
#ifndef CRYSTAL_GUARD_H
#define CRYSTAL_GUARD_H

#include "runtime/error.h"

#include <stdint.h>
#include <sys/types.h>

#define CRYSTAL_GUARD_PATH 124 /* longest path of a directory, with its end */

struct crystal_guard;

/* Forks it. NULL on failure. */
struct crystal_guard *crystal_guard_create(struct crystal_error *err);
/* group > 0: end it; < 0: no more, its number may be somebody else's soon. */
void crystal_guard_group(struct crystal_guard *guard, pid_t group);
/* Remove this directory and the files in it (there are no directories); NULL: none any
 * more. One at a time; a longer path than CRYSTAL_GUARD_PATH is not kept. */
void crystal_guard_directory(struct crystal_guard *guard, const char *path);
/* Ends what it was told of, as at the maker's death, and the guard. NULL is fine. */
void crystal_guard_destroy(struct crystal_guard *guard);

/* Removes a directory of files, best effort. */
void crystal_guard_remove_directory(const char *path);
/* Ends the groups: SIGTERM, SIGKILL after grace_ms. Groups without processes are set to
 * 0. reap: they are our children. */
void crystal_guard_end_groups(pid_t *groups, uint32_t count, int grace_ms, int reap);

#endif
