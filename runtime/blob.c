/* Bytes with a count of owners. See blob.h. */
#include "config.h"

#include "runtime/blob.h"

#include <stdlib.h>

struct crystal_blob *crystal_blob_create(size_t bytes)
{
    struct crystal_blob *blob = malloc(sizeof *blob + bytes);

    if (!blob)
        return NULL;
    blob->refs = 1;
    blob->bytes = bytes;
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
