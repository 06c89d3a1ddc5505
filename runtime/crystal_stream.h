/* Streams and events on host memory: what a program needs beside nccl.h, which has no
 * wait. Implemented by libcrystal-hostccl.so (work really runs) and libcrystal-nccl.so
 * (capture: an event wait is where a rank is parked). A frozen seam, C ABI, version in
 * every name's library: crystal_stream_abi_version() returns CRYSTAL_STREAM_ABI.
 *
 * Meaning is CUDA's. Work given to one stream runs in order. crystal_event_record marks
 * the present end of a stream; crystal_stream_wait_event makes later work of a stream
 * wait for that mark; the host waits with crystal_event_synchronize. An event that was
 * never recorded counts as complete. All functions are thread-safe and return an
 * ncclResult_t; an error of a communicator whose work stands before the mark is
 * returned by the waits and by crystal_event_query.
 */
#ifndef CRYSTAL_STREAM_H
#define CRYSTAL_STREAM_H

#include "runtime/nccl_abi.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CRYSTAL_STREAM_ABI 1

typedef struct crystal_event *crystal_event_t;

int crystal_stream_abi_version(void);

/* A stream passes as ncclStream_t to the nccl calls. The null stream is one too; it is
 * an ordinary stream of the process. Destroying waits for nothing: work goes on. */
ncclResult_t crystal_stream_create(ncclStream_t *ret_stream);
ncclResult_t crystal_stream_destroy(ncclStream_t stream);
ncclResult_t crystal_stream_synchronize(ncclStream_t stream); /* host waits */
ncclResult_t crystal_stream_query(ncclStream_t stream); /* ncclInProgress or done */
ncclResult_t crystal_stream_wait_event(ncclStream_t stream, crystal_event_t event);

ncclResult_t crystal_event_create(crystal_event_t *ret_event);
ncclResult_t crystal_event_destroy(crystal_event_t event);
ncclResult_t crystal_event_record(crystal_event_t event, ncclStream_t stream);
ncclResult_t crystal_event_synchronize(crystal_event_t event); /* host waits */
ncclResult_t crystal_event_query(crystal_event_t event); /* ncclInProgress or done */

/* When the event's last mark was reached, CLOCK_MONOTONIC ns: ncclInProgress before,
 * ncclInvalidUsage where it was never recorded; *ret_ns is written on success only.
 * Optional, to be looked up by name: libcrystal-hostccl.so has it, the recorder, whose
 * own need it is, does not. It came after the others, which need not change for it. */
ncclResult_t crystal_event_time(crystal_event_t event, uint64_t *ret_ns);

/* The program reached the end of a training iteration (from the PyTorch hook on
 * optimizer steps). A hint: hostccl ignores it, the recorder writes it down and, where
 * the stage has seen its iterations, ends the process with success from here. */
void crystal_iteration_hint(void);

#ifdef __cplusplus
}
#endif

#endif
