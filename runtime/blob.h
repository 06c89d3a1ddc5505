/* Bytes with a count of owners, and slices of them. Not thread-safe. */
#ifndef CRYSTAL_BLOB_H
#define CRYSTAL_BLOB_H

#include <stddef.h>
#include <stdint.h>

struct crystal_blob {
    uint32_t refs;
    size_t bytes;
    uint8_t data[];
};

/* One reference for the caller; contents undefined. NULL = out of memory. */
struct crystal_blob *crystal_blob_create(size_t bytes);
struct crystal_blob *crystal_blob_ref(struct crystal_blob *blob);
void crystal_blob_unref(struct crystal_blob *blob); /* NULL is fine */

/* Part of a blob; holds a reference where blob is not NULL. */
struct crystal_slice {
    struct crystal_blob *blob;
    const uint8_t *at;
    size_t bytes;
};

#endif
