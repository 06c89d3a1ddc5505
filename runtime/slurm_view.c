/* See slurm_view.h. The variables are those of srun(1), "OUTPUT ENVIRONMENT
 * VARIABLES". Only libc: the SPANK plugin has it, too. */
#include "config.h"

#include "runtime/slurm_view.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *const crystal_slurm_view_names[CRYSTAL_SLURM_VIEW_COUNT] = {
    "logical", "physical", "node"};

int crystal_slurm_view_parse(const char *name, enum crystal_slurm_view *ret)
{
    for (int i = 0; i < CRYSTAL_SLURM_VIEW_COUNT; i++)
        if (strcmp(name, crystal_slurm_view_names[i]) == 0) {
            *ret = (enum crystal_slurm_view)i;
            return 0;
        }
    return -EINVAL;
}

struct crystal_slurm_task crystal_slurm_task_of(enum crystal_slurm_view view,
                                                uint32_t lrank, uint32_t n,
                                                uint32_t per_node)
{
    struct crystal_slurm_task task = {lrank, n, per_node};

    if (view == CRYSTAL_SLURM_NODE)
        task = (struct crystal_slurm_task){lrank / per_node, n / per_node, 1};
    return task;
}

void crystal_slurm_task_each(const struct crystal_slurm_task *task,
                             void (*put)(void *context, const char *setting),
                             void *context)
{
    uint32_t nodes = task->ntasks / task->per_node;
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        {"SLURM_PROCID", task->task},
        {"SLURM_LOCALID", task->task % task->per_node},
        {"SLURM_NODEID", task->task / task->per_node},
        {"SLURM_NTASKS", task->ntasks},
        {"SLURM_NPROCS", task->ntasks},
        {"SLURM_STEP_NUM_TASKS", task->ntasks},
        {"SLURM_NNODES", nodes},
        {"SLURM_JOB_NUM_NODES", nodes},
        {"SLURM_STEP_NUM_NODES", nodes},
        {"SLURM_NTASKS_PER_NODE", task->per_node},
    };
    char setting[64];

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        (void)snprintf(setting, sizeof setting, "%s=%u", numbers[i].name,
                       numbers[i].value);
        put(context, setting);
    }
    if (nodes > 1)
        (void)snprintf(setting, sizeof setting, "SLURM_TASKS_PER_NODE=%u(x%u)",
                       task->per_node, nodes);
    else
        (void)snprintf(setting, sizeof setting, "SLURM_TASKS_PER_NODE=%u",
                       task->per_node);
    put(context, setting);
}
