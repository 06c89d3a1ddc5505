/* The roll of a sandbox node: which of its processes is which rank of which
 * communicator, and whose end a rank has seen. By it the node's agent tells the rank
 * that began a failure from those that died of it: a process closes its connections
 * before it has ended, so its neighbours may be seen to end first.
 *
 * A file "roll" of mode 0600 in the board's directory, made by the agent. Whoever hosts
 * a rank's connections (the net plugin, hostccl) appends records, each with one write;
 * best effort, in vain where the agent or the room for it is gone. Times are
 * CLOCK_MONOTONIC ns of the node. Frozen: version 1.
 */
#ifndef CRYSTAL_ROLL_H
#define CRYSTAL_ROLL_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_ROLL_MAGIC 0x314c4c52U /* "RLL1": the version is in it */

enum crystal_roll_kind {
    CRYSTAL_ROLL_JOINED = 1, /* the process is `crank` of the communicator */
    CRYSTAL_ROLL_PARTED = 2, /* it has seen the end of `crank` while it needed it */
    CRYSTAL_ROLL_WAITS = 3,  /* a transfer with `crank` has not moved for 3 s */
    CRYSTAL_ROLL_WENT_ON = 4 /* it has, and no other with `crank` waits so */
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

/* The rank whose end began that of lrank, as far as this node knows: lrank saw the end
 * of one, that one the end of another before, and so on. Where it saw none (others may
 * have stopped the job), the rank whose end was seen before all others; lrank itself
 * where nobody saw any. Reads what was written since. */
uint32_t crystal_roll_cause(struct crystal_roll *roll, uint32_t lrank);
/* Whether a rank has seen the end of one that no process of this node is: another
 * node's agent may know why. Reads what was written since. */
int crystal_roll_saw_stranger(struct crystal_roll *roll);

#endif
