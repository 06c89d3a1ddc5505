/* The --crystal-* options: names, help and values. */
#include "config.h"

#include "spank/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct crystal_option_info crystal_option_table[CRYSTAL_OPTION_COUNT] = {
    [CRYSTAL_OPTION_LOGICAL_RANKS] =
        {"crystal-logical-ranks", "N",
         "Emulate a job of N logical ranks on a few nodes; see crystal(7)"},
    [CRYSTAL_OPTION_RANKS_PER_NODE] =
        {"crystal-ranks-per-node", "G",
         "Logical ranks of one target node (default: the partition's GPUs per node, "
         "else 8)"},
    [CRYSTAL_OPTION_SANDBOX] =
        {"crystal-sandbox", "LIST",
         "Logical ranks that run for real, as 8-15, rounded up to whole target nodes "
         "(default: the first)"},
    [CRYSTAL_OPTION_PARALLEL] =
        {"crystal-parallel", "GRID",
         "Parallel grid in the order of rank numbering, as tp=8,pp=4,dp=32"},
    [CRYSTAL_OPTION_LIVE] =
        {"crystal-live", "WHO",
         "Ranks that run during capture: replica (dp = 0, default, needs "
         "--crystal-parallel), all, or a list, one after the other"},
    [CRYSTAL_OPTION_ITERATIONS] =
        {"crystal-iterations", "K",
         "Iterations that capture and plan record, the first skipped (default 3)"},
    [CRYSTAL_OPTION_PAYLOAD] =
        {"crystal-payload", "WHAT",
         "Contents that capture keeps: control (integers and first messages, default) "
         "or all"},
    [CRYSTAL_OPTION_STAGES] =
        {"crystal-stages", "LIST",
         "Stages to run (default: capture,plan,emulate; current ones are skipped)"},
    [CRYSTAL_OPTION_JOB_DIR] =
        {"crystal-job-dir", "DIR",
         "Directory of the emulated job's files (default: ./crystal.JOBNAME)"},
    [CRYSTAL_OPTION_WIRE] =
        {"crystal-wire", "HOW",
         "How virtual ranks' messages arrive: modelled (default), or real, from "
         "assistant nodes"},
    [CRYSTAL_OPTION_ASSISTANTS] =
        {"crystal-assistants", "K",
         "Nodes that send virtual ranks' messages on the real wire (default: one per "
         "sandbox node)"},
    [CRYSTAL_OPTION_SLURM_ENV] =
        {"crystal-slurm-env", "WHICH",
         "What SLURM_PROCID, SLURM_NTASKS, ... say in the program: logical ranks "
         "(default), physical tasks, or node: the target's nodes (default with "
         "--ntasks-per-node=1)"},
    [CRYSTAL_OPTION_STAGE] = {"crystal-stage", NULL, NULL},
};

int crystal_options_set(struct crystal_options *options, enum crystal_option option,
                        const char *value)
{
    char *copy = strdup(value ? value : "");

    if (!copy)
        return -ENOMEM;
    free(options->value[option]);
    options->value[option] = copy;
    return 0;
}

int crystal_options_default(struct crystal_options *options)
{
    for (int i = 0; i < CRYSTAL_OPTION_COUNT; i++) {
        char name[64] = "SLURM_";
        size_t used = strlen(name);
        const char *value;

        if (options->value[i] || !crystal_option_table[i].metavar)
            continue;
        for (const char *c = crystal_option_table[i].name; *c && used < 62; c++)
            name[used++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        name[used] = '\0';
        value = getenv(name);
        if (value && crystal_options_set(options, (enum crystal_option)i, value) < 0)
            return -ENOMEM;
    }
    return 0;
}

void crystal_options_fini(struct crystal_options *options)
{
    for (int i = 0; i < CRYSTAL_OPTION_COUNT; i++)
        free(options->value[i]);
    memset(options, 0, sizeof *options);
}
