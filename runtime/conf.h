/* crystal.yaml: what an admin or a user sets once. One table row per key feeds parser,
 * `scrystal doctor --keys`, the manual page and etc/crystal.yaml; a test compares them.
 */
#ifndef CRYSTAL_CONF_H
#define CRYSTAL_CONF_H

#include "runtime/error.h"
#include "runtime/inject_rules.h"
#include "runtime/stage_rules.h"
#include "runtime/target.h"
#include "runtime/units.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_conf {
    int64_t enabled;
    struct crystal_words allow_groups, allow_accounts, allow_partitions; /* none: all */
    int64_t logical_ranks_max;
    int64_t sandbox_nodes_max;  /* 0 = no limit */
    int64_t assistants_max;     /* 0 = no limit */
    int64_t assistants_apart;   /* they are a component of the job */
    char *assistants_partition; /* where that comes from; empty: as the job; owned */
    uint64_t job_dir_bytes_max; /* 0 = no limit */
    uint64_t pinned_bytes_max;  /* of the ranks of one node; 0 = no limit */
    uint64_t wire_bytes_per_s;
    uint64_t wire_latency_ns;
    char *iteration_range;         /* owned; empty: none */
    int64_t plan_passes;           /* at most */
    uint64_t plan_tolerance_ppm;   /* of an iteration */
    char *job_dir;                 /* template, see the table; owned */
    char *spill_dir;               /* the same; empty: in the job directory; owned */
    int64_t nvlink_nodes;          /* nodes of the target with one NVLink domain */
    int64_t port_first, port_last; /* of our listening sockets; 0 = any port */
    char *log;                     /* level of job steps; empty = warning; owned */
    /* What is asked of Slurm for an emulated job; texts are owned, empty = nothing. */
    char *gres_per_node, *partition, *qos, *licenses, *constraint, *mem_per_node;
    char *comment;
    int64_t cpus_per_task; /* 0 = nothing */
    int64_t exclusive;
    struct crystal_stage_rules stage[CRYSTAL_STAGE_COUNT];
    struct crystal_inject_rules inject;
    struct crystal_target target;
};

/* Defaults, then path over them (NULL: defaults only). Unknown keys, bad values and
 * malformed YAML are errors with line and column. ret is filled on success. */
int crystal_conf_read(const char *path, struct crystal_conf *ret,
                      struct crystal_error *err);
void crystal_conf_fini(struct crystal_conf *conf);

/* One row of the key table, for help and manual. */
struct crystal_conf_key {
    const char *name;
    const char *type;
    const char *default_text;
    const char *doc;
};
/* The table; ends with a row whose name is NULL. */
const struct crystal_conf_key *crystal_conf_keys(void);

#endif
