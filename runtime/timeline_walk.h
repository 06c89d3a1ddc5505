/* One rank's iteration, operation by operation, once the ends of its communication are
 * known: what began when, and because of what. For critical paths, statistics and
 * drawings; a rank takes microseconds, so that nothing but the ends of communication
 * has to be kept of thousands of ranks.
 */
#ifndef CRYSTAL_TIMELINE_WALK_H
#define CRYSTAL_TIMELINE_WALK_H

#include "runtime/timeline.h"

#include <stddef.h>
#include <stdint.h>

enum crystal_walk_kind {
    CRYSTAL_WALK_HOST, /* computation of the host */
    CRYSTAL_WALK_KERNEL,
    CRYSTAL_WALK_COLL,
    CRYSTAL_WALK_SEND,
    CRYSTAL_WALK_RECV
};

struct crystal_walk_op {
    uint64_t start_ns; /* communication: arrival */
    uint64_t end_ns;
    uint32_t instr;  /* in the program */
    uint32_t before; /* the operation whose end let it start, UINT32_MAX: none */
    uint32_t nth;    /* of its communicator's collectives or its pair's messages */
    uint16_t lane;   /* stream; of the host: UINT16_MAX */
    uint8_t kind;    /* enum crystal_walk_kind */
};

struct crystal_walk {
    struct crystal_walk_op *ops; /* in order of issue; owned */
    size_t count, capacity;
    uint64_t end_ns; /* of the host */
    uint32_t last;   /* the operation whose end that is, UINT32_MAX: none */
};

/* When the communication of instr has ended, of the rank that is walked. */
typedef uint64_t (*crystal_walk_end_fn)(void *context, uint32_t instr);

/* Walks the first iteration of lrank, which began at begin_ns. Computation of the host
 * is listed where with_host is not 0. walk is used again, and freed by fini. The
 * timeline's own state is neither used nor changed. Returns 0 or -ENOMEM. */
int crystal_timeline_walk(const struct crystal_timeline *t, uint32_t lrank,
                          uint64_t begin_ns, int with_host, crystal_walk_end_fn end_of,
                          void *context, struct crystal_walk *walk);
void crystal_walk_fini(struct crystal_walk *walk);

#endif
