/* What a partition gives a job: asked of sinfo before anything is allocated. */
#ifndef CRYSTAL_SPANK_PARTITION_H
#define CRYSTAL_SPANK_PARTITION_H

#include <stdint.h>

struct crystal_partition {
    char *name;             /* NULL = unknown; owned */
    uint32_t gpus_per_node; /* the most of its nodes; 0 = none or unknown */
    uint32_t cpus_per_node; /* the same */
    uint32_t min_nodes;     /* of a job; 0 = unknown */
    uint32_t max_nodes;     /* the same; 0 = no limit, too */
    uint32_t node_count;    /* all of its nodes; 0 = unknown */
};

/* The partition of that name, the default one where it is NULL; of that cluster
 * (--clusters), ours where it is NULL. What cannot be found out is 0. */
void crystal_partition_ask(const char *name, const char *cluster,
                           struct crystal_partition *ret);
void crystal_partition_fini(struct crystal_partition *partition);
/* What SLURM_PARTITION, SBATCH_PARTITION or SALLOC_PARTITION names; NULL = none does.
 */
const char *crystal_partition_from_environment(void);
/* Nodes of the partition with those that sinfo does not show, as nodes of a cloud that
 * are off; 0 = unknown. */
uint32_t crystal_partition_ask_total(const char *name, const char *cluster);

#endif
