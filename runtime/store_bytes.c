/* See store_state.h. */
#include "config.h"

#include "runtime/store_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES ((size_t)64 << 10) /* a drained buffer above this is freed */

int store_bytes_reserve(struct store_bytes *b, size_t more)
{
    size_t have = b->end - b->begin, capacity = b->capacity ? b->capacity : 256;
    uint8_t *data;

    if (b->capacity - b->end >= more)
        return 0;
    if (b->begin) {
        memmove(b->data, b->data + b->begin, have);
        b->begin = 0;
        b->end = have;
        if (b->capacity - have >= more)
            return 0;
    }
    while (capacity - have < more)
        capacity *= 2;
    data = realloc(b->data, capacity);
    if (!data)
        return -ENOMEM;
    b->data = data;
    b->capacity = capacity;
    return 0;
}

int store_bytes_append(struct store_bytes *b, const void *data, size_t count)
{
    if (store_bytes_reserve(b, count) < 0)
        return -ENOMEM;
    if (count)
        memcpy(b->data + b->end, data, count);
    b->end += count;
    return 0;
}

void store_bytes_consume(struct store_bytes *b, size_t count)
{
    b->begin += count;
    if (b->begin < b->end)
        return;
    b->begin = b->end = 0;
    if (b->capacity > KEEP_BYTES) {
        free(b->data);
        b->data = NULL;
        b->capacity = 0;
    }
}
