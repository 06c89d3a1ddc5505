/* The exit code of srun where the agents know better than it: the program has ended
 * well and the emulation has not, or the rank that began has another code than those
 * that died of it. Slurm's hooks know no way to change it.
 */
#ifndef CRYSTAL_SPANK_EXIT_CODE_H
#define CRYSTAL_SPANK_EXIT_CODE_H

#include <stdbool.h>

/* Where this process ends with 0 from here on (always: with whatever), it ends with
 * code instead. Once. */
void crystal_exit_code_instead(int code, bool always);

#endif
