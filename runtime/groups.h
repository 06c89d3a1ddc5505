/* The program's process groups by name, as contrib/pytorch publishes them: logical
 * ranks by crank. The world's group, "0", is known from the start. Not thread-safe. */
#ifndef CRYSTAL_GROUPS_H
#define CRYSTAL_GROUPS_H

#include "runtime/error.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_group {
    char *name;        /* owned, as members */
    uint32_t *members; /* distinct */
    uint32_t count;
};

struct crystal_groups;

/* lrank_count: size of the job. NULL = out of memory. */
struct crystal_groups *crystal_groups_create(uint32_t lrank_count);
void crystal_groups_destroy(struct crystal_groups *groups);

/* text: a rank list, "0-7" or "0,8,16" (not terminated). 1 = a new group, 0 = known
 * with these members, negative = no such list, or the group has other members. */
int crystal_groups_set(struct crystal_groups *groups, const char *name,
                       size_t name_bytes, const char *text, size_t text_bytes,
                       struct crystal_error *err);
/* NULL where it is not known; borrowed until destroy. */
const struct crystal_group *crystal_groups_get(const struct crystal_groups *groups,
                                               const char *name, size_t name_bytes);

#endif
