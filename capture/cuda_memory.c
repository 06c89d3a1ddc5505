/* See cuda_memory.h. Sizes are kept by address; memory of the driver's own calls
 * (PyTorch's expandable segments) is not seen.
 */
#include "config.h"

#include "capture/cuda_memory.h"

#include "capture/pointer_map.h"
#include "capture/recorder.h"

#include <pthread.h>

static struct {
    pthread_mutex_t lock;
    struct pointer_map sizes;
    uint64_t bytes; /* of all that is allocated */
    int is_recorded;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Lock held, so that records have the order of the calls. */
static void record(uint64_t bytes, int is_free)
{
    if (memory.is_recorded)
        recorder_alloc(recorder_get(), bytes, is_free);
}

void cuda_memory_add(const void *address, size_t bytes)
{
    if (!address || !bytes)
        return;
    (void)pthread_mutex_lock(&memory.lock); /* a plain mutex, never taken twice */
    if (pointer_map_put(&memory.sizes, address, (void *)(uintptr_t)bytes) == 0) {
        memory.bytes += bytes;
        record(bytes, 0);
    } /* else it is left out, as its end will be */
    (void)pthread_mutex_unlock(&memory.lock);
}

void cuda_memory_drop(const void *address)
{
    uintptr_t bytes;

    if (!address)
        return;
    (void)pthread_mutex_lock(&memory.lock);
    bytes = (uintptr_t)pointer_map_take(&memory.sizes, address);
    if (bytes) {
        memory.bytes -= bytes;
        record(bytes, 1);
    }
    (void)pthread_mutex_unlock(&memory.lock);
}

void cuda_memory_begin(void)
{
    (void)pthread_mutex_lock(&memory.lock);
    if (!memory.is_recorded) {
        memory.is_recorded = 1;
        if (memory.bytes)
            record(memory.bytes, 0);
    }
    (void)pthread_mutex_unlock(&memory.lock);
}
