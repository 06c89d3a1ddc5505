/* A job.graph with durations, ready for the timeline: programs and the computation
 * before each record. From job.profile where there is one (measured), else from the
 * graph's own times and kernels (synthetic and imported graphs: modelled).
 */
#ifndef CRYSTAL_PREDICT_H
#define CRYSTAL_PREDICT_H

#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/profile.h"
#include "runtime/program.h"
#include "runtime/timeline.h"

#include <stdint.h>

struct crystal_predict {
    const struct crystal_graph *graph;
    struct crystal_program **programs; /* by representative; owned */
    uint64_t **gaps;                   /* by representative and instruction; owned */
    uint32_t rep_count;
    enum crystal_origin origin;
    struct crystal_network network; /* links: none */
};

/* profile may be NULL where the graph has times of its own; graph is borrowed, profile
 * until this returns. threads: at most so many, what comes out does not depend on it.
 * Caller: fini, also after a failure. */
int crystal_predict_init(struct crystal_predict *p, const struct crystal_graph *graph,
                         const struct crystal_profile *profile, uint32_t threads,
                         struct crystal_error *err);
void crystal_predict_fini(struct crystal_predict *p);

/* A timeline's configuration for one iteration of it; network is borrowed from p. */
struct crystal_timeline_config crystal_predict_config(const struct crystal_predict *p);

#endif
