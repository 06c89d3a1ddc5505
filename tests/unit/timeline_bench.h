/* For tests of the timeline: a graph made by hand, and what the timeline tells of it.
 */
#ifndef CRYSTAL_TESTS_TIMELINE_BENCH_H
#define CRYSTAL_TESTS_TIMELINE_BENCH_H

#include "runtime/timeline.h"

#include "tests/check.h"
#include "tests/job.h"

#define RANKS_MAX 64

/* A graph with its programs and one gap for all instructions of a representative. */
struct bench {
    struct crystal_graph *graph;
    struct crystal_program *programs[RANKS_MAX];
    uint64_t *gaps[RANKS_MAX];
    uint32_t rep_count;
    struct crystal_timeline_config config;
    struct crystal_timeline *timeline;
    uint64_t begin_ns[RANKS_MAX], end_ns[RANKS_MAX], last_ns[RANKS_MAX];
    uint64_t coll_ns[RANKS_MAX], coll_count, coll_seq, p2p_ns, p2p_count;
    uint8_t outside[RANKS_MAX];
};

static inline void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                                uint64_t begin_ns, uint64_t end_ns)
{
    struct bench *b = context;

    (void)iteration;
    b->begin_ns[lrank] = begin_ns;
    b->end_ns[lrank] = end_ns;
}

static inline void on_coll(void *context, uint32_t comm, uint64_t seq,
                           const uint64_t *arrive)
{
    struct bench *b = context;
    struct crystal_graph_comm c;

    crystal_graph_comm(b->graph, comm, &c);
    memcpy(b->coll_ns, arrive, c.nranks * sizeof *arrive);
    b->coll_count++;
    b->coll_seq = seq;
}

static inline void on_p2p(void *context, uint32_t comm, uint32_t from, uint32_t to,
                          uint64_t seq, int inside_sends, uint64_t arrive_ns)
{
    struct bench *b = context;

    (void)comm, (void)from, (void)to, (void)seq, (void)inside_sends;
    b->p2p_ns = arrive_ns;
    b->p2p_count++;
}

static inline void bench_open(struct bench *b, const struct job *j)
{
    char path[160];

    memset(b, 0, sizeof *b);
    JOB_MUST(crystal_graph_build(j->dir, &job_err));
    job_path(j, path, sizeof path, "job.graph");
    b->graph = crystal_graph_open(path, &job_err);
    JOB_MUST(!b->graph);
    b->rep_count = crystal_graph_rep_count(b->graph);
    for (uint32_t r = 0; r < b->rep_count; r++) {
        b->programs[r] = crystal_program_create(b->graph, r, &job_err);
        JOB_MUST(!b->programs[r]);
        b->gaps[r] = calloc(b->programs[r]->instr_count, sizeof *b->gaps[r]);
        JOB_MUST(!b->gaps[r]);
    }
    b->config = (struct crystal_timeline_config){
        .graph = b->graph,
        .programs = b->programs,
        .gap_ns = (const uint64_t *const *)b->gaps,
        .iterations = 2,
        .context = b,
        .on_iteration = on_iteration,
        .on_coll = on_coll,
        .on_p2p = on_p2p,
    };
}

/* The same with a rank from outside. */
static inline void bench_open_without(struct bench *b, const struct job *j,
                                      uint32_t lrank)
{
    bench_open(b, j);
    b->outside[lrank] = 1;
    b->config.is_outside = b->outside;
}

static inline void bench_start(struct bench *b, uint64_t now_ns)
{
    b->timeline = crystal_timeline_create(&b->config, &job_err);
    JOB_MUST(!b->timeline);
    JOB_MUST(crystal_timeline_start(b->timeline, now_ns, &job_err));
}

static inline void bench_advance(struct bench *b, uint64_t until_ns)
{
    JOB_MUST(crystal_timeline_advance(b->timeline, until_ns, &job_err));
}

static inline void bench_run(struct bench *b)
{
    bench_start(b, 0);
    bench_advance(b, UINT64_MAX);
    JOB_MUST(crystal_timeline_explain(b->timeline, &job_err));
    CHECK(crystal_timeline_is_done(b->timeline));
    crystal_timeline_destroy(b->timeline);
    b->timeline = NULL;
}

static inline void bench_close(struct bench *b)
{
    crystal_timeline_destroy(b->timeline);
    for (uint32_t r = 0; r < b->rep_count; r++) {
        crystal_program_destroy(b->programs[r]);
        free(b->gaps[r]);
    }
    crystal_graph_close(b->graph);
}

static inline void gaps_of_kind(struct bench *b, uint32_t rep,
                                enum crystal_op_kind kind, uint64_t gap_ns)
{
    for (uint32_t i = 0; i < b->programs[rep]->instr_count; i++)
        if (b->programs[rep]->instrs[i].kind == kind)
            b->gaps[rep][i] = gap_ns;
}

#endif
