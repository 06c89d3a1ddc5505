/* The recorded contributions of one communicator's virtual ranks, as a sandbox rank
 * looks them up: by the number of a collective, or of a transfer of a pair.
 *
 * What lies behind the recording has the number of the same operation in the last
 * recorded iteration, and counts as recorded only where the bytes were the same in all
 * recorded iterations, of which there must be two, or where it is asked for that they
 * are repeated whatever they were. Thread-safe.
 */
#ifndef CRYSTAL_NET_RECORDS_H
#define CRYSTAL_NET_RECORDS_H

#include "replay/comm_calls.h"
#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdint.h>

struct crystal_records;

/* Of communicator graph_comm of g, seen from lrank, which is a member; g is borrowed.
 * NULL with err set where memory runs out. */
struct crystal_records *crystal_records_create(const struct crystal_graph *g,
                                               uint32_t graph_comm, uint32_t lrank,
                                               struct crystal_error *err);
void crystal_records_destroy(struct crystal_records *r);

/* A number of an operation, in the recording. */
struct crystal_record_at {
    uint64_t seq;    /* in the recording */
    uint64_t asked;  /* as the program counts */
    uint64_t period; /* operations per iteration; 0: not part of the iterations */
    uint64_t first;  /* operations before the first iteration */
    uint32_t pair;   /* transfers: their sender; UINT32_MAX: a collective */
    int is_repeated; /* seq is not asked */
};

/* What this rank calls when the library starts its nth collective that is not made of
 * messages, or its nth message to or from peer, from 0 (what). 1: ret is set; 0: that
 * is in no recording; -ENOMEM. */
int crystal_records_call(struct crystal_records *r, enum crystal_calls_what what,
                         uint32_t peer, uint64_t nth, struct crystal_calls_found *ret);

/* This rank's own record of collective `seq`, or of the one that it repeats. NULL where
 * there is none; ret is filled in any case. */
const struct crystal_op *crystal_records_coll(struct crystal_records *r, uint64_t seq,
                                              struct crystal_record_at *ret);
/* Number `seq` of the sends of crank `from` to this rank. -ENOMEM. */
int crystal_records_transfer(struct crystal_records *r, uint32_t from, uint64_t seq,
                             struct crystal_record_at *ret);

/* What crank put in (of a transfer: its sender), bytes from offset on; borrowed.
 *   1        kept, *ret is set
 *   2        kept, but of the last recorded iteration, from which others differ;
 *            only where repeats_last
 *   0        recorded, but not kept
 *   -EBADMSG kept, but only *ret_have bytes
 *   -ESTALE  not recorded, and the recorded iterations differ from each other
 *   -ERANGE  not recorded, nor anything that it could repeat */
int crystal_records_find(struct crystal_records *r, const struct crystal_record_at *at,
                         uint32_t crank, uint64_t offset, uint64_t bytes,
                         int repeats_last, const void **ret, uint64_t *ret_have);

/* The first contribution of its shape that was kept: of crank to collectives with the
 * function, datatype, root and count of own record `op`;
 * to transfers from crank of `bytes` bytes where op is NULL. 1: *ret (borrowed) and
 * *ret_have are set; 0: none was kept. */
int crystal_records_first(struct crystal_records *r, const struct crystal_op *op,
                          uint32_t crank, uint64_t bytes, const void **ret,
                          uint64_t *ret_have);

/* How many iterations were recorded, and in which of them (from 0) `at` lies. */
uint32_t crystal_records_iterations(const struct crystal_records *r);
uint64_t crystal_records_iteration(const struct crystal_record_at *at);

#endif
