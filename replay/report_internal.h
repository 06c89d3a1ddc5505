/* What a report says, between the file that gathers it and those that print it. Include
 * report.h instead.
 */
#ifndef CRYSTAL_REPORT_INTERNAL_H
#define CRYSTAL_REPORT_INTERNAL_H

#include "replay/report_events.h"
#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/layout.h"
#include "runtime/profile_file.h"
#include "runtime/program.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Mean and spread of some durations. */
struct rp_spread {
    uint64_t count;
    uint64_t mean_ns, p10_ns, p90_ns, max_ns;
};

/* Durations that are being collected. */
struct rp_samples {
    uint64_t *ns;
    size_t count, capacity;
};

struct rp_rank {
    uint32_t lrank;
    struct rp_spread iteration;            /* MEASURED in the run */
    struct crystal_profile_iteration plan; /* COMPOSED */
    uint64_t summed_ns;  /* MODELLED: computation and each operation alone, one after
                            the other: nothing overlaps, nobody waits */
    uint64_t peak_bytes; /* MEASURED in plan; 0 unknown */
    uint64_t op_count;   /* records of its run */
    uint64_t left_at;    /* first record that does not fit the iterations */
    uint64_t before;     /* calls before the iterations */
    uint64_t each;       /* calls in an iteration */
    bool has_run;
};

/* How often the sandbox ranks that were timed call something in an iteration. Each rank
 * does so equally often in each iteration, but one may do it more often than another.
 */
struct rp_calls {
    uint64_t count;        /* of all ranks and iterations */
    uint64_t count_before; /* without the rank that is being read */
    uint32_t rank_count;   /* ranks that call it */
    uint64_t least, most;  /* of a rank's iteration */
    double mean;           /* over ranks */
};
#define RP_CALLS_TEXT 24
/* "4" or, where ranks differ, "0-4"; returns text, of RP_CALLS_TEXT bytes. */
const char *rp_calls_text(const struct rp_calls *calls, char *text);

/* One kind of operation: same group of ranks, function and size. */
struct rp_op {
    char group[64];
    uint8_t func;
    bool is_eager; /* a send that ends for its rank before it is received */
    uint64_t bytes;
    struct rp_calls calls;
    struct rp_samples samples; /* arrival to end; MEASURED */
    struct rp_spread time;
    uint64_t plan_ns; /* sum over calls; COMPOSED */
    uint64_t plan_count;
    uint64_t transfer_ns;     /* sum over calls; MODELLED by the wire */
    uint64_t virtual_wait_ns; /* sum over calls; MEASURED */
};

/* One group of ranks ("tp"), over all its operations, per rank and iteration. */
struct rp_group {
    char name[64];
    uint32_t nranks;
    struct rp_calls calls;
    uint64_t time_ns, waiting_ns, virtual_ns, transfer_ns, plan_ns;
};

struct report {
    const char *job_dir;
    struct crystal_layout layout;
    struct crystal_graph *graph;
    struct crystal_profile *profile;
    struct crystal_program **programs;
    char run[32];          /* "runs/003" */
    struct rp_rank *ranks; /* by sandbox index */
    struct rp_samples iterations;
    struct rp_spread iteration;            /* of all sandbox ranks */
    struct crystal_profile_iteration plan; /* mean over sandbox ranks */
    uint64_t iteration_count; /* measured, per rank; the first one left out */
    struct rp_op *ops;
    size_t op_count;
    struct rp_group *groups;
    size_t group_count;
    struct rp_events events;
    char (*names)[64]; /* of groups, by communicator; empty: not asked for yet */
    /* run.yaml */
    uint64_t standin_ops, standin_bytes, late_count, late_max_ns;
    uint64_t payload_late_count;
    uint64_t wire_bytes_per_s, wire_latency_ns, overhead_ns;
    uint64_t sent_bytes, taken_bytes; /* by assistants */
    uint64_t given_bytes;             /* of those sent, made by the sandbox */
    char timeline[32], transport[64], failure[256], wire_kind[32];
    uint64_t *scratch;      /* 4 for each member of the greatest communicator */
    uint32_t modelled_reps; /* representatives whose gaps are MODELLED */
};

/* report_ops.c: runs -> iterations and operations. */
int rp_gather(struct report *r, struct crystal_error *err);
int rp_samples_add(struct rp_samples *s, uint64_t ns);
void rp_samples_spread(struct rp_samples *s, struct rp_spread *ret);

/* report_groups.c: the name of a communicator's group of ranks; borrowed. */
const char *rp_group_name(struct report *r, uint32_t comm);
/* The group, the kind of operation, new ones with zeros; until the next one is made.
 * NULL: out of memory. */
struct rp_group *rp_group_of(struct report *r, const char *name, uint32_t nranks);
struct rp_op *rp_op_of(struct report *r, const char *group, uint8_t func,
                       uint64_t bytes);
/* All calls of a rank, in so many iterations, were counted. */
void rp_groups_rank_done(struct report *r, uint64_t iterations);
/* Sums over ranks and iterations become means of one rank's iteration. */
void rp_groups_average(struct report *r);

/* Percent by which measured is longer than planned. */
double rp_off(uint64_t measured_ns, uint64_t planned_ns);

/* Whether plan's last two passes agree, where there were two. */
bool rp_has_settled(const struct report *r);

void rp_print_text(const struct report *r, FILE *out);
void rp_print_json(const struct report *r, FILE *out);
void rp_print_trace(const struct report *r, FILE *out);
void rp_print_html(const struct report *r, FILE *out);
/* A JSON string. */
void rp_json_text(FILE *out, const char *text);

#endif
