/* One iteration of a representative, made ready for the timeline: the records that its
 * host thread issues, with events and streams resolved to small indices.
 *
 * Compiled from the last recorded iteration of job.graph, which repeats for ever. The
 * profile's gaps are by instruction of this program. Immutable after create.
 */
#ifndef CRYSTAL_PROGRAM_H
#define CRYSTAL_PROGRAM_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdint.h>

#define CRYSTAL_PROGRAM_NONE UINT32_MAX

struct crystal_instr {
    uint8_t kind; /* COLL, SEND, RECV, GROUP, RECORD, WAIT, SWAIT, SYNC, HINT
                     or KERNEL */
    uint8_t func;
    uint8_t dtype;
    union {
        uint8_t starts_group; /* GROUP: 1 start, 0 end */
        uint8_t flags;        /* COLL: the record's */
    };
    uint16_t local;  /* communicator as the trace counts them */
    uint16_t stream; /* dense index */
    uint32_t peer;   /* root or crank as in the trace */
    uint32_t slot; /* RECORD, WAIT, SWAIT: event slot, NONE where it was recorded before
                      the iterations; SEND, RECV: index of the pair */
    uint32_t cost_ns; /* COLL, SEND, RECV: ends so much later at its rank than the wire
                         says; 0 until crystal_program_cost */
    uint64_t count;   /* elements; KERNEL: ns */
    uint64_t record;  /* index in the representative's records */
};

/* What a rank sends to or receives from one peer on one communicator. */
struct crystal_program_pair {
    uint16_t local;
    uint8_t is_send;
    uint32_t peer;   /* crank as in the trace */
    uint32_t before; /* such operations before the iterations */
    uint32_t each;   /* in every iteration */
};

struct crystal_program {
    uint32_t rep; /* index in the graph */
    struct crystal_instr *instrs;
    uint32_t instr_count;
    uint32_t stream_count;
    uint32_t event_count; /* slots */
    uint32_t local_count;
    uint64_t *coll_before; /* by local: collectives before the iterations, without those
                              of no elements */
    uint64_t *coll_each;   /* by local: the same in every iteration */
    struct crystal_program_pair *pairs;
    uint32_t pair_count;
};

/* As crystal_op_is_empty: the instruction is only the computation before it. */
static inline int crystal_instr_is_empty(const struct crystal_instr *in)
{
    return in->kind == CRYSTAL_OP_COLL && !in->count;
}

/* Of a COLL: it is done this way (CRYSTAL_OP_WAY, 0: not known), whatever its record
 * says; other kinds stay what they are. */
static inline void crystal_program_tell(struct crystal_instr *in, uint8_t way)
{
    if (in->kind == CRYSTAL_OP_COLL && way & CRYSTAL_OP_WAY_MASK)
        in->flags =
            (uint8_t)((in->flags & ~CRYSTAL_OP_WAY_MASK) | (way & CRYSTAL_OP_WAY_MASK));
}

/* Of a KERNEL: it was measured to last so long (0: it was not); other kinds stay what
 * they are. */
static inline void crystal_program_last(struct crystal_instr *in, uint64_t ns)
{
    if (in->kind == CRYSTAL_OP_KERNEL && ns)
        in->count = ns;
}

/* Of a COLL, SEND or RECV: software costs it so much; other kinds stay what they are.
 */
static inline void crystal_program_cost(struct crystal_instr *in, uint32_t ns)
{
    if (in->kind == CRYSTAL_OP_COLL || in->kind == CRYSTAL_OP_SEND ||
        in->kind == CRYSTAL_OP_RECV)
        in->cost_ns = ns;
}

/* Is this record issued by the host thread, and so an instruction? */
int crystal_program_is_instr(const struct crystal_op *op);

/* NULL on failure, also where the graph has no iterations for rep. */
struct crystal_program *crystal_program_create(const struct crystal_graph *g,
                                               uint32_t rep, struct crystal_error *err);
/* The same of the records begin .. end, which are one iteration with nothing before it
 * that it could wait for. Kernels are left out where with_kernels is 0. */
struct crystal_program *crystal_program_create_range(const struct crystal_graph *g,
                                                     uint32_t rep, uint64_t begin,
                                                     uint64_t end, int with_kernels,
                                                     struct crystal_error *err);
void crystal_program_destroy(struct crystal_program *p);

#endif
