/* Bytes with a count of owners. See blob.h. */
#include "config.h"

#include "runtime/blob.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_BYTES                                                     \
    ((size_t)4 << 20) /* from here on large pages are worth asking for \
                       */
#define PAGE_BYTES 4096U

/* Fewer faults and translations for tensors that are read once; a refusal only costs
 * time. */
static void ask_for_large_pages(unsigned char *data, size_t bytes)
{
    uintptr_t from = ((uintptr_t)data + PAGE_BYTES - 1) & ~(uintptr_t)(PAGE_BYTES - 1);
    size_t skipped = from - (uintptr_t)data;

    (void)madvise(data + skipped, (bytes - skipped) & ~(size_t)(PAGE_BYTES - 1),
                  MADV_HUGEPAGE);
}

struct crystal_blob *crystal_blob_create(size_t bytes)
{
    struct crystal_blob *blob = malloc(sizeof *blob + bytes);

    if (!blob)
        return NULL;
    blob->refs = 1;
    blob->bytes = bytes;
    if (bytes >= HUGE_BYTES)
        ask_for_large_pages(blob->data, bytes);
    return blob;
}

struct crystal_blob *crystal_blob_ref(struct crystal_blob *blob)
{
    if (blob)
        blob->refs++;
    return blob;
}

void crystal_blob_unref(struct crystal_blob *blob)
{
    if (blob && --blob->refs == 0)
        free(blob);
}
