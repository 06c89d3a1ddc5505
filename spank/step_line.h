/* The command lines of an emulated step: of the helper steps that it starts and of the
 * program's own srun; and the environment of the former.
 */
#ifndef CRYSTAL_SPANK_STEP_LINE_H
#define CRYSTAL_SPANK_STEP_LINE_H

#include "spank/argv.h"
#include "spank/steps.h"

#include <stdbool.h>

/* In the process that becomes a helper step; context is the struct crystal_steps. */
void crystal_step_prepare(void *context);

/* The program's own srun does not hear of a heterogeneous job: its step is in the first
 * component, and the other one is ours. */
void crystal_step_leave_out_components(void);

/* srun ... scrystal coord, on the first node. */
void crystal_step_coordinator(const struct crystal_steps *s, struct crystal_argv *out);
/* srun ... scrystal agent --stage STAGE, one on each sandbox node; step: what
 * --crystal-stage says. */
void crystal_step_agent(const struct crystal_steps *s, const char *step,
                        const char *stage, bool with_program, struct crystal_argv *out);
/* srun ... scrystal agent --stage emulate on each assistant node; where there are some.
 */
void crystal_step_assistants(const struct crystal_steps *s, struct crystal_argv *out);
/* The user's own line with the sandbox's shape as the last word on every option. */
void crystal_step_program(const struct crystal_steps *s, struct crystal_argv *out);
/* scrystal COMMAND --job DIR, here. */
void crystal_step_scrystal(const char *scrystal, const char *command,
                           const char *job_dir, struct crystal_argv *out);

#endif
