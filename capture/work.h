/* Work of the device in the trace: kernels, copies and memsets as CUPTI tells of them,
 * summed up by stream between two records of the host (CRYSTAL_OP_WORK).
 *
 * CUPTI numbers every call of CUDA in the order of issue; a kernel's record has its
 * launch's number. At each record of the host one cheap call is made of which CUPTI
 * tells the number: work that was put into a stream between two records lies between
 * their numbers, by whatever library and thread it was launched. Work counts where its
 * stream is one that the trace names; NCCL's own kernels do not, their operations have
 * records. With kernels that overlap on one stream (programmatic launch) sums are too
 * long by the overlap; what the device idles between two kernels is not in them.
 *
 * One per process. CUPTI has one subscriber: with CRYSTAL_CUPTI=off it is left to the
 * program's own profiler, and there is no WORK.
 */
#ifndef CRYSTAL_WORK_H
#define CRYSTAL_WORK_H

#include <stdint.h>

/* From now on, once; what is missing is logged. is_shared: the device may be busy with
 * what waits for others, so the end does not wait for it. The calling thread has a CUDA
 * context. */
void work_start(int is_shared);
/* CUDA's stream has this index in the trace. Thread-safe. */
void work_stream(void *handle, uint16_t index);
/* Copies that the calling thread makes in between are the recorder's own. One thread at
 * a time. */
void work_own_begin(void);
void work_own_end(void);

#endif
