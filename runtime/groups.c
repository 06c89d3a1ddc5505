/* The program's process groups by name. See groups.h. A chained hash table: a rank of a
 * large job makes tens of thousands of groups. */
#include "config.h"

#include "runtime/groups.h"

#include "runtime/filehead.h"
#include "runtime/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHAINS    4096U /* a power of two */
#define WORLD     "0"   /* PyTorch's name of the default group */
#define WORLD_MAX (1U << 24)

struct node {
    struct node *next;
    struct crystal_group group;
};

struct crystal_groups {
    uint32_t lrank_count;
    struct node *chains[CHAINS];
};

static struct node **find(const struct crystal_groups *groups, const char *name,
                          size_t name_bytes)
{
    /* The table is ours: only the members are const to readers. */
    struct node **at = (struct node **)(uintptr_t)&groups
                           ->chains[crystal_hash(name, name_bytes) % CHAINS];

    while (*at && (strlen((*at)->group.name) != name_bytes ||
                   memcmp((*at)->group.name, name, name_bytes) != 0))
        at = &(*at)->next;
    return at;
}

/* Takes members. */
static int add(struct crystal_groups *groups, const char *name, size_t name_bytes,
               uint32_t *members, uint32_t count)
{
    struct node *n = calloc(1, sizeof *n), **at;
    char *copy = strndup(name, name_bytes);

    if (!n || !copy) {
        free(n);
        free(copy);
        free(members);
        return -ENOMEM;
    }
    n->group = (struct crystal_group){copy, members, count};
    at = find(groups, name, name_bytes);
    *at = n;
    return 0;
}

struct crystal_groups *crystal_groups_create(uint32_t lrank_count)
{
    struct crystal_groups *groups = calloc(1, sizeof *groups);
    uint32_t *world = malloc(((size_t)lrank_count + 1) * sizeof *world);

    if (!groups || !world) {
        free(groups);
        free(world);
        return NULL;
    }
    groups->lrank_count = lrank_count;
    for (uint32_t r = 0; r < lrank_count; r++)
        world[r] = r;
    if (add(groups, WORLD, strlen(WORLD), world, lrank_count) < 0) {
        free(groups);
        return NULL;
    }
    return groups;
}

void crystal_groups_destroy(struct crystal_groups *groups)
{
    if (!groups)
        return;
    for (unsigned i = 0; i < CHAINS; i++)
        while (groups->chains[i]) {
            struct node *gone = groups->chains[i];

            groups->chains[i] = gone->next;
            free(gone->group.name);
            free(gone->group.members);
            free(gone);
        }
    free(groups);
}

const struct crystal_group *crystal_groups_get(const struct crystal_groups *groups,
                                               const char *name, size_t name_bytes)
{
    const struct node *n = *find(groups, name, name_bytes);

    return n ? &n->group : NULL;
}

static int is_distinct(const struct crystal_groups *groups, const uint32_t *members,
                       uint32_t count)
{
    uint8_t *seen = calloc((size_t)groups->lrank_count + 1, 1);
    int distinct = seen ? 1 : -ENOMEM;

    for (uint32_t i = 0; distinct == 1 && i < count; i++) {
        if (seen[members[i]])
            distinct = 0;
        seen[members[i]] = 1;
    }
    free(seen);
    return distinct;
}

/* The program's own world: it must be the job's. */
static int world_check(const struct crystal_groups *groups, const char *text,
                       struct crystal_error *err)
{
    uint32_t *members, count;
    int rc = crystal_ranks_parse(text, WORLD_MAX, 0, &members, &count, err);

    if (rc < 0) {
        crystal_error_prefix(err, "the world's group");
        return rc;
    }
    free(members);
    if (count == groups->lrank_count)
        return 0;
    return crystal_error_set(err, EPROTO,
                             "the program runs with world size %u, the job has %u "
                             "logical ranks; it has to take its world size from "
                             "WORLD_SIZE or SLURM_NTASKS",
                             count, groups->lrank_count);
}

int crystal_groups_set(struct crystal_groups *groups, const char *name,
                       size_t name_bytes, const char *text, size_t text_bytes,
                       struct crystal_error *err)
{
    const struct crystal_group *known = crystal_groups_get(groups, name, name_bytes);
    char *copy;
    uint32_t *members = NULL, count = 0;
    int rc;

    if (text_bytes >
        ((size_t)groups->lrank_count + 1) * 11) /* ten digits and a comma */
        return crystal_error_set(err, EINVAL, "group '%.*s': its list is too long",
                                 (int)name_bytes, name);
    copy = strndup(text, text_bytes);
    if (!copy)
        return crystal_error_set(err, ENOMEM, "out of memory");
    if (name_bytes == strlen(WORLD) && memcmp(name, WORLD, name_bytes) == 0) {
        rc = world_check(groups, copy, err);
        if (rc < 0)
            goto out;
    }
    rc = crystal_ranks_parse(copy, groups->lrank_count, 1, &members, &count, err);
    if (rc < 0) {
        crystal_error_prefix(err, "group '%.*s'", (int)name_bytes, name);
        goto out;
    }
    rc = is_distinct(groups, members, count);
    if (rc != 1) {
        rc = crystal_error_set(err, rc < 0 ? -rc : EINVAL,
                               "group '%.*s': a rank stands twice in its members",
                               (int)name_bytes, name);
        goto out;
    }
    if (!known) {
        rc = add(groups, name, name_bytes, members, count);
        members = NULL; /* moved */
        if (rc == 0)
            rc = 1;
        else
            (void)crystal_error_set(err, ENOMEM, "out of memory");
        goto out;
    }
    rc = 0;
    if (known->count != count ||
        memcmp(known->members, members, count * sizeof *members) != 0)
        rc = crystal_error_set(err, EPROTO,
                               "group '%.*s' has %u members for one rank and %u (or "
                               "others) for another; do all ranks make the same groups "
                               "in the same order?",
                               (int)name_bytes, name, known->count, count);
out:
    free(members);
    free(copy);
    return rc;
}
