/* From when to when the communication of a trace with real times took place.
 *
 * The end that a DONE record tells is late where its observer, a thread beside the
 * program's, had to wait for a CPU. The program that waits for the operation is on its
 * way before, so its return counts where it is earlier.
 */
#ifndef CRYSTAL_SPANS_H
#define CRYSTAL_SPANS_H

#include "runtime/error.h"
#include "runtime/op.h"

#include <stdint.h>

/* Of one record; ns since the trace's start. */
struct crystal_span {
    uint64_t begin_ns; /* when its work began: issued, and the stream free */
    uint64_t end_ns;   /* UINT64_MAX: not known, or it is no communication */
};

/* One span for each of op_count records. Caller frees; NULL: no memory. */
struct crystal_span *crystal_spans_find(const struct crystal_op *ops, uint64_t op_count,
                                        struct crystal_error *err);

#endif
