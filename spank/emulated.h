/* An srun inside an allocation that is to be emulated. */
#ifndef CRYSTAL_SPANK_EMULATED_H
#define CRYSTAL_SPANK_EMULATED_H

#include "spank/command.h"

/* Asks, checks what the job has, adds to its comment and runs the steps (steps.h). The
 * exit code; does not return where the program's srun was exec'd. */
int crystal_emulated_run(struct crystal_command *c);

#endif
