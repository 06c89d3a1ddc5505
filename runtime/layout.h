/* The layout of one emulated job: which logical ranks there are, which run, and where.
 *
 * Made from options and crystal.yaml by `scrystal layout`, kept as layout.yaml in the
 * job directory, read by every later stage.
 */
#ifndef CRYSTAL_LAYOUT_H
#define CRYSTAL_LAYOUT_H

#include "runtime/error.h"
#include "runtime/inject_rules.h"
#include "runtime/listen.h"
#include "runtime/slurm_view.h"
#include "runtime/stage_rules.h"
#include "runtime/target.h"

#include <stddef.h>
#include <stdint.h>

#define CRYSTAL_GRID_MAX 8

struct crystal_grid {
    uint32_t count; /* dimensions, fastest first; 0 = no grid was given */
    struct {
        char name[16];
        uint32_t size;
    } dim[CRYSTAL_GRID_MAX];
    uint32_t
        ep_inside; /* size of an ep that lies inside dp (the product leaves it out),
                      else 1: rank dp = d is then expert-parallel rank d % ep */
};

enum crystal_live {
    CRYSTAL_LIVE_REPLICA = 1,
    CRYSTAL_LIVE_ALL = 2,
    CRYSTAL_LIVE_LIST = 3 /* one after the other, with injected contributions */
};

struct crystal_layout {
    uint32_t lrank_count; /* N */
    uint32_t ranks_per_node;
    struct crystal_grid grid;
    uint32_t *sandbox; /* sandbox lranks, ascending, whole target nodes; owned */
    uint32_t sandbox_count;
    enum crystal_live live_mode;
    uint32_t *live; /* live lranks, ascending; owned */
    uint32_t live_count;
    uint32_t iterations;   /* recorded iterations, the first skipped */
    char *iteration_range; /* capture.iteration_range; NULL: none; owned */
    int payload_all;
    uint64_t wire_bytes_per_s;    /* wire.bandwidth */
    uint64_t wire_latency_ns;     /* wire.latency */
    uint32_t assistant_count;     /* nodes of emulate behind those of the sandbox: the
                                     wire is real; 0: it is modelled */
    struct crystal_target target; /* nccl, gpu and nic; owned */
    uint32_t plan_passes;         /* plan.passes, at least 1 */
    uint32_t plan_tolerance_ppm;
    uint64_t fingerprint; /* program, arguments (outside stage rules), grid, versions */
    char *spill_dir;      /* absolute, of this job alone; NULL: its directory; owned */
    uint64_t pinned_bytes_max;  /* limits.pinned_bytes; 0: none */
    struct crystal_ports ports; /* of coordinator, store and agents; first = 0: any */
    enum crystal_slurm_view slurm_view; /* what a task is in the program's SLURM_* */
    struct crystal_stage_rules stage[CRYSTAL_STAGE_COUNT];
    struct crystal_inject_rules inject; /* of a capture of a list */
    char job_name[64];
    char **program; /* argv of the program, NULL-terminated; owned; may be NULL */
};

/* Reads DIR/layout.yaml. ret is filled on success only; caller: crystal_layout_fini. */
int crystal_layout_read(const char *path, struct crystal_layout *ret,
                        struct crystal_error *err);
int crystal_layout_write(const char *path, const struct crystal_layout *layout,
                         struct crystal_error *err);
void crystal_layout_fini(struct crystal_layout *layout);

/* "0-7,16,24-31" <-> ranks. parse: each < limit, ascending and distinct unless
 * keep_order; caller frees *ret. format: caller frees the string. */
int crystal_ranks_parse(const char *text, uint32_t limit, int keep_order,
                        uint32_t **ret, uint32_t *ret_count, struct crystal_error *err);
char *crystal_ranks_format(const uint32_t *ranks, uint32_t count);

/* "tp=2,pp=4,dp=8" */
int crystal_grid_parse(const char *text, struct crystal_grid *ret,
                       struct crystal_error *err);
/* Size of dimension name, 1 where the grid has none of that name. */
uint32_t crystal_grid_size(const struct crystal_grid *grid, const char *name);

const char *crystal_live_name(enum crystal_live mode); /* "replica", "all", "list" */

/* The live rank whose recording stands for lrank: itself where it is live; with
 * live=replica the rank with the same coordinates but dp = 0. */
uint32_t crystal_layout_representative(const struct crystal_layout *layout,
                                       uint32_t lrank);
int crystal_layout_is_sandbox(const struct crystal_layout *layout, uint32_t lrank);

/* What node (of node_count) gets of `count` things that are dealt out in order, as
 * evenly as it goes: first up to end. */
struct crystal_share {
    uint32_t first, end;
};
struct crystal_share crystal_share_of(uint32_t count, uint32_t node,
                                      uint32_t node_count);
/* The sandbox node that runs lrank, where the sandbox is dealt out to node_count of
 * them; UINT32_MAX where it is a virtual rank. */
uint32_t crystal_layout_node_of(const struct crystal_layout *layout,
                                uint32_t node_count, uint32_t lrank);
/* The lowest of these nodes that runs one of the members, UINT32_MAX where none does;
 * *ret_real how many of them are in the sandbox. */
uint32_t crystal_layout_owner(const struct crystal_layout *layout, uint32_t node_count,
                              const uint32_t *members, uint32_t count,
                              uint32_t *ret_real);

#endif
