/* The --crystal-* options: registered for srun, sbatch and salloc, and in slurmstepd,
 * where their values arrive with the step. Values are checked by `scrystal layout`, the
 * one place that knows their meaning.
 */
#ifndef CRYSTAL_SPANK_OPTIONS_H
#define CRYSTAL_SPANK_OPTIONS_H

enum crystal_option {
    CRYSTAL_OPTION_LOGICAL_RANKS,
    CRYSTAL_OPTION_RANKS_PER_NODE,
    CRYSTAL_OPTION_SANDBOX,
    CRYSTAL_OPTION_PARALLEL,
    CRYSTAL_OPTION_LIVE,
    CRYSTAL_OPTION_ITERATIONS,
    CRYSTAL_OPTION_PAYLOAD,
    CRYSTAL_OPTION_STAGES,
    CRYSTAL_OPTION_JOB_DIR,
    CRYSTAL_OPTION_WIRE,
    CRYSTAL_OPTION_ASSISTANTS,
    CRYSTAL_OPTION_SLURM_ENV,
    CRYSTAL_OPTION_STAGE, /* internal: what a step started by us is for */
    CRYSTAL_OPTION_COUNT
};

struct crystal_option_info {
    const char *name;    /* without dashes */
    const char *metavar; /* NULL = not in the help */
    const char *help;    /* one sentence */
};
extern const struct crystal_option_info crystal_option_table[CRYSTAL_OPTION_COUNT];

struct crystal_options {
    char *value[CRYSTAL_OPTION_COUNT]; /* owned, NULL = not given */
};

/* 0 or -ENOMEM; value is copied. */
int crystal_options_set(struct crystal_options *options, enum crystal_option option,
                        const char *value);
/* Options that were not given take SLURM_CRYSTAL_<NAME> from the environment, for
 * example SLURM_CRYSTAL_PARALLEL. 0 or -ENOMEM. */
int crystal_options_default(struct crystal_options *options);
void crystal_options_fini(struct crystal_options *options);

#endif
