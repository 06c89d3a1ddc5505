/* What the program allocates on the device with cudaMalloc: kept from the process's
 * beginning, written down from its first communicator on, where one record has what
 * there was before. Thread-safe.
 */
#ifndef CRYSTAL_CUDA_MEMORY_H
#define CRYSTAL_CUDA_MEMORY_H

#include <stddef.h>

void cuda_memory_add(const void *memory, size_t bytes);
void cuda_memory_drop(const void *memory);
/* Once: the first communicator is made. */
void cuda_memory_begin(void);

#endif
