/* Programs that start the ranks of a job themselves, on other machines or under their
 * own numbers, so that they cannot be one of our ranks: mpirun and the like. torchrun
 * can (contrib/pytorch/crystal_torch/launch.py).
 */
#ifndef CRYSTAL_LAUNCHER_H
#define CRYSTAL_LAUNCHER_H

#include <stddef.h>

/* The name of such a launcher that this command line runs, itself or behind env, nice,
 * exec and the like or in the text of a shell's -c; NULL = none is seen. argv ends with
 * NULL. The name is a constant. A script's own lines are not looked at. */
const char *crystal_launcher_find(char *const *argv);

#endif
