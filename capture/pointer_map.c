/* Open addressing with linear probing; a row that goes closes the gap behind it, so
 * there are no tombstones. See pointer_map.h.
 */
#include "config.h"

#include "capture/pointer_map.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#define ROWS_MIN 64

static size_t home(const struct pointer_map *map, const void *key)
{
    uint64_t bits = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15ULL; /* Fibonacci */

    return (size_t)(bits >> 32) & (map->capacity - 1);
}

/* The row of key, or the free one where it belongs. */
static size_t find(const struct pointer_map *map, const void *key)
{
    size_t at = home(map, key);

    while (map->rows[at].key && map->rows[at].key != key)
        at = (at + 1) & (map->capacity - 1);
    return at;
}

void *pointer_map_get(const struct pointer_map *map, const void *key)
{
    return map->capacity ? map->rows[find(map, key)].value : NULL;
}

static int grow(struct pointer_map *map)
{
    struct pointer_map bigger = {.capacity =
                                     map->capacity ? 2 * map->capacity : ROWS_MIN};

    bigger.rows = calloc(bigger.capacity, sizeof *bigger.rows);
    if (!bigger.rows)
        return -ENOMEM;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->rows[i].key)
            bigger.rows[find(&bigger, map->rows[i].key)] = map->rows[i];
    bigger.count = map->count;
    free(map->rows);
    *map = bigger;
    return 0;
}

int pointer_map_put(struct pointer_map *map, const void *key, void *value)
{
    size_t at;

    if (2 * (map->count + 1) > map->capacity && grow(map))
        return -ENOMEM;
    at = find(map, key);
    if (!map->rows[at].key)
        map->count++;
    map->rows[at].key = key;
    map->rows[at].value = value;
    return 0;
}

void *pointer_map_take(struct pointer_map *map, const void *key)
{
    size_t gap, at, mask = map->capacity - 1;
    void *value;

    if (!map->capacity)
        return NULL;
    gap = find(map, key);
    value = map->rows[gap].value;
    if (!map->rows[gap].key)
        return NULL;
    map->count--;
    for (at = (gap + 1) & mask; map->rows[at].key; at = (at + 1) & mask) {
        /* a row may move into the gap unless its home lies behind the gap */
        if (((at - home(map, map->rows[at].key)) & mask) >= ((at - gap) & mask)) {
            map->rows[gap] = map->rows[at];
            gap = at;
        }
    }
    map->rows[gap].key = NULL;
    map->rows[gap].value = NULL;
    return value;
}
