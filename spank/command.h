/* One command line of srun, sbatch or salloc that names our options, and all that is
 * found out about it before anything is changed.
 */
#ifndef CRYSTAL_SPANK_COMMAND_H
#define CRYSTAL_SPANK_COMMAND_H

#include "runtime/error.h"
#include "spank/argv.h"
#include "spank/ask.h"
#include "spank/local.h"
#include "spank/request.h"
#include "spank/srun_line.h"

#include <stdbool.h>

enum { CRYSTAL_COMMAND_EXIT_USAGE = 2 };

struct crystal_command {
    const struct crystal_local *local;
    struct crystal_argv self;
    int program; /* index of the program, or of the batch script, in self */
    struct crystal_srun_line line; /* options inside a batch script in front */
    char *scrystal;
    const char *job_id; /* NULL = no allocation yet */
    struct crystal_ask_job job;
    struct crystal_request request;
};

/* All but fini and the predicates give 0 or the exit code to end with, after the
 * sentence was printed. */

/* The running command; caller: fini. */
int crystal_command_read(struct crystal_command *c, const struct crystal_local *local);
void crystal_command_fini(struct crystal_command *c);
/* Refuses what cannot be emulated; finds scrystal. */
int crystal_command_check(struct crystal_command *c);
/* Fills job and request. for_step: a step is meant, not only its allocation; write:
 * make the job directory. */
int crystal_command_ask(struct crystal_command *c, bool for_step, bool write);

/* As Slurm names the job: option, then environment, then program. Borrowed. */
const char *crystal_command_job_name(const struct crystal_command *c);
bool crystal_command_is_sbatch(const struct crystal_command *c);
/* sbatch --wrap: there is no script. */
bool crystal_command_has_wrap(const struct crystal_command *c);
/* One task a node: the user's own launcher starts the ranks there. */
bool crystal_command_is_task_per_node(const struct crystal_command *c);

void crystal_command_say_notices(const struct crystal_command *c);
/* Prints the sentence; the exit code. */
int crystal_command_say(const struct crystal_error *err);

#endif
