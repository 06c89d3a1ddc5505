/* From a foreign handle (communicator, stream, event of another library) to what we
 * know of it. Not thread-safe. Memory is allocated in put alone.
 */
#ifndef CRYSTAL_POINTER_MAP_H
#define CRYSTAL_POINTER_MAP_H

#include <stddef.h>

struct pointer_map {
    struct pointer_map_row {
        const void *key; /* NULL: free */
        void *value;     /* not owned */
    } * rows;            /* owned; a power of two, at most half full */
    size_t capacity, count;
};

/* The value of key, or NULL. */
void *pointer_map_get(const struct pointer_map *map, const void *key);
/* Adds or replaces; -ENOMEM. key and value are not NULL. */
int pointer_map_put(struct pointer_map *map, const void *key, void *value);
/* Removes key and returns its value, or NULL. */
void *pointer_map_take(struct pointer_map *map, const void *key);

#endif
