/* container.so: a SPANK plugin for container.t that does to tasks what one for
 * containers does, with a folder as the image. plugstack.conf: required container.so
 * [allocator].
 *
 * srun --container-image=DIR: the task's root becomes DIR; environment that a start of
 * a container sets from Slurm's numbers is set (RANK, WORLD_SIZE, MASTER_ADDR, ...),
 * and what it does not let pass is taken out (LD_PRELOAD, LD_LIBRARY_PATH). With
 * "allocator" sbatch and salloc have the option too. Works as root only.
 */
#include "config.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(container, 1);

static char image[PATH_MAX];

static int take(int value, const char *text, int remote)
{
    (void)value;
    (void)remote;
    return snprintf(image, sizeof image, "%s", text) < (int)sizeof image ? 0 : -1;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    struct spank_option option = {.name = "container-image",
                                  .arginfo = "DIR",
                                  .usage = "[container] the folder DIR as root",
                                  .has_arg = 1,
                                  .cb = take};
    int everywhere = argc > 0 && strcmp(argv[0], "allocator") == 0;

    if (spank_context() == S_CTX_ALLOCATOR && !everywhere)
        return 0;
    return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    char number[16];
    uint32_t tasks = 0;
    int task = 0;

    (void)argc;
    (void)argv;
    if (!image[0])
        return 0;
    if (spank_get_item(spank, S_TASK_GLOBAL_ID, &task) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS ||
        chroot(image) < 0) {
        slurm_error("container: %s cannot be entered: %m", image);
        return -1;
    }
    (void)snprintf(number, sizeof number, "%d", task);
    (void)spank_setenv(spank, "RANK", number, 1);
    (void)spank_setenv(spank, "SLURM_PROCID", number, 1);
    (void)snprintf(number, sizeof number, "%u", tasks);
    (void)spank_setenv(spank, "WORLD_SIZE", number, 1);
    (void)spank_setenv(spank, "MASTER_ADDR", "container.invalid", 1);
    (void)spank_setenv(spank, "NCCL_NET_PLUGIN", "none", 1);
    (void)spank_unsetenv(spank, "LD_PRELOAD");
    (void)spank_unsetenv(spank, "LD_LIBRARY_PATH");
    return 0;
}
#pragma GCC visibility pop
