/* A job that our salloc has asked for and that does not start: said once.
 */
#ifndef CRYSTAL_SPANK_PENDING_H
#define CRYSTAL_SPANK_PENDING_H

#include <stdint.h>

/* What the job is known by before it has a number that we know. Borrowed. */
struct crystal_pending {
    const char *job_name;
    const char *cluster; /* --clusters; NULL = ours */
    uint32_t node_count;
};

/* To be called before this process becomes salloc. Starts a child of it that ends with
 * it, or as soon as the job no longer waits; salloc itself is quiet. What the child
 * cannot find out is not said. */
void crystal_pending_tell(const struct crystal_pending *pending);

#endif
