/* The lists that the members of a child communicator may be: see split_groups.h. */
#ifndef CRYSTAL_SPLIT_LISTS_H
#define CRYSTAL_SPLIT_LISTS_H

#include "replay/split_groups.h"

#define SPLIT_NONE UINT32_MAX

struct split_candidate {
    uint32_t count;
    uint32_t *cranks; /* of the parent, in the child's order; owned */
    const char *name; /* of a captured communicator, else NULL; borrowed */
    /* which one of its kind it is, in the order of the first members: all ranks of the
     * parent that differ in the same dimensions of the grid only; SPLIT_NONE: no kind
     */
    uint32_t number;
    int is_listed; /* captured or told, not only a part of the grid */
};

struct split_candidates {
    struct split_candidate *items; /* owned */
    uint32_t count;
};

/* Cranks by logical rank, SPLIT_NONE for those that are not in the parent. NULL when
 * out of memory; caller frees. */
uint32_t *split_crank_of(const struct split_parent *parent);
/* All lists that have this crank of the parent, and only members of it; lists with the
 * same members in the same order once. -ENOMEM. */
int split_candidates_find(const struct split_parent *parent, const uint32_t *crank_of,
                          uint32_t crank, struct split_candidates *ret);
void split_candidates_fini(struct split_candidates *candidates);

#endif
