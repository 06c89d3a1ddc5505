/* Threads that copy host memory, so that the one that drives the transfers (NCCL has
 * one for all channels of a GPU) does not: one thread moves 5 to 14 GB/s on hosts of
 * GPUs, and a message is copied once into the delay line or the shared memory and once
 * out.
 *
 * They begin with the first copy, look for work for a while after the last one, and
 * then sleep. All functions are thread-safe and wait for no copy.
 */
#ifndef CRYSTAL_NET_COPIERS_H
#define CRYSTAL_NET_COPIERS_H

#include <stdint.h>

#define CRYSTAL_COPIERS_MOST 16U
/* Fewer bytes are sooner copied than given away: two pieces of 16 KiB, of which one
 * takes about 2 us. */
#define CRYSTAL_COPIERS_LEAST 32768U

struct crystal_copiers;

/* So many threads, at most CRYSTAL_COPIERS_MOST; none are started yet. NULL: out of
 * memory. It stays to the process's end. */
struct crystal_copiers *crystal_copiers_create(unsigned threads);
/* How many fit this process: one for each four CPUs that it may run on, at most 4. */
unsigned crystal_copiers_count(void);

/* Starts copying; the returned ticket names the copy. Both places stay until it is
 * done. What cannot be given away is copied at once. */
uint64_t crystal_copiers_copy(struct crystal_copiers *copiers, void *to,
                              const void *from, uint64_t bytes);
/* Whether the copy's bytes are there. */
int crystal_copiers_is_done(struct crystal_copiers *copiers, uint64_t ticket);

#endif
