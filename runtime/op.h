/* One operation of a rank, as traces and job.graph keep it: 32 bytes.
 *
 * A row of records belongs to one rank, in the order in which its host thread issued
 * them; a record that needs more room is followed by EXT records. Times, unless a kind
 * says otherwise, are ns since the trace's start. Numbers are frozen. This header is
 * part of libcrystal-graph's interface, for C and C++.
 */
#ifndef CRYSTAL_OP_H
#define CRYSTAL_OP_H

#include <stdint.h>

/* Functions of one communication call, in traces, messages, the board and schedules.
 * Frozen numbers. */
enum crystal_func {
    CRYSTAL_FUNC_NONE = 0,
    CRYSTAL_FUNC_BROADCAST = 1,
    CRYSTAL_FUNC_REDUCE = 2,
    CRYSTAL_FUNC_ALLGATHER = 3,
    CRYSTAL_FUNC_REDUCESCATTER = 4,
    CRYSTAL_FUNC_ALLREDUCE = 5,
    CRYSTAL_FUNC_SEND = 6,
    CRYSTAL_FUNC_RECV = 7,
    CRYSTAL_FUNC_ALLTOALL = 8,
    CRYSTAL_FUNC_GATHER = 9,
    CRYSTAL_FUNC_SCATTER = 10,
    CRYSTAL_FUNC_COUNT = 11
};

enum crystal_op_kind {
    CRYSTAL_OP_START = 1,  /* value = CLOCK_MONOTONIC ns, aux = pid */
    CRYSTAL_OP_COMM = 2,   /* a communicator: comm = its index from now on,
                              peer = own crank, value = nranks; EXT records follow:
                              its name (store key of its id), zero-filled */
    CRYSTAL_OP_COLL = 3,   /* func, dtype, comm, stream, aux = redop, peer = root,
                              value = count in elements as the API got it */
    CRYSTAL_OP_SEND = 4,   /* func, dtype, comm, stream, peer = crank, value = count */
    CRYSTAL_OP_RECV = 5,   /* the same */
    CRYSTAL_OP_GROUP = 6,  /* aux = 1 start, 0 end of the outermost ncclGroup */
    CRYSTAL_OP_RECORD = 7, /* event record: peer = event index, stream */
    CRYSTAL_OP_WAIT = 8,   /* host waited for event peer; value = time of return */
    CRYSTAL_OP_SWAIT = 9,  /* stream waits for event peer */
    CRYSTAL_OP_SYNC = 10,  /* host waited for stream; value = time of return */
    CRYSTAL_OP_HINT = 11,  /* where an iteration ends or begins: aux = enum
                              crystal_hint, value = how many have ended so far */
    CRYSTAL_OP_PAYLOAD = 12, /* what this rank contributed to the communication record
                               before it: value = offset in ranks/LRANK.payload body,
                               peer = bytes */
    CRYSTAL_OP_DONE = 13,   /* communication finished: peer = record index, value = when
                               its work began (ns), t_ns = when it ended */
    CRYSTAL_OP_FREE = 14,   /* communicator comm is gone */
    CRYSTAL_OP_ALLOC = 15,  /* value = bytes; aux = 1 for free */
    CRYSTAL_OP_LOST = 16,   /* value = records lost before this one */
    CRYSTAL_OP_END = 17,    /* aux = 0 program ended, 1 stopped at its iterations;
                               value = peak resident memory in bytes */
    CRYSTAL_OP_KERNEL = 18, /* work of the device: stream, value = its duration in ns,
                               aux = 0 or 1 + the offset of its name among the graph's
                               names. In job.graph from version 2 on */
    CRYSTAL_OP_WORK = 19,   /* in traces of version 2: work of the device on stream that
                               was issued behind record peer and before the host's next
                               one: func = enum crystal_work, aux = how many kernels or
                               copies, value = their durations' sum in ns, t_ns = when
                               that was known. Several of the same add up. Readers put
                               KERNEL records in their place (runtime/trace_work.h) */
    CRYSTAL_OP_EXT = 127    /* 31 bytes of data that belong to the record before */
};

/* Who says it in a HINT. Traces of before have 0 there. */
enum crystal_hint {
    CRYSTAL_HINT_STEP = 0,  /* the program, by crystal_iteration_hint: one has ended */
    CRYSTAL_HINT_RANGE = 1, /* the NVTX range of capture.iteration_range begins, and
                               with it an iteration */
    CRYSTAL_HINT_HIDDEN = 2 /* no iteration: such ranges go to another tool in this
                               process, so there will be none of them */
};

/* What a WORK record sums up. */
enum crystal_work {
    CRYSTAL_WORK_KERNEL = 0,
    CRYSTAL_WORK_COPY = 1, /* by the program */
    CRYSTAL_WORK_MEMSET = 2,
    CRYSTAL_WORK_OWN = 3, /* copies of the recorder's own, part of no computation */
    CRYSTAL_WORK_COUNT = 4
};

struct crystal_op {
    uint8_t kind;    /* enum crystal_op_kind */
    uint8_t func;    /* enum crystal_func */
    uint8_t dtype;   /* ncclDataType_t */
    uint8_t flags;   /* CRYSTAL_OP_FLAG_* */
    uint16_t stream; /* index in order of first use, 0 = null stream */
    uint16_t comm;   /* index of the COMM record, in order */
    uint32_t aux;    /* by kind */
    uint32_t peer;   /* by kind */
    uint64_t value;  /* by kind */
    uint64_t t_ns;   /* time of issue, see above */
};

struct crystal_op_ext {
    uint8_t kind;
    uint8_t data[31];
};

/* A day: no work and no pause of a record is longer; what exceeds it is a broken file,
 * and must not overflow sums. */
#define CRYSTAL_OP_NS_MAX UINT64_C(86400000000000)

/* When the host went on behind a record: where it has waited, when that returned. */
static inline uint64_t crystal_op_end_ns(const struct crystal_op *op)
{
    const int blocks = op->kind == CRYSTAL_OP_WAIT || op->kind == CRYSTAL_OP_SYNC;

    return blocks && op->value > op->t_ns ? op->value : op->t_ns;
}

/* Whether a record is of a collective of no elements. NCCL leaves it out (2.28.9,
 * taskAppend): nothing is put into a stream, and nobody waits for anybody. Messages of
 * no bytes it does send. */
static inline int crystal_op_is_empty(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL && !op->value;
}

#define CRYSTAL_OP_FLAG_IN_PLACE 0x01
#define CRYSTAL_OP_FLAG_BARRIER  0x02 /* contents do not matter (hint of the caller) */

/* How the library did a COLL, where that is known: two more parts of its flags. In
 * job.graph of version 4 only. */
enum crystal_op_algo {
    CRYSTAL_OP_ALGO_UNKNOWN = 0,
    CRYSTAL_OP_ALGO_RING = 1,
    CRYSTAL_OP_ALGO_TREE = 2,
    CRYSTAL_OP_ALGO_PAT = 3
};
enum crystal_op_proto {
    CRYSTAL_OP_PROTO_UNKNOWN = 0,
    CRYSTAL_OP_PROTO_SIMPLE = 1,
    CRYSTAL_OP_PROTO_LL = 2,
    CRYSTAL_OP_PROTO_LL128 = 3
};
#define CRYSTAL_OP_WAY(algo, proto) ((uint8_t)((algo) << 2 | (proto) << 4))
#define CRYSTAL_OP_WAY_MASK         0x3cU
#define CRYSTAL_OP_ALGO(flags)      ((flags) >> 2 & 3U)
#define CRYSTAL_OP_PROTO(flags)     ((flags) >> 4 & 3U)

#endif
