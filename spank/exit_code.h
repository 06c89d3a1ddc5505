/* The exit code of srun where the program has ended well and the emulation has not:
 * Slurm's hooks know no way to change it.
 */
#ifndef CRYSTAL_SPANK_EXIT_CODE_H
#define CRYSTAL_SPANK_EXIT_CODE_H

/* Where this process ends with 0 from here on, it ends with code instead. Once. */
void crystal_exit_code_instead(int code);

#endif
