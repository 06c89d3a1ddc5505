/* One predicted iteration of all ranks: what if, how long, and because of what. */
#ifndef CRYSTAL_PREDICT_RUN_H
#define CRYSTAL_PREDICT_RUN_H

#include "runtime/predict.h"
#include "runtime/timeline_walk.h"

#include <stddef.h>
#include <stdint.h>

#define CRYSTAL_WHAT_IF_MAX 64

/* What is other than in the graph or profile; all of it at once. init: nothing is. */
struct crystal_what_if {
    uint32_t jitter_ppm;
    uint64_t seed;
    uint32_t compute_ppm;                       /* of all computation; 1000000 */
    uint64_t bytes_per_s, latency_ns;           /* between nodes; UINT64_MAX: as is */
    uint64_t node_bytes_per_s, node_latency_ns; /* inside nodes */
    struct {
        uint32_t lrank, ppm; /* its computation takes so many millionths */
    } slow[CRYSTAL_WHAT_IF_MAX];
    struct crystal_network_link links[CRYSTAL_WHAT_IF_MAX];
    uint32_t dead[CRYSTAL_WHAT_IF_MAX]; /* lranks that never do anything */
    uint32_t slow_count, link_count, dead_count;
    int shared_nics;         /* all that a rank sends shares its NIC */
    int one_queue;           /* all streams of a rank share one hardware queue */
    uint32_t algos;          /* enum crystal_transfer_algo, 0: rings */
    int has_algos;           /* they come before what records tell */
    uint32_t ranks_per_node; /* where the graph does not tell it, 0: unknown; links need
                                it */
};
void crystal_what_if_init(struct crystal_what_if *w);

/* Do its ranks, nodes and times exist in the graph? Else -EINVAL, with a sentence that
 * names the option. */
int crystal_what_if_check(const struct crystal_what_if *w,
                          const struct crystal_predict *p, struct crystal_error *err);

/* Arrival and end of one communication of one rank; end 0: it never ends. */
struct crystal_span {
    uint64_t arrive_ns, end_ns;
};

struct crystal_prediction {
    const struct crystal_predict *predict; /* borrowed */
    struct crystal_timeline *timeline;
    uint64_t *end_ns;      /* of each lrank's iteration; 0: it never ends */
    uint64_t iteration_ns; /* the greatest of them */
    uint32_t last_lrank;   /* whose that is */
    uint32_t stuck_count;  /* ranks that never end, dead ones included */
    uint64_t still_ns;     /* when the last communication ended */
    uint64_t operation_count;
    struct crystal_span *spans; /* NULL where not asked for */
    uint64_t *span_first;       /* by lrank */
    uint32_t **ordinals;        /* by representative and instruction */
};

/* Runs it, where it fits the graph. -ERANGE: times would be too great to be counted.
 * Spans (16 bytes for each communication of each rank) are needed for all below. NULL
 * on failure; a job that stands still is none. predict is borrowed. */
struct crystal_prediction *crystal_predict_run(const struct crystal_predict *p,
                                               const struct crystal_what_if *what,
                                               int with_spans,
                                               struct crystal_error *err);
void crystal_prediction_destroy(struct crystal_prediction *pr);

/* Walks a rank that has ended; walk is used again. -ENOMEM. */
int crystal_prediction_walk(const struct crystal_prediction *pr, uint32_t lrank,
                            int with_host, struct crystal_walk *walk);

/* How a rank's iteration is spent. The four parts make total_ns. Computation is kernels
 * or, where the graph has none, the host's. */
struct crystal_rank_stat {
    uint64_t total_ns;
    uint64_t compute_ns;
    uint64_t exposed_ns; /* in collectives while nothing computes */
    uint64_t bubble_ns;  /* waiting for or sending messages, and neither of these */
    uint64_t idle_ns;    /* none of these */
    uint64_t comm_ns;    /* in communication at all, hidden or not */
};
int crystal_prediction_stat(const struct crystal_prediction *pr, uint32_t lrank,
                            struct crystal_walk *walk, struct crystal_rank_stat *ret);

/* The critical path: parts that follow each other in time, from 0 to the end of the
 * iteration. A communication counts from its last arrival; before that the path is with
 * the rank that came last. */
struct crystal_path_part {
    uint64_t from_ns, to_ns;
    uint32_t lrank;
    uint32_t instr; /* UINT32_MAX: none */
    uint8_t kind;   /* enum crystal_walk_kind */
};
struct crystal_path {
    struct crystal_path_part *parts; /* owned, in order of time */
    size_t count;
};
int crystal_prediction_path(const struct crystal_prediction *pr,
                            struct crystal_path *ret, struct crystal_error *err);
void crystal_path_fini(struct crystal_path *path);

#endif
