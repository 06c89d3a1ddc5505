/* Questions to other programs: what `scrystal layout` makes of the options, and what
 * the partition or the job has.
 */
#ifndef CRYSTAL_SPANK_ASK_H
#define CRYSTAL_SPANK_ASK_H

#include "runtime/error.h"
#include "spank/argv.h"
#include "spank/options.h"
#include "spank/partition.h"
#include "spank/request.h"
#include "spank/srun_line.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A program of this Slurm installation, beside the running one; into out. */
void crystal_ask_slurm_path(const char *name, char *out, size_t out_bytes);

/* A Slurm command's name and the cluster (may be NULL), without which the number of a
 * job would be taken for one of the cluster here. */
void crystal_ask_slurm_begin(const char *name, const char *cluster,
                             struct crystal_argv *argv);

/* scrystal: the given path, else bin/scrystal beside the folder that crystal.so was
 * installed in, else from PATH. Caller frees; NULL with a sentence. */
char *crystal_ask_scrystal_path(const char *given, struct crystal_error *err);

/* What a Slurm command prints, words up to a NULL; cluster: which is asked, NULL = the
 * job's. Caller frees, NULL = it failed. */
char *crystal_ask_slurm(const char *name, const char *cluster,
                        const char *const *words);
/* "n[1-2]" -> "n1,n2"; caller frees, NULL where Slurm does not know. */
char *crystal_ask_hostnames(const char *list);

struct crystal_ask_job {
    struct crystal_partition partition;
    bool has_gres;    /* the job holds a gres; false without a job */
    char *comment;    /* of the job; NULL = none; owned */
    char *nodes;      /* all of them, with commas; NULL without a job; owned */
    char *more_nodes; /* of a heterogeneous job's second component; the same */
};
/* Asks squeue for the job (job_id not NULL) and sinfo for the partition (the one named
 * on the line, else the job's, else the default one). What cannot be found out is 0. */
void crystal_ask_job(const char *job_id, const struct crystal_srun_line *line,
                     struct crystal_ask_job *ret);
void crystal_ask_job_fini(struct crystal_ask_job *job);

struct crystal_ask_layout {
    const char *scrystal, *config; /* config may be NULL */
    const struct crystal_options *options;
    const struct crystal_partition *partition;
    bool partition_is_chosen; /* by the user, or it is the job's */
    const char *account;      /* NULL = not known */
    bool task_per_node;       /* the step has one task a node */
    const char *job_name;
    const struct crystal_argv *self; /* own command line, program at index program */
    int program;
    bool for_step; /* a step is meant: its stages and program count */
    bool write;    /* make the job directory */
};
/* 0, or the exit code to end with after the sentence has been printed. */
int crystal_ask_layout(const struct crystal_ask_layout *ask,
                       struct crystal_request *ret);

#endif
