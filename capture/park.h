/* What the park_*.c files share: how they fail, and the connection to the coordinator.
 */
#ifndef CRYSTAL_PARK_H
#define CRYSTAL_PARK_H

#include "capture/entry.h"
#include "capture/park_queue.h"
#include "capture/recorder.h"

#include "runtime/error.h"

/* An event of either kind. */
struct crystal_event {
    uint32_t index; /* in the trace */
    struct park_mark mark;
    struct recorder_poll poll;
};

/* Remembers the sentence for ncclGetLastError, and result for the open group. */
ncclResult_t park_fail(struct crystal_error *err, ncclResult_t result);
#define PARK_FAIL(result, ...) park_fail_with(result, __VA_ARGS__)
ncclResult_t park_fail_with(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The connection, opened on first use. A negative errno with its sentence. */
int park_client_get(struct crystal_client **ret, struct crystal_error *err);

/* What ncclCommInitRank does; crank of nranks. */
ncclResult_t park_comm_init(ncclComm_t *ret_comm, int nranks, const ncclUniqueId *id,
                            int crank);

/* Operator and factor of a message from a ncclRedOp_t. -EINVAL: there is none for this
 * type. */
int park_redop_get(ncclRedOp_t op, ncclDataType_t datatype,
                   struct crystal_msg_op *message);

#endif
