/* See heap.h. */
#include "config.h"

#include "runtime/heap.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST_BYTES ((size_t)64 << 20)
#define APART_BYTES (32 << 20)  /* glibc takes no more */
#define ALWAYS      (1 << 30)   /* never given back */
#define PROBE_BYTES (256 << 10) /* more than the heap has now */

void crystal_heap_prepare(void)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end, first;
    void *volatile probe; /* or the compiler leaves it out */

    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_MMAP_THRESHOLD, APART_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, ALWAYS);
    (void)mallopt(M_TOP_PAD, (int)FIRST_BYTES);
    probe = malloc(PROBE_BYTES); /* makes the heap grow */
    end = (uintptr_t)sbrk(0);
    first = (end - FIRST_BYTES) & ~(page - 1);
    if ((uintptr_t)probe < end &&
        (uintptr_t)probe > first - PROBE_BYTES) /* it is there */
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    free(probe);
}
