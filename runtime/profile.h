/* job.profile: how long things take, made by plan for the programs of job.graph.
 *
 * File: crystal_filehead (magic "CRYPROFL"; parent: the graph's and the plan traces'
 * body hashes), then
 *   struct crystal_profile_head                            128 bytes
 *   struct crystal_profile_rep        [rep_count]          in the graph's order
 *   struct crystal_profile_op         [op_count]           by instruction
 *   struct crystal_profile_iteration  [lrank_count]        composed, by lrank
 * each section right behind the other. Every duration has an origin: measured, composed
 * of measured ones by the timeline, or modelled. All functions are thread-safe for
 * readers. Frozen: version 3; version 1 tells no way, 1 and 2 no cost.
 *
 * An instruction is what one iteration of a representative does, one after the other;
 * runtime/program.h makes them from job.graph. This header is installed as
 * <crystal/profile.h> (libcrystal-graph).
 */
#ifndef CRYSTAL_PROFILE_H
#define CRYSTAL_PROFILE_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_PROFILE_MAGIC   "CRYPROFL"
#define CRYSTAL_PROFILE_VERSION 3

enum crystal_origin {
    CRYSTAL_ORIGIN_NONE = 0,
    CRYSTAL_ORIGIN_MEASURED = 1, /* in plan, or in a run */
    CRYSTAL_ORIGIN_COMPOSED = 2, /* measured parts, the timeline's order */
    CRYSTAL_ORIGIN_MODELLED = 3  /* from other numbers than its own */
};
/* "measured"; borrowed. */
const char *crystal_origin_name(enum crystal_origin origin);

struct crystal_profile_head {
    uint32_t lrank_count;
    uint32_t rep_count;
    uint64_t op_count;
    uint64_t graph_hash; /* body hash of the graph it was made for */
    uint64_t wire_bytes_per_s;
    uint64_t wire_latency_ns;
    uint64_t overhead_ns;           /* software cost per message, see overhead_origin */
    uint32_t overhead_origin;       /* MEASURED: by collectives of the program among
                                       sandbox ranks; MODELLED: by others like them */
    uint32_t overhead_sample_count; /* collectives that gave it; MEASURED and 0: there
                                       is none, operations have costs of their own */
    uint32_t iteration_count;       /* iterations that were measured, per rank */
    uint32_t measured_count;        /* sandbox ranks that were measured */
    uint64_t op_overhead_ns;        /* software cost per operation, as overhead_ns */
    uint32_t pass_count;            /* of plan, 0 = one */
    int32_t pass_off_ppm; /* by how much the last pass composed a longer iteration of
                             the sandbox than the one before */
    uint32_t stretch_ppm; /* gaps are longer by this in all than measured: ranks that
                             share CPUs go on late behind each wait */
    uint32_t zero;
    uint64_t reserved[5];
};
_Static_assert(sizeof(struct crystal_profile_head) == 128, "frozen");

struct crystal_profile_rep {
    uint32_t lrank; /* of the representative */
    uint32_t instr_count;
    uint64_t op_first;
    uint32_t
        sample_count; /* iterations measured, over all sandbox ranks it stands for */
    uint32_t origin;  /* of its gaps: MEASURED in plan, or MODELLED */
    uint64_t zero;
};
_Static_assert(sizeof(struct crystal_profile_rep) == 32, "frozen");

/* Of one instruction. */
struct crystal_profile_op {
    uint64_t gap_ns, gap_p10_ns, gap_p90_ns; /* computation before it; mean */
    uint64_t transfer_ns, transfer_p10_ns, transfer_p90_ns; /* measured in plan, from
                              arrival to end while virtual ranks answer at once; mean; 0
                              where it is no communication or was not measured */
    uint64_t composed_ns; /* the same among all ranks as composed; mean */
    uint8_t way;          /* CRYSTAL_OP_WAY of a collective (op.h); 0 in version 1 */
    uint8_t zero[3];
    uint32_t cost_ns; /* of a communication: software's, beside the head's overheads;
                         0 before version 3 */
};
_Static_assert(sizeof(struct crystal_profile_op) == 64, "frozen");

struct crystal_profile_iteration {
    uint64_t mean_ns, p10_ns, p90_ns;
};

struct crystal_profile;

/* Checks every index. NULL on failure. */
struct crystal_profile *crystal_profile_open(const char *path,
                                             struct crystal_error *err);
void crystal_profile_close(struct crystal_profile *p);

const struct crystal_profile_head *
crystal_profile_head(const struct crystal_profile *p);
uint64_t crystal_profile_hash(const struct crystal_profile *p);
const struct crystal_profile_rep *crystal_profile_rep(const struct crystal_profile *p,
                                                      uint32_t rep);
/* By instruction of that representative's program. */
const struct crystal_profile_op *crystal_profile_ops(const struct crystal_profile *p,
                                                     uint32_t rep);
const struct crystal_profile_iteration *
crystal_profile_iteration(const struct crystal_profile *p, uint32_t lrank);
#endif
