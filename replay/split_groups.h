/* Whom ncclCommSplit and ncclCommShrink join, where most members of the parent do not
 * run and so tell neither colour nor key.
 *
 * The members of a child are one of the lists that are known: a communicator of the
 * captured graph, a group that the job has told, a group of the parallel grid (all
 * ranks that agree in some of its dimensions, as far as they are in the parent), or the
 * parent itself. Which one, follows in this order from
 *   the name    capture calls a child PARENT/splitK:COLOUR and PARENT/shrinkK, K the
 *               parent's children before it
 *   the colour  PyTorch makes it of the members' ranks (split_color_python, _c10)
 *   the ranks   that have told: all of one colour are in the list and nobody else is;
 *               of several such lists the only one whose number among its kind, in the
 *               order of the first members, is the colour
 * Virtual ranks of which no list says anything have no colour: whoever runs only looks
 * for its own.
 *
 * Pure; not thread-safe. All cranks are of the parent.
 */
#ifndef CRYSTAL_SPLIT_GROUPS_H
#define CRYSTAL_SPLIT_GROUPS_H

#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/layout.h"

#include <stddef.h>
#include <stdint.h>

/* Groups that the job has told: logical ranks by crank. */
struct split_told {
    struct split_list {
        uint32_t count;
        uint32_t *members; /* owned */
    } * lists;             /* owned */
    uint32_t count;
};

/* Copies; a list that is known is fine. -ENOMEM. */
int split_told_add(struct split_told *told, uint32_t count, const uint32_t *members);
void split_told_fini(struct split_told *told);

struct split_parent {
    const struct crystal_layout *layout; /* all borrowed until destroy */
    const struct crystal_graph *graph;   /* NULL: none */
    const struct split_told *told;       /* NULL: none */
    const char *name;
    uint32_t nranks;
    const uint32_t *members; /* lrank by crank, distinct */
};

struct split_groups;

/* child: how many children the parent has had. NULL when out of memory. */
struct split_groups *split_groups_create(const struct split_parent *parent,
                                         uint32_t child);
void split_groups_destroy(struct split_groups *groups);

/* A real rank's colour (negative: none) and key. Once per rank. -ENOMEM. */
int split_groups_tell(struct split_groups *groups, uint32_t crank, int32_t color,
                      int32_t key);
/* What a virtual rank says, of what has been told so far; the same for ever after.
 * -EAGAIN with a sentence where several lists fit, -ENOENT where none does, -ERANGE
 * where its order is none that keys give, -ENOMEM. */
int split_groups_ask(struct split_groups *groups, uint32_t crank, int32_t *ret_color,
                     int32_t *ret_key, struct crystal_error *err);

/* Every real rank has told. Calls fn for each colour that one of them has: members by
 * crank of the child as NCCL orders them, by key and then by crank. -EPROTO with a
 * sentence where a virtual rank, when it was asked, could not know what it should have
 * said; else as ask, or what fn returned. */
int split_groups_each(struct split_groups *groups,
                      int (*fn)(void *context, int32_t color, uint32_t count,
                                const uint32_t *cranks, struct crystal_error *err),
                      void *context, struct crystal_error *err);

/* The members that stay in ncclCommShrink, where crank `after` has `before` in front of
 * it: that of capture's name, else the only told or captured list in which it is so.
 * Sets *ret (owned by the caller) and *ret_count. -ENOENT with a sentence. */
int split_shrink_find(const struct split_parent *parent, uint32_t child,
                      uint32_t before, uint32_t after, uint32_t **ret,
                      uint32_t *ret_count, struct crystal_error *err);

/* The colours that PyTorch gives a group: torch/distributed/distributed_c10d.py,
 * _process_group_color (the hash of Python's tuples; new_group, of logical ranks), and
 * torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, genNcclSplitColor (split_group, of
 * ranks in the parent). */
int32_t split_color_python(uint32_t count, const uint32_t *ranks);
int32_t split_color_c10(uint32_t count, const uint32_t *ranks);

/* The name that capture gives such a child; text has room for CRYSTAL_BOARD_NAME.
 * color is not used for a shrink. */
void split_child_name(const char *parent, int is_shrink, uint32_t child, int32_t color,
                      char *text);

#endif
