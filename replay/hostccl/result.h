/* Results of the NCCL API: every failure leaves one sentence, which ncclGetLastError
 * returns to the thread that asks. Thread-safe.
 */
#ifndef CRYSTAL_HOSTCCL_RESULT_H
#define CRYSTAL_HOSTCCL_RESULT_H

#include "runtime/error.h"
#include "runtime/nccl_abi.h"

/* Keeps the sentence as the last one of the process and returns result. */
ncclResult_t hostccl_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same for an error of ours: connections that break are ncclRemoteError, wrong
 * arguments ncclInvalidArgument, anything else ncclSystemError. */
ncclResult_t hostccl_fail_error(const struct crystal_error *err);

/* The sentence of the last failure; borrowed by this thread until its next call. */
const char *hostccl_last_error(void);
/* The lock of that sentence, for fork.c. */
void hostccl_result_lock(void);
void hostccl_result_unlock(void);

const char *hostccl_result_text(ncclResult_t result);

#endif
