/* Payload and time of NCCL's PAT algorithm where this process is the only real rank of
 * the communicator (runtime/pat_schedule.h has the messages): a reduce-scatter's chunks
 * carry the contributions of a run of virtual ranks, an all-gather's those of one rank
 * as they are, or in their place this rank's own block.
 *
 * Times: a contribution crosses one hop per set bit of its distance; message m leaves m
 * times s later.
 *
 * Limits: another real rank in the communicator: -ENOTSUP.
 * All functions are thread-safe.
 */
#ifndef CRYSTAL_VIRTUAL_PAT_H
#define CRYSTAL_VIRTUAL_PAT_H

#include "replay/board.h"
#include "runtime/error.h"

#include <stdint.h>

struct crystal_net_comm;
struct crystal_operation;
struct crystal_pats; /* of one communicator at this process */

struct crystal_pat_message {
    struct crystal_operation *op;
    uint32_t channel;
    uint32_t peer; /* crank */
    uint64_t index;
    const struct crystal_board_cell *cells; /* receive: arrivals, NULL: long ago */
};

/* NULL with err set. */
struct crystal_pats *crystal_pats_create(struct crystal_net_comm *comm,
                                         struct crystal_board_comm *entry,
                                         struct crystal_error *err);
void crystal_pats_destroy(struct crystal_pats *pats);

/* A message of this rank, checked against the schedule; its own block is kept. */
int crystal_pats_send(struct crystal_pats *pats, const struct crystal_pat_message *m,
                      const void *data, uint64_t bytes, struct crystal_error *err);

/* Puts the message into data (room bytes). 1: done, *ret_ns is when it is there; 0:
 * this rank's own block is not there yet; negative errno. */
int crystal_pats_take(struct crystal_pats *pats, const struct crystal_pat_message *m,
                      void *data, uint64_t room, uint64_t *ret_bytes, uint64_t *ret_ns,
                      struct crystal_error *err);

/* Operations that are not over, for tests. */
uint32_t crystal_pats_count(struct crystal_pats *pats);

#endif
