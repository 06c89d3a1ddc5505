/* Which cluster our job is on, where there are several (-M, --clusters). */
#ifndef CRYSTAL_SPANK_CLUSTER_H
#define CRYSTAL_SPANK_CLUSTER_H

#include "runtime/error.h"

/* The cluster of our job where salloc -M or srun -M has chosen another than the one
 * that is configured here, else NULL. Caller frees. */
char *crystal_cluster_of_job(void);
/* Tells it to the sruns that this process starts or becomes: srun of Slurm 26.05 takes
 * it out of its environment, older ones put their own there while a step runs. */
void crystal_cluster_tell_again(void);

/* Refuses -M (wanted, or NULL: SLURM_CLUSTERS counts) that leaves out the cluster of
 * the job that this process is in: srun would look for the number of that job
 * elsewhere. */
int crystal_cluster_check(const char *wanted, const char *job_id,
                          struct crystal_error *err);

#endif
