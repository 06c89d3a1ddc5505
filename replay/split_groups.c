/* Colours and keys of members that do not run. See split_groups.h. */
#include "config.h"

#include "replay/split_groups.h"

#include "replay/board.h"
#include "replay/split_lists.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum state { STATE_SILENT = 0, STATE_TOLD, STATE_SAID };

/* How the keys of a group follow from its order. */
enum keys { KEYS_PLACE = 0, KEYS_CRANK, KEYS_LRANK, KEYS_SAME, KEYS_STEP, KEYS_RULES };

struct colour {
    int32_t color;
    uint32_t teller;               /* the first that had it */
    struct split_candidate *group; /* NULL until it is needed */
    enum keys keys;
};

struct split_groups {
    struct split_parent parent;
    uint32_t child;
    uint32_t *crank_of;     /* by lrank; owned */
    uint8_t *state;         /* by crank; owned, as all that follow */
    int32_t *color, *key;   /* by crank, where not silent */
    uint32_t *told;         /* cranks */
    uint32_t *place;        /* scratch [nranks] */
    struct colour *colours; /* no negative ones */
    uint32_t told_count, colour_count;
};

struct split_groups *split_groups_create(const struct split_parent *parent,
                                         uint32_t child)
{
    struct split_groups *groups = calloc(1, sizeof *groups);
    const size_t n = parent->nranks;

    if (!groups)
        return NULL;
    groups->parent = *parent;
    groups->child = child;
    groups->crank_of = split_crank_of(parent);
    groups->state = calloc(n, sizeof *groups->state);
    groups->color = malloc(sizeof *groups->color * n);
    groups->key = malloc(sizeof *groups->key * n);
    groups->told = malloc(sizeof *groups->told * n);
    groups->place = malloc(sizeof *groups->place * n);
    if (groups->crank_of && groups->state && groups->color && groups->key &&
        groups->told && groups->place)
        return groups;
    split_groups_destroy(groups);
    return NULL;
}

static void group_free(struct split_candidate *group)
{
    if (group)
        free(group->cranks);
    free(group);
}

void split_groups_destroy(struct split_groups *groups)
{
    if (!groups)
        return;
    for (uint32_t i = 0; i < groups->colour_count; i++)
        group_free(groups->colours[i].group);
    free(groups->colours);
    free(groups->crank_of);
    free(groups->state);
    free(groups->color);
    free(groups->key);
    free(groups->told);
    free(groups->place);
    free(groups);
}

int split_groups_tell(struct split_groups *groups, uint32_t crank, int32_t color,
                      int32_t key)
{
    struct colour *grown;
    uint32_t i = 0;

    groups->state[crank] = STATE_TOLD;
    groups->color[crank] = color;
    groups->key[crank] = key;
    groups->told[groups->told_count++] = crank;
    while (i < groups->colour_count && groups->colours[i].color != color)
        i++;
    if (color < 0 || i < groups->colour_count)
        return 0;
    grown = realloc(groups->colours, (i + (size_t)1) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    groups->colours = grown;
    groups->colours[groups->colour_count++] =
        (struct colour){.color = color, .teller = crank};
    return 0;
}

/* --- which list it is --- */

/* The place of each crank in a list, SPLIT_NONE for those that are not in it. */
static void find_places(struct split_groups *groups, const struct split_candidate *list)
{
    for (uint32_t i = 0; i < groups->parent.nranks; i++)
        groups->place[i] = SPLIT_NONE;
    for (uint32_t i = 0; i < list->count; i++)
        groups->place[list->cranks[i]] = i;
}

/* Those that have told are in the list if, and only if, they have its colour. */
static bool is_possible(struct split_groups *groups, const struct split_candidate *list,
                        int32_t color)
{
    find_places(groups, list);
    for (uint32_t i = 0; i < groups->told_count; i++) {
        const uint32_t crank = groups->told[i];

        if ((groups->place[crank] != SPLIT_NONE) != (groups->color[crank] == color))
            return false;
    }
    return true;
}

/* PyTorch made the colour of these members. */
static bool has_color(const struct split_groups *groups,
                      const struct split_candidate *list, int32_t color)
{
    uint32_t *lranks = groups->place; /* scratch */

    for (uint32_t i = 0; i < list->count; i++)
        lranks[i] = groups->parent.members[list->cranks[i]];
    return split_color_python(list->count, lranks) == color ||
           split_color_c10(list->count, list->cranks) == color;
}

enum step { STEP_NAME, STEP_COLOR, STEP_ONLY, STEP_NUMBER, STEPS };

static bool fits(struct split_groups *groups, const struct split_candidate *list,
                 int32_t color, enum step step)
{
    char name[CRYSTAL_BOARD_NAME];

    switch (step) {
    case STEP_NAME:
        split_child_name(groups->parent.name, 0, groups->child, color, name);
        return list->name && strcmp(list->name, name) == 0;
    case STEP_COLOR:
        return has_color(groups, list, color) && is_possible(groups, list, color);
    case STEP_ONLY:
        return is_possible(groups, list, color);
    default:
        return list->number == (uint32_t)color && is_possible(groups, list, color);
    }
}

/* The only list that fits in the first step in which any does. */
static struct split_candidate *choose(struct split_groups *groups,
                                      struct split_candidates *all, int32_t color,
                                      uint32_t *ret_count)
{
    struct split_candidate *found = NULL;

    *ret_count = 0;
    for (enum step step = STEP_NAME; step < STEPS; step++) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < all->count; i++)
            if (fits(groups, &all->items[i], color, step)) {
                found = &all->items[i];
                count++;
            }
        if (count)
            *ret_count = count;
        if (count == 1)
            return found;
    }
    return NULL;
}

