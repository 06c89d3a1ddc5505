/* Colours and names of children of a communicator. See split_groups.h. */
#include "config.h"

#include "replay/split_groups.h"

#include "replay/board.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHILD_NAME_MAX                                            \
    111U /* what fits an id behind 16 bytes: capture/park_split.c \
          */

/* The hash of a tuple of small integers, which are their own hashes (CPython since 3.8,
 * Objects/tupleobject.c: xxHash's rounds of one lane). */
static int64_t tuple_hash(uint32_t count, const uint32_t *ranks)
{
    static const uint64_t prime_1 = UINT64_C(11400714785074694791);
    static const uint64_t prime_2 = UINT64_C(14029467366897019727);
    static const uint64_t prime_5 = UINT64_C(2870177450012600261);
    uint64_t hash = prime_5;

    for (uint32_t i = 0; i < count; i++) {
        hash += ranks[i] * prime_2;
        hash = hash << 31 | hash >> 33;
        hash *= prime_1;
    }
    hash += count ^ (prime_5 ^ UINT64_C(3527539));
    return hash == UINT64_MAX ? 1546275796 : (int64_t)hash;
}

int32_t split_color_python(uint32_t count, const uint32_t *ranks)
{
    int64_t hash = tuple_hash(count, ranks);
    uint64_t size = hash < 0 ? -(uint64_t)hash : (uint64_t)hash;

    return (int32_t)(size % (UINT64_C(1) << 31));
}

int32_t split_color_c10(uint32_t count, const uint32_t *ranks)
{
    uint64_t hash = 0;
    int64_t value;

    for (uint32_t i = 0; i < count; i++)
        hash ^= ranks[i] + UINT64_C(0x9e3779b9) + (hash << 6) + (hash >> 2);
    value = (int64_t)hash;
    return (int32_t)((value < 0 ? -(uint64_t)value : (uint64_t)value) % INT_MAX);
}

void split_child_name(const char *parent, int is_shrink, uint32_t child, int32_t color,
                      char *text)
{
    char suffix[48], whole[CRYSTAL_BOARD_NAME + sizeof suffix];
    size_t length;

    if (is_shrink)
        (void)snprintf(suffix, sizeof suffix, "/shrink%u", child);
    else
        (void)snprintf(suffix, sizeof suffix, "/split%u:%d", child, color);
    (void)snprintf(whole, sizeof whole, "%.*s%s", CRYSTAL_BOARD_NAME - 1, parent,
                   suffix);
    length = strlen(whole);
    (void)snprintf(text, CRYSTAL_BOARD_NAME, "%s",
                   whole + (length > CHILD_NAME_MAX ? length - CHILD_NAME_MAX : 0));
}
