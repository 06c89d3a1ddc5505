/* Plan on a GPU: the program's own NCCL and CUDA runtime below the recorder. The object
 * stands before both under LD_PRELOAD (capture/cuda_entry.c), as in capture, but every
 * call goes straight through; events and waits of threads that issue work are written
 * down, and events with times stand around each communication call (pass_done.h).
 *
 * Watched from the first communicator on. All functions but the first are thread-safe.
 */
#ifndef CRYSTAL_PASS_CUDA_H
#define CRYSTAL_PASS_CUDA_H

#include "capture/cuda_api.h"
#include "runtime/error.h"

#include <stdint.h>

/* Sets pass.host and pass.done to CUDA's. -ENOTSUP with a sentence where the program
 * has CUDA's runtime inside. Before the first communicator. */
int pass_cuda_open(struct crystal_error *err);
/* The first communicator was made: what follows is watched. Nothing where
 * pass_cuda_open was not called. */
void pass_cuda_activate(void);
/* On the recorder's own thread: before it asks for times. Nothing where
 * pass_cuda_activate was not called. */
void pass_cuda_renew(void);
/* Whether calls of this thread are to be written down; makes it an issuing one where
 * it issues. */
int pass_cuda_is_watched(int issues);

/* CUDA's functions, written down; they return a cudaError_t. */
int pass_cuda_stream_synchronize(cuda_stream stream);
int pass_cuda_stream_query(cuda_stream stream);
int pass_cuda_stream_wait_event(cuda_stream stream, cuda_event_handle event);
int pass_cuda_stream_destroy(cuda_stream stream);
int pass_cuda_device_synchronize(void);
int pass_cuda_event_record(cuda_event_handle event, cuda_stream stream);
int pass_cuda_event_synchronize(cuda_event_handle event);
int pass_cuda_event_query(cuda_event_handle event);
int pass_cuda_event_destroy(cuda_event_handle event);
/* A copy on the null stream for which the host has waited since from_ns. */
void pass_cuda_copied(uint64_t from_ns);

#endif