/* --- keys --- */

/* One more than the key in front of it, or less than that behind, as far as it is from
 * the nearest that was told. */
static int64_t key_by_step(const struct split_groups *groups,
                           const struct split_candidate *group, uint32_t place)
{
    uint32_t at = place + 1;

    while (at-- > 0)
        if (groups->state[group->cranks[at]] == STATE_TOLD)
            return (int64_t)groups->key[group->cranks[at]] + (place - at);
    for (at = place; groups->state[group->cranks[at]] != STATE_TOLD; at++)
        ; /* somebody has told */
    return (int64_t)groups->key[group->cranks[at]] - (at - place);
}

static int64_t key_of(const struct split_groups *groups, const struct colour *colour,
                      uint32_t place)
{
    const uint32_t crank = colour->group->cranks[place];

    switch (colour->keys) {
    case KEYS_PLACE:
        return place;
    case KEYS_CRANK:
        return crank;
    case KEYS_LRANK:
        return groups->parent.members[crank];
    case KEYS_STEP:
        return key_by_step(groups, colour->group, place);
    default:
        return groups->key[colour->teller];
    }
}

/* The rule gives the keys that were told, and these give the list's order. */
static bool keys_are_right(const struct split_groups *groups,
                           const struct colour *colour)
{
    const struct split_candidate *group = colour->group;

    for (uint32_t i = 0; i < group->count; i++) {
        const uint32_t crank = group->cranks[i];
        const int64_t key = key_of(groups, colour, i);

        if (groups->state[crank] == STATE_TOLD && groups->key[crank] != key)
            return false;
        if (i &&
            (key_of(groups, colour, i - 1) > key ||
             (key_of(groups, colour, i - 1) == key && group->cranks[i - 1] > crank)))
            return false;
    }
    return true;
}

static int find_group(struct split_groups *groups, struct colour *colour,
                      struct crystal_error *err)
{
    struct split_candidates all;
    struct split_candidate *found;
    uint32_t count;

    if (split_candidates_find(&groups->parent, groups->crank_of, colour->teller, &all))
        return crystal_error_set(err, ENOMEM, "out of memory");
    found = choose(groups, &all, colour->color, &count);
    if (found)
        colour->group = malloc(sizeof *colour->group);
    if (colour->group) {
        *colour->group = *found;
        found->cranks = NULL; /* moved */
    }
    split_candidates_fini(&all);
    if (colour->group)
        return 0;
    if (found)
        return crystal_error_set(err, ENOMEM, "out of memory");
    if (count)
        return crystal_error_set(
            err, EAGAIN,
            "ncclCommSplit: several groups of rank %u may have colour %d; give a group "
            "its number as colour, or capture the job",
            colour->teller, colour->color);
    return crystal_error_set(
        err, ENOENT,
        "ncclCommSplit: no group that is known of rank %u can have colour %d; name its "
        "dimension in --crystal-parallel, or capture the job",
        colour->teller, colour->color);
}

static int resolve(struct split_groups *groups, struct colour *colour,
                   struct crystal_error *err)
{
    int code = colour->group ? 0 : find_group(groups, colour, err);

    if (code)
        return code;
    for (colour->keys = KEYS_PLACE; colour->keys < KEYS_RULES; colour->keys++)
        if (keys_are_right(groups, colour))
            return 0;
    return crystal_error_set(err, ERANGE,
                             "ncclCommSplit: the keys of colour %d are not those of "
                             "its group's order; use ranks as keys",
                             colour->color);
}

