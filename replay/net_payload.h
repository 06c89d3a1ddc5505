/* What virtual ranks put into an operation: recorded contributions or stand-ins.
 *
 * Integers steer control flow, so they come from the recording of that operation.
 * Behind the recorded iterations they come from the same operation of the last one
 * where all recorded iterations had the same bytes; where they differed the job stops,
 * or, with CRYSTAL_REPEAT=last, they come from the last one all the same.
 * Only what reaches a real rank is asked for: a broadcast from a real root, or a
 * reduction to a virtual one, needs no recording. Without a recording (immediate mode)
 * and for floating point there are stand-ins: a reduction gets the operation's neutral
 * element.
 */
#ifndef CRYSTAL_NET_PAYLOAD_H
#define CRYSTAL_NET_PAYLOAD_H

#include "replay/board.h"
#include "replay/net_ops.h"
#include "replay/net_records.h"
#include "runtime/error.h"

#include <stdint.h>

struct crystal_net_comm;
struct crystal_recipe;

/* Finds the communicator's recorded collectives. Borrowed entry; fini frees. */
int crystal_payload_init(struct crystal_net_comm *comm,
                         struct crystal_board_comm *entry, struct crystal_error *err);
void crystal_payload_fini(struct crystal_net_comm *comm);

/* Finds out what call the operation is or belongs to, where the graph says it: sets its
 * api_func, graph_seq and has_call. -ENOMEM. */
int crystal_payload_call(struct crystal_operation *op, struct crystal_error *err);

/* Whether the contents of the operation's messages matter to virtual ranks and from
 * them: not those of floating point where CRYSTAL_VALUES=off. */
int crystal_payload_is_valued(const struct crystal_operation *op);

/* How one collective is answered. */
struct crystal_payload_plan {
    int is_recorded; /* integers, from the recording: they must be there */
    int is_bulk;     /* floats, from the recording where they are there */
    const struct crystal_op *record; /* own; borrowed, NULL: none */
    int is_unneeded;                 /* contents do not matter: zeros, not counted */
    uint32_t dtype;                  /* of the API call */
    uint32_t redop;                  /* ncclRedOp_t */
    struct crystal_record_at at;
};
/* -EINVAL with a sentence where the program calls another function than recorded. */
int crystal_payload_plan(struct crystal_operation *op, struct crystal_payload_plan *ret,
                         struct crystal_error *err);

/* bytes of crank's contribution from offset on; borrowed. -ENODATA with a sentence that
 * names communicator, operation and iteration where there are none to take. */
int crystal_payload_get(struct crystal_operation *op,
                        const struct crystal_payload_plan *plan, uint32_t crank,
                        uint64_t offset, uint64_t bytes, const void **ret,
                        struct crystal_error *err);

/* A reduction's data while contributions are added. data may hold a partial result
 * already (is_started). */
struct crystal_payload_sum {
    struct crystal_operation *op;
    const struct crystal_payload_plan *plan;
    void *data;
    uint32_t elts;
    int is_started;
    int is_missing;                /* a contribution was not recorded */
    struct crystal_recipe *recipe; /* is told of what is added; NULL: nobody asks */
};
/* Adds crank's contribution from offset (bytes) on. */
int crystal_payload_add(struct crystal_payload_sum *sum, uint32_t crank,
                        uint64_t offset, struct crystal_error *err);
/* All were added: the neutral element where there was nothing; counts stand-ins. */
void crystal_payload_end(struct crystal_payload_sum *sum);
/* The sum is complete: an average of integers is divided now. */
void crystal_payload_complete(struct crystal_payload_sum *sum);

/* What stands in for crank's contribution to a broadcast whose contents were not
 * recorded: the first one of its shape. 1: *ret is set, 0: there is none. */
int crystal_payload_first(struct crystal_operation *op,
                          const struct crystal_payload_plan *plan, uint32_t crank,
                          uint64_t offset, uint64_t bytes, const void **ret);

/* The same for a virtual rank's transfer to this process: 1 recorded, 2 *ret stands in
 * (the first payload of its shape), 0 zeros are to stand in. */
int crystal_payload_p2p(struct crystal_operation *op, uint64_t offset, uint64_t bytes,
                        const void **ret, struct crystal_error *err);

/* Whether those bytes are zeros. */
int crystal_payload_neutral_is_zero(uint32_t dtype, uint32_t redop);
/* Fills elements that change nothing when they are reduced. */
void crystal_payload_neutral(void *data, uint64_t bytes, uint32_t dtype,
                             uint32_t redop);

#endif
