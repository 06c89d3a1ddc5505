/* What srun, sbatch and salloc do with our options, once they have read theirs. */
#ifndef CRYSTAL_SPANK_LOCAL_H
#define CRYSTAL_SPANK_LOCAL_H

#include "spank/options.h"

#include <sys/types.h>

struct crystal_local {
    const struct crystal_options *options;
    const char *scrystal, *config; /* from plugstack.conf; may be NULL */
    pid_t salloc;                  /* the one that we put around this srun; 0 = none */
    const char *cluster;           /* of the job, see ask.h; NULL = the one here */
};

/* How this srun knows the salloc that was put around it (see above). */
#define CRYSTAL_SALLOC_ENV "CRYSTAL_SALLOC_PID"

/* Both return CRYSTAL_LOCAL_GO_ON where the command is to go on unchanged, else the
 * exit code to end with; the sentence has been printed. They do not return where
 * another command line was exec'd. */
#define CRYSTAL_LOCAL_GO_ON (-1)

/* sbatch, salloc: the same command with the sandbox's shape. */
int crystal_local_allocator(const struct crystal_local *local);
/* srun: a salloc around it, the stages of an emulated step, or nothing. */
int crystal_local_srun(const struct crystal_local *local);

/* Releases the job of our salloc where that has been killed; cluster as in ask.h. */
void crystal_local_release_orphan(pid_t salloc, const char *cluster);

#endif