int split_groups_ask(struct split_groups *groups, uint32_t crank, int32_t *ret_color,
                     int32_t *ret_key, struct crystal_error *err)
{
    int32_t color = -1, key = 0;

    for (uint32_t i = 0; i < groups->colour_count && !groups->state[crank]; i++) {
        struct colour *colour = &groups->colours[i];
        uint32_t place = 0;
        int code = resolve(groups, colour, err);

        if (code)
            return code;
        while (place < colour->group->count && colour->group->cranks[place] != crank)
            place++;
        if (place == colour->group->count)
            continue;
        color = colour->color;
        key = (int32_t)key_of(groups, colour, place);
    }
    if (!groups->state[crank]) {
        groups->state[crank] = STATE_SAID;
        groups->color[crank] = color;
        groups->key[crank] = key;
    }
    *ret_color = groups->color[crank];
    *ret_key = groups->key[crank];
    return 0;
}

/* --- the children --- */

static int compare(const void *a, const void *b, void *context)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const int32_t *key = context;

    if (key[x] != key[y])
        return key[x] < key[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* What every member will make of all that was said is the group. */
static int check_group(struct split_groups *groups, const struct colour *colour,
                       struct crystal_error *err)
{
    uint32_t *cranks = groups->place, count = 0; /* scratch */

    for (uint32_t i = 0; i < groups->parent.nranks; i++)
        if (groups->color[i] == colour->color)
            cranks[count++] = i;
    qsort_r(cranks, count, sizeof *cranks, compare, groups->key);
    if (count == colour->group->count &&
        memcmp(cranks, colour->group->cranks, sizeof *cranks * count) == 0)
        return 0;
    return crystal_error_set(err, EPROTO,
                             "ncclCommSplit: virtual ranks had to say their colour "
                             "before the real ranks of colour %d had told theirs; "
                             "capture the job, or let all ranks have a colour",
                             colour->color);
}

int split_groups_each(struct split_groups *groups,
                      int (*fn)(void *context, int32_t color, uint32_t count,
                                const uint32_t *cranks, struct crystal_error *err),
                      void *context, struct crystal_error *err)
{
    int code = 0;

    for (uint32_t i = 0; i < groups->parent.nranks && !code; i++) {
        int32_t color, key;

        code = split_groups_ask(groups, i, &color, &key, err);
    }
    for (uint32_t i = 0; i < groups->colour_count && !code; i++) {
        code = resolve(groups, &groups->colours[i], err);
        if (!code)
            code = check_group(groups, &groups->colours[i], err);
    }
    for (uint32_t i = 0; i < groups->colour_count && !code; i++)
        code = fn(context, groups->colours[i].color, groups->colours[i].group->count,
                  groups->colours[i].group->cranks, err);
    return code;
}

/* --- ncclCommShrink --- */

/* In the list, `before` stands in front of `after`. */
static bool is_behind(const struct split_candidate *list, uint32_t before,
                      uint32_t after)
{
    uint32_t i = 0;

    while (i < list->count && list->cranks[i] != after)
        i++;
    return i < list->count &&
           list->cranks[(i + list->count - 1) % list->count] == before;
}

/* Shrinking keeps the order and leaves somebody out. */
static bool is_shrunk(const struct split_candidate *list, uint32_t nranks)
{
    for (uint32_t i = 1; i < list->count; i++)
        if (list->cranks[i] <= list->cranks[i - 1])
            return false;
    return list->count < nranks;
}

/* The only one, or the one with capture's name; NULL with the number of those. */
static struct split_candidate *choose_shrunk(const struct split_parent *parent,
                                             struct split_candidates *all,
                                             uint32_t child, uint32_t before,
                                             uint32_t after, uint32_t *ret_count)
{
    struct split_candidate *found = NULL;
    char name[CRYSTAL_BOARD_NAME];

    split_child_name(parent->name, 1, child, 0, name);
    *ret_count = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        struct split_candidate *item = &all->items[i];

        if (!item->is_listed || !is_shrunk(item, parent->nranks) ||
            !is_behind(item, before, after))
            continue;
        if (item->name && strcmp(item->name, name) == 0)
            return item;
        found = item;
        ++*ret_count;
    }
    return *ret_count == 1 ? found : NULL;
}

int split_shrink_find(const struct split_parent *parent, uint32_t child,
                      uint32_t before, uint32_t after, uint32_t **ret,
                      uint32_t *ret_count, struct crystal_error *err)
{
    uint32_t *crank_of = split_crank_of(parent), count;
    struct split_candidates all = {0};
    struct split_candidate *found;

    if (!crank_of || split_candidates_find(parent, crank_of, after, &all)) {
        free(crank_of);
        return crystal_error_set(err, ENOMEM, "out of memory");
    }
    free(crank_of);
    found = choose_shrunk(parent, &all, child, before, after, &count);
    if (found) {
        *ret = found->cranks;
        *ret_count = found->count;
        found->cranks = NULL; /* moved */
    }
    split_candidates_fini(&all);
    if (found)
        return 0;
    return crystal_error_set(err, ENOENT,
                             "ncclCommShrink: which ranks stay is not known: %s has "
                             "rank %u in front of rank %u; capture the job",
                             count ? "more than one group" : "no group", before, after);
}
