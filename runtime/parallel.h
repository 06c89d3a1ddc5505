/* The same work for each of many indices, on several threads. What is done for an index
 * depends on the index alone, so results do not depend on the number of threads.
 */
#ifndef CRYSTAL_PARALLEL_H
#define CRYSTAL_PARALLEL_H

#include <stdint.h>

/* Does indices first .. end - 1; 0, or a negative errno, which ends all. Called on any
 * thread, also on the caller's. */
typedef int (*crystal_parallel_fn)(void *context, uint32_t first, uint32_t end);

/* Takes pieces of `piece` indices in turn until count are done. Returns 0 or what a
 * call returned. Where threads cannot be started, fewer do it. */
int crystal_parallel(uint32_t threads, uint32_t count, uint32_t piece,
                     crystal_parallel_fn fn, void *context);

/* Processors that this process may use, at least 1. */
uint32_t crystal_parallel_processors(void);

#endif
