/* Copies between this process's memory and NCCL's buffers on a GPU.
 *
 * NCCL's kernel waits on the GPU for what a copy brings. A program may call cudaFree
 * meanwhile, which waits for the kernel and holds the lock of its CUDA context as long:
 * a copy that is issued in that context then waits for the kernel that waits for it
 * (measured on an H200, driver 580: cudaMemcpyAsync, cudaEventQuery, everything on a
 * stream; cudaDeviceSynchronize and cudaMalloc hold nothing). So copies are issued in a
 * context of our own, which costs 325 MiB of the GPU's memory, and go only to memory
 * that belongs to no context: that of cuMemCreate, which NCCL's buffers are unless
 * NCCL_CUMEM_ENABLE=0. Such copies went through in 0.2 ms while the program's cudaFree
 * waited.
 *
 * libcuda is opened when the first such buffer comes, by the calling thread, whose
 * current context tells the GPU. One GPU per process. Copies of one direction are done
 * in the order of their start. All functions are thread-safe and wait for no copy.
 */
#ifndef CRYSTAL_NET_DEVICE_H
#define CRYSTAL_NET_DEVICE_H

#include "replay/net_room.h"
#include "runtime/error.h"

#include <stdint.h>

struct crystal_device;

/* What a copy costs from its start to when the GPU sees its bytes (measured as above:
 * 7 us for 4 KiB, of which 2 are the issue). */
#define CRYSTAL_DEVICE_LATENCY_NS   5000U
#define CRYSTAL_DEVICE_BYTES_PER_NS 40U

/* The process's; made at the first call. NULL with err set where there is no GPU, or
 * where the current context is of another one. */
struct crystal_device *crystal_device_get(struct crystal_error *err);

/* Whether buffer is memory that may be copied to at any time; -ENOTSUP with err set. */
int crystal_device_check(struct crystal_device *device, const void *buffer,
                         struct crystal_error *err);

/* Room that the GPU copies from and to by itself. */
struct crystal_rooms *crystal_device_rooms(struct crystal_device *device);

/* Makes other memory known to the GPU, soon: 1, or 0 where limits.pinned_bytes does not
 * let it; and unknown again, which waits for that. memory is aligned to pages, unpin's
 * what pin was given and has taken. */
int crystal_device_pin(struct crystal_device *device, void *memory, uint64_t bytes);
void crystal_device_unpin(struct crystal_device *device, void *memory, uint64_t bytes);

/* Start copying to the GPU and from it. *ret_ticket names the copy. An odd number of
 * bytes to the GPU may be copied with the next one behind them, at both ends. -EIO. */
int crystal_device_put(struct crystal_device *device, void *buffer, const void *from,
                       uint64_t bytes, uint64_t *ret_ticket, struct crystal_error *err);
int crystal_device_fetch(struct crystal_device *device, void *to, const void *buffer,
                         uint64_t bytes, uint64_t *ret_ticket,
                         struct crystal_error *err);
/* Words of 8 bytes from `from` to every `pitch` bytes of buffer. */
int crystal_device_put_words(struct crystal_device *device, void *buffer,
                             uint64_t pitch, const void *from, uint64_t words,
                             uint64_t *ret_ticket, struct crystal_error *err);

/* 1 the copy is done, 0 not yet, -EIO. */
int crystal_device_is_done(struct crystal_device *device, uint64_t ticket,
                           struct crystal_error *err);

#endif
