/* When CUDA's events were reached, on the host's clock. CUDA tells the time between two
 * events. So an event of our own is recorded on an idle stream now and then, and looked
 * at until it is done: between two looks, some microseconds apart. Times of others
 * follow from the last two such marks, whose distance on both clocks tells the device's
 * pace. CUDA tells milliseconds as a float: to 0.03 us while marks are renewed at least
 * every 400 ms, and to 0.5 us by its manual.
 *
 * One GPU per process. All functions but the first are thread-safe.
 */
#ifndef CRYSTAL_CUDA_CLOCK_H
#define CRYSTAL_CUDA_CLOCK_H

#include "capture/cuda_api.h"

#include <stdint.h>

/* On the calling thread's GPU; takes some 10 us. 0, or a cudaError_t: there are no
 * times. Kept until the process ends. */
int cuda_clock_open(void);
/* Makes a mark where the last one is older than 100 ms; on a thread whose GPU is that
 * of open and that may leave errors behind (cudaGetLastError). */
void cuda_clock_renew(void);
/* *ret_ns, CLOCK_MONOTONIC, where the event's last mark was reached; CUDA_NOT_READY, or
 * what else CUDA says. */
int cuda_clock_time(cuda_event_handle event, uint64_t *ret_ns);

#endif
