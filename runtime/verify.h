/* Does a job.graph fit together? Proven for all ranks and everything that was recorded,
 * on the graph alone:
 *  - the members of each communicator call the same collectives in the same order, with
 *    equal type, count, reduction and root;
 *  - each message that is sent is received, with equal bytes, in the same order;
 *  - nothing waits for ever: ranks are run through their records as the timeline runs
 *    them, where a send up to CRYSTAL_TRANSFER_EAGER_BYTES does not wait.
 * Recorded is what stands before a representative's last iteration mark, or all of it
 * where it has no marks.
 */
#ifndef CRYSTAL_VERIFY_H
#define CRYSTAL_VERIFY_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdint.h>

struct crystal_verdict {
    int is_sound;
    char *witness; /* lines that say what does not fit; owned; NULL where sound */
    uint64_t collective_count; /* calls of all ranks */
    uint64_t message_count;    /* sends of all ranks */
};

/* An error means that nothing was found out. Caller: fini. */
int crystal_verify(const struct crystal_graph *g, struct crystal_verdict *ret,
                   struct crystal_error *err);
void crystal_verdict_fini(struct crystal_verdict *v);

#endif
