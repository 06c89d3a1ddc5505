/* The numbers that Slurm's variables have in a program that believes to be one of many:
 * SLURM_PROCID, SLURM_NTASKS and the like. One place for slurmstepd's tasks and for the
 * ranks that agents start.
 */
#ifndef CRYSTAL_SLURM_VIEW_H
#define CRYSTAL_SLURM_VIEW_H

#include <stdint.h>

/* The words of --crystal-slurm-env, in this order. */
enum crystal_slurm_view {
    CRYSTAL_SLURM_LOGICAL,  /* a task is a logical rank */
    CRYSTAL_SLURM_PHYSICAL, /* a task is what really runs */
    CRYSTAL_SLURM_NODE,     /* a task is a target node, on which a launcher such as
                               torchrun starts the ranks */
    CRYSTAL_SLURM_VIEW_COUNT
};
extern const char *const crystal_slurm_view_names[CRYSTAL_SLURM_VIEW_COUNT];
/* 0 or -EINVAL. */
int crystal_slurm_view_parse(const char *name, enum crystal_slurm_view *ret);

/* One task of a step of full nodes. */
struct crystal_slurm_task {
    uint32_t task, ntasks, per_node; /* per_node divides ntasks */
};
/* The task that rank lrank of n is, per_node of them on a node. Not for PHYSICAL. */
struct crystal_slurm_task crystal_slurm_task_of(enum crystal_slurm_view view,
                                                uint32_t lrank, uint32_t n,
                                                uint32_t per_node);
/* Calls put with each setting NAME=VALUE of the task. */
void crystal_slurm_task_each(const struct crystal_slurm_task *task,
                             void (*put)(void *context, const char *setting),
                             void *context);

#endif
