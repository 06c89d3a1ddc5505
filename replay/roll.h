/* The roll of a sandbox node: which of its processes is which rank of which
 * communicator, and whose end a rank has seen. By it the node's agent tells the rank
 * that began a failure from those that died of it: a process closes its connections
 * before it has ended, so its neighbours may be seen to end first.
 *
 * A file "roll" of mode 0600 in the board's directory, made by the agent. Whoever hosts
 * a rank's connections (the net plugin, hostccl) appends records, each with one write;
 * best effort, in vain where the agent or the room for it is gone. Times are
 * CLOCK_MONOTONIC ns of the node. Frozen: version 1; a reader skips kinds that it does
 * not know.
 */
#ifndef CRYSTAL_ROLL_H
#define CRYSTAL_ROLL_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_ROLL_MAGIC 0x314c4c52U /* "RLL1": the version is in it */

enum crystal_roll_kind {
    CRYSTAL_ROLL_JOINED = 1,  /* the process is `crank` of the communicator */
    CRYSTAL_ROLL_PARTED = 2,  /* it has seen the end of `crank` while it needed it */
    CRYSTAL_ROLL_WAITS = 3,   /* a transfer with `crank` has not moved for 3 s */
    CRYSTAL_ROLL_WENT_ON = 4, /* it has, and no other with `crank` waits so */
    CRYSTAL_ROLL_STOPPED = 5 /* it has seen that the job is stopped (board.h: abort), or
                                stops it; comm_id and crank are 0 */
};

struct crystal_roll_record {
    uint32_t magic;
    uint32_t kind;  /* enum crystal_roll_kind */
    uint32_t lrank; /* whose process writes */
    uint32_t pid;
    uint64_t comm_id; /* NCCL's commHash */
    uint32_t crank;
    uint32_t zero;
    uint64_t time_ns;
};
_Static_assert(sizeof(struct crystal_roll_record) == 40, "frozen");

/* A rank: appends a record about itself, crank of comm_id, to the roll in directory. */
void crystal_roll_write(const char *directory, enum crystal_roll_kind kind,
                        uint32_t lrank, uint64_t comm_id, uint32_t crank);

/* The agent's: what has been read. One thread. */
struct crystal_roll;

/* Makes directory/roll. NULL on failure; the caller destroys. */
struct crystal_roll *crystal_roll_create(const char *directory,
                                         struct crystal_error *err);
void crystal_roll_destroy(struct crystal_roll *roll); /* NULL is fine */

/* All records, those written since the last call included; valid until the next call
 * with this roll. */
const struct crystal_roll_record *crystal_roll_records(struct crystal_roll *roll,
                                                       uint32_t *ret_count);
/* 1: a process has joined a communicator as this rank. Reads what was written since. */
int crystal_roll_has_joined(struct crystal_roll *roll, uint32_t lrank);
/* The rank that has joined comm_id as crank, UINT32_MAX if none of this node has. */
uint32_t crystal_roll_member(const struct crystal_roll *roll, uint64_t comm_id,
                             uint32_t crank);

/* What began the ends that ranks have seen. A rank that saw another one end, or the job
 * stopped, before it was itself seen to end, died of that; so on from one to the next.
 */
enum crystal_roll_first {
    CRYSTAL_FIRST_NONE = 0, /* nobody has seen anything */
    CRYSTAL_FIRST_RANK,     /* lrank ended, and has seen nothing before */
    CRYSTAL_FIRST_STRANGER, /* one that no process of this node is: another node's
                               agent may know it */
    CRYSTAL_FIRST_STOP      /* the job was stopped: whoever did that says why */
};
struct crystal_roll_cause {
    enum crystal_roll_first first;
    uint32_t lrank; /* RANK only, else UINT32_MAX */
};
/* A rank of this node where one is known, else what the first record of all led to.
 * Reads what was written since. */
struct crystal_roll_cause crystal_roll_cause(struct crystal_roll *roll);
/* 1: this rank has seen another's end or the job stopped, or stopped it. Reads what was
 * written since.
 */
int crystal_roll_has_seen(struct crystal_roll *roll, uint32_t lrank);

#endif
