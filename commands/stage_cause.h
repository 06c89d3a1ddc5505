/* Which of several ends began it. Ranks that die take others with them, and an end may
 * be seen before the one that led to it; what ranks have seen of each other stands on
 * the node's roll (replay/roll.h). The same for ranks that are our children and for
 * Slurm's tasks.
 */
#ifndef CRYSTAL_STAGE_CAUSE_H
#define CRYSTAL_STAGE_CAUSE_H

#include "replay/node.h"
#include "runtime/error.h"
#include "runtime/launch.h"

#include <stdint.h>

/* How long an agent waits for what is not here yet: the end of a process that has
 * closed its connections; the sentence of another node's agent, which comes at once
 * where that is alive. */
#define STAGE_CAUSE_MS 5000
#define STAGE_FAR_MS   10000

enum stage_cause_kind {
    STAGE_CAUSE_NONE = 0, /* nothing has failed */
    STAGE_CAUSE_RANK,     /* this one of ours */
    STAGE_CAUSE_SERVICE,  /* what the node's service says */
    STAGE_CAUSE_FAR,      /* a rank of another node */
    STAGE_CAUSE_UNKNOWN   /* all that failed died of something that is not known yet */
};
struct stage_cause {
    enum stage_cause_kind kind;
    uint32_t lrank;                       /* RANK only */
    const struct crystal_launch_end *end; /* its end, of the list; NULL: it runs on */
    const struct crystal_launch_end *failed; /* the first that failed; NULL: none has */
};

/* ends: of the ranks of this node, as they came. node: NULL where there is no service.
 * service_code: 0 or what crystal_node_status or crystal_node_look gave. has_far: ranks
 * run on other nodes, too. */
struct stage_cause stage_cause_find(struct crystal_node *node, int service_code,
                                    int has_far, const struct crystal_launch_end *ends,
                                    uint32_t count);
/* How long to wait for more of it, a rank's end or another node's word; 0: no time. */
int stage_cause_wait_ms(const struct stage_cause *cause);
/* Where some rank has failed: the sentence about the one that began, ending in more, or
 * about the first that failed where that is not known; and the exit code: its own or,
 * where it did not fail but left another that needed it, that one's. 0: the service's
 * sentence is all there is. */
int stage_cause_text(const struct stage_cause *cause, const char *more,
                     struct crystal_error *err);

#endif
